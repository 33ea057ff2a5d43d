"""The axes of a sweep: their values, and the excluded combinations."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import product
from typing import Any

from rlvr_cli.config.keys import KEYS
from rlvr_cli.config.schema import RUN_NAME, Config
from rlvr_cli.config.user_files import Imports, make_method_absolute, names_user_file, replace_paths
from rlvr_cli.core.errors import ConfigError, UserError
from rlvr_cli.core.include import INCLUDE, load_source_files
from rlvr_cli.core.layers import Layer, Merged, format_override, parse_override
from rlvr_cli.core.recipes import config_file
from rlvr_cli.core.text import did_you_mean
from rlvr_cli.core.yaml import yaml_text
from rlvr_cli.methods.controls import modifier_of
from rlvr_cli.methods.names import METHODS
from rlvr_cli.sweeps.spec import SpecProblem, SweepFile

METHOD, REWARD, SEED = "method.name", "method.reward.source", "run.seed"
# The key of a `list` item that names its trials.
NAME = "name"
RESERVED_KEYS = {
    "run.name": "trials are named by what varies",
    "track.name": "trials are named by what varies",
    "run.dir": "all trials of a sweep are in one folder; set it in `set`",
}
MAX_TRIALS = 10_000


@dataclass(frozen=True)
class Interval:
    """The closed range [low, high] of a search, of integers if both ends are; ``log``: log-uniform."""

    low: float
    high: float
    log: bool

    @property
    def is_integer(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    def round_suggestion(self, suggested: float) -> float:
        """Round to an integer, or to 6 significant digits (1e-05, not 9.99999999e-06)."""
        return round(suggested) if self.is_integer else min(max(float(f"{suggested:.6g}"), self.low), self.high)


def parse_interval(written: Any) -> Interval | None:
    """Parse `{range: [low, high]}` or `{log_range: [low, high]}`; return None for anything else."""
    if not isinstance(written, dict) or len(written) != 1 or not written.keys() <= {"range", "log_range"}:
        return None
    ((kind, ends),) = written.items()
    if not isinstance(ends, list) or len(ends) != 2 or not all(type(end) in (int, float) for end in ends):
        return None
    low, high = ends
    log = kind == "log_range"
    return Interval(low, high, log) if math.isfinite(high - low) and low < high and (low > 0 or not log) else None


@dataclass(frozen=True)
class AxisPoint:
    """Values set together, by full key (:func:`full_key`), and the line that sets them.

    Attributes:
        name: replaces the values in a trial's name.
        locations: lines of the values from included files.
        option: the argument of `--method` for a method in Python files.
    """

    values: Mapping[str, Any]
    location: str
    name: str | None = None
    locations: Mapping[str, str] = field(default_factory=dict)
    option: str | None = None


@dataclass(frozen=True)
class Axis:
    """Alternative points; each trial has one of them. With an ``interval`` (in a search) its two ends."""

    keys: tuple[str, ...]
    points: tuple[AxisPoint, ...]
    location: str
    interval: Interval | None = None


@dataclass(frozen=True)
class Exclusion:
    """An item of `exclude`: a pattern of names, or values by full key; a list matches any of its values."""

    location: str
    rule: str | Mapping[str, Any]
    written: str

    def matches(self, points: Sequence[AxisPoint]) -> bool:
        if isinstance(self.rule, str):
            return fnmatchcase("-".join(split_names(points)[0]), self.rule)
        values = merge_values(points)
        return all(
            key in values
            and any(
                _normalize(key, values[key]) == _normalize(key, value)
                for value in (excluded if isinstance(excluded, list) else [excluded])
            )
            for key, excluded in self.rule.items()
        )


@dataclass(frozen=True)
class SweepAxes:
    axes: tuple[Axis, ...]
    exclusions: tuple[Exclusion, ...]
    problems: tuple[SpecProblem, ...]


def full_key(key: str) -> str:
    """Expand a shorthand key: `method` -> `method.name`; `optimizer.lr` is unchanged."""
    plain = KEYS.plain_key(tuple(key.split(".")))
    return f"{key}.{plain}" if plain else key


def read_axes(file: SweepFile, *, import_files: bool = True) -> SweepAxes:
    """Return the axes: methods, list, zip, grid, seeds; without ``import_files``, Python files' keys as written."""
    reader = _AxisReader(file, import_files=import_files)
    axes = reader.read_axes()
    exclusions = reader.read_exclusions(axes)
    return SweepAxes(tuple(axes), tuple(exclusions), tuple(reader.problems))


