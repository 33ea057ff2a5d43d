"""GSM8K: grade-school word problems, whose answers are compared as exact numbers."""

from __future__ import annotations

import re
from typing import Any, ClassVar, Literal

from pydantic import Field

from rlvr_cli.core.errors import UserError
from rlvr_cli.tasks.base import Data
from rlvr_cli.tasks.gsm8k.number import read_number
from rlvr_cli.tasks.hub import Hub
from rlvr_cli.tasks.math.answers import AnswerTask
from rlvr_cli.tasks.math.reward import extract_answer
from rlvr_cli.tasks.math.rows import answer_text, make_problem, question_of
from rlvr_cli.tasks.problem import DataSet, MissingFields, Problem, Verdict
from rlvr_cli.verify.math_answer import DIFFERENT, EQUAL, UNPARSED_ANSWER

_MARK = "####"
_CALCULATOR = re.compile(r"<<[^<>]*>>")


class GSM8K(AnswerTask):
    """Grade-school word problems."""

    sets: ClassVar = {
        "gsm8k": DataSet(
            "GSM8K, grade-school word problems.",
            {"train": "gsm8k/train", "test": "gsm8k/test"},
            "openai/gsm8k",
            "MIT",
            size=1319,
        ),
    }

    hubs: ClassVar = {"openai/gsm8k": Hub("train", "test", configs=("main",))}

    name: Literal["gsm8k"] = Field("gsm8k", description="gsm8k = grade-school word problems.")
    data: Data = "gsm8k"

    @property
    def prompt_tokens(self) -> int:
        return 512

    def judge(self, problem: Problem, response: str, *, truncated: bool = False) -> Verdict:
        """Judge one response. Pure; raises for no string; time linear in the response."""
        reading = extract_answer(response, self.form, self.rule)
        if reading.answer is None:
            return self.verdict(problem, response, reading, None, answer=None, truncated=truncated)
        value = read_number(reading.answer, self.rule)
        gold = read_number(str(problem.data["answer"]))
        outcome = UNPARSED_ANSWER if value is None else EQUAL if value == gold else DIFFERENT
        answer = None if value is None else str(value)
        return self.verdict(problem, response, reading, outcome, answer=answer, truncated=truncated)

    def problem_from(self, fields: dict[str, Any], where: str) -> Problem:
        return problem_from(fields, where)

    def _plain(self, solution: str) -> str:
        return _CALCULATOR.sub("", super()._plain(solution).partition(_MARK)[0]).strip()


def problem_from(fields: dict[str, Any], where: str) -> Problem:
    """A word problem from ``question`` and ``answer``.

    ``answer`` is a number, text that spells one, or a solution that ends in ``#### number`` (as the hub's rows).

    Raises:
        UserError: a field is missing or of another kind, or the answer is no number; says ``where`` and which.
    """
    question = question_of(fields, where)
    text = answer_text(fields.get("answer"))
    if text is None:
        needed = "a problem needs question and answer (a number, or text ending in ####)"
        raise MissingFields(where, ["answer"], needed, fields)
    solution, mark, gold = text.rpartition(_MARK)
    gold = gold.strip()
    if read_number(gold) is None:
        raise UserError(f"{where}: answer {gold[:40]!r} is not a number")
    return make_problem({"solution": solution.strip(), **fields} if mark else fields, question, gold)
