"""ACPO: the clipped ratio with bounds from the ratio's spread among tokens of similar probability.

    l = max(-A r, -A clip(r, 1 - e_k, 1 + e_k))        e_k = alpha sigma_k + eps_b
    F = r, but 0 where r < 1 - e_k and A < 0, and where r > 1 + e_k and A > 0

k is the token's probability bin and sigma_k the standard deviation of the ratio in it. "What are key factors for
updates in RL for LLM reasoning?", equation 8 and section 4.1: alpha = 3, five bins, ``sequence_mean`` (under review, no
arXiv id). ``acpo-mean`` and ``acpo-max`` are the ablations of section 4.3.

How we differ from the paper: it leaves open what follows.

- eps_b has no number. We use 0.1: section 4.3 finds the average e_k tighter than 0.2.
- Bins are of equal width on [0, 1] in the old probability, so they stay fixed over the updates of a rollout
  (``edges: quantile`` is the other reading).
- sigma has ddof 0 and is taken over all valid tokens of the optimizer step, both signs, without gradient.
- There is no dual clip.
- The ablations take the largest or the token-weighted average bound of the current step; the paper took a constant from
  an ACPO run.

How we differ from the released code (Control-derek/ACPO, published after ours): it has eps_b = 0.2, with which no
average of e_k is tighter than 0.2; bounds clamped to [0, 3]; bins by the current probability; sigma per micro-batch,
so results depend on how a batch is split; the log ratio clamped to +-20; a dual clip at 3 for A < 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from rlvr_cli.core.lazy import Tensor, torch
from rlvr_cli.core.section import Scale
from rlvr_cli.methods.base import Advantage, EpsLow, PolicyLoss, Tokens, quantile
from rlvr_cli.methods.grpo import PPOClip
from rlvr_cli.methods.preset import MethodPreset, Paper

EPS_LOW_AT_MAX = 0.2


class ACPO(PolicyLoss):
    """The ratio, cut off at the bounds of the token's probability bin."""

    kind: Literal["acpo"] = Field(
        "acpo", description="acpo = the ratio, clipped at the bounds of the token's probability bin."
    )
    alpha: Scale = Field(3.0, description="Width of a bin's bound, in standard deviations of its ratio.")
    eps_b: EpsLow = Field(0.1, description="Constant added to the bound of every bin.")
    bins: Annotated[int, Field(ge=1, le=1000)] = Field(5, description="Number of probability bins.")
    edges: Literal["equal_width", "quantile"] = Field(
        "equal_width", description="Bins of equal width on [0, 1], or with equal shares of the step's tokens."
    )
    bound: Literal["per_bin", "max", "mean"] = Field(
        "per_bin",
        description="per_bin = a bound for each bin; max = one for all tokens: the largest bound above, 0.2 below; "
        "mean = one for all tokens: their average bound, on both sides.",
    )

    needs_statistics: ClassVar[bool] = True

    def unused(self, advantage: Advantage) -> Iterator[tuple[str, str, str]]:
        if self.bins == 1:
            # One bin has one bound; `max` keeps a separate lower bound.
            for name in ("edges",) if self.bound == "max" else ("edges", "bound"):
                yield (
                    f"method.policy_loss.{name}",
                    "method.policy_loss.bins",
                    "there is one bin. Set method.policy_loss.bins above 1",
                )

    def simplify(self) -> PolicyLoss:
        if self.alpha == 0:
            eps_low = EPS_LOW_AT_MAX if self.bound == "max" else self.eps_b
            return PPOClip(eps_low=eps_low, eps_high=self.eps_b)
        if self.bins == 1:
            return self.replace(edges="equal_width", bound="max" if self.bound == "max" else "per_bin")
        return self

    def bin_tokens(self, tokens: Tokens) -> tuple[Tensor, Tensor, Tensor]:
        """Return (K + 1,) edges, (K,) counts and (K,) sigma of the bins over all tokens of a step, float64."""
        valid = tokens.mask.bool()
        old_log_probs = tokens.old_log_probs.detach().double()[valid]
        probabilities = torch.exp(old_log_probs)
        edges = self._bin_edges(probabilities)
        distance = torch.expm1(tokens.log_probs.detach().double()[valid] - old_log_probs)
        return edges, *_bin_std(distance, self._bin_index(probabilities, edges), self.bins)

    def statistics(self, tokens: Tokens) -> Tensor:
        """Return (2, K + 1) float64: the bins' edges; e_1 ... e_K and their average over tokens."""
        edges, count, sigma = self.bin_tokens(tokens)
        eps = self.alpha * sigma + self.eps_b
        average = (eps * count).sum() / count.sum() if count.any() else eps.mean()
        return torch.stack([edges, torch.cat([eps, average.view(1)])])

    def bounds(self, tokens: Tokens, statistics: Tensor | None = None) -> tuple[float | Tensor, Tensor]:
        """Return eps_low and eps_high, (B, T) or (). Raises ValueError without the statistics of the whole step."""
        if statistics is None:
            raise ValueError("ACPO's bounds need the statistics of the whole optimizer step: ACPO.statistics(tokens)")
        edges, (eps, average) = statistics[0], statistics[1].split([self.bins, 1])
        dtype = tokens.log_probs.dtype
        if self.bound == "mean":
            return average[0].to(dtype), average[0].to(dtype)
        if self.bound == "max":
            return EPS_LOW_AT_MAX, eps.max().to(dtype)
        of_token = eps[self._bin_index(torch.exp(tokens.old_log_probs.detach().double()), edges)].to(dtype)
        return of_token, of_token

    def weight(self, tokens: Tokens, statistics: Tensor | None = None) -> Tensor:
        regions = self.regions(tokens, statistics)
        return torch.where(regions.LN | regions.HP, 0.0, tokens.ratio.detach())

    def _bin_edges(self, probabilities: Tensor) -> Tensor:
        shares = torch.linspace(0, 1, self.bins + 1, dtype=torch.float64, device=probabilities.device)
        if self.edges == "equal_width" or not len(probabilities):
            return shares
        return torch.stack([quantile(probabilities, share) for share in shares.tolist()])

    def _bin_index(self, probabilities: Tensor, edges: Tensor) -> Tensor:
        """Return the bin index; lower edges are inclusive, and the outermost bins are unbounded."""
        return torch.bucketize(probabilities, edges[1:-1].contiguous(), right=True)


