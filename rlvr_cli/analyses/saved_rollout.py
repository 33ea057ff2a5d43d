"""Find a rollout of a run and the policies around it: which file, which checkpoints. Imports no torch."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr_cli.config.load import load_config
from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.streams import stream_seed
from rlvr_cli.runs.checkpoints import Checkpoint, check_whole, valid_checkpoints
from rlvr_cli.runs.folder import RunDir, find_run
from rlvr_cli.runs.records import read_record

NONE_SAVED = "no rollout was saved, so there is nothing to look at (a run of sft samples none)."


@dataclass(frozen=True)
class Policy:
    """Weights of a run: after optimizer step ``step``, loaded from ``model`` (a checkpoint's folder, or the base)."""

    step: int
    model: str

    @property
    def label(self) -> str:
        return f"step {self.step}" if self.step else "the model before training"


@dataclass(frozen=True)
class SavedRollout:
    """One rollout of a run, and the policies to score it with.

    Attributes:
        number: of the rollout, from 0.
        rows: its records, in the order of sampling.
        old: the newest kept policy from before the first update on this rollout.
        current: the policy to compare at.
        sampled_after: optimizer steps made before this rollout was sampled.
    """

    run: RunDir
    config: Config
    number: int
    rows: tuple[dict[str, Any], ...]
    old: Policy
    current: Policy
    sampled_after: int

    @property
    def base(self) -> Policy:
        """The model before training."""
        return Policy(0, self.config.model.name)

    @property
    def old_is_exact(self) -> bool:
        """Whether ``old`` is the very policy that sampled the rollout."""
        return self.old.step == self.sampled_after


def find_saved_rollout(
    name: str, runs_root: Path, *, rollout: int | None = None, step: int | None = None
) -> SavedRollout:
    """The rollout ``rollout`` of the run ``name``, to be scored before its updates and after step ``step``.

    Defaults: the newest checkpoint, and the newest rollout that was sampled by a checkpoint before it (or by the model
    before training).

    Raises:
        UserError: no such run, rollout or checkpoint, a file without token ids, a step before the rollout's updates,
            or one of the two checkpoints is damaged.
    """
    run = find_run(name, runs_root)
    config = load_config([run.config_path], from_start=True)
    steps = config.batch.steps_per_rollout
    checkpoints = valid_checkpoints(run.checkpoints_dir)
    if not checkpoints:
        raise UserError(f"{run.path}: this run has no checkpoint, so there is no policy to analyze.")
    current = next((of for of in checkpoints if step in (None, of.step)), None)
    if current is None:
        kept = ", ".join(str(checkpoint.step) for checkpoint in reversed(checkpoints))
        raise UserError(f"{run.path}: there is no checkpoint of step {step} that can be used. There are: {kept}.")
    number = _rollout_number(run, checkpoints, current, steps) if rollout is None else rollout
    sampled_after = number * steps
    before = [checkpoint for checkpoint in checkpoints if checkpoint.step <= sampled_after]
    old = Policy(before[0].step, str(before[0].path)) if before else Policy(0, config.model.name)
    if current.step < sampled_after or (current.step == sampled_after and current.step != old.step):
        raise UserError(
            f"{run.path}: step {current.step} is from before the updates on rollout {number} (steps "
            f"{sampled_after + 1} to {sampled_after + steps}). Choose a later --step or an earlier --rollout."
        )
    for checkpoint in {current, *before[:1]}:
        check_whole(checkpoint.path)
    rows = read_groups(run, number, config.rollout.group_size)
    policy = Policy(current.step, str(current.path))
    return SavedRollout(run, config, number, tuple(rows), old, policy, sampled_after)


def read_rollout(run: RunDir, number: int) -> list[dict[str, Any]]:
    """The records of a rollout. Raises UserError when there is no such file, or it has no token ids."""
    file = _file(run, number)
    if not file.exists():
        kept = saved_numbers(run)
        which = f"Saved: {kept[0]} to {kept[-1]}." if kept else "None was saved."
        raise UserError(f"{run.path}: there is no rollout {number} ({file.name}). {which}")
    rows = read_record(run, file)
    if not rows or any("token_ids" not in row for row in rows):
        raise UserError(
            f"{file}: holds no token ids (`token_ids`); it was written by a version that did not keep them, and text "
            "cannot be turned back into the tokens that were sampled. Train again to look at its rollouts."
        )
    return rows


def read_groups(run: RunDir, number: int, group_size: int) -> list[dict[str, Any]]:
    """The records of a rollout in whole groups. Raises UserError as `read_rollout`, and where one is not whole."""
    rows = read_rollout(run, number)
    if len(rows) % group_size:
        raise UserError(
            f"{_file(run, number)}: {len(rows)} completions do not form groups of {group_size} "
            "(rollout.group_size); the file was altered."
        )
    return rows


def last_rollouts(run: RunDir, last: int | None, most: int) -> list[int]:
    """The numbers of the ``most`` newest saved rollouts up to ``last``; None for the newest of all.

    Raises:
        UserError: none was saved, or not ``last``.
    """
    saved = saved_numbers(run)
    if not saved:
        raise UserError(f"{run.path}: {NONE_SAVED}")
    if last is not None and last not in saved:
        raise UserError(f"{run.path}: there is no rollout {last}. Saved: {saved[0]} to {saved[-1]}.")
    return [number for number in saved if last is None or number <= last][-most:]


def _rollout_number(run: RunDir, checkpoints: list[Checkpoint], current: Checkpoint, steps: int) -> int:
    """The newest saved rollout that a kept policy from before ``current`` has sampled."""
    sampled_by = {0, *(checkpoint.step for checkpoint in checkpoints)}
    if not saved_numbers(run):
        raise UserError(f"{run.path}: {NONE_SAVED}")
    saved = [number for number in saved_numbers(run) if number * steps in sampled_by and number * steps < current.step]
    if not saved:
        raise UserError(
            f"{run.path}: no saved rollout was sampled by a kept checkpoint before step {current.step}. Name one with "
            "--rollout; checkpoint.keep says how many checkpoints a run keeps."
        )
    return saved[-1]


def saved_numbers(run: RunDir) -> list[int]:
    """The numbers of the rollouts that were saved, in their order."""
    numbers = (file.stem.removeprefix("rollout-") for file in run.rollouts_dir.glob("rollout-*.jsonl"))
    return sorted(int(number) for number in numbers if number.isdigit())


def _file(run: RunDir, number: int) -> Path:
    return run.rollouts_dir / f"rollout-{number:06d}.jsonl"


def drawn_rows(saved: SavedRollout, most: int) -> list[int]:
    """Indices of ``most`` rows in rising order, or of all where there are no more; the same ones at every call."""
    count = len(saved.rows)
    if count <= most:
        return list(range(count))
    stream = random.Random(stream_seed(saved.config.run.seed, "analysis-rows", saved.number))
    return sorted(stream.sample(range(count), most))
