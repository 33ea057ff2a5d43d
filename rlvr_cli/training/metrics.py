"""Metrics of a step: sums over the tokens of its micro-batches, and summaries of a rollout's rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rlvr_cli.methods.base import Tokens
from rlvr_cli.methods.kl import k3
from rlvr_cli.methods.method import Method
from rlvr_cli.training.objective import Mismatch

# A token's region (methods/base.py) -> its metric: clipped gradients, and the other corners outside the trust region.
REGION_METRICS = {"LN": "clip_frac/low", "HP": "clip_frac/high", "LP": "outside/low", "HN": "outside/high"}
REGIONS = tuple(REGION_METRICS)
# Means below this have a finite square.
MAX_SQUARABLE = 1e150
# Trainer against sampler, over the tokens in the forward passes of the updates.
MISMATCH = ("mismatch/log_prob", "mismatch/kl", "mismatch/above_2", "mismatch/below_half")
IMPORTANCE = ("importance/weight", "importance/capped", "importance/dropped")
# Means with their own number of tokens (|d|) or rows, which is summed under `NAME/count`.
MISMATCH_SUBSETS = ("mismatch/first_quarter", "mismatch/last_quarter", "mismatch/short", "mismatch/long")
IMPORTANCE_ROWS = ("importance/rows_dropped", "importance/cut_short", "importance/cut_long")
COMPARED = (
    *(*MISMATCH, *IMPORTANCE, "compared", *MISMATCH_SUBSETS, *IMPORTANCE_ROWS),
    *(f"{name}/count" for name in (*MISMATCH_SUBSETS, *IMPORTANCE_ROWS)),
)
TRAINED_MEANS = ("drift", "drift_square", "distance", "kl_old", "kl_reference", "entropy_trained")
# A verifier's failure -> the reasons of its verdicts.
VERIFIER_FAILURES = {"verifier/timeout": ("timeout", "died"), "verifier/unparsed": ("unparsed",)}


class StepMeter:
    """Token statistics of an optimizer step over all its forward passes, as sums that add up over processes.

    Ratios and distances cover trained tokens only, since others may not be computed.

    Attributes:
        entropy_coef: weight of the entropy bonus in the newest step.

    Args:
        executed: the counter of executed terms of the method; None = a new counter.
        mismatch: whether the sampler is compared with the trainer. importance: whether tokens have importance weights
            for that difference.
        entropies: whether to average the entropies of trained tokens (`entropy_trained`), without a rollout summary.
    """

    SUMS = (
        *("tokens", "trained", "moved", "drift", "drift_square", "distance", "kl_old", "kl_reference"),
        *("entropy_trained", "policy_loss", "value_loss", "aux_loss", "aux_loss_share"),
        *REGIONS,
        *COMPARED,
    )

    def __init__(
        self,
        method: Method,
        executed: Counter[str] | None = None,
        *,
        mismatch: bool = False,
        importance: bool = False,
        entropies: bool = False,
    ) -> None:
        self.method, self.mismatch, self.importance, self.entropies = method, mismatch, importance, entropies
        # `executed or Counter()` would discard an empty counter.
        self.executed: Counter[str] = Counter() if executed is None else executed
        self.entropy_coef = 0.0
        self._sums: dict[str, Tensor] = {}

    def _add(self, values: Mapping[str, Tensor]) -> None:
        """Add all numbers of each tensor to its sum, in float64."""
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, 0.0) + value.sum(dtype=torch.float64)

    def begin_step(self, mask: Tensor) -> None:
        """Count the valid tokens (n, T) of the step's rows, some of which forward passes may skip."""
        self._add({"tokens": mask})

    def add(self, tokens: Tokens, pass_name: str, statistics: Tensor | None, value_loss: Tensor | None = None) -> None:
        """Add a micro-batch (detached) of the method's pass, and count the executed terms.

        ``value_loss`` is summed over its tokens.
        """
        self.executed.update(self.method.token_terms(pass_name))
        shaped = self.method.shape_tokens(tokens, pass_name)
        mask = tokens.mask.bool()
        trained = self.method.trained_mask(tokens, pass_name)
        regions = self.method.policy_loss.regions(shaped, statistics)
        weights = self.method.policy_loss.weight(shaped, statistics)
        # Centred at 1 and in float64, so that squares do not overflow and the variance near 1 keeps its precision.
        current, old = tokens.log_probs.double(), tokens.old_log_probs.double()
        drift = torch.expm1(current - old)
        means = {
            "drift": drift,
            "drift_square": drift.square(),
            "distance": (current.exp() - old.exp()).abs(),
            "kl_old": k3(old, current),
        }
        if tokens.ref_log_probs is not None:
            means["kl_reference"] = k3(current, tokens.ref_log_probs.double())
        if self.entropies and tokens.entropies is not None:
            means["entropy_trained"] = tokens.entropies
        self._add({name: torch.where(trained, values, 0) for name, values in means.items()})
        # 0 for a token without advantage, even if its ratio overflowed.
        losses = torch.where(mask & (shaped.advantages != 0), -weights * shaped.advantages, 0)
        self._add({"trained": mask & (shaped.advantages != 0), "moved": trained, "policy_loss": losses})
        self._add({name: getattr(regions, name) & trained for name in REGIONS})
        if value_loss is not None:
            self._add({"value_loss": value_loss})

    def add_mismatch(self, mismatch: Mismatch) -> None:
        """Add the difference of sampler and trainer at a micro-batch's computed tokens."""
        computed = mismatch.computed
        differences = torch.where(computed, mismatch.log_ratios, 0).double()
        ratios, distances = differences.exp(), differences.abs()
        weights = ratios if mismatch.weights is None else mismatch.weights.double()
        dropped = computed & (weights == 0)
        cut = dropped if mismatch.cut is None else mismatch.cut & computed | dropped
        position = 4 * (mismatch.mask.cumsum(dim=1) - 1) // mismatch.mask.sum(dim=1, keepdim=True).clamp(min=1)
        extremes = (mismatch.is_short, mismatch.is_long)
        subsets = [computed & chosen for chosen in (position == 0, position == 3, *extremes)]
        count = computed.sum(dim=1)
        trained, share = count > 0, cut.sum(dim=1).double() / count.clamp(min=1)
        rows = [trained, *(trained & extreme.squeeze(1) for extreme in extremes)]
        values = [
            *(distances, k3(torch.zeros_like(differences), differences), ratios > 2, ratios < 0.5),
            *(torch.where(computed, weights, 0), cut & ~dropped, dropped, computed),
            *(torch.where(subset, distances, 0) for subset in subsets),
            trained & (dropped.sum(dim=1) == count),
            *(torch.where(chosen, share, 0) for chosen in rows[1:]),
            *(*subsets, *rows),
        ]
        self._add(dict(zip(COMPARED, values, strict=True)))

    def add_aux_loss(self, aux_loss: Tensor, share: Tensor) -> None:
        """Add the auxiliary loss () of a micro-batch of a mixture of experts, weighted by its share () of the step."""
        self._add({"aux_loss": aux_loss.detach() * share, "aux_loss_share": share})

    def take_sums(self) -> Tensor:
        """Return the sums in the order of ``SUMS``, and reset them."""
        sums, self._sums = self._sums, {}
        zero = next(iter(sums.values()), torch.zeros((), dtype=torch.float64)).new_zeros(())
        return torch.stack([sums.get(name, zero) for name in self.SUMS])

    def summary(self, sums: Sequence[float]) -> dict[str, float | None]:
        """Return means over tokens from the sums of all processes; None for a non-finite mean.

        Over trained tokens, None without any: ``ratio_mean`` and ``ratio_std``; ``prob_distance``, the mean
        |pi - pi_old|; ``kl_old``, the k3 estimate of KL(pi_old || pi); ``kl_reference``, that of KL(pi || reference)
        (0 without a reference; a KL penalty trains every token of the pass).
        Over all tokens of the step: ``clip_frac/low`` and ``clip_frac/high``, the shares of tokens beyond the trust
        region in the direction of their advantage, whose gradient the clipped ratio cuts; ``outside/low`` and
        ``outside/high``, those in the two other corners; ``trained``, the share with an advantage; ``policy_loss``, the
        mean of -F A, whose gradient is the method's.
        Over the tokens in the forward passes of the updates: ``mismatch/log_prob``, the mean
        |log pi_old - log pi_sampler|, also by quarter of the completion and of the completions by length;
        ``mismatch/kl``, the k3 estimate of KL(pi_sampler || pi_old); ``mismatch/above_2`` and ``mismatch/below_half``,
        the shares of ratios pi_old / pi_sampler above 2 and below 1/2. With a correction: ``importance/weight``, the
        mean weight; ``importance/capped`` and ``importance/dropped``, the shares of weights at the cap and of 0;
        ``importance/rows_dropped``, the share of rows without a weight above 0; ``importance/cut_short`` and
        ``importance/cut_long``, the mean share of both in the shortest and the longest quarter of the rows.
        ``aux_loss`` is the mean auxiliary loss of a mixture of experts, before its coefficient; ``entropy_coef`` the
        weight of the entropy bonus in the newest step, 0 while an adaptive one is off.
        """
        totals = dict(zip(self.SUMS, sums, strict=True))
        count, moved, compared = max(totals["tokens"], 1.0), totals["moved"] or math.nan, max(totals["compared"], 1.0)
        mean = {name: total / (moved if name in TRAINED_MEANS else count) for name, total in totals.items()}

        def compared_mean(name: str) -> float:
            return totals[name] / (totals[f"{name}/count"] or math.nan if f"{name}/count" in totals else compared)

        # Python raises when a float's square overflows.
        variance = mean["drift_square"] - (mean["drift"] ** 2 if abs(mean["drift"]) < MAX_SQUARABLE else math.inf)
        values = {
            **({"entropy_trained": mean["entropy_trained"]} if self.entropies else {}),
            "ratio_mean": 1.0 + mean["drift"],
            # Rounding may leave a variance just below 0; max() alone would also turn a NaN into 0.
            "ratio_std": variance if math.isnan(variance) else max(0.0, variance) ** 0.5,
            "prob_distance": mean["distance"],
            "kl_old": mean["kl_old"],
            "kl_reference": mean["kl_reference"],
            "policy_loss": mean["policy_loss"],
            **{metric: mean[name] for name, metric in REGION_METRICS.items()},
            "trained": mean["trained"],
            **{name: compared_mean(name) for name in (*MISMATCH, *MISMATCH_SUBSETS) if self.mismatch},
            **{name: compared_mean(name) for name in (*IMPORTANCE, *IMPORTANCE_ROWS) if self.importance},
            **({"value_loss": mean["value_loss"]} if self.method.advantage.needs_values else {}),
            **({"entropy_coef": self.entropy_coef} if self.method.entropy_bonus.is_on else {}),
            **({"aux_loss": totals["aux_loss"] / share} if (share := totals["aux_loss_share"]) else {}),
            "update_tokens": totals["tokens"],
        }
        return {name: value if math.isfinite(value) else None for name, value in values.items()}


