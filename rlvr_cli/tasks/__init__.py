"""Tasks with checkable answers; each is a folder, or a file, of this package, and has its name by being defined."""

from __future__ import annotations

from rlvr_cli.tasks.base import Problem, Split, Task, Verdict, prompt_ids, response_text

__all__ = ["Problem", "Split", "Task", "Verdict", "prompt_ids", "response_text"]
