"""What a reader of a comparison must know beside its numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from rlvr_cli.compare.choose import Chosen
from rlvr_cli.config.schema import Config
from rlvr_cli.methods.equivalence import same_gradients
from rlvr_cli.results.arms import Arm, Replicate, learned
from rlvr_cli.results.find import Run

# Below so many runs an arm, the estimated spread between them may be far from the true one.
FEW = 5


def remarks(arms: Sequence[Arm], runs: Sequence[Run], chosen: Mapping[str, Chosen]) -> list[str]:
    """Remarks on runs that are not finished, checkpoints that are not the last, other code and machines, and arms that
    cannot differ."""
    found = [
        f"{run.path} is not finished: rollout {run.manifest.get('rollout')} of {run.manifest.get('rollouts_total')}."
        for run in sorted(runs, key=lambda run: run.path)
        if run.manifest.get("status") != "finished"
    ]
    found += [
        f"{path}: evaluated at step {max(one.steps)}, and trained until step {one.run.manifest.get('step')}: "
        f"`rlvr eval {path}` evaluates the newest checkpoint."
        for path, one in sorted(chosen.items())
        if one.steps and isinstance(last := one.run.manifest.get("step"), int) and max(one.steps) < last
    ]
    for arm in arms:
        code = {_at(run, "method_fingerprint", "code_sha256") for run in arm.runs.values() if run in runs}
        if len(code) > 1:
            found.append(f"the runs of {arm.name} were made by {len(code)} versions of the method's code.")
    machines = {(_at(run, "hardware", "processor"), str(run.manifest.get("threads"))) for run in runs}
    if len(machines) > 1:
        shown = "; ".join(f"{processor}, {threads} threads" for processor, threads in sorted(machines))
        found.append(f"the runs were made on different machines ({shown}): their seconds cannot be compared.")
    return [*found, *_cannot_differ(arms)]


def few_seeds(pairs: Mapping[str, Sequence[Replicate]]) -> list[str]:
    """What two to four runs an arm cannot tell; of one, the sentences say it."""
    fewest = min(map(len, pairs.values()))
    if not 2 <= fewest < FEW:
        return []
    return [
        f"{fewest} runs an arm tell little of the spread between runs: intervals are as wide as that makes them, and "
        f"how many seeds or problems would be needed is a rough guess. {FEW} seeds tell much more."
    ]


def _cannot_differ(arms: Sequence[Arm]) -> list[str]:
    """Of arms that differ in the method alone: those whose methods are the same gradient at their number of updates."""
    alike: dict[str, list[tuple[str, Config]]] = {}
    for arm in arms:
        run = next(iter(arm.runs.values()))
        rest = {key: value for key, value in learned(run).items() if not key.startswith("method.")}
        alike.setdefault(json.dumps(rest, sort_keys=True), []).append((arm.name, run.config))
    found = []
    for group in alike.values():
        update = group[0][1].update
        same = same_gradients({name: run.method for name, run in group}, update.mini_batches * update.epochs)
        found += [one.sentence() for one in same if one.when != "first_step"]
    return found


def _at(run: Run, *path: str) -> str:
    value: object = run.manifest
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return str(value)
