"""The registries of tasks and data sets, and checks of `task.data`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import local_path
from rlvr_cli.core.section import import_modules
from rlvr_cli.core.text import did_you_mean
from rlvr_cli.tasks.base import Task
from rlvr_cli.tasks.data import locate_data, split_in_name
from rlvr_cli.tasks.hub import looks_like_hub_id
from rlvr_cli.tasks.problem import DataSet


def task_kinds() -> Mapping[str, type[Task]]:
    _define_all()
    return Task.kinds  # type: ignore[return-value]


@cache
def _define_all() -> None:
    import_modules("rlvr_cli.tasks")


def data_sets() -> Mapping[str, DataSet]:
    kinds = task_kinds().items()
    return {name: replace(data_set, task=task) for task, kind in kinds for name, data_set in kind.sets.items()}


def task_of_set(name: str) -> Task:
    """Return the task of a data set, with keys that select all rows."""
    task = data_sets()[name].task
    kind = task_kinds()[task]
    return kind.model_validate({"name": task, "data": name, **kind.all_rows_keys})


def task_to_fetch(name: str) -> Task:
    """Return the task of a public set, with keys that select all rows. Raises UserError if it is not on the hub."""
    sets = data_sets()
    on_hub = [other for other, data_set in sets.items() if data_set.hub is not None]
    if name not in sets or sets[name].generated:
        reason = "is generated (`rlvr tasks generate`)" if name in sets else "unknown data set"
        raise UserError(f"{name}: {reason}.{did_you_mean(name, on_hub)} Allowed (on the hub): {', '.join(on_hub)}.")
    if sets[name].hub is None:
        files = " and ".join(f"{file}.jsonl" for file in sets[name].files.values())
        raise UserError(f"{name}: is not on the Hugging Face hub. Put its rows at {files} inside the folder.")
    return task_of_set(name)


def has_fixed_split(data: str) -> bool:
    """Return whether ``data`` determines the split of its rows: not for a file without a split in its name."""
    path = local_path(data)
    return data in data_sets() or not path.is_file() or split_in_name(path) is not None


def set_names(task: str, split: str | None = None) -> tuple[str, ...]:
    """Return the names of the data sets of ``task``, by default of all splits (train, test)."""
    sets = task_kinds()[task].sets if task in task_kinds() else {}
    return tuple(name for name, data_set in sets.items() if split is None or split in data_set.files)


def is_generated(data: str) -> bool:
    return data in data_sets() and data_sets()[data].generated


def benchmarks() -> tuple[str, ...]:
    return tuple(name for name, data_set in data_sets().items() if "test" in data_set.files)


def generated_names() -> tuple[str, ...]:
    return tuple(name for name, data_set in data_sets().items() if data_set.generated)


def check_problems(task: Task, splits: Sequence[str]) -> None:
    """Check, without reading rows, that the data has every split. Raises UserError, also for an unused folder."""
    for component in task.components:
        _check_component(component, splits)


def _check_component(task: Task, splits: Sequence[str]) -> None:
    check_folder(task)
    if task.is_generated:
        return
    if task.data in data_sets():
        folder = local_path(task.data_dir) if task.data_dir is not None else None
        problems: list[str] = []
        for split in splits:
            try:
                locate_data(task.sets, task.data, split, folder)
            except UserError as error:
                problems += error.problems
        if problems:
            raise UserError(problems)
    elif not local_path(task.data).exists() and not looks_like_hub_id(task.data):
        raise UserError(
            f"task.data={task.data!r}: no such data set, file or folder, and not a hub id (owner/name)."
            f"{did_you_mean(task.data, data_sets())} `rlvr tasks sets` lists the names."
        )


def check_folder(task: Task) -> None:
    """Raise UserError for a task.data_dir that has no effect."""
    if task.data_dir is None or (task.data in data_sets() and not task.is_generated):
        return
    reason = "is generated" if task.is_generated else "is not one"
    names = ", ".join(set_names(task.name, "train")) or "none of this task"
    raise UserError(
        f"task.data_dir={task.data_dir!r}: is the folder of named data sets ({names}), and task.data={task.data} "
        f"{reason}. Set task.data to one, or remove task.data_dir."
    )


def needs_folder(task: Task) -> bool:
    """Return whether the training set is not on the hub and task.data_dir is not set."""
    data_set = data_sets().get(task.data)
    return data_set is not None and task.data_dir is None and data_set.hub is None and "train" in data_set.files


def problems_name(task: str, data: str) -> str:
    """Return the unique name of a source of problems in outputs, records and comparisons.

    The data set's name (also for its hub id), else the name of the file or folder with its ending, or the hub id.
    """
    if data in data_sets():
        return data
    of_hub = [name for name, data_set in data_sets().items() if (data_set.task, data_set.hub) == (task, data)]
    if of_hub and not local_path(data).exists():
        return of_hub[0]
    if looks_like_hub_id(data) and not local_path(data).exists():
        return data
    path = local_path(data)
    return f"{path.name}/" if path.is_dir() and path.name in data_sets() else path.name
