"""What `rlvr analyze weights` found of each method, and the numbers by which runs are compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from rlvr_cli.analysis.saved_rollout import SavedRollout
from rlvr_cli.analysis.scoring import ScoredRun
from rlvr_cli.analysis.weights import ALL, GroupWeights, MethodWeights, median_old_prob
from rlvr_cli.methods.method import Method

CORNERS = ("LN", "HP", "LP", "HN")


@dataclasses.dataclass(frozen=True)
class MethodFound:
    """What was found of one method: ``gradient`` is its bias by region, ``limits`` what the formulas say."""

    method: Method
    weights: MethodWeights
    regions: tuple[GroupWeights, ...]
    old_probs: tuple[GroupWeights, ...]
    gradient: dict[str, float | None] | None
    limits: dict[str, float | None]

    @property
    def key(self) -> str:
        """The name as part of a summary number's name."""
        return self.method.name.replace("-", "_").replace("+", "_")

    def bias(self, region: str) -> float | None:
        """On gradients where they were measured, else on coefficients."""
        if self.gradient is not None:
            return self.gradient[region]
        return next(group.bias for group in self.regions if group.name == region)


def numbers_of(
    saved: SavedRollout, run: ScoredRun, found: Sequence[MethodFound], gamma: float | None
) -> dict[str, Any]:
    """All that was computed; ``gamma`` is that of `decay_of_ratios`."""
    return {
        "rollout": saved.number,
        "sampled_after_step": saved.sampled_after,
        "old_policy": saved.old.step,
        "current_policy": saved.current.step,
        "sampling_gap": run.sampling_gap,
        "methods": {
            of.method.name: {
                "regions": {group.name: dataclasses.asdict(group) for group in of.regions},
                "old_probs": {group.name: dataclasses.asdict(group) for group in of.old_probs},
                "gradient_bias": of.gradient,
                "limits": of.limits,
            }
            for of in found
        },
        "summary": dict(_summary(saved, run, found, gamma)),
    }


def _summary(
    saved: SavedRollout, run: ScoredRun, found: Sequence[MethodFound], gamma: float | None
) -> Iterator[tuple[str, float | int | None]]:
    first = found[0]
    counts = {group.name: group.tokens for group in first.regions}
    total = counts.pop(ALL)
    yield "tokens", int(run.scored.rollout.mask.sum())
    yield "tokens_with_advantage", total
    yield "updates_since", saved.current.step - saved.sampled_after
    for name, count in counts.items():
        yield f"tokens_{name}", count
        yield f"share_{name}", count / total if total else None
        yield f"old_prob_{name}", median_old_prob(first.weights, [name])
    yield "share_outside", sum(counts[name] for name in CORNERS) / total if total else None
    yield "old_prob_outside", median_old_prob(first.weights, CORNERS)
    yield "gamma_LN", gamma
    for of in found:
        for group in of.regions:
            suffix = of.key if group.name == ALL else f"{of.key}_{group.name}"
            if of.gradient is not None:
                yield f"bias_{suffix}", of.gradient[group.name]
            yield f"decoupled_bias_{suffix}", group.bias
        yield f"analytic_bias_{of.key}_LN", of.limits["bias_LN"]
        for name in ("LN", "HP"):
            group = next(group for group in of.regions if group.name == name)
            yield f"slope_{of.key}_{name}", of.limits[f"slope_{name}"]
            yield f"token_slope_{of.key}_{name}", group.slope
            yield f"largest_{of.key}_{name}", group.largest
