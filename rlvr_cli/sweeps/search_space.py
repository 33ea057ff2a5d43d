"""What an adaptive search chooses from: the axes of the sweep file, without its seeds and its exclusions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, product
from typing import Any

from rlvr_cli.core.layers import override_text
from rlvr_cli.core.yaml import yaml_text
from rlvr_cli.sweeps.axes import SEED, Axis, AxisPoint, exclusions, matches, values_of
from rlvr_cli.sweeps.spec import SpecProblem, SweepFile

# Of all combinations of values and ends of ranges, so many are looked at for problems before a search.
MOST_CORNERS = 64
# A space with more combinations is not counted.
MOST_COUNTED = 10_000


@dataclass(frozen=True)
class Space:
    """The axes of a search, the points of the seeds that each configuration is run with, and what is excluded."""

    axes: tuple[Axis, ...]
    seeds: tuple[AxisPoint, ...]
    excluding: tuple[Mapping[str, Any], ...] = ()

    @property
    def keys(self) -> list[str]:
        """What varies in the names of trials."""
        return [*(key for axis in self.axes for key in axis.keys), *([SEED] if len(self.seeds) > 1 else [])]

    def points(self, parameters: Mapping[str, Any]) -> tuple[AxisPoint, ...]:
        """The configuration of a sampler's parameters, by the names of the axes."""
        found = []
        for axis in self.axes:
            suggested = parameters[axis_name(axis)]
            if axis.interval is None:
                found.append(axis.points[labels(axis).index(suggested)])
            else:
                found.append(AxisPoint({axis.keys[0]: axis.interval.value(suggested)}, axis.place))
        return tuple(found)

    def locate(self, values: Mapping[str, Any]) -> dict[str, Any] | None:
        """The parameters of a trial with these values; None for one that is not in this space."""
        rest = {key: value for key, value in values.items() if key != SEED}
        found: dict[str, Any] = {}
        for axis in self.axes:
            own = {key: rest.pop(key) for key in axis.keys if key in rest}
            if axis.interval is not None:
                value = own.get(axis.keys[0])
                if value is None or value not in axis.interval:
                    return None
                found[axis_name(axis)] = value
                continue
            place = next((place for place, point in enumerate(axis.points) if dict(point.values) == own), None)
            if place is None:
                return None
            found[axis_name(axis)] = labels(axis)[place]
        return None if rest else found

    def excludes(self, points: Sequence[AxisPoint]) -> bool:
        """Whether a combination is left out."""
        values = values_of(tuple(points))
        return any(matches(rule, values) for rule in self.excluding)

    def corners(self) -> list[tuple[AxisPoint, ...]]:
        """Combinations with every value and both ends of every range, and some more; none that is excluded."""
        sides = [axis.points for axis in self.axes]
        candidates = chain(_around(sides, 0), _around(sides, -1), islice(product(*sides), MOST_COUNTED))
        kept: dict[tuple[int, ...], tuple[AxisPoint, ...]] = {}
        most = max(MOST_CORNERS, 2 * sum(map(len, sides)))
        for points in candidates:
            if len(kept) == most:
                break
            if not self.excludes(points):
                kept.setdefault(tuple(map(id, points)), points)
        return list(kept.values())

    def size(self) -> int | None:
        """How many configurations there are; None where they are too many to count."""
        sides = [_all_points(axis) for axis in self.axes]
        if any(side is None for side in sides) or math.prod(len(side or ()) for side in sides) > MOST_COUNTED:
            return None
        return sum(not self.excludes(points) for points in product(*(side or () for side in sides)))


def axis_name(axis: Axis) -> str:
    """The parameter that an axis is to a sampler."""
    return ", ".join(axis.keys)


def labels(axis: Axis) -> list[str]:
    """The categories of an axis of points: a sampler takes words and numbers alone."""
    return [", ".join(override_text(key, value) for key, value in point.values.items()) for point in axis.points]


def split_seeds(file: SweepFile, axes: Sequence[Axis], problems: list[SpecProblem]) -> Space:
    """The space of a search; ``problems`` get what no search can have."""
    searched = [axis for axis in axes if axis.keys != (SEED,) or axis.place != file.place("seeds")]
    seeds = next((axis.points for axis in axes if axis not in searched), (AxisPoint({}, file.place("seeds")),))
    twice = [str(seed) for seed, number in Counter(point.values.get(SEED) for point in seeds).items() if number > 1]
    if twice:
        problems.append(
            (file.place("seeds"), f"seeds: {', '.join(twice)} twice; each seed of a configuration is one run")
        )
    for axis in searched:
        if SEED in axis.keys:
            problems.append((axis.place, f"{SEED}: every configuration of a search is run with all `seeds`; no axis"))
    if not searched and not problems:
        problems.append((file.place("search"), "search: nothing to search in; give methods, grid, zip or list"))
    rules = []
    for place, entry, rule in exclusions(searched, file, problems):
        if rule is None:
            continue
        open_ = [axis.keys[0] for axis in searched if axis.interval and axis.interval.step is None]
        loose = [key for key in rule if key in open_]
        if loose:
            said = f"exclude: {', '.join(loose)} is searched over a range, which meets no single value; exclude others"
            problems.append((place, said))
        elif not _meets(rule, searched):
            problems.append((place, f"exclude: {yaml_text(dict(entry))} matches no trial"))
        rules.append(rule)
    space = Space(tuple(searched), tuple(seeds), tuple(rules))
    if not problems and not space.corners():
        problems.append((file.place("exclude"), "exclude: leaves nothing to search in"))
    return space


def _meets(rule: Mapping[str, Any], axes: Sequence[Axis]) -> bool:
    """Whether some combination has the values of ``rule``."""
    for axis in axes:
        own = {key: value for key, value in rule.items() if key in axis.keys}
        points = _all_points(axis)
        if own and points is not None and not any(matches(own, point.values) for point in points):
            return False
    return True


def _all_points(axis: Axis) -> Sequence[AxisPoint] | None:
    """Every value of an axis; None for a range of too many."""
    interval = axis.interval
    if interval is None:
        return axis.points
    if interval.step is None or (interval.high - interval.low) / interval.step > MOST_COUNTED:
        return None
    number = round((interval.high - interval.low) / interval.step)
    values = [interval.value(interval.low + place * interval.step) for place in range(number + 1)]
    return [AxisPoint({axis.keys[0]: value}, axis.place) for value in values]


def _around(sides: Sequence[Sequence[AxisPoint]], end: int) -> Iterator[tuple[AxisPoint, ...]]:
    """The combination of all first (or last) points, and those that differ from it in one of them."""
    middle = [side[end] for side in sides]
    yield tuple(middle)
    for place, side in enumerate(sides):
        for point in side:
            yield (*middle[:place], point, *middle[place + 1 :])
