"""Data sets by name: which there are, where the problems of one are, and whether a training has any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import local_path
from rlvr_cli.core.section import define_all
from rlvr_cli.core.text import did_you_mean
from rlvr_cli.tasks.base import Task
from rlvr_cli.tasks.data import data_location, split_mark
from rlvr_cli.tasks.hub import looks_like_hub_id
from rlvr_cli.tasks.problem import DataSet


def set_to_fetch(name: str) -> Task:
    """The task of the public set ``name``, with every row of it. Raises UserError where the hub has none."""
    sets = data_sets()
    on_hub = [one for one, found in sets.items() if found.hub is not None]
    if name not in sets:
        raise UserError(
            f"{name}: no data set of that name.{did_you_mean(name, on_hub)} Those of the hub: {', '.join(on_hub)}."
        )
    one = sets[name]
    if one.generated:
        raise UserError(
            f"{name}: is generated, so there is nothing to fetch. `rlvr tasks generate {one.task} -o FILE` writes such "
            "problems to a file."
        )
    if one.hub is None:
        places = " and ".join(f"{place}.jsonl" for place in one.files.values())
        raise UserError(
            f"{name}: is not on the Hugging Face hub. Put its rows at {places} inside the folder (docs/data.md)."
        )
    kind = task_kinds()[one.task]
    return kind.model_validate({"name": one.task, "data": name, **kind.whole})


def task_kinds() -> Mapping[str, type[Task]]:
    """Every task by its name."""
    _define_all()
    return Task.kinds  # type: ignore[return-value]


@cache
def _define_all() -> None:
    define_all("rlvr_cli.tasks")


def data_sets() -> Mapping[str, DataSet]:
    """Every data set by its name."""
    return _by_name(tuple(task_kinds().items()))


@lru_cache(maxsize=4)
def _by_name(kinds: tuple[tuple[str, type[Task]], ...]) -> dict[str, DataSet]:
    return {name: replace(one, task=task) for task, kind in kinds for name, one in kind.sets.items()}


def has_split_mark(data: str) -> bool:
    """Whether the split of ``data`` is settled by its layout: a named set, a folder, a hub id, or a file's name."""
    path = local_path(data)
    return data in data_sets() or not path.is_file() or split_mark(path) is not None


def sets_of(task: str, split: str | None = None) -> tuple[str, ...]:
    """The names of the data sets of ``task``, those with problems of ``split`` (train, test) where one is given."""
    found = {name: one for name, one in data_sets().items() if one.task == task}
    return tuple(name for name, one in found.items() if split is None or split in one.files)


def generated_name(task: str) -> str:
    """The name of the problems that are generated for ``task``."""
    return f"{task}-gen"


def is_generated(data: str) -> bool:
    """Whether ``data`` (`task.data`) names problems that are generated."""
    return data in data_sets() and data_sets()[data].generated


def benchmarks() -> tuple[str, ...]:
    """The names of the data sets with test problems."""
    return tuple(name for name, one in data_sets().items() if "test" in one.files)


def generated_names() -> tuple[str, ...]:
    """The names of the problems that are generated."""
    return tuple(name for name, one in data_sets().items() if one.generated)


def check_problems(task: Task, splits: Sequence[str]) -> None:
    """Refuse data without problems of each of ``splits``, as far as that shows without reading any.

    Raises:
        UserError: a data set that has none, or that is not where it is looked for; data that is nowhere; a folder that
            nothing is looked for in.
    """
    if task.is_generated:
        check_folder(task)
    elif task.data in data_sets():
        folder = local_path(task.data_dir) if task.data_dir is not None else None
        problems: list[str] = []
        for split in splits:
            try:
                data_location(task.sets, task.data, split, folder)
            except UserError as error:
                problems += error.problems
        if problems:
            raise UserError(problems)
    elif task.data_dir is not None:
        check_folder(task)
    elif not local_path(task.data).exists() and not looks_like_hub_id(task.data):
        raise UserError(
            f"task.data={task.data!r}: no data set of that name, no such file or folder, and not a hub id (owner/name)."
            f"{did_you_mean(task.data, data_sets())} `rlvr tasks sets` lists the names."
        )


def check_folder(task: Task) -> None:
    """Refuse a folder that nothing is looked for in. Raises UserError."""
    if task.data_dir is None or (task.data in data_sets() and not task.is_generated):
        return
    generated = f"the problems are generated ({task.data})"
    what = generated if task.is_generated else f"task.data={task.data} is no such name"
    raise UserError(
        f"task.data_dir={task.data_dir!r}: is where data sets are looked for by their names, and {what}. Set "
        f"task.data to one of {', '.join(sets_of(task.name, 'train'))}, or leave the folder out."
    )


def waits_for_a_folder(task: Task) -> bool:
    """Whether the training problems are a data set that is not on the hub, and no folder was named yet."""
    one = data_sets().get(task.data)
    return one is not None and task.data_dir is None and one.hub is None and "train" in one.files


def problems_name(task: str, data: str) -> str:
    """What problems are called wherever they are printed, stored and compared: never the name of other problems.

    A data set's own name (that of its hub id too); else the name of the file or folder with its ending, or the hub id.

    Args:
        task: the task's name. data: `task.data`.
    """
    if data in data_sets():
        return data
    of_hub = [name for name, one in data_sets().items() if (one.task, one.hub) == (task, data)]
    if of_hub and not local_path(data).exists():
        return of_hub[0]
    if looks_like_hub_id(data) and not local_path(data).exists():
        return data
    path = local_path(data)
    return f"{path.name}/" if path.is_dir() and path.name in data_sets() else path.name
