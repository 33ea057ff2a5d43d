"""The results of runs as data frames of pandas: runs, optimizer steps, problems and samples.

    from rlvr_cli import results
    runs = results.runs("kk-lopti*", "kk-grpo*")
    results.problems("kk-lopti*").groupby("run")["avg@4"].mean()

Each function takes names of runs, folders of runs (a sweep) or patterns of either, as `rlvr compare` does; without a
name it takes every run of ``root``. Unfinished runs are included, with their ``status``. Records are read as the
commands read them.

Raises:
    UserError: a name that stands for no run. RunError: records that were altered or cannot be read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import read_jsonl
from rlvr_cli.results.arms import keys_of, members_by_arm
from rlvr_cli.results.evaluations import read_evaluation, read_samples
from rlvr_cli.results.find import Run, find_runs
from rlvr_cli.runs.listing import check_root, run_folders, run_summary
from rlvr_cli.runs.records import read_record

if TYPE_CHECKING:
    import pandas as pd

# Of a summary of a run: its path stands as `run`; numbers of its last step and its state are columns of their own.
_NOT_COLUMNS = ("path", "damage", "last_metrics")
# Of an evaluation: what tells it from another of the same run.
_EVALUATION = ("benchmark", "split")


def runs(*names: str, root: str | Path = "runs", by: tuple[str, ...] = ()) -> pd.DataFrame:
    """One row a run: ``run`` (its path), ``arm``, status, method, task, model, seed, times, and every config key.

    Args:
        by: keys or sections whose values make an arm; none = everything that bears on what is learned but the seed.
    """
    found, faults = _found(names, root), list[str]()
    keys = keys_of("by", by, faults)
    if faults:
        raise UserError(faults)
    arms = {run.path: name for name, members in members_by_arm(found, keys).items() for run in members}
    rows = []
    for run in found:
        head = {key: value for key, value in run_summary(run.dir.path).items() if key not in _NOT_COLUMNS}
        rows.append({"run": run.path, "arm": arms[run.path], **head, **run.values})
    return _frame(rows)


def steps(*names: str, root: str | Path = "runs") -> pd.DataFrame:
    """One row an optimizer step: ``run``, step, rollout, and the columns of metrics.jsonl and timings.jsonl.

    Held-out accuracies stand in ``eval/avg@4`` and the like, in the steps after which there was an evaluation.
    """
    rows = []
    for run in _found(names, root):
        timings = {one["step"]: one for one in read_jsonl(run.dir.timings_path)}
        for step in read_record(run.dir, run.dir.metrics_path):
            rows.append({"run": run.path, **_flat(step), **_flat(timings.get(step["step"], {}))})
    return _frame(rows)


def problems(*names: str, root: str | Path = "runs", in_training: bool = False) -> pd.DataFrame:
    """One row a problem of an evaluation: ``run``, ``evaluation`` (its folder), benchmark, split, problem, subgroup and
    every metric.

    Args:
        in_training: the held-out evaluations during training, with their ``rollout``, in place of those afterwards.
    """
    rows = []
    for head, folder in _evaluations(names, root, in_training=in_training):
        evaluation = read_evaluation(folder)
        head |= {key: evaluation.result.get(key) for key in _EVALUATION}
        rows += [{**head, "problem": one.id, "subgroup": one.subgroup, **one.values} for one in evaluation.rows]
    return _frame(rows)


def samples(*names: str, root: str | Path = "runs", in_training: bool = False) -> pd.DataFrame:
    """One row a sampled response of an evaluation: ``run``, ``evaluation``, and its line of samples.jsonl.

    ``sample`` is its number, or "greedy". Args as of :func:`problems`.
    """
    rows = []
    for head, folder in _evaluations(names, root, in_training=in_training):
        if (folder / "samples.jsonl").is_file():
            rows += [{**head, **_flat(one)} for one in read_samples(folder)]
    return _frame(rows)


def _found(names: tuple[str, ...], root: str | Path) -> tuple[Run, ...]:
    faults: list[str] = []
    check_root(Path(root))
    found = find_runs(names or sorted(run_folders(Path(root))), Path(root), faults, [], unfinished=True)
    if faults:
        raise UserError(faults)
    return found


def _evaluations(
    names: tuple[str, ...], root: str | Path, *, in_training: bool
) -> Iterator[tuple[dict[str, Any], Path]]:
    """The first columns and the folder of each finished evaluation."""
    for run in _found(names, root):
        folder = run.dir.held_out_dir if in_training else run.dir.eval_dir
        for path in sorted(folder.glob("*/metrics.json")):
            head: dict[str, Any] = {"run": run.path, "evaluation": str(path.parent)}
            if in_training:
                head["rollout"] = int(path.parent.name.removeprefix("rollout-"))
            yield head, path.parent


def _flat(row: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Inner objects as columns `outer/inner`."""
    found: dict[str, Any] = {}
    for key, value in row.items():
        found |= _flat(value, f"{before}{key}/") if isinstance(value, dict) else {f"{before}{key}": value}
    return found


def _frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(rows)
