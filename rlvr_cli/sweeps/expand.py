"""From a sweep file to its trials, every problem of every one of them found before anything is started."""

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
    in_a_name,
    key_problem,
    read_axes,
    values_of,
)
from rlvr_cli.sweeps.naming import config_hash, short_keys, trial_name, unique
from rlvr_cli.sweeps.objective import (
    Objective,
    benchmarks_of,
    eval_arguments,
    eval_problems,
    intermediate_faults,
    read_objective,
)
from rlvr_cli.sweeps.rows import choose_row, reported_problems, row_names, varying_keys, with_seeds
from rlvr_cli.sweeps.search_space import Space, search_space
from rlvr_cli.sweeps.spec import SpecProblem, SweepFile

SHOWN_TRIALS = 3


@dataclass(frozen=True)
class Trial:
    """One training of a sweep.

    Attributes:
        name: what varies, in short; the name of its run.
        id: the hash of what decides its numbers.
        method: what `--method` is given; None = that of the base configuration.
        overrides: what is overridden: `set`, the command line's, the axes'.
        varies: the values of the axes, by their keys.
        row: its name without the seed; "" of a search, which has no rows.
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
    """A sweep file with its trials, in the order in which they are begun.

    Attributes:
        trials: of a search, those that it has suggested.
        given: the command line's overrides.
        objective: by which trials are ranked.
        space, corners: what a search chooses from, and trials at the ends of it.
        flags: options of the command line that choose the trials; a command that continues the sweep repeats them.
    """

    file: SweepFile
    trials: tuple[Trial, ...]
    eval: tuple[str, ...] | None
    given: tuple[str, ...] = ()
    objective: Objective | None = None
    space: Space | None = None
    corners: tuple[Trial, ...] = ()
    flags: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """`<run.dir>/<name>`: all that the sweep leaves."""
        return Path((*self.trials, *self.corners)[0].config.run.dir) / self.file.name

    @property
    def overrides(self) -> list[str]:
        """What every trial has next to the values of the axes."""
        return [*_set(self.file), *self.given]

    @property
    def bound(self) -> int:
        """The most rollouts that a configuration of a search takes, with all of its seeds."""
        assert self.space is not None
        return len(self.space.seeds) * max(trial.config.train.rollouts for trial in self.corners)


def folder_of(file: SweepFile) -> Path:
    """Return the folder of a sweep; no user file is imported. Raises UserError."""
    return Path(load(file.base, overrides=_set(file)).config.run.dir) / file.name


def expand(
    file: SweepFile, overrides: Sequence[str] = (), *, only: str | None = None, seeds: str | None = None
) -> Sweep:
    """The trials of ``file``.

    Args:
        overrides: of the command line, over those of `set`.
        only: a pattern for the names, without seeds, of the trials that are wanted.
        seeds: in place of the file's own: their number, or a list of them.
    Raises:
        UserError: every problem of the file, of its axes and of every trial's configuration, with its line.
    """
    if seeds is not None:
        file = with_seeds(file, seeds)
    axes = read_axes(file)
    given = [*_set(file), *overrides]
    problems = [*axes.problems, *_override_problems(overrides, axes)]
    space = None
    if file.spec.search is not None:
        space, wrong = search_space(file, axes)
        problems += wrong
    if problems:
        raise ConfigError(problems)
    # Of a search, which has endless trials, those at the ends of its space.
    points = combinations(axes, file) if space is None else [(*corner, space.seeds[0]) for corner in space.corners()]
    varying = varying_keys(axes.axes, points)
    names_of_rows = row_names(axes.axes, points)
    problems += reported_problems(file, names_of_rows)
    if files := _misplaced_files(file, overrides, points):
        raise ConfigError([*problems, *files])
    if only is not None:
        chosen = choose_row(names_of_rows, only)
        points, names_of_rows = [points[row] for row in chosen], [names_of_rows[row] for row in chosen]
    shorts = short_keys(varying)
    places = {label(override_text(key, value)): file.place("set", key) for key, value in file.spec.set.items()}
    trials: list[Trial] = []
    combos: list[tuple[AxisPoint, ...]] = []
    failing: dict[SpecProblem, list[str]] = {}
    for combination, row in zip(points, names_of_rows, strict=True):
        values = values_of(combination)
        names, unnamed = in_a_name(combination)
        shown = {key: value for key, value in unnamed.items() if key in varying}
        try:
            config, method, axis_overrides = load_trial(file.base, combination, given, places)
        except UserError as error:
            name = trial_name(shown, shorts, "trial", names)
            for problem in _located(error, file, combination):
                failing.setdefault(problem, []).append(name)
            continue
        id_ = config_hash(config)
        # The recorded spelling: `power.py+surprise.py+lopti` is `power+lopti+surprise`.
        shown |= {METHOD: config.method.name} if METHOD in shown else {}
        name = trial_name(shown, shorts, config.method.name, names)
        name = unique(name, id_, [trial.name for trial in trials])
        trials.append(Trial(name, id_, method, (*given, *axis_overrides), values, config, row))
        combos.append(combination)
    for (place, message), names in failing.items():
        which = (
            f" (trial{'s' if len(names) > 1 else ''} {some(names, SHOWN_TRIALS)})" if len(names) < len(points) else ""
        )
        problems.append((place, f"{message}{which}"))
    problems += _duplicates(trials, combos)
    evaluated, wrong = _evaluated(file, trials)
    problems += [*wrong, *eval_problems(file, evaluated)]
    objective, wrong = read_objective(file, [trial.config for trial in trials], evaluated)
    problems += wrong
    arguments = eval_arguments(file.spec.eval, evaluated)
    flags = tuple(f"--{name}={value}" for name, value in (("only", only), ("seeds", seeds)) if value is not None)
    runs = () if space is not None else tuple(trials)
    sweep = Sweep(file, runs, arguments, tuple(overrides), objective, space, tuple(trials), flags=flags)
    problems += _over_budget(file, trials) if space is None else _search_problems(sweep)
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    return sweep


def load_trial(
    base: Sequence[Path], combination: Sequence[AxisPoint], given: Sequence[str], places: Mapping[str, str]
) -> tuple[Config, str | None, list[str]]:
    """A trial's configuration, its method and its own overrides. Raises ConfigError that names lines of the file.

    Args:
        given: overrides of every trial. places: the lines that say so, by the overrides' labels.
    """
    method: str | None = None
    own: list[str] = []
    named = dict(places)
    for point in combination:
        for key, value in point.values.items():
            if key == METHOD and isinstance(value, str):
                method = point.option or value
                named[f"--method {method}"] = point.places.get(key, point.place)
            else:
                text = override_text(key, value)
                own.append(text)
                named[label(text)] = point.places.get(key, point.place)
    try:
        loaded = load(base, method, None, None, [*given, *own], import_files=True)
    except ConfigError as error:
        raise ConfigError([(at_lines(place, named), message) for place, message in error.by_origin]) from None
    check_training(loaded.config)
    check_readable(loaded.config)
    return loaded.config, method, own


def _located(error: UserError, file: SweepFile, combination: tuple[AxisPoint, ...]) -> list[SpecProblem]:
    """Return an error's problems by their places; one that begins with a key is where the key is set."""
    if isinstance(error, ConfigError):
        return list(error.by_origin)
    places = {key: file.place("set", key) for key in file.spec.set}
    places |= {key: point.place for point in combination for key in point.values}
    return [(places.get(message.partition("=")[0], ""), message) for message in error.problems]


