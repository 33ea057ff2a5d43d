"""Read rows of hub data sets with `datasets`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from rlvr_cli.core.errors import UserError
from rlvr_cli.tasks.files import ENDINGS, LISTED, RowOrigin, read_rows

_HUB_ID = re.compile(r"(?P<id>[A-Za-z0-9][\w.-]*/[\w.-]+)(?::(?P<config>[\w.-]+))?(?:@(?P<revision>[\w./-]+))?")
# Columns that identify duplicate rows; other columns may number the copies.
_IDENTITY_COLUMNS = ("prompt", "problem", "question", "answer", "reward_model")


@dataclass(frozen=True)
class HubTable:
    """A table of a hub data set.

    Attributes:
        split: on the hub, or a file. config: None = the default configuration.
        ids: a unique prefix of the rows' ids; "" = the data set's name.
        most: read only the first rows; None = all.
    """

    split: str
    config: str | None = None
    ids: str = ""
    most: int | None = None


def looks_like_hub_id(data: str) -> bool:
    """Return whether ``data`` has the form owner/name, owner/name:configuration or owner/name@revision."""
    return _HUB_ID.fullmatch(data) is not None and not data.endswith((*ENDINGS, ".gz"))


def parse_hub_id(data: str) -> tuple[str, str | None, str | None]:
    """Split ``data`` into hub id, configuration and revision (None if absent)."""
    match = _HUB_ID.fullmatch(data)
    assert match is not None, data
    return match["id"], match["config"], match["revision"]


def read_hub_tables(
    hub_id: str, tables: Sequence[HubTable], revision: str | None, *, repeated: bool, elsewhere: str
) -> Iterator[Iterator[tuple[Any, RowOrigin]]]:
    """Yield the rows of each table with their locations.

    Args:
        repeated: drop duplicate rows.
        elsewhere: a hint at alternatives, for the error message.
    Raises:
        UserError: a table cannot be loaded.
    """
    name = hub_id.split("/")[1]

    def read_table(table: HubTable) -> Iterator[tuple[Any, RowOrigin]]:
        label = ", ".join(filter(None, (table.config, table.split)))
        ids = table.ids or name
        with _convert_errors(hub_id, label, elsewhere):
            records = _load_records(hub_id, table, revision)
        for number, record in islice(_distinct_rows(records) if repeated else enumerate(records), table.most):
            yield record, RowOrigin(f"{hub_id} ({label}):{number}", f"{ids}-{number}", number, name)

    return map(read_table, tables)


def resolve_revision(hub_id: str, revision: str | None) -> str:
    """Resolve a revision of a hub data set (None = the newest) to its commit. Raises UserError."""
    from huggingface_hub import HfApi

    with _convert_errors(hub_id, revision or "its newest revision"):
        return str(HfApi().dataset_info(hub_id, revision=revision).sha)


@lru_cache(maxsize=8)
def list_hub_splits(hub_id: str, config: str | None, revision: str | None) -> tuple[str, ...]:
    """Return the names of a hub data set's splits. Raises UserError if they cannot be loaded."""
    from datasets import get_dataset_split_names

    with _convert_errors(hub_id, "the names of its splits"):
        return tuple(get_dataset_split_names(hub_id, config, revision=revision))


def _load_records(hub_id: str, table: HubTable, revision: str | None) -> Iterable[Any]:
    if table.split.endswith(ENDINGS):
        from huggingface_hub import hf_hub_download

        path = Path(hf_hub_download(hub_id, table.split, repo_type="dataset", revision=revision))
        return (value for value, _ in read_rows(path))
    from datasets import load_dataset

    options = {"name": table.config, "revision": revision}
    chosen = {key: value for key, value in options.items() if value is not None}
    records: Iterable[Any] = load_dataset(hub_id, split=table.split, **chosen)
    return records


def _distinct_rows(table: Any) -> Iterator[tuple[int, Any]]:
    columns = [name for name in _IDENTITY_COLUMNS if name in table.column_names]
    for number in table.select_columns(columns).to_pandas().astype(str).drop_duplicates().index:
        yield int(number), table[int(number)]


@contextmanager
def _convert_errors(hub_id: str, label: str, elsewhere: str = "") -> Iterator[None]:
    """Convert the errors of `datasets` and the hub, which share no base class, into UserError."""
    from datasets.exceptions import DatasetsError

    try:
        yield
    except (OSError, ValueError, RuntimeError, DatasetsError) as error:
        raise UserError(
            f"task.data={hub_id!r}: cannot load {label} ({type(error).__name__}: {str(error)[:300]}). Check the id, "
            f"the network and HF_HUB_OFFLINE, or use a local file ({LISTED}) or a folder of them.{elsewhere}"
        ) from error
