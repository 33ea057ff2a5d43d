"""GSM8K: grade-school word problems with numeric answers, compared exactly."""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction
from typing import Any, ClassVar, Literal

from pydantic import Field

from rlvr_cli.core.errors import UserError
from rlvr_cli.tasks.base import Data
from rlvr_cli.tasks.math_answers import AnswerTask, extract_answer
from rlvr_cli.tasks.math_rows import convert_answer, find_question, make_problem
from rlvr_cli.tasks.problem import DataSet, MissingFields, Problem, Verdict
from rlvr_cli.verify.math_answer import DIFFERENT, EQUAL, UNPARSED_ANSWER, Rule
from rlvr_cli.verify.numbers import CHANGING_WORDS, exact_number, normalise

_MARK = "####"
_CALCULATOR = re.compile(r"<<[^<>]*>>")


class GSM8K(AnswerTask):
    """Grade-school word problems."""

    sets: ClassVar = {
        "gsm8k": DataSet(
            "GSM8K, grade-school word problems.",
            {"train": "gsm8k/train", "test": "gsm8k/test"},
            "openai/gsm8k",
            "MIT",
            size=1319,
            config="main",
        )
    }

    name: Literal["gsm8k"] = Field("gsm8k", description="gsm8k = grade-school word problems.")
    data: Data = "gsm8k"

    @property
    def prompt_tokens(self) -> int:
        return 512

    def judge(self, problem: Problem, response: str, *, truncated: bool = False) -> Verdict:
        reading = extract_answer(response, self.form, self.rule)
        if reading.answer is None:
            return self.verdict(reading, None, answer=None, truncated=truncated)
        value = read_number(reading.answer, self.rule)
        gold = read_number(str(problem.data["answer"]))
        outcome = UNPARSED_ANSWER if value is None else EQUAL if value == gold else DIFFERENT
        answer = None if value is None else str(value)
        return self.verdict(reading, outcome, answer=answer, truncated=truncated)

    def problem_from(self, fields: dict[str, Any], where: str) -> Problem:
        """Return the problem of a row; ``answer`` is a number, as text too, or a solution that ends in ``#### number``.

        Raises UserError if a field is missing or of another type, or the answer is not a number.
        """
        question = find_question(fields, where)
        text = convert_answer(fields.get("answer"))
        if text is None:
            needed = "a problem needs question and answer (a number, or text ending in ####)"
            raise MissingFields(where, ["answer"], needed, fields)
        solution, mark, gold = text.rpartition(_MARK)
        gold = gold.strip()
        if read_number(gold) is None:
            raise UserError(f"{where}: answer must be a number; got {gold[:40]!r}")
        return make_problem({"solution": solution.strip(), **fields} if mark else fields, question, gold)

    def _strip_boxes(self, solution: str) -> str:
        return _CALCULATOR.sub("", super()._strip_boxes(solution).partition(_MARK)[0]).strip()


# Accepted and refused numbers: docs/tasks/gsm8k.md

