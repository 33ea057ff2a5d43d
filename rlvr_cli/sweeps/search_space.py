"""The space of an adaptive search: the axes of the sweep file except seeds, and the exclusions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from rlvr_cli.core.layers import format_override
from rlvr_cli.sweeps.axes import MAX_TRIALS, SEED, Axis, AxisPoint, Exclusion, SweepAxes
from rlvr_cli.sweeps.spec import SpecProblem, SweepFile


@dataclass(frozen=True)
class Space:
    axes: tuple[Axis, ...]
    seeds: tuple[AxisPoint, ...]
    exclusions: tuple[Exclusion, ...] = ()

    @property
    def keys(self) -> list[str]:
        return [*(key for axis in self.axes for key in axis.keys), *([SEED] if len(self.seeds) > 1 else [])]

    def decode(self, parameters: Mapping[str, Any]) -> tuple[AxisPoint, ...]:
        """Return the points of a sampler's parameters, given by axis name."""
        points = []
        for axis in self.axes:
            suggested = parameters[axis_name(axis)]
            if axis.interval is None:
                points.append(axis.points[categories(axis).index(suggested)])
            else:
                points.append(AxisPoint({axis.keys[0]: axis.interval.round_suggestion(suggested)}, axis.location))
        return tuple(points)

    def excludes(self, points: Sequence[AxisPoint]) -> bool:
        return any(exclusion.matches(points) for exclusion in self.exclusions)

    def corners(self) -> list[tuple[AxisPoint, ...]]:
        """Return combinations with every value and both ends of every range, to validate before a search."""
        candidates: list[tuple[AxisPoint, ...]] = []
        for end in (0, -1):
            middle = tuple(axis.points[end] for axis in self.axes)
            for number, axis in enumerate(self.axes):
                candidates += [(*middle[:number], point, *middle[number + 1 :]) for point in axis.points]
        corners = {tuple(map(id, points)): points for points in candidates if not self.excludes(points)}
        return list(corners.values())

    def size(self) -> int | None:
        """Return the number of configurations; None if it is infinite or too large to count."""
        sides = [axis.points for axis in self.axes]
        if any(axis.interval for axis in self.axes) or math.prod(map(len, sides)) > MAX_TRIALS:
            return None
        return sum(not self.excludes(points) for points in product(*sides))


def axis_name(axis: Axis) -> str:
    return ", ".join(axis.keys)


def categories(axis: Axis) -> list[str]:
    """Return a string for each point of an axis; a sampler accepts only scalars and strings."""
    return [", ".join(format_override(key, value) for key, value in point.values.items()) for point in axis.points]


def read_search_space(file: SweepFile, axes: SweepAxes) -> tuple[Space, list[SpecProblem]]:
    seed_axis = next(
        (axis for axis in axes.axes if axis.keys == (SEED,) and axis.location == file.location("seeds")), None
    )
    searched = tuple(axis for axis in axes.axes if axis is not seed_axis)
    seeds = (AxisPoint({}, file.location("seeds")),) if seed_axis is None else seed_axis.points
    repeated = [str(seed) for seed, number in Counter(point.values.get(SEED) for point in seeds).items() if number > 1]
    problems = [
        (file.location("seeds"), f"seeds: duplicate seed {seed}; a search needs distinct seeds") for seed in repeated
    ]
    problems += [
        (axis.location, f"{SEED}: cannot be an axis of a search, which runs every configuration with all `seeds`")
        for axis in searched
        if SEED in axis.keys
    ]
    if not searched and not axes.problems:
        problems.append((file.location("search"), "search: has no axis; set methods, grid, zip or list"))
    ranged = {axis.keys[0] for axis in searched if axis.interval}
    for exclusion in axes.exclusions:
        if isinstance(exclusion.rule, str):
            problems.append(
                (exclusion.location, f"exclude: {exclusion.rule}: must be values in a search, not a pattern of names")
            )
        elif unsupported := exclusion.rule.keys() & {*ranged, SEED}:
            message = (
                f"exclude: {', '.join(sorted(unsupported))} cannot be excluded in a search: it is a range, or the seed"
            )
            problems.append((exclusion.location, message))
        elif not all(_matches_a_point(exclusion, axis) for axis in searched):
            problems.append((exclusion.location, f"exclude: {exclusion.written} matches no trial"))
    space = Space(searched, tuple(seeds), axes.exclusions)
    if not problems and not axes.problems and not space.corners():
        problems.append((file.location("exclude"), "exclude: excludes the whole space of the search"))
    return space, problems


def _matches_a_point(exclusion: Exclusion, axis: Axis) -> bool:
    assert not isinstance(exclusion.rule, str)
    axis_rule = replace(exclusion, rule={key: value for key, value in exclusion.rule.items() if key in axis.keys})
    return any(axis_rule.matches([point]) for point in axis.points)
