r"""Rewrites of answers for the strict rule, each with an example that a test checks.

A rewrite converts a common spelling to one that math-verify parses correctly, in linear time. docs/verifiers.md lists
the main ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from rlvr_cli.verify.math_answer import clean, strip_full_stop
from rlvr_cli.verify.numbers import CHANGING_WORDS

Match = re.Match[str]


class Rewrite(NamedTuple):
    """A regular expression, the replacement of its matches, and an example with its result."""

    pattern: str
    replacement: str | Callable[[Match], str]
    example: str
    result: str

    def apply(self, text: str) -> str:
        return re.sub(self.pattern, self.replacement, text)


_GROUP = r"\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}"
_BARE = r"(\\[A-Za-z]+|[^\s{}\\\[])"
FRACTION = rf"\\[dtc]?frac\s*{_GROUP}\s*{_GROUP}"
_PLAIN_FRACTION = r"\\frac\{(\d+)\}\{(\d+)\}"
_TEXT = r"\\(?:text|mbox|mathrm|textrm|textnormal|textup|operatorname)"
_POWER = r"(?:\s*\^\s*\{?\s*-?\s*\d\s*\}?|\s*\{\s*\^\s*\d\s*\})?"
_MARK = "\N{DEGREE SIGN}"
_ANGLE = rf"(\d+(?:\.\d+)?[A-Za-z]?|{FRACTION}|\\?[A-Za-z]+|\([^()]*\)|\{{[^{{}}]*\}}){_MARK}"
_ABOUT = r"(?:\s|\\[;:, ]|\\q?quad(?![A-Za-z]))*"


def _to_radians(match: Match) -> str:
    return match[1] + re.sub(_ANGLE, r"(\\frac{\1\\pi}{180})", match[2])


def _to_improper_fraction(match: Match) -> str:
    integer, top, bottom = (int(group) for group in match.groups())
    return rf"\frac{{{integer * bottom + top}}}{{{bottom}}}" if top < bottom else match[0]


def _name_base(match: Match) -> str:
    base = re.sub(r"\W", "", match[2])
    return match[1] if base == "10" else rf"\variable{{{match[1]}_{base}}}"


REWRITES = (
    Rewrite(
        r"\A\\(?:text|math)(?:bf|rm|it|normal)?\s*\{\s*(\()?\s*([-+]?[\d.,/]+)\s*(?(1)\)\s*)\}\Z",
        r"\2",
        r"\textbf{(113) }",
        "113",
    ),
    # Kelvin; as text or without a command, K may be a thousand.
    Rewrite(r"(?<=[\d}])\s*(?:\\,)?\s*\\mathrm\{K\}", r"\\mathrm{kelvin}", r"3\,\mathrm{K}", r"3\mathrm{kelvin}"),
    Rewrite(r"\\(?:text|mathrm|mathit|rm)\s*\{\s*([ied])\s*\}|\{\\rm ([ied])\}", r" \1\2", r"3+4\mathrm{i}", "3+4 i"),
    Rewrite(
        r"\^\s*(?:\{\s*(?:\\prime\s*)+\}|\\prime(?![A-Za-z]))",
        lambda match: "'" * match[0].count("\\prime"),
        r"f^{\prime\prime}",
        "f''",
    ),
    Rewrite(
        r"\\(?:text|textbf|mathrm|mathbf)\s*\{\s*(\(?[A-Z]\)?(?:\s*,\s*\(?[A-Z]\)?)+)\s*\}", r"\1", r"\text{B,E}", "B,E"
    ),
    Rewrite(
        r"\A((?:\\?\$)?-?\d{1,3}(?:,\d{3})+(?:\.\d+)?)"
        rf"((?:\s|\\,)*(?:[A-Za-z][A-Za-z ]*|{_TEXT}\s*\{{[A-Za-z\s]*\}}{_POWER}))\Z",
        lambda match: match[1].replace(",", "") + match[2],
        r"350,000\text{ pages}",
        r"350000\text{ pages}",
    ),
    Rewrite(
        r"(?<![\w.\\}])(\d+(?:\.\d*)?)[eE]\+?(-?\d{1,3})(?![\w.])", r"\1\\times 10^{\2}", "1.5e-3", r"1.5\times 10^{-3}"
    ),
    Rewrite(r"(?<![\w.^_}/])(\d+) (\d+)/(\d+)(?![\w.^/])", r"\1\\frac{\2}{\3}", "1 1/2", r"1\frac{1}{2}"),
    Rewrite(rf"(\\sqrt(?![A-Za-z])\s*(?:\[[^\[\]]{{1,9}}\])?)\s*{_BARE}", r"\1{\2}", r"\sqrt[3]2", r"\sqrt[3]{2}"),
    Rewrite(rf"(\\(?:[dtc]?frac|[dt]?binom)(?![A-Za-z]))\s*{_BARE}", r"\1{\2}", r"\frac\pi{3}", r"\frac{\pi}{3}"),
    Rewrite(rf"(\\(?:[dtc]?frac|[dt]?binom)\s*{_GROUP})\s*{_BARE}", r"\1{\2}", r"\frac{c}a", r"\frac{c}{a}"),
    Rewrite(rf"([\^_])\s*({FRACTION})", r"\1{\2}", r"2^\frac{1}{2}", r"2^{\frac{1}{2}}"),
    # Degrees within trigonometric functions, which are read in radians.
    Rewrite(
        r"\s*(?:\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))|\^?\s*\\degree(?![A-Za-z]))",
        _MARK,
        r"15^{\circ}",
        f"15{_MARK}",
    ),
    Rewrite(
        r"(\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])(?:\s*\^\s*(?:\{[^{}]*\}|\d))?\s*)"
        rf"(\((?:[^()]|\([^()]*\))*\){_MARK}?|{_GROUP}{_MARK}?|{_ANGLE})",
        _to_radians,
        f"\\cos 15{_MARK}",
        r"\cos (\frac{15\pi}{180})",
    ),
    Rewrite(_MARK, r"^\\circ", f"60{_MARK}", r"60^\circ"),
    # Approximations after a value.
    Rewrite(r"\\(?:simeq|thickapprox|approxeq|doteq)(?![A-Za-z])|\u2248", r"\\approx ", "1\u22481", r"1\approx 1"),
    Rewrite(
        rf"{_ABOUT}(?:\\(?:text|mbox|mathrm)\s*\{{\s*,?\s*\(?\s*(?:or )?(?:about|approximately|approx\.?)\s*"
        rf"(-?\d+(?:\.\d+)?)\s*\)?\s*\}}|\(\s*\\approx\s*(-?\d+(?:\.\d+)?)\s*\))\s*\Z",
        r"\\approx \1\2",
        r"\frac{5}{7}\;\text{(about 0.714)}",
        r"\frac{5}{7}\approx 0.714",
    ),
    Rewrite(
        r"\\(?:varnothing|emptyset)(?![A-Za-z])|[\u2205\u00d8]|\\\{\s*\\\}", r"\\emptyset ", r"\{\}", r"\emptyset "
    ),
    Rewrite(
        r"\\(?:langle|left\s*<)(?![A-Za-z])([^<>]*?)\\(?:rangle|right\s*>)(?![A-Za-z])",
        r"(\1)",
        r"\langle 1,2\rangle",
        "( 1,2)",
    ),
    Rewrite(r"\\(?:lor|vee)(?![A-Za-z])|\u2228", r"\\text{ or }", r"x=1 \lor x=2", r"x=1 \text{ or } x=2"),
)

# Only for the parser, since the elements of an answer are first compared as written.
PARSER_REWRITES = (
    Rewrite(rf"(?<![\w.,^}}])(\d+)\s*{_PLAIN_FRACTION}", _to_improper_fraction, r"2\frac{3}{4}", r"\frac{11}{4}"),
    # The parser would add (12). Not after the index of a logarithm or the power of a function.
    Rewrite(r"(?:(?<=\d)(?<![_^]\d)|(?<=\d\)))(?:\s|\\,)*(?=\(|\\binom)", r"\\cdot ", "4(8)", r"4\cdot (8)"),
    # A number with a base is a separate symbol.
    Rewrite(r"(?<![\w.^])(\d[\d.,]*)_(\{[^{}]*\}|\w|\\[A-Za-z]+)", _name_base, "x+12_3", r"x+\variable{12_3}"),
)
# Adjacent numbers, also in braces or after a fraction, and a whole number before an improper fraction.
_SIDE_BY_SIDE = re.compile(
    rf"(?<![\w^.,}}])\d+(?:,\d{{3}})*(?:\.\d*)?(?:\s+|\s*\{{+)\.?\d|(?<![\w^.}}])\d+\s*{_PLAIN_FRACTION}"
)
_COMMAND = re.compile(rf"\\[A-Za-z]+(?:\[[^\[\]]*\])?(?:\s*{_GROUP})+")
_BRACED = re.compile(r"(?<![\]^_{])\{+[\d.,]+\}+\s*\{*\.?\d")

_DELIMITER = re.compile(r"(?<!\\)\$|\\[()\[\]]")
_LOOSE_SPACE = re.compile(r" +(?![A-Za-z0-9 ])")


def rewrite(text: str) -> str:
    """Strip math delimiters and apply all rewrites, in order."""
    # As in `$$ ... .$$`.
    text = strip_full_stop(" ".join(_LOOSE_SPACE.sub("", _DELIMITER.sub(" ", clean(text))).split()))
    for change in REWRITES:
        text = change.apply(text)
    return text.strip()


def rewrite_for_parser(text: str) -> str:
    """Rewrite ``text`` for math-verify's parser. Raises ValueError for an ambiguous text."""
    for change in PARSER_REWRITES:
        text = change.apply(text)
    if _SIDE_BY_SIDE.search(text) or _BRACED.search(_COMMAND.sub("x", text)):
        raise ValueError(f"two numbers side by side: {text}")
    return text


