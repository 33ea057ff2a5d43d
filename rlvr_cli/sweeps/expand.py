"""Expand a sweep file into trials, with every problem of every trial reported before anything starts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr_cli.config.checks import check_training
from rlvr_cli.config.keys import KEYS
from rlvr_cli.config.load import load
from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import ConfigError, UserError
from rlvr_cli.core.layers import label, override_text, parse_override
from rlvr_cli.core.text import some
from rlvr_cli.core.user_code import ENDING
from rlvr_cli.models.reading import check_readable
from rlvr_cli.sweeps.axes import (
    METHOD,
    AxisPoint,
    SweepAxes,
    combinations,
    full_key,
    key_problem,
    read_axes,
    split_names,
    values_of,
)
from rlvr_cli.sweeps.naming import config_hash, make_unique, short_keys, trial_name
from rlvr_cli.sweeps.objective import (
    Objective,
    benchmarks_of,
    eval_arguments,
    eval_problems,
    pruning_problems,
    read_objective,
)
from rlvr_cli.sweeps.rows import match_rows, reported_problems, row_names, varying_keys, with_seeds
from rlvr_cli.sweeps.search_space import Space, search_space
from rlvr_cli.sweeps.spec import SpecProblem, SweepFile

SHOWN_TRIALS = 3


@dataclass(frozen=True)
class Trial:
    """One training of a sweep.

    Attributes:
        name: the name of its run, from the values that vary.
        id: the hash of its configuration (:func:`config_hash`).
        method: the argument of `--method`; None = the method of the base configuration.
        overrides: `set`, the command line's, the axes'.
        varies: the values of the axes, by key.
        row: its name without the seed; "" in a search, which has no rows.
    """

    name: str
    id: str
    method: str | None
    overrides: tuple[str, ...]
    varies: dict[str, Any]
    config: Config
    row: str = ""


@dataclass(frozen=True)
class Sweep:
    """A sweep file with its trials, in the order of their start.

    Attributes:
        trials: empty in a search.
        cli_overrides: the command line's overrides.
        space, corners: the space of a search, and trials at its ends.
        flags: command-line options that select trials; the command that continues the sweep repeats them.
    """

    file: SweepFile
    trials: tuple[Trial, ...]
    eval: tuple[str, ...] | None
    cli_overrides: tuple[str, ...] = ()
    objective: Objective | None = None
    space: Space | None = None
    corners: tuple[Trial, ...] = ()
    flags: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """`<run.dir>/<name>`."""
        return Path((*self.trials, *self.corners)[0].config.run.dir) / self.file.name

    @property
    def overrides(self) -> list[str]:
        """The overrides of every trial, without the values of the axes."""
        return [*_set_overrides(self.file), *self.cli_overrides]

    @property
    def bound(self) -> int:
        """The maximum rollouts of one configuration of a search, over all of its seeds."""
        assert self.space is not None
        return len(self.space.seeds) * max(trial.config.train.rollouts for trial in self.corners)


def folder_of(file: SweepFile) -> Path:
    """Return the folder of a sweep, without importing user files. Raises UserError."""
    return Path(load(file.base, overrides=_set_overrides(file)).config.run.dir) / file.name


def expand(
    file: SweepFile, overrides: Sequence[str] = (), *, only: str | None = None, seeds: str | None = None
) -> Sweep:
    """Expand ``file`` into its trials.

    Args:
        overrides: of the command line; they take precedence over `set`.
        only: a pattern of the trials' names without seeds.
        seeds: replaces the file's seeds: their number, or a list.
    Raises:
        UserError: every problem of the file, its axes and each trial's configuration, with its line.
    """
    if seeds is not None:
        file = with_seeds(file, seeds)
    axes = read_axes(file)
    common = [*_set_overrides(file), *overrides]
    problems = [*axes.problems, *_override_problems(overrides, axes)]
    space = None
    if file.spec.search is not None:
        space, space_problems = search_space(file, axes)
        problems += space_problems
    if problems:
        raise ConfigError(problems)
    # A search has no list of trials; check the corners of its space.
    points = combinations(axes, file) if space is None else [(*corner, space.seeds[0]) for corner in space.corners()]
    varying = varying_keys(axes.axes, points)
    names_of_rows = row_names(axes.axes, points)
    problems += reported_problems(file, names_of_rows)
    if files := _misplaced_files(file, overrides, points):
        raise ConfigError([*problems, *files])
    if only is not None:
        chosen = match_rows(names_of_rows, only)
        points, names_of_rows = [points[row] for row in chosen], [names_of_rows[row] for row in chosen]
    shorts = short_keys(varying)
    locations = {label(override_text(key, value)): file.location("set", key) for key, value in file.spec.set.items()}
    trials: list[Trial] = []
    combos: list[tuple[AxisPoint, ...]] = []
    failing: dict[SpecProblem, list[str]] = {}
    for combination, row in zip(points, names_of_rows, strict=True):
        values = values_of(combination)
        names, unnamed = split_names(combination)
        name_values = {key: value for key, value in unnamed.items() if key in varying}
        try:
            config, method, axis_overrides = load_trial(file.base, combination, common, locations)
        except UserError as error:
            name = trial_name(name_values, shorts, "trial", names)
            for problem in _locate_problems(error, file, combination):
                failing.setdefault(problem, []).append(name)
            continue
        id_ = config_hash(config)
        # The recorded spelling: `power.py+surprise.py+lopti` is `power+lopti+surprise`.
        name_values |= {METHOD: config.method.name} if METHOD in name_values else {}
        name = trial_name(name_values, shorts, config.method.name, names)
        name = make_unique(name, id_, [trial.name for trial in trials])
        trials.append(Trial(name, id_, method, (*common, *axis_overrides), values, config, row))
        combos.append(combination)
    for (location, message), names in failing.items():
        which = (
            f" (trial{'s' if len(names) > 1 else ''} {some(names, SHOWN_TRIALS)})" if len(names) < len(points) else ""
        )
        problems.append((location, f"{message}{which}"))
    problems += _duplicates(trials, combos)
    evaluated, set_problems = _evaluation_configs(file, trials)
    problems += [*set_problems, *eval_problems(file, evaluated)]
    objective, objective_problems = read_objective(file, [trial.config for trial in trials], evaluated)
    problems += objective_problems
    arguments = eval_arguments(file.spec.eval, evaluated)
    flags = tuple(f"--{name}={value}" for name, value in (("only", only), ("seeds", seeds)) if value is not None)
    runs = () if space is not None else tuple(trials)
    sweep = Sweep(file, runs, arguments, tuple(overrides), objective, space, tuple(trials), flags=flags)
    problems += _budget_problems(file, trials) if space is None else _search_problems(sweep)
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    return sweep


def load_trial(
    base: Sequence[Path], combination: Sequence[AxisPoint], common: Sequence[str], locations: Mapping[str, str]
) -> tuple[Config, str | None, list[str]]:
    """Return a trial's configuration, its method and the overrides of its axes. Raises ConfigError with file lines.

    Args:
        common: overrides of every trial. locations: their lines, by the overrides' labels.
    """
    method: str | None = None
    axis_overrides: list[str] = []
    named = dict(locations)
    for point in combination:
        for key, value in point.values.items():
            if key == METHOD and isinstance(value, str):
                method = point.option or value
                named[f"--method {method}"] = point.locations.get(key, point.location)
            else:
                text = override_text(key, value)
                axis_overrides.append(text)
                named[label(text)] = point.locations.get(key, point.location)
    try:
        loaded = load(base, method, None, None, [*common, *axis_overrides], import_files=True)
    except ConfigError as error:
        raise ConfigError(
            [(locate_overrides(location, named), message) for location, message in error.by_origin]
        ) from None
    check_training(loaded.config)
    check_readable(loaded.config)
    return loaded.config, method, axis_overrides


def _locate_problems(error: UserError, file: SweepFile, combination: tuple[AxisPoint, ...]) -> list[SpecProblem]:
    """Return the problems of an error with their lines; a message that starts with a key gets the key's line."""
    if isinstance(error, ConfigError):
        return list(error.by_origin)
    locations = {key: file.location("set", key) for key in file.spec.set}
    locations |= {key: point.location for point in combination for key in point.values}
    return [(locations.get(message.partition("=")[0], ""), message) for message in error.problems]


