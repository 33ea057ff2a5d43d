"""The HiTab task: generated or loaded tables with questions, and verdicts by two rules."""

from __future__ import annotations

import random
from collections.abc import Iterator
from fractions import Fraction
from typing import Any, Literal

from rlvr_cli.config.data_sets import is_generated
from rlvr_cli.config.task_kinds import HiTabTaskConfig
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.streams import stream_seed
from rlvr_cli.tasks.base import Problem, Split, Verdict
from rlvr_cli.tasks.hitab.fields import problem_from
from rlvr_cli.tasks.hitab.generate import generate, result
from rlvr_cli.tasks.hitab.load import load_problems
from rlvr_cli.tasks.hitab.prompt import chat_prompt, user_text
from rlvr_cli.tasks.hitab.values import Conventions, decimal_text
from rlvr_cli.tasks.hitab.verdict import REASONS, judge, written_answer
from rlvr_cli.tasks.rows import NO_ALL

__all__ = ["HiTab", "problem_from", "written_answer"]

_OPERATORS = {"sum": " + ", "difference": " - ", "ratio": " / "}


class HiTab:
    """Questions on hierarchical tables.

    Args:
        config: the ``task`` section.
        style: ``answer_tag`` (reasoning in ``<think>``, answer in ``<answer>``) or ``boxed``.
    """

    name = "hitab"
    reasons = REASONS
    reward_range = (0.0, 1.0)

    def __init__(self, config: HiTabTaskConfig, style: str) -> None:
        self.config = config
        self.style = style
        self.conventions = Conventions(Fraction(str(config.tolerance)), config.percent, config.sign)

    @property
    def settings(self) -> dict[str, Any]:
        """The JSON values that decide problems, prompts and verdicts."""
        config = self.config
        return {
            "name": self.name,
            "data": config.data,
            "corrected": config.corrected,
            "style": self.style,
            "tolerance": config.tolerance,
            "percent": config.percent,
            "sign": config.sign,
            "rule": config.rule,
        }

    def problems(self, split: Split | Literal["all"], count: int, seed: int) -> list[Problem]:
        """``count`` problems of ``split``, the same for the same arguments; loaded data may have fewer.

        Raises UserError when the data cannot be read or has no such row.
        """
        if is_generated(self.config.data):
            if split == "all":
                raise UserError(NO_ALL)
            return generate(split, count, seed)
        problems = load_problems(self.config.data, split, corrected=self.config.corrected, folder=self.config.data_dir)
        random.Random(stream_seed(seed, "hitab", "rows", split)).shuffle(problems)
        return problems[:count]

    def prompt(self, problem: Problem, tokenizer: Any) -> str:
        """The full prompt: table, question and the form of the answer."""
        return chat_prompt(user_text(problem.question, problem.data["table"], self.style), tokenizer)

    def judge(self, problem: Problem, response: str, *, truncated: bool = False) -> Verdict:
        """1 for the right answer, else 0. Pure; never raises; time linear in the response."""
        return judge(problem.data["answer"], response, self.config.rule, self.conventions, truncated)

    def solutions(self, problem: Problem) -> Iterator[str]:
        """One worked response to a generated problem: the cells it needs, the computation, the answer.

        Raises UserError for a loaded problem, whose rows do not say which cells lead to the answer.
        """
        working = problem.data.get("working")
        if working is None:
            raise UserError(
                f"task.data: problem {problem.id} cannot be worked out from its row. Use generated tables "
                "(task.data=hitab-gen), or give worked solutions of your own (method.data)."
            )
        return iter([self._worked(working)])

    def _worked(self, working: dict[str, Any]) -> str:
        kind, labels, cells = working["kind"], working["labels"], working["cells"]
        numbers = [cell.replace(",", "") for cell in cells]
        values = [Fraction(number) for number in numbers]
        steps = [f"The table has {cell} for {label}." for label, cell in zip(labels, cells, strict=True)]
        if kind == "argmax":
            answer = labels[values.index(max(values))]
            steps.append(f"The highest of these is {decimal_text(max(values))}, for {answer}.")
        else:
            answer = decimal_text(result(kind, values))
        if kind in _OPERATORS:
            steps.append(f"{_OPERATORS[kind].join(numbers)} = {answer}.")
        thought = " ".join(steps)
        if self.style == "boxed":
            return f"{thought} The answer is \\boxed{{{answer}}}."
        return f"<think> {thought} </think> <answer> {answer} </answer>"
