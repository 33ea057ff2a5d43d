"""The HiTab task: questions on hierarchical tables, extraction of answers and their comparison.

The `paper` rule follows HiTab's scorer (Cheng et al. 2022, `qa/table/utils.py` and `qa/datadump/utils.py`), which
compares numbers to within 1e-5 and texts after WikiTableQuestions' normalisation. The answer is the last ``<answer>``
block or ``\\boxed{}`` after the reasoning; `strict` refuses a response with several. docs/tasks/hitab.md lists the
differences.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from rlvr_cli.core.errors import UserError
from rlvr_cli.tasks.answers import BOX, TAG, last_box, read_loose_number_and_percent, read_number_and_percent
from rlvr_cli.tasks.base import Data, RuleKey, Task
from rlvr_cli.tasks.data import TABLES
from rlvr_cli.tasks.files import BadRow, RowOrigin, find_text_error, read_rows
from rlvr_cli.tasks.hitab_tables import problem_from, render_table
from rlvr_cli.tasks.problem import DataSet, MissingFields, Problem, Rule, Verdict
from rlvr_cli.tasks.prompts import chat_prompt, has_template, leading_bos
from rlvr_cli.verify.numbers import normalise

# ACPO (2025) trains on HiTab but publishes no prompt. This one has table, question, answer format, and the data's
# conventions for numbers, which a model cannot guess (docs/tasks/hitab.md).
_INTRODUCTION = (
    "Answer a question about a table. Column and row headers are written as paths from the outermost to the innermost "
    "level, such as `total / 2019 / women`."
)
_CONVENTIONS = (
    "Give the answer alone: a number, or a word or phrase as the table has it. Write numbers as the table has them, "
    "without units. A share, ratio or relative change that you compute is a ratio to six decimal places (0.25, not "
    "25%). Separate several answers with semicolons."
)
_FORMS = {
    "answer_tag": "First think inside <think> and </think>, then write the answer between <answer> and </answer>.",
    "boxed": "Think step by step, then write the answer within \\boxed{}.",
}

REASONS = ("correct", "wrong", "no_answer", "several_answers", "too_long")

# Characters; no cell or header of a table is longer.
MAX_ANSWER = 10_000

_OPEN, _CLOSE = "<answer>", "</answer>"
_LABEL = re.compile(r"\s*(?:the )?(?:final )?answer(?: is)?\s*:", re.IGNORECASE)
_HARD_SEPARATOR = re.compile(r"[;|\n]")
_SOFT_SEPARATORS = (re.compile(r",\s"), re.compile(r",\s+and\s|,\s|\sand\s"), re.compile(r","))
# Possessive quantifiers: no backtracking, so linear time for any text.
_ITEM = re.compile(r"""\s*+(?:'((?:[^'\\]|\\.)*+)'\s*+|"((?:[^"\\]|\\.)*+)"\s*+|([^,'"\[\]]++))(?P<end>,|\Z)""")
_BOXED = re.compile(r"\\boxed(?=\{)")
_BULLET = re.compile(r"\s*+[-*\u2022]\s++(?=\S)")
_LINE_NUMBER = re.compile(r"\s*+(\d{1,2})[.)]\s++(?=\S)")
_AND = re.compile(r"\s*and\s")
_WRAPPED = re.compile(r"\\(?:text|textbf|mathrm|mathbf|textrm)\{([^{}]*)\}")
_CITATION = re.compile(r"\[[^\[\]]*\]\Z")
_QUOTES = str.maketrans("\u2018\u2019\u00b4`\u201c\u201d", "''''\"\"")


