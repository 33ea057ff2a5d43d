"""HiTab problems: small tables with questions drawn here, or from the fields of a row.

A drawn table has two levels of columns (year, group of people or kind) and two of rows (section, item). Its numbers
decide its split, so that no table of one split is another's with other names.
"""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.hashes import text_digest
from rlvr_cli.core.streams import stream_seed
from rlvr_cli.tasks import data
from rlvr_cli.tasks.hitab.table import Layout, infer_layout, markdown
from rlvr_cli.tasks.problem import Problem, Split

_MAX_CELLS = 200_000
_MAX_NUMBER = 10**100


def problem_from(fields: dict[str, Any], where: str) -> Problem:
    """The problem that ``fields`` describe.

    Args:
        fields: ``answer`` (a list of numbers and texts, or one of them) and, each optional here, ``question``,
            ``table`` (rendered text, a matrix of cells, or an object with ``texts`` and optionally ``title``,
            ``header_rows``, ``header_columns``), ``id``, ``aggregation``.
        where: what errors name: a file and line.
    Raises:
        UserError: a field is missing or malformed; the message names ``where`` and the field.
    """
    if not isinstance(fields, dict):
        raise UserError(f"{where}: not a JSON object; a problem is {{question, table, answer}}")
    answer = _answer(fields, where)
    question = fields.get("question", "")
    if not isinstance(question, str):
        raise UserError(f"{where}: question must be text")
    table = rendered(fields.get("table"), where)
    identity = fields.get("id")
    if identity is None:
        text = json.dumps([question, table, answer])
        identity = f"hitab-{text_digest(text)[:16]}"
    return Problem(
        id=str(identity),
        question=question,
        data={"table": table, "answer": answer},
        subgroup=_aggregation(fields.get("aggregation")),
    )


def rendered(table: Any, where: str) -> str:
    """A table of any of the accepted forms as the prompt shows it. Raises UserError for anything else."""
    if table is None:
        return ""
    if isinstance(table, str):
        return table
    if isinstance(table, list):
        table = {"texts": table}
    if not isinstance(table, dict) or "texts" not in table:
        raise UserError(f"{where}: table must be text, a list of rows of cells, or an object with `texts`")
    texts = _texts(table["texts"], where)
    title = table.get("title", "")
    if not isinstance(title, str):
        raise UserError(f"{where}: table.title must be text")
    body = markdown(texts, _layout(table, texts, where))
    return f"Title: {' '.join(title.split())}\n\n{body}" if title.strip() else body


def _texts(texts: Any, where: str) -> list[list[str]]:
    if not isinstance(texts, list) or not texts or not all(isinstance(row, list) and row for row in texts):
        raise UserError(f"{where}: table.texts must be a list of rows, each a list of cells")
    if len({len(row) for row in texts}) > 1:
        raise UserError(f"{where}: table.texts needs rows of one length; a merged cell is its text, then empty ones")
    if len(texts) * len(texts[0]) > _MAX_CELLS:
        raise UserError(f"{where}: table.texts has more than {_MAX_CELLS:,} cells")
    if not all(cell is None or isinstance(cell, str | int | float) for row in texts for cell in row):
        raise UserError(f"{where}: table.texts must hold texts and numbers")
    return [["" if cell is None else str(cell) for cell in row] for row in texts]


def _layout(table: dict[str, Any], texts: list[list[str]], where: str) -> Layout:
    layout = infer_layout(texts)
    given = {}
    for key, size in (("header_rows", len(texts)), ("header_columns", len(texts[0]))):
        value = table.get(key)
        if value is None:
            value = max(getattr(layout, key), _hinted_rows(table, size) if key == "header_rows" else 1)
        elif type(value) is not int or not 1 <= value <= size:
            raise UserError(f"{where}: table.{key} must be a whole number from 1 to {size}")
        given[key] = value
    return Layout(**given)


