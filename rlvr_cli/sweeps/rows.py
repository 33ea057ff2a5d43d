"""The rows of a sweep file, by name: one trial alone as `FILE:ROW`, some of them, and the numbers reported for them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from rlvr_cli.config.keys import KEYS
from rlvr_cli.config.load import SweepRow
from rlvr_cli.core.errors import ConfigError, UserError
from rlvr_cli.core.keys import describe_field
from rlvr_cli.core.layers import Layer, choices_first, override_text, parse_override
from rlvr_cli.core.text import did_you_mean, some
from rlvr_cli.core.yaml import YamlProblem, parse, read_text
from rlvr_cli.sweeps.axes import METHOD, SEED, Axis, AxisPoint, combinations, in_a_name, read_axes, values_of
from rlvr_cli.sweeps.naming import short_keys, trial_name, value_text
from rlvr_cli.sweeps.spec import SpecProblem, SweepFile, SweepSpec, read_sweep

SHOWN = 8
# Keys that a sweep file has and a configuration has not.
AXES = frozenset({"methods", "list", "zip", "grid", "seeds"})
# The name of the only row of a file without methods in which nothing but the seed varies.
ONLY_ROW = "trial"


def varying_keys(axes: Sequence[Axis], points: Sequence[tuple[AxisPoint, ...]]) -> list[str]:
    """The keys of ``axes`` that have several values among ``points``."""
    keys = [key for axis in axes for key in axis.keys]
    return [key for key in keys if len({repr(values_of(one).get(key)) for one in points}) > 1]


def row_names(axes: Sequence[Axis], points: Sequence[tuple[AxisPoint, ...]]) -> list[str]:
    """What each combination is called, its seed left out."""
    varying = varying_keys(axes, points)
    shorts = short_keys(varying)
    found = []
    for combination in points:
        names, unnamed = in_a_name([point for point in combination if set(point.values) != {SEED}])
        shown = {key: value for key, value in unnamed.items() if key in varying}
        method = unnamed.get(METHOD)
        fallback = value_text(METHOD, method) if isinstance(method, str) else ONLY_ROW
        found.append(trial_name(shown, shorts, fallback, names))
    return found


def trial_rows(file: SweepFile, *, import_files: bool = True) -> dict[str, SweepRow]:
    """Every row of ``file`` with its configuration; the seeds of the file are left out.

    Raises:
        UserError: every problem of the file's axes, or a search, which has no rows.
    """
    axes = read_axes(file, import_files=import_files)
    problems = list(axes.problems)
    if file.spec.search is not None:
        problems.append((file.place("search"), "search: suggests its trials; there are no rows to be named"))
    if problems:
        raise ConfigError(problems)
    points = combinations(axes, file)
    common = [(file.place("set", key), override_text(key, value)) for key, value in file.spec.set.items()]
    rows: dict[str, SweepRow] = {}
    for name, combination in zip(row_names(axes.axes, points), points, strict=True):
        texts = [
            (
                point.places.get(key, point.place),
                override_text(key, point.option if key == METHOD and point.option else value),
            )
            for point in combination
            if set(point.values) != {SEED}
            for key, value in point.values.items()
        ]
        layers = choices_first(
            KEYS, [Layer(place, parse_override(KEYS, text).data) for place, text in (*common, *texts)]
        )
        rows.setdefault(name, SweepRow(tuple(file.base), tuple(layers)))
    return rows


def config_source(written: Path, *, import_files: bool = True) -> Path | SweepRow:
    """What is given for a configuration file: the file, or the trial that `FILE:ROW` names. Raises UserError."""
    path, colon, name = str(written).rpartition(":")
    if not colon or written.exists():
        if _is_sweep(written):
            raise UserError(f"{written}: is a sweep file, not a configuration; one of its trials is {written}:TRIAL")
        return written
    found = trial_rows(read_sweep(Path(path)), import_files=import_files)
    if name not in found:
        said = f"has no row {name!r}.{did_you_mean(name, found)} Rows: {some(list(found), SHOWN)}"
        raise UserError(f"{path}: {said}")
    return found[name]


def _is_sweep(file: Path) -> bool:
    """Whether a file varies something; what is wrong with it otherwise is for its reader to say."""
    try:
        data = parse(read_text(file)).data
    except YamlProblem:
        return False
    return isinstance(data, dict) and not AXES.isdisjoint(map(str, data))


def choose_row(names: Sequence[str], only: str) -> list[int]:
    """The places of the ``names`` that match the pattern ``only``. Raises UserError where none does."""
    found = [place for place, name in enumerate(names) if fnmatchcase(name, only)]
    if not found:
        known = list(dict.fromkeys(names))
        raise UserError(f"--only {only}: matches no trial.{did_you_mean(only, known)} Trials: {some(known, SHOWN)}")
    return found


def with_seeds(file: SweepFile, seeds: str) -> SweepFile:
    """The sweep with other seeds: a number of them, or a list as `42,43`. Raises UserError for anything else."""
    try:
        numbers = tuple(map(int, seeds.split(",")))
        checked = SweepSpec(seeds=numbers if len(numbers) > 1 else numbers[0])
    except ValueError:
        # pydantic's error is one too.
        wanted = describe_field(SweepSpec.model_fields["seeds"])
        raise UserError(f"--seeds {seeds}: must be {wanted}, as 42,43") from None
    return replace(file, spec=file.spec.model_copy(update={"seeds": checked.seeds}))


def reported_problems(file: SweepFile, names: Sequence[str]) -> list[SpecProblem]:
    """Numbers of a trial that the file does not name, and rows that are not as long as the columns."""
    found: list[SpecProblem] = []
    for number, table in enumerate(file.spec.reported):
        for name, values in table.rows.items():
            place = file.place("reported", number, "rows", name)
            if not any(fnmatchcase(row, name) for row in names):
                found.append((place, f"reported: {name} is no trial.{did_you_mean(name, names)}"))
            if len(values) != len(table.columns):
                said = f"{name} has {len(values)} numbers, and there are {len(table.columns)} columns"
                found.append((place, f"reported: {said}"))
    return found


def reported(file: SweepFile, names: Collection[str]) -> list[dict[str, Any]]:
    """The tables of `reported`, with the rows of ``names`` alone; none without any of them."""
    tables = [table.model_dump(mode="json") for table in file.spec.reported]
    for table in tables:
        table["rows"] = {
            name: values for name, values in table["rows"].items() if any(fnmatchcase(row, name) for row in names)
        }
    return [table for table in tables if table["rows"]]
