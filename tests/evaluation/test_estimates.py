"""From samples to numbers: one value a problem, means and intervals over problems, averages and pairs."""

import itertools
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlvr_cli.config.load import choose_task
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import append_jsonl
from rlvr_cli.evaluation.estimates import (
    average,
    compare_by_subgroup,
    compare_evaluations,
    find_equal_answers,
    problem_metrics,
    range_of_rewards,
    summarise,
)
from rlvr_cli.evaluation.evaluate import write_results
from rlvr_cli.evaluation.sampling import row_key
from rlvr_cli.evaluation.settings import EvalSettings
from rlvr_cli.store.evaluation import FORMAT, Evaluation, ProblemValues, read_evaluation, sample_check
from rlvr_cli.store.values import problem_values
from rlvr_cli.tasks import Problem

REASONS = ("correct", "wrong", "no_answer")
SETTINGS = EvalSettings(samples=4, pass_at=(1, 2, 4), greedy=True)


def problem(name: str, subgroup: str = "2 people") -> Problem:
    return Problem(name, "?", {}, subgroup)


def samples(
    name: str, answers: list[str | None], *, greedy: bool = False
) -> dict[tuple[str, int | str], dict[str, Any]]:
    """Samples of one problem whose right answer is K; the i-th has i + 1 tokens."""
    found: dict[tuple[str, int | str], dict[str, Any]] = {(name, "greedy"): {"correct": greedy}}
    for index, answer in enumerate(answers):
        correct = answer == "K"
        found[name, index] = {
            "correct": correct,
            "answer": answer,
            "reason": "correct" if correct else "no_answer" if answer is None else "wrong",
            "reward": 3.0 if correct else -1.0,
            "parts": {"format": 1.0, "answer": 2.0 if correct else -2.0},
            "tokens": index + 1,
            "truncated": answer is None,
        }
    return found


def test_one_problems_values() -> None:
    (row,) = problem_metrics([problem("p")], samples("p", ["K", "N", "K", None], greedy=True), SETTINGS, REASONS)
    assert row.values == pytest.approx(
        {
            "greedy": 1.0,
            "avg@4": 0.5,
            "pass@1": 0.5,
            "pass@2": 5 / 6,
            "pass@4": 1.0,
            # Of the six pairs, KK and the two K-None are won; K-N is a tie twice, N-None is lost.
            "maj@2": 3 / 6,
            "maj@4": 1.0,
            "reward": 1.0,
            "reward/format": 1.0,
            "reward/answer": 0.0,
            "length": 2.5,
            "truncated": 0.25,
            "reason/correct": 0.5,
            "reason/wrong": 0.25,
            "reason/no_answer": 0.25,
        }
    )


def test_only_the_samples_asked_for_are_counted() -> None:
    found = samples("p", ["K", "K", "N", "N"])
    (row,) = problem_metrics([problem("p")], found, EvalSettings(samples=2, pass_at=(2,), greedy=False), REASONS)
    assert row.values["avg@2"] == 1.0
    assert "greedy" not in row.values


def test_summaries_are_over_all_problems_and_over_each_subgroup_in_order() -> None:
    problems = [problem("a", "10 people"), problem("b", "2 people"), problem("c", "2 people")]
    found = {**samples("a", ["K"] * 4), **samples("b", ["N"] * 4), **samples("c", ["K"] * 4)}
    summary = summarise(problem_metrics(problems, found, SETTINGS, REASONS), {})
    assert summary["metrics"]["pass@4"]["value"] == pytest.approx(2 / 3)
    assert summary["metrics"]["pass@4"]["problems"] == 3
    assert list(summary["by_subgroup"]) == ["2 people", "10 people"]
    assert summary["by_subgroup"]["2 people"]["avg@4"]["value"] == pytest.approx(0.5)
    assert summary["by_subgroup"]["10 people"]["avg@4"]["low"] is None


def test_averaging_checkpoints_averages_each_problem_and_adds_none() -> None:
    first = [ProblemValues("a", "g", {"avg@4": 0.0}), ProblemValues("b", "g", {"avg@4": 1.0})]
    second = [ProblemValues("b", "g", {"avg@4": 0.5}), ProblemValues("a", "g", {"avg@4": 0.5})]
    merged = average([first, second])
    assert [(row.id, row.values["avg@4"]) for row in merged] == [("a", 0.25), ("b", 0.75)]
    assert summarise(merged, {})["metrics"]["avg@4"]["problems"] == 2
    with pytest.raises(ValueError, match="different problems"):
        average([first, second[:1]])


