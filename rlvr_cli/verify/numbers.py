"""Unicode as people and models write mathematics, put into ASCII on purpose, and numbers read exactly.

Compatibility normalisation (NFKC) is not used: it makes ``x²`` into ``x2``. What is replaced is the table below, the
decimal digits of every script, and nothing else.

Numbers that nobody should compute are known by their spelling.
"""

from __future__ import annotations

import math
import re
import unicodedata
from fractions import Fraction

# Longer literals are no answers, and reading them costs quadratic time.
MAX_DIGITS = 400

_SIGNS = {
    "\u2212": "-",  # minus
    "\u2010": "-",
    "\u2011": "-",
    "\u2012": "-",
    "\u2013": "-",
    "\u2014": "-",
    "\u207b": "-",
    "\ufe63": "-",
    "\u2215": "/",
    "\u2044": "/",
    "\u00d7": r"\times ",
    "\u00f7": r"\div ",
    "\u00b7": r"\cdot ",
    "\u22c5": r"\cdot ",
    "\u2219": r"\cdot ",
    "\u2217": "*",
    "\u03c0": r"\pi ",
    "\u221e": r"\infty ",
    "\u2264": r"\le ",
    "\u2265": r"\ge ",
    "\u2260": r"\ne ",
    "\u222a": r"\cup ",
    "\u2229": r"\cap ",
    "\u00b1": r"\pm ",
    "\u00b0": r"^\circ ",
    "\u2032": "'",
    "\u2019": "'",
    "\u00bc": r"\frac{1}{4}",
    "\u00bd": r"\frac{1}{2}",
    "\u00be": r"\frac{3}{4}",
    "\u2153": r"\frac{1}{3}",
    "\u2154": r"\frac{2}{3}",
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
    r"|\\[dt]?frac\s*(?P<one>\d)\s*(?P<other>\d)|(?P<left>\d+)\s*/\s*(?P<right>\d+))\Z"
)

_SCIENTIFIC = re.compile(
    r"(?P<sign>[+-]?)\s*(?:(?P<factor>\d+(?:\.\d*)?)\s*"
    r"(?:[eE](?P<e>[+-]?\d{1,3})|(?:\\times|\\cdot|\*)\s*10\s*\^\s*(?:\{\s*(?P<n>[+-]?\d{1,3})\s*\}|(?P<d>\d)))"
    r"|10\s*\^\s*(?:\{\s*(?P<power>[+-]?\d{1,3})\s*\}|(?P<digit>\d)))\Z"
)


def normalise(text: str) -> str:
    """``text`` with Unicode digits, signs, spaces and superscripts as the ASCII or LaTeX that means the same.

    Full-width characters become plain ones, control and invisible formatting characters go, every kind of space
    becomes a space. Linear in the length; text that is ASCII already comes back as it is.
    """
    if not _NOT_ASCII.search(text):
        return text
    text = _SUPERSCRIPT_RUN.sub(_power, text)
    text = _SUBSCRIPT_RUN.sub(_index, text)
    text = _NOT_ASCII.sub(_plain, text)
    return _ROOT.sub(r"\\sqrt{\1}", text)


def exact_number(text: str) -> Fraction | None:
    """The number that ``text`` spells, exactly; None when it is no plain number.

    Read are whole numbers, decimals, thousands separators in groups of three (``1,234``, ``1{,}234``, ``1\\,234``),
    and fractions of whole numbers (``3/4``, ``\\frac{3}{4}``, ``\\dfrac34``), each with a sign. Not read: percent and
    currency (what they mean is the task's to say), exponents, mixed numbers, decimal commas.
    """
    text = text.strip()
    if not text or len(text) > MAX_DIGITS:
        return None
    if (match := _NUMBER.match(text)) is not None:
        whole, decimals = match["whole"] or "", match["decimals"] or ""
        if not whole and not decimals:
            return None
        digits = re.sub(r"\D", "", whole)
        value = Fraction(int(digits + decimals), 10 ** len(decimals))
    elif (match := _FRACTION.match(text)) is not None:
        top = match["top"] or match["one"] or match["left"]
        bottom = match["bottom"] or match["other"] or match["right"]
        divisor = _whole(bottom)
        if divisor == 0:
            return None
        value = Fraction(_whole(top), divisor)
    else:
        return None
    return -value if match["sign"] == "-" else value