def combinations(axes: SweepAxes, file: SweepFile) -> list[tuple[AxisPoint, ...]]:
    """Return the product of the axes without the exclusions. Raises ConfigError if one has no match, or all match."""
    if math.prod(len(axis.points) for axis in axes.axes) > MAX_TRIALS:
        raise ConfigError([(str(file.path), f"has more than {MAX_TRIALS:,} combinations; vary less in one sweep")])
    all_points = list(product(*(axis.points for axis in axes.axes)))
    excluded = [[exclusion.matches(points) for points in all_points] for exclusion in axes.exclusions]
    problems = [
        (exclusion.location, f"exclude: {exclusion.written} matches no trial")
        for exclusion, row in zip(axes.exclusions, excluded, strict=True)
        if not any(row)
    ]
    remaining = [points for column, points in enumerate(all_points) if not any(row[column] for row in excluded)]
    if all_points and not remaining:
        problems.append((file.location("exclude"), f"exclude: excludes all {len(all_points)} trials"))
    if problems:
        raise ConfigError(problems)
    return remaining


def merge_values(points: Sequence[AxisPoint]) -> dict[str, Any]:
    return {key: value for point in points for key, value in point.values.items()}


def split_names(points: Sequence[AxisPoint]) -> tuple[list[str], dict[str, Any]]:
    names = [point.name for point in points if point.name is not None]
    return names, merge_values([point for point in points if point.name is None])


def _normalize(key: str, value: Any) -> Any:
    """Return the canonical spelling of a choice, and booleans tagged, since True == 1."""
    plain = KEYS.canonical(tuple(key.split(".")), value)
    return (bool, plain) if isinstance(plain, bool) else plain


