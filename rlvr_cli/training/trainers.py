"""Trainers for those who bring their own model, rewards and data: TRL's GRPOTrainer with the gradient of a method.

    from rlvr_cli import DGPO, LoptiTrainer, PolicyTrainer

    LoptiTrainer(model, reward_funcs, args=GRPOConfig(...), train_dataset=...).train()
    PolicyTrainer(model, reward_funcs, method=DGPO(n=2.0), train_dataset=...).train()

They take the arguments of ``trl.GRPOTrainer`` in its order. Options of ``GRPOConfig`` that a method decides must stay
at their defaults.
"""

from __future__ import annotations

from rlvr_cli.training.trainer import PolicyTrainer as PolicyTrainer


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
