"""Questions on hierarchical tables (HiTab)."""

from rlvr_cli.tasks.hitab.task import HiTab

__all__ = ["HiTab"]
