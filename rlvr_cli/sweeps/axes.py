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
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import local_path
from rlvr_cli.core.include import INCLUDE, source_files
from rlvr_cli.core.keys import Schema
from rlvr_cli.core.layers import Layer, Merged, override_text, parse_override
from rlvr_cli.core.text import did_you_mean
from rlvr_cli.core.yaml import yaml_text
from rlvr_cli.sweeps.spec import SpecProblem, SweepFile

RANGES = "{range: [1, 5], step: 2}, {range: [0, 1], count: 5} or {log_range: [1e-6, 1e-4], count: 3}"
MOST_VALUES = 1000


@dataclass(frozen=True)
class Interval:
    """The numbers from ``low`` to ``high``, both among them, of which a search suggests any.

    Attributes:
        log: equal factors are equally likely, not equal differences.
        whole: whole numbers alone. step: the distance of neighbours; None = every number.
    """

    low: float
    high: float
    log: bool
    whole: bool
    step: float | None

    def value(self, suggested: float) -> float:
        """A suggestion as it is used: a whole number, a whole number of steps, or 6 significant digits of it."""
        if self.whole:
            return round(suggested)
        if self.step is not None:
            return _step(self.low, round((suggested - self.low) / self.step), self.step)
        return min(max(rounded(suggested), self.low), self.high)

    def __contains__(self, value: object) -> bool:
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not self.low <= value <= self.high:
            return False
        if self.whole and not isinstance(value, int):
            return False
        steps = 0.0 if self.step is None else (value - self.low) / self.step
        return abs(steps - round(steps)) < 1e-4


def read_interval(written: dict[Any, Any]) -> Interval:
    """A range as a search takes it: ends that are whole numbers, and a whole step, make whole numbers of it.

    A `count` is for grids. Raises ValueError with what is wrong.
    """
    kind, low, high, rest = _ends(written)
    whole = isinstance(low, int) and isinstance(high, int)
    step = rest.get("step")
    if kind == "log_range":
        if step is not None:
            raise ValueError(f"log_range: has no step; got {yaml_text(written)}")
        return Interval(low, high, log=True, whole=whole, step=1 if whole else None)
    if step is None:
        return Interval(low, high, log=False, whole=whole, step=1 if whole else None)
    number = len(_steps(low, high, step)) - 1
    if number == 0:
        raise ValueError(f"range: its step is larger than all of it; got {yaml_text(written)}")
    whole = isinstance(low, int) and isinstance(step, int)
    last = low + number * step if whole else _step(low, number, step)
    return Interval(low, last, log=False, whole=whole, step=step)


def range_values(written: dict[Any, Any]) -> list[Any]:
    """The values of a range, both ends among them. Raises ValueError with what is wrong."""
    kind, low, high, rest = _ends(written)
    whole = isinstance(low, int) and isinstance(high, int)
    if kind == "range" and "count" not in rest:
        return _steps(low, high, rest.get("step", 1 if whole else None))
    count = rest.get("count")
    if not isinstance(count, int) or isinstance(count, bool) or not 2 <= count <= MOST_VALUES:
        raise ValueError(f"count: must be a whole number, 2 to {MOST_VALUES}; got {yaml_text(count)}")
    shares = [place / (count - 1) for place in range(count)]
    if kind == "log_range":
        between = [low * (high / low) ** share for share in shares]
        values = [round(value) for value in between] if whole else [rounded(value) for value in between]
    else:
        between = [low + (high - low) * share for share in shares]
        all_whole = whole and all(abs(value - round(value)) < 1e-9 for value in between)
        values = [round(value) for value in between] if all_whole else [rounded(value) for value in between]
    if len(set(values)) < count:
        raise ValueError(f"{yaml_text(written)} has a value twice; give a smaller count")
    return [low, *values[1:-1], high]


