"""My reward: functions with TRL's signature, called with every column of the rows as a keyword.

Each returns one number a completion, or None where it does not apply. The rows (my_reward.jsonl) are written in words
that the lab's model reads; yours may be anything.
"""

from __future__ import annotations

from typing import Any


def accuracy(completions: list[str], answer: list[str], **columns: Any) -> list[float]:
    """1 where the last answer is the row's."""
    return [float(_last_answer(text) == right) for text, right in zip(completions, answer, strict=True)]


async def brief(completions: list[str], **columns: Any) -> list[float | None]:
    """1 for at most 40 words; of a completion without an answer, nothing is said. Others may be awaited here."""
    return [float(len(text.split()) <= 40) if _last_answer(text) else None for text in completions]


def _last_answer(text: str) -> str:
    rest = text.rpartition("<answer>")[2]
    return rest.partition("</answer>")[0].strip()
