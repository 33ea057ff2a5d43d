"""What every engine shares: which samples are asked for, how far one is, and the record of a sample. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.hashes import digest
from rlvr_cli.evaluation.settings import EvalSettings
from rlvr_cli.evaluation.store import SampleKey, SampleStore
from rlvr_cli.store.metrics import GREEDY
from rlvr_cli.tasks.base import Task
from rlvr_cli.tasks.problem import Problem, Verdict


@dataclass(frozen=True)
class Progress:
    """How far an evaluation is: samples on disk of those planned, how many of them were there before, new tokens."""

    done: int
    planned: int
    found: int
    tokens: int


ProgressCallback = Callable[[Progress], None]


class Sampler(Protocol):
    """A model with what samples it: in this process, in vLLM, or behind a server."""

    def identity(self, task: Task, settings: EvalSettings) -> dict[str, Any]:
        """What decides the samples of an evaluation; a folder never holds those of two identities."""

    def fill(
        self,
        store: SampleStore,
        samples: dict[SampleKey, dict[str, Any]],
        task: Task,
        problems: Sequence[Problem],
        settings: EvalSettings,
        progress: ProgressCallback | None = None,
    ) -> None:
        """Add to ``store``, and to ``samples`` (what it holds), every sample that is asked for and missing.

        Raises UserError when the folder holds samples of other problems under the same ids, RunError when sampling
        fails.
        """


def passes(problems: Sequence[Problem], settings: EvalSettings) -> Iterator[tuple[float, list[SampleKey]]]:
    """The temperature and the (problem, index) of each pass: the greedy completions, then the samples."""
    if settings.greedy:
        yield 0.0, [(problem.id, GREEDY) for problem in problems]
    indices = range(settings.samples)
    yield settings.temperature, [(problem.id, index) for problem in problems for index in indices]


def deal(keys: Sequence[SampleKey], processes: int) -> list[list[SampleKey]]:
    """``keys`` dealt out to as many processes, to each about as many: problem by problem in turn.

    The samples of a problem stay together, since its prompt is then computed once, but for what would make one
    process's share larger than the others'. Problems in turn, since neighbours are often of like difficulty, and so of
    like length.
    """
    most = -(-len(keys) // processes)
    shares: list[list[SampleKey]] = [[] for _ in range(processes)]
    turn = 0
    for _, of_problem in groupby(keys, key=lambda key: key[0]):
        run = list(of_problem)
        while run:
            share = shares[turn % processes]
            room = most - len(share)
            share.extend(run[:room])
            run = run[room:]
            turn += 1
    return shares


def sample_record(
    problem: Problem,
    index: int | str,
    *,
    prompt: str,
    text: str,
    tokens: int | None,
    log_prob: float | None,
    truncated: bool,
    verdict: Verdict,
) -> dict[str, Any]:
    """One line of ``samples.jsonl``.

    Args:
        prompt: the hash of the prompt. tokens, log_prob: None where a server does not tell.
    """
    return {
        "problem": problem.id,
        "sample": index,
        "prompt": prompt,
        "judged_by": _judged_by(problem),
        "text": text,
        "tokens": tokens,
        # Sums of float32 differ in the last digits between batches of different make-up.
        "log_prob": None if log_prob is None else round(log_prob, 3),
        "truncated": truncated,
        "correct": verdict.correct,
        "answer": verdict.answer,
        "reason": verdict.reason,
        "scorable": verdict.scorable,
        # Counted as not correct, and in the mean reward as nothing; its reason says how many there are.
        "reward": verdict.reward if verdict.scorable else 0.0,
        "parts": verdict.parts if verdict.scorable else dict.fromkeys(verdict.parts, 0.0),
        **({"logged": dict(verdict.logged)} if verdict.logged else {}),
    }


def check_same_problems(
    store: SampleStore,
    samples: Mapping[SampleKey, Mapping[str, Any]],
    problems: Sequence[Problem],
    hashes: Mapping[str, str],
) -> None:
    """Raise UserError when samples in ``store`` answer other prompts, or were judged by other gold answers.

    Args:
        hashes: the hash of each problem's prompt, by its id.
    """
    judged_by = {problem.id: _judged_by(problem) for problem in problems}
    for (problem_id, _), record in samples.items():
        if problem_id not in hashes:
            continue
        if record.get("prompt") != hashes[problem_id]:
            raise UserError(
                f"{store.folder}: its samples of problem {problem_id} were drawn for a different prompt: the data or "
                "the tokenizer changed. Choose another folder with --output."
            )
        if record.get("judged_by") != judged_by[problem_id]:
            raise UserError(
                f"{store.folder}: its samples of problem {problem_id} were judged against different data (such as the "
                "gold answer): the data changed. Choose another folder with --output."
            )


def _judged_by(problem: Problem) -> str:
    """A hash of a problem as the judge gets it."""
    return digest(problem.data)[:16]