def stored(folder: Path, values: dict[str, float], **result: Any) -> Evaluation:
    rows = [ProblemValues(name, "2 people", {"avg@4": value}) for name, value in values.items()]
    folder.mkdir()
    header = {"label": folder.name, "benchmark": "kk", "split": "test", "sampling": {"temperature": 1.0, "top_p": 1.0}}
    header |= {"format": FORMAT, "model": "lab", "steps": [], "task": {"style": "compact"}}
    content = {**header, "problems": len(rows), "samples": 4, **summarise(rows, {}), **result}
    return write_results(Evaluation(folder, content, tuple(rows)))


def test_comparison_pairs_by_problem_whatever_their_order(tmp_path: Path) -> None:
    before = stored(tmp_path / "before", {f"p{i}": i / 100 for i in range(50)})
    after = stored(tmp_path / "after", {f"p{i}": i / 100 + 0.1 + (i % 2) / 100 for i in reversed(range(50))})
    item = compare_evaluations(before, after)["avg@4"]
    assert item.difference.value == pytest.approx(0.105)
    assert item.clear
    low, high = item.difference.low, item.difference.high
    assert low is not None and high is not None
    assert high - low < 0.005
    assert not compare_evaluations(before, before)["avg@4"].clear


def test_evaluations_that_differ_in_more_than_the_model_are_not_compared(tmp_path: Path) -> None:
    before = stored(tmp_path / "before", {"a": 0.0, "b": 1.0})
    other = stored(tmp_path / "other", {"a": 0.0, "c": 1.0}, split="dev", sampling={"temperature": 0.5})
    with pytest.raises(UserError) as caught:
        compare_evaluations(before, other)
    assert [part in str(caught.value) for part in ("differ in split", "differ in sampling", "1 in common")] == [
        True
    ] * 3
    with pytest.raises(UserError, match="no finished evaluation"):
        read_evaluation(tmp_path / "nothing")


def test_two_evaluations_of_different_tasks_are_not_compared(tmp_path: Path) -> None:
    before = stored(tmp_path / "before", {"a": 0.0, "b": 1.0}, task={"style": "compact", "reward": "kk_logic"})
    with pytest.raises(UserError, match=r"differ in task\.reward: kk_logic and none"):
        compare_evaluations(before, stored(tmp_path / "other", {"a": 0.0, "b": 1.0}, task={"reward": "none"}))
    # A model is asked in the style that it knows.
    style = stored(tmp_path / "style", {"a": 0.0, "b": 1.0}, task={"style": "logic_rl", "reward": "kk_logic"})
    assert compare_evaluations(before, style)["avg@4"].difference.value == 0.0


def test_rewards_are_bounded_by_what_both_evaluations_record(tmp_path: Path) -> None:
    """Overall and by subgroup."""
    rows = tuple(ProblemValues(str(i), "2 people", {"reward": float(i % 5 > 0)}) for i in range(10))
    sides = [
        replace(stored(tmp_path / name, {"a": 0.0}, reward_range=limits), rows=rows)
        for name, limits in (("before", [0.0, 1.0]), ("after", None))
    ]
    both, same = compare_by_subgroup(*sides, note=None), compare_by_subgroup(sides[0], sides[0], note=None)
    for comparison, bounded in ((both, False), (same, True)):
        by_subgroup = comparison.by_subgroup["2 people"]["reward"]
        assert comparison.overall["reward"] == by_subgroup and by_subgroup.before.high is not None
        assert (by_subgroup.before.high <= 1.0) == bounded


def test_a_samples_random_stream_depends_on_problem_and_index_alone() -> None:
    keys = {row_key(name, index) for name in ("a", "b") for index in (0, 1, "greedy")}
    assert len(keys) == 6
    # Pinned: another value would change every stored evaluation's missing samples.
    assert row_key("kk-3ppl-test-0", 0) == 4343907282180077799


