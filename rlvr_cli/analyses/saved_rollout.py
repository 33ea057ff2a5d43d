"""Find a rollout of a run and the checkpoints before and after it. Imports no torch."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr_cli.config.load import load_config
from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.streams import stream_seed
from rlvr_cli.runs.checkpoints import Checkpoint, check_intact, valid_checkpoints
from rlvr_cli.runs.folder import RunDir, find_run
from rlvr_cli.runs.records import read_record

NONE_SAVED = "no rollout was saved (sft samples none)."


@dataclass(frozen=True)
class Policy:
    """Weights after optimizer step ``step``, loaded from ``model``: a checkpoint's folder, or the base model."""

    step: int
    model: str

    @property
    def label(self) -> str:
        return f"step {self.step}" if self.step else "the model before training"


@dataclass(frozen=True)
class SavedRollout:
    """A rollout of a run, and the policies to score it with.

    Attributes:
        number: of the rollout, from 0.
        rows: its records, in the order of sampling.
        old: the newest saved policy before the first update on this rollout.
        current: the policy to compare with.
        sampled_after: optimizer steps before this rollout was sampled.
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
        return Policy(0, self.config.model.name)

    @property
    def old_is_exact(self) -> bool:
        return self.old.step == self.sampled_after


def find_saved_rollout(
    name: str, runs_root: Path, *, rollout: int | None = None, step: int | None = None
) -> SavedRollout:
    """Find a rollout of the run ``name``, the policy before its updates, and that of ``step``.

    Defaults: the newest checkpoint, and the newest rollout sampled by an earlier checkpoint or the base model.

    Raises:
        UserError: no such run, rollout or checkpoint, a file without token ids, a step before the rollout's updates,
            or a damaged checkpoint.
    """
    run = find_run(name, runs_root)
    config = load_config([run.config_path], from_start=True)
    steps = config.batch.steps_per_rollout
    checkpoints = valid_checkpoints(run.checkpoints_dir)
    if not checkpoints:
        raise UserError(f"{run.path}: no checkpoint, so there is no policy to analyze.")
    current = next((checkpoint for checkpoint in checkpoints if step in (None, checkpoint.step)), None)
    if current is None:
        available = ", ".join(str(checkpoint.step) for checkpoint in reversed(checkpoints))
        raise UserError(f"{run.path}: no usable checkpoint of step {step}. Allowed: {available}.")
    number = _newest_rollout(run, checkpoints, current, steps) if rollout is None else rollout
    sampled_after = number * steps
    before = [checkpoint for checkpoint in checkpoints if checkpoint.step <= sampled_after]
    old = Policy(before[0].step, str(before[0].path)) if before else Policy(0, config.model.name)
    if current.step < sampled_after or (current.step == sampled_after and current.step != old.step):
        raise UserError(
            f"{run.path}: step {current.step} precedes the updates on rollout {number} (steps {sampled_after + 1} to "
            f"{sampled_after + steps}). Use a later --step or an earlier --rollout."
        )
    for checkpoint in {current, *before[:1]}:
        check_intact(checkpoint.path)
    rows = read_groups(run, number, config.rollout.group_size)
    policy = Policy(current.step, str(current.path))
    return SavedRollout(run, config, number, tuple(rows), old, policy, sampled_after)


def read_rollout(run: RunDir, number: int) -> list[dict[str, Any]]:
    """Return the records of a rollout. Raises UserError for a missing file or one without token ids."""
    file = _rollout_path(run, number)
    if not file.exists():
        numbers = list_rollouts(run)
        available = f"Saved: {numbers[0]} to {numbers[-1]}." if numbers else "None was saved."
        raise UserError(f"{run.path}: no rollout {number} ({file.name}). {available}")
    rows = read_record(run, file)
    if not rows or any("token_ids" not in row for row in rows):
        raise UserError(
            f"{file}: no `token_ids`, which cannot be recovered from text. Train again to analyze its rollouts."
        )
    return rows


def read_groups(run: RunDir, number: int, group_size: int) -> list[dict[str, Any]]:
    """Return the records of a rollout in whole groups. Raises UserError as `read_rollout`, and for partial groups."""
    rows = read_rollout(run, number)
    if len(rows) % group_size:
        raise UserError(
            f"{_rollout_path(run, number)}: {len(rows)} completions do not form groups of {group_size} "
            "(rollout.group_size); the file was altered."
        )
    return rows


def newest_rollouts(run: RunDir, last: int | None, most: int) -> list[int]:
    """Return the ``most`` newest saved rollouts up to ``last`` (None: the newest). Raises UserError without any."""
    saved = list_rollouts(run)
    if not saved:
        raise UserError(f"{run.path}: {NONE_SAVED}")
    if last is not None and last not in saved:
        raise UserError(f"{run.path}: no rollout {last}. Saved: {saved[0]} to {saved[-1]}.")
    return [number for number in saved if last is None or number <= last][-most:]


def _newest_rollout(run: RunDir, checkpoints: list[Checkpoint], current: Checkpoint, steps: int) -> int:
    policies = {0, *(checkpoint.step for checkpoint in checkpoints)}
    if not list_rollouts(run):
        raise UserError(f"{run.path}: {NONE_SAVED}")
    usable = [number for number in list_rollouts(run) if number * steps in policies and number * steps < current.step]
    if not usable:
        raise UserError(
            f"{run.path}: no saved rollout was sampled by a checkpoint kept from before step {current.step}. Use "
            "--rollout, or train with a larger checkpoint.keep."
        )
    return usable[-1]


def list_rollouts(run: RunDir) -> list[int]:
    numbers = (file.stem.removeprefix("rollout-") for file in run.rollouts_dir.glob("rollout-*.jsonl"))
    return sorted(int(number) for number in numbers if number.isdigit())


def _rollout_path(run: RunDir, number: int) -> Path:
    return run.rollouts_dir / f"rollout-{number:06d}.jsonl"


def draw_rows(saved: SavedRollout, most: int) -> list[int]:
    """Sample at most ``most`` row indices, ascending; deterministic per rollout."""
    count = len(saved.rows)
    if count <= most:
        return list(range(count))
    stream = random.Random(stream_seed(saved.config.run.seed, "analysis-rows", saved.number))
    return sorted(stream.sample(range(count), most))