def _ends(written: dict[Any, Any]) -> tuple[str, Any, Any, dict[Any, Any]]:
    """The kind of a range, its two ends, and what else is written of it. Raises ValueError with what is wrong."""
    kinds = [kind for kind in ("range", "log_range") if kind in written]
    rest = {key: value for key, value in written.items() if key not in kinds}
    if len(kinds) != 1 or len(rest) > 1 or rest.keys() - {"step", "count"}:
        raise ValueError(f"a range is written {RANGES}; got {yaml_text(written)}")
    ends = written[kinds[0]]
    if not (isinstance(ends, list) and len(ends) == 2 and all(_is_number(end) for end in ends)):
        raise ValueError(f"{kinds[0]}: must be its two ends, [from, to]; got {yaml_text(ends)}")
    low, high = ends
    if low >= high:
        raise ValueError(f"{kinds[0]}: must go upwards; got {yaml_text(ends)}")
    if kinds[0] == "log_range" and low <= 0:
        raise ValueError(f"log_range: its ends must be above 0; got {yaml_text(ends)}")
    return kinds[0], low, high, rest


def _steps(low: float, high: float, step: Any) -> list[Any]:
    if not _is_number(step) or step <= 0 or (high - low) / step > MOST_VALUES:
        raise ValueError(f"range: needs a step above 0 that gives at most {MOST_VALUES} values, or a count")
    number = math.floor((high - low) / step + 1e-9)
    whole = all(isinstance(value, int) for value in (low, step))
    return [low + place * step if whole else rounded(low + place * step) for place in range(number + 1)]


def _step(low: float, number: int, step: float) -> float:
    """Without the last digits of a sum of fractions: 0.3 is meant, not 0.30000000000000004."""
    return float(f"{low + number * step:.12g}")


def rounded(value: float) -> float:
    """To 6 significant digits: 1e-05 is meant, not 9.999999999999999e-06."""
    return float(f"{value:.6g}")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


METHOD, SEED = "method.name", "run.seed"
# The key of an item of `list` that names it.
NAME = "name"
GIVEN_BY_THE_SWEEP = {
    "run.name": "trials are named by what varies",
    "track.name": "trials are named by what varies",
    "run.dir": "all trials of a sweep are in one folder; put it into `set`",
}
MOST_TRIALS = 10_000


@dataclass(frozen=True)
class AxisPoint:
    """Values that are set together, by their keys (as :func:`full_key` writes them), and the place that says so.

    Attributes:
        name: what a trial is called after instead of the values.
        places: the places of values that are from an included file.
        option: what `--method` is given where the method is in files of Python: their paths.
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


def full_key(key: str) -> str:
    """The key that a name stands for: `method.name` for `method`, `optimizer.lr` for itself."""
    plain = KEYS.plain_key(tuple(key.split(".")))
    return f"{key}.{plain}" if plain else key


def key_problem(key: str, schema: Schema = KEYS) -> str | None:
    """What is wrong with ``key`` as one that can be set; None where nothing is.

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


def read_axes(file: SweepFile, problems: list[SpecProblem], *, import_files: bool = True) -> list[Axis]:
    """The axes in the order in which they vary, the first slowest: methods, lists, zips, grids, seeds.

    Args:
        import_files: whether files of Python are imported; if not, methods and keys of theirs stay as written.
    """
    spec = file.spec
    axes: list[Axis] = []
    if spec.methods is not None:
        axes.append(_simple(file, "methods", METHOD, list(spec.methods)))
    if "list" in spec.model_fields_set:
        axes += _lists(file, problems)
    for row, entry in enumerate(spec.zip):
        where = ("zip", row) if ("zip", row) in file.lines else ("zip",)
        axes += _zipped(file, where, entry, problems)
    for key, written in spec.grid.items():
        if spec.search is not None and isinstance(written, dict):
            axes += _interval(file, key, written, problems)
            continue
        values = _values(file, ("grid", key), key, written, problems)
        points = tuple(
            AxisPoint({full_key(key): value}, file.place("grid", key, row)) for row, value in enumerate(values or ())
        )
        if values is not None:
            axes.append(Axis((full_key(key),), points, file.place("grid", key)))
    if spec.seeds is not None:
        seeds = list(range(spec.seeds)) if isinstance(spec.seeds, int) else list(spec.seeds)
        axes.append(_simple(file, "seeds", SEED, seeds))
    axes = [_with_methods(axis, file, problems) for axis in axes] if import_files else axes
    options: dict[str, str] = {}
    for point in (point for axis in axes for point in axis.points if point.option is not None):
        if options.setdefault(name := point.values[METHOD], str(point.option)) != point.option:
            said = f"{options[name]} and {point.option} are both called {name}; give one of them another name"
            problems.append((point.place, said))
    schema = schema_of_files(file.base, options.values(), import_files=import_files)
    _check_keys(file, axes, problems, schema)
    if spec.search is not None:
        problems += [
            (file.place("exclude", row), f"exclude: {one}: a search excludes values") for row, one in _patterns(file)
        ]
    if not axes and not problems:
        problems.append((str(file.path), "nothing varies: give at least one of methods, seeds, grid, zip and list"))
    for axis in axes:
        if not axis.points:
            what = ", ".join(axis.keys) or "list"
            problems.append((axis.place, f"{what}: has no value, so that there is no trial at all"))
    return axes


