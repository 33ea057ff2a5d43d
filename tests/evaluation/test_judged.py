"""Completions are judged while others are still sampled, with the verdicts that they would have had in the end."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from rlvr_cli.evaluation.sampling import sample_and_judge
from rlvr_cli.models.sampling.engine import Completions, OnDone, SamplingParams
from rlvr_cli.models.sampling.local import sample
from rlvr_cli.tasks import Problem, Task, Verdict, response_text
from rlvr_cli.tasks.math import MathTask
from rlvr_cli.verify.pool import MathPool
from tests.models.tiny import make

ROWS = 24
STOPS = (3, 11)
ANSWERS = ("1+x", "x+2", "x+1+0", "x-1", "2x-x+1")


class Words:
    """The first token of a completion says which answer it gives."""

    eos_token_id = 3

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return rf"It is \boxed{{{ANSWERS[sum(ids) % len(ANSWERS)]}}}."


def problem() -> Problem:
    return MathTask().problem_from({"question": "?", "answer": "x+1"}, "here")


class Rollout:
    """One call of the sampler; ``sampled`` counts its tokens."""

    def __init__(self) -> None:
        self.sampled, self.total = 0, 0

    def __call__(self, on_done: OnDone | None) -> Completions:
        def progress(tokens: int) -> None:
            self.sampled += tokens

        out = sample(
            make("qwen3"),
            [[1, 2, 5]] * ROWS,
            SamplingParams(max_new_tokens=40, eos_token_ids=STOPS, seed=5),
            keys=range(ROWS),
            on_progress=progress,
            on_done=on_done,
        )
        self.total = self.sampled
        return out


def test_judging_begins_while_the_rest_is_sampled_and_changes_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    task, rollout, begun = MathTask(), Rollout(), []
    submit = MathPool.submit

    def noting(pool: MathPool, pair: object) -> Any:
        begun.append(rollout.sampled)
        return submit(pool, pair)

    monkeypatch.setattr(MathPool, "submit", noting)
    # One that remembers nothing of other tests.
    with MathPool(workers=2) as pool:
        monkeypatch.setattr("rlvr_cli.verify.pool.math_pool", lambda: pool)
        judged = sample_and_judge(rollout, task, [problem()] * ROWS, Words(), STOPS)
    monkeypatch.undo()
    assert len(begun) == len(ANSWERS), "each pair once, however often it comes"
    assert max(begun) < 0.9 * rollout.total
    assert judged.texts == [response_text(Words(), ids, STOPS) for ids in judged.completions.ids]
    assert judged.verdicts == task.judge_many([problem()] * ROWS, judged.texts, judged.completions.truncated)
    assert {verdict.correct for verdict in judged.verdicts} == {True, False}


def test_a_judge_of_this_process_is_asked_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    task, rollout, asked = MathTask(), Rollout(), []

    class OneByOne(MathTask):
        judge_many = Task.judge_many

        def start_judging(self) -> None:
            return None

        def judge(self, given: Problem, response: str, *, truncated: bool = False) -> Any:
            asked.append(rollout.total)
            return task.judge(given, response, truncated=truncated)

    alone: Any = OneByOne()
    judged = sample_and_judge(rollout, alone, [problem()] * ROWS, Words(), STOPS)
    assert asked == [rollout.total] * ROWS and rollout.total > 0
    assert judged.verdicts == sample_and_judge(Rollout(), task, [problem()] * ROWS, Words(), STOPS).verdicts


@pytest.mark.parametrize("pooled", [True, False])
def test_the_text_is_without_the_stop_token_that_ended_it(pooled: bool) -> None:
    """Whichever of the stop ids that is; a stop id of some models (Gemma's end of turn) is not the tokenizer's eos."""

    class Ids(Words):
        def decode(self, ids: Sequence[int], **_: Any) -> str:
            return " ".join(map(str, ids))

    class OneByOne(MathTask):
        def start_judging(self) -> None:
            return None

        def judge_many(self, problems: Any, responses: Any, *_: Any) -> Any:
            return [Verdict(0.0, {}, False, None, "wrong") for _ in responses]

    task: Any = MathTask() if pooled else OneByOne()
    judged = sample_and_judge(Rollout(), task, [problem()] * ROWS, Ids(), STOPS)
    ended = {ids[-1] for ids, cut in zip(judged.completions.ids, judged.completions.truncated, strict=True) if not cut}
    assert ended == set(STOPS), "both, else this shows nothing"
    for text, ids, cut in zip(judged.texts, judged.completions.ids, judged.completions.truncated, strict=True):
        assert text == " ".join(map(str, ids if cut else ids[:-1]))


def test_an_engine_that_breaks_off_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was begun is ended, and who stopped it is heard."""
    task, futures = MathTask(), []
    submit = MathPool.submit

    def noting(pool: MathPool, pair: object) -> Any:
        futures.append(submit(pool, pair))
        return futures[-1]

    monkeypatch.setattr(MathPool, "submit", noting)
    with MathPool(workers=1) as pool:
        monkeypatch.setattr("rlvr_cli.verify.pool.math_pool", lambda: pool)
        threads = threading.active_count()

        def broken(on_done: OnDone | None) -> Completions:
            assert on_done is not None
            rows = range(len(ANSWERS))
            on_done(rows, Completions([[20 + row] for row in rows], [[0.0]] * len(rows), [False] * len(rows)))
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            sample_and_judge(broken, task, [problem()] * ROWS, Words(), STOPS)
        assert len(futures) == len(ANSWERS)
        for future in futures[1:]:
            assert future.cancelled() or future.result(timeout=60) is not None
        assert pool.judge_many([("x+1", "x+1+0+0")])[0].equal
    assert threading.active_count() <= threads
