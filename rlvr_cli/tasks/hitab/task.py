"""The HiTab task: generated or loaded tables with questions, and verdicts by two rules."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from rlvr_cli.core.errors import UserError
from rlvr_cli.tasks.base import Data, DataSet, DataSplit, Problem, RuleKey, Split, Task, Verdict, made_here
from rlvr_cli.tasks.hitab.fields import problem_from
from rlvr_cli.tasks.hitab.generate import generate, result
from rlvr_cli.tasks.hitab.load import load_problems
from rlvr_cli.tasks.hitab.prompt import chat_prompt, user_text
from rlvr_cli.tasks.hitab.values import Conventions, decimal_text
from rlvr_cli.tasks.hitab.verdict import REASONS, judge

_OPERATORS = {"sum": " + ", "difference": " - ", "ratio": " / "}


class HiTab(Task):
    """Questions on hierarchical tables."""

    sets: ClassVar = {
        "hitab": DataSet(
            "HiTab, questions on hierarchical tables.",
            {"train": "hitab/train", "test": "hitab/test"},
            None,
            "C-UDA 1.0",
            size=1584,
            length=(4096, "ours: the length of AR-Lopti's table 2"),
        ),
        "hitab-gen": made_here("Hierarchical tables with questions, generated here."),
    }
    reasons: ClassVar = REASONS
    problem_keys: ClassVar = ("corrected",)

    name: Literal["hitab"] = Field("hitab", description="hitab = questions on hierarchical tables.")
    style: Literal["answer_tag", "boxed"] = Field(
        "answer_tag",
        description="How prompts are written: answer_tag (the answer in <answer> after <think>), boxed (in \\boxed{}).",
    )
    data: Data = "hitab"
    tolerance: Annotated[float, Field(ge=0.0, le=1.0)] = Field(
        1e-5, description="Numbers are equal when they differ by at most this (not a share: the difference itself)."
    )
    percent: Literal["as_written", "ratio", "either"] = Field(
        "as_written",
        description="What 69.1% is: as_written = 69.1, ratio = 0.691, either = whichever of the two is right.",
    )
    sign: Literal["exact", "either"] = Field("exact", description="exact = the sign counts; either = it does not.")
    corrected: bool = Field(
        False, description="Use the HiTab maintainers' corrected questions and answers where a row has them."
    )
    rule: RuleKey = "paper"

    @property
    def conventions(self) -> Conventions:
        """When two numbers are equal."""
        return Conventions(Fraction(str(self.tolerance)), self.percent, self.sign)

    def generate(self, split: Split, count: int, seed: int) -> list[Problem]:
        return generate(split, count, seed)

    def load(self, split: DataSplit) -> list[Problem]:
        return load_problems(self.data, split, corrected=self.corrected, folder=self.data_dir)

    def problem_from(self, fields: dict[str, Any], where: str) -> Problem:
        return problem_from(fields, where)

    def prompt(self, problem: Problem, tokenizer: Any) -> str:
        """The full prompt: table, question and the form of the answer."""
        return chat_prompt(user_text(problem.question, problem.data["table"], self.style), tokenizer)

    def judge(self, problem: Problem, response: str, *, truncated: bool = False) -> Verdict:
        """1 for the right answer, else 0. Pure; never raises; time linear in the response."""
        return judge(problem.data["answer"], response, self.rule, self.conventions, truncated)

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
