"""Expand a sweep file into trials, with every problem of every trial reported before anything starts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from typing import Any

from rlvr_cli.config.checks import check_training
from rlvr_cli.config.keys import KEYS
from rlvr_cli.config.load import SweepRow, load_config
from rlvr_cli.config.schema import Config
from rlvr_cli.config.user_files import names_user_file
from rlvr_cli.core.errors import ConfigError, UserError
from rlvr_cli.core.layers import format_override, override_label, parse_override
from rlvr_cli.core.text import ellipsize
from rlvr_cli.models.reading import check_readable
from rlvr_cli.sweeps.axes import (
    METHOD,
    RESERVED_KEYS,
    AxisPoint,
    SweepAxes,
    combinations,
    full_key,
    merge_values,
    read_axes,
)
from rlvr_cli.sweeps.naming import abbreviate_varying_keys, combination_name, config_digest, make_unique
from rlvr_cli.sweeps.objective import (
    Objective,
    eval_arguments,
    eval_problems,
    held_out_problems,
    read_objective,
    trial_benchmarks,
)
from rlvr_cli.sweeps.rows import (
    combination_layers,
    file_overrides,
    match_rows,
    replace_seeds,
    reported_problems,
    row_names,
)
from rlvr_cli.sweeps.search_space import Space, read_search_space
from rlvr_cli.sweeps.spec import SpecProblem, SweepFile

SHOWN_TRIALS = 3


@dataclass(frozen=True)
class Trial:
    """A trial of a sweep: one training run.

    Attributes:
        name: of its run, from the values that vary.
        id: the digest of its configuration (:func:`config_digest`).
        method: the argument of `--method`; None = the method of the base configuration.
        overrides: of `set`, the command line and the axes.
        varies: the values of the axes, by key.
        row: its name without the seed; "" in a search.
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
    """A sweep file with its trials, in start order.

    Attributes:
        trials: empty in a search.
        cli_overrides: of the command line.
        space, corners: the space of a search, and trials at its corners; of a grid all trials.
        flags: command-line options that select trials, repeated to continue the sweep.
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
        return Path((*self.trials, *self.corners)[0].config.run.dir) / self.file.name

    @property
    def bound(self) -> int:
        """The maximum rollouts of one configuration of a search, all seeds together."""
        assert self.space is not None
        return len(self.space.seeds) * max(trial.config.train.rollouts for trial in self.corners)


def sweep_folder(file: SweepFile) -> Path:
    """Return the folder of a sweep, without importing user files. Raises UserError."""
    return Path(load_config(file.base, overrides=[text for _, text in file_overrides(file)]).run.dir) / file.name


def expand(
    file: SweepFile, overrides: Sequence[str] = (), *, only: str | None = None, seeds: str | None = None
) -> Sweep:
    """Expand ``file`` into its trials.

    Args:
        overrides: of the command line; they take precedence over `set`.
        only: a pattern of the trials' names without seeds.
        seeds: replaces the file's seeds: a number of seeds, or a list.
    Raises:
        UserError: all problems of the file, its axes and the trials' configurations, with their lines.
    """
    if seeds is not None:
        file = replace_seeds(file, seeds)
    axes = read_axes(file)
    common = [*file_overrides(file), *((override_label(text), text) for text in overrides)]
    problems = [*axes.problems, *_override_problems(overrides, axes), *_file_problems(common, axes)]
    space = None
    if file.spec.search is not None:
        space, space_problems = read_search_space(file, axes)
        problems += space_problems
    if problems:
        raise ConfigError(problems)
    # A search has no list of trials; check the corners of its space.
    points = combinations(axes, file) if space is None else [(*corner, space.seeds[0]) for corner in space.corners()]
    rows = row_names(file, axes.axes, points, overrides)
    shorts = abbreviate_varying_keys(axes.axes, points)
    problems += reported_problems(file, rows)
    if only is not None:
        selected = match_rows(rows, only)
        points, rows = [points[index] for index in selected], [rows[index] for index in selected]
    trials: list[Trial] = []
    combos: list[tuple[AxisPoint, ...]] = []
    failing: dict[SpecProblem, list[str]] = {}
    for combination, row in zip(points, rows, strict=True):
        try:
            trials.append(make_trial(file.base, common, combination, shorts, [trial.name for trial in trials], row))
            combos.append(combination)
        except UserError as error:
            name = combination_name(combination, shorts, merge_values(combination).get(METHOD, row))
            for problem in _locate_problems(error, file, combination):
                failing.setdefault(problem, []).append(name)
    for (location, message), names in failing.items():
        suffix = (
            f" (trial{'s' if len(names) > 1 else ''} {ellipsize(names, SHOWN_TRIALS)})"
            if len(names) < len(points)
            else ""
        )
        problems.append((location, f"{message}{suffix}"))
    problems += _duplicate_problems(trials, combos)
    evaluated, set_problems = _evaluation_configs(file, common, trials, combos)
    problems += [*set_problems, *eval_problems(file, evaluated)]
    objective, objective_problems = read_objective(file, [trial.config for trial in trials], evaluated)
    problems += objective_problems
    arguments = eval_arguments(file.spec.eval, evaluated)
    flags = tuple(f"--{name}={value}" for name, value in (("only", only), ("seeds", seeds)) if value is not None)
    runs = () if space is not None else tuple(trials)
    sweep = Sweep(file, runs, arguments, tuple(overrides), objective, space, tuple(trials), flags=flags)
    problems += [*_budget_problems(sweep), *(_search_problems(sweep) if space is not None else [])]
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    return sweep


def make_trial(
    base: Sequence[Path],
    common: Sequence[tuple[str, str]],
    combination: Sequence[AxisPoint],
    shorts: Mapping[str, str],
    taken: Collection[str] = (),
    row: str = "",
) -> Trial:
    """Return the trial of a combination. Raises UserError for an invalid configuration, with the lines that set it."""
    method: str | None = None
    overrides = [text for _, text in common]
    for point in combination:
        for key, value in point.values.items():
            if key == METHOD and isinstance(value, str):
                method = point.option or value
            else:
                overrides.append(format_override(key, value))
    config = load_config([SweepRow(tuple(base), combination_layers(common, combination))], import_files=True)
    check_training(config)
    check_readable(config)
    id_ = config_digest(config)
    name = make_unique(combination_name(combination, shorts, config.method.name), id_, taken)
    return Trial(name, id_, method, tuple(overrides), merge_values(combination), config, row)


def _locate_problems(error: UserError, file: SweepFile, combination: tuple[AxisPoint, ...]) -> list[SpecProblem]:
    """Return the problems of an error; a message that starts with a key gets the key's line."""
    if isinstance(error, ConfigError):
        return list(error.by_origin)
    locations = {key: file.location("set", key) for key in file.spec.set}
    locations |= {key: point.location for point in combination for key in point.values}
    return [(locations.get(message.partition("=")[0], ""), message) for message in error.problems]