def locate_overrides(location: str, named: dict[str, str]) -> str:
    """Replace the labels of overrides in ``location`` by the lines of the sweep file that set them."""
    for text in sorted(named, key=len, reverse=True):
        pattern = rf"(?<![^\s,]){re.escape(text)}(?![^\s,])"
        location = named[text].join(re.split(pattern, location))
    return ", ".join(dict.fromkeys(location.split(", ")))


def _override_problems(overrides: Sequence[str], axes: SweepAxes) -> list[SpecProblem]:
    """Return the problems of the command line's overrides; they may not set a key that an axis or the sweep sets."""
    problems: list[SpecProblem] = []
    for text in overrides:
        key = full_key(text.partition("=")[0].strip())
        axis = next((axis for axis in axes.axes if key in axis.keys), None)
        try:
            parse_override(KEYS, text)
        except ValueError as error:
            problems.append((label(text), str(error)))
            continue
        if axis is not None:
            problems.append((label(text), f"{key} is an axis ({axis.location}), which would override it"))
        elif key == "run.name":
            problems.append((label(text), "run.name: trials are named by what varies"))
    return problems


def _misplaced_files(
    file: SweepFile, overrides: Sequence[str], points: Sequence[Sequence[AxisPoint]]
) -> list[SpecProblem]:
    """Report user files that are named where the sweep does not copy them."""
    named: list[tuple[str, str, Any]] = [(label(text), *text.partition("=")[::2]) for text in overrides]
    named += [(file.location("set", key), key, value) for key, value in file.spec.set.items()]
    named += [
        (point.location, key, value) for combo in points for point in combo for key, value in point.values.items()
    ]
    advice = {
        "task.name": "name the file of a task in the base configuration (`base:`): the sweep keeps a copy of both",
        METHOD: "name the file of a method in `methods` or in the base configuration (`base:`): the sweep keeps a copy",
    }
    problems = {
        (location, f"{key}: {advice[full]}")
        for location, key, value in named
        if (full := full_key(key.strip())) in advice and str(value).strip().endswith(ENDING)
    }
    return sorted(problems)


