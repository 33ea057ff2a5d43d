"""`rlvr analyze directions`: norms of, and angles between, the updates of groups of tokens and ways of clipping.

Imports no torch before the request is known to be good.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlvr_cli.config.analysis_kinds import DirectionsOptions
from rlvr_cli.report.analyses.findings import Findings, Subject
from rlvr_cli.report.named_methods import policy_config, replayed_configs

if TYPE_CHECKING:
    from torch import Tensor

    from rlvr_cli.analysis.direction_groups import Group
    from rlvr_cli.analysis.saved_rollout import SavedRollout
    from rlvr_cli.report.analyses.directions_found import Found

# Methods whose weight is put in place of the full update's.
VARIANTS = ("cispo", "dapo", "acpo")


def analyze(subject: Subject, options: DirectionsOptions) -> Findings:
    """The update of ``options.method`` on the subject's rollout at its policy, against parts and variants of it.

    Raises:
        UserError: an unknown method, or one that cannot be applied to a saved rollout; no such rollout or checkpoint.
    """
    (config,) = replayed_configs([options.method])
    saved = subject.saved()

    import torch

    from rlvr_cli.analysis.direction_groups import clipping_variants, token_groups
    from rlvr_cli.analysis.drawn_rows import drawn_rows
    from rlvr_cli.analysis.method_step import MethodStep
    from rlvr_cli.analysis.scoring import score
    from rlvr_cli.report.analyses import directions_words as words
    from rlvr_cli.report.analyses.directions_figure import directions_figure
    from rlvr_cli.report.analyses.directions_found import numbers_of

    length = saved.config.rollout.max_new_tokens
    method = config.bound(length)
    run = score(saved, [method])
    step = MethodStep.of(method, run.scored)
    weights = {name: policy_config(name).bound(length).weight for name in VARIANTS}
    kept = torch.zeros(len(saved.rows), 1, dtype=torch.bool)
    kept[drawn_rows(saved, options.rows)] = True
    every = [
        *token_groups(step, run.scored, low=options.low, high=options.high, entropy=options.entropy),
        *clipping_variants(step, weights, run.scored),
    ]
    full = torch.where(kept, step.full_coefficients(), 0.0)
    found = _compare(saved, full, [group.of_rows(kept) for group in every], options)
    numbers = numbers_of(saved, run, step, found)
    return Findings(
        headline=words.headline(numbers["summary"], saved, method.name),
        numbers=numbers,
        tables=(words.group_table(found),),
        reading=words.READING,
        draw=lambda: directions_figure(found),
        notes=tuple(words.notes(saved, run, step, found, options)),
    )


def _compare(saved: SavedRollout, full: Tensor, groups: Sequence[Group], options: DirectionsOptions) -> Found:
    """One gradient of a whole model is held at a time."""
    from rlvr_cli.analysis.directions import Compared, Reference, layer_matrices
    from rlvr_cli.analysis.loaded_policy import load_policy
    from rlvr_cli.analysis.policy_gradient import gradient
    from rlvr_cli.core.streams import stream_seed
    from rlvr_cli.report.analyses.directions_found import Found

    policy = load_policy(saved, saved.current)
    names = layer_matrices(policy.model, options.matrices)
    reference = Reference(gradient(policy, saved.rows, full), names, options.k, options.side)
    compared: list[Compared | None] = []
    # The groups at the old policy come last: it takes the place of the current one in memory.
    for group in groups:
        if group.at_old and saved.current != saved.old:
            policy = load_policy(saved, saved.old)
        compared.append(reference.compare(gradient(policy, saved.rows, group.coefficients)) if group.tokens else None)
    seed = stream_seed(saved.config.run.seed, "analysis-directions")
    return Found(tuple(zip(groups, compared, strict=True)), reference, reference.random_angle(seed))
