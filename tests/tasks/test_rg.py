"""The task `rg`: problems that no two splits share, and verifiers that may do what they like.

A package of reasoning-gym's form stands in its place, with its verifiers' faults; the package itself is tried where it
is installed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlvr_cli.cli.app import run as rlvr
from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import UserError
from rlvr_cli.tasks.problem import Verdict
from rlvr_cli.tasks.rg import ReasoningGym, task, worker

ROOT = Path(__file__).parents[2]
FAKE = Path(__file__).parent / "fake_gym"
INSTALLED = importlib.util.find_spec("reasoning_gym") is not None


def forget() -> None:
    for known in (task.installed, task._wrong, task._makers, task._pool):
        known.cache_clear()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(FAKE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(FAKE), os.environ.get("PYTHONPATH")])))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    forget()
    yield
    for pool in (task._makers(), task._pool(2.0)):
        pool.close()
    forget()


def made(name: str, **keys: object) -> ReasoningGym:
    return ReasoningGym(datasets={name: 1.0}, **keys)  # type: ignore[arg-type]


def judged(of: ReasoningGym, *answers: str) -> list[Verdict]:
    (problem,) = of.problems("train", 1, 0)
    return of.judge_many(
        [problem] * len(answers), [f"<answer>{one}</answer>" for one in answers], [False] * len(answers)
    )


def test_no_problem_is_in_two_splits_whatever_the_seed(fake: None) -> None:
    sums = made("chain_sum", options={"chain_sum": {"most": 900}})
    drawn = {
        (split, seed): {problem.question for problem in sums.problems(split, 60, seed)}
        for split in ("train", "dev", "test")
        for seed in (42, 43)
    }
    assert all(len(found) == 60 for found in drawn.values())
    for (split, seed), found in drawn.items():
        for (other, _), theirs in drawn.items():
            assert split == other or not found & theirs
        # Of 225 to 450 possible ones some are the same by chance; neighbouring seeds of the package share nearly all.
        assert len(found & drawn[split, 85 - seed]) < 30
    assert made("chain_sum").problems("train", 5, 42) == made("chain_sum").problems("train", 5, 42)


def test_problems_do_not_depend_on_a_process(fake: None) -> None:
    before = made("word_ladder").problems("train", 4, 0)
    task._makers().close()
    forget()
    assert made("word_ladder").problems("train", 4, 0) == before


def test_too_few_problems_are_said(fake: None) -> None:
    with pytest.raises(UserError, match=r"few gave no more than \d train problems, and 40 are asked for"):
        made("few").problems("train", 40, 0)


def test_several_data_sets_by_weight_with_options(fake: None) -> None:
    both = ReasoningGym(datasets={"chain_sum": 1.0, "countdown": 3.0}, options={"countdown": {"most": 50}})
    found = both.problems("test", 8, 0)
    assert sorted(problem.subgroup for problem in found) == ["chain_sum"] * 2 + ["countdown"] * 6
    assert all(problem.data["metadata"]["target"] < 50 for problem in found if problem.subgroup == "countdown")
    rows = [both.problem_from(json.loads(json.dumps(problem.fields)), "row") for problem in found]
    assert rows == found


def test_scores(fake: None) -> None:
    sums = made("chain_sum")
    (problem,) = sums.problems("train", 1, 0)
    (solution,) = sums.solutions(problem) or ()
    right = problem.data["answer"]
    texts = [solution, f"<answer>1</answer> <answer> {right} </answer>", f"<answer>it is {right}</answer>", right, ""]
    found = sums.judge_many([problem] * 5, texts, [False] * 5)
    assert [one.reason for one in found] == ["correct", "correct", "partial", "no_answer", "no_answer"]
    assert [one.reward for one in found] == [1.0, 1.0, 0.5, 0.0, 0.0]
    assert made("chain_sum", reward="zero_one").judge(problem, texts[2]).reward == 0.0
    with pytest.raises(UserError, match="rubiks_cube has no answer to problem"):
        unanswered = made("rubiks_cube")
        unanswered.solutions(unanswered.problems("train", 1, 0)[0])


def test_a_verifier_does_no_harm(fake: None, tmp_path: Path) -> None:
    precious, new = tmp_path / "precious", tmp_path / "new"
    precious.write_text("precious")
    answers = ["hang", "leave", "raise", "nan", "huge", "fill", f"write {precious}", f"append {new}", "fork"]
    found = judged(made("evil", deadline=0.3), *answers, f"start {new}", "secret", "\ud800")
    assert [(one.reason, one.scorable) for one in found] == [
        ("timeout", False),
        ("died", False),
        ("wrong", True),
        ("wrong", True),
        ("correct", True),
        ("died", False),
        *[("wrong", True)] * 6,
    ]
    assert max(one.reward for one in found) == 1.0
    assert precious.read_text() == "precious" and not new.exists()


def test_what_a_model_wrote_is_not_evaluated(fake: None, tmp_path: Path) -> None:
    path = tmp_path / "written"
    matrix = made("binary_matrix")
    (problem,) = matrix.problems("train", 1, 0)
    number = problem.data["answer"].strip("[]")
    answers = [f"[{number}]", f"[ {number} ]", f"[{number} + 0 * len(open({str(path)!r}, 'w').write('x'))]", "[" * 500]
    texts = [f"<answer>{one}</answer>" for one in answers]
    found = matrix.judge_many([problem] * 4, texts, [False] * 4)
    assert [one.reward for one in found] == [1.0, 0.1, 0.0, 0.0]
    calls = [f"open({str(path)!r}, 'w')", "().__class__", "lambda: 1", "9**9**9**9"]
    found = judged(made("countdown", deadline=0.5), "1 + 1", *calls)
    assert [one.reward for one in found] == [0.01, 0.0, 0.0, 0.0, 0.0]
    assert found[-1].reason == "timeout" and not path.exists()


@pytest.mark.parametrize("text", ["1 + 2*x", "(83 - 9)**2/4", "x^2 + exp(2*x)/3 - C", "asinh(x) + sqrt(2)*pi", "1.5e3"])
def test_formulas(text: str) -> None:
    assert worker.formula(text) == text


@pytest.mark.parametrize(
    "text", ["eval(1)", "x.a", "1 .real", "'a'", "[1]", "__import__(1)", "x\u00b2", "_", "a;b", "f{1}"]
)
def test_what_is_no_formula(text: str) -> None:
    with pytest.raises(ValueError):
        worker.formula(text)


def test_a_name_with_weights_stands_for_keys() -> None:
    assert task.keys_of("rg:chain_sum, countdown=2") == {"name": "rg", "datasets": {"chain_sum": 1.0, "countdown": 2.0}}
    config = load_config(task="rg:countdown", overrides=["task.reward=zero_one"])
    assert isinstance(config.task, ReasoningGym) and config.task.datasets == {"countdown": 1.0}
    assert load_config(overrides=["task=rg:countdown"]).task == load_config(task="rg:countdown").task


def test_a_run_goes_on_and_is_evaluated(fake: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place, small = f"run.dir={tmp_path}", ["rollout.prompts=2", "rollout.group_size=2", "rollout.max_new_tokens=4"]
    keys = ["task.train_size=8", "train.on_no_signal=off", "train.rollouts=1", "run.name=one", place, *small]
    assert rlvr(["train", "--model", "lab", "--task", "rg:chain_sum,countdown=2", *keys]) == 0
    assert "chain_sum 33%, countdown 67%" in capsys.readouterr().out
    one = str(tmp_path / "one")
    assert rlvr(["train", "--resume", one, "train.rollouts=2"]) == 0
    capsys.readouterr()
    assert rlvr(["eval", one, "-n", "1", "--problems", "3", "--max-new-tokens", "4", "--format=json"]) == 0
    groups = json.loads(capsys.readouterr().out)["metrics"]
    assert "no_answer" in json.dumps(groups)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["rg:"], "name a data set of reasoning-gym, as rg:countdown"),
        (["rg"], "names no data set"),
        (["rg:countdown,chain_sum=much"], "the weight of chain_sum is no number: 'much'"),
        (["rg:countdwn"], "countdwn: reasoning-gym has no such data set. Did you mean `countdown`?"),
        (["rg:gsm_symbolic"], "gsm_symbolic is refused: its verifier reads no minus sign"),
        (["rg:few", "task.options={few: {mots: 3}}"], "task.options.few.mots: no such option. Did you mean `most`?"),
        (["rg:few", "task.options={few: {most: 0}}"], "task.options.few: most must be positive (says reasoning-gym)"),
        (["rg:few", "task.options={few: {most: x}}"], "not supported between instances"),
        (["rg:few", "task.options={few: {seed: 3}}"], "seed follow from run.seed"),
        (["rg:few", "task.options={fwe: {most: 3}}"], "fwe is no data set of task.datasets. Did you mean `few`?"),
    ],
)
def test_bad_input(fake: None, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert rlvr(["tasks", "show", *arguments]) == 2
    err = capsys.readouterr().err
    assert said in err and "Traceback" not in err


def test_a_hash_seed_of_ones_own_is_refused(fake: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    with pytest.raises(UserError, match="PYTHONHASHSEED=7 is set"):
        made("chain_sum").problems("train", 1, 0)


@pytest.mark.skipif(INSTALLED, reason="reasoning-gym is installed")
def test_without_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    forget()
    assert rlvr(["tasks", "show", "rg:countdown"]) == 2
    assert "pip install 'rlvr[rg]'" in capsys.readouterr().err


def test_the_commands_of_the_page(fake: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / "tasks" / "environments.md").read_text(encoding="utf-8")
    commands = re.findall(r"^    rlvr (.*?)(?:\s+#.*)?$", text, re.MULTILINE)
    assert len(commands) > 4
    monkeypatch.chdir(tmp_path)
    for command in commands:
        words = [one[0] or one[1] for one in re.findall(r'"([^"]*)"|(\S+)', command)]
        if words[0] == "train":
            continue
        assert rlvr(words) == 0, command


@pytest.mark.skipif(not INSTALLED, reason="needs reasoning-gym")
@pytest.mark.parametrize("name", ["chain_sum", "countdown", "knights_knaves", "word_ladder", "arc_agi", "n_queens"])
def test_answers_of_the_package_are_right(name: str) -> None:
    forget()
    of = made(name)
    problems = of.problems("train", 4, 0)
    right = [f"<answer>{problem.data['answer']}</answer>" for problem in problems]
    assert {one.reason for one in of.judge_many(problems, right, [False] * 4)} == {"correct"}
    assert not {p.question for p in problems} & {p.question for p in of.problems("test", 4, 0)}
