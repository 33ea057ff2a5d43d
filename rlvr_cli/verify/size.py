"""Numbers that nobody should compute, recognised by their spelling."""

from __future__ import annotations

import math
import re

# Decimal digits. 2^{10000} has 3,011.
MOST_DIGITS = 20_000
# math-verify's parser takes 0.5 s at 10 levels of braces, 5 s at 14 and 40 s at 16. Gold answers have up to 6.
MOST_NESTED = 12

_TOKEN = re.compile(r"\d+(?:\.\d+)?|\*\*|\\[A-Za-z]+|\\.|\S", re.DOTALL)
_INFINITE = math.inf


def too_big(text: str) -> bool:
    """Whether ``text`` nests too deeply, or spells a power or factorial of more than MOST_DIGITS digits.

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
        return _Sizes(tokens).whole() > MOST_DIGITS * math.log(10)
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
