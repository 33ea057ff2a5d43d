"""The space of an adaptive search: the axes of the sweep file without its seeds, less the exclusions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from rlvr_cli.core.layers import override_text
from rlvr_cli.sweeps.axes import MOST_TRIALS, SEED, Axis, AxisPoint, Exclusion, SweepAxes
from rlvr_cli.sweeps.spec import SpecProblem, SweepFile


@dataclass(frozen=True)
class Space:
    """The axes of a search, the seeds of each configuration, and the exclusions."""

    axes: tuple[Axis, ...]
    seeds: tuple[AxisPoint, ...]
    exclusions: tuple[Exclusion, ...] = ()

    @property
    def keys(self) -> list[str]:
        """The keys that vary in the names of trials."""
        return [*(key for axis in self.axes for key in axis.keys), *([SEED] if len(self.seeds) > 1 else [])]

    def points(self, parameters: Mapping[str, Any]) -> tuple[AxisPoint, ...]:
        """Convert a sampler's parameters, by axis name, to a configuration."""
        points = []
        for axis in self.axes:
            suggested = parameters[axis_name(axis)]
            if axis.interval is None:
                points.append(axis.points[labels(axis).index(suggested)])
            else:
                points.append(AxisPoint({axis.keys[0]: axis.interval.value(suggested)}, axis.location))
        return tuple(points)

    def excludes(self, points: Sequence[AxisPoint]) -> bool:
        return any(exclusion.matches(points) for exclusion in self.exclusions)

    def corners(self) -> list[tuple[AxisPoint, ...]]:
        """Return combinations that cover every value and both ends of every range, to validate before a search."""
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
        if any(axis.interval for axis in self.axes) or math.prod(map(len, sides)) > MOST_TRIALS:
            return None
        return sum(not self.excludes(points) for points in product(*sides))


def axis_name(axis: Axis) -> str:
    """Return the sampler's parameter name of an axis."""
    return ", ".join(axis.keys)


def labels(axis: Axis) -> list[str]:
    """Return the categories of an axis of points; a sampler accepts only scalars and strings."""
    return [", ".join(override_text(key, value) for key, value in point.values.items()) for point in axis.points]


def search_space(file: SweepFile, axes: SweepAxes) -> tuple[Space, list[SpecProblem]]:
    """Return the space of a search, and its problems."""
    seed_axis = next(
        (axis for axis in axes.axes if axis.keys == (SEED,) and axis.location == file.location("seeds")), None
    )
    searched = tuple(axis for axis in axes.axes if axis is not seed_axis)
    seeds = (AxisPoint({}, file.location("seeds")),) if seed_axis is None else seed_axis.points
    repeated = [str(seed) for seed, number in Counter(point.values.get(SEED) for point in seeds).items() if number > 1]
    problems = [
        (file.location("seeds"), f"seeds: {seed} twice; each seed of a configuration is one run") for seed in repeated
    ]
    problems += [
        (axis.location, f"{SEED}: every configuration of a search is run with all `seeds`; no axis")
        for axis in searched
        if SEED in axis.keys
    ]
    if not searched and not axes.problems:
        problems.append((file.location("search"), "search: the search space is empty. Set methods, grid, zip or list"))
    ranged = {axis.keys[0] for axis in searched if axis.interval}
    for exclusion in axes.exclusions:
        if isinstance(exclusion.rule, str):
            problems.append((exclusion.location, f"exclude: {exclusion.rule}: a search excludes values"))
        elif wrong := exclusion.rule.keys() & {*ranged, SEED}:
            message = f"exclude: {', '.join(sorted(wrong))} cannot be excluded in a search: it is a range, or the seed"
            problems.append((exclusion.location, message))
        elif not all(_matches_a_point(exclusion, axis) for axis in searched):
            problems.append((exclusion.location, f"exclude: {exclusion.written} matches no trial"))
    space = Space(searched, tuple(seeds), axes.exclusions)
    if not problems and not axes.problems and not space.corners():
        problems.append((file.location("exclude"), "exclude: leaves an empty search space"))
    return space, problems


def _matches_a_point(exclusion: Exclusion, axis: Axis) -> bool:
    """Return whether a point of the axis has the excluded values of the axis's keys."""
    assert not isinstance(exclusion.rule, str)
    of_axis = replace(exclusion, rule={key: value for key, value in exclusion.rule.items() if key in axis.keys})
    return any(of_axis.matches([point]) for point in axis.points)
