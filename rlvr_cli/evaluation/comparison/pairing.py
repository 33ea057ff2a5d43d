"""What the arms have in common: seeds, and problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlvr_cli.evaluation.compare import Evaluation
from rlvr_cli.evaluation.comparison.records import Arm, Replicate, few


def pair_runs(
    arms: Sequence[Arm], problems: list[str], notes: list[str], *, unpaired: bool = False
) -> dict[str, tuple[Replicate, ...]]:
    """The replicates of each arm that are compared, by its name: those that all arms have, each arm's all if
    ``unpaired``.

    Args:
        problems: gets a line where the arms have none in common. notes: gets one where some are left out.
    """
    if unpaired:
        return {arm.name: tuple(arm.runs) for arm in arms}
    common = set(arms[0].runs).intersection(*(arm.runs for arm in arms))
    if not common:
        shown = "; ".join(f"{arm.name}: {listed(list(arm.runs))}" for arm in arms)
        problems.append(
            f"no seed is common to all arms ({shown}). Runs are paired by their seed, which gives them the same "
            "problems in the same order: train the arms with the same seeds, compare fewer arms, or give --unpaired."
        )
        return {}
    for arm in arms:
        out = [replicate for replicate in arm.runs if replicate not in common]
        if out:
            notes.append(f"left out, for not all arms have them: {listed(out)} of {arm.name}.")
    return {arm.name: tuple(sorted(common)) for arm in arms}


def shared_problems(
    evaluations: Mapping[str, Evaluation], problems: list[str], notes: list[str], *, only_common: bool = False
) -> tuple[str, ...]:
    """The ids of the problems that every evaluation has, sorted.

    Args:
        evaluations: by what a reader knows each by.
        problems: gets a line where they are not of the same problems, unless ``only_common`` says to compare those
            that all have; ``notes`` gets it then.
    """
    by_set: dict[frozenset[str], list[str]] = {}
    for name, evaluation in evaluations.items():
        by_set.setdefault(frozenset(row.id for row in evaluation.rows), []).append(name)
    common = frozenset.intersection(*by_set)
    if len(by_set) == 1:
        return tuple(sorted(common))
    shown = "; ".join(f"{len(ids)} in {few(names)}{_example(ids - common)}" for ids, names in by_set.items())
    what = f"the evaluations are of different problems ({shown}): {len(common)} are common to all"
    if not common:
        problems.append(f"{what}, so nothing can be compared. Evaluate all runs with the same --split and --data.")
    elif only_common:
        notes.append(f"{what}, and compared.")
    else:
        problems.append(
            f"{what}. Evaluate all runs with the same --problems, --split and --data, or compare the common ones alone "
            "with --common-problems."
        )
    return tuple(sorted(common))


def _example(ids: frozenset[str]) -> str:
    return f", {len(ids)} of them not in all, as {min(ids)}" if ids else ""


def listed(replicates: Sequence[Replicate]) -> str:
    """`seeds 0, 1`; with what else varies, where something does."""
    if any(one.rest for one in replicates):
        return ", ".join(str(one) for one in replicates)
    return f"seed{'' if len(replicates) == 1 else 's'} {', '.join(str(one.seed) for one in replicates)}"
