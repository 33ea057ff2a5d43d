"""The arithmetic of batches and steps: how a rollout is split into optimizer steps."""

from __future__ import annotations

from dataclasses import dataclass

from rlvr_cli.config.launch import LaunchConfig
from rlvr_cli.config.rollout import RolloutConfig
from rlvr_cli.config.update import UpdateConfig

LARGEST_AUTO_MICRO_BATCH = 16


@dataclass(frozen=True)
class BatchArithmetic:
    """Sizes that follow from a configuration.

    Attributes:
        completions: completions of one rollout batch, prompts x group_size.
        step_batch: completions of one optimizer step.
        processes: how many share each optimizer step: step_batch = micro_batch x micro_batches x processes.
        share: completions of an optimizer step in each process.
        micro_batch: completions of one forward pass, if all are as long as the longest.
        micro_batches: forward passes of one optimizer step in each process if all completions are as long as the
            longest; where lengths differ there may be fewer or more.
        passes: passes over the rollout batch that the method makes of one epoch (2 in Lopti).
        steps_per_rollout: optimizer steps made from one rollout batch, over all passes and epochs.
        steps_total: optimizer steps of the whole training.
    """

    completions: int
    step_batch: int
    processes: int
    share: int
    micro_batch: int
    micro_batches: int
    passes: int
    steps_per_rollout: int
    steps_total: int

    @classmethod
    def of(
        cls, rollout: RolloutConfig, update: UpdateConfig, launch: LaunchConfig, *, passes: int, rollouts: int
    ) -> BatchArithmetic:
        """Compute them from sections whose sizes divide; ``rollouts`` is the training budget."""
        completions = rollout.prompts * rollout.group_size
        step_batch = completions // update.mini_batches
        share = step_batch // launch.processes
        micro_batch = update.micro_batch or largest_divisor(share, LARGEST_AUTO_MICRO_BATCH)
        steps_per_rollout = update.mini_batches * update.epochs * passes
        return cls(
            completions=completions,
            step_batch=step_batch,
            processes=launch.processes,
            share=share,
            micro_batch=micro_batch,
            micro_batches=share // micro_batch,
            passes=passes,
            steps_per_rollout=steps_per_rollout,
            steps_total=rollouts * steps_per_rollout,
        )


def largest_divisor(number: int, limit: int) -> int:
    """The largest divisor of `number` that is at most `limit`."""
    return next(size for size in range(min(number, limit), 0, -1) if number % size == 0)


def nearest_divisors(number: int, wanted: int) -> list[int]:
    """Return the divisors of `number` next to `wanted`, at most one on each side."""
    small = [size for size in range(1, int(number**0.5) + 1) if number % size == 0]
    divisors = sorted({*small, *(number // size for size in small)})
    below = [size for size in divisors if size <= wanted][-1:]
    above = [size for size in divisors if size > wanted][:1]
    return below + above


def nearest_multiples(step: int, wanted: int) -> list[int]:
    """Return the positive multiples of `step` next to `wanted`, at most one on each side."""
    below = wanted // step * step
    return [value for value in (below, below + step) if value > 0]
