"""Knights & Knaves."""

from rlvr_cli.tasks.kk.task import KnightsAndKnaves

__all__ = ["KnightsAndKnaves"]
