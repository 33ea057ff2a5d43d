"""Mathematics with a boxed answer."""

from rlvr_cli.tasks.math.task import MathTask

__all__ = ["MathTask"]
