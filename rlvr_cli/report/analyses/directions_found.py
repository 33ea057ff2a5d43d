"""What `rlvr analyze directions` found, and the numbers by which runs are compared."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rlvr_cli.analysis.direction_groups import CLIPPING, Group
from rlvr_cli.analysis.directions import Compared, Reference
from rlvr_cli.analysis.method_step import MethodStep
from rlvr_cli.analysis.saved_rollout import SavedRollout
from rlvr_cli.analysis.scoring import ScoredRun


@dataclass(frozen=True)
class Found:
    """Each group with its comparison (None where a gradient is 0), the full update, and the angle of no relation."""

    groups: tuple[tuple[Group, Compared | None], ...]
    reference: Reference
    random_angle: float | None

    @property
    def learned(self) -> int:
        """How many tokens of the completions looked at have an advantage: all that a way of clipping is about."""
        return next(group.tokens for group, _ in self.groups if group.kind == CLIPPING)


def own_norm(group: Group, compared: Compared, learned: int) -> float | None:
    """The norm relative to the full update's if either is divided by its own number of tokens; for parts of it."""
    return None if group.kind == CLIPPING else compared.norm * learned / group.tokens


def numbers_of(saved: SavedRollout, run: ScoredRun, step: MethodStep, found: Found) -> dict[str, Any]:
    """All that was computed."""
    return {
        "rollout": saved.number,
        "sampled_after_step": saved.sampled_after,
        "old_policy": saved.old.step,
        "current_policy": saved.current.step,
        "sampling_gap": run.sampling_gap,
        "method": step.method.name,
        "full_norm": found.reference.norm,
        "k": found.reference.k,
        "groups": {
            group.name: {
                "kind": group.kind,
                "what": group.what,
                "tokens": group.tokens,
                "norm": compared.norm if compared else None,
                "angles": compared.angles if compared else {},
            }
            for group, compared in found.groups
        },
        "summary": dict(_summary(saved, step, found)),
    }


def _summary(saved: SavedRollout, step: MethodStep, found: Found) -> Iterator[tuple[str, float | int | None]]:
    tokens = step.tokens
    yield "tokens", int(tokens.mask.sum())
    yield "tokens_with_advantage", int((tokens.mask.bool() & (tokens.advantages != 0)).sum())
    yield "updates_since", saved.current.step - saved.sampled_after
    yield "matrices", len(found.reference.k)
    yield "k", statistics.median(found.reference.k.values()) if found.reference.k else None
    yield "angle_random", found.random_angle
    for group, compared in found.groups:
        yield f"norm_{group.name}", compared.norm if compared else None
        yield f"angle_{group.name}", compared.angle if compared else None
        if group.kind != CLIPPING:
            yield f"share_{group.name}", group.tokens / found.learned if found.learned else None
            yield f"own_norm_{group.name}", own_norm(group, compared, found.learned) if compared else None
