"""What the tasks whose problems have one gold answer share: problems, prompts, worked solutions."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar, Literal

from pydantic import Field

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.hashes import text_digest
from rlvr_cli.core.section import Contradiction
from rlvr_cli.tasks.base import RuleKey, Task
from rlvr_cli.tasks.data import LeftOut, RowOrigin
from rlvr_cli.tasks.math.reward import (
    GTPO_FORMAT_RANGE,
    RANGES,
    REASONS,
    ParsedAnswer,
    RewardKind,
    Style,
    answer_verdict,
)
from rlvr_cli.tasks.math.rows import from_turns
from rlvr_cli.tasks.problem import Problem, Verdict, coin
from rlvr_cli.tasks.prompts import chat_prompt, has_template, leading_bos
from rlvr_cli.verify.math_answer import Outcome

# The prompts of AR-Lopti (Yang et al. 2025, appendix C.1.2) and of GTPO (box 8.2).
BOXED = r"Let's think step by step and output the final answer within \boxed{}."

REASONING_ANSWER = (
    "You are a helpful assistant for solving math problems.\n\n"
    "Given a question, first think step by step between `<reasoning>` and `</reasoning>`.\n\n"
    "Then, give the final answer between `<answer>` and `</answer>`."
)


class AnswerTask(Task):
    """Problems with a question and one gold answer."""

    reasons: ClassVar = REASONS
    any_file: ClassVar = True

    style: Literal["auto", "boxed", "reasoning_answer"] = Field(
        "auto",
        description="How prompts are written: boxed (the answer in \\boxed{}), reasoning_answer (GTPO's <reasoning> "
        "and <answer>), auto = what the reward asks for.",
    )
    template: Literal["auto", "none"] = Field(
        "auto", description="auto = prompts go through the model's chat template where it has one; none = plain text."
    )
    reward: Literal["zero_one", "plus_minus", "gtpo", "random"] = Field(
        "zero_one",
        description="zero_one = 0 or 1 (AR-Lopti); plus_minus = -1 or +1 with a check of the format (DGPO); gtpo = "
        "10, 1 or 0 for the format and 10 for the answer (GTPO); random = 0 or 1 by a coin that knows nothing of the "
        "answer, a control from which nothing should be learned.",
    )
    rule: RuleKey = "paper"

    def contradictions(self) -> Iterator[Contradiction]:
        """The reward may pay for tags that the style does not ask for."""
        if self.template == "none":
            yield from self.options_without("template", "none")
        if self.style == "boxed" and self.reward == "gtpo":
            yield Contradiction(
                ("task.style", "task.reward"),
                "task.reward=gtpo pays for <reasoning> and <answer>, which prompts of style boxed do not ask for. Set "
                "task.style=reasoning_answer",
            )

    @property
    def form(self) -> Style:
        """The style, with `auto` settled."""
        if self.style != "auto":
            return self.style
        return "reasoning_answer" if self.reward == "gtpo" else "boxed"

    @property
    def reward_range(self) -> tuple[float, float]:
        return RANGES["zero_one" if self.reward == "random" else self.reward]

    @property
    def format_range(self) -> tuple[float, float] | None:
        """Only GTPO's reward pays for the format on its own."""
        return GTPO_FORMAT_RANGE if self.reward == "gtpo" else None

    @property
    def settings(self) -> dict[str, Any]:
        return {**super().settings, "style": self.form}

    def without_verifier(self) -> tuple[str, str, str] | None:
        return ("task.reward", "random", "the toss of a coin") if self.reward == "random" else None

    def verdict(
        self,
        problem: Problem,
        response: str,
        reading: ParsedAnswer,
        outcome: Outcome | None,
        *,
        answer: str | None,
        truncated: bool,
    ) -> Verdict:
        """The verdict on a reading of a response (``answer_verdict``), with the coin's reward for the control."""
        kind: RewardKind = "zero_one" if self.reward == "random" else self.reward
        judged = answer_verdict(kind, reading, outcome, answer=answer, truncated=truncated)
        if self.reward != "random" or not judged.scorable:
            return judged
        heads = float(coin(problem.id, response))
        return replace(judged, reward=heads, parts={"answer": heads})

    def record(self, value: Any) -> Any:
        return from_turns(value)

    def row(self, record: dict[str, Any], place: RowOrigin) -> Problem:
        """The problem of a row to train or evaluate on."""
        if isinstance(record.get("answer"), str) and not record["answer"].strip():
            raise LeftOut(place.where, "with an empty answer")
        identity = place.id if place.path is None else f"{place.source}:{place.number}"
        return self.row_problem({"id": identity, "subgroup": place.source, **record}, place.where)

    def row_problem(self, fields: dict[str, Any], where: str) -> Problem:
        """The problem of a row's fields. Raises LeftOut for one that cannot be judged."""
        return self.problem_from(fields, where)

    def in_dev(self, problem: Problem) -> bool:
        # Not the hash's first byte: that one divides unmarked files.
        return hashlib.sha256(problem.question.encode("utf-8", "surrogatepass")).digest()[1] % 8 == 1

    def prompt(self, problem: Problem, tokenizer: Any) -> str:
        """The full text fed to the model.

        With ``template`` none the chat template is left out, as AR-Lopti prompts a base model that brings one.
        """
        asked, boxed = problem.question, self.form == "boxed"
        if self.template == "none" or not has_template(tokenizer):
            return leading_bos(tokenizer) + (f"{asked} {BOXED}" if boxed else f"{REASONING_ANSWER}\n\n{asked}\n")
        system, user = {"role": "system", "content": REASONING_ANSWER}, {"role": "user", "content": asked}
        alone = {"role": "user", "content": f"{asked} {BOXED}" if boxed else f"{REASONING_ANSWER}\n\n{asked}"}
        ways = [*([] if boxed else [[system, user]]), [alone]]
        return chat_prompt(tokenizer, *ways, instead="set task.template=none", options=self.chat_template_kwargs)

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
        if self.form == "boxed":
            yield f"{text}\n\nThe answer is $\\boxed{{{_undelimited(answer)}}}$."
        else:
            yield f"<reasoning>\n{text}\n</reasoning>\n<answer>\n{answer}\n</answer>"

    def _plain(self, solution: str) -> str:
        r"""A solution without boxes of its own (``\boxed{5}`` becomes ``{5}``), so that there is one answer."""
        return solution.replace("\\boxed", "").replace("\\fbox", "").strip()


def generated_problem(task: str, family: str, structure: str, question: str, answer: str, solution: str) -> Problem:
    """A generated problem with its worked solution; ``structure`` is equal for problems that differ in wording only."""
    identity = text_digest(question)[:16]
    data = {"answer": answer, "solution": solution}
    return Problem(f"{task}-{identity}", question, data, family, f"{family}:{structure}")


def _undelimited(answer: str) -> str:
    text = answer.strip()
    whole = len(text) > 2 and text.startswith("$") and text.endswith("$") and "$" not in text[1:-1]
    return text[1:-1] if whole else text
