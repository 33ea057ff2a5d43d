"""A collapse that stops a run or takes it back: to which checkpoint, and what is another then (train.on_collapse)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlvr_cli.collapse.thresholds import Thresholds
from rlvr_cli.collapse.watch import Collapse
from rlvr_cli.config.batch import BatchArithmetic, batch_arithmetic
from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import JointError
from rlvr_cli.methods.sft import SFT
from rlvr_cli.runs.checkpoints import thinned, valid_checkpoints
from rlvr_cli.runs.directory import RunDir, now
from rlvr_cli.runs.rollbacks import Rollback, folder_of, newest_before, roll_back
from rlvr_cli.training.schedule import learning_rate_factor


@dataclass(frozen=True)
class Sick:
    """A collapse that was found in a run.

    Attributes:
        found: the collapses that began after the same rollout.
        sound: the last rollout, from 0, from before they began.
        step: optimizer steps made. window: rollouts over which a collapse shows before it is found.
    """

    found: tuple[Collapse, ...]
    sound: int
    step: int
    window: int

    def sound_step(self, batch: BatchArithmetic) -> int:
        """The step of the policy that sampled the last sound rollout."""
        return self.sound * batch.steps_per_rollout

    def __str__(self) -> str:
        return f"rollout {self.found[0].first + 1}: {'; '.join(map(str, self.found))}"


def checkpoint_stride(config: Config, window: int) -> int:
    """Optimizer steps from one checkpoint that can be gone back to to the next.

    They are of the regular ones alone: what else was saved, by a signal, must not make a resumed run another. And one
    in every ``window`` rollouts will do, since a collapse is found no sooner.
    """
    every = config.checkpoint.every
    return -(-window * batch_arithmetic(config).steps_per_rollout // every) * every


def checkpoints_to_go_back_to(config: Config) -> int:
    """The most checkpoints that :func:`rlvr_cli.runs.checkpoints.thinned` keeps beside the newest."""
    if config.train.on_collapse != "rollback" or isinstance(config.method, SFT):
        return 0
    window = Thresholds().rollouts(config.rollout.prompts)
    count = batch_arithmetic(config).steps_total // checkpoint_stride(config, window)
    return min(count, count.bit_length() + 1)


def stream_of_rollout(rollbacks: Sequence[Rollback], batch: BatchArithmetic) -> Callable[[int], tuple[str | int, ...]]:
    """What names the random streams of a rollout: its number, and after a rollback which one, so no noise comes again.

    With the same samples the same collapse may come again; PaLM (arXiv:2204.02311, "Training Instability") skipped the
    batches around a spike of the loss. That a lower rate from an earlier checkpoint lets a training recover: OPT
    (arXiv:2205.01068, "Training Processes").
    """

    def stream(rollout: int) -> tuple[str | int, ...]:
        number = newest_before(rollbacks, rollout * batch.steps_per_rollout + 1)
        return (rollout, "rollback", number) if number else (rollout,)

    return stream


def rate_factor(config: Config, batch: BatchArithmetic, rollbacks: Sequence[Rollback], step: int) -> float:
    """Learning rate of optimizer step ``step`` (from 0) as a share of the configuration's peak."""
    lowered = config.train.rollback_lr_factor ** newest_before(rollbacks, step + 1)
    return lowered * learning_rate_factor(
        config.optimizer, step, steps_per_rollout=batch.steps_per_rollout, steps_total=batch.steps_total
    )


def go_back(config: Config, run: RunDir, batch: BatchArithmetic, sick: Sick, rollbacks: Sequence[Rollback]) -> str:
    """Take ``run`` back to the newest checkpoint from before the collapse; returns what to tell of it.

    The start counts as one as long as there was to be no other. Raises JointError where there were as many rollbacks
    as allowed, or no checkpoint can be used.
    """
    allowed = config.train.max_rollbacks
    if len(rollbacks) >= allowed:
        raise collapsed(sick, run, batch, f"since there were train.max_rollbacks={allowed} rollbacks before")
    number, step = len(rollbacks) + 1, _step_before(config, run, batch, sick, rollbacks)
    factor = config.train.rollback_lr_factor**number
    rollback = Rollback(
        number=number,
        time=now(),
        collapses=[collapse.as_json() for collapse in sick.found],
        sound=sick.sound,
        from_step=sick.step,
        to_step=step,
        learning_rate_factor=factor,
        samples=f"rollback {number}",
    )
    roll_back(run, rollback, batch.steps_per_rollout)
    return (
        f"{sick}. Rollback {number} of at most {allowed}: it was sound until rollout {sick.sound + 1}; back from step "
        f"{sick.step} to {f'step {step}' if step else 'the start'}, and on with {factor:g} of the learning rate and "
        f"other samples. What is thrown away is recorded in {folder_of(run, number).path}"
    )


def _step_before(config: Config, run: RunDir, batch: BatchArithmetic, sick: Sick, rollbacks: Sequence[Rollback]) -> int:
    """The step of the newest checkpoint to go back to, 0 for the start. Raises JointError where there is none.

    Only of those that are kept for it: which others checkpoint.keep has kept depends on the signals that came.
    """
    stride, bound = checkpoint_stride(config, sick.window), sick.sound_step(batch)
    if bound < stride:
        return 0

    def kept(step: int) -> bool:
        before = (earlier.from_step for earlier in rollbacks if step <= earlier.to_step)
        return all(step in thinned(at, stride) for at in (*before, sick.step))

    steps = [entry.step for entry in valid_checkpoints(run.checkpoints_dir)]
    usable = [step for step in steps if step <= bound and kept(step)]
    if not usable:
        raise collapsed(
            sick, run, batch, f"since none of the checkpoints up to step {bound} is there and whole to go back to"
        )
    return max(usable)


def collapsed(sick: Sick, run: RunDir, batch: BatchArithmetic, why: str) -> JointError:
    """The end of a run by a collapse: what was found, why it stops, and how to go on."""
    before = f"from before it began (in rollout {sick.sound + 2})"
    sound = [entry for entry in valid_checkpoints(run.checkpoints_dir) if entry.step <= sick.sound_step(batch)]
    again = f"rlvr train -c {run.config_path} run.name=NEW"
    if sound:
        advice = (
            f"The newest checkpoint {before} is {sound[0].path}; to go on from it with other settings: {again} "
            f"model.name={sound[0].path} optimizer.lr=..."
        )
    else:
        advice = (
            f"No checkpoint {before} was kept (checkpoint.every, checkpoint.keep); to start again with other settings: "
            f"{again} optimizer.lr=..."
        )
    return JointError(
        f"{sick}. Stopped, {why}. {advice} With train.on_collapse=warn it is only said; `rlvr train --resume` would "
        "stop here again."
    )


def rollback_cautions(config: Config) -> list[str]:
    """A sentence where a rollback could do nothing but begin the run again."""
    if config.train.on_collapse != "rollback" or isinstance(config.method, SFT):
        return []
    window = Thresholds().rollouts(config.rollout.prompts)
    updates, rollouts = batch_arithmetic(config).steps_per_rollout, config.train.rollouts
    stride = checkpoint_stride(config, window)
    if stride + window * updates <= rollouts * updates:
        return []
    more = f"checkpoint.every={window * updates} gives it more"
    advice = more if 2 * window <= rollouts else "the run is too short for more"
    return [
        f"train.on_collapse=rollback: with checkpoint.every={config.checkpoint.every} and train.rollouts={rollouts}, "
        f"no checkpoint comes early enough to be from before a collapse, so a rollback begins at the start; {advice}."
    ]
