"""What the tasks of a sweep ask of a cluster, checked before anything is submitted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from rlvr_cli.config.launch import SlurmConfig
from rlvr_cli.config.load import Loaded, load
from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import ConfigError, UserError
from rlvr_cli.core.layers import label
from rlvr_cli.core.section import Contradiction
from rlvr_cli.core.text import some
from rlvr_cli.launch import slurm
from rlvr_cli.launch.deepspeed_config import check_deepspeed
from rlvr_cli.sweeps.axes import override_text
from rlvr_cli.sweeps.expand import SHOWN_TRIALS, Sweep, Trial, at_lines
from rlvr_cli.sweeps.folder import Entry
from rlvr_cli.sweeps.slots import with_slots


@dataclass(frozen=True)
class _Wish:
    """A trial to be checked: its configuration, how to learn where its values were set, and names of these places."""

    name: str
    config: Config
    loaded: Callable[[], Loaded]
    places: dict[str, str] = field(default_factory=dict)


def of_sweep(sweep: Sweep, *, here: bool = True) -> dict[str, SlurmConfig]:
    """What the task of each trial asks for, by the trials' identities: section `slurm`, with the sweep's slots.

    Args:
        here: whether DeepSpeed must be installed where it is asked for.
    Raises:
        UserError: with the places that set them, what cannot be or does not fit the training; a model, a DeepSpeed
            file or a tracker that is not there; a search.
    """
    file = sweep.file
    if file.spec.search is not None:
        raise UserError(
            f"{file.place('search')}: a search asks for one trial after the other, of workers that live as long as it "
            "does: run it inside a job, without --submit."
        )
    places = {label(override_text(key, value)): file.place("set", key) for key, value in file.spec.set.items()}

    def wish(trial: Trial) -> _Wish:
        axes = {
            label(override_text(key, value)): file.place("grid", key)
            for key, value in trial.varies.items()
            if key in file.spec.grid
        }
        loaded = partial(load, file.base, trial.method, None, None, trial.overrides)
        return _Wish(trial.name, trial.config, loaded, {**places, **axes})

    return _resources({trial.id: wish(trial) for trial in sweep.trials}, file.spec.slots.model_dump(), here=here)


def of_entries(entries: Sequence[Entry], slots: Mapping[str, int | None]) -> dict[str, SlurmConfig]:
    """The same of trials of a plan with these ``slots``. Raises UserError as :func:`of_sweep`."""

    def wish(entry: Entry) -> _Wish:
        loaded = partial(load, [Path(file) for file in entry.base], entry.option, None, None, entry.overrides)
        return _Wish(entry.name, loaded().config, loaded)

    return _resources({entry.id: wish(entry) for entry in entries}, slots)


def _resources(
    wishes: Mapping[str, _Wish], slots: Mapping[str, int | None], *, here: bool = True
) -> dict[str, SlurmConfig]:
    from rlvr_cli.launch.checks import check_trackers
    from rlvr_cli.models.source import resolve_model

    found: dict[tuple[str, str], list[str]] = {}
    asked: dict[str, SlurmConfig] = {}
    for id_, wish in wishes.items():
        clash = list(_clashes(wish.config.slurm, slots))
        asked[id_] = with_slots(wish.config.slurm, slots)
        config = wish.config.model_copy(update={"slurm": asked[id_]})
        if clash or any(slurm.problems(config)):
            try:
                slurm.check(replace(wish.loaded(), config=config), clash)
            except ConfigError as error:
                for place, said in error.found:
                    found.setdefault((at_lines(place, wish.places), said), []).append(wish.name)
    if found:
        raise ConfigError(
            [
                (place, said if len(names) == len(wishes) else f"{said} (trials {some(names, SHOWN_TRIALS)})")
                for (place, said), names in found.items()
            ]
        )
    configs = [wish.config for wish in wishes.values()]
    for model, revision in dict.fromkeys((config.model.name, config.model.revision) for config in configs):
        resolve_model(model, revision=revision)
    for track in dict.fromkeys(config.run.track for config in configs):
        check_trackers(track)
    for config in configs:
        check_deepspeed(config, here=here)
    return asked


def _clashes(section: SlurmConfig, slots: Mapping[str, int | None]) -> Iterator[Contradiction]:
    for slot, key in (("cores", "cpus_per_task"), ("gpus", "gpus_per_node")):
        wanted, own = slots.get(slot), getattr(section, key)
        if wanted is not None and own is not None and wanted != own:
            yield Contradiction(
                (f"slurm.{key}",),
                f"slurm.{key}={own}, and the sweep's slots.{slot}={wanted}: each is what a trial has to itself. Leave "
                "one of them out, or make them equal",
            )
