"""Compare reinforcement-learning methods on tasks whose answers can be checked.

The Python API, imported on first use: trainings, trainers, and the components of methods:

    from rlvr_cli import DGPO, DGPOTrainer, PolicyTrainer, Task, resume, train

``rlvr_cli.store`` loads the results of runs as data frames.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rlvr_cli.core.version import __version__ as __version__

if TYPE_CHECKING:
    from rlvr_cli.methods.acpo import ACPO as ACPO
    from rlvr_cli.methods.aspo import ASPO as ASPO
    from rlvr_cli.methods.cispo import CISPO as CISPO
    from rlvr_cli.methods.dgpo import DGPO as DGPO
    from rlvr_cli.methods.gppo import GPPO as GPPO
    from rlvr_cli.methods.grpo import GroupAdvantage as GroupAdvantage
    from rlvr_cli.methods.grpo import PPOClip as PPOClip
    from rlvr_cli.methods.gspo import GSPO as GSPO
    from rlvr_cli.methods.likelihood import LikelihoodAdvantage as LikelihoodAdvantage
    from rlvr_cli.methods.lopti import ByProbability as ByProbability
    from rlvr_cli.methods.lopti import OnePass as OnePass
    from rlvr_cli.methods.ppo import GAEAdvantage as GAEAdvantage
    from rlvr_cli.methods.reinforce_pp import ReinforcePPAdvantage as ReinforcePPAdvantage
    from rlvr_cli.methods.rloo import RLOOAdvantage as RLOOAdvantage
    from rlvr_cli.methods.unclipped import ImportanceSampling as ImportanceSampling
    from rlvr_cli.methods.unclipped import NoImportanceSampling as NoImportanceSampling
    from rlvr_cli.tasks.user_task import UserTask
    from rlvr_cli.training.start import resume as resume
    from rlvr_cli.training.start import train as train
    from rlvr_cli.training.trainer import PolicyTrainer as PolicyTrainer

    Task = UserTask

# The modules (and names there) of all names but the trainers of the methods.
_MODULES = {
    "ACPO": "methods.acpo",
    "ASPO": "methods.aspo",
    "ByProbability": "methods.lopti",
    "CISPO": "methods.cispo",
    "PPOClip": "methods.grpo",
    "DGPO": "methods.dgpo",
    "GAEAdvantage": "methods.ppo",
    "GPPO": "methods.gppo",
    "GSPO": "methods.gspo",
    "GroupAdvantage": "methods.grpo",
    "LikelihoodAdvantage": "methods.likelihood",
    "NoImportanceSampling": "methods.unclipped",
    "OnePass": "methods.lopti",
    "PolicyTrainer": "training.trainer",
    "RLOOAdvantage": "methods.rloo",
    "ImportanceSampling": "methods.unclipped",
    "ReinforcePPAdvantage": "methods.reinforce_pp",
    "Task": "tasks.user_task:UserTask",
    "resume": "training.start",
    "train": "training.start",
}


def __getattr__(name: str) -> Any:
    module, _, attribute = _MODULES.get(name, "").partition(":")
    if module:
        value = getattr(import_module(f"{__name__}.{module}"), attribute or name)
    elif name.endswith("Trainer") and (method := _trainers().get(name)):
        value = _make_trainer(name, method)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def _trainers() -> dict[str, str]:
    """Return class name -> method of the trainers that are named after a method."""
    from rlvr_cli.methods.names import METHODS

    return {preset.trainer: name for name, preset in METHODS.items() if preset.trainer}


def _make_trainer(name: str, method: str) -> type[PolicyTrainer]:
    """Create a subclass of PolicyTrainer whose default method is the preset with this trainer's name."""
    from rlvr_cli.methods.names import METHODS
    from rlvr_cli.training.trainer import PolicyTrainer

    preset = METHODS[method]
    doc = f"{preset.title} (`rlvr methods show {preset.name}`)."
    return type(name, (PolicyTrainer,), {"default_method": preset.name, "__doc__": doc, "__module__": __name__})


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_trainers()})