def at_lines(place: str, named: dict[str, str]) -> str:
    """Places of a problem, the overrides among them by the lines of the sweep file that they are from."""
    for text in sorted(named, key=len, reverse=True):
        whole = rf"(?<![^\s,]){re.escape(text)}(?![^\s,])"
        place = named[text].join(re.split(whole, place))
    return ", ".join(dict.fromkeys(place.split(", ")))


def _override_problems(overrides: Sequence[str], axes: SweepAxes) -> list[SpecProblem]:
    """Return what is wrong with overrides of the command line: they may not set what an axis or the sweep sets."""
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
            problems.append((label(text), f"{key} is an axis ({axis.place}), which would override it"))
        elif key == "run.name":
            problems.append((label(text), "run.name: trials are named by what varies"))
    return problems


def _misplaced_files(
    file: SweepFile, overrides: Sequence[str], points: Sequence[Sequence[AxisPoint]]
) -> list[SpecProblem]:
    """A file of the user's own that is named where the sweep keeps no copy of it."""
    named: list[tuple[str, str, Any]] = [(label(text), *text.partition("=")[::2]) for text in overrides]
    named += [(file.place("set", key), key, value) for key, value in file.spec.set.items()]
    named += [(point.place, key, value) for combo in points for point in combo for key, value in point.values.items()]
    said = {
        "task.name": "name the file of a task in the base configuration (`base:`): the sweep keeps a copy of both",
        METHOD: "name the file of a method in `methods` or in the base configuration (`base:`): the sweep keeps a copy",
    }
    found = {
        (place, f"{key}: {said[full]}")
        for place, key, value in named
        if (full := full_key(key.strip())) in said and str(value).strip().endswith(ENDING)
    }
    return sorted(found)


