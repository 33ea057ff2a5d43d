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
    from rlvr_cli.methods.acpo import ACPO
    from rlvr_cli.methods.aspo import ASPO
    from rlvr_cli.methods.cispo import CISPO
    from rlvr_cli.methods.dgpo import DGPO
    from rlvr_cli.methods.gppo import GPPO
    from rlvr_cli.methods.grpo import GroupAdvantage, PPOClip
    from rlvr_cli.methods.gspo import GSPO
    from rlvr_cli.methods.likelihood import LikelihoodAdvantage
    from rlvr_cli.methods.lopti import ByProbability, OnePass
    from rlvr_cli.methods.ppo import GAEAdvantage
    from rlvr_cli.methods.reinforce_pp import ReinforcePPAdvantage
    from rlvr_cli.methods.rloo import RLOOAdvantage
    from rlvr_cli.methods.unclipped import ImportanceSampling, NoImportanceSampling
    from rlvr_cli.tasks.user_task import UserTask as Task
    from rlvr_cli.training.start import resume, train
    from rlvr_cli.training.trainer import PolicyTrainer

    # Created from the methods' presets (``MethodPreset.trainer``).
    class ACPOMaxTrainer(PolicyTrainer): ...

    class ACPOMeanTrainer(PolicyTrainer): ...

    class ACPOTrainer(PolicyTrainer): ...

    class ASPOTrainer(PolicyTrainer): ...

    class CEGPPOTrainer(PolicyTrainer): ...

    class CISPOTrainer(PolicyTrainer): ...

    class CLTrainer(PolicyTrainer): ...

    class DAPOTrainer(PolicyTrainer): ...

    class DGPOTrainer(PolicyTrainer): ...

    class DrGRPOTrainer(PolicyTrainer): ...

    class GPPOTrainer(PolicyTrainer): ...

    class GRPOTrainer(PolicyTrainer): ...

    class GSPOTrainer(PolicyTrainer): ...

    class GTPOTrainer(PolicyTrainer): ...

    class LoptiTrainer(PolicyTrainer): ...

    class NLTrainer(PolicyTrainer): ...

    class PLTrainer(PolicyTrainer): ...

    class PPOTrainer(PolicyTrainer): ...

    class RAFTPPTrainer(PolicyTrainer): ...

    class ReinforcePPTrainer(PolicyTrainer): ...

    class ReweightTrainer(PolicyTrainer): ...

    class RLOOTrainer(PolicyTrainer): ...

    class TNCLTrainer(PolicyTrainer): ...

    class TNNLTrainer(PolicyTrainer): ...

    class TNPLTrainer(PolicyTrainer): ...


__all__ = [
    "ACPO",
    "ASPO",
    "CISPO",
    "DGPO",
    "GPPO",
    "GSPO",
    "ACPOMaxTrainer",
    "ACPOMeanTrainer",
    "ACPOTrainer",
    "ASPOTrainer",
    "ByProbability",
    "CEGPPOTrainer",
    "CISPOTrainer",
    "CLTrainer",
    "DAPOTrainer",
    "DGPOTrainer",
    "DrGRPOTrainer",
    "GAEAdvantage",
    "GPPOTrainer",
    "GRPOTrainer",
    "GSPOTrainer",
    "GTPOTrainer",
    "GroupAdvantage",
    "ImportanceSampling",
    "LikelihoodAdvantage",
    "LoptiTrainer",
    "NLTrainer",
    "NoImportanceSampling",
    "OnePass",
    "PLTrainer",
    "PPOClip",
    "PPOTrainer",
    "PolicyTrainer",
    "RAFTPPTrainer",
    "RLOOAdvantage",
    "RLOOTrainer",
    "ReinforcePPAdvantage",
    "ReinforcePPTrainer",
    "ReweightTrainer",
    "TNCLTrainer",
    "TNNLTrainer",
    "TNPLTrainer",
    "Task",
    "resume",
    "train",
]

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
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _MODULES.get(name, "").partition(":")
    value = getattr(import_module(f"{__name__}.{module}"), attribute or name) if module else _make_trainer(name)
    globals()[name] = value
    return value


def _make_trainer(name: str) -> type[PolicyTrainer]:
    """Create a subclass of PolicyTrainer whose default method is the preset with this trainer's name."""
    from rlvr_cli.methods.names import METHODS
    from rlvr_cli.training.trainer import PolicyTrainer

    preset = next(preset for preset in METHODS.values() if preset.trainer == name)
    doc = f"{preset.title} (`rlvr methods show {preset.name}`)."
    return type(name, (PolicyTrainer,), {"default_method": preset.name, "__doc__": doc, "__module__": __name__})


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