def _with_methods(axis: Axis, file: SweepFile, problems: list[SpecProblem]) -> Axis:
    """The axis with the names of methods where it names files of Python, from the sweep file's folder."""
    points = []
    for point in axis.points:
        written = point.values.get(METHOD)
        if isinstance(written, str) and names_a_file(written):
            name, option = _method(written, point.place, file, problems)
            point = replace(point, values={**point.values, METHOD: name}, option=option)
        points.append(point)
    return replace(axis, points=tuple(points))


def _method(written: str, place: str, file: SweepFile, problems: list[SpecProblem]) -> tuple[str, str | None]:
    """The name of a method in files of Python, and what `--method` is given for it."""
    try:
        option = absolute_method(written, file.path.parent)
        name: str = Imports(allowed=True).layer(Layer(place, {"method": option})).data["method"]["name"]
    except UserError as error:
        problems += [(place, said) for said in error.problems]
        return "grpo", None
    return name, option


def combinations(axes: list[Axis], file: SweepFile, problems: list[SpecProblem]) -> list[tuple[AxisPoint, ...]]:
    """The product of the axes without what is excluded."""
    if math.prod(len(axis.points) for axis in axes) > MOST_TRIALS:
        problems.append((str(file.path), f"has more than {MOST_TRIALS:,} combinations; a sweep of so many ends never"))
        return []
    found = list(product(*(axis.points for axis in axes)))
    left, excluded_all = found, True
    for row, pattern in _patterns(file):
        named = [points for points in left if fnmatchcase(_name(points), pattern)]
        if not named:
            problems.append((file.place("exclude", row), f"exclude: {pattern} matches the name of no trial"))
        left = [points for points in left if points not in named]
    for place, entry, rule in exclusions(axes, file, problems):
        if rule is None:
            excluded_all = False
            continue
        if not any(matches(rule, values_of(points)) for points in found):
            problems.append((place, f"exclude: {yaml_text(entry)} matches no trial"))
        left = [points for points in left if not matches(rule, values_of(points))]
    if found and not left and excluded_all:
        problems.append((file.place("exclude"), f"exclude: leaves none of the {len(found)} trials"))
    return left


def exclusions(
    axes: Sequence[Axis], file: SweepFile, problems: list[SpecProblem]
) -> Iterator[tuple[str, Mapping[str, Any], dict[str, Any] | None]]:
    """Each item of `exclude` with its place, as written and by full keys; None for one that is not understood."""
    keys = {key for axis in axes for key in axis.keys}
    for row, entry in enumerate(file.spec.exclude):
        if isinstance(entry, str):
            continue
        place = file.place("exclude", row)
        rule = {full_key("run.seed" if key == "seed" else key): value for key, value in entry.items()}
        if isinstance(written := rule.get(METHOD), str) and names_a_file(written):
            rule[METHOD], _ = _method(written, place, file, problems)
        unknown = [key for key in rule if key not in keys]
        for key in unknown:
            problems.append(
                (place, f"exclude: {key} is no axis.{did_you_mean(key, keys)} Axes: {', '.join(sorted(keys))}")
            )
        if not entry:
            problems.append((place, "exclude: an item names no value, so that it would exclude every trial"))
        yield place, entry, None if unknown or not entry else rule


