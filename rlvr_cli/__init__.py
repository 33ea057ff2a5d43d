"""Compare reinforcement-learning methods on tasks whose answers can be checked.

From Python, each imported when it is first used: trainings, and the trainers and parts of methods:

    from rlvr_cli import DGPO, DGPOTrainer, PolicyTrainer, Task, resume, train

``rlvr_cli.store`` has the results of runs as data frames.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
    from rlvr_cli.tasks.user import Task
    from rlvr_cli.training.start import resume, train
    from rlvr_cli.training.trainers import (
        ACPOMaxTrainer,
        ACPOMeanTrainer,
        ACPOTrainer,
        ASPOTrainer,
        CEGPPOTrainer,
        CISPOTrainer,
        CLTrainer,
        DAPOTrainer,
        DGPOTrainer,
        DrGRPOTrainer,
        GPPOTrainer,
        GRPOTrainer,
        GSPOTrainer,
        GTPOTrainer,
        LoptiTrainer,
        NLTrainer,
        PLTrainer,
        PolicyTrainer,
        PPOTrainer,
        RAFTPPTrainer,
        ReinforcePPTrainer,
        ReweightTrainer,
        RLOOTrainer,
        TNCLTrainer,
        TNNLTrainer,
        TNPLTrainer,
    )

__version__ = "0.1.0"
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

# Where everything but the trainers is, which have one module.
_PLACES = {
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
    "RLOOAdvantage": "methods.rloo",
    "ImportanceSampling": "methods.unclipped",
    "ReinforcePPAdvantage": "methods.reinforce_pp",
    "Task": "tasks.user",
    "resume": "training.start",
    "train": "training.start",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _PLACES.get(name, "training.trainers")
    value = globals()[name] = getattr(import_module(f"{__name__}.{module}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
