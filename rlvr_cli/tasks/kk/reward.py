"""The Logic-RL reward for Knights & Knaves, as the public code computes it.

Source: Logic-RL (Xie et al. 2025) and AR-Lopti (Yang et al. 2025, appendix C.1.1 and table 4), `reward_score/kk.py`.
The paper's table calls -2 "completely wrong"; in the code, and here, -2 means that no answer could be read, and every
readable wrong answer scores -1.5. Times are linear in the text: the public code's search for ``<answer>`` blocks is
quadratic on a text of unclosed tags, this one is not, and both find the same block.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rlvr_cli.tasks.answers import last_tagged
from rlvr_cli.tasks.kk.compact import roles_text
from rlvr_cli.tasks.problem import Verdict

FORMAT_RIGHT, FORMAT_WRONG = 1.0, -1.0
ANSWER_RIGHT, ANSWER_WRONG, ANSWER_UNREADABLE = 2.0, -1.5, -2.0

REASONS = ("correct", "wrong", "no_answer", "bad_format", "too_long")

# What stands before a response: the judge reads a response as if the chat prompt of Logic-RL preceded it.
RESPONSE_HEADER = "<|im_start|>assistant\n<think>"

_TAGS = ("<think>", "</think>", "<answer>", "</answer>")


@dataclass(frozen=True)
class ParsedRoles:
    """What was read in a response: whether its format holds, and each person's role (True = knight) or None."""

    format_ok: bool
    roles: tuple[bool, ...] | None


def read_logic_rl(response: str, names: Sequence[str]) -> ParsedRoles:
    """Read what a model wrote after the Logic-RL prompt (which ends with ``<think>``)."""
    text, _ = _response_part(RESPONSE_HEADER + response)
    format_ok = _format_ok(text)
    answer = last_tagged(text) if format_ok else None
    return ParsedRoles(format_ok, _roles_in(answer, names) if answer else None)


def reward_parts(reading: ParsedRoles, solution: Sequence[bool]) -> dict[str, float]:
    """The reward's two parts: format +1 / -1; answer +2 right, -1.5 wrong, -2 unreadable (or the format is wrong)."""
    if not reading.format_ok or reading.roles is None:
        answer = ANSWER_UNREADABLE
    else:
        answer = ANSWER_RIGHT if reading.roles == tuple(solution) else ANSWER_WRONG
    return {"format": FORMAT_RIGHT if reading.format_ok else FORMAT_WRONG, "answer": answer}


def roles_verdict(reading: ParsedRoles, solution: Sequence[bool], *, truncated: bool) -> Verdict:
    """The verdict on a reading. ``too_long``: the token limit cut the response off before an answer could be read."""
    parts = reward_parts(reading, solution)
    readable = reading.format_ok and reading.roles is not None
    correct = parts["answer"] == ANSWER_RIGHT
    if readable:
        reason = "correct" if correct else "wrong"
    elif truncated:
        reason = "too_long"
    else:
        reason = "no_answer" if reading.format_ok else "bad_format"
    answer = roles_text(reading.roles) if readable and reading.roles is not None else None
    return Verdict(sum(parts.values()), parts, correct, answer, reason)


def _response_part(text: str) -> tuple[str, bool]:
    for header in ("Assistant:", "<|im_start|>assistant"):
        _, found, rest = text.partition(header)
        if found:
            return rest, True
    return text, False


def _format_ok(text: str) -> bool:
    positions = [text.find(tag) for tag in _TAGS]
    return positions == sorted(positions) and all(text.count(tag) == 1 for tag in _TAGS)


def _roles_in(answer: str, names: Sequence[str]) -> tuple[bool, ...] | None:
    lowered = answer.lower()
    if lowered.count("knight") + lowered.count("knave") != len(names):
        return None
    roles = []
    for name in names:
        match = re.search(rf"\b{re.escape(name)}\b\s+is\s+a\s+\b(knight|knave)\b", answer, re.IGNORECASE)
        if match is None:
            return None
        roles.append(match[1].lower() == "knight")
    return tuple(roles)
