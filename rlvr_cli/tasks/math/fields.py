"""A problem from a row's own fields, in the spellings of the public data sets."""

from __future__ import annotations

import hashlib
from typing import Any

from rlvr_cli.config.errors import UserError
from rlvr_cli.tasks.base import Problem
from rlvr_cli.verify.math_answer import boxed, clean

_QUESTIONS = ("question", "problem", "prompt")
_ANSWERS = ("answer", "final_answer", "ground_truth", "expected_answer")

# DAPO-Math-17k's rows come with instructions of their own around the question.
_DAPO_HEAD = "Solve the following math problem step by step."
_DAPO_TAIL = 'Remember to put your answer on its own line after "Answer:".'


def problem_from(fields: dict[str, Any], where: str) -> Problem:
    """A problem of boxed mathematics.

    Needed are ``question`` (or ``problem``, or ``prompt``: text or chat turns) and ``answer`` (LaTeX with or without
    ``$``, a number, or a list of them; or ``final_answer``, ``ground_truth``, ``reward_model.ground_truth``, or the
    last box of ``solution``); ``id``, ``level``, ``subgroup`` and ``solution`` are used.

    Raises:
        UserError: a field is missing or of another kind; says ``where`` and which.
    """
    question = question_of(fields, where)
    answer = _answer_of(fields, where)
    if not clean(answer):
        raise UserError(f"{where}: answer is empty")
    return make_problem(fields, question, answer)


def question_of(fields: dict[str, Any], where: str) -> str:
    """The question of a row. Raises UserError where it is missing or no text."""
    name = next((name for name in _QUESTIONS if fields.get(name) is not None), None)
    if name is None:
        raise UserError(f"{where}: no field question; a problem needs question and answer")
    value = fields[name]
    if isinstance(value, list) and value and isinstance(value[-1], dict):
        value = value[-1].get("content")
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"{where}: {name} must be text that is not empty")
    return _without_instructions(value)


def make_problem(fields: dict[str, Any], question: str, answer: str) -> Problem:
    """The problem; its id, subgroup and solution come from ``fields``."""
    identity = fields.get("id")
    level = fields.get("level")
    solution = fields.get("solution")
    if isinstance(level, str):
        level = level.lower().removeprefix("level").strip()
    subgroup = f"level {level}" if level not in (None, "") else str(fields.get("subgroup") or "all")
    return Problem(
        id=str(identity) if identity is not None else hashlib.sha256(_bytes(question)).hexdigest()[:16],
        question=question,
        data={"answer": answer, "solution": solution if isinstance(solution, str) else None},
        subgroup=subgroup,
    )


def answer_text(value: Any) -> str | None:
    """A gold answer as text: whole floats as whole numbers, lists joined by commas; None for anything else."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return str(int(value)) if float(value).is_integer() else repr(value)
    if isinstance(value, list) and value:
        parts = [answer_text(part) for part in value]
        return ", ".join(part for part in parts if part is not None) if None not in parts else None
    return None


def _answer_of(fields: dict[str, Any], where: str) -> str:
    name = next((name for name in _ANSWERS if fields.get(name) is not None), None)
    value = fields.get(name) if name is not None else None
    if name is None and isinstance(fields.get("reward_model"), dict):
        name, value = "reward_model.ground_truth", fields["reward_model"].get("ground_truth")
    if value is None and isinstance(fields.get("solution"), str):
        name, value = "solution (its last box)", boxed(fields["solution"]).answer
    if value is None:
        raise UserError(f"{where}: no field answer; a problem needs question and answer")
    text = answer_text(value)
    if text is None:
        raise UserError(f"{where}: {name} must be text, a number or a list of them")
    return text


def _without_instructions(question: str) -> str:
    if not question.startswith(_DAPO_HEAD) or not question.rstrip().endswith(_DAPO_TAIL):
        return question
    return question.rstrip().removesuffix(_DAPO_TAIL).partition("\n\n")[2].strip()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