class _AxisReader:
    def __init__(self, file: SweepFile, *, import_files: bool) -> None:
        self.file, self.import_files = file, import_files
        self.problems: list[SpecProblem] = []

    def read_axes(self) -> list[Axis]:
        axes = self._add_controls(list(self._parse_axes()))
        if self.import_files:
            axes = [replace(axis, points=tuple(map(self._resolve_method, axis.points))) for axis in axes]
        self._check_setters(axes)
        if not axes and not self.problems:
            message = "no axis: set at least one of methods, seeds, grid, zip and list"
            self.problems.append((str(self.file.path), message))
        for axis in axes:
            if not axis.points:
                keys = ", ".join(axis.keys) or "list"
                self.problems.append((axis.location, f"{keys}: must have at least one value"))
        return axes

    def _parse_axes(self) -> Iterator[Axis]:
        spec = self.file.spec
        if spec.methods is not None:
            yield self._make_value_axis(METHOD, spec.methods, "methods")
        if "list" in spec.model_fields_set:
            yield from self._parse_list()
        if spec.zip:
            yield from self._parse_zip()
        for key, written in spec.grid.items():
            if isinstance(written, list):
                yield self._make_value_axis(full_key(key), written, "grid", key)
            else:
                yield from self._parse_range(key, written)
        if spec.seeds is not None:
            seeds = range(spec.seeds) if isinstance(spec.seeds, int) else spec.seeds
            yield self._make_value_axis(SEED, seeds, "seeds")

    def _add_controls(self, axes: list[Axis]) -> list[Axis]:
        """Add the control arms to the axis of the methods; without such an axis, an axis of the reward's source."""
        controls, location = self.file.spec.controls, self.file.location("controls")
        if not controls:
            return axes
        if self.file.spec.search is not None:
            message = "controls: a search ranks arms, and controls have no rank. Compare its best arm with them"
            self.problems.append((location, message))
            return axes
        of_methods = next((axis for axis in axes if METHOD in axis.keys), None)
        if of_methods is None:
            points = [AxisPoint({REWARD: control}, location, modifier_of(control)) for control in controls]
            return [Axis((REWARD,), (AxisPoint({}, location), *points), location), *axes]
        points = [
            replace(
                base,
                values={**base.values, METHOD: f"{base.values[METHOD]}+{modifier}"},
                location=location,
                name=base.name and f"{base.name}+{modifier}",
            )
            for base in self._find_baselines(of_methods)
            for modifier in map(modifier_of, controls)
        ]
        extended = replace(of_methods, points=(*of_methods.points, *points))
        return [extended if axis is of_methods else axis for axis in axes]

    def _find_baselines(self, axis: Axis) -> list[AxisPoint]:
        """Return the point of the baseline of each task: its first method without modifiers, else its first."""
        by_task: dict[str, list[AxisPoint]] = {}
        for point in axis.points:
            name = str(point.values.get(METHOD, "sft")).strip().lower()
            if name not in METHODS or not METHODS[name].imitates:
                task = {key: value for key, value in point.values.items() if key.partition(".")[0] == "task"}
                by_task.setdefault(yaml_text(task), []).append(point)
        if not by_task:
            message = "controls: need a method with rewards, which sft has not. Add one to the methods, as grpo"
            self.problems.append((self.file.location("controls"), message))
        return [min(points, key=lambda point: "+" in str(point.values[METHOD])) for points in by_task.values()]

    def read_exclusions(self, axes: Sequence[Axis]) -> list[Exclusion]:
        keys = {key for axis in axes for key in axis.keys}
        exclusions = []
        for row, item in enumerate(self.file.spec.exclude):
            location = self.file.location("exclude", row)
            if isinstance(item, str):
                exclusions.append(Exclusion(location, item, item))
                continue
            rule = {full_key("run.seed" if key == "seed" else key): value for key, value in item.items()}
            if isinstance(written := rule.get(METHOD), str) and names_user_file(written):
                rule[METHOD] = self._resolve_method(AxisPoint({METHOD: written}, location)).values[METHOD]
            unknown = [key for key in rule if key not in keys]
            names = ", ".join(sorted(keys))
            self.problems += [
                (location, f"exclude: unknown axis {key}.{did_you_mean(key, keys)} Axes: {names}") for key in unknown
            ]
            if not unknown:
                exclusions.append(Exclusion(location, rule, yaml_text(item)))
        return exclusions

    def _make_value_axis(self, key: str, values: Sequence[Any], *path: str) -> Axis:
        points = tuple(AxisPoint({key: value}, self.file.location(*path, row)) for row, value in enumerate(values))
        return Axis((key,), points, self.file.location(*path))

    def _parse_range(self, key: str, written: Any) -> Iterator[Axis]:
        location = self.file.location("grid", key)
        interval = parse_interval(written) if self.file.spec.search is not None else None
        if interval is not None:
            ends = tuple(AxisPoint({full_key(key): end}, location) for end in (interval.low, interval.high))
            yield Axis((full_key(key),), ends, location, interval)
            return
        ranges = "{range: [1, 4]} or {log_range: [1e-6, 1e-4]}, from a lower to a higher number"
        ranges += " (for a `search` alone)" if self.file.spec.search is None else ""
        message = f"{key}: must be a list of values, or a range as {ranges}; got {yaml_text(written)}"
        self.problems.append((location, message))

    def _parse_zip(self) -> Iterator[Axis]:
        lists, location = self.file.spec.zip, self.file.location("zip")
        if len({len(values) for values in lists.values()}) > 1:
            lengths = ", ".join(f"{len(values)} of {key}" for key, values in lists.items())
            self.problems.append((location, f"zip: lists must have the same length; got {lengths}"))
            return
        keys, first = tuple(map(full_key, lists)), next(iter(lists))
        points = (
            AxisPoint(dict(zip(keys, values, strict=True)), self.file.location("zip", first, row))
            for row, values in enumerate(zip(*lists.values(), strict=True))
        )
        yield Axis(keys, tuple(points), location)

    def _parse_list(self) -> Iterator[Axis]:
        written = self.file.spec.list
        groups: list[tuple[tuple[Any, ...], Sequence[Any]]] = [(("list",), written)]
        if any(isinstance(item, tuple) for item in written):
            groups = [(("list", row), item if isinstance(item, tuple) else (item,)) for row, item in enumerate(written)]
        for path, items in groups:
            points = tuple(self._parse_point((*path, row), item) for row, item in enumerate(items))
            keys = tuple(dict.fromkeys(key for point in points for key in point.values))
            yield Axis(keys, points, self.file.location(*path))
            self.problems += [
                (point.location, "list: must set a key in each item") for point in points if not point.values
            ]

    def _parse_point(self, path: tuple[Any, ...], item: Mapping[str, Any]) -> AxisPoint:
        name, location = item.get(NAME), self.file.location(*path)
        if NAME in item and not (isinstance(name, str) and re.fullmatch(RUN_NAME, name)):
            message = f"list: {NAME}: must be letters, digits and _ - . +; got {yaml_text(name)}"
            self.problems.append((self.file.location(*path, NAME), message))
        if INCLUDE in item and NAME not in item:
            message = f"list: an item with `{INCLUDE}` needs a `{NAME}`, which names its trials"
            self.problems.append((location, message))
        merged = self._merge_includes(path, item.get(INCLUDE, []))
        direct: dict[str, Any] = {}
        for key, value in item.items():
            if key in (NAME, INCLUDE):
                continue
            if isinstance(value, dict) and value and KEYS.variants(tuple(str(key).split("."))):
                merged.add(Layer(location, parse_override(KEYS, format_override(str(key), value)).data))
            else:
                direct[full_key(str(key))] = value
        included = dict(_flatten(merged.data, ()))
        values = {".".join(keys): value for keys, value in included.items()}
        locations = {
            key: str(merged.origin(keys)) for key, keys in zip(values, included, strict=True) if key not in direct
        }
        return AxisPoint({**values, **direct}, location, name if isinstance(name, str) else None, locations)

    def _merge_includes(self, path: tuple[Any, ...], written: Any) -> Merged:
        merged, location = Merged(KEYS), self.file.location(*path, INCLUDE)
        names = [written] if isinstance(written, str) else written
        if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
            allowed = "must be a file or a list of files, relative to this file's folder"
            self.problems.append((location, f"list: {INCLUDE}: {allowed}; got {yaml_text(written)}"))
            return merged
        for name in names:
            try:
                included = config_file(name, self.file.path.parent)
            except UserError as error:
                self.problems.append((location, f"list: {INCLUDE}: {error}"))
                continue
            for source in load_source_files(included, tuple(Config.model_fields), self.problems):
                values = replace_paths(source.values, source.path.parent, str)
                merged.add(Layer(str(source.path), values, source.document.lines))
        return merged

    def _resolve_method(self, point: AxisPoint) -> AxisPoint:
        """Replace a method's Python files, relative to the sweep file's folder, by its name."""
        written = point.values.get(METHOD)
        if not isinstance(written, str) or not names_user_file(written):
            return point
        try:
            option = make_method_absolute(written, self.file.path.parent)
            name = Imports(allowed=True).layer(Layer(point.location, {"method": option})).data["method"]["name"]
        except UserError as error:
            self.problems += [(point.location, message) for message in error.problems]
            return replace(point, values={**point.values, METHOD: "grpo"})
        return replace(point, values={**point.values, METHOD: name}, option=option)

    def _check_setters(self, axes: Sequence[Axis]) -> None:
        """Report keys that are set twice or by the sweep, and two method files with the same name."""
        options: dict[str, str] = {}
        for point in (point for axis in axes for point in axis.points if point.option is not None):
            if options.setdefault(name := point.values[METHOD], str(point.option)) != point.option:
                message = f"{options[name]} and {point.option} both define the method {name}. Rename one."
                self.problems.append((point.location, message))
        setters: dict[str, str] = {}
        for key in self.file.spec.set:
            location = self.file.location("set", key)
            if key == "run.name":
                self.problems.append((location, f"set: run.name: {RESERVED_KEYS[key]}"))
            setters[full_key(key)] = f"`set` ({location})"
        for axis in axes:
            for key in axis.keys:
                if key in RESERVED_KEYS:
                    self.problems.append((axis.location, f"{key}: {RESERVED_KEYS[key]}"))
                elif key in setters:
                    message = f"{key} is already set by {setters[key]}. Remove one."
                    self.problems.append((axis.location, message))
                setters.setdefault(key, f"another axis ({axis.location})")


def _flatten(values: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in values.items():
        key_path = (*path, key)
        if KEYS.variants(key_path) and isinstance(value, dict):
            yield from _flatten(value, key_path)
        else:
            yield key_path, value