def _override_problems(overrides: Sequence[str], axes: SweepAxes) -> list[SpecProblem]:
    """Return the problems of command-line overrides, which may not set the key of an axis, or the name."""
    problems: list[SpecProblem] = []
    for text in overrides:
        key = full_key(text.partition("=")[0].strip())
        axis = next((axis for axis in axes.axes if key in axis.keys), None)
        if axis is not None:
            problems.append((override_label(text), f"{key} is an axis ({axis.location}), which would override it"))
        elif key == "run.name":
            problems.append((override_label(text), f"{key}: {RESERVED_KEYS[key]}"))
    return problems


def _file_problems(common: Sequence[tuple[str, str]], axes: SweepAxes) -> list[SpecProblem]:
    """Return the problems of Python files of methods and tasks that the sweep does not copy: in overrides and axes."""
    points = [point for axis in axes.axes for point in axis.points]
    texts = [*common, *((point.location, format_override(*item)) for point in points for item in point.values.items())]
    problems: list[SpecProblem] = []
    for location, text in texts:
        # Invalid overrides are reported with the trials.
        with suppress(ValueError):
            for section, value in parse_override(KEYS, text).data.items():
                name = value.get("name") if isinstance(value, dict) else value
                if section in ("method", "task") and isinstance(name, str) and names_user_file(name):
                    allowed = "a Python file must be in `methods` or `base`, which the sweep copies"
                    problems.append((location, f"{section}: {allowed}; got {name}"))
    return problems


