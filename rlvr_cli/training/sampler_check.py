"""Check that the sampler samples the trained policy: compare their log-probs of the first rollout's tokens.

The policy gradient assumes samples of the trained policy. A sampler with other weights, another temperature or other
arithmetic biases it silently.

The limits. Sampler and trainer compute the same sums in another order. In float32 that changes a log-prob by about 1e-6
(measured on the lab), so a limit of 1e-3 on the largest difference tolerates deep models but no bug. In bfloat16 a
logit of size 16 is rounded to 1/16 (8 bits), so single tokens differ by tenths and the largest difference is
uninformative. The mean difference is compared with the mean of -log p instead, since nearly certain tokens, most of a
trained policy's, hardly differ whatever the bug. On the lab the mean difference is 0.7 % of the mean of -log p from
rounding, 4 % from sampling at temperature 0.9 instead of 1, 12 % at 0.7; the limit of 10 % is above the known
differences of GPU engines (0.01 to 0.02 per token). Small bugs are not detected in bfloat16.

One update changes log-probs by less than these limits, so a sampler with stale weights would pass. In float32 it is
detected by comparison with the check before the update: on the lab, a stale head multiplies the difference by 100.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from rlvr_cli.core.files import finite
from rlvr_cli.methods.kl import k3

Precision = Literal["float32", "bfloat16"]
# Limit of the largest difference in float32.
MAX_DIFFERENCE = 1e-3
# Limits of the mean difference in bfloat16: relative to the mean of -log p, and absolute if that is nearly 0.
RELATIVE_MEAN, ABSOLUTE_MEAN = 0.1, 0.005
# Limit of the growth of the mean difference in an update in float32, and lower bound of the difference before it.
MAX_GROWTH, ROUNDING = 10.0, 1e-7


@dataclass(frozen=True)
class SamplerCheck:
    """Differences of the log-probs of sampler and trainer.

    Attributes:
        tokens: number of compared tokens.
        mean_difference, max_difference: of the absolute differences.
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
        """The tested statistic, and its limit."""
        if self.precision == "float32":
            return "max_difference", MAX_DIFFERENCE
        return "mean_difference", max(ABSOLUTE_MEAN, RELATIVE_MEAN * self.surprise)

    def record(self) -> dict[str, Any]:
        """Return the check for the manifest; non-finite numbers are null."""
        name, limit = self.limit
        values = {key: finite(value) if isinstance(value, float) else value for key, value in asdict(self).items()}
        return {**values, "limit": {name: finite(limit)}, "matches": self.matches}

    def summary(self) -> str:
        return (
            f"sampler check: log-probs of {self.tokens:,} sampled tokens differ from the trainer's by "
            f"{self.mean_difference:.2g} on average and {self.max_difference:.2g} at most, KL {self.kl:.2g} a token"
        )

    def warning(self) -> str:
        name, limit = self.limit
        statistic = "largest" if name == "max_difference" else "mean"
        return (
            f"WARNING: the sampler does not compute the trained policy ({self.summary()}; the {statistic} "
            f"difference should be below {limit:.2g} in {self.precision}). The gradient would be biased. Check that "
            "the sampler has the same weights, the same temperature in its log-probs and the same number format "
            "(model.dtype). Set rollout.engine=transformers to sample with the trainer's model, or "
            "rollout.correction=token to correct a small unavoidable difference by importance weights."
        )


def stale_weights_warning(before: SamplerCheck, after: SamplerCheck) -> str | None:
    """Return a warning if the sampler diverged from the trainer in the update between two checks, else None."""
    if "bfloat16" in (before.precision, after.precision):
        return None
    if after.mean_difference <= MAX_GROWTH * max(before.mean_difference, ROUNDING):
        return None
    return (
        "WARNING: the sampler is running with stale weights: before the update its log-probs differed from the "
        f"trainer's by {before.mean_difference:.2g} on average, and now by {after.mean_difference:.2g}. The gradient "
        "would be biased. Set rollout.engine=local to sample with the trainer's weights."
    )


def log_prob_differences(sampler: Tensor, trainer: Tensor, mask: Tensor) -> Tensor:
    """Return (5,) float64 over the tokens of ``mask`` (n, T): their number, sum and maximum of the absolute differences
    of the log-probs (n, T), the sampler's summed -log p, the summed k3.
    """
    valid = mask.bool()
    policy, sampled = trainer[valid].double(), sampler.to(trainer.device)[valid].double()
    differences = (policy - sampled).abs()
    largest = differences.max() if len(differences) else differences.sum()
    count = torch.tensor(float(len(differences)), dtype=torch.float64, device=differences.device)
    return torch.stack([count, differences.sum(), largest, -sampled.sum(), k3(sampled, policy).sum()])


def aggregate_check(sums: Tensor, precision: Precision) -> SamplerCheck:
    """Return the check over all processes, from their concatenated :func:`log_prob_differences`."""
    by_process = sums.view(-1, 5)
    count, total, surprise, kl = (float(by_process[:, column].sum()) for column in (0, 1, 3, 4))
    tokens, largest = max(count, 1.0), float(by_process[:, 2].max())
    return SamplerCheck(int(count), total / tokens, largest, surprise / tokens, kl / tokens, precision)
