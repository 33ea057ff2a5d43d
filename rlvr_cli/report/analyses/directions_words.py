"""`rlvr analyze directions` for people: headline, notes, the table and how to read the figure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rlvr_cli.analysis.method_step import MethodStep
from rlvr_cli.analysis.saved_rollout import SavedRollout
from rlvr_cli.analysis.scoring import ScoredRun
from rlvr_cli.config.analysis_kinds import DirectionsOptions
from rlvr_cli.report.analyses.directions_found import Found, own_norm
from rlvr_cli.report.analyses.findings import Table
from rlvr_cli.report.policy_notes import policy_notes

READING = (
    "Upper row: norm of each gradient relative to the full update's, in percent; above each bar the mean principal "
    "angle to it. 0 degrees: the same dominant directions in every weight matrix; the dashed line below is what "
    "subspaces drawn at random have. Lower row: the angle matrix by matrix, from the first layer to the last, in the "
    "colours of the bars. Parts of the update (left, middle) keep its divisor, so that they add up; hollow marks are "
    "the norms if each is divided by its own number of tokens. The paper (figure 4) has tokens below 0.2 largest and "
    "best aligned (409%, 27.8 degrees), negative advantages better aligned than positive ones (28.0 against 40.5), and "
    "norms that explode without clipping (20,177%) and with CISPO (3,268%) but hardly change on policy (98%, at 47.4 "
    "degrees)."
)


def headline(summary: Mapping[str, Any], saved: SavedRollout, method: str) -> str:
    """One sentence."""
    where = f"rollout {saved.number} under the policy of {saved.current.label}"
    if summary["norm_noclip"] is None:
        return f"The update of {method} on {where} is 0: no token has an advantage, so nothing has a direction."
    parts = (
        f"{what}: {_percent(summary[f'norm_{name}'])} of its norm at {_degrees(summary[f'angle_{name}'])}"
        for name, what in (("low", "unlikely tokens"), ("high", "likely ones"), ("noclip", "no clipping"))
        if summary[f"norm_{name}"] is not None
    )
    return f"Against the update of {method} on {where}; {'; '.join(parts)}."


def group_table(found: Found) -> Table:
    """A row each group."""
    rows = [
        (
            group.name,
            group.what,
            f"{group.tokens:,}",
            _percent(compared.norm if compared else None),
            _percent(own_norm(group, compared, found.learned) if compared else None),
            _degrees(compared.angle if compared else None),
        )
        for group, compared in found.groups
    ]
    rows.append(("random", "subspaces drawn at random", "", "", "", _degrees(found.random_angle)))
    header = ("group", "what", "tokens", "norm", "norm, own divisor", "mean angle")
    return Table("Against the full update", header, rows)


def notes(
    saved: SavedRollout, run: ScoredRun, step: MethodStep, found: Found, options: DirectionsOptions
) -> Iterator[str]:
    """What weakens the numbers."""
    yield from policy_notes(saved, run.sampling_gap)
    tokens = step.tokens
    if not bool(((tokens.log_probs != tokens.old_log_probs) & tokens.mask.bool()).any()):
        yield (
            "Every ratio is 1: the current policy is the old one, so all ways of clipping give the same update. Choose "
            "a later --step or an earlier --rollout."
        )
    if len(saved.rows) > options.rows:
        yield f"Gradients of {options.rows} of {len(saved.rows)} completions, drawn at random."
    empty = [group.what for group, compared in found.groups if compared is None]
    if empty and len(empty) < len(found.groups):
        yield f"No gradient from: {', '.join(empty)}."
    full_rank = [name for name, k in found.reference.k.items() if k >= found.reference.width(name)]
    if full_rank:
        yield (
            f"In {len(full_rank)} of {len(found.reference.k)} matrices k directions are all there are: every angle is "
            "0 there. Choose a smaller k."
        )
    if len(step.method.schedule.passes) > 1:
        yield f"{step.method.name}: the passes are added up at the current policy."


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1%}"


def _degrees(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}\u00b0"
