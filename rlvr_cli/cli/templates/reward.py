"""My reward: functions with TRL's signature, called with every column of the rows as a keyword.

Each returns a number per completion, or None where it does not apply. The rows (my_reward.jsonl) use words that the
lab's model reads; yours may be anything.
"""

from __future__ import annotations

from typing import Any


def accuracy(completions: list[str], answer: list[str], **columns: Any) -> list[float]:
    """Return 1 if the last answer is the row's, else 0."""
    return [float(_last_answer(text) == right) for text, right in zip(completions, answer, strict=True)]


async def brief(completions: list[str], **columns: Any) -> list[float | None]:
    """Return 1 for at most 40 words, else 0; None without an answer. The function may await others."""
    return [float(len(text.split()) <= 40) if _last_answer(text) else None for text in completions]


def _last_answer(text: str) -> str:
    rest = text.rpartition("<answer>")[2]
    return rest.partition("</answer>")[0].strip()
