"""Small hierarchical tables with questions, for work without the public data.

A table has two levels of columns (year, group of people or kind) and two of rows (section, item). Its numbers decide
its split, so that no table of one split is another's with other names.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from rlvr_cli.core.hashes import text_digest
from rlvr_cli.core.streams import stream_seed
from rlvr_cli.tasks import data
from rlvr_cli.tasks.hitab.fields import problem_from
from rlvr_cli.tasks.problem import Problem, Split

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
        "answer": [_answer(kind, values, labels)],
        "aggregation": kind,
    }
    return _with_working(
        problem_from(fields, "generated"), split, kind, labels, cells, [table.values, kind, used, column]
    )


def _answer(kind: str, values: list[Fraction], labels: list[str]) -> str | int | float:
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
