"""A mixture of tasks: exact shares, each problem with the prompt, judge and reward range of its own task."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from pathlib import Path

import pytest

from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import UserError
from rlvr_cli.models.load import load_model
from rlvr_cli.tasks import Task
from rlvr_cli.tasks.countdown import Countdown
from rlvr_cli.tasks.kk import KnightsAndKnaves
from rlvr_cli.tasks.mixture import Mixture
from rlvr_cli.tasks.shares import spread
from rlvr_cli.training.curriculum import problem_order
from tests.commands import run_here
from tests.tasks.test_own import SMALL
from tests.tasks.tokenizers import Base
from tests.training.test_rollouts import trained

# Two sizes of knights and knaves, so that the lab's model reads both.
SIZES = ("task.tasks={kk: 0.75, kk-gen: 0.25}", "task.options={kk: {people: {2: 1}}, kk-gen: {people: {3: 1}}}")


def mix(*overrides: str) -> Mixture:
    task = load_config(task="mix", overrides=[f"task.{text}" for text in overrides]).task
    assert isinstance(task, Mixture)
    return task


def test_shares_are_exact_and_problems_are_those_of_their_tasks() -> None:
    task = mix("tasks={countdown: 0.7, kk: 0.3}", "options={kk: {people: {3: 1}}}")
    problems = task.problems("train", 100, 5)
    assert Counter(problem.subgroup for problem in problems) == {"countdown": 70, "kk": 30}
    assert len({problem.id for problem in problems}) == 100
    alone: dict[str, Task] = {"countdown": Countdown(), "kk": KnightsAndKnaves(people={3: 1.0})}
    tokenizer = Base()
    for name, count in (("countdown", 70), ("kk", 30)):
        expected = alone[name].problems("train", count, 5)
        mixed = [problem for problem in problems if problem.subgroup == name]
        assert [problem.id for problem in mixed] == [f"{name}/{problem.id}" for problem in expected]
        assert [task.prompt(problem, tokenizer) for problem in mixed] == [
            alone[name].prompt(problem, tokenizer) for problem in expected
        ]
        responses = [next(iter(alone[name].solutions(problem) or [""])) for problem in expected]
        assert [task.judge(*pair) for pair in zip(mixed, responses, strict=True)] == [
            alone[name].judge(*pair) for pair in zip(expected, responses, strict=True)
        ]
        assert task.task_of(mixed[0]).reward_range == alone[name].reward_range
        read = task.problem_from(mixed[0].fields, "row 1")
        assert task.judge(read, responses[0]) == task.judge(mixed[0], responses[0]) and read.id == mixed[0].id
    assert task.problems("train", 100, 5) == problems != task.problems("train", 100, 6)


def test_rows_are_judged_in_order_whatever_their_tasks() -> None:
    task = mix("tasks={countdown: 0.5, kk: 0.5}")
    problems = task.problems("dev", 20, 0)
    responses = ["", "<answer> 1 </answer>", *(f"<answer> {n} </answer>" for n in range(18))]
    flags = [n % 3 == 0 for n in range(20)]
    assert task.judge_many(problems, responses, flags, [[n] for n in range(20)]) == [
        task.judge(problem, response, truncated=flag)
        for problem, response, flag in zip(problems, responses, flags, strict=True)
    ]
    verdicts = task.judge_many(problems, responses, flags)
    assert {verdict.reason for verdict in verdicts} <= set(task.reasons)
    kk, countdown = KnightsAndKnaves(), Countdown()
    assert set(task.reasons) == {*kk.reasons, *countdown.reasons}
    assert task.reward_range == (
        min(kk.reward_range[0], countdown.reward_range[0]),
        max(kk.reward_range[1], countdown.reward_range[1]),
    )


def test_every_stretch_of_the_order_has_the_shares() -> None:
    groups = ["a"] * 70 + ["b"] * 30
    order = problem_order(100, 300, 3, groups)
    assert order[:100] != order[100:200] and sorted(order[:100]) == list(range(100))
    for start in range(0, 300, 10):
        assert abs(sum(groups[index] == "a" for index in order[start : start + 10]) - 7) <= 1
    # Within a task it is the permutation that a task alone has.
    plain = problem_order(100, 100, 3)
    assert [i for i in order[:100] if i < 70] == [i for i in plain if i < 70]
    three = spread(list(range(60)), ["a"] * 30 + ["b"] * 20 + ["c"] * 10)
    for end in range(1, 61):
        assert abs(sum(i < 30 for i in three[:end]) - end / 2) <= 1


def test_a_task_with_few_rows_limits_the_others(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(p.fields) + "\n" for p in KnightsAndKnaves().problems("train", 40, 0)))
    task = mix("tasks={kk: 0.25, countdown: 0.75}", f"options={{kk: {{data: {rows}}}}}")
    count = len(task.by_name["kk"].problems("train", 1000, 0))
    assert not task.is_generated and 20 < count <= 40
    everything = task.problems("train", task.training_problems, 0)
    assert Counter(problem.subgroup for problem in everything) == {"kk": count, "countdown": 3 * count}
    assert task.count_local("train", 10**6) == 4 * count
    assert Counter(problem.subgroup for problem in task.problems("train", 8, 0)) == {"kk": 2, "countdown": 6}


def test_what_cannot_be_mixed_is_named() -> None:
    for overrides, reason in (
        ((), "names no task"),
        (("tasks={kk: 0.5, countdwn: 0.5}",), r"countdwn cannot be mixed\. Did you mean `countdown`\?"),
        (("tasks={kk: 0.5, own: 0.5}",), "own cannot be mixed.*Allowed: countdown, "),
        (("tasks={mix: 1}",), "mix cannot be mixed"),
        (("tasks={kk: 0.5, countdown: 0.3}",), r"sum to 0\.8; they must sum to 1.*kk: 0\.625, countdown: 0\.375"),
        (("tasks={kk: 1}", "options={kk: {peple: {2: 1}}}"), r"kk: peple: unknown key\..* people,"),
        (("tasks={kk: 1}", "options={countdown: {}}"), "countdown is in task.options alone"),
        (("tasks={kk: 1}", "options={kk: {name: math}}"), "options.kk has name, which is the mixture's"),
        (("tasks={kk: 1}", "data=rows.jsonl"), r"Set task\.options\.NAME\.data"),
    ):
        with pytest.raises(UserError, match=reason):
            mix(*overrides)


def test_a_training_has_the_accuracy_of_each_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size = ("rollout.prompts=8", "rollout.group_size=4")
    (metrics, *_), rows = trained(tmp_path, "mixed", "grpo", "task.name=mix", *SIZES, *size)
    assert Counter(row["subgroup"] for row in rows) == {"kk": 24, "kk-gen": 8}
    for name in ("kk", "kk-gen"):
        correct = [row["correct"] for row in rows if row["subgroup"] == name]
        assert metrics[f"accuracy/{name}"] == statistics.fmean(correct)
    # Mirrored in the range of the problem's own task.
    noisy = ("task.tasks={kk: 0.5, kk-gen: 0.5}", "task.options={kk: {}, kk-gen: {reward: zero_one}}")
    _, rows = trained(tmp_path, "noisy", "grpo+noise", "task.name=mix", *noisy, *size, "method.reward.noise=1")
    task = load_config(task="mix", overrides=list(noisy)).task
    assert isinstance(task, Mixture) and task.by_name["kk"].reward_range == (-3.0, 3.0)
    for row in rows:
        assert row["reward"] == sum(task.by_name[row["subgroup"]].reward_range) - row["clean_reward"]
    evaluated = run_here(capsys, "eval", str(tmp_path / "mixed"), *SMALL[-3:], "eval.problems=8")
    assert evaluated.code == 0, evaluated
    (path,) = (tmp_path / "mixed" / "eval").rglob("metrics.json")
    result = json.loads(path.read_text())
    counts = {name: next(iter(group.values()))["problems"] for name, group in result["by_subgroup"].items()}
    assert counts == {"kk": 6, "kk-gen": 2}


def test_prompts_are_written_in_the_style_of_the_model() -> None:
    _, tokenizer = load_model("lab", dtype="float32", device="cpu")
    task = load_config(task="mix", overrides=list(SIZES)).task
    problem = task.problems("train", 4, 0)[0]
    compact, english = task.for_model("compact"), task.for_model("logic_rl")
    assert len(compact.prompt(problem, tokenizer)) < len(english.prompt(problem, tokenizer))
    assert compact.settings["options"]["kk"]["style"] == "compact"
