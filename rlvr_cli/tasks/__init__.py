"""Tasks with verifiable answers. Defining a subclass of `Task` registers it under its name."""

from __future__ import annotations

from rlvr_cli.tasks.base import Task, prompt_ids, response_text
from rlvr_cli.tasks.problem import Problem, Split, Verdict

__all__ = ["Problem", "Split", "Task", "Verdict", "prompt_ids", "response_text"]
