"""Judge a JSONL file of problems and responses from other programs, for `rlvr score`."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from rlvr_cli.core.errors import UserError, collect_problems
from rlvr_cli.core.files import check_input, output_problems, resolve_output, write_text
from rlvr_cli.tasks import Problem, Task, Verdict
from rlvr_cli.tasks.files import BadRow, find_text_error, parse_json, raise_row_errors, read_lines
from rlvr_cli.tasks.problem import WRONG
from rlvr_cli.tasks.sets import task_kinds

# Responses that are judged at a time.
CHUNK = 256
_LINE = '{"problem": {...}, "response": "..."}'
Pair = tuple[Problem, str]


@dataclass(frozen=True)
class ScoreSummary:
    """Counts of the verdicts of a file. ``unreadable``: lines, from 1, whose gold answer cannot be parsed."""

    responses: int
    correct: int
    unscorable: int
    reward: float | None
    reasons: dict[str, int]
    unreadable: list[int]


def score_file(
    task: Task,
    source: Path,
    target: Path,
    *,
    workers: int | None = None,
    overwrite: bool = False,
    progress: Callable[[int, int], None] = lambda done, planned: None,
) -> ScoreSummary:
    """Judge every line of ``source``; write one verdict per line, in the same order, to ``target`` when all are judged.

    A line of ``source`` is ``{"problem": {...}, "response": "..."}``: the task's fields, and the completion of the
    task's prompt. A verdict has the keys reward, parts, answer, correct and reason; reward, its parts and correct are
    null if the task could not score the response.

    Args:
        workers: worker processes of a task with a pool; None = the pool's number.
        progress: is called with the number of judged responses and of all.
    Raises:
        UserError: ``source`` cannot be read or has invalid lines (all are reported, before anything is judged), or
            ``target`` exists or cannot be written.
        RunError: a worker process was killed.
    """
    check_input(source)
    if problems := output_problems(target, source=source, overwrite=overwrite):
        raise UserError(problems)
    if workers is not None and not task.pooled:
        raise UserError(f"--workers {workers}: has no effect with task {task.name}. Remove it.")
    task = task if workers is None else task.with_workers(workers)
    pairs = _read_pairs(task, source)
    target = resolve_output(target)
    verdicts: list[Verdict] = []
    progress(0, len(pairs))
    for start in range(0, len(pairs), CHUNK):
        chunk = pairs[start : start + CHUNK]
        responses = [response for _, response in chunk]
        verdicts += task.judge_many([problem for problem, _ in chunk], responses, [False] * len(chunk))
        progress(len(verdicts), len(pairs))
    verdicts = _unify_answers(task, pairs, verdicts)
    lines = (json.dumps(verdict_as_json(verdict), allow_nan=False) + "\n" for verdict in verdicts)
    write_text(target, "".join(lines))
    return _summary(verdicts)


def _read_pairs(task: Task, source: Path) -> list[Pair]:
    """Return the problems and responses of a file. Raises UserError with every invalid line."""
    pairs: list[Pair] = []
    problems: list[str] = []
    for number, line in read_lines(source):
        location = f"{source}:{number}"
        try:
            fields, response = _parse_record(line)
        except BadRow as error:
            problems.append(f"{location}: {error}")
            continue
        with collect_problems(problems):
            pairs.append((task.problem_from(fields, location), response))
    raise_row_errors(problems)
    if not pairs:
        raise UserError(f"{source}: is empty. Write one JSON object per line: {_LINE}.")
    return pairs


def _parse_record(line: bytes) -> tuple[dict[str, Any], str]:
    record = parse_json(line)
    if not isinstance(record, dict):
        raise BadRow(f"not a JSON object; a line is {_LINE}")
    if missing := [key for key in ("problem", "response") if key not in record]:
        raise BadRow(f"no {' and no '.join(missing)}; a line is {_LINE}")
    if not isinstance(record["problem"], dict):
        raise BadRow("problem must be an object with the task's own fields")
    if not isinstance(record["response"], str):
        raise BadRow("response must be text")
    # A response may hold any text of a model; a problem must be valid data.
    if unwritable := find_text_error(record["problem"]):
        raise BadRow(unwritable)
    return record["problem"], record["response"]


def _unify_answers(task: Task, pairs: Sequence[Pair], verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Give equal wrong answers to a problem the spelling of the first, to vote together."""
    judged = groupby(zip(pairs, verdicts, strict=True), key=lambda each: (each[0][0].question, each[0][0].data))
    groups = [[verdict for _, verdict in group] for _, group in judged]
    answers = [[each.answer for each in group if each.reason == WRONG and each.answer] for group in groups]
    return [
        replace(each, answer=first.get(each.answer or "", each.answer)) if each.reason == WRONG else each
        for group, first in zip(groups, task.group_answers(answers), strict=True)
        for each in group
    ]


def check_keys(overrides: Sequence[str]) -> None:
    """Raise UserError for keys that select problems: the input has its problems."""
    problem_keys = {key for kind in task_kinds().values() for key in kind.problem_keys} | {"data", "data_dir"}
    problem_keys.add("train_size")
    keys = [override.partition("=")[0].strip() for override in overrides]
    unused = [key for key in keys if key.removeprefix("task.").split(".")[0] in problem_keys]
    if unused:
        raise UserError(
            [
                f"{key}: has no effect, because --input contains the problems. Remove it (`rlvr tasks generate` writes "
                "problems with such keys)."
                for key in unused
            ]
        )


def verdict_as_json(verdict: Verdict) -> dict[str, Any]:
    def number(value: float) -> float | None:
        return value if verdict.scorable and math.isfinite(value) else None

    return {
        "reward": number(verdict.reward),
        "parts": {name: number(value) for name, value in verdict.parts.items()},
        "answer": verdict.answer,
        "correct": verdict.correct if verdict.scorable else None,
        "reason": verdict.reason,
    }


def _summary(verdicts: Sequence[Verdict]) -> ScoreSummary:
    scorable = [verdict for verdict in verdicts if verdict.scorable]
    rewards = [verdict.reward for verdict in scorable if math.isfinite(verdict.reward)]
    return ScoreSummary(
        responses=len(verdicts),
        correct=sum(verdict.correct for verdict in scorable),
        unscorable=len(verdicts) - len(scorable),
        reward=math.fsum(rewards) / len(rewards) if rewards else None,
        reasons=dict(Counter(verdict.reason for verdict in verdicts).most_common()),
        unreadable=[
            row for row, each in enumerate(verdicts, start=1) if not each.scorable and each.reason == "unparsed"
        ],
    )