class HiTab(Task):
    """Questions on hierarchical tables."""

    sets: ClassVar = {
        "hitab": DataSet(
            "HiTab, questions on hierarchical tables.",
            {"train": "hitab/train", "test": "hitab/test"},
            None,
            "C-UDA 1.0",
            size=1584,
            length=(4096, "ours: the length of AR-Lopti's table 2"),
        )
    }
    reasons: ClassVar = REASONS
    problem_keys: ClassVar = ("corrected",)
    json_columns: ClassVar = ("table", "answer")

    name: Literal["hitab"] = Field("hitab", description="hitab = questions on hierarchical tables.")
    style: Literal["answer_tag", "boxed"] = Field(
        "answer_tag",
        description="Prompt format: answer_tag (the answer in <answer> after <think>), boxed (in \\boxed{}).",
    )
    data: Data = "hitab"
    tolerance: Annotated[float, Field(ge=0.0, le=1.0)] = Field(
        1e-5, description="Maximum absolute difference of equal numbers."
    )
    percent: Literal["as_written", "ratio", "either"] = Field(
        "as_written",
        description="Value of 69.1%: as_written = 69.1, ratio = 0.691, either = one of them must be correct.",
    )
    sign: Literal["exact", "either"] = Field("exact", description="exact = the sign counts; either = it does not.")
    corrected: bool = Field(
        False, description="Use the HiTab maintainers' corrected questions and answers of rows that have them."
    )
    rule: RuleKey = "paper"

    def parse_row(self, record: dict[str, Any], origin: RowOrigin) -> Problem:
        """Return the problem of a row; its table is in the row or in tables.jsonl of the same folder."""
        fields = dict(record)
        if self.corrected:
            # A public row has its corrected answer in the question's field; it stays uncorrected.
            for key, kind in (("question", str), ("answer", list)):
                if isinstance(record.get(f"{key}_checked"), kind):
                    fields[key] = record[f"{key}_checked"]
        if fields.get("table") is None and "table_id" in record:
            tables, problems = _find_tables(origin.path.parent) if origin.path is not None else ({}, ())
            if problems:
                raise UserError(problems)
            if str(record["table_id"]) not in tables:
                raise UserError(
                    f"{origin.where}: table {record['table_id']!r} is not in tables.jsonl next to this file"
                )
            fields["table"] = tables[str(record["table_id"])]
        problem = problem_from(fields, origin.where)
        if not problem.question.strip() or not problem.data["table"]:
            missing = [key for key in ("question", "table") if not fields.get(key)]
            needed = "a row needs question and table (or table_id, with tables.jsonl next to the file)"
            raise MissingFields(origin.where, missing, needed, record)
        return problem

    def split_key(self, problem: Problem) -> str:
        """Return the table: its questions share a split."""
        return str(problem.data["table"])

    def problem_wording(self, problem: Problem) -> str:
        """Return table and question, since tables share questions."""
        return f"{problem.data['table']}\n{problem.question}"

    def problem_from(self, fields: dict[str, Any], where: str) -> Problem:
        return problem_from(fields, where)

    def prompt(self, problem: Problem, tokenizer: Any) -> str:
        table = problem.data["table"]
        table_text = f"{_INTRODUCTION}\n\n## Table\n{table}\n\n" if table else ""
        text = f"{table_text}## Question\n{problem.question}\n\n{_CONVENTIONS} {_FORMS[self.style]}"
        if not has_template(tokenizer):
            return f"{leading_bos(tokenizer)}User: {text}\nAssistant:"
        return chat_prompt(tokenizer, [{"role": "user", "content": text}], options=self.chat_template_kwargs)

    def judge(self, problem: Problem, response: str, *, truncated: bool = False) -> Verdict:
        """Judge a response, in linear time; the gold answers may be in any order."""
        written, reason = _extract_answer(response) if self.rule == "paper" else _extract_single_answer(response)
        if written is None:
            return _make_verdict(False, None, "too_long" if truncated and reason == "no_answer" else reason)
        expected = [read_value(item, self.rule) for item in problem.data["answer"]]
        first: list[Value] | None = None
        for items in _candidate_lists(written, len(expected)):
            values = [read_value(item, self.rule) for item in items]
            first = first or values
            if self.answers_match(expected, values):
                return _make_verdict(True, _join_canonical(values), "correct")
        if not first or not any(value.text for value in first):
            return _make_verdict(False, None, "too_long" if truncated else "no_answer")
        return _make_verdict(False, _join_canonical(first), "wrong")

    def answers_match(self, gold: Sequence[Value], answers: Sequence[Value]) -> bool:
        """Return whether the answers match the gold answers in some order."""
        if len(gold) != len(answers):
            return False
        if len(gold) == 1:
            return self._values_match(gold[0], answers[0])
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import maximum_bipartite_matching

        pairs = csr_array([[self._values_match(true, answer) for true in gold] for answer in answers], dtype=bool)
        return bool((maximum_bipartite_matching(pairs) >= 0).all())

    def _values_match(self, gold: Value, answer: Value) -> bool:
        if gold.number is None or answer.number is None:
            return gold.number is None and answer.number is None and gold.text == answer.text
        return any(
            abs(true - read) <= self._exact_tolerance
            for true in self._possible_numbers(gold, gold.number)
            for read in self._possible_numbers(answer, answer.number)
        )

    @cached_property
    def _exact_tolerance(self) -> Fraction:
        return Fraction(str(self.tolerance))

    def _possible_numbers(self, value: Value, number: Fraction) -> list[Fraction]:
        number = abs(number) if self.sign == "either" else number
        if not value.percent or self.percent == "as_written":
            return [number]
        return [number / 100] if self.percent == "ratio" else [number, number / 100]


