"""Mathematics with a boxed answer: generated or loaded problems, the rewards of three papers, two rules."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from rlvr_cli.tasks.base import Judging, Problem, Verdict
from rlvr_cli.tasks.math import fields as rows
from rlvr_cli.tasks.math.answers import AnswerTask
from rlvr_cli.tasks.math.generate import draw
from rlvr_cli.tasks.math.reading import Reading, read
from rlvr_cli.tasks.math.reward import verdict
from rlvr_cli.tasks.rows import LeftOut
from rlvr_cli.verify.math_answer import MAX_LENGTH, clean, is_name, plain_number
from rlvr_cli.verify.outcome import UNPARSED_GOLD, Outcome
from rlvr_cli.verify.pool import shared_pool

_RELATION = re.compile(r"=|\\(?:eq|equiv|approx|ne|neq)(?![A-Za-z])|\u2248|\u2261")


def problem_from(fields: dict[str, Any], where: str) -> Problem:
    """A problem to judge responses to: as :func:`rows.problem_from`, but a row without an answer is a problem too.

    Such a row is left out of what is trained and evaluated on; a response to it that exists is not scorable.
    """
    try:
        return rows.problem_from(fields, where)
    except LeftOut:
        return rows.make_problem(fields, rows.question_of(fields, where), "")


class MathTask(AnswerTask):
    """Mathematics with one answer in LaTeX, compared by math-verify in the pool's processes."""

    name = "math"

    def judge(self, problem: Problem, response: str, *, truncated: bool = False) -> Verdict:
        """Judge one response; the answer is compared in the pool unless a plain comparison settles it."""
        return self.judge_many([problem], [response], [truncated])[0]

    def judge_many(
        self, problems: Sequence[Problem], responses: Sequence[str], truncated: Sequence[bool]
    ) -> list[Verdict]:
        """The verdicts on ``responses[i]`` to ``problems[i]``, in order: one call of the pool for all of them.

        Takes at most the pool's deadline for each distinct pair of answers, shared among its workers. Never raises for
        any string.
        """
        with self.judging() as judging:
            for problem, response, cut in zip(problems, responses, truncated, strict=True):
                judging.add(problem, response, truncated=cut)
            return judging.verdicts()

    def judging(self) -> Judging:
        """Answers are compared by the pool while other responses are still to come."""
        return _Judging(self)

    @staticmethod
    def problem_from(fields: dict[str, Any], where: str) -> Problem:
        """A problem of a row's fields; raises UserError naming ``where`` and the field."""
        return rows.problem_from(fields, where)

    def _read(self, problem: Problem, response: str) -> Reading:
        reading = read(response, self.style, self.config.rule)
        if self.config.rule == "strict" and reading.answer is not None and is_chain(reading.answer, _gold(problem)):
            return Reading(reading.format, None, refused=True)
        return reading

    def _draw(self, rng: random.Random) -> Problem:
        return draw(rng)


class _Judging:
    """Responses whose answers the shared pool compares."""

    def __init__(self, task: MathTask) -> None:
        self._task, self._pending = task, shared_pool().pending()
        self._rows: list[tuple[str, Reading, bool]] = []

    def add(self, problem: Problem, response: str, *, truncated: bool = False) -> None:
        gold, reading = _gold(problem), self._task._read(problem, response)
        if gold.strip() and reading.answer is not None:
            self._pending.add(gold, reading.answer)
        self._rows.append((gold, reading, truncated))

    def verdicts(self) -> list[Verdict]:
        return [
            verdict(
                self._task.config.reward,
                reading,
                self._outcome(gold, reading.answer),
                answer=canonical(reading.answer),
                truncated=truncated,
            )
            for gold, reading, truncated in self._rows
        ]

    def _outcome(self, gold: str, answer: str | None) -> Outcome | None:
        if not gold.strip():
            return UNPARSED_GOLD
        return None if answer is None else self._pending.outcome(gold, answer)

    def __enter__(self) -> _Judging:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pending.__exit__(kind, error, trace)


def is_chain(answer: str, gold: str) -> bool:
    """Whether an answer has an equals sign where the gold answer has none and is not ``name = value``.

    Equations such as ``5=4`` claim several values at once. (math-verify passes those that hold, as ``9-5=4``.)
    """
    answer = answer[:MAX_LENGTH]
    if not _RELATION.search(answer) or _RELATION.search(gold):
        return False
    *names, _ = _RELATION.split(clean(answer))
    return not all(map(is_name, names))


def canonical(answer: str | None) -> str | None:
    """The spelling that votes count: plain numbers in lowest terms, other answers cleaned and without spaces."""
    if answer is None:
        return None
    text = clean(answer[:MAX_LENGTH])
    number = plain_number(text)
    return str(number) if number is not None else "".join(text.split())


def _gold(problem: Problem) -> str:
    return str(problem.data["answer"])
