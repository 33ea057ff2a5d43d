"""Looks at the held-out evaluations of a trial in training, and says when it is worth no more rollouts."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from rlvr_cli.runs.folder import RunDir
from rlvr_cli.sweeps.objective import Objective

if TYPE_CHECKING:
    import optuna


@dataclass(frozen=True)
class Verdict:
    """Why a trial was given up, and at which rollout."""

    rollout: int
    evidence: str


class Watch:
    """Reports each held-out value of ``run`` to its trial of the study, in order, until the pruner gives it up.

    What it says depends on the values alone, not on when it looks: a run that has gone on in the meantime is given up
    at the same rollout.
    """

    def __init__(self, trial: optuna.Trial, objective: Objective, run: RunDir, rollouts: int) -> None:
        self.trial, self.objective, self.run, self.rollouts = trial, objective, run, rollouts
        self.values = dict(self._frozen().intermediate_values)
        # Its process may have been killed between a value and the pruner's word on it.
        self.verdict = self._judged()

    def __call__(self) -> Verdict | None:
        """The verdict, once there is one; at the end of the training there is nothing to save any more."""
        if self.verdict is None:
            for rollout, value in self.objective.held_out(self.run, max(self.values, default=0)):
                if rollout >= self.rollouts:
                    break
                self.trial.report(value, rollout)
                self.values[rollout] = value
                self.verdict = self._judged()
                if self.verdict is not None:
                    break
        return self.verdict

    def _judged(self) -> Verdict | None:
        if not self.values or not self.trial.should_prune():
            return None
        rollout = max(self.values)
        best = (max if self.objective.maximize else min)(self.values.values())
        others = [trial.intermediate_values[rollout] for trial in self._finished(rollout)]
        where = "below" if self.objective.maximize else "above"
        evidence = (
            f"{self.objective.metric} was {best:.3f} at best until rollout {rollout}, {where} the median "
            f"{median(others):.3f} of {len(others)} finished configurations there"
        )
        return Verdict(rollout, evidence)

    def _frozen(self) -> optuna.trial.FrozenTrial:
        return self.trial.study.get_trials(deepcopy=False)[self.trial.number]

    def _finished(self, rollout: int) -> list[optuna.trial.FrozenTrial]:
        from optuna.trial import TrialState

        trials = self.trial.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        return [trial for trial in trials if rollout in trial.intermediate_values]