def _find_tables(folder: Path) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the folder's rendered tables by id, and the errors of malformed ones."""
    path = next((folder / name for name in TABLES if (folder / name).is_file()), None)
    return _read_tables(path, path.stat().st_mtime_ns) if path is not None else ({}, ())


@lru_cache(maxsize=4)
def _read_tables(path: Path, version: int) -> tuple[dict[str, str], tuple[str, ...]]:
    tables: dict[str, str] = {}
    problems: list[str] = []
    for record, origin in read_rows(path):
        try:
            if isinstance(record, BadRow):
                raise UserError(f"{origin.where}: {record}")
            if not isinstance(record, dict) or "id" not in record:
                raise UserError(f"{origin.where}: a table must be {{id, title, texts}}")
            if (unwritable := find_text_error(record)) is not None:
                raise UserError(f"{origin.where}: {unwritable}")
            tables[str(record["id"])] = render_table(record, origin.where)
        except UserError as error:
            problems += error.problems
    return tables, tuple(problems)


def _join_canonical(values: Sequence[Value]) -> str:
    return "; ".join(sorted(value.canonical() for value in values))


def _make_verdict(correct: bool, answer: str | None, reason: str) -> Verdict:
    reward = 1.0 if correct else 0.0
    return Verdict(reward, {"answer": reward}, correct, answer, reason)


def _extract_answer(response: str) -> tuple[str | None, str]:
    """Return the last <answer> block or box, and the reason without one; the box of a block with a box."""
    text = response.rpartition("</think>")[2]
    end = text.rfind(_CLOSE)
    start = text.rfind(_OPEN, 0, end) if end >= 0 else -1
    box = last_box(text, _BOXED)
    if start >= 0 and (box is None or box.end <= end + len(_CLOSE)):
        block = text[start + len(_OPEN) : end]
        inner = last_box(block, _BOXED)
        return _strip_label(block if inner is None else inner.content)
    return _strip_label(box.content) if box is not None else (None, "no_answer")


def _extract_single_answer(response: str) -> tuple[str | None, str]:
    """Return the only <answer> block or box (or box in a block), and the reason without one."""
    text = response.rpartition("</think>")[2]
    tags = [(tag[2].lower(), bool(tag[1])) for tag in TAG.finditer(text)]
    if ("think", False) in tags:
        return None, "no_answer"
    opened, closed, boxes = text.count(_OPEN), text.count(_CLOSE), len(BOX.findall(text))
    if tags.count(("answer", False)) > 1 or tags.count(("answer", True)) > 1 or boxes > 1:
        return None, "several_answers"
    box = last_box(text, _BOXED)
    if boxes and box is None:
        return None, "several_answers" if opened and closed else "no_answer"
    if not opened and not closed:
        return _strip_label(box.content) if box is not None else (None, "no_answer")
    start, end = text.find(_OPEN) + len(_OPEN), text.find(_CLOSE)
    if not (opened and closed and start <= end):
        return None, "no_answer"
    if box is None:
        return _strip_label(text[start:end])
    around = text[start : box.start] + text[box.end : end]
    inside = start <= box.start and box.end <= end and not around.strip(" \t\r\n$.")
    return _strip_label(box.content) if inside else (None, "several_answers")


def _strip_label(answer: str) -> tuple[str | None, str]:
    label = _LABEL.match(answer)
    answer = (answer[label.end() :] if label else answer).strip()
    return (answer, "") if answer and len(answer) <= MAX_ANSWER else (None, "no_answer")


