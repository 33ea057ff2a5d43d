"""Judges responses that were written elsewhere: a JSONL file of problems and responses to one of verdicts."""

from __future__ import annotations

import hashlib
import json
import math
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, tee
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any

from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.files import input_file, output_file, output_problems, sole_writer, write_text
from rlvr_cli.tasks import Problem, Task, Verdict
from rlvr_cli.tasks.files import BadRow, parsed, raise_if, read_lines, text_problem
from rlvr_cli.tasks.problem import WRONG
from rlvr_cli.tasks.sets import task_kinds

# Pairs that are judged, and written, at once.
CHUNK = 256
Pair = tuple[Problem, str]


@dataclass(frozen=True)
class ScoreSummary:
    """Count the verdicts of a file.

    ``found``: judged before this call. ``unreadable``: the verdicts, from 1, whose gold answer cannot be read.
    """

    responses: int
    found: int
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
    null where the task could not score the response. Next to ``target`` lies what it was made from
    (``<target>.meta.json``): the same call again continues where an earlier one stopped.

    Args:
        workers: processes that judge. None: one; for mathematics, whose responses are read here and compared in
            processes, as many as its pool has.
        progress: told how many responses are judged, and how many there are.
    Raises:
        UserError: ``source`` cannot be read or is no file, or has lines that are no responses to problems of the task
            (every one is named, before anything is judged), or ``target`` cannot be written, is being written by
            another process, or holds something else than a part of these verdicts.
        RunError: a process that judges was killed, or a file was changed meanwhile.
    """
    input_file(source)
    if problems := output_problems(target, source=source):
        raise UserError(problems)
    planned = _check(task, source)
    target = output_file(target)
    with sole_writer(target.parent, "Wait for it, or choose another --output.", target.name):
        made_from = _made_from(task, source, planned)
        done = found = 0 if overwrite else _found(target, made_from, source)
        if found == 0:
            target.unlink(missing_ok=True)
        write_text(_meta(target), json.dumps(made_from, indent=2, sort_keys=True) + "\n")
        progress(found, planned)
        votes, rows = _Votes(task), islice(_pairs(task, source), planned)
        for (_, line), (problem, _) in zip(read_lines(target) if found else (), rows, strict=False):
            verdict = json.loads(line)
            votes.begin(problem, verdict["answer"] if verdict["reason"] == WRONG else None)
        pairs, again = tee(rows)
        with target.open("a", encoding="utf-8") as stream:
            for judged in _judged(task, pairs, workers) if found < planned else ():
                verdicts = votes.together([problem for problem, _ in islice(again, len(judged))], judged)
                stream.writelines(json.dumps(verdict_as_json(verdict), allow_nan=False) + "\n" for verdict in verdicts)
                stream.flush()
                done += len(verdicts)
                progress(done, planned)
        if done != planned:
            raise RunError(f"{source}: had {planned} responses when it was checked and {done} when it was judged.")
        return _summary(target, planned, found)


class _Votes:
    """One spelling for equal wrong answers to one problem, whose responses follow one another: that of the first.

    Votes that count spellings then count answers.
    """

    def __init__(self, task: Task) -> None:
        self._task, self._spellings = task, list[str]()
        self._problem: Problem | None = None

    def begin(self, problem: Problem, answer: str | None) -> None:
        """Take in a response that was judged earlier; ``answer``: a wrong one, in the spelling that it has."""
        if self._problem is None or not _alike(self._problem, problem):
            self._problem, self._spellings = problem, []
        if answer is not None:
            self._spellings.append(answer)

    def together(self, problems: Sequence[Problem], verdicts: Sequence[Verdict]) -> list[Verdict]:
        """The verdicts on the responses that follow."""
        groups: list[tuple[list[str], list[int]]] = []
        for place, (problem, verdict) in enumerate(zip(problems, verdicts, strict=True)):
            if not groups or not _alike(problems[place - 1], problem):
                continues = not groups and self._problem is not None and _alike(self._problem, problem)
                groups.append((list(self._spellings) if continues else [], []))
            if verdict.reason == WRONG and verdict.answer is not None:
                groups[-1][0].append(verdict.answer)
                groups[-1][1].append(place)
        found = list(verdicts)
        same = self._task.same_answers([spellings for spellings, _ in groups])
        for (_, places), first in zip(groups, same, strict=True):
            for place in places:
                answer = found[place].answer
                assert answer is not None
                found[place] = replace(found[place], answer=first.get(answer, answer))
        for problem, verdict in zip(problems, found, strict=True):
            self.begin(problem, verdict.answer if verdict.reason == WRONG else None)
        return found


def _alike(one: Problem, other: Problem) -> bool:
    return one.question == other.question and one.data == other.data


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


def _pairs(task: Task, source: Path) -> Iterator[Pair]:
    for number, line in read_lines(source):
        record = _record(line)
        if isinstance(record, str):
            raise RunError(f"{source}:{number}: the file has changed since it was checked.")
        yield task.problem_from(record["problem"], f"{source}:{number}"), record["response"]


def _judged(task: Task, pairs: Iterable[Pair], workers: int | None) -> Iterator[Sequence[Verdict]]:
    """Verdicts in order, a chunk at a time."""
    chunks = iter(partial(_chunk, iter(pairs)), [])
    if task.pooled and workers is not None:
        task = task.with_workers(workers)
    if workers in (None, 1) or task.pooled:
        yield from (_judge(task, chunk) for chunk in chunks)
        return
    assert workers is not None
    # Spawned: a fork would copy whatever threads and locks the caller has.
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_start, initargs=(task,))
    with pool:
        try:
            # A window at a time: `map` would read the whole file ahead.
            while window := list(islice(chunks, 4 * workers)):
                with _no_interrupts():
                    verdicts = pool.map(_judge_there, window)
                yield from verdicts
        except BrokenProcessPool as error:
            raise RunError("a process that judges was killed; the same command continues where it stopped.") from error


def _chunk(pairs: Iterator[Pair]) -> list[Pair]:
    return list(islice(pairs, CHUNK))


def _judge(task: Task, chunk: Sequence[Pair]) -> list[Verdict]:
    problems, responses = [problem for problem, _ in chunk], [response for _, response in chunk]
    return task.judge_many(problems, responses, [False] * len(chunk))


@contextmanager
def _no_interrupts() -> Iterator[None]:
    """Hold Ctrl-C back. Processes that start meanwhile never get it: their parent does, and ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_TASK: list[Task] = []


