"""Read problems from rows with the field names of the public data sets."""

from __future__ import annotations

import math
import re
from typing import Any

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.hashes import text_digest
from rlvr_cli.tasks.answers import boxed_answer
from rlvr_cli.tasks.data import SkippedRow
from rlvr_cli.tasks.problem import MissingFields, Problem
from rlvr_cli.verify.math_answer import clean

# Control characters that JSON decodes from \beta, \frac, \times and \right with a single backslash.
_DAMAGED = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]|\t(?:imes|ext|heta|an|frac)|\r(?:ight|ho)")

_QUESTIONS = ("question", "problem", "prompt")
_ANSWERS = ("answer", "gt_answer", "final_answer", "ground_truth", "expected_answer")
_INNER_ANSWERS = (("reward_model", "ground_truth"), ("extra_info", "answer"))

# Instructions around the question in rows for verl, as DAPO-Math-17k's.
_DAPO_HEAD = "Solve the following math problem step by step."
_VERL_TAIL = "Let's think step by step and output the final answer within \\boxed{}."
_DAPO_TAIL = 'Remember to put your answer on its own line after "Answer:".'


def problem_from(fields: dict[str, Any], where: str) -> Problem:
    """Return the problem of a row with a boxed answer.

    Required: ``question`` (or ``problem``, ``extra_info.question``, or ``prompt``: text or chat turns) and ``answer``
    (LaTeX with or without ``$``, a number, or a list of them; or ``gt_answer``, ``final_answer``, ``ground_truth``,
    ``expected_answer``, ``reward_model.ground_truth``, ``extra_info.answer``, or the last box of ``solution``).
    Optional: ``id``, ``level``, ``subgroup`` and ``solution``.

    Raises:
        UserError: a field is missing or of another type.
        SkippedRow: the answer is empty, or missing with a ``solution`` without a box (a proof).
    """
    question = find_question(fields, where)
    answer = _find_answer(fields, where)
    if not answer.strip():
        raise SkippedRow(where, "with an empty answer")
    if not clean(answer):
        raise UserError(f"{where}: answer is empty")
    return make_problem(fields, question, answer)


def find_question(fields: dict[str, Any], where: str) -> str:
    name = next((name for name in _QUESTIONS if fields.get(name) is not None), None)
    if name in (None, "prompt") and _nested(fields, "extra_info", "question") is not None:
        name, fields = "question", fields["extra_info"]
    if name is None:
        answers = [*map(fields.get, (*_ANSWERS, "solution")), *(_nested(fields, *names) for names in _INNER_ANSWERS)]
        missing = ["question"] if any(answer is not None for answer in answers) else ["question", "answer"]
        raise MissingFields(where, missing, "a problem needs question and answer", fields)
    value = fields[name]
    if isinstance(value, list) and value and isinstance(value[-1], dict):
        value = value[-1].get("content")
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"{where}: {name} must be non-empty text")
    return _strip_instructions(value)


def make_problem(fields: dict[str, Any], question: str, answer: str) -> Problem:
    identity = text_digest(question)[:16] if fields.get("id") is None else fields["id"]
    level = fields.get("level")
    solution = fields.get("solution")
    if isinstance(level, str):
        level = level.lower().removeprefix("level").strip()
    subgroup = f"level {level}" if level not in (None, "") else str(fields.get("subgroup") or "all")
    return Problem(
        id=str(identity),
        question=question,
        data={"answer": answer, "solution": solution if isinstance(solution, str) else None},
        subgroup=subgroup,
    )


def convert_answer(value: Any) -> str | None:
    """Convert a gold answer to text: whole floats to integers, lists joined by commas.

    None for other values, as nested lists and non-finite numbers.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return None if not math.isfinite(value) else str(int(value)) if value.is_integer() else repr(value)
    if isinstance(value, list) and value:
        texts = [text for item in value if not isinstance(item, list) and (text := convert_answer(item)) is not None]
        return ", ".join(texts) if len(texts) == len(value) else None
    return None


def _find_answer(fields: dict[str, Any], where: str) -> str:
    name = next((name for name in _ANSWERS if fields.get(name) is not None), None)
    value = fields[name] if name is not None else None
    for outer, inner in _INNER_ANSWERS:
        if value is None:
            name, value = f"{outer}.{inner}", _nested(fields, outer, inner)
    if value is None and isinstance(fields.get("solution"), str):
        name, value = "solution (its last box)", boxed_answer(fields["solution"])
        if value is None:
            raise SkippedRow(where, "whose solution has no boxed answer")
    if value is None:
        raise MissingFields(where, ["answer"], "a problem needs question and answer", fields)
    text = convert_answer(value)
    if text is None:
        raise UserError(f"{where}: {name} must be text, a number or a list of them")
    if (damage := _DAMAGED.search(text)) is not None:
        raise UserError(
            f"{where}: {name} has the control character U+{ord(damage[0][0]):04X}, so a formula is damaged. Double the "
            r"backslashes of LaTeX in JSON (\\frac)."
        )
    return boxed_answer(text) or text


def from_turns(record: Any) -> Any:
    """Convert a row of Open-Reasoner-Zero (a list of user's turn and answer) to fields; return others unchanged."""
    if not isinstance(record, list) or len(record) != 2 or not all(isinstance(turn, dict) for turn in record):
        return record
    question, reply = record
    return {"question": question.get("value"), "answer": _nested(reply, "ground_truth", "value")}


def _nested(fields: dict[str, Any], outer: str, inner: str) -> Any:
    value = fields.get(outer)
    return value.get(inner) if isinstance(value, dict) else None


def _strip_instructions(question: str) -> str:
    if question.rstrip().endswith(_VERL_TAIL):
        return question.rstrip().removesuffix(_VERL_TAIL).strip()
    if not question.startswith(_DAPO_HEAD) or not question.rstrip().endswith(_DAPO_TAIL):
        return question
    return question.rstrip().removesuffix(_DAPO_TAIL).partition("\n\n")[2].strip()
