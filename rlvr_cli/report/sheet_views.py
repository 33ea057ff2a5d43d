"""A method's sheet as JSON and as lines of text."""

from __future__ import annotations

import dataclasses
import re
import textwrap
from collections.abc import Iterator
from typing import Any

from rlvr_cli.core.yaml import shown
from rlvr_cli.methods.preset import Preset
from rlvr_cli.report.docstrings import joined
from rlvr_cli.report.method_sheet import DEFAULT, Change, MethodSheet

WIDTH = 118


def summary(preset: Preset) -> dict[str, Any]:
    """A row of `rlvr methods`."""
    return {
        "name": preset.name,
        "title": preset.title,
        "paper": preset.paper.reference,
        "summary": preset.summary,
        "extra_cost": preset.extra_cost,
        "tested_against": [f"golden/{name}.json" for name in preset.golden],
    }


def as_dict(sheet: MethodSheet) -> dict[str, Any]:
    """Everything, for `--json`."""
    return {
        "name": sheet.name,
        "title": sheet.title,
        "parts": [
            {**summary(part), "paper": {**dataclasses.asdict(part.paper), "reference": part.paper.reference}}
            for part in sheet.parts
        ],
        "code": [{"file": file, **dataclasses.asdict(text)} for file, text in sheet.texts],
        "choices": [dataclasses.asdict(choice) for choice in sheet.choices],
        "changed_by_modifiers": [dataclasses.asdict(change) for change in sheet.changes],
        "tested_against": [f"golden/{name}.json" for name in sheet.golden],
        "example": sheet.example,
    }


def lines(sheet: MethodSheet) -> Iterator[str]:
    """The sheet as text, without the table of parameters."""
    yield sheet.name
    for part in sheet.parts:
        yield ""
        yield f"{part.title}: {part.paper.title} ({part.paper.reference})"
        yield from _indented(part.summary)
        yield from _indented(f"Extra cost over grpo: {part.extra_cost}.")
    for file, text in sheet.texts:
        yield ""
        yield f"{file}"
        yield from _indented(text.headline)
        for paragraph in (*text.definition.split("\n\n"), *text.differences):
            if paragraph:
                yield ""
                yield from _indented(paragraph)


def table_rows(sheet: MethodSheet) -> Iterator[tuple[str, str, str, str]]:
    """Rows of the table of choices: key, value, default, source (of a kind: what it decides, then its source).

    A choice without kinds is a set of switches: of these, only what a part of the method sets is shown.
    """
    for choice in sheet.choices:
        parameters = [item for item in choice.parameters if choice.kind is not None or item.set_by != DEFAULT]
        if choice.kind == "token_mean":
            parameters = []  # it divides by tokens, and its key is about rows
        if choice.name == "critic" and not parameters:
            continue  # most methods have none
        kind = f" = {choice.kind}" if choice.kind else "" if parameters else ": none"
        yield f"{choice.name}{kind}", "", "", "; ".join(filter(None, (choice.decides, choice.source)))
        for parameter in parameters:
            value, default = shown(parameter.value), shown(parameter.default)
            differs = default if value != default else "="
            yield f"  {parameter.key}", value, differs, parameter.source or parameter.meaning


def change_line(change: Change) -> str:
    """A key that a modifier changed, or added along with the kind that it belongs to."""
    before = f"{shown(change.before)} -> " if change.before is not None else ""
    return f"{change.key}: {before}{shown(change.after)}  (+{change.modifier})"


def short_cost(cost: str) -> str:
    """The first clause of an extra cost."""
    return re.split(r"[,;:] ", cost, maxsplit=1)[0]


def _indented(paragraph: str) -> Iterator[str]:
    """Wrapped anew, unless it holds indented lines (equations), which stay as they are."""
    if any(line.startswith("    ") for line in paragraph.splitlines()):
        yield from (f"  {line}".rstrip() for line in paragraph.splitlines())
        return
    for item in joined(paragraph).split("\n"):
        yield from textwrap.wrap(item, WIDTH, initial_indent="  ", subsequent_indent="  ")
