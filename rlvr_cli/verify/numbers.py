"""Convert Unicode mathematics to ASCII, and parse exact numbers.

Compatibility normalisation (NFKC) would turn ``x²`` into ``x2``, so only the signs in the table below and the decimal
digits of every script are replaced.
"""

from __future__ import annotations

import math
import re
import unicodedata
from fractions import Fraction

# Parsing a literal takes quadratic time.
MAX_DIGITS = 400
# Decimal digits of computed values. 2^{10000} has 3,011.
MOST_COMPUTED = 20_000
# Levels of brackets: math-verify's parser takes 0.5 s for 10, 5 s for 14 and 40 s for 16. Gold answers have up to 6.
MOST_NESTED = 12

_SIGNS = {
    **dict.fromkeys("\u2212\u2010\u2011\u2012\u2013\u2014\u207b\ufe63", "-"),
    **dict.fromkeys("\u2215\u2044", "/"),
    **dict.fromkeys("\u2032\u2019", "'"),
    **dict.fromkeys("\u00b7\u22c5\u2219", r"\cdot "),
    **dict(zip("\u00d7\u00f7\u03c0\u221e", (r"\times ", r"\div ", r"\pi ", r"\infty "), strict=True)),
    **dict(zip("\u2264\u2265\u2260\u222a\u2229", (r"\le ", r"\ge ", r"\ne ", r"\cup ", r"\cap "), strict=True)),
    **dict(zip("\u00b1\u00b0\u2217", (r"\pm ", r"^\circ ", "*"), strict=True)),
    **{sign: rf"\frac{{{n}}}{{{d}}}" for sign, n, d in ("\u00bc14", "\u00bd12", "\u00be34", "\u215313", "\u215423")},
}
_SUPERSCRIPTS = dict(zip("\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079", "0123456789", strict=True))
_SUPERSCRIPT_RUN = re.compile(f"\u207b?[{''.join(_SUPERSCRIPTS)}]+")
_SUBSCRIPT_RUN = re.compile("[\u2080-\u2089]+")
_ROOT = re.compile(r"\u221a\s*(\d+(?:\.\d+)?|[A-Za-z](?![A-Za-z]))")
_NOT_ASCII = re.compile(r"[^\x20-\x7e]")

_INTEGER = r"(?:\d{1,3}(?:(?:,|\{,\})\d{3})+|\d{1,3}(?:\\,\d{3})+|\d+)"
_NUMBER = re.compile(rf"(?P<sign>[+-]?)\s*(?P<whole>{_INTEGER})?(?:\.(?P<decimals>\d*))?\Z")
_FRACTION = re.compile(
    r"(?P<sign>[+-]?)\s*(?:\\[dt]?frac\s*\{\s*(?P<top>[+-]?\s*\d+)\s*\}\s*\{\s*(?P<bottom>[+-]?\s*\d+)\s*\}"
    r"|\\[dt]?frac\s*(?P<digit>\d)\s*(?P<other>\d)|(?P<left>\d+)\s*/\s*(?P<right>\d+))\Z"
)
_SCIENTIFIC = re.compile(
    r"(?P<sign>[+-]?)\s*(?:(?P<factor>\d+(?:\.\d*)?)\s*"
    r"(?:[eE](?P<e>[+-]?\d{1,3})|(?:\\times|\\cdot|\*)\s*10\s*\^\s*(?:\{\s*(?P<n>[+-]?\d{1,3})\s*\}|(?P<d>\d)))"
    r"|10\s*\^\s*(?:\{\s*(?P<power>[+-]?\d{1,3})\s*\}|(?P<digit>\d)))\Z"
)
_TOKEN = re.compile(r"\d+(?:\.\d+)?|\*\*|\\[A-Za-z]+|\\.|\S", re.DOTALL)
_OPENING, _CLOSING = tuple("{(["), tuple("})]")
_TEENS, _TENS = "(?:thir|four|fif|six|seven|eigh|nine)teen", "(?:twen|thir|for|fif|six|seven|eigh|nine)t"
# Words that modify, negate or join adjacent numbers, so not units. Tasks add further ones.
CHANGING_WORDS = (
    r"(?:hundred|thousand|(?:m|b|tr)illion)(?:ths?|s)?|quadrillions?|lakhs?|lacs?|crores?|mil|thou|mn|bn|tn|dozens?|tens"
    r"|mille|permille|myriads?|googol|couples|pp[mb]|kilo|mega|giga|pi|half|halves|halved|thirds?|quarters?"
    rf"|(?:four|fif|six|seven|eigh|nin|ten|eleven|twelf|{_TEENS}|{_TENS}ie)ths?"
    rf"|zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|{_TEENS}|{_TENS}y"
    r"|doubled?|twice|tripled?|minus|negative|plus|times|squared|cubed|factorial|log|ln|lg|exp|sqrt|sin|cos|tan|mod|modulo"
    r"|over|divided|multiplied|subtracted|repeating|repeated|recurring|reversed|or|and|not|cannot|no|nor|neither|never|to"
    r"|too|than|least|most|between|false|untrue|wrong|incorrect|invalid|unlikely|rejected|except|excluded|impossible"
    r"|fail\w*|ish"
)


