"""Tasks with checkable answers."""

from __future__ import annotations

from typing import Literal

from rlvr_cli.config.schema import TaskConfig
from rlvr_cli.tasks.base import Problem, Split, Task, Verdict, WorkedSolutions, prompt_ids, response_text
from rlvr_cli.tasks.kk.task import KnightsAndKnaves

__all__ = ["Problem", "Split", "Task", "Verdict", "WorkedSolutions", "make_task", "prompt_ids", "response_text"]


def make_task(config: TaskConfig, style: Literal["logic_rl", "compact"]) -> Task:
    """The task of ``config``; ``style`` is how prompts are written once `task.style: auto` has been decided."""
    return KnightsAndKnaves(config, style)
