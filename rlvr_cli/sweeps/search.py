"""Adaptive search: which configurations a sweep runs next, by Optuna, from what those before them came to.

Every worker asks for itself, one at a time; what was suggested and what came of it is in the study (search_study.py).
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from optuna.trial import FrozenTrial

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.layers import override_text
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.sweeps.axes import AxisPoint, read_axes
from rlvr_cli.sweeps.expand import Trial
from rlvr_cli.sweeps.folder import OPEN, Entry, SearchState, SweepDir, SweepPlan, TrialStatus
from rlvr_cli.sweeps.objective import Objective
from rlvr_cli.sweeps.prepare import entry_of, suggested_trials
from rlvr_cli.sweeps.search_space import Space, split_seeds
from rlvr_cli.sweeps.search_study import RUNS, SAME, Suggestions
from rlvr_cli.sweeps.spec import SearchSpec, SpecProblem, read_sweep


@dataclass(frozen=True)
class PruningVerdict:
    """Why a trial was given up, and at which rollout."""

    rollout: int
    evidence: str


class PruningWatch:
    """Reports each held-out value of ``run`` to its trial of the study, in order, until the pruner gives it up.

    What it says depends on the values alone, not on when it looks: a run that has gone on in the meantime is given up
    at the same rollout.
    """

    def __init__(
        self, study: Suggestions, trial: FrozenTrial, objective: Objective, run: RunDir, rollouts: int
    ) -> None:
        self.study, self.trial, self.objective, self.run, self.rollouts = study, trial, objective, run, rollouts
        self.values = dict(trial.intermediate_values)
        # Its process may have been killed between a value and the pruner's word on it.
        self.verdict = self._judged()

    def __call__(self) -> PruningVerdict | None:
        """The verdict, once there is one; at the end of the training there is nothing to save any more."""
        if self.verdict is None:
            for rollout, value in self.objective.held_out(self.run, max(self.values, default=0)):
                if rollout >= self.rollouts:
                    break
                self.study.report(self.trial, [(rollout, value)])
                self.values[rollout] = value
                self.verdict = self._judged()
                if self.verdict is not None:
                    break
        return self.verdict

    def _judged(self) -> PruningVerdict | None:
        if not self.values or not self.study.prunes(self.trial):
            return None
        rollout = max(self.values)
        best = (max if self.objective.maximize else min)(self.values.values())
        finished = (trial.intermediate_values for trial in self.study.finished())
        others = [values[rollout] for values in finished if rollout in values]
        where = "below" if self.objective.maximize else "above"
        evidence = (
            f"{self.objective.metric} was {best:.3f} at best until rollout {rollout}, {where} the median "
            f"{median(others):.3f} of {len(others)} finished configurations there"
        )
        return PruningVerdict(rollout, evidence)


JOURNAL, LOCK = "search.journal", "search.lock"
# After so many suggestions in a row without a configuration to run, there is none to be found.
MOST_IDLE = 100


class Search:
    """The search of the sweep in ``folder``, for one process."""

    def __init__(self, folder: SweepDir, plan: SweepPlan) -> None:
        assert plan.objective is not None and plan.search is not None
        self.folder, self.objective = folder, plan.objective
        file = read_sweep(folder.file_copy)
        problems: list[SpecProblem] = []
        self.space: Space = split_seeds(file, read_axes(file, problems), problems)
        assert file.spec.search is not None and not problems
        self.spec: SearchSpec = file.spec.search
        self.budget = file.spec.budget
        self.given = [*(override_text(key, value) for key, value in file.spec.set.items()), *plan.given]
        self.most = min((size for size in (self.spec.trials, self.space.size()) if size is not None), default=None)
        with self._alone():
            journal, maximize = folder.path / JOURNAL, self.objective.maximize
            self.study = Suggestions(journal, plan.search.study, self.space.axes, self.spec, maximize=maximize)

    def advance(self) -> SweepPlan:
        """Tell the sampler what has ended, and add trials to the plan while nothing in it is left to be begun."""
        with self._alone():
            plan = self.folder.read_plan()
            after = self._advanced(plan)
            if after != plan:
                self.folder.write_plan(after)
        return after

    def watch(self, entry: Entry) -> PruningWatch | None:
        """Decides whether to stop a trial early; None for one that always runs to its end.

        The first seed alone is judged, against the first seeds of other configurations; one that a person asked to
        have tried again is not.
        """
        if self.spec.pruning is None or self.folder.pruned_at(entry) is not None:
            return None
        for trial in self.study.running():
            if _runs(trial)[:1] == [entry.id] and SAME not in trial.user_attrs:
                return PruningWatch(self.study, trial, self.objective, self.folder.run_dir(entry), entry.rollouts)
        return None

    def _advanced(self, plan: SweepPlan) -> SweepPlan:
        self._adopt(plan)
        self._settle(plan)
        plan = self._with_all_seeds(plan)
        while (reason := self._why_no_more(plan)) is None and not self._open(plan):
            self._suggest(plan)
            # The value of one that was there already goes to the sampler at once, before the next suggestion.
            self._settle(plan)
            plan = self._with_all_seeds(plan)
        return replace(plan, search=self._state(plan, reason))

    def _suggest(self, plan: SweepPlan) -> None:
        """Take in what the sampler suggests next, with its runs, or as refused."""
        parameters = self.study.suggest()
        points = self.space.points(parameters)
        if self.space.excludes(points):
            self.study.refuse(parameters, "excluded")
            return
        try:
            runs = [one.id for one in self._trials(points, plan)]
        except UserError as error:
            self.study.refuse(parameters, error.problems[0])
        else:
            self.study.add(parameters, runs)

    def _adopt(self, plan: SweepPlan) -> None:
        """Give the study every configuration of the plan that it does not know: of another file, or of a grid."""
        known = {id_ for trial in self.study.configurations() for id_ in _runs(trial)}
        for entry in plan.named:
            parameters = None if entry.id in known else self.space.locate(entry.varies)
            if parameters is not None:
                runs = [one.id for one in self._trials(self.space.points(parameters), plan)]
                known.update(runs)
                self.study.add(parameters, runs)

    def _settle(self, plan: SweepPlan) -> None:
        """Tell the sampler of each configuration whose runs have ended. One that has failed may be tried again yet."""
        statuses = self._looks(plan)
        for trial in self.study.running():
            found = [statuses.get(id_) for id_ in _runs(trial)]
            first = found[0] if found else None
            if first is None:
                continue
            until = self.folder.pruned_at(first.entry)
            if first.state == "pruned" or (until is not None and first.state == "finished"):
                self._report(trial, first.entry, until)
                self.study.give_up(trial)
            elif all(status is not None and status.state == "finished" for status in found):
                if SAME not in trial.user_attrs:
                    # What was suggested twice is one configuration to the pruner.
                    self._report(trial, first.entry, None)
                runs = [self.folder.run_dir(status.entry) for status in found if status is not None]
                values, _ = self.objective.values(runs)
                self.study.finish(trial, [values.get(run.path) for run in runs])

    def _report(self, trial: FrozenTrial, entry: Entry, until: int | None) -> None:
        """The first seed's held-out values on the way, which others are held against."""
        if self.spec.pruning is not None:
            values = self.objective.held_out(self.folder.run_dir(entry))
            self.study.report(trial, [(at, value) for at, value in values if until is None or at <= until])

    def _with_all_seeds(self, plan: SweepPlan) -> SweepPlan:
        """Add the trials that a configuration lacks: with pruning, the first seed alone until it has come through."""
        statuses = self._looks(plan)
        added: dict[str, Entry] = {}
        for trial in self.study.running():
            ids = _runs(trial)
            first = statuses.get(ids[0]) if ids else None
            through = self.spec.pruning is None or (first is not None and first.state == "finished")
            wanted = [id_ for id_ in (ids if through else ids[:1]) if id_ not in statuses and id_ not in added]
            if not wanted:
                continue
            assert plan.search is not None
            for one in self._trials(self.space.points(trial.params), plan):
                if one.id in wanted:
                    added[one.id] = self._entry(plan, one, plan.search.base)
        kept = [entry for entry in plan.trials if entry.id not in added]
        position = len(plan.named)
        return replace(plan, trials=[*kept[:position], *added.values(), *kept[position:]]) if added else plan

    def _entry(self, plan: SweepPlan, trial: Trial, base: Sequence[str]) -> Entry:
        """A trial's place in the plan; one that an earlier file named has it already."""
        old = next((entry for entry in plan.trials if entry.id == trial.id), None)
        return entry_of(trial, old.name if old else trial.name, base, trial.method)

    def _why_no_more(self, plan: SweepPlan) -> str | None:
        """Why no further configuration is asked for; None where one may be."""
        assert plan.search is not None
        known = self.study.counts()[0]
        if self.most is not None and known >= self.most:
            every = self.spec.trials is None or known < self.spec.trials
            return (
                f"{'all' if every else 'the'} {known} configurations{' that there are' if every else ''} were asked for"
            )
        if self.budget is not None and self._committed(plan) + plan.search.bound > self.budget:
            return f"the budget of {self.budget:,} rollouts is not enough for another configuration"
        if self.study.idle() >= MOST_IDLE:
            return f"the last {MOST_IDLE} suggestions were all excluded, no configurations, or there already"
        return None

    def _committed(self, plan: SweepPlan) -> int:
        """Rollouts that the trials take or have taken: of those that were given up, as many as they had."""
        statuses = self._looks(plan)
        spent = sum(
            (self.folder.pruned_at(status.entry) or 0) if status.state == "pruned" else status.entry.rollouts
            for status in statuses.values()
        )
        for trial in self.study.running():
            first = statuses.get(next(iter(_runs(trial)), ""))
            if first is not None and SAME not in trial.user_attrs and first.state != "failed":
                spent += first.entry.rollouts * sum(id_ not in statuses for id_ in _runs(trial))
        return spent

    def _state(self, plan: SweepPlan, reason: str | None) -> SearchState:
        assert plan.search is not None
        statuses = self._looks(plan)
        configurations, again, refused = self.study.counts()
        # What has failed is for a person to look at, and nothing to wait for.
        waiting = [
            trial
            for trial in self.study.running()
            if not any((status := statuses.get(id_)) and status.state == "failed" for id_ in _runs(trial))
        ]
        return replace(
            plan.search,
            configurations=configurations,
            again=again,
            refused=refused,
            asking=reason is None,
            ended=None if reason is None or waiting else reason,
        )

    def _open(self, plan: SweepPlan) -> bool:
        """Whether there is a trial that nobody works on."""
        return any(status.state in OPEN for status in self._looks(plan).values())

    def _looks(self, plan: SweepPlan) -> dict[str, TrialStatus]:
        return {status.entry.id: status for status in self.folder.statuses(plan)}

    def _trials(self, points: Sequence[AxisPoint], plan: SweepPlan) -> list[Trial]:
        assert plan.search is not None
        base = [Path(name) for name in plan.search.base]
        return suggested_trials(self.space, points, base, self.given, {entry.name for entry in plan.trials})

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Whoever asks or tells does it alone; the lock goes with the process."""
        with (self.folder.state_dir / LOCK).open("a") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield


def _runs(trial: FrozenTrial) -> list[str]:
    """The identities of a trial's runs, one a seed."""
    return list(trial.user_attrs[RUNS])
