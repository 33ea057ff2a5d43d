"""Prompts, answers, rewards and worked solutions of tasks with one gold answer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import Field

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.hashes import text_digest
from rlvr_cli.core.section import Contradiction
from rlvr_cli.tasks.answers import boxed_answer, last_tagged
from rlvr_cli.tasks.base import RuleKey, Task
from rlvr_cli.tasks.data import SkippedRow
from rlvr_cli.tasks.files import RowOrigin
from rlvr_cli.tasks.math_rows import from_turns
from rlvr_cli.tasks.problem import Problem, Verdict
from rlvr_cli.tasks.prompts import chat_prompt, has_template, leading_bos
from rlvr_cli.verify.math_answer import Outcome, Rule

Style = Literal["boxed", "reasoning_answer"]
Format = Literal["full", "partial", "none"]

TAGS = ("<reasoning>", "</reasoning>", "<answer>", "</answer>")


@dataclass(frozen=True)
class ParsedAnswer:
    """The answer of a response, or None.

    ``format``: ``full`` = a box, or all four tags; ``partial`` = some of the tags.
    """

    format: Format
    answer: str | None


def extract_answer(response: str, style: Style, rule: Rule) -> ParsedAnswer:
    r"""Extract the answer of a response. Pure, linear in its length, no exception for any string.

    Style boxed: the last closed ``\boxed{}`` after the last ``</think>``. Style reasoning_answer: the last ``<answer>``
    block, or the box in it, if all four tags occur (as in GTPO's code); the strict rule requires each tag once, in
    order, and nothing after them.
    """
    if style == "boxed":
        answer = boxed_answer(response)
        return ParsedAnswer("none" if answer is None else "full", answer)
    present = [tag in response for tag in TAGS]
    if not all(present) or (rule == "strict" and not _tags_in_order(response)):
        return ParsedAnswer("partial" if any(present) else "none", None)
    block = (last_tagged(response) or "").rpartition("<answer>")[2].strip()
    return ParsedAnswer("full", boxed_answer(block) or block or None)


def _tags_in_order(response: str) -> bool:
    positions = [response.find(tag) for tag in TAGS]
    once = all(response.count(tag) == 1 for tag in TAGS)
    return once and positions == sorted(positions) and not response[positions[-1] + len(TAGS[-1]) :].strip()


RewardKind = Literal["zero_one", "plus_minus", "gtpo"]

REASONS = ("correct", "wrong", "no_answer", "bad_format", "too_long", "timeout", "unparsed")
RANGES: dict[RewardKind, tuple[float, float]] = {"zero_one": (0.0, 1.0), "plus_minus": (-1.0, 1.0), "gtpo": (0.0, 20.0)}

_GTPO_FORMAT: dict[Format, float] = {"full": 10.0, "partial": 1.0, "none": 0.0}
GTPO_FORMAT_RANGE = (min(_GTPO_FORMAT.values()), max(_GTPO_FORMAT.values()))


def _reward_parts(kind: RewardKind, format: Format, correct: bool) -> dict[str, float]:
    """Return the components of the reward; ``correct`` implies the full format."""
    if kind == "gtpo":
        return {"format": _GTPO_FORMAT[format], "answer": 10.0 if correct else 0.0}
    wrong, right = RANGES[kind]
    return {"answer": right if correct else wrong}


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
    reads_unmarked_files: ClassVar = True
    bypasses_template: ClassVar = {"template": ("none",)}

    style: Literal["auto", "boxed", "reasoning_answer"] = Field(
        "auto",
        description="Prompt format: boxed (the answer in \\boxed{}), reasoning_answer (GTPO's <reasoning> and "
        "<answer>), auto = by the reward.",
    )
    template: Literal["auto", "none"] = Field(
        "auto", description="auto = apply the model's chat template, if it has one; none = plain text."
    )
    reward: Literal["zero_one", "plus_minus", "gtpo"] = Field(
        "zero_one",
        description="zero_one = 0 or 1 (AR-Lopti); plus_minus = -1 or +1 with a check of the format (DGPO); gtpo = "
        "10, 1 or 0 for the format and 10 for the answer (GTPO).",
    )
    rule: RuleKey = "paper"

    def contradictions(self) -> Iterator[Contradiction]:
        yield from super().contradictions()
        if self.style == "boxed" and self.reward == "gtpo":
            yield Contradiction(
                ("task.style", "task.reward"),
                "task.reward=gtpo rewards <reasoning> and <answer>, which task.style=boxed does not request. Set "
                "task.style=reasoning_answer",
            )

    @property
    def form(self) -> Style:
        """The style, with `auto` resolved."""
        if self.style != "auto":
            return self.style
        return "reasoning_answer" if self.reward == "gtpo" else "boxed"

    @property
    def reward_range(self) -> tuple[float, float]:
        return RANGES[self.reward]

    @property
    def format_range(self) -> tuple[float, float] | None:
        return GTPO_FORMAT_RANGE if self.reward == "gtpo" else None

    @property
    def settings(self) -> dict[str, Any]:
        return {**super().settings, "style": self.form}

    def verdict(
        self, reading: ParsedAnswer, outcome: Outcome | None, *, answer: str | None, truncated: bool
    ) -> Verdict:
        """Return the verdict on an extracted answer; ``outcome``: of its comparison, None without an answer.

        ``too_long``: the response reached the token limit before an answer. After a ``timeout`` (or death) of the
        comparison and for an unparsable gold answer the response is not scorable and the reward is NaN. ``unparsed``
        with a reward: the answer is not mathematics, or too long, so it is wrong. AR-Lopti's reward (zero_one) ignores
        the format.
        """
        correct = outcome is not None and outcome.equal is True
        components = _reward_parts(self.reward, reading.format, correct)
        if outcome is None:
            wrong_format = reading.format == "partial" or (self.reward != "zero_one" and reading.format == "none")
            reason = "too_long" if truncated else "bad_format" if wrong_format else "no_answer"
        elif correct:
            reason = "correct"
        elif outcome.reason in ("timeout", "died"):
            reason = "timeout"
        else:
            reason = "wrong" if outcome.reason == "different" else "unparsed"
        if outcome is not None and outcome.equal is None:
            return Verdict(math.nan, dict.fromkeys(components, 0.0), False, answer, reason, scorable=False)
        return Verdict(sum(components.values()), components, correct, answer, reason)

    def convert_record(self, value: Any) -> Any:
        return from_turns(value)

    def parse_row(self, record: dict[str, Any], origin: RowOrigin) -> Problem:
        if isinstance(record.get("answer"), str) and not record["answer"].strip():
            raise SkippedRow(origin.where, "with an empty answer")
        identity = origin.id if origin.path is None else f"{origin.source}:{origin.number}"
        return self.row_problem({"id": identity, "subgroup": origin.source, **record}, origin.where)

    def row_problem(self, fields: dict[str, Any], where: str) -> Problem:
        """Return the problem of a row's fields. Raises SkippedRow for a row that cannot be judged."""
        return self.problem_from(fields, where)

    def belongs_to_dev(self, problem: Problem) -> bool:
        # Not the hash's first byte, which assigns splits in unmarked files.
        return int(text_digest(problem.question)[2:4], 16) % 8 == 1

    def prompt(self, problem: Problem, tokenizer: Any) -> str:
        """Return the prompt. ``template: none`` bypasses the chat template, as AR-Lopti does for base models."""
        question, boxed = problem.question, self.form == "boxed"
        if self.template == "none" or not has_template(tokenizer):
            return leading_bos(tokenizer) + (f"{question} {BOXED}" if boxed else f"{REASONING_ANSWER}\n\n{question}\n")
        system, user = {"role": "system", "content": REASONING_ANSWER}, {"role": "user", "content": question}
        alone = {"role": "user", "content": f"{question} {BOXED}" if boxed else f"{REASONING_ANSWER}\n\n{question}"}
        conversations = [*([] if boxed else [[system, user]]), [alone]]
        return chat_prompt(
            tokenizer, *conversations, alternative="set task.template=none", options=self.chat_template_kwargs
        )

    def solutions(self, problem: Problem) -> Iterator[str]:
        """Yield the worked solution in the style of the prompts. Raises UserError without ``solution``."""
        solution, answer = problem.data["solution"], problem.data["answer"]
        if not solution:
            raise UserError(
                f"task.data: problem {problem.id} has no `solution`. Add it to its row, or set method.data to worked "
                "solutions."
            )
        text = self._strip_boxes(solution)
        if self.form == "boxed":
            yield f"{text}\n\nThe answer is $\\boxed{{{_strip_delimiters(answer)}}}$."
        else:
            yield f"<reasoning>\n{text}\n</reasoning>\n<answer>\n{answer}\n</answer>"

    def _strip_boxes(self, solution: str) -> str:
        r"""Unbox a solution (``\boxed{5}`` becomes ``{5}``), so that the response has a single answer."""
        return solution.replace("\\boxed", "").replace("\\fbox", "").strip()


def _strip_delimiters(answer: str) -> str:
    text = answer.strip()
    delimited = len(text) > 2 and text.startswith("$") and text.endswith("$") and "$" not in text[1:-1]
    return text[1:-1] if delimited else text