def normalise(text: str) -> str:
    """Replace Unicode digits, signs, spaces and superscripts by equivalent ASCII or LaTeX.

    Also full-width characters; control and invisible formatting characters are removed. Linear time; ASCII text is
    returned unchanged.
    """
    if not _NOT_ASCII.search(text):
        return text
    text = _SUPERSCRIPT_RUN.sub(lambda run: f"^{{{''.join(_SUPERSCRIPTS.get(sign, '-') for sign in run[0])}}}", text)
    text = _SUBSCRIPT_RUN.sub(lambda run: f"_{{{''.join(str(ord(sign) - 0x2080) for sign in run[0])}}}", text)
    return _ROOT.sub(r"\\sqrt{\1}", _NOT_ASCII.sub(_to_ascii, text))


def _to_ascii(match: re.Match[str]) -> str:
    character = match[0]
    if character in _SIGNS:
        return _SIGNS[character]
    if 0xFF01 <= ord(character) <= 0xFF5E:
        return chr(ord(character) - 0xFEE0)
    category = unicodedata.category(character)
    if category == "Nd":
        return str(unicodedata.decimal(character))
    if category in ("Zs", "Zl", "Zp") or character in "\t\n\r\v\f":
        return " "
    return "" if category in ("Cc", "Cf") else character


def exact_number(text: str, *, powers: bool = False) -> Fraction | None:
    """Parse ``text`` as an exact number; None if it is not a plain number.

    Accepts whole numbers, decimals, thousands separators (``1,234``, ``1{,}234``, ``1\\,234``), and fractions of whole
    numbers (``3/4``, ``\\frac{3}{4}``, ``\\dfrac34``), with an optional sign; with ``powers`` also powers of ten
    (``3e8``, ``3 \\times 10^{8}``, ``10^{-3}``). Percent and currency, whose meaning depends on the task, mixed numbers
    and decimal commas are refused.
    """
    text = text.strip()
    if not text or len(text) > MAX_DIGITS:
        return None
    if (match := _NUMBER.match(text)) is not None:
        integer, decimals = re.sub(r"\D", "", match["whole"] or ""), match["decimals"] or ""
        if not integer and not decimals:
            return None
        value = Fraction(int(integer + decimals), 10 ** len(decimals))
    elif (match := _FRACTION.match(text)) is not None:
        top, bottom = (
            match["top"] or match["digit"] or match["left"],
            match["bottom"] or match["other"] or match["right"],
        )
        if (divisor := int("".join(bottom.split()))) == 0:
            return None
        value = Fraction(int("".join(top.split())), divisor)
    elif powers and (match := _SCIENTIFIC.match(text)) is not None:
        power = int(match["e"] or match["n"] or match["d"] or match["power"] or match["digit"])
        value = Fraction((match["factor"] or "1").rstrip(".")) * Fraction(10) ** power
    else:
        return None
    return -value if match["sign"] == "-" else value


def is_too_big(text: str) -> bool:
    """Return whether ``text`` nests too deeply, or has a power or factorial of more than MOST_COMPUTED digits.

    Sizes are estimated: a name as e, adjacent factors as a product. Linear time.
    """
    tokens = _TOKEN.findall(text)
    depth = 0
    for token in tokens:
        depth = max(0, depth + (token in _OPENING) - (token in _CLOSING))
        if depth > MOST_NESTED:
            return True
    tokens.reverse()
    try:
        while tokens:
            if _product_size(tokens) > MOST_COMPUTED * math.log(10):
                return True
            # An unmatched closing bracket.
            del tokens[-1:]
    except RecursionError:
        # Overflow: hundreds of nested powers.
        return True
    return False


def _product_size(tokens: list[str]) -> float:
    """Pop tokens up to a closing bracket; return an upper bound of the natural logarithm of their product."""
    size = 0.0
    while tokens and tokens[-1] not in _CLOSING:
        size += _factor_size(tokens)
    return size


def _factor_size(tokens: list[str]) -> float:
    """Pop one number, symbol or bracket with its powers and factorials; return its size."""
    token = tokens.pop()
    while token in ("+", "-") and tokens and tokens[-1] not in _CLOSING:
        token = tokens.pop()
    size = 0.0
    if token in _OPENING:
        size = _product_size(tokens)
        del tokens[-1:]
    elif token[0].isdecimal():
        size = math.log(max(1.0, float(token[:300])))
    while tokens and tokens[-1] in ("^", "**", "!"):
        if tokens.pop() == "!":
            size = math.lgamma(math.exp(size) + 1) if size < 50 else math.inf
        elif tokens:
            size = (size or 1.0) * math.exp(min(_factor_size(tokens), 500.0))
    return size