def _start(task: Task) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _TASK[:] = [task]


def _end_with_parent() -> None:
    """End this process when the one that started it is gone: nobody else would, were that killed."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _judge_there(chunk: Sequence[Pair]) -> list[Verdict]:
    return _judge(_TASK[0], chunk)


def _meta(target: Path) -> Path:
    return target.with_name(f"{target.name}.meta.json")


def _made_from(task: Task, source: Path, responses: int) -> dict[str, Any]:
    size = source.stat().st_size
    return {"input_sha256": _digest(source, size), "input_bytes": size, "responses": responses, "task": task.settings}


def _digest(path: Path, size: int) -> str:
    """Of the first ``size`` bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while size > 0 and (piece := stream.read(min(size, 1 << 20))):
            digest.update(piece)
            size -= len(piece)
    return digest.hexdigest()


def _grew(before: dict[str, Any], made_from: dict[str, Any], source: Path) -> bool:
    """Whether ``source`` is what it was, with more lines behind."""
    size = before.get("input_bytes")
    if source.name.endswith(".gz") or type(size) is not int or not 0 < size < made_from["input_bytes"]:
        return False
    with source.open("rb") as stream:
        stream.seek(size - 1)
        whole_lines = b"\n" in stream.read(2)
    same = before.get("task") == made_from["task"] and set(before) == set(made_from)
    return whole_lines and same and before["input_sha256"] == _digest(source, size)


def _found(target: Path, made_from: dict[str, Any], source: Path) -> int:
    """Whole lines that ``target`` has; what a crash left of another is cut off.

    Raises UserError when they are not verdicts on this input, or on its first lines, by this task.
    """
    if not target.exists():
        return 0
    other = f"{target}: holds something else than verdicts on this input by these settings"
    advice = "Choose another --output, or give --overwrite."
    try:
        before = json.loads(_meta(target).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{other}, or its {_meta(target).name} is gone. {advice}") from error
    # As it reads back: tuples are lists there.
    now = json.loads(json.dumps(made_from))
    if before != now and not (isinstance(before, dict) and _grew(before, now, source)):
        raise UserError(f"{other}. {advice}")
    whole = bytes_whole = 0
    with target.open("rb") as stream:
        for line in stream:
            if not line.endswith(b"\n"):
                break
            whole, bytes_whole = whole + 1, bytes_whole + len(line)
            try:
                keys = set(json.loads(line))
            except (ValueError, TypeError):
                keys = set()
            if keys != {"reward", "parts", "answer", "correct", "reason"}:
                raise UserError(f"{target}:{whole}: is no verdict. {advice}")
    if whole > made_from["responses"]:
        raise UserError(f"{target}: has {whole} verdicts on {made_from['responses']} responses. {advice}")
    with target.open("r+b") as stream:
        stream.truncate(bytes_whole)
    return whole


def _summary(target: Path, planned: int, found: int) -> ScoreSummary:
    reasons: Counter[str] = Counter()
    correct = unscorable = 0
    rewards: list[float] = []
    unreadable: list[int] = []
    for number, line in read_lines(target):
        verdict = json.loads(line)
        reasons[verdict["reason"]] += 1
        correct += verdict["correct"] is True
        unscorable += verdict["correct"] is None
        if verdict["correct"] is None and verdict["reason"] == "unparsed":
            unreadable.append(number)
        if verdict["reward"] is not None:
            rewards.append(verdict["reward"])
    count = sum(reasons.values())
    if count != planned:
        raise RunError(f"{target}: has {count} verdicts on {planned} responses; another process wrote in it.")
    mean = math.fsum(rewards) / len(rewards) if rewards else None
    return ScoreSummary(planned, found, correct, unscorable, mean, dict(reasons.most_common()), unreadable)
