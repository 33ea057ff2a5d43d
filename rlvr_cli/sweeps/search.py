"""Adaptive search: suggest the next configurations of a sweep from earlier results, with Optuna's ask and tell.

Workers ask one at a time, under a lock. A configuration is a trial of the study in `search.journal`; its runs, one per
seed, are trials of the sweep.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import IO

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.pruners import MedianPruner, NopPruner
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, TrialState

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.layers import override_text
from rlvr_cli.core.streams import stream_seed
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.sweeps.axes import Axis, read_axes
from rlvr_cli.sweeps.expand import Trial
from rlvr_cli.sweeps.folder import OPEN, Entry, SearchState, SweepDir, SweepPlan, TrialStatus
from rlvr_cli.sweeps.objective import Objective
from rlvr_cli.sweeps.prepare import make_entry, suggested_trials
from rlvr_cli.sweeps.search_space import axis_name, labels, search_space
from rlvr_cli.sweeps.spec import SearchSpec, read_sweep

JOURNAL, LOCK = "search.journal", "search.lock"
# The search ends after this many consecutive suggestions without a new valid configuration.
MOST_IDLE = 100
# NumPy samplers take 32-bit seeds.
_SEEDS = 2**32
# User attributes of a trial of the study: the ids of its runs; the number of an earlier trial with the same runs; the
# reason why it is not a valid configuration.
RUNS, DUPLICATE, REJECTED = "runs", "duplicate", "rejected"


class _JournalLock(JournalFileOpenLock):
    """A lock (flock) that the kernel releases if the process is killed; it truncates an incomplete last line.

    Optuna's lock files stay behind when a process is killed.
    """

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._stream: IO[bytes] | None = None

    def acquire(self) -> bool:
        self._stream = self._journal.open("r+b")
        fcntl.flock(self._stream, fcntl.LOCK_EX)
        self._stream.truncate(self._stream.read().rfind(b"\n") + 1)
        return True

    def release(self) -> None:
        assert self._stream is not None
        self._stream.close()


def distribution(axis: Axis) -> BaseDistribution:
    """Return the Optuna distribution of an axis: its points, or its range."""
    interval = axis.interval
    if interval is None:
        return CategoricalDistribution(labels(axis))
    if interval.whole:
        return IntDistribution(int(interval.low), int(interval.high), log=interval.log)
    return FloatDistribution(interval.low, interval.high, log=interval.log)


class PruningWatch:
    """Reports the held-out values of ``run`` to its trial of the study, in order, until the pruner stops it.

    Deterministic: the rollout depends only on the values, not on when they are read.
    """

    def __init__(self, trial: optuna.Trial, objective: Objective, run: RunDir, rollouts: int) -> None:
        self.trial, self.objective, self.run, self.rollouts = trial, objective, run, rollouts
        self.values = _reported_values(trial)
        self.evaluations = 0
        # A worker may have been killed between a report and the pruner's decision.
        self.pruned_at = self._last_if_pruned()

    def __call__(self) -> int | None:
        """Return the rollout at which the run is pruned; None if it is not, or only at the end of its training."""
        evaluations = sum(1 for _ in self.run.held_out_dir.glob("*/metrics.json"))
        if self.pruned_at is None and evaluations != self.evaluations:
            self.evaluations = evaluations
            for rollout, value in self.objective.held_out(self.run, max(self.values, default=0)):
                if rollout >= self.rollouts or self.pruned_at is not None:
                    break
                self.trial.report(value, rollout)
                self.values[rollout] = value
                self.pruned_at = self._last_if_pruned()
        return self.pruned_at

    def evidence(self) -> str:
        """Return why the run was pruned."""
        best = (max if self.objective.maximize else min)(self.values.values())
        side = "below" if self.objective.maximize else "above"
        return (
            f"{self.objective.metric} was {best:.3f} at best until rollout {self.pruned_at}, {side} the median of the "
            "finished configurations there"
        )

    def _last_if_pruned(self) -> int | None:
        return max(self.values) if self.values and self.trial.should_prune() else None


class Search:
    """The search of the sweep in ``folder``, for one process."""

    def __init__(self, folder: SweepDir, plan: SweepPlan) -> None:
        assert plan.objective is not None and plan.search is not None
        self.folder, self.objective = folder, plan.objective
        file = read_sweep(folder.file_copy)
        self.space, _ = search_space(file, read_axes(file))
        assert file.spec.search is not None
        self.spec: SearchSpec = file.spec.search
        self.budget = file.spec.budget
        self.common = [*(override_text(key, value) for key, value in file.spec.set.items()), *plan.given]
        self.max_configurations = min(
            (size for size in (self.spec.trials, self.space.size()) if size is not None), default=None
        )
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        pruning, journal = self.spec.pruning, folder.path / JOURNAL
        with self._locked():
            self.storage = JournalStorage(JournalFileBackend(str(journal), _JournalLock(journal)))
            self.study = optuna.create_study(
                study_name=plan.search.study,
                storage=self.storage,
                load_if_exists=True,
                direction="maximize" if self.objective.maximize else "minimize",
                pruner=NopPruner()
                if pruning is None
                else MedianPruner(pruning.startup, n_warmup_steps=pruning.warmup, n_min_trials=pruning.startup),
            )

    def advance(self) -> SweepPlan:
        """Tell the sampler the results, and add trials to the plan until one is open or the search ends."""
        with self._locked():
            previous = self.folder.read_plan()
            self._drop_unfinished()
            self._tell(previous)
            plan = self._with_all_seeds(previous)
            while (reason := self._end_reason(plan)) is None and not self._has_open_trials(plan):
                self._ask(plan)
                plan = self._with_all_seeds(plan)
            plan = replace(plan, search=self._state(plan, reason))
            if plan != previous:
                self.folder.write_plan(plan)
        return plan

    def watch(self, entry: Entry) -> PruningWatch | None:
        """Return the pruning watch of a trial; None if the trial cannot be pruned.

        Only the first seed is pruned, by comparison with the first seeds of other configurations, and not if the user
        retries it.
        """
        if self.spec.pruning is None or self.folder.pruned_at(entry) is not None:
            return None
        trial = next((trial for trial in self._running() if _runs(trial)[0] == entry.id), None)
        if trial is None:
            return None
        return PruningWatch(self._live(trial), self.objective, self.folder.run_dir(entry), entry.rollouts)

    def configurations(self) -> list[FrozenTrial]:
        """Return the trials of the study that have runs."""
        return [trial for trial in self._trials_of_study() if RUNS in trial.user_attrs]

    def _ask(self, plan: SweepPlan) -> None:
        """Ask the sampler for the next configuration, and record its runs or reject it."""
        self.study.sampler = self._sampler(self._suggestion_count())
        trial = self.study.ask({axis_name(axis): distribution(axis) for axis in self.space.axes})
        points = self.space.points(trial.params)
        rejected = "excluded" if self.space.excludes(points) else None
        runs: list[str] = []
        try:
            runs = [] if rejected else [run.id for run in self._trials(trial.params, plan)]
        except UserError as error:
            rejected = error.problems[0]
        if rejected is not None:
            trial.set_user_attr(REJECTED, rejected)
            # A sampler treats a trial pruned without values as the worst.
            self.study.tell(trial, state=TrialState.PRUNED)
            return
        earlier = next((other for other in self.configurations() if _runs(other) == runs), None)
        if earlier is None:
            trial.set_user_attr(RUNS, runs)
            return
        trial.set_user_attr(DUPLICATE, earlier.number)
        if earlier.state == TrialState.COMPLETE:
            self.study.tell(trial, earlier.value)
        else:
            self.study.tell(trial, state=TrialState.FAIL)

    def _drop_unfinished(self) -> None:
        """End suggestions whose worker was killed before it recorded them; the sampler repeats them."""
        for trial in self._trials_of_study():
            if trial.state == TrialState.RUNNING and RUNS not in trial.user_attrs:
                state = TrialState.PRUNED if REJECTED in trial.user_attrs else TrialState.FAIL
                self.study.tell(trial.number, state=state)

    def _tell(self, plan: SweepPlan) -> None:
        """Tell the sampler the value of each configuration whose runs have ended. Failed runs may be retried."""
        statuses = self._statuses(plan)
        for trial in self._running():
            runs = [statuses.get(id_) for id_ in _runs(trial)]
            first = runs[0]
            if first is None:
                continue
            if self.folder.pruned_at(first.entry) is not None:
                self.study.tell(trial.number, state=TrialState.PRUNED)
                continue
            folders = [self.folder.run_dir(run.entry) for run in runs if run is not None and run.state == "finished"]
            if len(folders) < len(runs):
                continue
            if self.spec.pruning is not None:
                # Its worker may have been killed before it reported the last values.
                live = self._live(trial)
                for rollout, value in self.objective.held_out(folders[0], max(_reported_values(live), default=0)):
                    live.report(value, rollout)
            values, _ = self.objective.values(folders)
            if len(values) < len(runs):
                self.study.tell(trial.number, state=TrialState.FAIL)
            else:
                self.study.tell(trial.number, sum(values.values()) / len(values))

    def _with_all_seeds(self, plan: SweepPlan) -> SweepPlan:
        """Add the missing trials of each configuration: with pruning, only the first seed until it is finished."""
        assert plan.search is not None
        statuses = self._statuses(plan)
        added: list[Entry] = []
        for trial in self._running():
            ids = _runs(trial)
            first = statuses.get(ids[0])
            all_seeds = self.spec.pruning is None or (first is not None and first.state == "finished")
            missing = [id_ for id_ in (ids if all_seeds else ids[:1]) if id_ not in statuses]
            if missing:
                runs = self._trials(trial.params, plan)
                added += [make_entry(run, run.name, plan.search.base, run.method) for run in runs if run.id in missing]
        return replace(plan, trials=[*plan.trials, *added]) if added else plan

    def _end_reason(self, plan: SweepPlan) -> str | None:
        """Return why the search suggests no further configuration; None if it may."""
        assert plan.search is not None
        number = len(self.configurations())
        if self.max_configurations is not None and number >= self.max_configurations:
            return f"{'the' if self.max_configurations == self.spec.trials else 'all'} {number} configurations were run"
        if self.budget is not None and self._committed(plan) + plan.search.bound > self.budget:
            return f"the budget of {self.budget:,} rollouts is not enough for another configuration"
        latest = (trial for trial in reversed(self._trials_of_study()) if not _was_dropped(trial))
        if sum(1 for _ in takewhile(lambda trial: RUNS not in trial.user_attrs, latest)) >= MOST_IDLE:
            return f"the last {MOST_IDLE} suggestions were all excluded, invalid, or repeated"
        return None

    def _committed(self, plan: SweepPlan) -> int:
        """Return the rollouts of all trials, planned and done; pruned trials count until they were pruned."""
        statuses = self._statuses(plan)
        spent = sum(
            (self.folder.pruned_at(status.entry) or 0) if status.state == "pruned" else status.entry.rollouts
            for status in statuses.values()
        )
        for trial in self._running():
            first = statuses.get(_runs(trial)[0])
            if first is not None and first.state != "failed":
                spent += first.entry.rollouts * sum(id_ not in statuses for id_ in _runs(trial))
        return spent

    def _state(self, plan: SweepPlan, reason: str | None) -> SearchState:
        assert plan.search is not None
        failed = {id_ for id_, status in self._statuses(plan).items() if status.state == "failed"}
        # Failed runs are retried by the user; do not wait for them.
        waiting = any(failed.isdisjoint(_runs(trial)) for trial in self._running())
        trials = self._trials_of_study()
        return replace(
            plan.search,
            configurations=len(self.configurations()),
            duplicates=sum(DUPLICATE in trial.user_attrs for trial in trials),
            rejected=sum(REJECTED in trial.user_attrs for trial in trials),
            asking=reason is None,
            ended=None if reason is None or waiting else reason,
        )

    def _has_open_trials(self, plan: SweepPlan) -> bool:
        return any(status.state in OPEN for status in self._statuses(plan).values())

    def _statuses(self, plan: SweepPlan) -> dict[str, TrialStatus]:
        return {status.entry.id: status for status in self.folder.statuses(plan)}

    def _trials(self, parameters: dict[str, object], plan: SweepPlan) -> list[Trial]:
        assert plan.search is not None
        base = [Path(name) for name in plan.search.base]
        taken = {entry.name for entry in plan.trials}
        return suggested_trials(self.space, self.space.points(parameters), base, self.common, taken)

    def _trials_of_study(self) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False)

    def _running(self) -> list[FrozenTrial]:
        """Return the configurations without a result."""
        return [trial for trial in self.configurations() if trial.state == TrialState.RUNNING]

    def _live(self, trial: FrozenTrial) -> optuna.Trial:
        """Return the trial as one that accepts reports, even if another process asked for it."""
        study = self.storage.get_study_id_from_name(self.study.study_name)
        return optuna.Trial(self.study, self.storage.get_trial_id_from_study_id_trial_number(study, trial.number))

    def _suggestion_count(self) -> int:
        """Return the number of recorded or rejected suggestions, the index of the next one's random stream."""
        return sum(not _was_dropped(trial) for trial in self._trials_of_study())

    def _sampler(self, number: int) -> BaseSampler:
        seed = stream_seed(self.spec.seed, "search", number) % _SEEDS
        if self.spec.sampler == "random":
            return RandomSampler(seed=seed)
        return TPESampler(seed=seed, n_startup_trials=self.spec.startup)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the search's lock; the kernel releases it if the process is killed."""
        descriptor = os.open(self.folder.state_dir / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _runs(trial: FrozenTrial) -> list[str]:
    """Return the ids of a configuration's runs, one per seed."""
    return list(trial.user_attrs[RUNS])


def _was_dropped(trial: FrozenTrial) -> bool:
    """Return whether a suggestion was never recorded because its worker was killed."""
    return trial.user_attrs.keys().isdisjoint((RUNS, DUPLICATE, REJECTED))


def _reported_values(trial: optuna.Trial) -> dict[int, float]:
    """Return the reported values of a trial by rollout."""
    frozen = trial.study.get_trials(deepcopy=False)[trial.number]
    return dict(frozen.intermediate_values)