_PERCENT = re.compile(r"\s*\\?%[\s$]*\Z")
_CHOICE = re.compile(
    r"\s*(?:\\(?:text|textbf|mathrm|mathbf)\s*\{)?\s*(?:\(([A-J])\)|([A-J])[.:)](?=[\s~}\\]|\Z))\}?"
    r"(?!.*(?:(?<![A-Za-z])(?:[A-J]\)|or|and|not|[B-J](?=[.,:])))).*",
    re.DOTALL,
)


def extract_choice(gold: str, answer: str) -> str:
    """Return the letter of a choice, ``E. some text``, if the gold answer is a letter; else the answer."""
    choice = _CHOICE.fullmatch(answer) if re.fullmatch(r"\(?[A-J]\)?", gold.strip()) else None
    return answer if choice is None else choice[1] or choice[2]


def strip_shared_percent(gold: str, answer: str) -> tuple[str, str]:
    r"""Strip a final percent sign that both have: ``33\frac13\%`` and ``\frac{100}{3}\%``."""
    bare = [_PERCENT.sub("", text) for text in (gold, answer)]
    return (bare[0], bare[1]) if all(bare) and bare[0] != gold and bare[1] != answer else (gold, answer)


_CHANGING = re.compile(
    rf"(?<![A-Za-z])(?:{CHANGING_WORDS}"
    r"|\w*(?:hundred|thousand|illion|eleven|teen|twelfth|tieth)(?:ths?|s)?|\w*fold|googol\w*|[mbt]ln|trn|bps|basis|grand"
    r"|score|gross|pairs?|halfs|halve|dozenths|factorials|roots?|less|more|fewer|but|isn|about|is|are|was|were|be|so|if"
    r"|then|answer|a?(?:sin|cos|tan)h?|arc(?:sin|cos|tan)|sec|csc|cot|det|gcd|lcm|choose|repeat\w*|remainder|point|above"
    r"|below|under|beyond|ought|almost|nearly|unless|maybe|perhaps|probably|possibly|guess|hex\w*|binary|octal|negated"
    r"|inverted|radicals?|exponent\w*|raised|powered|added|conjugate|imaginary|undefined|infinit\w*|nope|nah|nil|nought"
    r"|null|void|mistaken|erroneous|bogus|lies?|denied|disproved|refuted|instead|else|backwards|milli|micro|nano|hecto"
    r"|tera|peta|centi|deci|pico|femto|first|second(?= [a-z])|nth|powers?|opposites?|reciprocals?|inverses?"
    r")(?![A-Za-z])",
    re.IGNORECASE,
)
_UNIT_TEXT = re.compile(rf"(?:{_TEXT}\s*\{{[^{{}}\d\\]*\}}{_POWER}(?:\s*(?:/|\\cdot|\\,)\s*|\s*))+\Z")
_UNIT_WORDS = re.compile(_TEXT + r"\s*\{([^{}]*)\}")
_SHORT_UNITS = re.compile(
    r"[ckmdnpu]m|ft|in|yd|mi|[km]g|lb|oz|hr|sq|cu|rs|[mcd]l|cc|ha|hz|[kmgtp][bwvajn]|pa|ev|[mk]t|au|ly|pc|sr|st|pt|qt",
    re.IGNORECASE,
)
# Units without a text command.
_NAMES = (
    "feet|foot|ft|inch(?:es)?|in|yards?|yds?|miles?|mi|mph|km/h|kmph|[ckmd]m|(?:kilo|centi|milli)?met(?:er|re)s?|lit(?:er|re)s?"
    "|m[lL]|gallons?|gal|acres?|hectares?|pounds?|lbs?|[km]g|(?:kilo)?grams?|ounces?|oz|tons?|seconds?|secs?|minutes?|mins?"
    "|hours?|hrs?|days?|weeks?|months?|years?|yrs?|degrees?|deg|radians?|rad|cents?|dollars?|rupees?|rs|euros?|units?|square"
    "|sq|cubic|cu|per|students?|people|persons?|men|women|children|boys|girls|edges?|digits?|ways|tiles?|coins?|apples?"
    "|marbles?|meals?|toys?|monkeys?|soldiers?|points?|kelvins?|pies|marks?|numbers?|integers?|ohms?|Hz"
)
_UNIT_NAMES = re.compile(
    rf"(?<=[\d}})])(?:\s?(?:/\s?)?(?:{_NAMES})(?![A-Za-z]))+(?:\s?\^\{{?[23]\}}?)?\Z|(?<=[\d}})]) [msghL]\Z"
)
_OPERATOR_AT_END = re.compile(
    r"(?:[-+*/=^_,;:<>({\[|!]|\\(?:times|cdot|div|pm|le|ge|ne|in|to|cup|cap|approx|equiv))\s*\Z"
)


def strip_unit(text: str) -> str:
    match = _UNIT_TEXT.search(text) if text.endswith("}") or "\\" in text[-40:] else None
    if match is None:
        match = _UNIT_NAMES.search(text)
    elif not all(map(_is_unit, _UNIT_WORDS.findall(match[0]))):
        return text
    number = text[: match.start()].strip().removesuffix("\\,").strip() if match is not None else ""
    return text if not number or _OPERATOR_AT_END.search(number) else number


def _is_unit(words: str) -> bool:
    words = words.strip()
    if not words or _CHANGING.search(words):
        return False
    if len(words) <= 2:
        return words in tuple("msghLlNJWVACFT") or _SHORT_UNITS.fullmatch(words) is not None
    return len(words.split()) <= 5 and words.isascii() and not set(words) & set("+*=<>!?:;,&|^_")