def rollout_summary(
    rows: Sequence[Mapping[str, Any]],
    reasons: Sequence[str],
    format_range: tuple[float, float] | None = None,
    *,
    replaced: bool = False,
    by_subgroup: bool = False,
) -> dict[str, float | None]:
    """Return means over the completions of a rollout; ``rows`` are all of its records in ``rollouts/``.

    ``reward`` averages the finite rewards of the training. ``clean_reward`` averages the verifier's if the method has
    ``replaced`` them (noise, entropy, a control, a term for the length), which comparing cannot detect: training rounds
    rewards to float32. ``length_reward`` is the mean of those terms over the rows with a reward, part of ``reward``.
    ``nonzero_advantage`` is the share of completions with a gradient, ``unscorable`` the share that the task could not
    score: these are incorrect, and excluded from the rewards' means. ``diversity`` is the share of completions that
    differ, as text, from earlier ones of their problem: 1 / group_size if a group is all equal, 1 if all differ.
    ``verifier/timeout`` is the share whose comparison timed out or crashed its process, ``verifier/unparsed`` the share
    whose answer or gold answer could not be parsed as mathematics; both are 0 for tasks without such a verifier.
    ``format`` is the reward's part `format` as a share of ``format_range``, if any. ``accuracy/se`` is the standard
    error over all completions, ``format/se`` over the scored ones. Means over no completion are None.
    ``greedy_reward`` averages the rewards of the greedy completions, each prompt once (ReMax).
    ``logged/NAME`` averages the numbers that the user's reward functions record. If ``by_subgroup``, ``accuracy/NAME``
    is that of a subgroup.

    ``entropy`` is that of the sampling policy in nats, averaged over the rollout's tokens. If the engine does not
    compute it (a row's ``entropy`` is None) it is estimated by the mean of -log p of the sampled tokens, unbiased for
    samples of the whole distribution. None if neither is known.
    """
    count = len(rows)

    def mean(values: Sequence[float]) -> float | None:
        return sum(values) / len(values) if values else None

    scored = [row for row in rows if row["reward"] is not None]
    clean = [row["clean_reward"] for row in rows if row["clean_reward"] is not None]
    names = dict.fromkeys(name for row in rows for name in row["parts"])
    components = {name: mean([row["parts"].get(name, 0.0) for row in scored]) for name in names}
    lengths = [row["tokens"] for row in rows]
    greedy = {row["problem"]: row["greedy"]["reward"] for row in rows if "greedy" in row}
    logged: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.get("logged", {}).items():
            if isinstance(value, (int, float)):
                logged.setdefault(name, []).append(float(value))
    return {
        "reward": mean([row["reward"] for row in scored]),
        **({"clean_reward": mean(clean)} if replaced else {}),
        **({"length_reward": mean([row["length_reward"] for row in scored])} if "length_reward" in rows[0] else {}),
        **{f"reward/{component}": value for component, value in components.items()},
        **_format_and_errors(rows, scored, format_range),
        "accuracy": mean([float(row["correct"]) for row in rows]),
        **{
            f"accuracy/{group}": mean([float(row["correct"]) for row in rows if row["subgroup"] == group])
            for group in sorted({row["subgroup"] for row in rows} if by_subgroup else ())
        },
        **{f"reason/{reason}": sum(row["reason"] == reason for row in rows) / count for reason in reasons},
        **{name: mean([float(row["reason"] in failed) for row in rows]) for name, failed in VERIFIER_FAILURES.items()},
        "unscorable": mean([float(not row["scorable"]) for row in rows]),
        "length": mean(lengths),
        "length_max": float(max(lengths)),
        "truncated": mean([float(row["truncated"]) for row in rows]),
        "entropy": _entropy(rows),
        "diversity": len({(row["problem"], row["completion"]) for row in rows}) / count,
        "nonzero_advantage": mean([float(row["advantage"] != 0) for row in rows]),
        **({"greedy_reward": mean([value for value in greedy.values() if value is not None])} if greedy else {}),
        **_values_by_verdict(rows),
        **{f"logged/{name}": mean(values) for name, values in logged.items()},
    }


