"""Rows as files of every format that tasks read."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet


def write(path: Path, rows: Iterable[Any]) -> Path:
    """Write ``rows`` in the format of the ending of ``path``; a row that is text stands in a line as it is."""
    rows = list(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            writer.writerow(rows[0])
            for row in rows:
                writer.writerow(cell if isinstance(cell, str) else json.dumps(cell) for cell in row.values())
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        text = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
        path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def texts(block: str) -> list[str]:
    """Return the texts of a block, " ¦ " or the end of a line between them."""
    return [text for line in block.strip("\n").split("\n") for text in line.split(" ¦ ")]
