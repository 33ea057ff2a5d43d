"""Rank the arms of a sweep by their mean objective over seeds, and write a confirmation sweep of the best."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.files import write_text
from rlvr_cli.core.table import Table
from rlvr_cli.core.text import ellipsize
from rlvr_cli.core.yaml import dump, parse
from rlvr_cli.methods.controls import CONTROLS, has_control
from rlvr_cli.methods.equivalence import SameGradient
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.stats.intervals import Estimate, mean_interval
from rlvr_cli.store.arm import same_arms
from rlvr_cli.store.metrics import bounds
from rlvr_cli.sweeps.axes import REWARD, SEED
from rlvr_cli.sweeps.folder import SweepDir, SweepPlan, TrialStatus
from rlvr_cli.sweeps.objective import Objective
from rlvr_cli.sweeps.spec import read_sweep

CONFIRM = "confirm.yaml"
# The minimum number of fresh seeds, for the variance between runs.
MIN_FRESH_SEEDS = 5
# The maximum number of tied arms in a message.
SHOWN = 4


@dataclass(frozen=True)
class RankedArm:
    """Trials that differ only in the seed.

    Attributes:
        run: of the first trial.
        values: the objective of each finished trial, in the order of ``statuses``. planned: the number of trials.
        estimate: their mean with Student's 95% interval over seeds, on these problems; None without values.
    """

    name: str
    varies: dict[str, Any]
    run: RunDir
    statuses: tuple[TrialStatus, ...]
    values: tuple[float, ...]
    planned: int
    estimate: Estimate | None

    @property
    def complete(self) -> bool:
        return len(self.values) == self.planned

    @property
    def is_control(self) -> bool:
        return has_control(self.statuses[0].entry.method) or self.varies.get(REWARD) in CONTROLS

    @property
    def state(self) -> str:
        rest = dict.fromkeys(status.state for status in self.statuses if status.state != "finished")
        return ", ".join(rest) or ("finished" if self.complete else "no value" if not self.values else "waiting")

    def as_json(self) -> dict[str, Any]:
        mean = self.estimate
        return {
            "arm": self.name,
            "varies": self.varies,
            **{key: None if mean is None else getattr(mean, key) for key in ("value", "low", "high")},
            "seeds": len(self.values),
            "of": self.planned,
            "state": self.state,
            "trials": [status.entry.name for status in self.statuses],
        }


@dataclass(frozen=True)
class Ranking:
    """The arms, complete ones first, best first. ``notes``: on the values, or the errors in reading them."""

    objective: Objective
    arms: tuple[RankedArm, ...]
    notes: tuple[str, ...] = ()

    @property
    def complete(self) -> list[RankedArm]:
        return [arm for arm in self.arms if arm.complete]

    @property
    def best(self) -> RankedArm | None:
        return next(iter(self.complete), None)

    def sentences(self) -> list[str]:
        best, count = self.best, len(self.complete)
        if best is None or best.estimate is None:
            return [f"no arm has a value of {self.objective} for every seed yet", *self.notes]
        position = f"best of {count}" if count > 1 else "the only complete arm"
        lines = [f"{position} by {self.objective}: {best.name}, {_format_estimate(best.estimate)}"]
        value = best.estimate.value
        tied = [arm for arm in self.complete[1:] if arm.estimate is not None and arm.estimate.value == value]
        if tied:
            names = ellipsize([arm.name for arm in tied], SHOWN)
            lines.append(f"Tied with {names}.")
            lines += [group.sentence() for group in _identical_arms([best, *tied])]
        if count > 1:
            bias = "high" if self.objective.maximize else "low"
            pruned = sum(any(status.state == "pruned" for status in arm.statuses) for arm in self.arms)
            others = f" ({pruned} more pruned)" if pruned else ""
            lines.append(
                f"Winner's curse: the best of {count} arms{others}, so this number is biased {bias}. "
                "Confirm it with fresh seeds."
            )
        return [*lines, *self.notes]

    def table(self) -> Table:
        header = ("arm", self.objective.metric, "95% interval over seeds", "seeds", "status")
        rows = []
        for arm in self.arms:
            mean = arm.estimate
            interval = "-" if mean is None or mean.low is None else f"{mean.low:.3f} to {mean.high:.3f}"
            value = "-" if mean is None else f"{mean.value:.3f}"
            rows.append((arm.name, value, interval, f"{len(arm.values)}/{arm.planned}", arm.state))
        return Table("", header, rows)

    def as_json(self) -> dict[str, Any]:
        objective = {"metric": self.objective.metric, "of": self.objective.of, "maximize": self.objective.maximize}
        best = None if self.best is None else self.best.name
        return {**objective, "best": best, "arms": [arm.as_json() for arm in self.arms], "notes": self.sentences()}


def rank_arms(folder: SweepDir, plan: SweepPlan, statuses: Sequence[TrialStatus]) -> Ranking | None:
    """Rank the arms of ``plan`` by its objective; None without an objective."""
    objective = plan.objective
    if objective is None:
        return None
    groups: dict[str, list[TrialStatus]] = {}
    for status in statuses:
        rest = {key: value for key, value in status.entry.varies.items() if key != SEED}
        groups.setdefault(json.dumps(rest, sort_keys=True), []).append(status)
    seeds = 0 if plan.search is None else plan.search.seeds
    finished = [folder.run_dir(status.entry) for status in statuses if status.state == "finished"]
    try:
        values, notes = objective.values(finished)
    except (UserError, RunError) as error:
        values, notes = {}, tuple(str(error).splitlines())
    arms = []
    for group in groups.values():
        entry, paths = group[0].entry, [folder.run_dir(status.entry).path for status in group]
        arm_values = tuple(values[path] for path in paths if path in values)
        arms.append(
            RankedArm(
                name=entry.name.removesuffix(f"-s{entry.seed}"),
                varies={key: value for key, value in entry.varies.items() if key != SEED},
                run=folder.run_dir(entry),
                statuses=tuple(group),
                values=arm_values,
                planned=max(seeds, len(group)),
                estimate=mean_interval(arm_values, bounds(objective.metric)) if arm_values else None,
            )
        )
    sign = -1 if objective.maximize else 1
    arms.sort(
        key=lambda arm: (not arm.complete, arm.estimate is None, sign * arm.estimate.value if arm.estimate else 0.0)
    )
    return Ranking(objective, tuple(arms), notes)


def _identical_arms(arms: Sequence[RankedArm]) -> list[SameGradient]:
    groups = same_arms({arm.name: load_config([arm.run.config_path]) for arm in arms})
    return [group for group in groups if group.cannot_differ]


def write_confirmation(folder: SweepDir, plan: SweepPlan, ranking: Ranking) -> None:
    """Write `confirm.yaml`: the best arm and the next with another gradient, on fresh seeds."""
    (folder.path / CONFIRM).unlink(missing_ok=True)
    arms = [arm for arm in ranking.complete if arm.varies and not arm.is_control]
    second = next((arm for arm in arms[1:] if not _identical_arms([arms[0], arm])), None)
    if second is None:
        return
    best = [arms[0], second]
    file = read_sweep(folder.file_copy)
    seeds = [entry.seed for entry in plan.trials]
    first, fresh = max(seeds) + 1, max(MIN_FRESH_SEEDS, best[0].planned)
    overrides = [text.partition("=") for text in plan.given if "=" in text and not text.startswith("--")]
    cli_values = {key: parse(value).data for key, _, value in overrides}
    evaluation = {} if file.spec.eval is None else file.spec.eval.model_dump(mode="json", exclude_unset=True)
    if evaluation.get("split") == "dev":
        # The arms were selected on dev; report on test.
        del evaluation["split"]
    content = {
        "name": f"{plan.name}-confirm",
        "base": [f"{folder.base_dir.name}/{Path(name).name}" for name in plan.trials[0].base],
        "set": {**file.spec.set, **cli_values, "run.dir": str(folder.path.resolve().parent)},
        "list": [arm.varies for arm in best],
        "seeds": list(range(first, first + fresh)),
        "slots": file.spec.slots.model_dump(exclude_unset=True),
        "retries": file.spec.retries,
        "eval": evaluation,
    }
    head = (
        f"# The two best arms of {len(ranking.complete)} that can differ, by {ranking.objective}, with fresh seeds.\n"
    )
    text = dump({key: value for key, value in content.items() if value or key in ("eval", "retries")})
    write_text(folder.path / CONFIRM, head + text)


def confirmation_command(folder: SweepDir, plan: SweepPlan) -> str | None:
    """Return the commands that compare the best two arms with fresh seeds; None without a confirmation file."""
    file = folder.path / CONFIRM
    if not file.exists():
        return None
    confirm_folder = str(folder.path.parent / f"{plan.name}-confirm")
    return f"{shlex.join(['rlvr', 'sweep', str(file)])} && {shlex.join(['rlvr', 'compare', confirm_folder])}"


def _format_estimate(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        reason = "one seed" if estimate.n == 1 else f"the same with {estimate.n} seeds"
        return f"{estimate.value:.3f} ({reason}: no interval)"
    return f"{estimate.value:.3f} (95% interval over {estimate.n} seeds {estimate.low:.3f} to {estimate.high:.3f})"