def scientific_number(text: str) -> Fraction | None:
    """The number that ``text`` spells with a power of ten, exactly: ``3e8``, ``3 \\times 10^{8}``, ``10^{-3}``."""
    match = _SCIENTIFIC.match(text.strip()) if len(text) <= MAX_DIGITS else None
    if match is None:
        return None
    power = int(match["e"] or match["n"] or match["d"] or match["power"] or match["digit"])
    whole, _, decimals = (match["factor"] or "1").partition(".")
    value = Fraction(int(whole + decimals), 10 ** len(decimals)) * Fraction(10) ** power
    return -value if match["sign"] == "-" else value


def _whole(text: str) -> int:
    return int("".join(text.split()))


def _power(match: re.Match[str]) -> str:
    digits = "".join(_SUPERSCRIPTS.get(character, "-") for character in match[0])
    return f"^{{{digits}}}"


def _index(match: re.Match[str]) -> str:
    return f"_{{{''.join(str(ord(character) - 0x2080) for character in match[0])}}}"


def _plain(match: re.Match[str]) -> str:
    character = match[0]
    if character in _SIGNS:
        return _SIGNS[character]
    code = ord(character)
    if 0xFF01 <= code <= 0xFF5E:
        return chr(code - 0xFEE0)
    category = unicodedata.category(character)
    if category == "Nd":
        return str(unicodedata.decimal(character))
    if category in ("Zs", "Zl", "Zp") or character in "\t\n\r\v\f":
        return " "
    return "" if category in ("Cc", "Cf") else character


# Decimal digits. 2^{10000} has 3,011.
MOST_COMPUTED = 20_000
# math-verify's parser takes 0.5 s at 10 levels of braces, 5 s at 14 and 40 s at 16. Gold answers have up to 6.
MOST_NESTED = 12

_TOKEN = re.compile(r"\d+(?:\.\d+)?|\*\*|\\[A-Za-z]+|\\.|\S", re.DOTALL)
_INFINITE = math.inf


def too_big(text: str) -> bool:
    """Whether ``text`` nests too deeply, or spells a power or factorial of more than MOST_COMPUTED digits.

    Of a power only sizes are estimated: a name counts as e, and what stands side by side as if it were multiplied.
    Linear in the text.
    """
    tokens = _TOKEN.findall(text)
    depth = 0
    for token in tokens:
        if token in "{([":
            depth += 1
            if depth > MOST_NESTED:
                return True
        elif token in "})]":
            depth = max(0, depth - 1)
    try:
        return _Sizes(tokens).whole() > MOST_COMPUTED * math.log(10)
    except RecursionError:
        # Hundreds of powers of powers.
        return True


class _Sizes:
    """Reads tokens left to right; a size is the natural logarithm of what the tokens are worth at most."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens
        self.at = 0

    def whole(self) -> float:
        """The largest size of all, brackets that close nothing aside."""
        worst = self.largest()
        while self.at < len(self.tokens):
            self.at += 1
            worst = max(worst, self.largest())
        return worst

    def largest(self) -> float:
        """The largest size of any part up to the bracket that closes."""
        worst, product = 0.0, 0.0
        while self.at < len(self.tokens):
            if self.tokens[self.at] in ("}", ")", "]"):
                break
            size = self.factor()
            product = product + size
            worst = max(worst, size)
        # Numbers side by side multiply at most; a sum of many is no larger.
        return max(worst, product)

    def factor(self) -> float:
        """One number, symbol or bracket with the powers and factorials that follow it."""
        size = self.atom()
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            if token in ("^", "**"):
                self.at += 1
                size = self.power(size)
            elif token == "!":
                self.at += 1
                size = _factorial(size)
            else:
                break
        return size

    def power(self, base: float) -> float:
        if self.at == len(self.tokens):
            return base
        exponent = self.factor()
        if base == 0.0:
            base = 1.0
        return base * math.exp(exponent) if exponent < 500 else _INFINITE

    def atom(self) -> float:
        token = self.tokens[self.at]
        self.at += 1
        while token in ("+", "-") and self.at < len(self.tokens) and self.tokens[self.at] not in ("}", ")", "]"):
            token = self.tokens[self.at]
            self.at += 1
        if token in ("{", "(", "["):
            size = self.largest()
            self.at += 1
            return size
        if token[0].isdecimal():
            return math.log(max(1.0, float(token))) if len(token) < 300 else len(token) * math.log(10)
        return 0.0


def _factorial(size: float) -> float:
    if size > 50:
        return _INFINITE
    return math.lgamma(math.exp(size) + 1)
