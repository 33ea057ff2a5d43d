"""Rollbacks of a run: what its manifest says of them, and the records of the steps that were thrown away.

Every step has one line in metrics.jsonl: those that a rollback throws away move to ``rolled_back/<number>``. A rollback
counts from the moment at which the manifest names it as under way; a process that is killed in it leaves it to the next
one to carry out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rlvr_cli.core.errors import RunError
from rlvr_cli.runs.atomic import write_text
from rlvr_cli.runs.checkpoints import remove_after
from rlvr_cli.runs.directory import RunDir
from rlvr_cli.runs.records import read_jsonl, truncate_jsonl, truncate_timings

DONE, UNDER_WAY = "rollbacks", "rollback_under_way"
# The key of metrics.jsonl with the number of the newest rollback before a step; absent where there was none.
COUNT = "rollbacks"
ROLLED_BACK = "rolled_back"
ROLLOUT_FILE = re.compile(r"\.?rollout-(\d+)\.jsonl.*")
# What `rlvr eval` calls the folder of a checkpoint: benchmark, split, step, fingerprint.
EVALUATION = re.compile(r".+-step-(\d+)-[^-]+")


@dataclass(frozen=True)
class Rollback:
    """A return of a run to an earlier step.

    Attributes:
        number: from 1. time: in UTC, ISO 8601.
        collapses: what was found, as JSON: pattern, first rollout that showed it (from 0), evidence, what moved beside.
        sound: the last rollout, from 0, from before it began.
        from_step, to_step: optimizer steps made before and kept; the steps between were thrown away.
        learning_rate_factor: of the learning rate of the configuration, from ``to_step`` on.
        samples: the random stream that rollouts begun since then have.
    """

    number: int
    time: str
    collapses: list[dict[str, Any]]
    sound: int
    from_step: int
    to_step: int
    learning_rate_factor: float
    samples: str

    def __str__(self) -> str:
        found = self.collapses[0]
        names = ", ".join(collapse["pattern"].replace("_", " ") for collapse in self.collapses)
        return (
            f"{names} after rollout {found['first'] + 1}: back from step {self.from_step} to {self.to_step}, learning "
            f"rate x {self.learning_rate_factor:g}"
        )


def rollbacks_of(run: RunDir) -> list[Rollback]:
    """The rollbacks that were carried out, in their order. Raises RunError where the manifest is damaged."""
    return [_read(run, entry) for entry in run.read_manifest().get(DONE, ())]


def _read(run: RunDir, entry: Any) -> Rollback:
    try:
        return Rollback(**entry)
    except TypeError as error:
        raise RunError(f"{run.manifest_path}: {DONE}: {error}. The file was altered.") from error


def newest_before(rollbacks: Sequence[Rollback], step: int) -> int:
    """The number of the newest rollback that was before optimizer step ``step`` (from 1) as the run has it; 0 = none.

    A step that is made once more after a resume has the number that it had.
    """
    return max((rollback.number for rollback in rollbacks if rollback.to_step < step), default=0)


def folder_of(run: RunDir, number: int) -> RunDir:
    """Where the records of the steps that rollback ``number`` threw away lie, under the names that a run has."""
    return RunDir(run.path / ROLLED_BACK / str(number))


def roll_back(run: RunDir, rollback: Rollback, steps_per_rollout: int) -> None:
    """Take ``run`` back: records move aside, later checkpoints are deleted, the manifest names the rollback."""
    run.update_manifest(**{UNDER_WAY: asdict(rollback)})
    finish_rollback(run, steps_per_rollout)


def finish_rollback(run: RunDir, steps_per_rollout: int) -> Rollback | None:
    """Carry out the rollback that is under way, or the rest of it; None where there is none."""
    manifest = run.read_manifest()
    if manifest.get(UNDER_WAY) is None:
        return None
    rollback = _read(run, manifest[UNDER_WAY])
    step, aside = rollback.to_step, folder_of(run, rollback.number)
    aside.rollouts_dir.mkdir(parents=True, exist_ok=True)
    aside.held_out_dir.mkdir(parents=True, exist_ok=True)
    for path, kept in ((run.metrics_path, aside.metrics_path), (run.timings_path, aside.timings_path)):
        # Before they are cut off: of two processes that did this after one another, the first saw all lines.
        if not kept.exists():
            later = (row for row in read_jsonl(path) if row["step"] > step)
            write_text(kept, "".join(json.dumps(row, allow_nan=False, ensure_ascii=False) + "\n" for row in later))
    truncate_jsonl(run.metrics_path, step)
    truncate_timings(run.timings_path, step)
    for path in rollouts_after(run, step, steps_per_rollout):
        path.rename(aside.rollouts_dir / path.name)
    for path in held_out_after(run, step, steps_per_rollout):
        path.rename(aside.held_out_dir / path.name)
    for path in evaluations_after(run, step):
        path.rename(aside.eval_dir / path.name)
    remove_after(run.checkpoints_dir, step)
    rows = read_jsonl(run.metrics_path)
    run.update_manifest(
        **{DONE: [*manifest.get(DONE, ()), asdict(rollback)], UNDER_WAY: None},
        step=step,
        rollout=step // steps_per_rollout,
        last_metrics=rows[-1] if rows else {},
    )
    return rollback


def rollouts_after(run: RunDir, step: int, steps_per_rollout: int) -> Iterator[Path]:
    """The files of the rollouts that had not begun at ``step``, whole or not."""
    begun = -(-step // steps_per_rollout)
    for path in sorted(run.rollouts_dir.iterdir()):
        match = ROLLOUT_FILE.fullmatch(path.name)
        if match and int(match[1]) >= begun:
            yield path


def held_out_after(run: RunDir, step: int, steps_per_rollout: int) -> Iterator[Path]:
    """The folders of the evaluations on the way that came after ``step``."""
    done = step // steps_per_rollout
    for path in sorted(run.held_out_dir.glob("rollout-*")):
        if int(path.name.removeprefix("rollout-")) > done:
            yield path


def evaluations_after(run: RunDir, step: int) -> Iterator[Path]:
    """The folders of the whole evaluations of checkpoints that came after ``step``, which are of other weights soon."""
    for path in sorted(run.eval_dir.iterdir()):
        match = EVALUATION.fullmatch(path.name)
        if match and int(match[1]) > step and (path / "metrics.json").exists():
            yield path
