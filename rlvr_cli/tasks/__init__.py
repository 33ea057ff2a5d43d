"""Tasks with checkable answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Protocol, cast

from rlvr_cli.config.schema import TaskConfig
from rlvr_cli.config.task_kinds import KKTaskConfig
from rlvr_cli.tasks.base import (
    JudgesBeside,
    JudgesMany,
    Problem,
    Split,
    Task,
    Verdict,
    WorkedSolutions,
    judge_all,
    prompt_ids,
    response_text,
)

__all__ = [
    "JudgesBeside",
    "JudgesMany",
    "Problem",
    "Split",
    "Task",
    "Verdict",
    "WorkedSolutions",
    "judge_all",
    "make_task",
    "problem_reader",
    "prompt_ids",
    "response_text",
    "task_style",
]

# Where each task's class is; only the module of the task that is asked for is imported.
_CLASSES = {
    "kk": ("rlvr_cli.tasks.kk.task", "KnightsAndKnaves"),
    "countdown": ("rlvr_cli.tasks.countdown.task", "Countdown"),
    "math": ("rlvr_cli.tasks.math.task", "MathTask"),
    "gsm8k": ("rlvr_cli.tasks.gsm8k.task", "GSM8K"),
    "hitab": ("rlvr_cli.tasks.hitab.task", "HiTab"),
}


class _ProblemReader(Protocol):
    def __call__(self, fields: Mapping[str, Any], where: str) -> Problem: ...


def make_task(config: TaskConfig, style: str) -> Task:
    """The task of ``config``.

    Args:
        style: how prompts are written (:func:`task_style`).
    Raises:
        UserError: what the task says of a configuration that it cannot serve.
    """
    module, name = _CLASSES[config.name]
    make = cast(Callable[[TaskConfig, str], Task], getattr(import_module(module), name))
    return make(config, style)


def task_style(config: TaskConfig, model_style: str) -> str:
    """How prompts are written: the style that is configured; for `auto` of Knights & Knaves that of the model."""
    return model_style if isinstance(config, KKTaskConfig) and config.style == "auto" else config.style


def problem_reader(name: str) -> _ProblemReader:
    """The function that builds a problem of the task ``name`` from the task's own fields.

    It raises UserError, naming ``where``, for fields that are missing or no problem of the task.
    """
    module, _ = _CLASSES[name]
    return cast(_ProblemReader, import_module(module).problem_from)
