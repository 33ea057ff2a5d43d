"""GPQA: multiple-choice questions of science, answered by a boxed letter.

Rein et al., arXiv:2311.12022. The four choices of a problem are shuffled once, by a stream of its id, so that every run
sees them in one order; simple-evals shuffles them again for each repetition.
"""

from __future__ import annotations

import random
import re
from typing import Any, ClassVar, Literal

from pydantic import Field

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.streams import stream_seed
from rlvr_cli.tasks.base import Data
from rlvr_cli.tasks.math_answers import AnswerTask, extract_answer
from rlvr_cli.tasks.math_rows import find_question, make_problem
from rlvr_cli.tasks.problem import DataSet, MissingFields, Problem, Verdict
from rlvr_cli.verify.math_answer import DIFFERENT, EQUAL, UNPARSED_ANSWER, Rule

LETTERS = "ABCD"
# The columns on the hub.
_CHOICES = ("Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")
_WRAPPED = re.compile(r"\\(?:text|textbf|mathrm|mathbf|boxed)\s*\{([^{}]*)\}")
_LETTER = re.compile(r"\(?\s*([A-D])\s*\)?\s*[.:]?")
# The letter, and the text of the choice after it.
_LETTER_AND_TEXT = re.compile(r"\(?\s*([A-D])\s*[).:]\s*\S.*", re.DOTALL)


class GPQA(AnswerTask):
    """Multiple-choice questions of science."""

    sets: ClassVar = {
        "gpqa_diamond": DataSet(
            "GPQA's diamond questions, 198 of science with four choices; behind a form on the hub.",
            {"test": "gpqa/diamond"},
            "Idavidrein/gpqa",
            "CC BY 4.0; not to be published in plain text",
            size=198,
            config="gpqa_diamond",
            hub_splits={"test": "train"},
            length=(32_768, "lighteval's gpqa:diamond"),
            sampling={
                "samples": 4,
                "temperature": 0.5,
                "greedy": False,
                "source": {"samples": "inspect_ai: 4 epochs", "temperature": "inspect_ai, after simple-evals: 0.5"},
            },
        )
    }

    name: Literal["gpqa"] = Field("gpqa", description="gpqa = multiple-choice questions of science.")
    data: Data = "gpqa_diamond"

    def judge(self, problem: Problem, response: str, *, truncated: bool = False) -> Verdict:
        reading = extract_answer(response, self.form, self.rule)
        letter = None if reading.answer is None else read_letter(reading.answer, self.rule)
        equal = EQUAL if letter == problem.data["answer"] else DIFFERENT
        outcome = None if reading.answer is None else UNPARSED_ANSWER if letter is None else equal
        return self.verdict(reading, outcome, answer=letter, truncated=truncated)

    def problem_from(self, fields: dict[str, Any], where: str) -> Problem:
        """Return the problem of a row: the hub's columns, or ``question`` with its choices and ``answer``, a letter.

        Raises UserError if a field is missing or of another type.
        """
        if "Question" not in fields:
            question, letter = find_question(fields, where), fields.get("answer")
            if letter is None:
                raise MissingFields(where, ["answer"], "a problem needs question and answer (a letter)", fields)
            if letter not in (*LETTERS,):
                raise UserError(f"{where}: answer must be one of {', '.join(LETTERS)}; got {letter!r:.40}")
            return make_problem(fields, question, letter)
        texts = [fields.get(column) for column in ("Question", *_CHOICES)]
        missing = [column for column, text in zip(("Question", *_CHOICES), texts, strict=True) if text in (None, "")]
        if missing:
            raise MissingFields(where, missing, "a row of the hub has a question and four answers", fields)
        question, *choices = (str(text).strip() for text in texts)
        identity = str(fields.get("Record ID") or fields["id"])
        order = random.Random(stream_seed(0, "gpqa-choices", identity)).sample(range(4), 4)
        listed = "\n".join(f"{letter}) {choices[index]}" for letter, index in zip(LETTERS, order, strict=True))
        prompt = f"{question}\n\n{listed}\n\nAnswer with the letter of the right choice."
        subgroup = fields.get("High-level domain") or "all"
        row = {"id": identity, "solution": fields.get("Explanation"), "subgroup": subgroup}
        return make_problem(row, prompt, LETTERS[order.index(0)])


def read_letter(text: str, rule: Rule = "strict") -> str | None:
    """Return the letter of an answer; the paper rule also reads one that is followed by the choice's text."""
    plain = _WRAPPED.sub(r"\1", text).strip().strip("$*").strip()
    match = _LETTER.fullmatch(plain) or (_LETTER_AND_TEXT.fullmatch(plain) if rule == "paper" else None)
    return match[1] if match else None