def _hinted_rows(table: dict[str, Any], rows: int) -> int:
    """The header rows that the samples of a table prove (``header_hint`` of the public copy); 1 where none does."""
    hint = table.get("header_hint")
    value = hint.get("top_header_rows_at_least") if isinstance(hint, dict) else None
    return value if type(value) is int and 1 <= value < rows else 1


def _answer(fields: dict[str, Any], where: str) -> list[str | int | float]:
    if "answer" not in fields:
        raise UserError(f"{where}: no field answer; it is a list of numbers and texts")
    answer = fields["answer"]
    answer = answer if isinstance(answer, list) else [answer]
    if not answer or not all(_is_value(item) for item in answer):
        raise UserError(f"{where}: answer must be a list of numbers and texts, with at least one and none empty")
    return answer


def _is_value(item: Any) -> bool:
    if isinstance(item, str):
        return bool(item.strip())
    if isinstance(item, bool) or not isinstance(item, int | float):
        return False
    # A whole number longer than this has no decimal text.
    return abs(item) < _MAX_NUMBER if isinstance(item, int) else math.isfinite(item)


def _aggregation(value: Any) -> str:
    names = value if isinstance(value, list) else [value]
    return "+".join(name for name in names if isinstance(name, str)) or "none"


KINDS = ("lookup", "sum", "difference", "ratio", "argmax")

_PLACES = 6
_MEASURES = ("workers", "visitors", "students", "members", "hours", "projects", "claims", "permits")
_GROUPS = (("women", "men"), ("urban", "rural"), ("full time", "part time"), ("public", "private"))
_SECTIONS = {
    "agriculture": ("dairy", "cereals", "fruit", "poultry", "fisheries"),
    "manufacturing": ("food", "textiles", "machinery", "furniture", "paper"),
    "services": ("retail", "transport", "education", "health", "finance"),
    "construction": ("housing", "roads", "bridges", "repairs", "pipelines"),
    "north": ("alden", "birch bay", "corran", "dunmore", "eastfield"),
    "south": ("ferris", "glenrock", "holt", "inverness", "juniper"),
}


