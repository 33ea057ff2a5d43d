"""The study of a search: Optuna's record of what was suggested and what came of it, and the sampler that reads it.

It is one journal file in the sweep's folder (search_journal.py), which needs no server.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.pruners import MedianPruner, NopPruner
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import BaseJournalBackend
from optuna.trial import FrozenTrial, TrialState, create_trial

from rlvr_cli.core.streams import stream_seed
from rlvr_cli.sweeps.axes import Axis
from rlvr_cli.sweeps.search_space import axis_name, labels
from rlvr_cli.sweeps.spec import PruningSpec, SearchSpec


class _Journal(BaseJournalBackend):
    """Optuna's record as JSON lines, for processes that share a file system.

    Not JournalFileBackend: its locks are files that a killed process leaves behind, and a line that a kill cut short
    makes every later one unreadable to it. The system takes this lock back when its process ends.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: list[dict[str, Any]] = []
        self._bytes = 0

    def read_logs(self, log_number_from: int) -> list[dict[str, Any]]:
        """The whole lines from this number on; those before are not read again."""
        if self._path.exists():
            with self._path.open("rb") as stream:
                stream.seek(self._bytes)
                *lines, _ = stream.read().split(b"\n")
            self._rows += map(json.loads, lines)
            self._bytes += sum(len(line) + 1 for line in lines)
        return self._rows[log_number_from:]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append lines that are on the disk afterwards; what a kill left of a line goes."""
        with self._path.open("a+b") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            stream.seek(0)
            stream.truncate(stream.read().rfind(b"\n") + 1)
            stream.write(b"".join(json.dumps(log).encode() + b"\n" for log in logs))
            stream.flush()
            os.fsync(stream.fileno())


# Samplers of numpy take seeds of 32 bits.
_SEEDS = 2**32
# User attributes of a trial of the study: the identities of its runs, one a seed; the number of the trial
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
        self.storage = JournalStorage(_Journal(path))
        self.study = optuna.create_study(
            study_name=name,
            storage=self.storage,
            load_if_exists=True,
            direction="maximize" if maximize else "minimize",
            pruner=NopPruner() if pruning is None else _median(pruning),
        )

    def suggest(self) -> dict[str, Any]:
        """A value for every axis, by its name, of the next configuration.

        Each is drawn from a stream of its own, named by the number of the configuration. It is drawn in a copy of the
        study, which gets it whole or not at all (:meth:`add`), also when this process is killed.
        """
        trials = self.study.get_trials(deepcopy=False)
        copy = optuna.create_study(direction=self.study.direction, sampler=self._sampler(len(trials)))
        copy.add_trials(trials)
        trial = copy.ask()
        copy.sampler = self._sampler(len(trials))
        # What the sampler draws jointly is drawn here, once.
        _ = trial.relative_params
        for axis in self.axes:
            name, wanted = axis_name(axis), distribution(axis)
            copy.sampler = self._sampler(len(trials), name)
            if isinstance(wanted, CategoricalDistribution):
                trial.suggest_categorical(name, wanted.choices)
            elif isinstance(wanted, IntDistribution):
                trial.suggest_int(name, wanted.low, wanted.high, step=wanted.step, log=wanted.log)
            elif isinstance(wanted, FloatDistribution):
                trial.suggest_float(name, wanted.low, wanted.high, step=wanted.step, log=wanted.log)
        return trial.params

    def add(self, parameters: dict[str, Any], runs: list[str]) -> None:
        """Take in a configuration, suggested or not, with its runs; another may stand for them already."""
        same = next((one.number for one in self.configurations() if one.user_attrs[RUNS] == runs), None)
        self._add(TrialState.RUNNING, parameters, {RUNS: runs, **({} if same is None else {SAME: same})})

    def refuse(self, parameters: dict[str, Any], reason: str) -> None:
        """A suggestion that is not to be run. A sampler holds what is pruned without a value for the worst."""
        self._add(TrialState.PRUNED, parameters, {REFUSED: reason})

    def _add(self, state: TrialState, parameters: dict[str, Any], about: dict[str, Any]) -> None:
        wanted = {axis_name(axis): distribution(axis) for axis in self.axes}
        self.study.add_trial(create_trial(state=state, params=parameters, distributions=wanted, user_attrs=about))

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
        # A study reports for the trials alone that it asked for in this process.
        study = self.storage.get_study_id_from_name(self.study.study_name)
        number = self.storage.get_trial_id_from_study_id_trial_number(study, trial.number)
        for rollout, value in values:
            if rollout not in self.newest(trial).intermediate_values:
                self.storage.set_trial_intermediate_value(number, rollout, value)

    def newest(self, trial: FrozenTrial) -> FrozenTrial:
        """``trial`` as the study has it now."""
        return self.study.get_trials(deepcopy=False)[trial.number]

    def prunes(self, trial: FrozenTrial) -> bool:
        """Whether the values that were reported are reason enough to give ``trial`` up."""
        return self.study.pruner.prune(self.study, self.newest(trial))

    def finished(self) -> list[FrozenTrial]:
        """Those that have a value."""
        return self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))

    def running(self) -> list[FrozenTrial]:
        """Those of which nothing was told yet."""
        return self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))

    def configurations(self) -> list[FrozenTrial]:
        """Those that stand for runs."""
        return [trial for trial in self.study.get_trials(deepcopy=False) if RUNS in trial.user_attrs]

    def counts(self) -> tuple[int, int, int]:
        """How many are configurations of their own, how many were there already, how many were refused."""
        found = self.configurations()
        again = sum(SAME in trial.user_attrs for trial in found)
        refused = sum(REFUSED in trial.user_attrs for trial in self.study.get_trials(deepcopy=False))
        return len(found) - again, again, refused

    def idle(self) -> int:
        """How many of the last suggestions in a row brought no configuration to run."""
        trials = reversed(self.study.get_trials(deepcopy=False))
        return sum(1 for _ in takewhile(lambda trial: not trial.user_attrs.keys().isdisjoint((SAME, REFUSED)), trials))

    def _sampler(self, *path: str | int) -> BaseSampler:
        seed = stream_seed(self.spec.seed, "search", *path) % _SEEDS
        if self.spec.sampler == "random":
            return RandomSampler(seed=seed)
        return TPESampler(seed=seed, n_startup_trials=self.spec.startup)


def _median(spec: PruningSpec) -> MedianPruner:
    """Optuna counts what was suggested again as finished; values at a rollout there are of configurations alone."""
    return MedianPruner(spec.startup, n_warmup_steps=spec.warmup, n_min_trials=spec.startup)