_MORE_WORDS = (
    r"doz|mio|mrd|kk|dz|zeroe?s|neg|doubles|thrice|triples|quadruple[ds]?|(?:square|cube) ?roots?"
    r"|(?:square|cube|root|opposite|reciprocal|inverse|negation|logarithm) of|none|(?:(?:any|every|no)thing|all) but"
    r"|incorrectly|(?:is|are|was|were|do|does|did|has|have|had|ca|could|would|should|wo)n'?t"
)
_WORDS = re.compile(
    rf"(?<![A-Za-z])(?:{CHANGING_WORDS}|{_MORE_WORDS})(?![A-Za-z])"
    # These change only an adjacent number.
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
# A verb after the number: the next word is not a unit.
_VERB = re.compile(r"\d\.?\s?(?:is|was|are|were|be|would|should|could|might|may|can|will|has|had)(?![A-Za-z])", re.I)


def _has_foreign_sign(text: str) -> bool:
    """Return whether ``text`` has a character other than ASCII, Latin letters, currencies and quotation marks."""
    return any(
        not character.isascii()
        and unicodedata.category(character) not in ("Sc", "Pi", "Pf")
        and not unicodedata.name(character, "").startswith(("LATIN SMALL LETTER", "LATIN CAPITAL LETTER"))
        for character in unicodedata.normalize("NFC", text)
    )


# Characters of an answer.
MAX_LENGTH = 300

_TEXT_COMMAND = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
_SPACING = re.compile(r"\\[,;: ]|~|\\(?:quad|qquad|left|right|displaystyle)(?![A-Za-z])")
_DELIMITERS = (("**", "**"), ("`", "`"), ("$$", "$$"), ("\\(", "\\)"), ("\\[", "\\]"), ("{", "}"))
_DEGREES = re.compile(r"\s?\^\s?(?:\{\s?\\circ\s?\}|\\circ(?![A-Za-z]))|\\degree(?![A-Za-z])")
# An area or a volume: the power belongs to the unit.
_POWER = re.compile(
    r"(?<![A-Za-z])(mm|cm|dm|m|km|in|inch(?:es)?|ft|foot|feet|yd|yards?|mi|miles?|(?:centi|kilo|milli)?met(?:er|re)s?|units?)"
    r"\s?\^\s?(?:\{\s?[23]\s?\}|[23](?!\d))"
)

_CURRENCY = r"(?:US\s?\$|\$|\u20ac|\u00a3|\u00a5|\u20b9|(?:USD|EUR|GBP|Rs\.?)(?![A-Za-z]))"
_PLAIN = r"(?:\d{1,3}(?:,\d{3})+|\d{1,3}(?: \d{3})+|\d+)(?:\.\d*)?|\.\d+"
_FRACTION = r"\\frac\s*\{\s*\d+\s*\}\s*\{\s*\d+\s*\}|\d+\s*/\s*\d+"
_UNIT = r"\s*(?:%|(?:per)?-?[A-Za-z]+(?:[ /-]{1,2}[A-Za-z]+){0,3})"
_NUMBER = re.compile(
    r"(?:(?:(?:[A-Za-z]|[A-Za-z]{3,20}(?: [A-Za-z]{1,20}){0,3})\s?=|(?:[A-Za-z]\s?)?\\approx(?![A-Za-z]))\s?)?"
    rf"(?P<sign>[+-]?)\s?{_CURRENCY}?\s?(?P<sign2>[+-]?)"
    rf"(?:(?P<whole>\d{{1,9}})\s*(?P<part>(?<=\s)(?:{_FRACTION})|\\frac\s*\{{\s*\d+\s*\}}\s*\{{\s*\d+\s*\}})"
    rf"|(?P<fraction>{_FRACTION})|(?P<plain>{_PLAIN}))"
    rf"(?:\s*{_CURRENCY})?(?P<unit>{_UNIT})?\s*\.?"
)

_LITERAL = re.compile(r"\d(?:[\d,./ ]*\d)?")
_LOOSE_REFUSED = re.compile(r"[\\{}^*/+<>~!|%_()]|\d\s*[A-Za-z]*\d")
_NEGATIVE = re.compile(rf"(?:^|[\s=:])-\s?{_CURRENCY}?\s?\Z")
_NEGATED_NAME = re.compile(r"(?:^|\s)-\s?[A-Za-z]\w*\s?=\s?\Z")


def read_number(text: str, rule: Rule = "strict") -> Fraction | None:
    """Parse the number of an answer; None unless there is exactly one.

    Strict: the whole text is a number, with optional sign, preceding currency and following unit of up to four words.
    Paper: also a sentence with a single number. Units and percent signs are ignored: ``60%`` is 60. Expressions are not
    evaluated. Linear time, no exception for any string.
    """
    if len(text) > MAX_LENGTH:
        return None
    plain = _strip_markup(text)
    if _WORDS.search(plain) or _LETTERS.search(plain):
        return None
    match = _NUMBER.fullmatch(plain)
    if match is not None and not (rule == "strict" and _VERB.search(plain)):
        return _parse_match(match)
    return _read_single_literal(plain) if rule == "paper" else None


def _strip_markup(text: str) -> str:
    text = (
        normalise(text)
        .replace("\u2248", "\\approx ")
        .replace("\\$", "$")
        .replace("\\%", "%")
        .replace("{,}", ",")
        .replace("\\!", "")
    )
    text = re.sub(r"\\[dtc]frac(?![A-Za-z])", r"\\frac", text)
    text = _SPACING.sub(" ", _TEXT_COMMAND.sub(r" \1 ", text)).removeprefix("####")
    text = " ".join(_DEGREES.sub(" degrees ", text).split())
    text = _POWER.sub(r"\1", text)
    stripped = True
    while stripped:
        stripped = False
        for opening, closing in _DELIMITERS:
            inner = text[len(opening) : -len(closing)]
            if inner and text.startswith(opening) and text.endswith(closing) and closing not in inner:
                text, stripped = inner.strip(), True
        if len(text) > 2 and text[0] == "(" and text.find(")") == len(text) - 1 and "$" not in text:
            text, stripped = text[1:-1].strip(), True
        # A dollar sign at both ends marks mathematics; one in front is money.
        if len(text) > 2 and text[0] == text[-1] == "$":
            text, stripped = text[1:-1].strip(), True
    return text


def _parse_match(match: re.Match[str]) -> Fraction | None:
    if match["sign"] and match["sign2"]:
        return None
    if match["plain"] is not None:
        value = exact_number(match["plain"].replace(" ", ""))
    else:
        value = exact_number(match["part"] or match["fraction"])
        if value is not None and match["whole"] is not None:
            value = value + int(match["whole"]) if value < 1 else None
    if value is None:
        return None
    return -value if "-" in (match["sign"], match["sign2"]) else value


def _read_single_literal(text: str) -> Fraction | None:
    if _has_foreign_sign(text):
        return None
    literals = list(_LITERAL.finditer(text))
    if len(literals) != 1 or _LOOSE_REFUSED.search(text.replace(literals[0][0], "0")):
        return None
    start = literals[0].start()
    if text[:start].endswith("."):
        return None
    value = exact_number(literals[0][0])
    if value is None:
        return None
    before, after = text[:start], text[start + len(literals[0][0]) :]
    if _NEGATED_NAME.search(before) or after.strip() in ("-", "+"):
        return None
    if "-" in before[-4:]:
        return -value if _NEGATIVE.search(before) else None
    return value