@dataclass(frozen=True)
class _Table:
    """Names and values of a table; ``values[row][column]`` in tenths, with ``rows`` and ``columns`` of two levels."""

    measure: str
    years: tuple[str, ...]
    groups: tuple[str, ...]
    rows: tuple[tuple[str, str], ...]
    values: tuple[tuple[int, ...], ...]
    decimals: bool

    def cell(self, row: int, column: int) -> str:
        """A value as the table writes it."""
        tenths = self.values[row][column]
        return f"{tenths // 10:,}.{tenths % 10}" if self.decimals else f"{tenths // 10:,}"

    def column(self, column: int) -> tuple[str, str]:
        """Year and group of a column."""
        return self.years[column // len(self.groups)], self.groups[column % len(self.groups)]

    def texts(self) -> list[list[str]]:
        """The matrix as the public data writes it: merged cells have their text in their first cell."""
        top = ["section", "item"]
        for year in self.years:
            top += [year, *[""] * (len(self.groups) - 1)]
        matrix = [top, ["", "", *(self.groups * len(self.years))]]
        last = ""
        for index, (section, item) in enumerate(self.rows):
            cells = [self.cell(index, column) for column in range(len(self.values[0]))]
            matrix.append(["" if section == last else section, item, *cells])
            last = section
        return matrix


def generate(split: Split, count: int, seed: int) -> list[Problem]:
    """``count`` distinct problems, the kinds of question in equal shares and in random order.

    The same for the same arguments; a smaller set draws on the same stream as a larger one.
    """
    rng = random.Random(stream_seed(seed, "hitab", split))
    problems: list[Problem] = []
    seen: set[str] = set()
    while len(problems) < count:
        table = _draw(rng)
        if split_of(table.values) != split:
            continue
        problem = _problem(table, KINDS[len(problems) % len(KINDS)], split, rng)
        if problem is not None and problem.id not in seen:
            seen.add(problem.id)
            problems.append(problem)
    random.Random(stream_seed(seed, "hitab", split, "order")).shuffle(problems)
    return problems


def split_of(values: tuple[tuple[int, ...], ...]) -> Split:
    """The split of a table, by its numbers alone."""
    return data.split_of(json.dumps(values))


def _draw(rng: random.Random) -> _Table:
    first_year = rng.randint(1990, 2018)
    years = tuple(str(first_year + step) for step in range(rng.randint(1, 2)))
    groups = rng.choice(_GROUPS)
    rows = tuple(
        (section, item)
        for section in rng.sample(sorted(_SECTIONS), 2)
        for item in rng.sample(_SECTIONS[section], rng.randint(2, 3))
    )
    decimals = rng.random() < 0.5
    largest = rng.choice((99, 999, 9999))
    columns = range(len(years) * len(groups))
    values = tuple(
        tuple(rng.randint(10, largest * 10) if decimals else 10 * rng.randint(1, largest) for _ in columns)
        for _ in rows
    )
    return _Table(rng.choice(_MEASURES), years, groups, rows, values, decimals)


def _problem(table: _Table, kind: str, split: Split, rng: random.Random) -> Problem | None:
    """A question of that kind on the table; None when the table has no single answer to it."""
    column = rng.randrange(len(table.values[0]))
    year, group = table.column(column)
    sections = sorted({section for section, _ in table.rows})
    section = rng.choice(sections)
    first, second = rng.sample(range(len(table.rows)), 2)
    within = [index for index, row in enumerate(table.rows) if row[0] == section]
    used = {"lookup": [first], "difference": [first, second], "ratio": [first, second]}.get(kind, within)
    names = [f"{table.rows[row][1]} ({table.rows[row][0]})" for row in used]
    where = f"for {group} in {year}"
    what = f"the number of {table.measure}"
    values = [Fraction(table.values[row][column], 10) for row in used]
    if kind == "argmax" and values.count(max(values)) > 1:
        return None
    question = {
        "lookup": f"what was {what} in {names[0]} {where}?",
        "sum": f"what was {what} in all items of {section} together {where}?",
        "difference": f"what is {what} in {names[0]} minus that in {names[-1]} {where}?",
        "ratio": f"how many times that in {names[-1]} was {what} in {names[0]} {where}?",
        "argmax": f"which item of {section} had the highest number of {table.measure} {where}?",
    }[kind]
    cells = [table.cell(row, column) for row in used]
    labels = [table.rows[row][1] for row in used] if kind == "argmax" else names
    title = f"number of {table.measure} by section and item, {' and '.join(table.years)}"
    fields = {
        "question": question,
        "table": {"title": title, "texts": table.texts(), "header_rows": 2, "header_columns": 2},
        "answer": [_drawn_answer(kind, values, labels)],
        "aggregation": kind,
    }
    return _with_working(
        problem_from(fields, "generated"), split, kind, labels, cells, [table.values, kind, used, column]
    )


def _drawn_answer(kind: str, values: list[Fraction], labels: list[str]) -> str | int | float:
    if kind == "argmax":
        return labels[values.index(max(values))]
    return as_json(result(kind, values))


def result(kind: str, values: list[Fraction]) -> Fraction:
    """The number that a question of that kind asks for; a ratio to six places, as HiTab's own."""
    if kind == "sum":
        return sum(values, Fraction(0))
    if kind == "difference":
        return values[0] - values[1]
    return round(values[0] / values[1], _PLACES) if kind == "ratio" else values[0]


def as_json(number: Fraction) -> int | float:
    """The number as JSON writes it, without `.0`."""
    return number.numerator if number.denominator == 1 else float(number)


def _with_working(
    problem: Problem, split: Split, kind: str, labels: list[str], cells: list[str], structure: list[Any]
) -> Problem:
    working = {"kind": kind, "labels": labels, "cells": cells}
    return Problem(
        id=problem.id.replace("hitab-", f"hitab-{split}-", 1),
        question=problem.question,
        data={**problem.data, "working": working},
        subgroup=kind,
        structure=text_digest(json.dumps(structure)),
    )
