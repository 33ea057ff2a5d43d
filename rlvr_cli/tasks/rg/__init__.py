"""reasoning-gym: generated problems of a hundred kinds, each with a verifier of its own."""

from rlvr_cli.tasks.rg.task import ReasoningGym

__all__ = ["ReasoningGym"]
