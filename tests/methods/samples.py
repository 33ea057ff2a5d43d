"""Random tokens and rollouts, and one of every weight, advantage and shaping to put them through."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from rlvr_cli.methods.acpo import ACPO
from rlvr_cli.methods.aggregation import Aggregation, ConstantLength, SequenceMean, SequenceSum, TokenMean
from rlvr_cli.methods.aspo import ASPO
from rlvr_cli.methods.base import Advantage, PolicyLoss, Rollout, Tokens
from rlvr_cli.methods.cispo import CISPO
from rlvr_cli.methods.covariance import ClipCov, KLCov
from rlvr_cli.methods.dgpo import DGPO
from rlvr_cli.methods.dppo import DPPO
from rlvr_cli.methods.gdpo import GDPOAdvantage
from rlvr_cli.methods.gmpo import GMPO
from rlvr_cli.methods.gppo import GPPO
from rlvr_cli.methods.grpo import GroupAdvantage, PPOClip
from rlvr_cli.methods.gspo import GSPO
from rlvr_cli.methods.kl import KLPenalty
from rlvr_cli.methods.likelihood import LikelihoodAdvantage
from rlvr_cli.methods.lopti import OnePass
from rlvr_cli.methods.maxrl import MaxRLAdvantage
from rlvr_cli.methods.method import Method
from rlvr_cli.methods.opd import TeacherAdvantage
from rlvr_cli.methods.opo import OPOAdvantage
from rlvr_cli.methods.pass_at_k import PassAtKAdvantage
from rlvr_cli.methods.ppo import GAEAdvantage
from rlvr_cli.methods.reinforce_pp import ReinforcePPAdvantage
from rlvr_cli.methods.remax import ReMaxAdvantage
from rlvr_cli.methods.rloo import RLOOAdvantage
from rlvr_cli.methods.sapo import SAPO
from rlvr_cli.methods.unclipped import ImportanceSampling, NoImportanceSampling
from rlvr_cli.methods.vespo import VESPO

WEIGHTS: dict[str, PolicyLoss] = {
    "grpo": PPOClip(eps_low=0.2, eps_high=0.2, dual_clip=None),
    "grpo-dual-clip": PPOClip(eps_low=0.2, eps_high=0.2, dual_clip=3.0),
    "dapo": PPOClip(eps_low=0.2, eps_high=0.28, dual_clip=None),
    "cispo": CISPO(eps_low=0.2, eps_high=0.3),
    "cispo-one-sided": CISPO(eps_low=None, eps_high=4.0),
    "gppo": GPPO(eps_low=0.2, eps_high=0.3, beta1=1.0, beta2=1.0, dual_clip=None),
    "ce-gppo": GPPO(eps_low=0.2, eps_high=0.3, beta1=0.75, beta2=1.0, dual_clip=None),
    "ce-gppo-dual-clip": GPPO(eps_low=0.2, eps_high=0.3, beta1=0.75, beta2=1.0, dual_clip=3.0),
    "aspo": ASPO(eps=0.2, eps_high_entropy=None, entropy_quantile=0.8, soft_clip_positive=3.0, soft_clip_negative=3.0),
    "aspo-by-entropy": ASPO(
        eps=0.2, eps_high_entropy=0.4, entropy_quantile=0.8, soft_clip_positive=3.0, soft_clip_negative=3.0
    ),
    "dgpo": DGPO(eps_low=0.2, eps_high=0.3, n=1.0, m=2.0),
    "dgpo-2-3": DGPO(eps_low=0.2, eps_high=0.3, n=2.0, m=3.0),
    "acpo": ACPO(alpha=0.5, eps_b=0.1, bins=5, edges="equal_width", bound="per_bin"),
    "acpo-quantile": ACPO(alpha=0.5, eps_b=0.1, bins=5, edges="quantile", bound="per_bin"),
    "acpo-max": ACPO(alpha=0.5, eps_b=0.1, bins=5, edges="equal_width", bound="max"),
    "acpo-mean": ACPO(alpha=0.5, eps_b=0.1, bins=5, edges="equal_width", bound="mean"),
    "gspo": GSPO(eps_low=0.05, eps_high=0.1, max_log_ratio=10.0),
    "dppo": DPPO(d_low=0.1, d_high=0.15, max_ratio=5.0, drift_penalty=0.0),
    "dppo-drift-penalty": DPPO(d_low=0.1, d_high=0.15, max_ratio=None, drift_penalty=0.01),
    "sapo": SAPO(tau_pos=1.0, tau_neg=1.5),
    "gmpo": GMPO(eps_low=0.3, eps_high=0.4),
    "vespo": VESPO(k_pos=2.0, lambda_pos=3.0, k_neg=3.0, lambda_neg=2.0),
    "clip-cov": ClipCov(eps_low=0.5, eps_high=0.6, share=0.05, cov_low=0.5, cov_high=5.0),
    "kl-cov": KLCov(share=0.05, beta=0.5),
    "is": ImportanceSampling(),
    "no_is": NoImportanceSampling(),
}
ADVANTAGES: dict[str, Advantage] = {
    "group": GroupAdvantage(scale="std"),
    "group-unscaled": GroupAdvantage(scale="none"),
    "group-batch": GroupAdvantage(scale="batch"),
    "rloo": RLOOAdvantage(),
    "maxrl": MaxRLAdvantage(),
    "opo": OPOAdvantage(),
    "remax": ReMaxAdvantage(),
    "pass-at-k": PassAtKAdvantage(k=2),
    "gdpo": GDPOAdvantage(),
    "likelihood": LikelihoodAdvantage(side="both"),
    "likelihood-positive": LikelihoodAdvantage(side="positive"),
    "likelihood-negative": LikelihoodAdvantage(side="negative"),
    "reinforce-pp": ReinforcePPAdvantage(kl_in_reward=0.01, gamma=1.0, baseline="none"),
    "reinforce-pp-group": ReinforcePPAdvantage(kl_in_reward=0.0, gamma=0.9, baseline="group"),
    "teacher": TeacherAdvantage(clip=0.2),
    "teacher-and-reward": TeacherAdvantage(reward_weight=0.5),
    "gae": GAEAdvantage(gamma=0.99, lam=0.95, whiten=True),
    "gae-not-whitened": GAEAdvantage(gamma=1.0, lam=1.0, whiten=False),
}
AGGREGATIONS = {
    "token_mean": TokenMean(),
    "sequence_mean": SequenceMean(),
    "sequence_mean-trained": SequenceMean(sequences="trained"),
    "sequence_sum": SequenceSum(),
    "constant_length": ConstantLength(sequences="valid").with_length(20),
}
KL = KLPenalty(beta=0.04)


def random_mask(rows: int, length: int, generator: torch.Generator) -> Tensor:
    """(rows, length) right-padded; the first row has one token, the second none."""
    lengths = torch.randint(1, length + 1, (rows, 1), generator=generator)
    lengths[0] = 1
    lengths[1:2] = 0
    return (torch.arange(length) < lengths).double()


def random_tokens(drift: float = 0.4, rows: int = 16, length: int = 12, seed: int = 0) -> Tokens:
    """Tokens whose log ratio has standard deviation ``drift``; a quarter of the rows has advantage 0."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    old = -2 * normal(rows, length).abs()
    advantages = normal(rows, 1)
    advantages[::4] = 0
    return Tokens(
        log_probs=old + drift * normal(rows, length),
        old_log_probs=old,
        advantages=advantages,
        mask=random_mask(rows, length, generator),
        entropies=normal(rows, length).abs(),
        ref_log_probs=old + 0.3 * normal(rows, length),
        token_ids=torch.randint(0, 50, (rows, length), generator=generator),
    )


