"""Read rows of data files with their locations: JSON lines, a JSON list, CSV and parquet.

JSON and CSV need no library, and parquet is read without the cache copy of `datasets`.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import math
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from rlvr_cli.core.errors import FURTHER, UserError

ENDINGS = (".jsonl", ".jsonl.gz", ".json", ".csv", ".parquet")
LISTED = ".jsonl, .jsonl.gz, .json, .csv or .parquet"
_SHOWN = 10
# A cell may hold a whole table; the limit of Python's reader is 128 KiB.
_LONGEST_CELL = 2**31 - 1


class BadRow(ValueError):
    """An invalid row. Messages are prefixed by its location."""


@dataclass(frozen=True)
class RowOrigin:
    """The location of a row.

    Attributes:
        where: for errors: `file:line`, `file, row 3`, or the hub data set and the row's number.
        id: the default id of its problem.
        number: of the line or row, from 1.
        source: the file's name without its ending, or the hub data set's name.
        path: the file; None on the hub.
    """

    where: str
    id: str
    number: int
    source: str
    path: Path | None = None


def is_data_file(path: Path) -> bool:
    return path.name.endswith(ENDINGS)


def is_jsonl(path: Path) -> bool:
    return path.name.endswith((".jsonl", ".jsonl.gz"))


def read_rows(path: Path) -> Iterator[tuple[Any, RowOrigin]]:
    """Yield each row of a data file, or a BadRow, with its location.

    Rows of JSON lists and parquet are counted from 1. The cells of a CSV file are text. Raises UserError for an
    unreadable file and for duplicate column names.
    """
    ending = next(ending for ending in ENDINGS if path.name.endswith(ending))
    rows: Iterator[tuple[int, Any]]
    if is_jsonl(path):
        rows = ((number, _parse_line(line)) for number, line in read_lines(path))
    elif ending == ".csv":
        rows = _read_csv(path)
    else:
        rows = enumerate(_read_json(path) if ending == ".json" else _read_parquet(path), start=1)
    prefix = f"{path}, row " if ending in (".json", ".parquet") else f"{path}:"
    for number, value in rows:
        identity = f"{path.name}:{number}"
        yield value, RowOrigin(f"{prefix}{number}", identity, number, path.name.removesuffix(ending), path)


def count_rows(path: Path) -> int:
    return sum(1 for _ in (read_lines(path) if is_jsonl(path) else read_rows(path)))


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield number and bytes of each non-blank line of JSONL, without byte order mark. Raises UserError."""
    try:
        with gzip.open(path, "rb") if path.name.endswith(".gz") else path.open("rb") as stream:
            for number, line in enumerate(stream, start=1):
                if number == 1:
                    line = line.removeprefix(codecs.BOM_UTF8)
                if line.strip():
                    yield number, line
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read ({error}). It must be JSON lines in UTF-8.") from error


def parse_json(line: bytes) -> Any:
    """Parse a line as JSON. Raises BadRow, also for NaN, a number beyond float (1e400), or deep nesting."""
    text = _decode(line)
    try:
        return json.loads(text, parse_constant=_refuse_constant, parse_float=_parse_finite)
    except (ValueError, RecursionError) as error:
        raise BadRow(f"not a JSON object ({type(error).__name__}: {str(error)[:80]})") from error


def find_text_error(value: Any) -> str | None:
    """Return why a JSON value cannot be written as UTF-8 (half a surrogate pair, as "\\ud800"), or None."""
    try:
        json.dumps(value, ensure_ascii=False, default=str).encode("utf-8")
    except UnicodeEncodeError as error:
        half = f"\\u{ord(error.object[error.start]):04x}"
        return f"{half} is half of a surrogate pair, which is not valid text; remove it, or write the whole character"
    except RecursionError:
        return "lists or objects nested too deeply"
    return None


def raise_row_errors(problems: Sequence[str]) -> None:
    """Raise UserError with the first ``problems`` and the number of further ones; return without any."""
    further = len(problems) - _SHOWN
    if problems:
        raise UserError([*problems[:_SHOWN], *([f"{FURTHER}{further} more rows like these"] if further > 0 else [])])


def _parse_line(line: bytes) -> Any:
    try:
        return parse_json(line)
    except BadRow as error:
        return error


def _decode(line: bytes) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRow(f"not UTF-8 (byte {error.start + 1} of the line, 0x{error.object[error.start]:02x})") from error


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _parse_finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is larger than any float")
    return value


def _read_json(path: Path) -> list[Any]:
    try:
        value = parse_json(path.read_bytes().removeprefix(codecs.BOM_UTF8))
    except (OSError, BadRow) as error:
        raise UserError(f"{path}: cannot be read ({error}). A .json file is one list of rows in UTF-8.") from error
    if not isinstance(value, list):
        raise UserError(f"{path}: must be a list of rows. Put the rows in [ ], or write one per line in a .jsonl file.")
    return value


def _read_csv(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield each row with its first line; blank lines are skipped."""
    csv.field_size_limit(_LONGEST_CELL)
    begins = 1
    try:
        lines = io.BytesIO(path.read_bytes().removeprefix(codecs.BOM_UTF8))
        reader = csv.reader(map(_decode, lines), strict=True)
        names = next(reader, None)
        if names is None:
            raise UserError(f"{path}: is empty. The first line of a .csv file must name its columns.")
        _check_columns(path, names)
        begins = reader.line_num + 1
        for cells in reader:
            if len(cells) == len(names):
                yield begins, dict(zip(names, cells, strict=True))
            elif cells:
                message = f"{len(cells)} cells in {len(names)} columns; quote cells that contain a comma"
                yield begins, BadRow(message)
            begins = reader.line_num + 1
    except BadRow as error:
        raise UserError(f"{path}:{reader.line_num + 1}: {error}") from error
    except (OSError, csv.Error) as error:
        raise UserError(f"{path}:{begins}: cannot be read as CSV ({error}).") from error


def _read_parquet(path: Path) -> Iterator[Any]:
    parquet = import_module("pyarrow.parquet")
    try:
        with parquet.ParquetFile(path) as file:
            _check_columns(path, file.schema_arrow.names)
            for batch in file.iter_batches():
                yield from batch.to_pylist()
    except (OSError, ValueError, RuntimeError) as error:  # pyarrow's errors are these
        raise UserError(f"{path}: cannot be read as parquet ({str(error)[:200]}).") from error


def _check_columns(path: Path, names: Sequence[str]) -> None:
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise UserError(f"{path}: duplicate column names {', '.join(map(repr, twice))}. Rename them.")
