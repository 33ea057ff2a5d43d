"""What supervised fine-tuning imitates: files of prompts and completions, and the task's own solutions."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from rlvr_cli.core.errors import UserError
from rlvr_cli.models.load import load_model
from rlvr_cli.tasks import Problem, Verdict
from rlvr_cli.tasks.kk import KnightsAndKnaves
from rlvr_cli.training.demonstrations import load_demonstrations
from rlvr_cli.training.prepare import prepare_run
from tests.matrix import metrics, resume
from tests.training.sft_runs import configure, start


def write(path: Path, *records: Any) -> Path:
    path.write_text("".join((record if isinstance(record, str) else json.dumps(record)) + "\n" for record in records))
    return path


GOOD = {"prompt": "A: BN B: AK ? <think>", "completion": "KN </think> <answer> KN </answer>", "source": "a book"}


def test_completions_of_a_file_are_imitated_word_for_word(tmp_path: Path) -> None:
    ended = {**GOOD, "completion": GOOD["completion"] + " </s>"}
    data = write(tmp_path / "solved.jsonl", GOOD, "", ended)
    prepared = prepare_run(configure(tmp_path, "run", method__data=str(data), validation__every=0))
    tokenizer = prepared.tokenizer
    first, second = prepared.method.demonstrations
    assert tokenizer.decode(first.prompt) == GOOD["prompt"]
    assert tokenizer.decode(first.completion) == ended["completion"]
    assert first == second, "the end is added once"
    run = start(tmp_path, "run", method__data=str(data), validation__every=0).run
    assert metrics(run)[-1]["loss"] < metrics(run)[0]["loss"]
    assert metrics(run)[0]["update_tokens"] == 4 * len(first.completion)
    write(data, ended, {**GOOD, "completion": "KK </think> <answer> KK </answer>"})
    run.update_manifest(status="interrupted")
    with pytest.raises(UserError, match="A run keeps its method"):
        resume(run)


def test_every_bad_row_is_named(tmp_path: Path) -> None:
    data = write(
        tmp_path / "bad.jsonl",
        GOOD,
        "{not json",
        [1],
        {"prompt": "A: BN"},
        {**GOOD, "completion": 3},
        {**GOOD, "prompt": "  "},
        {**GOOD, "completion": "KN is the answer"},
        {**GOOD, "completion": "KN " * 150},
        '{"prompt": "A: BN", "completion": "\\ud800"}',
        '{"prompt": "A: BN", "completion": "KN", "weight": NaN}',
    )
    with pytest.raises(UserError) as caught:
        prepare_run(configure(tmp_path, "run", method__data=str(data)))
    expected = [
        "2: not a JSON object (JSONDecodeError",
        "3: not a JSON object; a row is {prompt, completion}",
        "4: no field completion; a row needs prompt and completion",
        "5: completion must be text",
        "6: prompt must be text",
        "7: completion has text without tokens in the model's tokenizer: 'is'",
        "8: the completion has 151 tokens, more than rollout.max_new_tokens=144",
        "9: completion: \\ud800 is half of a surrogate pair",
        "10: not a JSON object (ValueError: NaN is not JSON)",
    ]
    assert len(caught.value.problems) == len(expected)
    for problem, words in zip(caught.value.problems, expected, strict=True):
        assert problem.startswith(f"{data}:{words}")


def test_solutions_that_do_not_fit_are_passed_over_for_shorter_ones(tmp_path: Path) -> None:
    config = configure(tmp_path, "run", method__demonstrations=200, task__people="{4: 1.0}")
    model, tokenizer = load_model("lab", dtype="float32")
    task = config.task.for_model("compact")
    for limit in (144, 40):
        shorter = config.model_copy(update={"rollout": config.rollout.model_copy(update={"max_new_tokens": limit})})
        made = load_demonstrations(shorter, task, model, tokenizer)
        assert len(made.demonstrations) == 200
        assert max(len(row.completion) for row in made.demonstrations) <= limit
    tiny = config.model_copy(update={"rollout": config.rollout.model_copy(update={"max_new_tokens": 9})})
    with pytest.raises(UserError, match=r"worked solutions of problem kk-4ppl.*rollout\.max_new_tokens=9"):
        load_demonstrations(tiny, task, model, tokenizer)


class Refuses(KnightsAndKnaves):
    """Judges many at once, and finds every response to a problem of ``refused`` wrong."""

    refused: ClassVar[frozenset[str]] = frozenset()

    def judge_many(
        self, problems: Sequence[Problem], responses: Sequence[str], truncated: Sequence[bool], token_ids: Any = None
    ) -> list[Verdict]:
        verdicts = super().judge_many(problems, responses, truncated, token_ids)
        return [
            dataclasses.replace(verdict, correct=False, reason="wrong") if problem.id in self.refused else verdict
            for problem, verdict in zip(problems, verdicts, strict=True)
        ]


def test_every_worked_solution_of_loaded_problems_that_is_judged_wrong_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = KnightsAndKnaves().for_model("compact").problems("train", 40, 0)
    data = write(tmp_path / "mine.train.jsonl", *({"id": p.id, "question": p.question, **p.data} for p in made))
    config = configure(tmp_path, "run", method__demonstrations=20, task__data=str(data))
    task = Refuses(**{**dict(config.task), "style": "compact"})
    refused = frozenset(problem.id for problem in task.problems("train", 20, config.run.seed)[3:5])
    monkeypatch.setattr(Refuses, "refused", refused)
    with pytest.raises(UserError) as caught:
        load_demonstrations(config, task, *load_model("lab", dtype="float32"))
    assert len(caught.value.problems) == 2
    for name, problem in zip(sorted(refused), sorted(caught.value.problems), strict=True):
        assert problem.startswith(f"task: the worked solution of problem {name} is judged wrong")
