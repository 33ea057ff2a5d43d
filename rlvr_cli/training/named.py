"""Trainer classes under the names of their methods, for those who bring their own model, rewards and data.

    from rlvr_cli.training.named import LoptiTrainer
    LoptiTrainer(model=..., reward_funcs=..., args=GRPOConfig(...), train_dataset=...).train()

They take the arguments of ``trl.GRPOTrainer`` in its order, but no ``eval_dataset``; options of ``GRPOConfig`` that a
method decides must stay at their defaults.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, ClassVar

from trl import GRPOConfig

from rlvr_cli.config.errors import UserError
from rlvr_cli.config.load import load_config
from rlvr_cli.config.method import PolicyMethodConfig, make_method
from rlvr_cli.training.metrics import StepMeter
from rlvr_cli.training.trl_adapter import MethodTrainer


class NamedTrainer(MethodTrainer):
    """A MethodTrainer whose method is found by name.

    Args:
        model, reward_funcs, train_dataset: as in ``trl.GRPOTrainer``.
        args: TRL's arguments; ``num_iterations`` counts whole schedules (two passes each for Lopti). None = TRL's
            defaults, and an output folder named after model and method.
        eval_dataset: must be None.
        overrides: changes to the method as on the command line, without the leading ``method.``: ``weight.n=2``.
        trl_arguments: the others that ``trl.GRPOTrainer`` takes, and those of :class:`MethodTrainer`.

    Raises:
        UserError: no such policy-gradient method, or an override that it does not have.
        ValueError: as :class:`MethodTrainer`; or evaluation is asked for, which TRL would make with the training
            buffer.
    """

    method_name: ClassVar[str]
    meter: StepMeter

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: GRPOConfig | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        *,
        overrides: Sequence[str] = (),
        **trl_arguments: Any,
    ) -> None:
        if args is None:
            name = model if isinstance(model, str) else model.config.name_or_path
            args = GRPOConfig(f"{name.rstrip('/').rpartition('/')[2]}-{self.method_name}")
        config = load_config(method=self.method_name, overrides=[f"method.{override}" for override in overrides])
        if not isinstance(config.method, PolicyMethodConfig):
            raise UserError(f"{self.method_name} is no policy-gradient method: use trl.SFTTrainer.")
        if args.eval_strategy != "no" or eval_dataset is not None:
            raise ValueError("evaluation during training is not supported: evaluate the checkpoints (`rlvr eval`).")
        method = make_method(config.method, max_length=args.max_completion_length)
        super().__init__(
            method=method,
            meter=StepMeter(method, entropies=True),
            model=model,
            reward_funcs=reward_funcs,
            args=args,
            train_dataset=train_dataset,
            **trl_arguments,
        )
        if args.save_strategy == "steps" and args.save_steps % self.steps_per_rollout:
            warnings.warn(
                f"save_steps={args.save_steps:g} is not a multiple of the {self.steps_per_rollout} optimizer steps "
                "of a rollout: checkpoints in the middle of one cannot be resumed from.",
                stacklevel=2,
            )

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        sums = self.accelerator.reduce(self.meter.take().to(self.args.device), reduction="sum").tolist()
        if sums[0]:
            logs |= {name: value for name, value in self.meter.summary(sums).items() if value is not None}
        super().log(logs, start_time)


CLASSES = {
    "ACPOTrainer": "acpo",
    "ACPOMaxTrainer": "acpo-max",
    "ACPOMeanTrainer": "acpo-mean",
    "ASPOTrainer": "aspo",
    "CEGPPOTrainer": "ce-gppo",
    "CISPOTrainer": "cispo",
    "CLTrainer": "cl",
    "DAPOTrainer": "dapo",
    "DGPOTrainer": "dgpo",
    "DrGRPOTrainer": "dr-grpo",
    "GPPOTrainer": "gppo",
    "GRPOTrainer": "grpo",
    "GSPOTrainer": "gspo",
    "GTPOTrainer": "gtpo",
    "LoptiTrainer": "lopti",
    "NLTrainer": "nl",
    "PLTrainer": "pl",
    "PPOTrainer": "ppo",
    "RAFTPPTrainer": "raft-pp",
    "RLOOTrainer": "rloo",
    "ReinforcePPTrainer": "reinforce-pp",
    "ReweightTrainer": "reweight",
    "TNCLTrainer": "tncl",
    "TNNLTrainer": "tnnl",
    "TNPLTrainer": "tnpl",
}


def trainer_class(method: str) -> type[NamedTrainer]:
    """The trainer class of any method or composition: ``trainer_class("dgpo+lopti")``."""
    name = next((name for name, known in CLASSES.items() if known == method), "ComposedTrainer")
    return type(name, (NamedTrainer,), {"method_name": method, "__module__": __name__})


def __getattr__(name: str) -> type[NamedTrainer]:
    if name in CLASSES:
        found = globals()[name] = trainer_class(CLASSES[name])
        return found
    raise AttributeError(f"module {__name__} has no attribute {name!r}")
