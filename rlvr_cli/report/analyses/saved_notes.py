"""What weakens numbers that are taken at the policy that sampled a rollout."""

from __future__ import annotations

from rlvr_cli.analysis.saved_rollout import SavedRollout

# Log-probs of the same weights, sampled and scored by different code, agree to about this in float32.
SAME_POLICY = 1e-3


def sampled_by_notes(saved: SavedRollout, gap: float) -> tuple[str, ...]:
    """Notes on ``saved.old``; ``gap``: nats a token between its log-probs and those at sampling."""
    if not saved.old_is_exact:
        return (
            f"The policy that sampled this rollout (step {saved.sampled_after}) was not kept: {saved.old.label} stands "
            f"in for it, and is {gap:.2g} nats a token away from it.",
        )
    if gap > SAME_POLICY:
        return (
            f"The old policy's log-probs are {gap:.2g} nats a token away from those at sampling, though it is the same "
            "checkpoint: sampled on another device or in another number format.",
        )
    return ()