def random_rollout(groups: int = 4, group_size: int = 4, length: int = 12, seed: int = 0) -> Rollout:
    """Rewards of both signs; the last group's are all equal, and tokens come from a small vocabulary."""
    generator = torch.Generator().manual_seed(seed)
    rows = groups * group_size

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    rewards = torch.where(normal(rows) > 0, 1.0, -1.0).double()
    rewards[-group_size:] = 1.0
    old = -normal(rows, length).abs()
    return Rollout(
        rewards=rewards,
        group_size=group_size,
        token_ids=torch.randint(0, 4, (rows, length), generator=generator),
        mask=random_mask(rows, length, generator),
        old_log_probs=old,
        entropies=normal(rows, length).abs(),
        ref_log_probs=old + 0.2 * normal(rows, length),
        values=normal(rows, length),
        teacher_log_probs=old + 0.3 * normal(rows, length),
        initial_entropy=0.1,
        correct=rewards > 0,
        parts=torch.stack([rewards / 2, normal(rows).round(), rewards / 2], dim=1),
        part_weights=torch.tensor([1.0, 0.5, 1.0], dtype=torch.float64),
        greedy_rewards=normal(groups).sign().repeat_interleave(group_size),
    )


def change(of: Tokens | Rollout, tensors: object) -> dict[str, Tensor]:
    """``tensors`` (a function) applied to every tensor of (B, ...) ``of``, by field."""
    values = {field.name: getattr(of, field.name) for field in dataclasses.fields(of)}
    return {name: tensors(name, value) for name, value in values.items() if isinstance(value, Tensor)}  # type: ignore[operator]


def method(
    weight: PolicyLoss = WEIGHTS["grpo"],
    aggregation: Aggregation = AGGREGATIONS["token_mean"],
    **choices: object,
) -> Method:
    """A method of one pass, GRPO's advantage and no KL, unless ``choices`` say otherwise."""
    defaults: dict[str, object] = {
        "advantage": ADVANTAGES["group"],
        "passes": OnePass(),
        "kl": KLPenalty(beta=0.0),
    }
    shapings = choices.pop("shapings", ())
    choices["shaping"] = {shaping.key: shaping for shaping in shapings}  # type: ignore[attr-defined]
    return Method(policy_loss=weight, aggregation=aggregation, **{**defaults, **choices})  # type: ignore[arg-type]


def coefficients(of: Method, tokens: Tokens, which: str = "all") -> Tensor:
    """(B, T) what a step of just these tokens multiplies grad log pi with."""
    count = of.aggregation.count(tokens.mask, tokens.advantages)
    return of.coefficients(tokens, count, which, of.policy_loss.statistics(of.shape_tokens(tokens, which)))
