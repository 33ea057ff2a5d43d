"""What a sweep varies: its axes, their values, and the combinations that are left out."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import product
from typing import Any

from rlvr_cli.config.keys import KEYS
from rlvr_cli.config.load import schema_of_files
from rlvr_cli.config.schema import RUN_NAME, Config
from rlvr_cli.config.user_files import Imports, absolute_method, names_a_file, with_files
from rlvr_cli.core.errors import ConfigError, UserError
from rlvr_cli.core.files import local_path
from rlvr_cli.core.include import INCLUDE, source_files
from rlvr_cli.core.keys import Schema
from rlvr_cli.core.layers import Layer, Merged, override_text, parse_override
from rlvr_cli.core.text import did_you_mean
from rlvr_cli.core.yaml import yaml_text
from rlvr_cli.sweeps.spec import SpecProblem, SweepFile

METHOD, SEED = "method.name", "run.seed"
# The key of an item of `list` that names it.
NAME = "name"
SET_BY_THE_SWEEP = {
    "run.name": "trials are named by what varies",
    "track.name": "trials are named by what varies",
    "run.dir": "all trials of a sweep are in one folder; put it into `set`",
}
MOST_TRIALS = 10_000


@dataclass(frozen=True)
class Interval:
    """The numbers from ``low`` to ``high``, both included, of which a search suggests any.

    Whole numbers alone where both ends are. ``log``: equal factors are equally likely, not equal differences.
    """

    low: float
    high: float
    log: bool

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    def value(self, suggested: float) -> float:
        """Return a suggestion as it is used: a whole number, or 6 significant digits (1e-05, not 9.99999999e-06)."""
        return round(suggested) if self.whole else min(max(float(f"{suggested:.6g}"), self.low), self.high)


def read_interval(written: Mapping[Any, Any]) -> Interval | None:
    """Return the interval of `{range: [low, high]}` or `{log_range: [low, high]}`; None for anything else."""
    if len(written) != 1 or not written.keys() <= {"range", "log_range"}:
        return None
    ((kind, ends),) = written.items()
    if not isinstance(ends, list) or len(ends) != 2 or not all(type(end) in (int, float) for end in ends):
        return None
    low, high = ends
    log = kind == "log_range"
    return Interval(low, high, log) if math.isfinite(high - low) and low < high and (low > 0 or not log) else None


@dataclass(frozen=True)
class AxisPoint:
    """Values that are set together, by their keys (as :func:`full_key` writes them), and the place that sets them.

    Attributes:
        name: what a trial is called after instead of the values.
        places: the places of values that are from an included file.
        option: what `--method` gets where the method is in Python files: their paths.
    """

    values: Mapping[str, Any]
    place: str
    name: str | None = None
    places: Mapping[str, str] = field(default_factory=dict)
    option: str | None = None


@dataclass(frozen=True)
class Axis:
    """Points of which each trial has one.

    Attributes:
        interval: what a search suggests values from instead; its ``points`` are the two ends then.
    """

    keys: tuple[str, ...]
    points: tuple[AxisPoint, ...]
    place: str
    interval: Interval | None = None


@dataclass(frozen=True)
class Exclusion:
    """An item of `exclude`: a pattern of names, or values by their full keys, of which a list means any."""

    place: str
    rule: str | Mapping[str, Any]
    written: str

    def matches(self, points: Sequence[AxisPoint]) -> bool:
        """Return whether it leaves out the combination."""
        if isinstance(self.rule, str):
            return fnmatchcase("-".join(in_a_name(points)[0]), self.rule)
        return self.matches_values(values_of(points))

    def matches_values(self, values: Mapping[str, Any]) -> bool:
        """Return whether ``values`` have one of the values of each of its keys."""
        assert not isinstance(self.rule, str)
        return all(
            key in values
            and any(
                _canonical(key, values[key]) == _canonical(key, each)
                for each in (wanted if isinstance(wanted, list) else [wanted])
            )
            for key, wanted in self.rule.items()
        )


@dataclass(frozen=True)
class SweepAxes:
    """The axes of a file in the order in which they vary, the first slowest, and everything wrong with them."""

    axes: tuple[Axis, ...]
    exclusions: tuple[Exclusion, ...]
    problems: tuple[SpecProblem, ...]


def full_key(key: str) -> str:
    """Return the key that a name stands for: `method.name` for `method`, `optimizer.lr` for itself."""
    plain = KEYS.plain_key(tuple(key.split(".")))
    return f"{key}.{plain}" if plain else key


def key_problem(key: str, schema: Schema = KEYS) -> str | None:
    """Return what is wrong with ``key`` as one that can be set; None where nothing is.

    Args:
        schema: with the keys of user files, where some are known.
    """
    path = tuple(key.split("."))
    try:
        parse_override(KEYS, f"{key}=0")
    except ValueError as error:
        return str(error)
    if schema.is_known(path):
        if not schema.variants(path) or schema.plain_key(path):
            return None
        names = ", ".join(f"{key}.{name}" for variant in schema.variants(path) for name in variant.model_fields)
        return f"{key}: is a section, not a key. Its keys: {names}"
    guess = schema.suggest(path)
    hint = f" Did you mean `{guess}`?" if guess else " `rlvr config keys` lists every key."
    return f"{key}: no such key.{hint}"


def read_axes(file: SweepFile, *, import_files: bool = True) -> SweepAxes:
    """Return the axes of a file: methods, lists, zip, grid, seeds.

    Args:
        import_files: whether Python files are imported; if not, methods and keys of theirs stay as written.
    """
    reader = _AxisReader(file, import_files=import_files)
    axes = reader.axes()
    exclusions = reader.exclusions(axes)
    return SweepAxes(tuple(axes), tuple(exclusions), tuple(reader.problems))


def combinations(axes: SweepAxes, file: SweepFile) -> list[tuple[AxisPoint, ...]]:
    """Return the product of the axes without what is excluded. Raises ConfigError for exclusions of none or of all."""
    if math.prod(len(axis.points) for axis in axes.axes) > MOST_TRIALS:
        raise ConfigError([(str(file.path), f"has more than {MOST_TRIALS:,} combinations; vary less in one sweep")])
    every = list(product(*(axis.points for axis in axes.axes)))
    excluded = [[each.matches(points) for points in every] for each in axes.exclusions]
    problems = [
        (each.place, f"exclude: {each.written} matches no trial")
        for each, row in zip(axes.exclusions, excluded, strict=True)
        if not any(row)
    ]
    kept = [points for column, points in enumerate(every) if not any(row[column] for row in excluded)]
    if every and not kept:
        problems.append((file.place("exclude"), f"exclude: leaves none of the {len(every)} trials"))
    if problems:
        raise ConfigError(problems)
    return kept


def values_of(points: Sequence[AxisPoint]) -> dict[str, Any]:
    """Return everything that a combination sets."""
    return {key: value for point in points for key, value in point.values.items()}


def in_a_name(points: Sequence[AxisPoint]) -> tuple[list[str], dict[str, Any]]:
    """Return what a trial's name is made of: the names of the points that have one, and the values of the others."""
    names = [point.name for point in points if point.name is not None]
    return names, values_of([point for point in points if point.name is None])


