"""The rows of a sweep file, by name: `FILE:ROW`, `--only`, and reported numbers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from rlvr_cli.config.keys import KEYS
from rlvr_cli.config.load import SweepRow
from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import ConfigError, UserError
from rlvr_cli.core.include import load_source_files
from rlvr_cli.core.keys import describe_field
from rlvr_cli.core.layers import Layer, format_override, order_overrides, parse_override
from rlvr_cli.core.recipes import config_file, read_config
from rlvr_cli.core.text import did_you_mean, ellipsize
from rlvr_cli.core.yaml import YamlProblem, parse
from rlvr_cli.sweeps.axes import METHOD, SEED, Axis, AxisPoint, combinations, full_key, merge_values, read_axes
from rlvr_cli.sweeps.naming import abbreviate_varying_keys, combination_name
from rlvr_cli.sweeps.spec import SpecProblem, SweepFile, SweepSpec, read_sweep

SHOWN = 8
# Keys of a sweep file that a configuration cannot have.
AXES = frozenset({"methods", "controls", "list", "zip", "grid", "seeds"})


def row_names(
    file: SweepFile, axes: Sequence[Axis], points: Sequence[tuple[AxisPoint, ...]], overrides: Sequence[str] = ()
) -> list[str]:
    """Return the name of each combination without its seed; ``overrides``: of the command line."""
    shorts, method = abbreviate_varying_keys(axes, points), _base_method(file, overrides)
    names = []
    for combination in points:
        row = [point for point in combination if set(point.values) != {SEED}]
        names.append(combination_name(row, shorts, merge_values(row).get(METHOD, method)))
    return names


def _base_method(file: SweepFile, overrides: Sequence[str]) -> str:
    sources = [source for base in file.base for source in load_source_files(base, tuple(Config.model_fields), [])]
    written = [source.values.get("method") for source in sources]
    written += [value for key, value in file.spec.set.items() if full_key(key) == METHOD]
    pairs = (text.partition("=") for text in overrides)
    written += [value.strip() for key, _, value in pairs if full_key(key.strip()) == METHOD]
    names = [method.get("name") if isinstance(method, dict) else method for method in written]
    return next((name for name in reversed(names) if isinstance(name, str)), "grpo")


def combination_layers(common: Sequence[tuple[str, str]], combination: Sequence[AxisPoint]) -> tuple[Layer, ...]:
    """Return overrides as layers labelled with the lines that set them. Raises UserError unless `key=value`."""
    texts = [
        (
            point.locations.get(key, point.location),
            format_override(key, point.option if key == METHOD and point.option else value),
        )
        for point in combination
        for key, value in point.values.items()
    ]
    layers, problems = list[Layer](), list[SpecProblem]()
    for location, text in (*common, *texts):
        try:
            layers.append(Layer(location, parse_override(KEYS, text).data))
        except ValueError as error:
            problems.append((location, str(error)))
    if problems:
        raise ConfigError(problems)
    return tuple(order_overrides(KEYS, layers))


def trial_rows(file: SweepFile, *, import_files: bool = True) -> dict[str, SweepRow]:
    """Return the configuration of each row, without seeds. Raises UserError with all problems, and for a search."""
    axes = read_axes(file, import_files=import_files)
    problems = list(axes.problems)
    if file.spec.search is not None:
        problems.append((file.location("search"), "search: has no rows, since its trials are suggested while it runs"))
    if problems:
        raise ConfigError(problems)
    points = combinations(axes, file)
    rows: dict[str, SweepRow] = {}
    for name, combination in zip(row_names(file, axes.axes, points), points, strict=True):
        row = [point for point in combination if set(point.values) != {SEED}]
        rows.setdefault(name, SweepRow(tuple(file.base), combination_layers(file_overrides(file), row)))
    return rows


def file_overrides(file: SweepFile) -> list[tuple[str, str]]:
    return [(file.location("set", key), format_override(key, value)) for key, value in file.spec.set.items()]


def resolve_config(written: Path, *, import_files: bool = True) -> Path | SweepRow:
    """Return a configuration file, or the row that `FILE:ROW` names; a recipe by its name. Raises UserError."""
    path, colon, name = str(written).rpartition(":")
    if not colon or written.exists():
        file = config_file(written)
        if _is_sweep(file):
            raise UserError(f"{written}: is a sweep file, not a configuration. Use {written}:ROW for one of its rows.")
        return file
    rows = trial_rows(read_sweep(Path(path)), import_files=import_files)
    if name not in rows:
        raise UserError(f"{path}: unknown row {name!r}.{did_you_mean(name, rows)} Rows: {ellipsize(list(rows), SHOWN)}")
    return rows[name]


def _is_sweep(file: Path) -> bool:
    """Return whether a file has axes; other problems are left to the reader of configurations."""
    try:
        data = parse(read_config(file)).data
    except YamlProblem:
        return False
    return isinstance(data, dict) and not AXES.isdisjoint(map(str, data))


def match_rows(names: Sequence[str], only: str) -> list[int]:
    """Return the indices of the ``names`` that match the pattern ``only``. Raises UserError without a match."""
    matches = [index for index, name in enumerate(names) if fnmatchcase(name, only)]
    if not matches:
        rows = list(dict.fromkeys(names))
        hint = f"{did_you_mean(only, rows)} Rows (trials without the seed): {ellipsize(rows, SHOWN)}"
        raise UserError(f"--only {only}: matches no trial.{hint}")
    return matches


def replace_seeds(file: SweepFile, seeds: str) -> SweepFile:
    """Replace the sweep's seeds by a number of seeds or a list as `42,43`. Raises UserError for anything else."""
    try:
        numbers = tuple(map(int, seeds.split(",")))
        checked = SweepSpec(seeds=numbers if len(numbers) > 1 else numbers[0])
    except ValueError:
        # pydantic's ValidationError is a ValueError.
        allowed = describe_field(SweepSpec.model_fields["seeds"])
        raise UserError(f"--seeds {seeds}: must be {allowed}, as 42,43") from None
    return replace(file, spec=file.spec.model_copy(update={"seeds": checked.seeds}))


def reported_problems(file: SweepFile, names: Sequence[str]) -> list[SpecProblem]:
    """Return the problems of `reported`: rows without a matching trial, or without a number per column."""
    problems: list[SpecProblem] = []
    for number, table in enumerate(file.spec.reported):
        for name, values in table.rows.items():
            location = file.location("reported", number, "rows", name)
            if not any(fnmatchcase(row, name) for row in names):
                problems.append((location, f"reported: unknown trial {name}.{did_you_mean(name, names)}"))
            if len(values) != len(table.columns):
                message = f"reported: {name} must have {len(table.columns)} numbers, one per column; got {len(values)}"
                problems.append((location, message))
    return problems


def reported_tables(file: SweepFile, names: Collection[str]) -> list[dict[str, Any]]:
    tables = [table.model_dump(mode="json") for table in file.spec.reported]
    for table in tables:
        table["rows"] = {
            name: values for name, values in table["rows"].items() if any(fnmatchcase(row, name) for row in names)
        }
    return [table for table in tables if table["rows"]]
