"""Data sets of the hub as this project knows them: which configs, splits and files they keep their rows in."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlvr_cli.core.errors import UserError
from rlvr_cli.tasks.rows import from_hub
from rlvr_cli.tasks.sets import data_sets


@dataclass(frozen=True)
class _Layout:
    """Where a hub data set has its rows.

    Attributes:
        configs: those to read, one after the other.
        train, test: the hub's split that is ours of that name; None where it has none.
        files: our split -> the parquet file that it is, in a data set whose files are no configs.
        json_file: the one JSON file, a list of rows, that the data set is, where `datasets` cannot read it.
        repeated: the rows stand there many times.
    """

    configs: tuple[str | None, ...] = (None,)
    train: str | None = None
    test: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    json_file: str | None = None
    repeated: bool = False


_LAYOUTS = {
    "openai/gsm8k": _Layout(("main",), train="train", test="test"),
    "HuggingFaceH4/MATH-500": _Layout(test="test"),
    "HuggingFaceH4/aime_2024": _Layout(test="train"),
    "math-ai/aime24": _Layout(test="test"),
    "math-ai/aime25": _Layout(test="test"),
    "opencompass/AIME2025": _Layout(("AIME2025-I", "AIME2025-II"), test="test"),
    "yentinglin/aime_2025": _Layout(test="train"),
    "BytedTsinghua-SIA/AIME-2024": _Layout(test="train", repeated=True),
    "math-ai/amc23": _Layout(test="test"),
    "math-ai/minervamath": _Layout(test="test"),
    "math-ai/olympiadbench": _Layout(test="test"),
    "Hothan/OlympiadBench": _Layout(("OE_TO_maths_en_COMP",), test="train"),
    "DigitalLearningGmbH/MATH-lighteval": _Layout(train="train", test="test"),
    "BytedTsinghua-SIA/DAPO-Math-17k": _Layout(train="train", repeated=True),
    "agentica-org/DeepScaleR-Preview-Dataset": _Layout(train="train"),
    "AI-MO/NuminaMath-CoT": _Layout(train="train", test="test"),
    "hkust-nlp/SimpleRL-Zoo-Data": _Layout(train="train", files={"train": "simplelr_qwen_level3to5/train.parquet"}),
    "Open-Reasoner-Zero/orz_math_57k_collection": _Layout(train="train", json_file="orz_math_57k_collection.json"),
}
_OTHER = _Layout(train="train", test="test")
_INSTEAD = "a local .jsonl file"
_BATCH = 1000
# What a row is, of the columns that repeated rows have; what else they hold may number the copies.

_SAME = ("prompt", "problem", "question", "answer", "reward_model")


def repeats_rows(data: str) -> bool:
    """Whether a data set, by its name or hub id, holds its rows many times."""
    hub_id = data_sets()[data].hub if data in data_sets() else data
    return _LAYOUTS.get(hub_id or "", _OTHER).repeated


def hub_records(hub_id: str, split: str) -> tuple[Iterable[tuple[int, Any]], bool]:
    """The rows of a hub data set with their numbers, and whether they are train rows that dev and train divide.

    A data set that is not in the table is read by its own default config and split names. Equal rows of a data set
    that repeats them come once, read one after the other: memory grows with the different rows only.

    Raises:
        UserError: the data set has no such split, or it cannot be loaded.
    """
    layout = _LAYOUTS.get(hub_id, _OTHER)
    theirs = layout.test if split == "test" else layout.train
    if theirs is None:
        have = "test problems" if layout.train is None else "training problems"
        raise UserError(f"task.data={hub_id!r}: this data set has {have} only, and {split} ones were asked for.")
    if layout.json_file is not None:
        return enumerate(_json_rows(hub_id, layout.json_file)), split != "test"
    tables = []
    for config in layout.configs:
        options: dict[str, Any] = {"name": config, "split": theirs}
        if layout.files:
            # Files that are named make up one split, which `datasets` calls train.
            options |= {"split": "train", "data_files": layout.files["test" if split == "test" else "train"]}
        tables.append(from_hub(hub_id, f"split {theirs}", _INSTEAD, **options))
    if layout.repeated:
        return (row for table in tables for row in _once(table)), split != "test"
    return enumerate(row for table in tables for row in table), split != "test"


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


def _json_rows(hub_id: str, name: str) -> list[Any]:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        rows = json.loads(Path(hf_hub_download(hub_id, name, repo_type="dataset")).read_text(encoding="utf-8"))
    except (OSError, ValueError, RuntimeError, HfHubHTTPError) as error:
        raise UserError(
            f"task.data={hub_id!r}: cannot load {name} ({type(error).__name__}: {error}). Check the id and the "
            f"network, or give {_INSTEAD}."
        ) from error
    if not isinstance(rows, list):
        raise UserError(f"task.data={hub_id!r}: {name} is no list of rows")
    return rows
