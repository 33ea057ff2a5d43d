"""verifiers: environments of that library, single-turn ones, in a Python of the user's own."""

from rlvr_cli.tasks.vf.task import Verifiers

__all__ = ["Verifiers"]
