r"""What an answer says, in the spelling that the reader of LaTeX understands: words, units, letters, joined ranges.

And what it says that the reader passes over: primes, indices, words. Text in, text out; nothing is parsed.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from rlvr_cli.verify.math_answer import clean, without_stop

# Words that change the number they stand behind, or that deny it or join it to another: never a unit.
_CHANGING = re.compile(
    r"(?<![A-Za-z])(?:\w*(?:hundred|thousand|illion|eleven|teen|twelfth|tieth)(?:ths?|s)?|googol\w*|[mbt]l?n|trn|mil|lacs?|bps|basis|lakhs?|crores?|grand|dozens?|score|gross|pairs?|half|"
    r"halves|thirds?|quarters?|fourths?|fifths?|sixths?|sevenths?|eighths?|ninths?|tenths?|"
    r"double|twice|triple|zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen|twenty|thirty|forty|"
    r"fifty|sixty|seventy|eighty|ninety|minus|negative|plus|times|squared|cubed|factorials?|sqrt|root|log|less|more|fewer|"
    r"or|and|but|not|no|nor|never|neither|cannot|isn|to|than|least|most|between|about|mod|modulo|over|divided|multiplied|"
    r"is|are|was|were|be|so|if|then|answer|false|wrong|incorrect|too|except|pi|a?(?:sin|cos|tan)h?|arc(?:sin|cos|tan)|sec|csc|cot|ln|lg|exp|det|gcd|lcm|"
    r"choose|repeat\w*|recurring|remainder|point|above|below|under|beyond|kilo|mega|giga|milli|micro|nano|ish|ought|"
    r"almost|nearly|permille|mille|unless|maybe|perhaps|probably|possibly|guess|"
    r"hex\w*|binary|octal|doubled|halved|tripled|myriads?|pp[mb]|tens|couples|reversed|negated|inverted|radicals?|unlikely|"
    r"rejected|invalid|impossible|untrue|excluded|fail\w*|"
    r"\w*fold|thou|halfs|halve|dozenths|exponent\w*|raised|powered|added|subtracted|conjugate|imaginary|undefined|infinit\w*|"
    r"nope|nah|nil|nought|null|void|mistaken|erroneous|bogus|lies?|denied|disproved|refuted|instead|else|backwards|"
    r"hecto|tera|giga|peta|centi|deci|nano|pico|femto|"
    r"first|second(?= [a-z])|nth|powers?|roots|opposites?|reciprocals?|inverses?)(?![A-Za-z])",
    re.IGNORECASE,
)
_COMMAND = r"\\(?:text|mbox|mathrm|textrm|textnormal|textup|operatorname)"
_POWER = r"(?:\s*\^\s*\{?\s*-?\s*\d\s*\}?|\s*\{\s*\^\s*\d\s*\})?"
_UNIT_TEXT = re.compile(
    rf"(?:{_COMMAND}\s*\{{[^{{}}\d\\]*\}}{_POWER}(?:\s*(?:/|\\cdot|\\,)\s*|\s*))+\Z",
)
_UNIT_WORDS = re.compile(_COMMAND + r"\s*\{([^{}]*)\}")
_LETTER_UNITS = "msghLlNJWVACFT"
_SHORT_UNITS = re.compile(
    r"[ckmdnpu]m|ft|in|yd|mi|[km]g|lb|oz|hr|sq|cu|rs|[mcd]l|cc|ha|hz|[kmgtp][bwvajn]|pa|ev|[mk]t|au|ly|pc|sr|st|pt|qt",
    re.IGNORECASE,
)
_NAMES = (
    "feet|foot|ft|inch(?:es)?|in|yards?|yds?|miles?|mi|mph|km/h|kmph|km|cm|mm|dm|met(?:er|re)s?|kilomet(?:er|re)s?|"
    "centimet(?:er|re)s?|millimet(?:er|re)s?|lit(?:er|re)s?|ml|mL|gallons?|gal|acres?|hectares?|pounds?|lbs?|kg|mg|grams?|"
    "kilograms?|ounces?|oz|tons?|seconds?|secs?|minutes?|mins?|hours?|hrs?|days?|weeks?|months?|years?|yrs?|"
    "degrees?|deg|radians?|rad|cents?|dollars?|rupees?|rs|euros?|units?|square|sq|cubic|cu|per|students?|people|persons?|men|"
    "women|children|boys|girls|edges?|digits?|ways|tiles?|coins?|apples?|marbles?|meals?|toys?|monkeys?|soldiers?|points?|"
    "kelvins?|pies|marks?|numbers?|integers?|ohms?|Hz"
)
_UNIT_NAMES = re.compile(
    rf"(?<=[\d}})])(?:\s?(?:/\s?)?(?:{_NAMES})(?![A-Za-z]))+(?:\s?\^\{{?[23]\}}?)?\Z|(?<=[\d}})]) [msghL]\Z"
)
_OPERATOR_AT_END = re.compile(
    r"(?:[-+*/=^_,;:<>({\[|!]|\\(?:times|cdot|div|pm|le|ge|ne|in|to|cup|cap|approx|equiv))\s*\Z"
)

_DELIMITER = re.compile(r"(?<!\\)\$|\\[()\[\]]")
_LOOSE_SPACE = re.compile(r" +(?![A-Za-z0-9 ])")
_LETTER = re.compile(
    r"(?P<before>[A-Za-z]?)\\(?:text|mathrm|mathit|rm)\s*\{\s*(?P<letter>[ied])\s*\}|\{\\rm (?P<old>[ied])\}"
)
# Kelvin; as text, or without a command, K may be a thousand.
_KELVIN = re.compile(r"(?<=[\d}])\s*(?:\\,)?\s*\\mathrm\{K\}")
_BOLD_NUMBER = re.compile(r"\\(?:text|math)(?:bf|rm|it|normal)?\s*\{\s*([-+]?[\d.,/]+)\s*\}\Z")
_CHOICES = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\s*\{\s*(\(?[A-Z]\)?(?:\s*,\s*\(?[A-Z]\)?)+)\s*\}")
_JOINED = re.compile(r"\s*,?\s*\\text\s*\{\s*,?\s*(?:and|or)\s*\}\s*")
_SCIENTIFIC = re.compile(r"(?<![\w.\\}])(\d+(?:\.\d*)?)[eE]([+-]?\d{1,3})(?![\w.])")
# Words that are no unit are factors; the reader would make a list of 350 and 000 times them.
_THOUSANDS = re.compile(
    r"((?:\\?\$)?-?\d{1,3}(?:,\d{3})+(?:\.\d+)?)"
    rf"((?:\s|\\,)*(?:[A-Za-z][A-Za-z ]*|{_COMMAND}\s*\{{[A-Za-z\s]*\}}{_POWER}))"
)
_PRIME = re.compile(r"\^\s*(?:\{\s*((?:\\prime\s*)+)\}|(\\prime)(?![A-Za-z]))")
_MIXED = re.compile(r"(?<![\w.^_}/])(\d+) (\d+)/(\d+)(?![\w.^/])")
_TEXT = re.compile(r"\\(?:text|mbox|math|operatorname)[a-z]*\s*\{(?:[^{}]|\{[^{}]*\})*\}?")
_TEXT_POWER = re.compile(r"\^\s*\{?\d\}?")
_WORD = re.compile(rf"{_COMMAND}(?:bf|it|rm)?\s*\{{[A-Za-z ]{{2,}}\}}|\\[A-Za-z]+")


def spelled(text: str) -> str:
    r"""An answer without math delimiters; ``3e8`` as a power of ten, ``1 1/2`` with a fraction, ``\mathrm{i}`` as i."""
    # `$$ ... .$$` ends in a full stop too.
    text = without_stop(" ".join(_LOOSE_SPACE.sub("", _DELIMITER.sub(" ", clean(text))).split()))
    if (bold := _BOLD_NUMBER.match(text)) is not None:
        text = bold[1]
    if "\\" in text:
        text = _KELVIN.sub(r"\\mathrm{kelvin}", text)
        text = _LETTER.sub(_letter, text)
        text = _PRIME.sub(lambda match: "'" * match[0].count("\\prime"), text)
        text = _CHOICES.sub(r"\1", _JOINED.sub(", ", text))
    if (counted := _THOUSANDS.fullmatch(text)) is not None:
        text = counted[1].replace(",", "") + counted[2]
    text = _SCIENTIFIC.sub(lambda match: rf"{match[1]}\times 10^{{{match[2].lstrip('+')}}}", text)
    return _MIXED.sub(r"\1\\frac{\2}{\3}", text)


def _letter(match: re.Match[str]) -> str:
    before = match["before"] or ""
    return f"{before} {match['letter']}" if before else match["letter"] or match["old"]


def without_unit(text: str) -> str:
    """``text`` without the unit at its end; as it is where what stands there is none."""
    match = _UNIT_TEXT.search(text) if text.endswith("}") or "\\" in text[-40:] else None
    if match is not None:
        words = _UNIT_WORDS.findall(match[0])
        if not all(map(_is_unit, words)):
            return text
    else:
        match = _UNIT_NAMES.search(text)
    if match is None or match.start() == 0:
        return text
    number = text[: match.start()].strip().removesuffix("\\,").strip()
    return text if not number or _OPERATOR_AT_END.search(number) else number


def _is_unit(words: str) -> bool:
    words = words.strip()
    if not words or _CHANGING.search(words):
        return False
    if len(words) == 1:
        return words in _LETTER_UNITS
    if len(words) == 2:
        return _SHORT_UNITS.fullmatch(words) is not None
    return len(words.split()) <= 5 and words.isascii() and not set(words) & set("+-*=<>!?:;,&|^_") - {"-"}


def hides_digits(text: str) -> bool:
    """Whether a text command holds a digit that is no power."""
    return any(re.search(r"\d", _TEXT_POWER.sub("", match[0])) for match in _TEXT.finditer(text))


def letters(text: str) -> set[str]:
    """The letters that stand for something: those of commands and words aside."""
    return {character for character in _WORD.sub(" ", text) if character.isalpha()}


# Inequalities and intervals that words join: `x>1 and x<2` is `1<x<2`, `x<1 or x>2` a union of intervals. Only whole
# texts are rewritten: of inequalities in one name, with numbers on the other side.


def _word(word: str, signs: str) -> re.Pattern[str]:
    return re.compile(
        rf",?\s*(?:\\(?:text|mbox|mathrm)\s*\{{\s*{word}\s*\}}|(?<![A-Za-z]){word}(?![A-Za-z])|\\(?:{signs})(?![A-Za-z]))\s*"
    )


_JOINED_BY_AND, _JOINED_BY_OR = _word("and", "land|wedge"), _word("or", "lor|vee")
_SIGN = re.compile(r"(\\[lg]e(?![A-Za-z])|[<>])")
_TURNED = {">": "<", r"\ge": r"\le"}
_NAME = re.compile(r"[A-Za-df-z]")
_BOUND = re.compile(r"(?:[-+*/^(){}.\s\d]|\\(?:frac|sqrt|pi|infty)(?![A-Za-z]))+")
_INTERVAL = re.compile(r"[(\[][^()\[\],;]+,[^()\[\],;]+[)\]]")
_MEMBER = re.compile(r"([A-Za-z])\s*\\in(?![A-Za-z])\s*")


class _Range(NamedTuple):
    """``low`` and ``high``: a sign, ``<`` or ``\\le``, and a number; None where there is no bound."""

    name: str
    low: tuple[str, str] | None
    high: tuple[str, str] | None


def alike(gold: str, answer: str) -> tuple[str, str]:
    """The two, where words join ranges in one of them, spelled as the other one spells them."""
    gold, answer = _chain(gold), _chain(answer)
    if "\\cup" in clean(gold):
        return gold, _union(answer)
    return (_union(gold), answer) if "\\cup" in clean(answer) else (gold, answer)


def _chain(text: str) -> str:
    """``1<x<2`` for two inequalities that "and" joins; any other text as it is."""
    ranges = [_range(part) for part in _JOINED_BY_AND.split(_undelimited(text))]
    if len(ranges) != 2:
        return text
    for one, other in (ranges, ranges[::-1]):
        if one and other and one.name == other.name and one.low and not one.high and other.high and not other.low:
            return f"{one.low[1]} {one.low[0]} {one.name} {other.high[0]} {other.high[1]}"
    return text


def _union(text: str) -> str:
    """The union of the intervals, or inequalities in one name, that "or" joins; any other text as it is."""
    parts = _JOINED_BY_OR.split(_undelimited(text))
    names, intervals = set(), []
    for part in parts:
        member = _MEMBER.match(part)
        interval = part[member.end() :] if member is not None else part
        if _INTERVAL.fullmatch(interval):
            names |= {member[1]} if member is not None else set()
            intervals.append(interval)
        elif (found := _range(part)) is not None:
            names.add(found.name)
            intervals.append(_interval(found))
        else:
            return text
    return r"\cup ".join(intervals) if len(parts) > 1 and len(names) <= 1 else text


def _undelimited(text: str) -> str:
    return clean(text.replace("$", " "))


def _range(text: str) -> _Range | None:
    pieces = [piece.strip() for piece in _SIGN.split(text)]
    signs = pieces[1::2]
    if signs and all(sign in _TURNED for sign in signs):
        pieces = [_TURNED.get(piece, piece) for piece in reversed(pieces)]
    elif any(sign in _TURNED for sign in signs):
        return None
    numbers = [_BOUND.fullmatch(piece) is not None for piece in pieces[::2]]
    if len(pieces) == 5 and numbers == [True, False, True] and _NAME.fullmatch(pieces[2]):
        return _Range(pieces[2], (pieces[1], pieces[0]), (pieces[3], pieces[4]))
    if len(pieces) == 3 and numbers == [True, False] and _NAME.fullmatch(pieces[2]):
        return _Range(pieces[2], (pieces[1], pieces[0]), None)
    if len(pieces) == 3 and numbers == [False, True] and _NAME.fullmatch(pieces[0]):
        return _Range(pieces[0], None, (pieces[1], pieces[2]))
    return None


def _interval(found: _Range) -> str:
    low = ("[" if found.low[0] == r"\le" else "(") + found.low[1] if found.low else r"(-\infty"
    high = found.high[1] + ("]" if found.high[0] == r"\le" else ")") if found.high else r"\infty)"
    return f"{low},{high}"


# Marks that the reader passes over although they change what an answer says: primes, indices, words.


_PRIMES = re.compile(r"'+|\\prime(?![A-Za-z])")
_FEET = re.compile(r"-?[\d.,]+(?:'[\d.,\s]*)?'{1,2}")
_DEGREES = re.compile(r"\\circ(?![A-Za-z])|\\degree(?![A-Za-z])")
# An index of a power, a fraction or a bracket is read as if it were not there.
_INDEX = re.compile(r"(?:[)\]]|\^\s*(?:\d|\{(?:[^{}]|\{[^{}]*\})*\})|\}\s*\{[^{}]*\})\s*_")
_CLOSED = re.compile(r"\\infty\s*\]|\[\s*-\s*\\infty")
_INFINITY = re.compile(r"\\infty(?![A-Za-z])")
_RUNNING = re.compile(r"\\(?:sum|prod|int|lim|bigcup|bigcap)(?![A-Za-z])")
# Between these an infinity stands alone; a bracket around nothing else is one of a product or of a function.
_BOUNDS = re.compile(
    r"[,;<>=:|()\[\]]|\\(?:[lg]e|[lg]t|ne|in|cup|cap|setminus|to|land|lor|wedge|vee|[{}]|(?:text|mbox|mathrm)\s*\{[^{}]*\})"
    r"(?![A-Za-z])|\b(?:and|or)\b"
)
_ALONE = re.compile(r"(?:[-+]|\\pm(?![A-Za-z]))?\{?[-+]?\\infty\}?")
_NOTHING = re.compile(r"[\s$.~]|\\[,;!]|\\q?quad(?![A-Za-z])")
_APPLIED = re.compile(r"\(\s*[-+]?\s*\\infty\s*\)|\|\s*[-+]?\s*\\infty\s*\|")
_ORDER = re.compile(r"[<>]|\\(?:le|ge|lt|gt)(?![A-Za-z])")
_JOIN = re.compile(r"(?<![A-Za-z])(?:and|or)(?![A-Za-z])|\\(?:land|lor|wedge|vee)(?![A-Za-z])")
_AND_WORDS = {"and", "\\land", "\\wedge"}
_HALF_OF_DAY = re.compile(r"(?<![A-Za-z])([ap])\.?\s?m(?![A-Za-z])", re.IGNORECASE)
_TEXT_WORDS = re.compile(r"\\(?:text|mbox|textrm|textbf|mathrm|operatorname)\s*\{([^{}]*)\}")
_CHANGES = re.compile(
    r"\b(?:not|nor?|never|neither|plus|minus|times|less|more|fewer|wrong|incorrect|false|except|"
    r"hundred|thousand|million|billion)\b",
    re.IGNORECASE,
)


def marks_differ(gold: str, answer: str) -> bool:
    r"""Whether two cleaned answers differ in such a mark: ``f'`` and ``f``, ``x^{2}_7`` and ``x^2``, "and" and "or".

    ``5'`` are feet, but no degrees. No interval holds infinity, and nothing is computed with it. An "and" that joins no
    inequalities says nothing, nor does a time without ``a.m.``.
    """
    left, right = (gold, answer) if "=" in gold and "=" in answer else (_last_side(gold), _last_side(answer))
    if _primes(left) != _primes(right) or (_DEGREES.search(left) and "'" in right and "'" not in left):
        return True
    if "_" not in gold and _INDEX.search(right) is not None:
        return True
    if _CLOSED.search(answer) and not _CLOSED.search(gold):
        return True
    if _computed(answer) and not _computed(gold):
        return True
    if _ORDER.search(gold) and _ORDER.search(answer) and _differ(_joins(gold), _joins(answer)):
        return True
    if any(_CHANGES.search(words) for words in _TEXT_WORDS.findall(right)) and not _CHANGES.search(gold):
        return True
    return _differ(_halves_of_day(gold), _halves_of_day(answer))


def _last_side(text: str) -> str:
    return text.rpartition("=")[2]


def _primes(text: str) -> int:
    if _FEET.fullmatch(text.strip()):
        return 0
    return sum(len(match[0]) if match[0][0] == "'" else 1 for match in _PRIMES.finditer(text))


def _computed(text: str) -> bool:
    r"""Whether something is computed with infinity, as in ``2\infty``: the reader takes the result for infinity."""
    if _INFINITY.search(text) is None or _RUNNING.search(text) is not None:
        return False
    if _APPLIED.search(text):
        return True
    pieces = [_NOTHING.sub("", piece) for piece in _BOUNDS.split(text) if _INFINITY.search(piece)]
    return any(_ALONE.fullmatch(piece) is None for piece in pieces)


def _joins(text: str) -> set[str]:
    return {"and" if word in _AND_WORDS else "or" for word in _JOIN.findall(text)}


def _halves_of_day(text: str) -> set[str]:
    return {letter.lower() for letter in _HALF_OF_DAY.findall(text)}


def _differ(one: set[str], other: set[str]) -> bool:
    return bool(one) and bool(other) and one != other
