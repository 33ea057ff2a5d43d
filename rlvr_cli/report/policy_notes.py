"""What a reader must know of the policies that scored a saved rollout."""

from __future__ import annotations

from rlvr_cli.analysis.saved_rollout import SavedRollout

# Log-probs of the same weights, sampled and scored by different code, agree to about this in float32.
SAME_POLICY = 1e-3


def policy_notes(saved: SavedRollout, sampling_gap: float) -> list[str]:
    """A line where the old policy is not the one that sampled, or does not give the log-probs it gave then.

    Args:
        sampling_gap: as in ``analysis.scoring.ScoredRun``, nats a token.
    """
    if not saved.old_is_exact:
        return [
            f"The policy that sampled this rollout (step {saved.sampled_after}) was not kept: {saved.old.label} stands "
            f"in for it, and is {sampling_gap:.2g} nats a token away from it. Ratios are those to the stand-in."
        ]
    if sampling_gap > SAME_POLICY:
        return [
            f"The old policy's log-probs are {sampling_gap:.2g} nats a token away from those at sampling, though "
            "it is the same checkpoint: sampled on another device or in another number format."
        ]
    return []