def _canonical(key: str, value: Any) -> Any:
    """Return a value as it is compared: choices by their one spelling; true is not 1."""
    plain = KEYS.canonical(tuple(key.split(".")), value)
    return (bool, plain) if isinstance(plain, bool) else plain


class _AxisReader:
    """Reads the axes of a file and collects every problem in ``problems``."""

    def __init__(self, file: SweepFile, *, import_files: bool) -> None:
        self.file, self.import_files = file, import_files
        self.problems: list[SpecProblem] = []

    def axes(self) -> list[Axis]:
        spec, file = self.file.spec, self.file
        axes: list[Axis] = []
        if spec.methods is not None:
            axes.append(self._simple("methods", METHOD, spec.methods))
        if "list" in spec.model_fields_set:
            axes += self._lists()
        if spec.zip:
            axes += self._zip()
        axes += [axis for key, written in spec.grid.items() if (axis := self._grid(key, written)) is not None]
        if spec.seeds is not None:
            axes.append(self._simple("seeds", SEED, range(spec.seeds) if isinstance(spec.seeds, int) else spec.seeds))
        if self.import_files:
            axes = [replace(axis, points=tuple(map(self._with_method, axis.points))) for axis in axes]
        self._check_keys(axes)
        if not axes and not self.problems:
            message = "nothing varies: give at least one of methods, seeds, grid, zip and list"
            self.problems.append((str(file.path), message))
        for axis in axes:
            if not axis.points:
                what = ", ".join(axis.keys) or "list"
                self.problems.append((axis.place, f"{what}: has no value, so that there is no trial at all"))
        return axes

    def exclusions(self, axes: Sequence[Axis]) -> list[Exclusion]:
        """Return the items of `exclude` that are understood."""
        keys = {key for axis in axes for key in axis.keys}
        exclusions = []
        for row, item in enumerate(self.file.spec.exclude):
            place = self.file.place("exclude", row)
            if isinstance(item, str):
                exclusions.append(Exclusion(place, item, item))
                continue
            rule = {full_key("run.seed" if key == "seed" else key): value for key, value in item.items()}
            if isinstance(written := rule.get(METHOD), str) and names_a_file(written):
                rule[METHOD] = self._with_method(AxisPoint({METHOD: written}, place)).values[METHOD]
            unknown = [key for key in rule if key not in keys]
            known = ", ".join(sorted(keys))
            self.problems += [
                (place, f"exclude: {key} is no axis.{did_you_mean(key, keys)} Axes: {known}") for key in unknown
            ]
            if not item:
                self.problems.append((place, "exclude: an item names no value, so that it would exclude every trial"))
            if item and not unknown:
                exclusions.append(Exclusion(place, rule, yaml_text(item)))
        return exclusions

    def _simple(self, name: str, key: str, values: Sequence[Any]) -> Axis:
        points = tuple(AxisPoint({key: value}, self.file.place(name, row)) for row, value in enumerate(values))
        return Axis((key,), points, self.file.place(name))

    def _grid(self, key: str, written: Any) -> Axis | None:
        place = self.file.place("grid", key)
        if isinstance(written, list):
            points = (
                AxisPoint({full_key(key): each}, self.file.place("grid", key, i)) for i, each in enumerate(written)
            )
            return Axis((full_key(key),), tuple(points), place)
        ranges = "{range: [1, 4]} or {log_range: [1e-6, 1e-4]}, from a lower to a higher number"
        if self.file.spec.search is None:
            ranges += " (for a `search` alone)"
        elif isinstance(written, dict) and (interval := read_interval(written)) is not None:
            ends = tuple(AxisPoint({full_key(key): end}, place) for end in (interval.low, interval.high))
            return Axis((full_key(key),), ends, place, interval)
        message = f"{key}: must be a list of values, or a range as {ranges}; got {yaml_text(written)}"
        self.problems.append((place, message))
        return None

    def _zip(self) -> Iterator[Axis]:
        lists, place = self.file.spec.zip, self.file.place("zip")
        wrong = {key: written for key, written in lists.items() if not isinstance(written, list)}
        for key, written in wrong.items():
            message = f"{key}: must be a list of values; got {yaml_text(written)}"
            self.problems.append((self.file.place("zip", key), message))
        if wrong:
            return
        if len({len(values) for values in lists.values()}) > 1:
            lengths = ", ".join(f"{key} has {len(values)}" for key, values in lists.items())
            self.problems.append((place, f"zip: its lists must have one length; {lengths}"))
            return
        keys, first = tuple(map(full_key, lists)), next(iter(lists))
        points = (
            AxisPoint(dict(zip(keys, values, strict=True)), self.file.place("zip", first, row))
            for row, values in enumerate(zip(*lists.values(), strict=True))
        )
        yield Axis(keys, tuple(points), place)

    def _lists(self) -> Iterator[Axis]:
        """Yield the axis of a `list` of points, or those of a list of such lists."""
        written = self.file.spec.list
        groups: list[tuple[tuple[Any, ...], Sequence[Any]]] = [(("list",), written)]
        if any(isinstance(item, tuple) for item in written):
            groups = [(("list", row), item if isinstance(item, tuple) else (item,)) for row, item in enumerate(written)]
        for path, items in groups:
            points = tuple(self._listed((*path, row), item) for row, item in enumerate(items))
            keys = tuple(dict.fromkeys(key for point in points for key in point.values))
            yield Axis(keys, points, self.file.place(*path))
            self.problems += [(point.place, "list: an item sets no key") for point in points if not point.values]

    def _listed(self, path: tuple[Any, ...], item: Mapping[str, Any]) -> AxisPoint:
        """Return an item of `list`; its keys `name`, which names it, and `include` are no configuration's."""
        name, place = item.get(NAME), self.file.place(*path)
        if NAME in item and not (isinstance(name, str) and re.fullmatch(RUN_NAME, name)):
            message = f"list: {NAME}: must be letters, digits and _ - . +; got {yaml_text(name)}"
            self.problems.append((self.file.place(*path, NAME), message))
        if INCLUDE in item and NAME not in item:
            message = f"list: an item that includes files needs a `{NAME}`; trials are called after it"
            self.problems.append((place, message))
        merged = self._included(path, item.get(INCLUDE, []))
        direct: dict[str, Any] = {}
        for key, value in item.items():
            if key in (NAME, INCLUDE):
                continue
            if isinstance(value, dict) and value and KEYS.variants(tuple(str(key).split("."))):
                # A section as a configuration file has it.
                merged.add(Layer(place, parse_override(KEYS, override_text(str(key), value)).data))
            else:
                direct[full_key(str(key))] = value
        included = dict(_flat(merged.data, ()))
        values = {".".join(keys): value for keys, value in included.items()}
        places = {
            key: str(merged.origin(keys)) for key, keys in zip(values, included, strict=True) if key not in direct
        }
        return AxisPoint({**values, **direct}, place, name if isinstance(name, str) else None, places)

    def _included(self, path: tuple[Any, ...], written: Any) -> Merged:
        """Return what the configuration files of an item's `include` set."""
        merged, place = Merged(KEYS), self.file.place(*path, INCLUDE)
        names = [written] if isinstance(written, str) else written
        if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
            wanted = "must be a file or a list of files, from this file's folder"
            self.problems.append((place, f"list: {INCLUDE}: {wanted}; got {yaml_text(written)}"))
            return merged
        for name in names:
            try:
                included = self.file.path.parent / local_path(name)
            except UserError as error:
                self.problems.append((place, f"list: {INCLUDE}: {error}"))
                continue
            for source in source_files(included, tuple(Config.model_fields), self.problems):
                values = with_files(source.values, source.path.parent, str)
                merged.add(Layer(str(source.path), values, source.document.lines))
        return merged

    def _with_method(self, point: AxisPoint) -> AxisPoint:
        """Return the point with the name of its method where that is in Python files, from the sweep file's folder."""
        written = point.values.get(METHOD)
        if not isinstance(written, str) or not names_a_file(written):
            return point
        try:
            option = absolute_method(written, self.file.path.parent)
            name = Imports(allowed=True).layer(Layer(point.place, {"method": option})).data["method"]["name"]
        except UserError as error:
            self.problems += [(point.place, message) for message in error.problems]
            return replace(point, values={**point.values, METHOD: "grpo"})
        return replace(point, values={**point.values, METHOD: name}, option=option)

    def _check_keys(self, axes: Sequence[Axis]) -> None:
        """Report keys that do not exist or are set twice, and two files of methods of one name."""
        options: dict[str, str] = {}
        for point in (point for axis in axes for point in axis.points if point.option is not None):
            if options.setdefault(name := point.values[METHOD], str(point.option)) != point.option:
                message = f"{options[name]} and {point.option} are both called {name}; give one of them another name"
                self.problems.append((point.place, message))
        schema = schema_of_files(self.file.base, options.values(), import_files=self.import_files)
        setters: dict[str, str] = {}
        for key in self.file.spec.set:
            place, wrong = self.file.place("set", key), key_problem(key, schema)
            if wrong is None and key == "run.name":
                wrong = f"run.name: {SET_BY_THE_SWEEP[key]}"
            self.problems += [(place, f"set: {wrong}")] if wrong else []
            setters[full_key(key)] = f"`set` ({place})"
        for axis in axes:
            for key in axis.keys:
                wrong = f"{key}: {SET_BY_THE_SWEEP[key]}" if key in SET_BY_THE_SWEEP else key_problem(key, schema)
                if wrong is None and key in setters:
                    wrong = f"{key} is set by {setters[key]} already; one of them would have no effect"
                self.problems += [(axis.place, wrong)] if wrong else []
                setters.setdefault(key, f"another axis ({axis.place})")


def _flat(values: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in values.items():
        below = (*path, key)
        if KEYS.variants(below) and isinstance(value, dict):
            yield from _flat(value, below)
        else:
            yield below, value
