"""What a sweep costs before it is run, and which of its trials have the same gradient."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from rlvr_cli.config.batch import batch_arithmetic
from rlvr_cli.config.schema import Config
from rlvr_cli.methods.equivalence import SameGradient, same_gradients
from rlvr_cli.sweeps.expand import Trial
from rlvr_cli.sweeps.folder import Entry
from rlvr_cli.sweeps.identity import deciding


@dataclass(frozen=True)
class Cost:
    """Rollouts, sampled completions and optimizer steps; of a trial, or of several together."""

    rollouts: int = 0
    completions: int = 0
    steps: int = 0

    @staticmethod
    def of_entry(entry: Entry) -> Cost:
        """What a trial of the plan takes."""
        return Cost(entry.rollouts, entry.completions, entry.steps)

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.rollouts + other.rollouts, self.completions + other.completions, self.steps + other.steps)


def cost_of(config: Config) -> Cost:
    """What a training with ``config`` takes."""
    batch = batch_arithmetic(config)
    return Cost(config.train.rollouts, batch.completions * config.train.rollouts, batch.steps_total)


def total(costs: Sequence[Cost]) -> Cost:
    """All of them together."""
    return sum(costs, Cost())


def same_arms(trials: Sequence[Trial]) -> list[SameGradient]:
    """The groups of trials that differ in their method alone and have one gradient, by the names of the trials."""
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        rest = {key: value for key, value in deciding(trial.config) if not key.startswith("method.")}
        groups.setdefault(json.dumps(rest, sort_keys=True), []).append(trial)
    found = []
    for group in groups.values():
        update = group[0].config.update
        methods = {trial.name: trial.config.method for trial in group}
        found += same_gradients(methods, update.mini_batches * update.epochs)
    return found


def sentences(groups: Sequence[SameGradient]) -> list[str]:
    """A sentence on each group; of those that recur with every seed, the first alone, and how many are like it."""
    seen: dict[str, list[str]] = {}
    for group in groups:
        seen.setdefault(f"{group.when} {len(group.names)}", []).append(group.sentence())
    return [f"{said[0]}{_and_more(len(said) - 1)}" for said in seen.values()]


def _and_more(groups: int) -> str:
    return f" So {'is 1 more group' if groups == 1 else f'are {groups} more groups'} of trials." if groups else ""
