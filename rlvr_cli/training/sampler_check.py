"""Check that the sampler computes the trained policy, by both log-probs of the first rollout's tokens.

The policy gradient assumes that samples come from the trained policy. A sampler with other weights, another temperature
or other arithmetic biases it, and nothing else would show it.

The limits. Both compute the same sums in another order. In float32 that changes a log-prob by about 1e-6 (measured on
the lab), so a limit of 1e-3 on the largest difference allows deep models and no mistake. In bfloat16 a logit of size 16
is rounded to 1/16 (8 bits), so single tokens differ by tenths and the largest difference is uninformative. The mean is
compared with the mean of -log p instead, since nearly certain tokens, most of a trained policy's, hardly differ
whatever the fault. On the lab rounding makes the mean difference 0.7 % of the mean of -log p, sampling at temperature
0.9 instead of 1 makes it 4 %, at 0.7 12 %; the limit of 10 % is above the known differences of GPU engines (0.01 to
0.02 a token). Small mistakes are not detected in bfloat16.

One update changes log-probs by less than these limits, so a sampler with stale weights would pass. In float32 it is
detected by comparison with the check before the update: on the lab, a sampler with a stale head differs by a factor
of a hundred.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from rlvr_cli.methods.kl import k3

Precision = Literal["float32", "bfloat16"]
# Of the largest difference in float32.
LARGEST = 1e-3
# Of the mean difference in bfloat16, relative to the mean of -log p, and absolute where that is nearly 0.
SHARE, LEAST = 0.1, 0.005
# In float32, of the ratio of the mean differences after and before an update, the latter at least rounding.
GROWTH, ROUNDING = 10.0, 1e-7


@dataclass(frozen=True)
class SamplerCheck:
    """The differences of sampler and trainer.

    Attributes:
        tokens: number of tokens compared.
        mean_difference, max_difference: of the absolute differences of their log-probs.
        surprise: the sampler's mean of -log p.
        kl: k3 estimate of KL(sampler || trainer) per token, in nats; biased with top_p < 1.
        precision: the coarser number format of the two.
    """

    tokens: int
    mean_difference: float
    max_difference: float
    surprise: float
    kl: float
    precision: Precision

    @property
    def matches(self) -> bool:
        """True if the difference is finite and within rounding."""
        name, limit = self.limit
        numbers = (self.mean_difference, self.max_difference, self.surprise, self.kl)
        return all(map(math.isfinite, numbers)) and bool(getattr(self, name) <= limit)

    @property
    def limit(self) -> tuple[str, float]:
        """The bounded statistic, and its limit."""
        if self.precision == "float32":
            return "max_difference", LARGEST
        return "mean_difference", max(LEAST, SHARE * self.surprise)

    def record(self) -> dict[str, Any]:
        """Return the check for the manifest; non-finite numbers are null."""
        name, limit = self.limit
        numbers = {
            "mean_difference": self.mean_difference,
            "max_difference": self.max_difference,
            "surprise": self.surprise,
            "kl": self.kl,
        }
        return {
            "tokens": self.tokens,
            **{key: value if math.isfinite(value) else None for key, value in numbers.items()},
            "precision": self.precision,
            "limit": {name: limit if math.isfinite(limit) else None},
            "matches": self.matches,
        }

    def sentence(self) -> str:
        """One line for the log."""
        return (
            f"sampler check: log-probs of {self.tokens:,} sampled tokens differ from the trainer's by "
            f"{self.mean_difference:.2g} on average and {self.max_difference:.2g} at most, KL {self.kl:.2g} a token"
        )

    def warning(self) -> str:
        """Return the warning for a mismatch."""
        name, limit = self.limit
        which = "largest" if name == "max_difference" else "mean"
        return (
            f"WARNING: the sampler does not compute the trained policy ({self.sentence()}; the {which} "
            f"difference should be below {limit:.2g} in {self.precision}). The gradient would be biased. Check that "
            "the sampler has the same weights, the same temperature in its log-probs and the same number format "
            "(model.dtype). rollout.engine=transformers samples with the trainer's model; rollout.tis_cap=2 corrects "
            "a small unavoidable difference by importance weights."
        )


def stale_weights_warning(before: SamplerCheck, after: SamplerCheck) -> str | None:
    """Return a warning if the sampler diverged from the trainer at an update, else None.

    Args:
        before, after: the checks at two rollouts with an update in between.
    """
    if "bfloat16" in (before.precision, after.precision):
        return None
    if after.mean_difference <= GROWTH * max(before.mean_difference, ROUNDING):
        return None
    return (
        "WARNING: the sampler is running with stale weights: before the update its log-probs differed from the "
        f"trainer's by {before.mean_difference:.2g} on average, and now by {after.mean_difference:.2g}. The gradient "
        "would be biased. rollout.engine=local samples with the trainer's weights."
    )


def log_prob_differences(sampler: Tensor, trainer: Tensor, mask: Tensor) -> Tensor:
    """Return (5,) float64 over the tokens of ``mask``: their number, sum and maximum of the absolute differences, the
    summed -log p of the sampler, the summed k3.

    Args:
        sampler, trainer, mask: (n, T) log-probs at the same temperature, and the mask of tokens.
    """
    valid = mask.bool()
    ours, theirs = trainer[valid].double(), sampler.to(trainer.device)[valid].double()
    apart = (ours - theirs).abs()
    largest = apart.max() if len(apart) else apart.sum()
    count = torch.tensor(float(len(apart)), dtype=torch.float64, device=apart.device)
    return torch.stack([count, apart.sum(), largest, -theirs.sum(), k3(theirs, ours).sum()])


def aggregate_check(sums: Tensor, precision: Precision) -> SamplerCheck:
    """Return the check over all processes, from the concatenated ``differences`` (5 numbers) of each."""
    each = sums.view(-1, 5)
    count, total, surprise, kl = (float(each[:, column].sum()) for column in (0, 1, 3, 4))
    tokens = max(count, 1.0)
    return SamplerCheck(int(count), total / tokens, float(each[:, 2].max()), surprise / tokens, kl / tokens, precision)