def _set_overrides(file: SweepFile) -> list[str]:
    return [override_text(key, value) for key, value in file.spec.set.items()]


def _search_problems(sweep: Sweep) -> list[SpecProblem]:
    file, spec = sweep.file, sweep.file.spec
    assert spec.search is not None and sweep.space is not None
    location, configs = file.location("search"), [trial.config for trial in sweep.corners]
    problems: list[SpecProblem] = []
    if spec.objective is None:
        message = "search: needs an `objective`, the metric to optimize, for example `objective: accuracy`"
        problems.append((location, message))
    if spec.search.trials is None and spec.budget is None:
        message = "search: has no end; set `trials` (a number of configurations) or `budget` (a number of rollouts)"
        problems.append((location, message))
    if spec.search.pruning is not None and spec.objective is not None:
        lines = pruning_problems(spec.objective.metric, configs)
        problems += [(file.location("search", "pruning"), line) for line in lines]
    if spec.budget is not None and sweep.corners and spec.budget < sweep.bound:
        number = len(sweep.space.seeds)
        message = (
            f"budget: one configuration takes up to {sweep.bound:,} rollouts ({number} seed{'s' * (number > 1)}), and "
            f"{spec.budget:,} are allowed"
        )
        problems.append((file.location("budget"), message))
    return problems


def _evaluation_configs(file: SweepFile, trials: Sequence[Trial]) -> tuple[list[Config], list[SpecProblem]]:
    """Return the configurations with `eval.set`, for the evaluation of finished trials, and their problems.

    A benchmark sets the keys of the task, so only keys of the section `eval` are checked.
    """
    spec = file.spec.eval
    as_trained = [trial.config for trial in trials]
    on_benchmarks = spec is not None and any(benchmarks_of(spec, config) for config in as_trained)
    wanted = {} if spec is None else spec.set
    wanted = {key: value for key, value in wanted.items() if not on_benchmarks or key.startswith("eval.")}
    if not wanted or any(key_problem(key) for key in wanted):
        return as_trained, []
    locations = {label(override_text(key, value)): file.location("eval", "set", key) for key, value in wanted.items()}
    texts = [override_text(key, value) for key, value in wanted.items()]
    if "eval.samples" in wanted:
        # As in `rlvr eval`: samples without a k leave the k that they allow.
        texts = ["eval.pass_at=[]", *texts]
    configs: list[Config] = []
    for trial in trials:
        try:
            overrides = [*trial.overrides, *texts]
            configs.append(load(file.base, trial.method, None, None, overrides, import_files=True).config)
        except ConfigError as error:
            return as_trained, [
                (locate_overrides(location, locations), f"eval.set: {text}") for location, text in error.by_origin
            ]
    return configs, []


def _duplicates(trials: Sequence[Trial], combos: Sequence[tuple[AxisPoint, ...]]) -> list[SpecProblem]:
    """Report trials with identical configurations: one message per pair of lines, with the first pair of trials."""
    first: dict[str, int] = {}
    duplicates: dict[str, list[tuple[str, str]]] = {}
    for number, trial in enumerate(trials):
        earlier = first.setdefault(trial.id, number)
        if earlier == number:
            continue
        pairs = zip(combos[earlier], combos[number], strict=True)
        lines = ", ".join(
            dict.fromkeys(location for a, b in pairs if a is not b for location in (a.location, b.location))
        )
        duplicates.setdefault(lines, []).append((_format_axis_values(trials[earlier]), _format_axis_values(trial)))
    return [
        (
            lines,
            f"{pairs[0][0]} and {pairs[0][1]} are the same trial: their configurations agree in all that decides the "
            f"numbers{f' (and {len(pairs) - 1} more alike)' if len(pairs) > 1 else ''}",
        )
        for lines, pairs in duplicates.items()
    ]


def _format_axis_values(trial: Trial) -> str:
    return ", ".join(override_text(key, value) for key, value in trial.varies.items())


def _budget_problems(file: SweepFile, trials: Sequence[Trial]) -> list[SpecProblem]:
    wanted, budget = sum(trial.config.train.rollouts for trial in trials), file.spec.budget
    if budget is None or wanted <= budget:
        return []
    return [
        (
            file.location("budget"),
            f"budget: the {len(trials)} trials take {wanted:,} rollouts together, and {budget:,} are allowed; leave "
            "out values or seeds, lower train.rollouts, or raise the budget",
        )
    ]
