"""The study of a search: Optuna's record of what was suggested and what came of it, and the sampler that reads it.

It is one journal file in the sweep's folder (search_journal.py), which needs no server.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.pruners import MedianPruner, NopPruner
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from rlvr_cli.core.streams import stream_seed
from rlvr_cli.sweeps.axes import Axis
from rlvr_cli.sweeps.search_journal import journal
from rlvr_cli.sweeps.search_space import axis_name, labels
from rlvr_cli.sweeps.spec import PruningSpec, SearchSpec

# Samplers of numpy take seeds of 32 bits.
_SEEDS = 2**32
# What a trial of the study is told beside its value: the identities of its runs, one a seed; the number of the trial
# that was given the same configuration before it; why it is no configuration.
RUNS, SAME, REFUSED = "runs", "same_as", "refused"


def distribution(axis: Axis) -> BaseDistribution:
    """What a sampler draws for an axis: one of its points, or a number of its range."""
    interval = axis.interval
    if interval is None:
        return CategoricalDistribution(labels(axis))
    if interval.whole:
        return IntDistribution(int(interval.low), int(interval.high), log=interval.log, step=int(interval.step or 1))
    return FloatDistribution(interval.low, interval.high, log=interval.log, step=interval.step)


class Suggestions:
    """The study called ``name`` in the journal ``path``, made where there is none, over ``axes``."""

    def __init__(self, path: Path, name: str, axes: Sequence[Axis], spec: SearchSpec, *, maximize: bool) -> None:
        self.axes, self.spec = axes, spec
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        pruning = spec.pruning
        self.study = optuna.create_study(
            study_name=name,
            storage=journal(path),
            load_if_exists=True,
            direction="maximize" if maximize else "minimize",
            pruner=NopPruner() if pruning is None else _median(pruning),
        )

    def ask(self) -> Trial:
        """Another trial, of which nothing is drawn yet."""
        self.study.sampler = self._sampler(len(self.study.get_trials(deepcopy=False)))
        return self.study.ask()

    def draw(self, trial: Trial) -> dict[str, Any]:
        """A value for every axis, by its name. Those that it has are kept.

        Each is drawn from a stream of its own, so that a trial whose asking was cut short gets what it would have got.
        """
        self.study.sampler = self._sampler(trial.number)
        # What the sampler draws jointly is drawn here, once.
        _ = trial.relative_params
        for axis in self.axes:
            name, wanted = axis_name(axis), distribution(axis)
            self.study.sampler = self._sampler(trial.number, name)
            if isinstance(wanted, CategoricalDistribution):
                trial.suggest_categorical(name, wanted.choices)
            elif isinstance(wanted, IntDistribution):
                trial.suggest_int(name, wanted.low, wanted.high, step=wanted.step, log=wanted.log)
            elif isinstance(wanted, FloatDistribution):
                trial.suggest_float(name, wanted.low, wanted.high, step=wanted.step, log=wanted.log)
        return trial.params

    def mark(self, trial: Trial, runs: list[str]) -> None:
        """Say which runs ``trial`` stands for, and whether another stands for them already."""
        same = next((one.number for one in self.marked() if one.user_attrs[RUNS] == runs), None)
        if same is not None:
            trial.set_user_attr(SAME, same)
        trial.set_user_attr(RUNS, runs)

    def refuse(self, trial: Trial, reason: str) -> None:
        """``trial`` is not to be run. A sampler holds what is pruned without a value for the worst."""
        trial.set_user_attr(REFUSED, reason)
        self.study.tell(trial, state=TrialState.PRUNED)

    def adopt(self, parameters: dict[str, Any], runs: list[str]) -> None:
        """Take in a configuration that was not asked for."""
        wanted = {axis_name(axis): distribution(axis) for axis in self.axes}
        trial = create_trial(state=TrialState.RUNNING, params=parameters, distributions=wanted, user_attrs={RUNS: runs})
        self.study.add_trial(trial)

    def finish(self, trial: FrozenTrial, values: Sequence[float | None]) -> None:
        """Tell the mean over seeds; that it failed, where a run recorded no value."""
        there = [value for value in values if value is not None]
        if len(there) < len(values):
            self.study.tell(trial.number, state=TrialState.FAIL)
        else:
            self.study.tell(trial.number, sum(there) / len(there))

    def give_up(self, trial: FrozenTrial) -> None:
        """Tell that it was stopped; what it had come to then is what was reported last."""
        self.study.tell(trial.number, state=TrialState.PRUNED)

    def report(self, trial: FrozenTrial, values: Iterable[tuple[int, float]]) -> None:
        """Report (rollout, value) pairs, where they were not."""
        live = self.live(trial)
        for rollout, value in values:
            if rollout not in trial.intermediate_values:
                live.report(value, rollout)

    def running(self) -> list[FrozenTrial]:
        """Those of which nothing was told yet."""
        return self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))

    def marked(self) -> list[FrozenTrial]:
        """Those that stand for runs."""
        return [trial for trial in self.study.get_trials(deepcopy=False) if RUNS in trial.user_attrs]

    def counts(self) -> tuple[int, int, int]:
        """How many are configurations of their own, how many were there already, how many were refused."""
        marked = self.marked()
        again = sum(SAME in trial.user_attrs for trial in marked)
        refused = sum(REFUSED in trial.user_attrs for trial in self.study.get_trials(deepcopy=False))
        return len(marked) - again, again, refused

    def idle(self) -> int:
        """How many of the last suggestions in a row brought no configuration to run."""
        trials = reversed(self.study.get_trials(deepcopy=False))
        return sum(1 for _ in takewhile(lambda trial: not trial.user_attrs.keys().isdisjoint((SAME, REFUSED)), trials))

    def live(self, trial: FrozenTrial) -> Trial:
        """``trial`` as one that can be drawn for and reported to, in whatever process it was asked for."""
        return Trial(self.study, trial._trial_id)

    def _sampler(self, *path: str | int) -> BaseSampler:
        seed = stream_seed(self.spec.seed, "search", *path) % _SEEDS
        if self.spec.sampler == "random":
            return RandomSampler(seed=seed)
        return TPESampler(seed=seed, n_startup_trials=self.spec.startup)


def _median(spec: PruningSpec) -> MedianPruner:
    """Optuna counts what was suggested again as finished; values at a rollout there are of configurations alone."""
    return MedianPruner(spec.startup, n_warmup_steps=spec.warmup, n_min_trials=spec.startup)
