"""Adaptive search: suggest the next configurations of a sweep from earlier results, with Optuna's ask and tell.

A configuration is a trial of the study in `search.journal`; its runs, one per seed, are trials of the sweep. The driver
asks, under the sweep's lock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.pruners import MedianPruner, NopPruner
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import read_jsonl, truncate_jsonl
from rlvr_cli.core.layers import override_label
from rlvr_cli.core.streams import stream_seed
from rlvr_cli.sweeps.axes import Axis, read_axes
from rlvr_cli.sweeps.expand import Trial, make_trial
from rlvr_cli.sweeps.folder import OPEN, Entry, SweepDir, SweepPlan, TrialStatus
from rlvr_cli.sweeps.naming import short_keys
from rlvr_cli.sweeps.prepare import make_entry
from rlvr_cli.sweeps.rows import located_set
from rlvr_cli.sweeps.search_space import axis_name, labels, search_space
from rlvr_cli.sweeps.spec import SearchSpec, read_sweep

JOURNAL = "search.journal"
# The search ends after this many consecutive suggestions without a new valid configuration.
MOST_IDLE = 100
# NumPy samplers take 32-bit seeds.
_SEEDS = 2**32
# User attributes of a trial of the study: the ids of its runs, or why it has none.
RUNS, UNUSED = "runs", "unused"
REPEATED = "repeated"


def distribution(axis: Axis) -> BaseDistribution:
    """Return the Optuna distribution of an axis: its points, or its range."""
    interval = axis.interval
    if interval is None:
        return CategoricalDistribution(labels(axis))
    if interval.whole:
        return IntDistribution(int(interval.low), int(interval.high), log=interval.log)
    return FloatDistribution(interval.low, interval.high, log=interval.log)


class Search:
    """The search of the sweep in ``folder``; the caller holds the sweep's lock."""

    def __init__(self, folder: SweepDir, plan: SweepPlan) -> None:
        assert plan.objective is not None and plan.search is not None
        self.folder, self.objective = folder, plan.objective
        file = read_sweep(folder.file_copy)
        self.space, _ = search_space(file, read_axes(file))
        assert file.spec.search is not None
        self.spec: SearchSpec = file.spec.search
        self.budget = file.spec.budget
        self.common = [*located_set(file), *((override_label(text), text) for text in plan.given)]
        self.max_configurations = min(
            (size for size in (self.spec.trials, self.space.size()) if size is not None), default=None
        )
        # The number of evaluations that were read, and the decision to stop it, of each trial that may be pruned.
        self._read: dict[str, int] = {}
        self._decisions: dict[str, dict[str, Any]] = {}
        # A first seed whose other seeds are in the plan of an earlier driver was not pruned.
        self._continued = {entry.id for entry in plan.trials}
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        pruning, journal = self.spec.pruning, folder.path / JOURNAL
        # A killed process may have left its lock and an incomplete line.
        Path(f"{journal}.lock").unlink(missing_ok=True)
        truncate_jsonl(journal, len(read_jsonl(journal)))
        self.storage = JournalStorage(JournalFileBackend(str(journal)))
        self.study = optuna.create_study(
            study_name=plan.search.study,
            storage=self.storage,
            load_if_exists=True,
            direction="maximize" if self.objective.maximize else "minimize",
            pruner=NopPruner()
            if pruning is None
            else MedianPruner(pruning.startup, n_warmup_steps=pruning.warmup, n_min_trials=pruning.startup),
        )

    def advance(self, plan: SweepPlan, running: Collection[str] = ()) -> SweepPlan:
        """Tell the sampler the results, and add trials to the plan until one is open or the search ends.

        Args:
            running: ids of the trials that have a worker.
        """
        assert plan.search is not None
        statuses = {status.entry.id: self._undecided(status) for status in self.folder.statuses(plan)}
        self._drop_unfinished()
        self._tell(statuses)
        extended = self._with_all_seeds(plan, statuses)
        while (reason := self._end_reason(extended, statuses)) is None and not any(
            entry.id not in running and (entry.id not in statuses or statuses[entry.id].state in OPEN)
            for entry in extended.named
        ):
            self._ask(extended)
            extended = self._with_all_seeds(extended, statuses)
        failed = {id_ for id_, status in statuses.items() if status.state == "failed"}
        # Failed runs are retried by the user; do not wait for them.
        if any(failed.isdisjoint(_runs(trial)) for trial in self._running()):
            reason = None
        state = replace(plan.search, configurations=len(self.configurations()), ended=reason)
        extended = replace(extended, search=state)
        if extended != plan:
            self.folder.write_plan(extended)
        return extended

    def pruned(self, entry: Entry) -> dict[str, Any] | None:
        """Report the new held-out values of a trial in order, until the pruner stops it; return why, and where.

        Only the first seed of a configuration is pruned, by comparison with the first seeds of others. The decision
        depends on the values, not on when they are read.
        """
        trial = next((trial for trial in self._running() if _runs(trial)[0] == entry.id), None)
        if trial is not None and not self._continued.isdisjoint(_runs(trial)[1:]):
            return None
        if self.spec.pruning is None or trial is None or entry.id in self._decisions:
            return self._decisions.get(entry.id)
        run = self.folder.run_dir(entry)
        evaluations = sum(1 for _ in run.held_out_dir.glob("*/metrics.json"))
        if self._read.get(entry.id) == evaluations:
            return None
        self._read[entry.id] = evaluations
        live, values = self._live(trial), dict(trial.intermediate_values)
        # The driver may have been killed between a report and the decision.
        stopped = bool(values) and live.should_prune()
        for rollout, value in self.objective.held_out(run, max(values, default=0)):
            if stopped or rollout >= entry.rollouts:
                break
            live.report(value, rollout)
            values[rollout] = value
            stopped = live.should_prune()
        if stopped:
            best = (max if self.objective.maximize else min)(values.values())
            side = "below" if self.objective.maximize else "above"
            reason = (
                f"{self.objective.metric} was {best:.3f} at best until rollout {max(values)}, {side} the median of the "
                "finished configurations there"
            )
            self._decisions[entry.id] = {"reason": reason, "rollout": max(values)}
        return self._decisions.get(entry.id)

    def _undecided(self, status: TrialStatus) -> TrialStatus:
        """Return the status; that of a finished trial that the driver still has to record as pruned is `running`."""
        undecided = status.state == "finished" and self.pruned(status.entry) is not None
        return replace(status, state="running") if undecided else status

    def configurations(self) -> list[FrozenTrial]:
        """Return the trials of the study that have runs."""
        return [trial for trial in self._trials_of_study() if RUNS in trial.user_attrs]

    def _ask(self, plan: SweepPlan) -> None:
        """Ask the sampler for a configuration and record its runs; tell it at once of an invalid or repeated one."""
        number = sum(not _was_dropped(trial) for trial in self._trials_of_study())
        self.study.sampler = self._sampler(number)
        trial = self.study.ask({axis_name(axis): distribution(axis) for axis in self.space.axes})
        try:
            runs = [run.id for run in self._trials(trial.params, plan)]
        except UserError as error:
            trial.set_user_attr(UNUSED, error.problems[0])
            # A sampler treats a trial pruned without values as the worst.
            self.study.tell(trial, state=TrialState.PRUNED)
            return
        earlier = next((other for other in self.configurations() if _runs(other) == runs), None)
        if earlier is None:
            trial.set_user_attr(RUNS, runs)
            return
        trial.set_user_attr(UNUSED, REPEATED)
        if earlier.state == TrialState.COMPLETE:
            self.study.tell(trial, earlier.value)
        else:
            self.study.tell(trial, state=TrialState.FAIL)

    def _drop_unfinished(self) -> None:
        """End suggestions whose process was killed before it recorded them; the sampler repeats them."""
        for trial in self._trials_of_study():
            if trial.state == TrialState.RUNNING and RUNS not in trial.user_attrs:
                invalid = trial.user_attrs.get(UNUSED, REPEATED) != REPEATED
                self.study.tell(trial.number, state=TrialState.PRUNED if invalid else TrialState.FAIL)

    def _tell(self, statuses: Mapping[str, TrialStatus]) -> None:
        """Tell the sampler the value of each configuration whose runs have ended. Failed runs may be retried."""
        for trial in self._running():
            runs = [statuses[id_] for id_ in _runs(trial) if id_ in statuses]
            if any(run.state == "pruned" for run in runs):
                self.study.tell(trial.number, state=TrialState.PRUNED)
                continue
            folders = [self.folder.run_dir(run.entry) for run in runs if run.state == "finished"]
            if len(folders) < len(_runs(trial)):
                continue
            if self.spec.pruning is not None:
                # The last values, which decided nothing.
                live = self._live(trial)
                for rollout, value in self.objective.held_out(folders[0], max(trial.intermediate_values, default=0)):
                    live.report(value, rollout)
            values, _ = self.objective.values(folders)
            if len(values) < len(folders):
                self.study.tell(trial.number, state=TrialState.FAIL)
            else:
                self.study.tell(trial.number, sum(values.values()) / len(values))

    def _with_all_seeds(self, plan: SweepPlan, statuses: Mapping[str, TrialStatus]) -> SweepPlan:
        """Add the missing trials of each configuration: with pruning, only the first seed until it is finished."""
        assert plan.search is not None
        there = {entry.id for entry in plan.trials}
        added: list[Entry] = []
        for trial in self._running():
            ids = _runs(trial)
            all_seeds = self.spec.pruning is None or (ids[0] in statuses and statuses[ids[0]].state == "finished")
            missing = {*(ids if all_seeds else ids[:1])} - there
            if missing:
                runs = self._trials(trial.params, plan)
                added += [make_entry(run, run.name, plan.search.base, run.method) for run in runs if run.id in missing]
        return replace(plan, trials=[*plan.trials, *added]) if added else plan

    def _end_reason(self, plan: SweepPlan, statuses: Mapping[str, TrialStatus]) -> str | None:
        """Return why the search suggests no further configuration; None if it may."""
        assert plan.search is not None
        number = len(self.configurations())
        if self.max_configurations is not None and number >= self.max_configurations:
            return f"{'the' if self.max_configurations == self.spec.trials else 'all'} {number} configurations were run"
        if self.budget is not None and self._committed(plan, statuses) + plan.search.bound > self.budget:
            return f"the budget of {self.budget:,} rollouts is not enough for another configuration"
        latest = (trial for trial in reversed(self._trials_of_study()) if not _was_dropped(trial))
        if sum(1 for _ in takewhile(lambda trial: UNUSED in trial.user_attrs, latest)) >= MOST_IDLE:
            return f"the last {MOST_IDLE} suggestions were all excluded, invalid, or repeated"
        return None

    def _committed(self, plan: SweepPlan, statuses: Mapping[str, TrialStatus]) -> int:
        """Return the rollouts of all trials, planned and done; pruned trials count until they were pruned."""
        entries = {entry.id: entry for entry in plan.trials}
        spent = sum((self.folder.pruned_at(entry) or entry.rollouts) for entry in entries.values())
        for trial in self._running():
            first = _runs(trial)[0]
            if first not in statuses or statuses[first].state != "failed":
                spent += entries[first].rollouts * sum(id_ not in entries for id_ in _runs(trial))
        return spent

    def _trials(self, parameters: dict[str, object], plan: SweepPlan) -> list[Trial]:
        """Return the trials of a configuration, one per seed. Raises UserError if it is excluded or invalid."""
        assert plan.search is not None
        base, points = [Path(name) for name in plan.search.base], self.space.points(parameters)
        if self.space.excludes(points):
            raise UserError("excluded")
        shorts = short_keys(self.space.keys)
        trials: list[Trial] = []
        for seed in self.space.seeds:
            taken = {*(entry.name for entry in plan.trials), *(trial.name for trial in trials)}
            trials.append(make_trial(base, self.common, (*points, seed), shorts, taken))
        return trials

    def _trials_of_study(self) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False)

    def _running(self) -> list[FrozenTrial]:
        """Return the configurations without a result."""
        return [trial for trial in self.configurations() if trial.state == TrialState.RUNNING]

    def _live(self, trial: FrozenTrial) -> optuna.Trial:
        """Return the trial as one that accepts reports, even if another process asked for it."""
        study = self.storage.get_study_id_from_name(self.study.study_name)
        return optuna.Trial(self.study, self.storage.get_trial_id_from_study_id_trial_number(study, trial.number))

    def _sampler(self, number: int) -> BaseSampler:
        """Return the sampler of suggestion ``number``, with a random stream of its own."""
        seed = stream_seed(self.spec.seed, "search", number) % _SEEDS
        if self.spec.sampler == "random":
            return RandomSampler(seed=seed)
        return TPESampler(seed=seed, n_startup_trials=self.spec.startup)


def _runs(trial: FrozenTrial) -> list[str]:
    """Return the ids of a configuration's runs, one per seed."""
    return list(trial.user_attrs[RUNS])


def _was_dropped(trial: FrozenTrial) -> bool:
    """Return whether a suggestion was never recorded because its process was killed."""
    return trial.user_attrs.keys().isdisjoint((RUNS, UNUSED))
