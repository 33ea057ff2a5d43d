"""What an answer says, in the spelling that the reader of LaTeX understands: words, units, letters."""

from __future__ import annotations

import re

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