def _candidate_lists(written: str, count: int) -> Iterator[list[str]]:
    """Yield splits of the text into answers, the likeliest first."""
    listed = _parse_list(written)
    if listed is not None:
        yield listed
    if count == 1:
        yield [written]
    if count == 1 or listed is not None:
        return
    items = [item for item in _HARD_SEPARATOR.split(written) if item.strip()]
    if len(items) > 1:
        yield items if ";" in written or "|" in written else _strip_list_marks(items)
        return
    for separator in _SOFT_SEPARATORS:
        yield [_AND.sub("", item, count=1) if _AND.match(item) else item for item in separator.split(written)]


def _strip_list_marks(lines: list[str]) -> list[str]:
    """Strip bullets, or numbers 1, 2, 3, ..., if every line has one."""
    marks = [_BULLET.match(line) for line in lines]
    numbers = [_LINE_NUMBER.match(line) for line in lines]
    if all(number is not None and int(number[1]) == line for line, number in enumerate(numbers, 1)):
        marks = numbers
    return [line[mark.end() :] for line, mark in zip(lines, marks, strict=True) if mark] if all(marks) else lines


def _parse_list(text: str) -> list[str] | None:
    """Parse a list in brackets, JSON or Python's; numbers keep their spelling."""
    if not (text.startswith("[") and text.endswith("]")):
        return None
    try:
        items = json.loads(text, parse_int=str, parse_float=str, parse_constant=str)
    except (ValueError, RecursionError):
        items = _parse_python_list(text[1:-1])
    return items if items and all(isinstance(item, str) for item in items) else None


def _parse_python_list(text: str) -> list[str] | None:
    items: list[str] = []
    position = 0
    while (match := _ITEM.match(text, position)) is not None:
        items.append(match[1] or match[2] or match[3] or "")
        position = match.end()
        if not match["end"]:
            return items
    return None


@dataclass(frozen=True)
class Value:
    """An answer: normalised text, and its number without a percent sign if it is numeric."""

    text: str
    number: Fraction | None = None
    percent: bool = False

    def canonical(self) -> str:
        if self.number is None:
            return self.text
        # A decimal of up to 10 places, without trailing zeros.
        integer, decimals = divmod(round(abs(self.number) * 10**10), 10**10)
        text = f"{integer}.{decimals:010d}".rstrip("0").rstrip(".")
        return ("-" if self.number < 0 and text != "0" else "") + text + ("%" if self.percent else "")


def read_value(written: str | int | float, rule: Rule) -> Value:
    """Parse an answer of the data (text or a JSON number) or of a response. Linear; no exception for any string."""
    if not isinstance(written, str):
        return Value(str(written), Fraction(str(written)))
    text = _clean(written)
    number, percent = read_number_and_percent(text if text.endswith("..") else text.removesuffix("."))
    if number is None and rule == "paper":
        number, percent = read_loose_number_and_percent(text)
    return Value(_normalise_text(text, rule), number, percent)


def _clean(text: str) -> str:
    """Strip LaTeX and Markdown markup, and normalise spaces and Unicode signs."""
    text = normalise(text).strip()
    for escaped, plain in (("\\%", "%"), ("\\$", "$"), ("\\&", "&"), ("\\!", ""), ("\\,", " "), ("\\ ", " ")):
        text = text.replace(escaped, plain)
    text = _WRAPPED.sub(r"\1", text)
    if len(text) > 2 and text[0] == text[-1] == "$":
        text = text[1:-1]
    text = " ".join(text.translate(_QUOTES).split())
    text = text.strip("*_ ") or text
    return text[1:-1].strip() if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


def _normalise_text(text: str, rule: Rule) -> str:
    """Fold case and accents and strip the final full stop; for `paper` also trailing notes, as HiTab does."""
    text = "".join(c for c in unicodedata.normalize("NFKD", text.lower()) if unicodedata.category(c) != "Mn")
    while rule == "paper":
        shorter = _strip_note(text.rstrip())
        if shorter == text:
            break
        text = shorter
    return text.removesuffix(".").strip() or text


def _strip_note(text: str) -> str:
    """Strip a trailing citation, footnote mark or parenthesis, unless it is the whole text."""
    if text.endswith(")"):
        start = text.rfind(" (")
        return text[:start] if start > 0 and ")" not in text[start:-1] else text
    if text.endswith("]"):
        start = text.rfind("[")
        return text[:start] if start > 0 and _CITATION.match(text, start) else text
    return text.rstrip("\u2022\u2666\u2020\u2021*#+") or text
