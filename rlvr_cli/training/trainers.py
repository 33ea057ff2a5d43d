"""Trainers for those who bring their own model, rewards and data: TRL's GRPOTrainer with the gradient of a method.

    from rlvr_cli import DGPO, LoptiTrainer, PolicyTrainer

    LoptiTrainer(model, reward_funcs, args=GRPOConfig(...), train_dataset=...).train()
    PolicyTrainer(model, reward_funcs, method=DGPO(n=2.0), train_dataset=...).train()

They take the arguments of ``trl.GRPOTrainer`` in its order. Options of ``GRPOConfig`` that a method decides must stay
at their defaults.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, ClassVar

from trl import GRPOConfig

from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import UserError
from rlvr_cli.methods.base import Advantage, PolicyLoss
from rlvr_cli.methods.lopti import Passes
from rlvr_cli.methods.method import Method
from rlvr_cli.methods.names import METHODS
from rlvr_cli.training.metrics import StepMeter
from rlvr_cli.training.trl_adapter import MethodTrainer

Part = Advantage | PolicyLoss | Passes


class PolicyTrainer(MethodTrainer):
    """TRL's GRPOTrainer with the gradient of any method.

    Args:
        model, reward_funcs, train_dataset, eval_dataset, processing_class, reward_processing_classes, callbacks,
            optimizers: as in ``trl.GRPOTrainer``. An evaluation samples ``eval_dataset`` and logs the rewards
            (``eval_reward``); it has no loss.
        args: TRL's arguments; ``num_iterations`` counts whole epochs (two passes each for Lopti). None = TRL's
            defaults, and an output folder named after model and method.
        method: a name (``"dgpo+lopti"``); the keys of a whole method; or one part, which takes the place of that part
            in the method that is named after it: ``DGPO(n=2.0)``.
        overrides: changes to a named method as on the command line, without ``method.``: ``policy_loss.n=2``.
        correct_above: for methods that train by correctness (PL, NL, CL, RAFT++): a completion is correct where its
            reward is above this.
        others: the other arguments of ``trl.GRPOTrainer``.

    Raises:
        UserError: no such policy-gradient method, or an override that it does not have.
        ValueError: as :class:`MethodTrainer`.
    """

    default_method: ClassVar[str] = "grpo"
    meter: StepMeter

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: GRPOConfig | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        reward_processing_classes: Any = None,
        callbacks: Any = None,
        optimizers: tuple[Any, Any] = (None, None),
        *,
        method: str | Method | Part | None = None,
        overrides: Sequence[str] = (),
        correct_above: float = 0.0,
        **others: Any,
    ) -> None:
        config = method_config(self.default_method if method is None else method, overrides)
        if args is None:
            name = model if isinstance(model, str) else model.config.name_or_path
            args = GRPOConfig(f"{name.rstrip('/').rpartition('/')[2]}-{config.name}")
        made = config.bound(args.max_completion_length)
        super().__init__(
            method=made,
            meter=StepMeter(made, entropies=True),
            correct_above=correct_above,
            model=model,
            reward_funcs=reward_funcs,
            args=args,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            reward_processing_classes=reward_processing_classes,
            callbacks=callbacks,
            optimizers=optimizers,
            **others,
        )
        if args.save_strategy == "steps" and args.save_steps % self.steps_per_rollout:
            warnings.warn(
                f"save_steps={args.save_steps:g} is not a multiple of the {self.steps_per_rollout} optimizer steps "
                "of a rollout: checkpoints in the middle of one cannot be resumed from.",
                stacklevel=2,
            )

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        # The meter's sums are of training steps.
        if self.model.training:
            sums = self.accelerator.reduce(self.meter.take().to(self.args.device), reduction="sum").tolist()
            if sums[0]:
                logs |= {name: value for name, value in self.meter.summary(sums).items() if value is not None}
        super().log(logs, start_time)


def method_config(method: str | Method | Part, overrides: Sequence[str] = ()) -> Method:
    """The keys of the method that is meant.

    Raises:
        UserError: no such policy-gradient method, or an override that it does not have.
    """
    if isinstance(method, str):
        config = load_config(method=method, overrides=[f"method.{override}" for override in overrides]).method
        if not isinstance(config, Method):
            raise UserError(f"{method} is no policy-gradient method: use trl.SFTTrainer.")
        return config
    if overrides:
        raise UserError("overrides change a method that is given by name; give the values to the object itself.")
    if isinstance(method, Method):
        return method
    families = {"advantage": Advantage, "policy_loss": PolicyLoss, "passes": Passes}
    part = next(name for name, family in families.items() if isinstance(method, family))
    kind = type(method).model_fields["kind"].default
    named = [name for name, preset in METHODS.items() if preset.sets.get(f"{part}.kind", (None,))[0] == kind]
    base = "grpo" if "grpo" in named or not named else named[0]
    return method_config(base).replace(**{part: method})


class GRPOTrainer(PolicyTrainer):
    """Group Relative Policy Optimization (`rlvr methods show grpo`)."""

    default_method = "grpo"


class DAPOTrainer(PolicyTrainer):
    """Decoupled Clip and Dynamic Sampling Policy Optimization (`rlvr methods show dapo`)."""

    default_method = "dapo"


class DrGRPOTrainer(PolicyTrainer):
    """Group Relative Policy Optimization Done Right (`rlvr methods show dr-grpo`)."""

    default_method = "dr-grpo"


class GSPOTrainer(PolicyTrainer):
    """Group Sequence Policy Optimization (`rlvr methods show gspo`)."""

    default_method = "gspo"


class RLOOTrainer(PolicyTrainer):
    """REINFORCE Leave-One-Out (`rlvr methods show rloo`)."""

    default_method = "rloo"


class PPOTrainer(PolicyTrainer):
    """Proximal Policy Optimization (`rlvr methods show ppo`)."""

    default_method = "ppo"


class CISPOTrainer(PolicyTrainer):
    """Clipped IS-weight Policy Optimization (`rlvr methods show cispo`)."""

    default_method = "cispo"


class GPPOTrainer(PolicyTrainer):
    """Gradient-Preserving Policy Optimization (`rlvr methods show gppo`)."""

    default_method = "gppo"


class CEGPPOTrainer(PolicyTrainer):
    """Coordinating Entropy via Gradient-Preserving Policy Optimization (`rlvr methods show ce-gppo`)."""

    default_method = "ce-gppo"


class ASPOTrainer(PolicyTrainer):
    """Asymmetric Importance Sampling Policy Optimization (`rlvr methods show aspo`)."""

    default_method = "aspo"


class DGPOTrainer(PolicyTrainer):
    """Decoupled Gradient Policy Optimization (`rlvr methods show dgpo`)."""

    default_method = "dgpo"


class ACPOTrainer(PolicyTrainer):
    """Adaptive Clip Policy Optimization (`rlvr methods show acpo`)."""

    default_method = "acpo"


class ACPOMaxTrainer(PolicyTrainer):
    """ACPO's ablation: one clip at its largest bound (`rlvr methods show acpo-max`)."""

    default_method = "acpo-max"


