"""Group runs into arms, and name the arms by the keys that vary between them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from rlvr_cli.config.keys import KEYS
from rlvr_cli.config.load import leaves
from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import UserError, collect_problems
from rlvr_cli.core.text import did_you_mean
from rlvr_cli.methods.correction import Correction
from rlvr_cli.methods.equivalence import SameGradient, find_same_gradients
from rlvr_cli.methods.method import AnyMethod
from rlvr_cli.store.find import Run

METHOD = "method.name"
SEED = "run.seed"
# Keys that do not change the trained weights: folders, speed and measurements.
NOT_LEARNED = ("run", "track", "launch", "slurm", "checkpoint", "validation", "eval")
NOT_LEARNED_KEYS = ("rollout.batch", "update.micro_batch", "update.micro_tokens", "model.gradient_checkpointing")
_ABSENT = "absent"

Values = dict[str, str]


@dataclass(frozen=True, order=True)
class Replicate:
    """A run within its arm: its seed, and ``rest``, the other keys that vary within arms as `key=value ...`."""

    seed: int
    rest: str = ""

    def __str__(self) -> str:
        return f"seed {self.seed} {self.rest}".rstrip()


@dataclass(frozen=True)
class Arm:
    """Replicates of one configuration; ``runs`` in the order of their replicates."""

    name: str
    method: str
    runs: dict[Replicate, Run]


def group_arms(runs: Sequence[Run], by: Sequence[str] = (), *, alone: bool = False) -> tuple[Arm, ...]:
    """Return the arms among ``runs``, sorted by name.

    Args:
        by: keys or sections whose values define an arm; none = every key that changes the training except the seed.
        alone: accept a single arm.
    Raises UserError for an unknown key of ``by``, two runs of an arm with the same replicate, and a single arm.
    """
    groups = group_runs_by_arm(runs, expand_keys("--by", by, {key for run in runs for key in run.values}))
    if len(groups) == 1 and not alone:
        raise UserError(_single_arm_message(next(iter(groups.values())), by))
    rests, problems, arms = _rests(list(groups.values())), list[str](), list[Arm]()
    for name, group in groups.items():
        with collect_problems(problems):
            arms.append(_make_arm(name, group, rests))
    if problems:
        raise UserError(problems)
    return tuple(arms)


def group_runs_by_arm(runs: Sequence[Run], keys: Collection[str] = ()) -> dict[str, list[Run]]:
    """Return runs by arm, sorted; ``keys`` define an arm, by default all that change the training except the seed."""
    groups: dict[tuple[tuple[str, str], ...], list[Run]] = {}
    for run in runs:
        values = _format_values(run.values, keys) if keys else training_values(run.values)
        groups.setdefault(tuple(values.items()), []).append(run)
    return dict(sorted(zip(_names([dict(group) for group in groups]), groups.values(), strict=True), key=itemgetter(0)))


def expand_keys(option: str, names: Sequence[str], recorded: Collection[str] = ()) -> set[str]:
    """Expand keys or sections; ``recorded`` adds keys of user files. Raises UserError for unknown keys and the seed."""
    keys, problems = set[str](), list[str]()
    for name in names:
        below = {key for key in (*KEYS.key_names, *recorded) if key == name or key.startswith(f"{name}.")}
        if SEED in below:
            problems.append(f"{option} {name}: the seed cannot define arms; the intervals are over seeds.")
            continue
        if not below:
            candidates = [*KEYS.section_names, *KEYS.key_names]
            problems.append(
                f"{option} {name}: unknown key.{did_you_mean(name, candidates)} `rlvr config keys` lists all keys."
            )
        keys |= below
    if problems:
        raise UserError(problems)
    return keys


def group_by_keys(runs: Sequence[Run], keys: set[str]) -> dict[str, list[Run]]:
    """Group runs by ``keys``, sorted by name: a value if it identifies the key, else `key=value ...`."""
    groups: dict[tuple[tuple[str, str], ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(tuple(_format_values(run.values, keys).items()), []).append(run)
    values = [dict(group) for group in groups]
    varying = [key for key in sorted(keys) if _varies(key, values)]
    unique = [key for key in varying if len({group.get(key) for group in values}) == len(values)]
    alone = next((key for key in unique if key.endswith(".name")), varying[0] if len(varying) == 1 else None)
    names = _names(values) if alone is None else [group.get(alone, _ABSENT) for group in values]
    return dict(sorted(zip(names, groups.values(), strict=True)))


def training_values(values: Mapping[str, Any]) -> Values:
    """Return the dotted keys that change the training, except the seed, with their values as text."""
    keys = {key for key in values if key.split(".", 1)[0] not in NOT_LEARNED and key not in NOT_LEARNED_KEYS}
    return _format_values(values, keys)


def same_arms(configs: Mapping[str, Config]) -> list[SameGradient]:
    """Return the groups of arms whose methods differ but have the same gradient, all other training keys equal."""
    groups: dict[tuple[int, str], tuple[Correction | None, dict[str, AnyMethod]]] = {}
    for name, config in configs.items():
        values = training_values({".".join(path): value for path, value in leaves(config)})
        rest = {key: value for key, value in values.items() if not key.startswith("method.")}
        updates = config.update.mini_batches * config.update.epochs
        group = groups.setdefault((updates, json.dumps(rest, sort_keys=True)), (config.rollout.active_correction, {}))
        group[1][name] = config.method
    return [
        same
        for (updates, _), (correction, methods) in groups.items()
        for same in find_same_gradients(methods, updates, correction)
        if len({methods[name].model_dump_json() for name in same.names}) > 1
    ]


def _format_values(values: Mapping[str, Any], keys: Collection[str]) -> Values:
    return {key: _format_value(value) for key, value in values.items() if key in keys}


def _rests(members: Sequence[Sequence[Run]]) -> dict[str, str]:
    """Return by run path the values, besides the seed, that vary within some arm and pair runs across arms."""
    texts = [[training_values(run.values) for run in group] for group in members]
    pooled = {key for group in texts for values in group for key in values if _varies(key, group)}
    runs = [run for group in members for run in group]
    rests = [tuple((k, v) for k, v in values.items() if k in pooled) for group in texts for values in group]
    distinct = list(dict.fromkeys(rests))
    named = dict(zip(distinct, _names([dict(rest) for rest in distinct]), strict=True))
    return {run.path: named[rest] for run, rest in zip(runs, rests, strict=True)}


def _make_arm(name: str, group: Sequence[Run], rests: dict[str, str]) -> Arm:
    """Return the arm of ``group``. Raises UserError with every duplicate replicate."""
    runs, problems = dict[Replicate, Run](), list[str]()
    for run in group:
        replicate = Replicate(run.seed, rests[run.path])
        if replicate in runs:
            problems.append(_duplicate_message(name, replicate, runs[replicate], run))
        runs.setdefault(replicate, run)
    if problems:
        raise UserError(problems)
    return Arm(name, str(group[0].values[METHOD]), {key: runs[key] for key in sorted(runs)})


def _duplicate_message(name: str, replicate: Replicate, first: Run, second: Run) -> str:
    differing = sorted(key for key in first.values if first.values[key] != second.values.get(key))
    differing = [key for key in differing if key not in ("run.name", "run.dir", "track.name")]
    reason = f"they differ in {', '.join(differing)}; --by can split them" if differing else "they are identical"
    return f"{first.path} and {second.path} are both {replicate} of arm {name} ({reason}). Leave one out."


def _single_arm_message(group: Sequence[Run], by: Sequence[str]) -> str:
    if len(group) == 1:
        return f"{group[0].path} is a single run: a comparison needs two arms."
    if by:
        return f"--by {','.join(by)}: is equal in all {len(group)} runs, so there is only one arm. Use another key."
    return (
        f"all {len(group)} runs differ only in the seed and in keys that do not change the training, so there is only "
        "one arm. Use --by KEY to group by another key."
    )


def _names(groups: Sequence[Values]) -> list[str]:
    """Name each group of values: its method if methods differ, then `key=value` for each other distinguishing key.

    A key of the method is included only if it distinguishes groups with the same method.
    """
    methods = [values.get(METHOD, "") for values in groups]
    several = all(methods) and len(set(methods)) > 1
    distinguishing: list[Values] = []
    for values, method in zip(groups, methods, strict=True):
        same = [other for other, name in zip(groups, methods, strict=True) if name == method]
        unique = {}
        for key, text in values.items():
            others = same if several and key.startswith("method.") else groups
            if key != METHOD and _varies(key, others):
                unique[key] = text
        distinguishing.append(unique)
    short = _shorten_keys({key for unique in distinguishing for key in unique})
    return [
        " ".join(
            [*([method] if several or not unique else []), *(f"{short[key]}={text}" for key, text in unique.items())]
        )
        for method, unique in zip(methods, distinguishing, strict=True)
    ]


def _varies(key: str, groups: Sequence[Values]) -> bool:
    return len({values.get(key, _ABSENT) for values in groups}) > 1


def _shorten_keys(keys: set[str]) -> dict[str, str]:
    """Return each key's shortest unique suffix; `name` and `kind` are never used alone."""

    def suffix(key: str, count: int) -> str:
        return ".".join(key.split(".")[-count:])

    short = {}
    for key in keys:
        depth = key.count(".") + 1
        fewest = 2 if key.rsplit(".", 1)[-1] in ("name", "kind") else 1
        unique = (n for n in range(fewest, depth) if all(suffix(other, n) != suffix(key, n) for other in keys - {key}))
        short[key] = suffix(key, next(unique, depth))
    return short


def _format_value(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, sort_keys=True, ensure_ascii=False)
