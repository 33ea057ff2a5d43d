"""Words and signs beside a number that make it another number, or none: what they are is in docs/tasks/gsm8k.md."""

from __future__ import annotations

import re
import unicodedata

_MULTIPLES = (
    r"hundreds?|thousands?|millions?|billions?|trillions?|quadrillions?|lakhs?|lacs?|crores?|mil|thou|mn|bn|tn|"
    r"dozens?|doz|tens|mille|permille|pi|mio|mrd|myriads?|googol|kk|dz|couples|pp[mb]|kilo|mega|giga"
)
_PARTS = (
    r"half|halves|halved|thirds?|quarters?|fourths?|fifths?|sixths?|sevenths?|eighths?|ninths?|tenths?|elevenths?|"
    r"twelfths?|(?:thir|four|fif|six|seven|eigh|nine)teenths?|(?:twen|thir|for|fif|six|seven|eigh|nine)tieths?|"
    r"hundredths?|thousandths?|millionths?|billionths?|trillionths?"
)
_COUNTS = (
    r"zero(?:e?s)?|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|(?:thir|four|fif|six|seven|eigh|nine)teen|"
    r"twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety"
)
_OPERATIONS = (
    r"neg|double[ds]?|twice|thrice|triple[ds]?|quadruple[ds]?|minus|negative|plus|times|squared|cubed|factorial|"
    r"(?:square|cube) ?roots?|(?:square|cube|root|opposite|reciprocal|inverse|negation|logarithm) of|"
    r"log|ln|lg|exp|sqrt|sin|cos|tan|mod|modulo|over|divided|multiplied|subtracted|repeating|repeated|recurring|reversed"
)
_DENIALS = (
    r"or|and|not|cannot|no|nor|neither|never|none|to|too|than|least|most|between|false|untrue|"
    r"(?:(?:any|every|no)thing|all) but|wrong|incorrect(?:ly)?|invalid|unlikely|rejected|"
    r"except|excluded|impossible|fail\w*|ish|"
    r"(?:is|are|was|were|do|does|did|has|have|had|ca|could|would|should|wo)n'?t"
)
_WORDS = re.compile(
    rf"(?<![A-Za-z])(?:{_MULTIPLES}|{_PARTS}|{_COUNTS}|{_OPERATIONS}|{_DENIALS})(?![A-Za-z])"
    # These change a number only on one side of it.
    r"|\d\s*(?:score|gross|grand|point|square\.?\Z)(?![A-Za-z])|\d\D*?\bremainder"
    r"|\d\s*(?:roots?|radical|power|exponent|prime|inver(?:se|ted)|opposite|reciprocal|negated|base|binary|octal|hex\w*)\.?\Z"
    r"|(?<![A-Za-z])(?:square|cube|root|power|opposite|reciprocal|inverse|(?:sin|cos|tan|ln|log)[a-z]?)\s*="
    r"|(?<![A-Za-z])(?:below|above|under|beyond|almost|nearly|exceed\w*)\s+\$?\d",
    re.IGNORECASE,
)
# Letters that are factors, variables or multiples. A letter is a unit only if it is one of m, g, h, s, l.
_LETTERS = re.compile(
    r"(?<![A-Za-z])[kKMB](?![A-Za-z])"
    r"|\d\.?\s?(?![mghslL](?![A-Za-z])|a [A-Za-z]{2})[A-Za-z](?![A-Za-z'])"
    r"|\d\s?[A-Za-z/% -]*?[\s/-](?![mghslLCF](?![A-Za-z])|[aAI] [A-Za-z])[A-Za-z](?![A-Za-z'])"
    r"|\d\s*-\s?[A-Za-z]{1,2}(?![A-Za-z])"
    r"|(?<![A-Za-z'])(?![aAI])[A-Za-z]\s?\d|(?<!USD)(?<!EUR)(?<!GBP)(?<!CAD)(?<!Rs)[A-Za-z]\d"
    r"|\d\s?MM(?![A-Za-z])"
    r"|(?:[$\u20ac\u00a3\u00a5\u20b9]|USD|EUR|GBP|Rs\.?)\s?[\d.,]+\s?(?:mm?|[ghslL])(?![A-Za-z])"
    r"|\d\s?mm?\s?(?:[$\u20ac\u00a3\u00a5\u20b9]|USD|EUR|GBP|dollars|euros|pounds)"
)
_VERB = re.compile(r"\d\.?\s?(?:is|was|are|were|be|would|should|could|might|may|can|will|has|had)(?![A-Za-z])", re.I)


def changes(text: str) -> bool:
    """Whether a word or a letter of ``text`` makes its number another one, or says that it is not the answer."""
    return bool(_WORDS.search(text) or _LETTERS.search(text))


def goes_on(text: str) -> bool:
    """Whether a verb follows the number, so that what follows is no unit."""
    return _VERB.search(text) is not None


def has_odd_sign(text: str) -> bool:
    """Whether ``text`` has a sign that is neither ASCII, nor a Latin letter, a currency or a quotation mark."""
    return any(
        not character.isascii()
        and unicodedata.category(character) not in ("Sc", "Pi", "Pf")
        and not unicodedata.name(character, "").startswith(("LATIN SMALL LETTER", "LATIN CAPITAL LETTER"))
        for character in unicodedata.normalize("NFC", text)
    )
