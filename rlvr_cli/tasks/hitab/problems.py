"""HiTab problems from the fields of a row: question, table in any accepted form, answers."""

from __future__ import annotations

import json
import math
from typing import Any

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.hashes import text_digest
from rlvr_cli.tasks.hitab.table import Layout, infer_layout, table_markdown
from rlvr_cli.tasks.problem import Problem

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
    body = table_markdown(texts, _layout(table, texts, where))
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