def _patterns(file: SweepFile) -> Iterator[tuple[int, str]]:
    """The items of `exclude` that are patterns of names, each with its row."""
    return ((row, entry) for row, entry in enumerate(file.spec.exclude) if isinstance(entry, str))


def _name(points: Sequence[AxisPoint]) -> str:
    """The names of a combination's points, as its trial has them."""
    return "-".join(in_a_name(points)[0])


def values_of(points: tuple[AxisPoint, ...]) -> dict[str, Any]:
    """Everything that a combination sets."""
    return {key: value for point in points for key, value in point.values.items()}


def in_a_name(points: Sequence[AxisPoint]) -> tuple[list[str], dict[str, Any]]:
    """What a trial's name is made of: the names of the points that have one, and the values of the others."""
    names = [point.name for point in points if point.name is not None]
    return names, values_of(tuple(point for point in points if point.name is None))


def matches(rule: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Whether ``values`` have one of the values that ``rule`` gives for each of its keys."""
    return all(
        key in values
        and any(_plain(key, values[key]) == _plain(key, one) for one in (said if isinstance(said, list) else [said]))
        for key, said in rule.items()
    )


def _plain(key: str, value: Any) -> Any:
    """A value as it is compared: choices by their one spelling; true is not 1."""
    plain = KEYS.canonical(tuple(key.split(".")), value)
    return (bool, plain) if isinstance(plain, bool) else plain


def _simple(file: SweepFile, name: str, key: str, values: list[Any]) -> Axis:
    points = tuple(AxisPoint({key: value}, file.place(name, row)) for row, value in enumerate(values))
    return Axis((key,), points, file.place(name))


def _lists(file: SweepFile, problems: list[SpecProblem]) -> Iterator[Axis]:
    """The axis of a `list` of points, or those of a list of such lists."""
    written = file.spec.list
    several = any(isinstance(one, tuple) for one in written)
    groups: list[tuple[tuple[Any, ...], Sequence[Any]]] = [(("list",), written)]
    if several:
        groups = [(("list", row), one if isinstance(one, tuple) else (one,)) for row, one in enumerate(written)]
    for where, entries in groups:
        points = tuple(_listed(file, (*where, row), entry, problems) for row, entry in enumerate(entries))
        yield Axis(tuple(dict.fromkeys(key for point in points for key in point.values)), points, file.place(*where))
        for point in points:
            if not point.values:
                problems.append((point.place, "list: an item sets no key"))


def _listed(
    file: SweepFile, where: tuple[Any, ...], entry: Mapping[str, Any], problems: list[SpecProblem]
) -> AxisPoint:
    """An item of `list`; its keys `name`, which names it, and `include` are no configuration's."""
    name, place = entry.get(NAME), file.place(*where)
    if NAME in entry and not (isinstance(name, str) and re.fullmatch(RUN_NAME, name)):
        said = f"list: {NAME}: must be letters, digits and _ - . +; got {yaml_text(name)}"
        problems.append((file.place(*where, NAME), said))
    if INCLUDE in entry and NAME not in entry:
        problems.append((place, f"list: an item that includes files needs a `{NAME}`; trials are called after it"))
    merged = _included(file, where, entry, problems)
    own: dict[str, Any] = {}
    for key, value in entry.items():
        path = tuple(str(key).split("."))
        if key in (NAME, INCLUDE):
            continue
        if isinstance(value, dict) and value and KEYS.variants(path):
            # A section as a configuration file has it.
            merged.add(Layer(place, parse_override(KEYS, override_text(str(key), value)).data))
        else:
            own[full_key(str(key))] = value
    found = dict(_flat(merged.data, ()))
    below = {".".join(path): value for path, value in found.items()}
    places = {key: str(merged.origin(path)) for key, path in zip(below, found, strict=True) if key not in own}
    return AxisPoint({**below, **own}, place, name if isinstance(name, str) else None, places)


def _included(file: SweepFile, where: tuple[Any, ...], entry: Mapping[str, Any], problems: list[SpecProblem]) -> Merged:
    """What the configuration files of an item's `include` set."""
    merged = Merged(KEYS)
    written = entry.get(INCLUDE, [])
    names = [written] if isinstance(written, str) else written
    if not isinstance(names, list) or not all(isinstance(one, str) and one for one in names):
        said = f"list: {INCLUDE}: must be a file or a list of files, from this file's folder; got {yaml_text(written)}"
        problems.append((file.place(*where, INCLUDE), said))
        return merged
    for one in names:
        try:
            path = file.path.parent / local_path(one)
        except UserError as error:
            problems.append((file.place(*where, INCLUDE), f"list: {INCLUDE}: {error}"))
            continue
        for source in source_files(path, tuple(Config.model_fields), problems):
            values = with_files(source.values, source.path.parent, str)
            merged.add(Layer(str(source.path), values, source.document.lines))
    return merged


def _flat(values: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in values.items():
        place = (*path, key)
        if KEYS.variants(place) and isinstance(value, dict):
            yield from _flat(value, place)
        else:
            yield place, value


def _zipped(
    file: SweepFile, where: tuple[Any, ...], entry: dict[str, Any], problems: list[SpecProblem]
) -> Iterator[Axis]:
    columns = {key: _values(file, (*where, key), key, written, problems) for key, written in entry.items()}
    known = {key: values for key, values in columns.items() if values is not None}
    if len({len(values) for values in known.values()}) > 1:
        lengths = ", ".join(f"{key} has {len(values)}" for key, values in known.items())
        problems.append((file.place(*where), f"zip: its lists must have one length; {lengths}"))
    elif known:
        first = next(iter(known))
        points = tuple(
            AxisPoint(dict(zip(map(full_key, known), values, strict=True)), file.place(*where, first, row))
            for row, values in enumerate(zip(*known.values(), strict=True))
        )
        yield Axis(tuple(map(full_key, known)), points, file.place(*where))


def _interval(file: SweepFile, key: str, written: dict[Any, Any], problems: list[SpecProblem]) -> Iterator[Axis]:
    """The axis of a range that is searched."""
    place = file.place("grid", key)
    try:
        interval = read_interval(written)
    except ValueError as error:
        problems.append((place, f"{key}: {error}"))
        return
    points = tuple(AxisPoint({full_key(key): end}, place) for end in (interval.low, interval.high))
    yield Axis((full_key(key),), points, place, interval)


def _check_keys(file: SweepFile, axes: list[Axis], problems: list[SpecProblem], schema: Schema) -> None:
    """Every key that is set must be one, and be set once."""
    seen: dict[str, str] = {}
    for key in file.spec.set:
        place = file.place("set", key)
        wrong = key_problem(key, schema)
        if wrong is None and key == "run.name":
            wrong = f"run.name: {GIVEN_BY_THE_SWEEP[key]}"
        if wrong:
            problems.append((place, f"set: {wrong}"))
        seen[full_key(key)] = f"`set` ({place})"
    for axis in axes:
        for key in axis.keys:
            wrong = f"{key}: {GIVEN_BY_THE_SWEEP[key]}" if key in GIVEN_BY_THE_SWEEP else key_problem(key, schema)
            if wrong:
                problems.append((axis.place, wrong))
            elif key in seen:
                problems.append((axis.place, f"{key} is set by {seen[key]} already; one of them would have no effect"))
            seen.setdefault(key, f"another axis ({axis.place})")


def _values(
    file: SweepFile, where: tuple[Any, ...], key: str, written: Any, problems: list[SpecProblem]
) -> list[Any] | None:
    """The values that an axis is written with; None, and a problem, where it is not understood."""
    if isinstance(written, list):
        return written
    try:
        if isinstance(written, dict):
            return range_values(written)
        raise ValueError(f"must be a list of values, or a range as {RANGES}; got {yaml_text(written)}")
    except ValueError as error:
        problems.append((file.place(*where), f"{key}: {error}"))
        return None