def _entropy(rows: Sequence[Mapping[str, Any]]) -> float | None:
    if any(row["entropy"] is None for row in rows):
        sums = [(-row["log_prob"], row["tokens"]) for row in rows if row["log_prob"] is not None]
    else:
        sums = [(row["entropy"], row["tokens"]) for row in rows]
    tokens = sum(count for _, count in sums)
    return math.fsum(total for total, _ in sums) / tokens if tokens else None


def _format_and_errors(
    rows: Sequence[Mapping[str, Any]], scored: Sequence[Mapping[str, Any]], format_range: tuple[float, float] | None
) -> dict[str, float | None]:
    """Return the format's share of its range, if any, and standard errors clustered by problem."""
    errors = {"accuracy/se": _standard_error(rows, [float(row["correct"]) for row in rows])}
    mean: dict[str, float | None] = {}
    if format_range is not None:
        low, high = format_range
        shares = [(row["parts"]["format"] - low) / (high - low) for row in scored]
        errors["format/se"] = _standard_error(scored, shares)
        mean["format"] = sum(shares) / len(shares) if shares else None
    return {**mean, **{name: error for name, error in errors.items() if error is not None}}


def _standard_error(rows: Sequence[Mapping[str, Any]], values: Sequence[float]) -> float | None:
    """Return the standard error of the mean of ``values``, clustered by problem; None for fewer than two problems."""
    problems = [row["problem"] for row in rows]
    if len(set(problems)) < 2:
        return None
    mean = sum(values) / len(values)
    residuals = dict.fromkeys(problems, 0.0)
    for problem, value in zip(problems, values, strict=True):
        residuals[problem] += value - mean
    squares = math.fsum(residual**2 for residual in residuals.values())
    return math.sqrt(len(residuals) / (len(residuals) - 1) * squares) / len(values)


def _values_by_verdict(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean predicted values of correct and incorrect completions, as in figure 8 of the landscape paper."""
    means = {}
    for name, correct in (("value/correct", True), ("value/incorrect", False)):
        values = [row["value"] for row in rows if row["correct"] == correct and row.get("value") is not None]
        if values:
            means[name] = sum(values) / len(values)
    return means
