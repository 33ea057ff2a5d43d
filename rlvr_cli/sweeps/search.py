"""Adaptive search: suggest the next configurations of a sweep from earlier results, with Optuna's ask and tell.

A configuration is a trial of the study in `search.journal`; its runs, one per seed, are trials of the sweep.
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
from rlvr_cli.sweeps.naming import abbreviate_keys
from rlvr_cli.sweeps.prepare import make_entry
from rlvr_cli.sweeps.rows import file_overrides
from rlvr_cli.sweeps.search_space import axis_name, categories, read_search_space
from rlvr_cli.sweeps.spec import SearchSpec, read_sweep

JOURNAL = "search.journal"
# The search ends after this many consecutive suggestions that are invalid or repeated.
MAX_IDLE = 100
# NumPy samplers take 32-bit seeds.
_SEEDS = 2**32
# User attributes of a study's trial: the ids of its runs, or why it has none.
RUNS, UNUSED = "runs", "unused"
REPEATED = "repeated"


def distribution(axis: Axis) -> BaseDistribution:
    interval = axis.interval
    if interval is None:
        return CategoricalDistribution(categories(axis))
    if interval.is_integer:
        return IntDistribution(int(interval.low), int(interval.high), log=interval.log)
    return FloatDistribution(interval.low, interval.high, log=interval.log)


class Search:
    """The Optuna study of the sweep in ``folder``; the caller holds the sweep's lock."""

    def __init__(self, folder: SweepDir, plan: SweepPlan) -> None:
        assert plan.objective is not None and plan.search is not None
        self.folder, self.objective = folder, plan.objective
        file = read_sweep(folder.file_copy)
        self.space, _ = read_search_space(file, read_axes(file))
        assert file.spec.search is not None
        self.spec: SearchSpec = file.spec.search
        self.budget = file.spec.budget
        self.common = [*file_overrides(file), *((override_label(text), text) for text in plan.given)]
        self.max_configurations = min(
            (size for size in (self.spec.trials, self.space.size()) if size is not None), default=None
        )
        # By trial: the number of evaluations reported to the pruner, and its decision to prune.
        self._read: dict[str, int] = {}
        self._decisions: dict[str, dict[str, Any]] = {}
        # A first seed whose other seeds are in the plan was not pruned.
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
        """Tell the sampler new results, and ask for configurations until a trial is open or the search ends."""
        assert plan.search is not None
        statuses = {status.entry.id: self._effective_status(status) for status in self.folder.statuses(plan)}
        self._drop_unfinished()
        self._tell(statuses)
        extended = self._add_seeds(plan, statuses)
        while (reason := self._end_reason(extended, statuses)) is None and not any(
            entry.id not in running and (entry.id not in statuses or statuses[entry.id].state in OPEN)
            for entry in extended.named
        ):
            self._ask(extended)
            extended = self._add_seeds(extended, statuses)
        failed = {id_ for id_, status in statuses.items() if status.state == "failed"}
        # Only the user retries failed runs; do not wait for them.
        if any(failed.isdisjoint(_runs(trial)) for trial in self._unfinished_configurations()):
            reason = None
        state = replace(plan.search, configurations=len(self.configurations()), ended=reason)
        extended = replace(extended, search=state)
        if extended != plan:
            self.folder.write_plan(extended)
        return extended

    def prune_decision(self, entry: Entry) -> dict[str, Any] | None:
        """Report a trial's new held-out values to the pruner; return the reason and rollout of a decision to prune.

        Only the first seed of a configuration is pruned, against the first seeds of others. Deterministic: depends only
        on the reported values.
        """
        trial = next((trial for trial in self._unfinished_configurations() if _runs(trial)[0] == entry.id), None)
        if trial is not None and not self._continued.isdisjoint(_runs(trial)[1:]):
            return None
        if self.spec.pruning is None or trial is None or entry.id in self._decisions:
            return self._decisions.get(entry.id)
        run = self.folder.run_dir(entry)
        evaluations = sum(1 for _ in run.held_out_dir.glob("*/metrics.json"))
        if self._read.get(entry.id) == evaluations:
            return None
        self._read[entry.id] = evaluations
        live, values = self._reporting_trial(trial), dict(trial.intermediate_values)
        # The driver may have been killed between a report and the decision.
        stopped = bool(values) and live.should_prune()
        for rollout, value in self.objective.held_out_values(run, max(values, default=0)):
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

    def _effective_status(self, status: TrialStatus) -> TrialStatus:
        """Return the status, `running` for a finished trial that the driver has yet to record as pruned."""
        undecided = status.state == "finished" and self.prune_decision(status.entry) is not None
        return replace(status, state="running") if undecided else status

    def configurations(self) -> list[FrozenTrial]:
        """Return the trials of the study that have runs."""
        return [trial for trial in self.study.get_trials(deepcopy=False) if RUNS in trial.user_attrs]

    def _ask(self, plan: SweepPlan) -> None:
        """Ask the sampler for a configuration; record its runs, or tell the result of an invalid or repeated one."""
        number = sum(not _is_unrecorded(trial) for trial in self.study.get_trials(deepcopy=False))
        self.study.sampler = self._make_sampler(number)
        trial = self.study.ask({axis_name(axis): distribution(axis) for axis in self.space.axes})
        try:
            runs = [run.id for run in self._make_trials(trial.params, plan)]
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
        """End suggestions of a process killed before it recorded them; the sampler repeats them."""
        for trial in self.study.get_trials(deepcopy=False):
            if trial.state == TrialState.RUNNING and RUNS not in trial.user_attrs:
                invalid = trial.user_attrs.get(UNUSED, REPEATED) != REPEATED
                self.study.tell(trial.number, state=TrialState.PRUNED if invalid else TrialState.FAIL)

    def _tell(self, statuses: Mapping[str, TrialStatus]) -> None:
        """Tell the sampler the value of each configuration whose runs have ended; failed runs may be retried."""
        for trial in self._unfinished_configurations():
            runs = [statuses[id_] for id_ in _runs(trial) if id_ in statuses]
            if any(run.state == "pruned" for run in runs):
                self.study.tell(trial.number, state=TrialState.PRUNED)
                continue
            folders = [self.folder.run_dir(run.entry) for run in runs if run.state == "finished"]
            if len(folders) < len(_runs(trial)):
                continue
            if self.spec.pruning is not None:
                # The remaining values, reported for the median of later trials.
                live = self._reporting_trial(trial)
                for rollout, value in self.objective.held_out_values(
                    folders[0], max(trial.intermediate_values, default=0)
                ):
                    live.report(value, rollout)
            values, _ = self.objective.values(folders)
            if len(values) < len(folders):
                self.study.tell(trial.number, state=TrialState.FAIL)
            else:
                self.study.tell(trial.number, sum(values.values()) / len(values))

    def _add_seeds(self, plan: SweepPlan, statuses: Mapping[str, TrialStatus]) -> SweepPlan:
        """Add the missing trials of each configuration: with pruning, the first seed alone until it is finished."""
        assert plan.search is not None
        planned = {entry.id for entry in plan.trials}
        added: list[Entry] = []
        for trial in self._unfinished_configurations():
            ids = _runs(trial)
            all_seeds = self.spec.pruning is None or (ids[0] in statuses and statuses[ids[0]].state == "finished")
            missing = {*(ids if all_seeds else ids[:1])} - planned
            if missing:
                runs = self._make_trials(trial.params, plan)
                added += [make_entry(run, run.name, plan.search.base, run.method) for run in runs if run.id in missing]
        return replace(plan, trials=[*plan.trials, *added]) if added else plan

    def _end_reason(self, plan: SweepPlan, statuses: Mapping[str, TrialStatus]) -> str | None:
        """Return why the search ends; None if it may suggest another configuration."""
        assert plan.search is not None
        count = len(self.configurations())
        if self.max_configurations is not None and count >= self.max_configurations:
            return f"{'the' if self.max_configurations == self.spec.trials else 'all'} {count} configurations were run"
        if self.budget is not None and self._committed_rollouts(plan, statuses) + plan.search.bound > self.budget:
            return f"the budget of {self.budget:,} rollouts is not enough for another configuration"
        trials = reversed(self.study.get_trials(deepcopy=False))
        latest = (trial for trial in trials if not _is_unrecorded(trial))
        if sum(1 for _ in takewhile(lambda trial: UNUSED in trial.user_attrs, latest)) >= MAX_IDLE:
            return f"the last {MAX_IDLE} suggestions were all excluded, invalid, or repeated"
        return None

    def _committed_rollouts(self, plan: SweepPlan, statuses: Mapping[str, TrialStatus]) -> int:
        """Return the rollouts of all planned trials, of pruned ones until they were pruned."""
        entries = {entry.id: entry for entry in plan.trials}
        spent = sum((self.folder.pruned_rollout(entry) or entry.rollouts) for entry in entries.values())
        for trial in self._unfinished_configurations():
            first = _runs(trial)[0]
            if first not in statuses or statuses[first].state != "failed":
                spent += entries[first].rollouts * sum(id_ not in entries for id_ in _runs(trial))
        return spent

    def _make_trials(self, parameters: dict[str, object], plan: SweepPlan) -> list[Trial]:
        """Return the trials of a configuration, one per seed. Raises UserError if it is excluded or invalid."""
        assert plan.search is not None
        base, points = [Path(name) for name in plan.search.base], self.space.decode(parameters)
        if self.space.excludes(points):
            raise UserError("excluded")
        shorts = abbreviate_keys(self.space.keys)
        trials: list[Trial] = []
        for seed in self.space.seeds:
            taken = {*(entry.name for entry in plan.trials), *(trial.name for trial in trials)}
            trials.append(make_trial(base, self.common, (*points, seed), shorts, taken))
        return trials

    def _unfinished_configurations(self) -> list[FrozenTrial]:
        return [trial for trial in self.configurations() if trial.state == TrialState.RUNNING]

    def _reporting_trial(self, trial: FrozenTrial) -> optuna.Trial:
        """Return the trial in a form that accepts reports, even if another process asked for it."""
        study = self.storage.get_study_id_from_name(self.study.study_name)
        return optuna.Trial(self.study, self.storage.get_trial_id_from_study_id_trial_number(study, trial.number))

    def _make_sampler(self, number: int) -> BaseSampler:
        """Return the sampler of suggestion ``number``, with a separate random stream."""
        seed = stream_seed(self.spec.seed, "search", number) % _SEEDS
        if self.spec.sampler == "random":
            return RandomSampler(seed=seed)
        return TPESampler(seed=seed, n_startup_trials=self.spec.startup)


def _runs(trial: FrozenTrial) -> list[str]:
    return list(trial.user_attrs[RUNS])


def _is_unrecorded(trial: FrozenTrial) -> bool:
    """Return whether a killed process never recorded the suggestion."""
    return trial.user_attrs.keys().isdisjoint((RUNS, UNUSED))
