"""Judges responses that were written elsewhere: a JSONL file of problems and responses to one of verdicts."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.files import input_file, output_file, output_problems, write_text
from rlvr_cli.tasks import Problem, Task, Verdict
from rlvr_cli.tasks.files import BadRow, parsed, raise_if, read_lines, text_problem
from rlvr_cli.tasks.problem import WRONG
from rlvr_cli.tasks.sets import task_kinds

# Responses that are judged at once, at least.
CHUNK = 256
Pair = tuple[Problem, str]


@dataclass(frozen=True)
class ScoreSummary:
    """Count the verdicts of a file. ``unreadable``: the verdicts, from 1, whose gold answer cannot be read."""

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
    """Judge every line of ``source`` and write the verdicts to ``target``, one a line, in the same order.

    A line of ``source`` is ``{"problem": {...}, "response": "..."}``: the task's own fields, and what followed the
    task's prompt. A verdict has the keys reward, parts, answer, correct and reason; reward, its parts and correct are
    null where the task could not score the response. ``target`` appears when all are judged.

    Args:
        workers: processes that judge, of a task that has a pool of them; None = as many as the pool has.
        progress: is called with how many responses are judged, and how many there are.
    Raises:
        UserError: ``source`` cannot be read or is no file, or has lines that are no responses to problems of the task
            (every one is named, before anything is judged), or ``target`` exists or cannot be written.
        RunError: a process that judges was killed, or ``source`` was changed meanwhile.
    """
    input_file(source)
    if problems := output_problems(target, source=source, overwrite=overwrite):
        raise UserError(problems)
    if workers is not None and not task.pooled:
        raise UserError(
            f"--workers {workers}: the number of processes that judge {task.name} cannot be chosen; leave it out."
        )
    task = task if workers is None else task.with_workers(workers)
    planned = _check(task, source)
    target = output_file(target)
    verdicts: list[Verdict] = []
    progress(0, planned)
    for chunk in _chunks(task, source):
        verdicts += _judge(task, chunk)
        progress(len(verdicts), planned)
    if len(verdicts) != planned:
        raise RunError(f"{source}: had {planned} responses when it was checked and {len(verdicts)} when it was judged.")
    lines = (json.dumps(verdict_as_json(verdict), allow_nan=False) + "\n" for verdict in verdicts)
    write_text(target, "".join(lines))
    return _summary(verdicts)


def _chunks(task: Task, source: Path) -> Iterator[list[Pair]]:
    """Yield the pairs of problem and response in pieces; responses to a problem that follow one another stay together.

    Raises RunError where a line was changed since it was checked.
    """
    chunk: list[Pair] = []
    for number, line in read_lines(source):
        record = _record(line)
        if isinstance(record, str):
            raise RunError(f"{source}:{number}: the file has changed since it was checked.")
        pair = task.problem_from(record["problem"], f"{source}:{number}"), record["response"]
        if len(chunk) >= CHUNK and _content(pair[0]) != _content(chunk[-1][0]):
            yield chunk
            chunk = []
        chunk.append(pair)
    yield chunk


def _content(problem: Problem) -> tuple[Any, ...]:
    return problem.question, problem.data


def _judge(task: Task, chunk: Sequence[Pair]) -> list[Verdict]:
    """Return the verdicts, in which equal wrong answers to a problem have the spelling of the first.

    Votes that count spellings then count answers.
    """
    problems, responses = [problem for problem, _ in chunk], [response for _, response in chunk]
    verdicts = task.judge_many(problems, responses, [False] * len(chunk))
    groups = [list(rows) for _, rows in groupby(range(len(chunk)), key=lambda row: _content(problems[row]))]
    wrong = [[row for row in rows if verdicts[row].reason == WRONG and verdicts[row].answer] for rows in groups]
    same = task.same_answers([[verdicts[row].answer or "" for row in rows] for rows in wrong])
    for rows, first in zip(wrong, same, strict=True):
        for row in rows:
            answer = verdicts[row].answer or ""
            verdicts[row] = replace(verdicts[row], answer=first.get(answer, answer))
    return verdicts


def check_keys(overrides: Sequence[str]) -> None:
    """Refuse keys without effect on responses that are given with their problems. Raises UserError."""
    choosing = {"data", "data_dir", "train_size", *(key for kind in task_kinds().values() for key in kind.problem_keys)}
    keys = [text.partition("=")[0].strip() for text in overrides]
    found = [key for key in keys if key.removeprefix("task.").split(".")[0] in choosing]
    if found:
        raise UserError(
            [
                f"{key}: says which problems there are; those of --input are judged, by the answers that stand there. "
                "Leave it out (`rlvr tasks generate` writes problems as such a key makes them)."
                for key in found
            ]
        )


def verdict_as_json(verdict: Verdict) -> dict[str, Any]:
    """A verdict as its line has it."""

    def number(value: float) -> float | None:
        return value if verdict.scorable and math.isfinite(value) else None

    return {
        "reward": number(verdict.reward),
        "parts": {name: number(value) for name, value in verdict.parts.items()},
        "answer": verdict.answer,
        "correct": verdict.correct if verdict.scorable else None,
        "reason": verdict.reason,
    }


def _check(task: Task, source: Path) -> int:
    """The number of responses in ``source``. Raises UserError that names every bad line."""
    problems: list[str] = []
    count = 0
    for number, line in read_lines(source):
        where = f"{source}:{number}"
        count += 1
        record = _record(line)
        if isinstance(record, str):
            problems.append(f"{where}: {record}")
            continue
        # A response may be anything that a model wrote; a problem comes from data.
        wrong = text_problem(record["problem"])
        if wrong is not None:
            problems.append(f"{where}: {wrong}")
            continue
        try:
            task.problem_from(record["problem"], where)
        except UserError as error:
            problems += error.problems
    raise_if(problems)
    if count == 0:
        raise UserError(
            f'{source}: is empty. Write one JSON object per line: {{"problem": {{...}}, "response": "..."}}.'
        )
    return count


def _record(line: bytes) -> dict[str, Any] | str:
    """The line's object, or what is wrong with it."""
    try:
        record = parsed(line, _object)
    except BadRow as error:
        return str(error)
    if not isinstance(record, dict):
        return 'not a JSON object; a line is {"problem": {...}, "response": "..."}'
    missing = [key for key in ("problem", "response") if key not in record]
    if missing:
        return f'no {" and no ".join(missing)}; a line is {{"problem": {{...}}, "response": "..."}}'
    if not isinstance(record["problem"], dict):
        return "problem must be an object with the task's own fields"
    if not isinstance(record["response"], str):
        return "response must be text"
    return record


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {twice[:40]!r} stands there twice")
    return found


def _summary(verdicts: Sequence[Verdict]) -> ScoreSummary:
    rewards = [one.reward for one in verdicts if one.scorable and math.isfinite(one.reward)]
    unreadable = [row for row, one in enumerate(verdicts, start=1) if not one.scorable and one.reason == "unparsed"]
    return ScoreSummary(
        responses=len(verdicts),
        correct=sum(one.scorable and one.correct for one in verdicts),
        unscorable=sum(not one.scorable for one in verdicts),
        reward=math.fsum(rewards) / len(rewards) if rewards else None,
        reasons=dict(Counter(one.reason for one in verdicts).most_common()),
        unreadable=unreadable,
    )