def _search_problems(sweep: Sweep) -> list[SpecProblem]:
    file, spec = sweep.file, sweep.file.spec
    assert spec.search is not None and sweep.space is not None
    location, configs = file.location("search"), [trial.config for trial in sweep.corners]
    problems: list[SpecProblem] = []
    if spec.objective is None:
        message = "search: needs an `objective`, the metric to optimize, as `objective: accuracy`"
        problems.append((location, message))
    if spec.search.trials is None and spec.budget is None:
        message = "search: must have an end; set `trials` (configurations) or `budget` (rollouts)"
        problems.append((location, message))
    if spec.search.pruning is not None and spec.objective is not None:
        lines = held_out_problems(spec.objective.metric, configs, pruning=True)
        problems += [(file.location("search", "pruning"), line) for line in lines]
    return problems


def _evaluation_configs(
    file: SweepFile,
    common: Sequence[tuple[str, str]],
    trials: Sequence[Trial],
    combos: Sequence[tuple[AxisPoint, ...]],
) -> tuple[list[Config], list[SpecProblem]]:
    """Return the evaluations' configurations (only the section `eval` is checked), and the problems of `eval`."""
    spec = file.spec.eval
    as_trained = [trial.config for trial in trials]
    if spec is None:
        return as_trained, []
    on_benchmarks = any(trial_benchmarks(spec, config) for config in as_trained)
    texts: list[tuple[str, str]] = []
    unknown: list[SpecProblem] = []
    for key, value in spec.set.items():
        location, path = file.location("eval", "set", key), tuple(key.split("."))
        if not on_benchmarks or path[0] == "eval":
            texts.append((location, format_override(key, value)))
        elif not KEYS.is_known(path):
            guess = KEYS.suggest(path)
            unknown.append((location, f"eval.set: {key}: unknown key.{f' Did you mean `{guess}`?' if guess else ''}"))
    if spec.samples is not None:
        texts.append((file.location("eval", "samples"), format_override("eval.samples", spec.samples)))
    if spec.samples is not None or spec.pass_at:
        # As in `rlvr eval`: samples without a k keep every default k up to their number.
        texts.append((file.location("eval", "pass_at"), format_override("eval.pass_at", list(spec.pass_at))))
    if not texts:
        return as_trained, unknown
    try:
        return [
            load_config([SweepRow(tuple(file.base), combination_layers([*common, *texts], combo))], import_files=True)
            for combo in combos
        ], unknown
    except ConfigError as error:
        prefix = "eval.set" if spec.set else "eval"
        return as_trained, [*unknown, *((location, f"{prefix}: {text}") for location, text in error.by_origin)]


def _duplicate_problems(trials: Sequence[Trial], combos: Sequence[tuple[AxisPoint, ...]]) -> list[SpecProblem]:
    """Return a problem per pair of lines that give identical configurations, with the first pair of trials."""
    first: dict[str, int] = {}
    pairs: dict[str, list[str]] = {}
    for number, trial in enumerate(trials):
        earlier = first.setdefault(trial.id, number)
        if earlier != number:
            differing = [pair for pair in zip(combos[earlier], combos[number], strict=True) if pair[0] is not pair[1]]
            lines = ", ".join(dict.fromkeys(point.location for pair in differing for point in pair))
            texts = [", ".join(starmap(format_override, trials[index].varies.items())) for index in (earlier, number)]
            pairs.setdefault(lines, []).append(" and ".join(texts))
    return [
        (
            lines,
            f"{names[0]} are the same trial: their configurations differ in no key that affects results"
            f"{f' (and {len(names) - 1} more)' if len(names) > 1 else ''}",
        )
        for lines, names in pairs.items()
    ]


def _budget_problems(sweep: Sweep) -> list[SpecProblem]:
    file, budget, trials = sweep.file, sweep.file.spec.budget, sweep.corners
    if budget is None or not trials:
        return []
    rollouts, scope = sum(trial.config.train.rollouts for trial in trials), f"the {len(trials)} trials"
    if sweep.space is not None:
        rollouts, scope = sweep.bound, "one configuration with all seeds"
    message = (
        f"budget: must be at least {rollouts:,}, the rollouts of {scope}; got {budget:,}. Raise it, remove values or "
        "seeds, or lower train.rollouts"
    )
    return [(file.location("budget"), message)] if rollouts > budget else []
