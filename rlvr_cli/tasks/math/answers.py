"""What the tasks whose problems have one gold answer share: problems, prompts, worked solutions."""

from __future__ import annotations

import hashlib
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Literal

from rlvr_cli.config.data_sets import is_generated
from rlvr_cli.config.task_kinds import GSM8KTaskConfig, MathTaskConfig
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.streams import stream_seed
from rlvr_cli.tasks.base import Problem, Split
from rlvr_cli.tasks.math.load import load_problems
from rlvr_cli.tasks.math.prompt import Style, math_prompt
from rlvr_cli.tasks.math.reward import GTPO_FORMAT_RANGE, RANGES, REASONS
from rlvr_cli.tasks.rows import NO_ALL, split_of

# Draws in a row that bring nothing new before the generator counts as used up.
_PATIENCE = 100_000


class AnswerTask(ABC):
    """Problems with a question and one gold answer.

    Args:
        config: the ``task`` section.
        style: ``boxed``, ``reasoning_answer`` or ``auto`` (reasoning_answer for the gtpo reward, else boxed).
    Raises:
        UserError: the reward pays for tags which the style does not ask for, or there is no such style.
    """

    name = ""
    reasons = REASONS

    def __init__(self, config: MathTaskConfig | GSM8KTaskConfig, style: str = "auto") -> None:
        if style == "auto":
            style = "reasoning_answer" if config.reward == "gtpo" else "boxed"
        if style not in ("boxed", "reasoning_answer"):
            raise UserError(f"task.style={style!r}: {self.name} has the styles boxed and reasoning_answer.")
        if style == "boxed" and config.reward == "gtpo":
            raise UserError(
                "task.reward=gtpo pays for <reasoning> and <answer>, which prompts of style boxed do not ask for. Set "
                "task.style=reasoning_answer."
            )
        self.config = config
        self.style: Style = "boxed" if style == "boxed" else "reasoning_answer"

    @property
    def reward_range(self) -> tuple[float, float]:
        """The lowest and the highest reward."""
        return RANGES[self.config.reward]

    @property
    def format_range(self) -> tuple[float, float] | None:
        """The lowest and the highest reward of the format, which only GTPO's pays for on its own."""
        return GTPO_FORMAT_RANGE if self.config.reward == "gtpo" else None

    @property
    def settings(self) -> dict[str, Any]:
        """The JSON values that decide problems, prompts and verdicts."""
        config = self.config
        return {
            "name": self.name,
            "style": self.style,
            "template": config.template,
            "reward": config.reward,
            "rule": config.rule,
            "data": config.data,
        }

    def problems(self, split: Split | Literal["all"], count: int, seed: int) -> list[Problem]:
        """``count`` problems of ``split``. Raises UserError for loaded data that is missing, malformed or empty."""
        if not is_generated(self.config.data):
            problems = load_problems(self.config.data, split, self.problem_from, self.config.data_dir)
            random.Random(stream_seed(seed, self.name, "rows", split)).shuffle(problems)
            return problems[:count]
        if split == "all":
            raise UserError(NO_ALL)
        return self._generated(split, count, seed)

    def prompt(self, problem: Problem, tokenizer: Any) -> str:
        """The full text fed to the model."""
        return math_prompt(problem.question, self.style, self.config.template, tokenizer)

    def solutions(self, problem: Problem) -> Iterator[str]:
        """The problem's worked solution in the style of the prompts.

        Raises UserError for a loaded problem without ``solution``.
        """
        solution, answer = problem.data["solution"], problem.data["answer"]
        if not solution:
            raise UserError(
                f"task.data: problem {problem.id} has no `solution`, so it cannot be imitated. Add it to its row, or "
                "give worked solutions of your own (method.data)."
            )
        text = self._plain(solution)
        if self.style == "boxed":
            yield f"{text}\n\nThe answer is $\\boxed{{{_undelimited(answer)}}}$."
        else:
            yield f"<reasoning>\n{text}\n</reasoning>\n<answer>\n{answer}\n</answer>"

    @staticmethod
    @abstractmethod
    def problem_from(fields: dict[str, Any], where: str) -> Problem:
        """A problem of a row's fields; raises UserError naming ``where`` and the field."""

    @abstractmethod
    def _draw(self, rng: random.Random) -> Problem:
        """A generated problem; the name of its structure decides its split."""

    def _generated(self, split: Split, count: int, seed: int) -> list[Problem]:
        rng = random.Random(stream_seed(seed, self.name, split))
        problems: dict[str, Problem] = {}
        idle = 0
        while len(problems) < count:
            problem = self._draw(rng)
            if problem.id in problems or problem_split(problem) != split:
                idle += 1
                if idle > _PATIENCE:
                    raise UserError(f"task.train_size: the generator has only {len(problems)} {split} problems.")
                continue
            idle = 0
            problems[problem.id] = problem
        return list(problems.values())

    def _plain(self, solution: str) -> str:
        r"""A solution without boxes of its own (``\boxed{5}`` becomes ``{5}``), so that there is one answer."""
        return solution.replace("\\boxed", "").replace("\\fbox", "").strip()


def problem_split(problem: Problem) -> Split:
    """The split of a generated problem, by its structure alone: the same on every machine and for every seed."""
    assert problem.structure is not None
    return split_of(problem.structure)


def generated_problem(task: str, family: str, structure: str, question: str, answer: str, solution: str) -> Problem:
    """A generated problem with its worked solution; ``structure`` is equal for problems that differ in wording only."""
    identity = hashlib.sha256(question.encode()).hexdigest()[:16]
    data = {"answer": answer, "solution": solution}
    return Problem(f"{task}-{identity}", question, data, family, f"{family}:{structure}")


def _undelimited(answer: str) -> str:
    text = answer.strip()
    whole = len(text) > 2 and text.startswith("$") and text.endswith("$") and "$" not in text[1:-1]
    return text[1:-1] if whole else text
