"""Rows of data sets of the hub, and how those that the project knows are laid out."""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from rlvr_cli.core.errors import UserError
from rlvr_cli.tasks.files import ENDINGS, LISTED, read_rows

_HUB_ID = re.compile(r"(?P<id>[A-Za-z0-9][\w.-]*/[\w.-]+)(?::(?P<config>[\w.-]+))?(?:@(?P<revision>[\w./-]+))?")
_BATCH = 1000
# What a row is, of the columns that repeated rows have; what else they hold may number the copies.
_SAME = ("prompt", "problem", "question", "answer", "reward_model")


@dataclass(frozen=True)
class HubTable:
    """One table of a hub data set.

    Attributes:
        config, split: as the hub calls them; None = its default configuration.
        ids: what the ids of its rows begin with; "" = the data set's name. Rows are numbered on in tables of equal ids.
        most: the first so many rows; None = all.
    """

    split: str
    config: str | None = None
    ids: str = ""
    most: int | None = None


@dataclass(frozen=True)
class Hub:
    """Where a hub data set has its rows.

    Attributes:
        train, test: the hub's split that is ours of that name, or the file; None where it has none.
        configs: those to read, one after the other.
        repeated: the rows stand there many times.
    """

    train: str | None = None
    test: str | None = None
    configs: tuple[str | None, ...] = (None,)
    repeated: bool = False


def looks_like_hub_id(data: str) -> bool:
    """Whether ``data`` is spelled as a hub id is: owner/name, owner/name:configuration, owner/name@revision."""
    return _HUB_ID.fullmatch(data) is not None and not data.endswith((*ENDINGS, ".gz"))


def parts_of(data: str) -> tuple[str, str | None, str | None]:
    """The hub id, the configuration and the revision that ``data`` spells; the last two are None where it has none."""
    parts = _HUB_ID.fullmatch(data)
    assert parts is not None, data
    return parts["id"], parts["config"], parts["revision"]


def hub_rows(
    hub_id: str, tables: Sequence[HubTable], revision: str | None, *, repeated: bool, elsewhere: str
) -> Iterator[Iterator[tuple[Any, tuple[str, str, int, str]]]]:
    """The rows of each table, one table after another, a row with its place, id and number, and the set's name.

    Args:
        repeated: equal rows come once. They are read one after the other: memory grows with the different rows only.
        elsewhere: where else such problems are, for the error.
    Raises:
        UserError: a table cannot be loaded.
    """
    name = hub_id.split("/")[1]
    numbers: Counter[str] = Counter()

    def of_table(table: HubTable) -> Iterator[tuple[Any, tuple[str, str, int, str]]]:
        part = ", ".join(filter(None, (table.config, table.split)))
        ids = table.ids or name
        start = numbers[ids]
        try:
            records = (
                _file(hub_id, table.split, revision)
                if table.split.endswith(ENDINGS)
                else _table(hub_id, table, revision)
            )
        except _failures() as error:
            raise _cannot_load(hub_id, part, error, elsewhere) from error
        for number, record in islice(_once(records) if repeated else enumerate(records), table.most):
            numbers[ids] = start + number + 1
            yield record, (f"{hub_id} ({part}):{number}", f"{ids}-{start + number}", start + number, name)

    return map(of_table, tables)


def revision_of(hub_id: str, revision: str | None) -> str:
    """The commit that a revision of a hub data set, or its newest, is. Raises UserError when it cannot be had."""
    from huggingface_hub import HfApi

    try:
        return str(HfApi().dataset_info(hub_id, revision=revision).sha)
    except _failures() as error:
        raise _cannot_load(hub_id, revision or "its newest revision", error, "") from error


@lru_cache(maxsize=8)
def split_names(hub_id: str, config: str | None, revision: str | None) -> tuple[str, ...]:
    """The splits of a hub data set, by its own names. Raises UserError when they cannot be had."""
    from datasets import get_dataset_split_names

    try:
        return tuple(get_dataset_split_names(hub_id, config, revision=revision))
    except _failures() as error:
        raise _cannot_load(hub_id, "the names of its splits", error, "") from error


def _failures() -> tuple[type[Exception], ...]:
    """A missing data set, a wrong layout, no network: the hub client has no common base class below these."""
    from datasets.exceptions import DatasetsError
    from huggingface_hub.errors import HfHubHTTPError

    return OSError, ValueError, RuntimeError, DatasetsError, HfHubHTTPError


def _table(hub_id: str, table: HubTable, revision: str | None) -> Any:
    from datasets import load_dataset

    options = {"name": table.config, "split": table.split, "revision": revision}
    return load_dataset(hub_id, **{key: value for key, value in options.items() if value is not None})


def _file(hub_id: str, name: str, revision: str | None) -> Iterable[Any]:
    from huggingface_hub import hf_hub_download

    path = Path(hf_hub_download(hub_id, name, repo_type="dataset", revision=revision))
    return (value for _, _, value in read_rows(path))


def _once(table: Any) -> Iterator[tuple[int, Any]]:
    """The first of each of the equal rows of a `datasets.Dataset`, with its number."""
    seen: set[bytes] = set()
    number = 0
    # Whole batches of the columns that count: row by row, 1.8 million rows take minutes.
    columns = [name for name in _SAME if name in table.column_names]
    for batch in table.select_columns(columns).iter(batch_size=_BATCH):
        for values in zip(*(batch[name] for name in columns), strict=True):
            key = hashlib.blake2b(repr(values).encode("utf-8", "surrogatepass"), digest_size=16).digest()
            if key not in seen:
                seen.add(key)
                yield number, table[number]
            number += 1


def _cannot_load(hub_id: str, part: str, error: Exception, elsewhere: str) -> UserError:
    offline = [key for key in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE") if os.environ.get(key, "0") not in ("", "0")]
    advice = "Check the id and the network"
    if offline:
        advice = f"{offline[0]} is set, so only what was loaded before can be had: unset it"
    return UserError(
        f"task.data={hub_id!r}: cannot load {part} ({type(error).__name__}: {str(error)[:300]}). {advice}, or give a "
        f"local file ({LISTED}) or a folder of them.{elsewhere}"
    )
