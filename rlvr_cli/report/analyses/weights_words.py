"""`rlvr analyze weights` for people: headline, notes, tables and how to read the figure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlvr_cli.analysis.saved_rollout import SavedRollout
from rlvr_cli.analysis.scoring import ScoredRun
from rlvr_cli.config.analysis_kinds import WeightsOptions
from rlvr_cli.methods.method import Method
from rlvr_cli.report.analyses.findings import Table
from rlvr_cli.report.analyses.weights_found import CORNERS, MethodFound
from rlvr_cli.report.policy_notes import policy_notes

READING = (
    "Upper left: where the tokens lie; the dashed lines are the bounds of the regions. Upper right and lower left: the "
    "weight on grad pi relative to 1 / pi_old, which is 1 for the true policy gradient; a dot is a token, a line the "
    "formula; the scale is linear up to 1 and logarithmic above. Where A < 0 and the ratio is low (LN), CISPO and GPPO "
    "rise without end as the token vanishes, GRPO and ASPO drop to 0, and DGPO falls steadily: the paper's figure "
    "4(b). Lower right: length of the method's gradient less the true one, relative to the true one, in each region; 1 "
    "is a region whose gradient is lost whole, more than 1 is worse than no gradient at all. The paper (table 2) has "
    "GRPO and ASPO highest in LN and HP, and CISPO and ASPO alone above 0 in LP and HN."
)


def headline(summary: Mapping[str, Any], saved: SavedRollout, found: Sequence[MethodFound]) -> str:
    """One sentence."""
    where = f"rollout {saved.number} under the policy of {saved.current.label}"
    if not summary["tokens_with_advantage"]:
        return f"No token of {where} has an advantage, so no method has a weight."
    if not summary["share_outside"]:
        return f"No token of {where} left the regions' bounds: the methods' clips have nothing to act on."
    diverging = [of.method.name for of in found if (of.limits["slope_LN"] or 0) < 0]
    who = f"the weight on grad pi of {', '.join(diverging)} diverges" if diverging else "no weight on grad pi diverges"
    shares = ", ".join(f"{summary[f'share_{name}']:.2%} {name}" for name in CORNERS)
    return f"{who[0].upper()}{who[1:]} as a token with A < 0 vanishes. Tokens of {where}: {shares}."


def region_table(found: Sequence[MethodFound]) -> Table:
    """Weights and biases of each method; an empty region is left out."""
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
    return Table(
        "By region: weight on grad log pi (F), on grad pi relative to 1/pi_old (F/r), relative bias", header, rows
    )


def limit_table(found: Sequence[MethodFound]) -> Table:
    """What the formulas say of each method."""
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


def notes(saved: SavedRollout, run: ScoredRun, found: Sequence[MethodFound], options: WeightsOptions) -> Iterator[str]:
    """What weakens the numbers."""
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
            "(update.mini_batches)."
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


def _far(slope: float | None, method: Method, region: str) -> str:
    if slope is not None:
        return f"{slope:+.2f}".replace("-0.00", "+0.00")
    return "0 (cut)" if {"LN": -1, "HP": 1}[region] in method.advantage.signs else "-"


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