def _set(file: SweepFile) -> list[str]:
    return [override_text(key, value) for key, value in file.spec.set.items()]


def _search_problems(sweep: Sweep) -> list[SpecProblem]:
    """What a search lacks."""
    file, spec = sweep.file, sweep.file.spec
    assert spec.search is not None and sweep.space is not None
    place, configs = file.place("search"), [trial.config for trial in sweep.corners]
    found: list[SpecProblem] = []
    if spec.objective is None:
        said = "search: needs an `objective`, the metric by which configurations are judged, as `objective: accuracy`"
        found.append((place, said))
    if spec.search.trials is None and spec.budget is None:
        said = "search: has no end; give `trials`, how many configurations, or `budget`, how many rollouts"
        found.append((place, said))
    if spec.search.pruning is not None and spec.objective is not None:
        lines = intermediate_faults(spec.objective.metric, configs)
        found += [(file.place("search", "pruning"), line) for line in lines]
    if spec.budget is not None and sweep.corners and spec.budget < sweep.bound:
        number = len(sweep.space.seeds)
        said = (
            f"budget: one configuration takes up to {sweep.bound:,} rollouts ({number} seed{'s' * (number > 1)}), and "
            f"{spec.budget:,} are allowed"
        )
        found.append((file.place("budget"), said))
    return found


def _evaluated(file: SweepFile, trials: Sequence[Trial]) -> tuple[list[Config], list[SpecProblem]]:
    """Return the configurations that finished trials are evaluated by, and what `eval.set` makes wrong of them.

    On a benchmark the keys of a task are the benchmark's, and only those of the section `eval` are looked at.
    """
    spec = file.spec.eval
    as_trained = [trial.config for trial in trials]
    on_benchmarks = spec is not None and any(benchmarks_of(spec, config) for config in as_trained)
    wanted = {} if spec is None else spec.set
    wanted = {key: value for key, value in wanted.items() if not on_benchmarks or key.startswith("eval.")}
    if not wanted or any(key_problem(key) for key in wanted):
        return as_trained, []
    places = {label(override_text(key, value)): file.place("eval", "set", key) for key, value in wanted.items()}
    texts = [override_text(key, value) for key, value in wanted.items()]
    if spec and "eval.samples" in wanted:
        # As `rlvr eval`: the k are those that are asked for, or the benchmark's.
        texts = [*(["eval.pass_at=[1]"] if on_benchmarks else []), *texts]
        if spec.pass_at:
            texts.append(asked := f"eval.pass_at={list(spec.pass_at)}")
            places[label(asked)] = file.place("eval", "pass_at")
    configs: list[Config] = []
    for trial in trials:
        try:
            overrides = [*trial.overrides, *texts]
            configs.append(load(file.base, trial.method, None, None, overrides, import_files=True).config)
        except ConfigError as error:
            return as_trained, [(at_lines(place, places), f"eval.set: {text}") for place, text in error.by_origin]
    return configs, []


def _duplicates(trials: Sequence[Trial], combos: Sequence[tuple[AxisPoint, ...]]) -> list[SpecProblem]:
    """Trials with one configuration: the first pair of each two lines of the file stands for the others."""
    first: dict[str, int] = {}
    found: dict[str, list[tuple[str, str]]] = {}
    for number, trial in enumerate(trials):
        before = first.setdefault(trial.id, number)
        if before == number:
            continue
        pairs = zip(combos[before], combos[number], strict=True)
        lines = ", ".join(dict.fromkeys(place for a, b in pairs if a is not b for place in (a.place, b.place)))
        found.setdefault(lines, []).append((_described(trials[before]), _described(trial)))
    return [
        (
            lines,
            f"{pairs[0][0]} and {pairs[0][1]} are the same trial: their configurations agree in all that decides the "
            f"numbers{f' (and {len(pairs) - 1} more alike)' if len(pairs) > 1 else ''}",
        )
        for lines, pairs in found.items()
    ]


def _described(trial: Trial) -> str:
    return ", ".join(override_text(key, value) for key, value in trial.varies.items())


def _over_budget(file: SweepFile, trials: Sequence[Trial]) -> list[SpecProblem]:
    wanted, budget = sum(trial.config.train.rollouts for trial in trials), file.spec.budget
    if budget is None or wanted <= budget:
        return []
    return [
        (
            file.place("budget"),
            f"budget: the {len(trials)} trials take {wanted:,} rollouts together, and {budget:,} are allowed; leave "
            "out values or seeds, lower train.rollouts, or raise the budget",
        )
    ]
