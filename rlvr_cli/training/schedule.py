"""Orders and rates over a run: which problems a rollout sees, and the learning rate of each optimizer step."""

from __future__ import annotations

import math
import random

from rlvr_cli.config.batch import batch_arithmetic
from rlvr_cli.config.schema import Config
from rlvr_cli.core.streams import stream_seed


def problem_order(problems: int, rows: int, seed: int) -> list[int]:
    """Indices of the problems in the order of training: ``rows`` of them, a fresh permutation for each epoch.

    A longer run starts with the order of a shorter one, so both see the same problems as far as they go.
    """
    order: list[int] = []
    epoch = 0
    while len(order) < rows:
        indices = list(range(problems))
        random.Random(stream_seed(seed, "problem-order", epoch)).shuffle(indices)
        order.extend(indices)
        epoch += 1
    return order[:rows]


def learning_rate_factor(config: Config, step: int) -> float:
    """Learning rate of optimizer step ``step`` (from 0) as a share of ``optimizer.lr``.

    Linear from 0 over ``warmup_rollouts``, then constant, or falling along a line or half a cosine that reaches
    ``final_lr_ratio`` one step after the last.
    """
    optimizer, batch = config.optimizer, batch_arithmetic(config)
    warmup = optimizer.warmup_rollouts * batch.steps_per_rollout
    if step < warmup:
        return (step + 1) / warmup
    if optimizer.schedule == "constant":
        return 1.0
    progress = min(1.0, (step - warmup) / max(1, batch.steps_total - warmup))
    falling = 1.0 - progress if optimizer.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
    return optimizer.final_lr_ratio + (1.0 - optimizer.final_lr_ratio) * falling
