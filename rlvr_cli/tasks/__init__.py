"""Tasks with checkable answers; each is a class in a file of this package, and has its name by being defined."""

from __future__ import annotations

from rlvr_cli.tasks.base import Task, prompt_ids, response_text
from rlvr_cli.tasks.problem import Problem, Split, Verdict

__all__ = ["Problem", "Split", "Task", "Verdict", "prompt_ids", "response_text"]
