"""The task `rg`: problems that no two splits share, and verifiers that may do what they like."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest

from rlvr_cli.cli.app import run as rlvr
from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.files import read_jsonl
from rlvr_cli.tasks import reasoning_gym as task
from rlvr_cli.tasks.problem import Problem, Verdict
from rlvr_cli.tasks.reasoning_gym import REFUSED, ReasoningGym
from rlvr_cli.workers.pool import Pool, Target

needs_it = pytest.mark.skipif(importlib.util.find_spec("reasoning_gym") is None, reason="needs reasoning-gym")
# Some 200 questions.
SMALL = {"chain_sum": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}}
# Answers that harm or pay where a verifier evaluates what it reads, or takes anything for right.
HOSTILE = ("open('written', 'w')", "().__class__", "9**9", "nan", "inf", "\ud800", "[" * 200, "x" * 10_000, "True", " ")


@pytest.fixture(autouse=True)
def one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of the package takes seconds to start."""
    monkeypatch.setattr(task, "Pool", lambda *arguments, **named: Pool(*arguments, **{**named, "workers": 1}))


@pytest.fixture
def evil(monkeypatch: pytest.MonkeyPatch) -> Iterator[ReasoningGym]:
    """A data set `evil` whose verifier does what its answers say."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setattr(task, "_TARGET", Target("evil_gym:ready", purpose="does evil"))
    for known in ("_pool", "_find_errors"):
        monkeypatch.setattr(task, known, lru_cache(getattr(task, known).__wrapped__))
    yield made("evil", deadline=0.3)
    for deadline in (None, 0.3):
        task._pool(deadline).close()


def made(name: str, **keys: object) -> ReasoningGym:
    return ReasoningGym(datasets={name: 1.0}, **keys)  # type: ignore[arg-type]


def scored(of: ReasoningGym, problem: Problem, *answers: str) -> list[Verdict]:
    texts = [f"<answer>{one}</answer>" for one in answers]
    return of.judge_many([problem] * len(answers), texts, [False] * len(answers))


@needs_it
def test_problems_are_of_their_seed_alone_and_in_one_split() -> None:
    sums = made("chain_sum", options={"chain_sum": {"max_terms": 2, "min_digits": 2, "max_digits": 2}})
    drawn = {
        (split, seed): {problem.question for problem in sums.problems(split, 40, seed)}
        for split in ("train", "dev", "test")
        for seed in (42, 43)
    }
    assert all(len(found) == 40 for found in drawn.values())
    for (split, seed), found in drawn.items():
        for (other, _), theirs in drawn.items():
            assert split == other or not found & theirs
        # Of some thousand possible ones a few are the same by chance; neighbouring seeds of the package share nearly
        # all.
        assert len(found & drawn[split, 85 - seed]) < 15
    with pytest.raises(UserError, match=r"chain_sum yielded only \d+ train problems, and 400 were requested"):
        made("chain_sum", options=SMALL).problems("train", 400, 0)


@needs_it
def test_several_data_sets_by_weight_with_options() -> None:
    both = ReasoningGym(datasets={"chain_sum": 1.0, "countdown": 3.0}, options={"countdown": {"max_target": 150}})
    found = both.problems("test", 8, 0)
    assert sorted(problem.subgroup for problem in found) == ["chain_sum"] * 2 + ["countdown"] * 6
    assert all(problem.data["metadata"]["target"] <= 150 for problem in found if problem.subgroup == "countdown")
    rows = [both.problem_from(json.loads(json.dumps(problem.fields)), "row") for problem in found]
    assert rows == found


@needs_it
def test_scores() -> None:
    sums = made("chain_sum")
    (problem,) = sums.problems("train", 1, 0)
    (solution,) = sums.solutions(problem) or ()
    right = problem.data["answer"]
    texts = [solution, f"<answer>1</answer> <answer> {right} </answer>", f"<answer>it is {right}</answer>", right, ""]
    found = sums.judge_many([problem] * 5, texts, [False] * 5)
    assert [one.reason for one in found] == ["correct", "correct", "partial", "no_answer", "no_answer"]
    assert [one.reward for one in found] == [1.0, 1.0, pytest.approx(5 / 11), 0.0, 0.0]
    assert made("chain_sum", reward="zero_one").judge(problem, texts[2]).reward == 0.0
    with pytest.raises(UserError, match="rubiks_cube has no answer to problem"):
        unanswered = made("rubiks_cube")
        unanswered.solutions(unanswered.problems("train", 1, 0)[0])


@needs_it
def test_a_verifier_ends_at_its_limits(evil: ReasoningGym, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    (problem,) = evil.problems("train", 1, 0)
    found = scored(evil, problem, "hang", "raise", "nan", "huge", "\ud800")
    assert [(one.reason, one.scorable) for one in found] == [
        *(("timeout", False), ("wrong", True), ("wrong", True), ("correct", True), ("wrong", True))
    ]
    assert max(one.reward for one in found) == 1.0
    with pytest.raises(RunError, match="File too large"):
        scored(evil, problem, f"write {precious}")
    assert precious.read_text() == "precious"


@needs_it
def test_what_a_model_wrote_is_not_evaluated(tmp_path: Path) -> None:
    path = tmp_path / "written"
    matrix = made("binary_matrix", options={"binary_matrix": {"min_n": 2, "max_n": 2}})
    (problem,) = matrix.problems("train", 1, 0)
    rows = [[int(one) for one in row.split()] for row in problem.data["answer"].split("\n")]
    call = f"open({str(path)!r}, 'w')"
    found = scored(matrix, problem, problem.data["answer"], str(rows), f"[{call} and {rows[0]}, {rows[1]}]", "[" * 500)
    assert [one.reward for one in found] == [1.0, 0.1, 0.0, 0.0]
    numbers = made("countdown")
    (problem,) = numbers.problems("train", 1, 0)
    found = scored(numbers, problem, problem.data["answer"], "1 + 1", call, "().__class__", "lambda: 1")
    assert [one.reward for one in found] == [1.0, 0.05, 0.01, 0.01, 0.01]
    assert not path.exists()


def test_a_name_with_weights_stands_for_keys() -> None:
    assert task.parse_keys("rg:chain_sum, countdown=2") == {
        "name": "rg",
        "datasets": {"chain_sum": 1.0, "countdown": 2.0},
    }
    config = load_config(task="rg:countdown", overrides=["task.reward=zero_one"])
    assert isinstance(config.task, ReasoningGym) and config.task.datasets == {"countdown": 1.0}
    assert load_config(overrides=["task=rg:countdown"]).task == load_config(task="rg:countdown").task


@needs_it
def test_a_run_draws_from_several_data_sets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place, small = f"run.dir={tmp_path}", ["rollout.prompts=2", "rollout.group_size=2", "rollout.max_new_tokens=4"]
    keys = ["task.train_size=8", "train.on_no_signal=off", "train.rollouts=1", "run.name=one", place, *small]
    assert rlvr(["train", "--model", "lab", "--task", "rg:chain_sum,countdown=2", *keys]) == 0
    assert "chain_sum 33%, countdown 67%" in capsys.readouterr().out
    (rows,) = (tmp_path / "one" / "rollouts").glob("*.jsonl")
    assert {row["reason"] for row in read_jsonl(rows)} == {"no_answer"}


@needs_it
def test_bad_input_is_refused_with_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, hint in (
        (["rg:"], "must name data sets of reasoning-gym, as rg:countdown"),
        (["rg"], "names no data set"),
        (["rg:countdown,chain_sum=much"], "the weight of chain_sum must be a number; got 'much'"),
        (["rg:countdwn"], "task.datasets.countdwn: unknown data set of reasoning-gym. Did you mean `countdown`?"),
        (["rg:gsm_symbolic"], "gsm_symbolic is refused: its verifier ignores minus signs"),
        (
            ["rg:gcd", "task.options={gcd: {min_numbes: 3}}"],
            "unexpected keyword argument 'min_numbes'. Keys: ",
        ),
        (
            ["rg:gcd", "task.options={gcd: {min_numbers: 0}}"],
            "task.options.gcd: min_numbers must be at least 2",
        ),
        (["rg:gcd", "task.options={gcd: {seed: 3}}"], "multiple values for keyword argument 'seed'"),
        (["rg:gcd", "task.options={gdc: {max_value: 3}}"], "task.options.gdc: unknown data set. Did you mean `gcd`?"),
    ):
        assert rlvr(["tasks", "show", *arguments]) == 2
        assert hint in (err := capsys.readouterr().err) and "Traceback" not in err, arguments


@needs_it
@pytest.mark.slow
def test_every_data_set_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own answers are right, and none of the hostile ones is, nor is a file written."""
    from reasoning_gym.factory import DATASETS

    monkeypatch.chdir(tmp_path)
    names = sorted(set(DATASETS) - set(REFUSED))
    assert len(names) == 103
    for name in names:
        of = made(name)
        problems = of.problems("train", 3, 0)
        own = [f"<answer>{problem.data['answer']}</answer>" for problem in problems]
        if all(problem.data["answer"] is not None for problem in problems):
            assert {one.reason for one in of.judge_many(problems, own, [False] * 3)} == {"correct"}, name
        hostile = {text: one.reason for text, one in zip(HOSTILE, scored(of, problems[0], *HOSTILE), strict=True)}
        paid = [text for text, reason in hostile.items() if reason == "correct" and text != problems[0].data["answer"]]
        assert paid == [], name
    assert not list(tmp_path.iterdir())


def test_another_hash_seed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "installed_version", lambda: "0.1.25")
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    with pytest.raises(UserError, match="PYTHONHASHSEED=7 is set"):
        made("chain_sum").problems("train", 1, 0)
