"""Data sets by name: which there are, and where the problems of one are (a data folder, or the hub)."""

from __future__ import annotations

from pathlib import Path

from rlvr_cli.config.data_sets import DATA_SETS, DataSet
from rlvr_cli.config.errors import UserError

__all__ = ["DATA_SETS", "DataSet", "benchmarks", "file_of", "location", "training_sets"]

_ENDINGS = ("", ".jsonl", ".jsonl.gz")


def benchmarks() -> tuple[str, ...]:
    """The names of the data sets with test problems."""
    return tuple(name for name, one in DATA_SETS.items() if "test" in one.files)


def training_sets(task: str | None = None) -> tuple[str, ...]:
    """The names of the data sets with training problems, of ``task`` or of any."""
    return tuple(n for n, one in DATA_SETS.items() if "train" in one.files and task in (None, one.task))


def file_of(name: str, split: str, folder: Path) -> Path | None:
    """The file or folder with the problems of ``split`` inside a data folder; None where there is none."""
    stem = DATA_SETS[name].files.get(split)
    places = [folder / f"{stem}{ending}" for ending in _ENDINGS] if stem is not None else []
    return next((place for place in places if place.exists()), None)


def location(name: str, split: str, folder: Path | None) -> str:
    """Where the problems of ``split`` (train or test) of a known data set are: a path inside ``folder``, or a hub id.

    Args:
        folder: a folder of data sets; None = the hub.
    Raises:
        UserError: the set has no such problems, the folder does not have them, or no hub that the project knows does.
    """
    one = DATA_SETS[name]
    if split not in one.files:
        others = training_sets(one.task) if split == "train" else benchmarks()
        raise UserError(
            f"task.data={name}: has {' and '.join(one.files)} problems only, and {split} ones are needed. Data sets of "
            f"the task {one.task} with {split} problems: {', '.join(others)}."
        )
    if folder is None:
        if one.hub is None:
            raise UserError(
                f"task.data={name}: is on no hub that the project knows. Give the folder that has "
                f"{one.files[split]}.jsonl (or .jsonl.gz) with --data-dir, task.data_dir or RLVR_DATA_DIR."
            )
        return one.hub
    found = file_of(name, split, folder)
    if found is None:
        hub = f" For {one.hub} from the hub, set task.data_dir=null." if one.hub is not None else ""
        raise UserError(
            f"{folder}: has no {one.files[split]} (a folder, .jsonl or .jsonl.gz), where {split} problems of {name} "
            f"are looked for (--data-dir, task.data_dir, RLVR_DATA_DIR).{hub}"
        )
    return str(found)
