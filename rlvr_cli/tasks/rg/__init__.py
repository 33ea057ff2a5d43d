"""reasoning-gym: generated problems of a hundred kinds, each with a verifier of its own."""

from rlvr_cli.tasks.rg.task import PREFIX, ReasoningGym, installed, listed

__all__ = ["PREFIX", "ReasoningGym", "installed", "listed"]
