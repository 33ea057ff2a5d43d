"""Completions with their verdicts; what is judged by other processes is judged while the rest is still sampled."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from rlvr_cli.models.sampling.engine import Completions, OnDone
from rlvr_cli.tasks.base import Task, response_text
from rlvr_cli.tasks.problem import Problem, Verdict


@dataclass(frozen=True)
class Judged:
    """Completions, their texts and verdicts, in the order of the rows.

    Attributes:
        seconds: how long judging took after the last completion was sampled.
    """

    completions: Completions
    texts: list[str]
    verdicts: list[Verdict]
    seconds: float


def sample_and_judge(
    sample: Callable[[OnDone | None], Completions],
    task: Task,
    problems: Sequence[Problem],
    tokenizer: Any,
    stops: Collection[int],
) -> Judged:
    """Completions of the rows whose problems are ``problems``, judged.

    The verdicts are those that ``judge_many`` gives, whenever a completion ended. A judge of this process would only
    take turns with the sampler: it judges when all are there.

    Args:
        sample: an engine's call, but for its ``on_done``.
        stops: the ids that end a completion, which its text is without.
    """
    began = task.judging()
    if began is None:
        completions = sample(None)
        sampled = time.perf_counter()
        texts = [response_text(tokenizer, ids, stops) for ids in completions.ids]
        verdicts = task.judge_many(problems, texts, completions.truncated, completions.ids)
        return Judged(completions, texts, verdicts, time.perf_counter() - sampled)
    by_row: dict[int, str] = {}
    with began as judging:

        def begin(rows: Sequence[int], done: Completions) -> None:
            for row, ids, truncated in zip(rows, done.ids, done.truncated, strict=True):
                by_row[row] = response_text(tokenizer, ids, stops)
                judging.add(problems[row], by_row[row], truncated=truncated)

        completions = sample(begin)
        sampled = time.perf_counter()
        rest = [row for row in range(len(problems)) if row not in by_row]
        begin(rest, completions.of(rest))
        verdict_of = dict(zip(by_row, judging.verdicts(), strict=True))
    rows = range(len(problems))
    return Judged(
        completions, [by_row[row] for row in rows], [verdict_of[row] for row in rows], time.perf_counter() - sampled
    )