class ACPOMeanTrainer(PolicyTrainer):
    """ACPO's ablation: one clip at its average bound (`rlvr methods show acpo-mean`)."""

    default_method = "acpo-mean"


class ReweightTrainer(PolicyTrainer):
    """Advantage Reweighting (`rlvr methods show reweight`)."""

    default_method = "reweight"


class LoptiTrainer(PolicyTrainer):
    """Low-Probability Token Isolation (`rlvr methods show lopti`)."""

    default_method = "lopti"


class ReinforcePPTrainer(PolicyTrainer):
    """REINFORCE++ (`rlvr methods show reinforce-pp`)."""

    default_method = "reinforce-pp"


class GTPOTrainer(PolicyTrainer):
    """Group-relative Trajectory-based Policy Optimization (`rlvr methods show gtpo`)."""

    default_method = "gtpo"


class PLTrainer(PolicyTrainer):
    """Positive Likelihood (PSR) (`rlvr methods show pl`)."""

    default_method = "pl"


class NLTrainer(PolicyTrainer):
    """Negative Likelihood (NSR) (`rlvr methods show nl`)."""

    default_method = "nl"


class CLTrainer(PolicyTrainer):
    """Combined Likelihood (`rlvr methods show cl`)."""

    default_method = "cl"


class TNPLTrainer(PolicyTrainer):
    """Token-normalised Positive Likelihood (`rlvr methods show tnpl`)."""

    default_method = "tnpl"


class TNNLTrainer(PolicyTrainer):
    """Token-normalised Negative Likelihood (`rlvr methods show tnnl`)."""

    default_method = "tnnl"


class TNCLTrainer(PolicyTrainer):
    """Token-normalised Combined Likelihood (`rlvr methods show tncl`)."""

    default_method = "tncl"


class RAFTPPTrainer(PolicyTrainer):
    """RAFT++ (`rlvr methods show raft-pp`)."""

    default_method = "raft-pp"