def _bin_std(values: Tensor, bins: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """Return (K,) counts and standard deviations (ddof 0; 0 for an empty bin) of (n,) ``values`` by bin.

    The mean is subtracted before squaring, and :class:`ACPO` passes r - 1, for accuracy at small spreads around 1.
    """
    empty = torch.zeros(number, dtype=torch.float64, device=values.device)
    count = empty.scatter_add(0, bins, torch.ones_like(values))
    mean = empty.scatter_add(0, bins, values) / count.clamp(min=1)
    squares = empty.scatter_add(0, bins, (values - mean[bins]).square())
    return count, (squares / count.clamp(min=1)).sqrt()


PAPER = Paper("What Are Key Factors for Updates in RL for LLM Reasoning?", "anonymous, under review", None)
EXTRA_COST = "one forward without gradient over the batch of every step except a rollout's first (spread of the ratios)"
ABLATION = ("acpo", "ACPO paper, equation 8, with the bound of the ablation in table 3")
PRESETS = (
    MethodPreset(
        "acpo",
        trainer="ACPOTrainer",
        title="Adaptive Clip Policy Optimization",
        summary="Each token's bounds follow the ratio's spread among tokens of similar probability.",
        paper=PAPER,
        golden=("acpo",),
        extra_cost=EXTRA_COST,
        inherits="grpo",
        sets={
            "advantage.kind": ("group", "ACPO paper, section 2.1: rewards standardised within the group"),
            "policy_loss.kind": ("acpo", "ACPO paper, equation 8"),
            "policy_loss.alpha": (3.0, "ACPO paper, section 4.1 (the three-sigma rule)"),
            "policy_loss.eps_b": (
                0.1,
                "our choice: the paper says a small constant and gives no number; section 4.3 says that the average "
                "bound is tighter than GRPO's 0.2, which the released script's 0.2 excludes",
            ),
            "policy_loss.bins": (5, "ACPO paper, section 4.1: five"),
            "policy_loss.edges": (
                "equal_width",
                "our choice, the paper gives no edges: by lemma 1 the spread is a function of the probability itself",
            ),
            "policy_loss.bound": ("per_bin", "ACPO paper, section 4.1: a range for each bin"),
            "aggregation.kind": ("sequence_mean", "ACPO paper, equation 8"),
            "aggregation.sequences": ("valid", "as verl: a completion without a valid token is not counted"),
            "kl.beta": (0.0, "no KL term in the ACPO paper's equation 8"),
        },
    ),
    MethodPreset(
        "acpo-max",
        trainer="ACPOMaxTrainer",
        title="ACPO's ablation: one clip at its largest bound",
        summary="One clip for all tokens: ACPO's largest bound above, 0.2 below.",
        paper=PAPER,
        golden=("acpo",),
        extra_cost=EXTRA_COST,
        inherits="acpo",
        sets={
            "policy_loss.kind": ABLATION,
            "policy_loss.bound": (
                "max",
                "ACPO paper, table 3 and section 4.3: Clip-High=Max; there the upper bound alone is raised",
            ),
        },
    ),
    MethodPreset(
        "acpo-mean",
        trainer="ACPOMeanTrainer",
        title="ACPO's ablation: one clip at its average bound",
        summary="One clip for all tokens: the token average of ACPO's bounds, on both sides.",
        paper=PAPER,
        golden=("acpo",),
        extra_cost=EXTRA_COST,
        aliases=("acpo-avg",),
        inherits="acpo",
        sets={
            "policy_loss.kind": ABLATION,
            "policy_loss.bound": ("mean", "ACPO paper, table 3 and section 4.3: Clip=Avg"),
        },
    ),
)
