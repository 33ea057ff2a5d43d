"""The trials of an adaptive search: one a seed for each configuration that was suggested."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.hashes import text_digest
from rlvr_cli.sweeps.axes import SEED, Point, in_a_name, values_of
from rlvr_cli.sweeps.expand import Sweep, Trial, load_trial
from rlvr_cli.sweeps.folder import Plan
from rlvr_cli.sweeps.identity import identity
from rlvr_cli.sweeps.naming import short_keys, trial_name, unique
from rlvr_cli.sweeps.search_space import Space, axis_name, labels

INSTALL = 'pip install "rlvr[search]"'


def check_optuna() -> None:
    """Raise UserError, with what installs it, where Optuna is missing."""
    if importlib.util.find_spec("optuna") is None:
        raise UserError(f"search: the package optuna is not installed. {INSTALL}, or leave `search` out for a grid.")


def suggested_trials(
    space: Space, points: Sequence[Point], base: Sequence[Path], given: Sequence[str], taken: Collection[str] = ()
) -> list[Trial]:
    """The trials of one configuration, one a seed. Raises UserError where it is no valid configuration.

    Args:
        base, given: configuration files and overrides of every trial. taken: names of other trials.
    """
    keys = space.keys
    shorts = short_keys(keys)
    found: list[Trial] = []
    for seed in space.seeds:
        values = values_of((*points, seed))
        names, unnamed = in_a_name((*points, seed))
        config, method, own = load_trial(base, (*points, seed), given, {})
        id_ = identity(config)
        shown = {key: value for key, value in unnamed.items() if key in keys}
        name = trial_name(shown, shorts, config.method.name, names)
        name = unique(name, id_, {*taken, *(trial.name for trial in found)})
        found.append(Trial(name, id_, method, (*given, *own), values, config))
    return found


def study_name(sweep: Sweep) -> str:
    """A hash of the space, of the objective, and of what trials at the ends of the space mean."""
    assert sweep.space is not None
    axes = [(axis_name(axis), labels(axis), repr(axis.interval)) for axis in sweep.space.axes]
    seeds = [dict(point.values) for point in sweep.space.seeds]
    content = [axes, seeds, repr(sweep.objective), repr(sweep.space.excluding), [trial.id for trial in sweep.corners]]
    return text_digest(json.dumps(content))[:16]


def with_suggested(sweep: Sweep, before: Plan | None) -> Sweep:
    """A search with the trials of ``before`` that are in its space and mean what they meant; a grid as it is."""
    space = sweep.space
    if space is None or before is None:
        return sweep
    trials: list[Trial] = []
    for entry in before.trials:
        parameters = space.locate(entry.varies)
        seed = next((point for point in space.seeds if point.values.get(SEED) == entry.varies.get(SEED)), None)
        if parameters is None or seed is None:
            continue
        points = space.points(parameters)
        one = replace(space, seeds=(seed,))
        try:
            (trial,) = suggested_trials(one, points, sweep.file.base, sweep.overrides)
        except UserError:
            # What is no configuration any more is none of this search's trials.
            continue
        if trial.id == entry.id and not space.excludes(points):
            trials.append(replace(trial, name=entry.name))
    return replace(sweep, trials=tuple(trials))
