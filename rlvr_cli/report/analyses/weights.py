"""`rlvr analyze weights`: weights of real tokens on grad log pi and grad pi, and their bias, by region and method.

Imports no torch before the request is known to be good.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rlvr_cli.config.analysis_kinds import WeightsOptions
from rlvr_cli.report.analyses.findings import Findings, Subject, Table
from rlvr_cli.report.named_methods import replayed_configs
from rlvr_cli.report.policy_notes import policy_notes

if TYPE_CHECKING:
    from torch import Tensor

    from rlvr_cli.analysis.saved_rollout import SavedRollout
    from rlvr_cli.analysis.scoring import ScoredRun
    from rlvr_cli.analysis.weights import GroupWeights, MethodWeights
    from rlvr_cli.methods.method import Method

CORNERS = ("LN", "HP", "LP", "HN")
READING = (
    "Upper left: where the tokens lie; those outside the dashed bounds are mostly unlikely ones. Upper right and lower "
    "left: the weight on grad pi relative to 1 / pi_old, which is 1 for the true policy gradient; a dot is a token, a "
    "line the formula. Where A < 0 and the ratio is low, CISPO and GPPO rise without end as the token vanishes, GRPO and "
    "ASPO drop to 0, and DGPO falls steadily: that is the paper's figure 4(b). Lower right: length of the method's "
    "gradient less the true one, relative to the true one, in each region; 1 is a region whose gradient is lost whole. "
    "The paper (table 2) has GRPO and ASPO highest in LN and HP, and CISPO and ASPO alone above 0 in LP and HN."
)


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


def analyze(subject: Subject, options: WeightsOptions) -> Findings:
    """The weights of ``options.methods`` on the subject's rollout at its policy.

    Raises:
        UserError: an unknown method, or one that cannot be applied to a saved rollout; no such rollout or checkpoint.
    """
    configs = {config.name: config for config in replayed_configs(options.methods)}
    saved = subject.saved()

    from rlvr_cli.analysis.scoring import score
    from rlvr_cli.analysis.weights import by_old_prob, by_region, decay_of_ratios, method_weights
    from rlvr_cli.methods.make import make_method
    from rlvr_cli.report.analyses.weights_figure import weights_figure

    length = saved.config.rollout.max_new_tokens
    methods = [make_method(config, max_length=length) for config in configs.values()]
    run = score(saved, methods)
    weights = [
        method_weights(method, run.scored, eps_low=options.eps_low, eps_high=options.eps_high) for method in methods
    ]
    biases = _gradient_biases(saved, weights, options.rows) if options.gradients else [None] * len(methods)
    gamma = decay_of_ratios(weights[0].ratio[weights[0].region("LN")], 1 - options.eps_low)
    found = [
        MethodFound(
            method,
            of,
            tuple(by_region(of)),
            tuple(by_old_prob(of)),
            bias,
            _limits(method, of, gamma, 1 - options.eps_low),
        )
        for method, of, bias in zip(methods, weights, biases, strict=True)
    ]
    numbers = _numbers(saved, run, found, gamma, options)
    return Findings(
        headline=_headline(numbers, saved, found),
        numbers=numbers,
        tables=(_region_table(found), _limit_table(found)),
        reading=READING,
        draw=lambda: weights_figure(found, run.scored, options.eps_low, options.eps_high),
        notes=tuple(_notes(saved, run, found, options)),
    )


def _gradient_biases(
    saved: SavedRollout, weights: Sequence[MethodWeights], most: int
) -> list[dict[str, float | None] | None]:
    from rlvr_cli.analysis.loaded_policy import load_policy
    from rlvr_cli.analysis.policy_gradient import gradient, norm
    from rlvr_cli.analysis.weight_gradients import Norms, gradient_bias

    policy = load_policy(saved, saved.current)
    chosen = _drawn(saved, most)

    def norm_of(coefficients: Tensor) -> float:
        kept = coefficients.new_zeros(coefficients.shape)
        kept[chosen] = coefficients[chosen]
        return norm(gradient(policy, saved.rows, kept))

    norms = Norms(norm_of)
    return [gradient_bias(of, norms) for of in weights]


def _drawn(saved: SavedRollout, most: int) -> list[int]:
    """Rows for the gradients; the same ones at every call."""
    import torch

    from rlvr_cli.streams import stream_seed

    count = len(saved.rows)
    if count <= most:
        return list(range(count))
    generator = torch.Generator().manual_seed(stream_seed(saved.config.run.seed, "analyze-weights", saved.number))
    drawn: list[int] = torch.randperm(count, generator=generator)[:most].sort().values.tolist()
    return drawn


def _limits(method: Method, weights: MethodWeights, gamma: float | None, lowest: float) -> dict[str, float | None]:
    from rlvr_cli.analysis.weights import median_old_prob
    from rlvr_cli.report.weight_limits import far_slope, left_bias

    old_prob = median_old_prob(weights, ["LN"])
    known = gamma is not None and old_prob is not None
    return {
        "slope_LN": far_slope(method, "LN"),
        "slope_HP": far_slope(method, "HP"),
        "bias_LN": left_bias(method, gamma, lowest, old_prob) if known else None,
    }


def _numbers(
    saved: SavedRollout, run: ScoredRun, found: Sequence[MethodFound], gamma: float | None, options: WeightsOptions
) -> dict[str, Any]:
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
    from rlvr_cli.analysis.weights import ALL, median_old_prob

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


def _headline(numbers: dict[str, Any], saved: SavedRollout, found: Sequence[MethodFound]) -> str:
    summary = numbers["summary"]
    where = f"rollout {saved.number} under the policy of {saved.current.label}"
    if not summary["tokens_with_advantage"]:
        return f"No token of {where} has an advantage, so no method has a weight."
    if not summary["share_outside"]:
        return f"No token of {where} left the regions' bounds: the methods' clips have nothing to act on."
    diverging = [of.method.name for of in found if (of.limits["slope_LN"] or 0) < 0]
    who = f"the weight on grad pi of {', '.join(diverging)} diverges" if diverging else "no weight on grad pi diverges"
    shares = ", ".join(f"{summary[f'share_{name}']:.2%} {name}" for name in CORNERS)
    return f"{who[0].upper()}{who[1:]} as a token with A < 0 vanishes. Tokens of {where}: {shares}."


def _region_table(found: Sequence[MethodFound]) -> Table:
    rows = [
        (
            of.method.name if group is of.regions[0] else "",
            group.name,
            f"{group.tokens:,}",
            *(_shown(value) for value in (group.on_log_prob, group.relative, group.largest, group.bias)),
            _shown(of.gradient[group.name] if of.gradient is not None else None),
        )
        for of in found
        for group in of.regions
        if group.tokens
    ]
    header = ("method", "region", "tokens", "mean F", "mean F/r", "largest F/r", "bias of F", "bias of gradient")
    return Table("By region: weight on grad log pi (F), on grad pi relative to 1/pi_old (F/r), relative bias", header, rows)


def _limit_table(found: Sequence[MethodFound]) -> Table:
    rows = [
        (
            of.method.name,
            *(_far(of.limits[f"slope_{name}"], of.method, name) for name in ("LN", "HP")),
            _shown(of.limits["bias_LN"]),
        )
        for of in found
    ]
    header = ("method", "LN: W ~ r^", "HP: W ~ r^", "analytic bias in LN")
    return Table("From the formulas: exponent of the weight W on grad pi far out, and bias in LN", header, rows)


def _far(slope: float | None, method: Method, region: str) -> str:
    from rlvr_cli.report.weight_curves import signs

    if slope is not None:
        return f"{slope:+.2f}".replace("-0.00", "+0.00")
    return "0 (cut)" if {"LN": -1, "HP": 1}[region] in signs(method) else "-"


def _notes(
    saved: SavedRollout, run: ScoredRun, found: Sequence[MethodFound], options: WeightsOptions
) -> Iterator[str]:
    yield from policy_notes(saved, run.sampling_gap)
    first = found[0]
    counts = {group.name: group.tokens for group in first.regions}
    drift = (run.scored.log_probs - run.scored.old_log_probs)[first.weights.learned]
    if drift.numel() and not any(counts[name] for name in CORNERS):
        steps = saved.current.step - saved.sampled_after
        yield (
            f"No token left the bounds {1 - options.eps_low:g} to {1 + options.eps_high:g}: the ratio that is farthest "
            f"from 1 is {math.exp(float(drift[drift.abs().argmax()])):.3g}, {steps} updates after the sampling. Choose "
            "a later --step, an earlier --rollout, or a run with more updates per rollout "
            "(update.updates_per_rollout)."
        )
    empty = [name for name in CORNERS if not counts[name]]
    if empty and len(empty) < len(CORNERS):
        yield f"No token in {', '.join(empty)}; there is no bias to measure there."
    if options.gradients and len(saved.rows) > options.rows:
        yield f"Bias of gradients: on {options.rows} of {len(saved.rows)} completions, drawn at random."
    several = [of.method.name for of in found if len(of.method.schedule.passes) > 1]
    if several:
        yield f"{' and '.join(several)}: the passes are added up at the current policy."
    penalised = [of.method.name for of in found if of.method.kl.beta > 0]
    if penalised:
        yield f"{' and '.join(penalised)}: the KL penalty is left out of weight and bias."


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