def test_a_range_that_rewards_leave_bounds_no_interval() -> None:
    """A function of the user's own may give more than its task's key says."""
    values = ((2.0, 1.0), (2.0, 1.0), (2.0, 1.0), (0.2, 99.0))
    rows = [ProblemValues(str(one), "", dict(zip(("reward", "length"), one, strict=True))) for one in values]
    assert range_of_rewards(rows, (0.0, 1.0)) is None and range_of_rewards(rows, (0.0, 2.0)) == [0.0, 2.0]
    free, bound = (summarise(rows, {"reward_range": limits})["metrics"] for limits in (None, [0.0, 2.0]))
    assert free["reward"]["high"] > 2.0 and bound["reward"]["high"] == 2.0
    assert free["length"]["low"] == bound["length"]["low"] == 0.0, "no mean length is negative"


def test_wrong_answers_that_are_equal_vote_together(tmp_path: Path) -> None:
    """By the verifier's equality; what it could not read is left alone. Other sizes are counted from the record."""
    answers = ["5", "5", "x=7", "7", "7 cm", None, "7?", "8"]
    found = {
        ("p", place): {**one, "correct": answer == "5", "answer": answer, "reason": reason, "text": "", "prompt": ""}
        for place, (answer, one) in enumerate(zip(answers, [*samples("p", ["K"] * 8).values()][1:], strict=True))
        for reason in ["correct" if answer == "5" else "unparsed" if answer == "7?" else "wrong"]
    }
    task = choose_task("math")
    settings = EvalSettings(samples=8, pass_at=(1, 8), greedy=False)
    same = find_equal_answers(task, [problem("p")], found, settings)
    assert same == [{"7": "x=7", "7 cm": "x=7"}]
    (row,) = problem_metrics([problem("p")], found, settings, ("correct", "wrong", "unparsed"), same)
    assert row.values["maj@8"] == 0.0, "two right votes against three"
    (apart,) = problem_metrics([problem("p")], found, settings, ("correct", "wrong", "unparsed"))
    assert apart.values["maj@8"] == 1.0
    header = {
        "format": FORMAT,
        "model": "lab",
        "steps": [],
        "label": "l",
        "benchmark": "math",
        "split": "test",
        "task": {},
        "sampling": {},
        "problems": 1,
        "samples": 8,
    }
    write_results(Evaluation(tmp_path, header, (row,)))
    lines = [{"problem": name, "sample": index, **one} for (name, index), one in found.items()]
    append_jsonl(tmp_path / "samples.jsonl", [{**line, "check": sample_check(line)} for line in lines])
    read = read_evaluation(tmp_path)
    assert read.rows == (row,) and problem_values(read, "maj@8", 8, ["p"]) == [0.0]
    assert problem_values(read, "maj@5", 8, ["p"])[0] == pytest.approx(
        won_by_enumeration(["5", "5", "7", "7", "7", None, "7?", "8"], 5)
    )


def won_by_enumeration(answers: list[str | None], k: int) -> float:
    """The share of subsets in which 5 has more votes than any other answer."""
    votes = [Counter(one for one in chosen if one is not None) for chosen in itertools.combinations(answers, k)]
    return sum(one["5"] > max([0, *(one[name] for name in one if name != "5")]) for one in votes) / len(votes)


@pytest.mark.parametrize("order", [("7", "x=7", "7 cm"), ("x=7", "7 cm", "7"), ("7 cm", "7", "x=7")])
def test_the_first_spelling_is_the_vote(order: tuple[str, ...]) -> None:
    task = choose_task("math")
    assert task.group_answers([[*order, "8", *order], ["1 1/2", "11/2", "3/2"], []]) == [
        dict.fromkeys(order[1:], order[0]),
        {"3/2": "1 1/2"},
        {},
    ]


def test_a_part_that_a_verdict_lacks_is_0_for_it() -> None:
    of_two = samples("p1", ["K", "B"])
    of_two["p1", 0]["parts"] = {"reward": 3.0}
    (row,) = problem_metrics([problem("p1")], of_two, EvalSettings(samples=2, pass_at=(1, 2)), REASONS)
    assert [row.values[f"reward/{name}"] for name in ("reward", "format", "answer")] == [1.5, 0.5, -1.0]
