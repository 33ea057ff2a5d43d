"""The arithmetic of batches and optimizer steps."""

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
        completions: of one rollout batch, prompts x group_size.
        step_batch: completions per optimizer step.
        processes: number of ranks: step_batch = micro_batch x micro_batches x processes.
        share: completions of an optimizer step per process.
        micro_batch: completions of maximum length per forward pass.
        micro_batches: forward passes per optimizer step and process if all completions have the maximum length;
            their number varies with the lengths.
        passes: of the method over the rollout batch in one epoch (2 in Lopti).
        steps_per_rollout: optimizer steps per rollout batch, over all passes and epochs.
        steps_total: optimizer steps of the training.
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
        """Compute the sizes from valid sections; ``rollouts``: the training budget."""
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
    return next(size for size in range(min(number, limit), 0, -1) if number % size == 0)


def nearest_divisors(number: int, wanted: int) -> list[int]:
    small = [size for size in range(1, int(number**0.5) + 1) if number % size == 0]
    divisors = sorted({*small, *(number // size for size in small)})
    return [size for size in divisors if size <= wanted][-1:] + [size for size in divisors if size > wanted][:1]


def nearest_multiples(step: int, wanted: int) -> list[int]:
    below = wanted // step * step
    return [value for value in (below, below + step) if value > 0]
