"""Boxed mathematics: the reward tables of three papers, where an answer is looked for, what nobody can judge."""

import math

import pytest

from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import UserError
from rlvr_cli.tasks.math import MathTask
from rlvr_cli.tasks.math_answers import extract_answer
from rlvr_cli.verify.math_answer import DIED, EQUAL, TIMEOUT, TOO_LONG_ANSWER, UNPARSED_ANSWER, UNPARSED_GOLD
from rlvr_cli.verify.pool import MathPool

FOUR = MathTask().problem_from({"question": "2 + 2?", "answer": "4"}, "here")
TAGGED = "<reasoning>sum</reasoning>\n<answer>{}</answer>"


def task(**keys):
    return MathTask(**keys)


def outcome(response, problem=FOUR, truncated=False, **keys):
    judged = task(**keys).judge(problem, response, truncated=truncated)
    assert judged.reason in task(**keys).reasons
    low, high = task(**keys).reward_range
    assert low <= judged.reward <= high and judged.reward == sum(judged.parts.values())
    return judged.reward, judged.reason


def test_zero_one_and_plus_minus() -> None:
    for response, zero_one, plus_minus in [
        (r"So \boxed{4}.", (1, "correct"), (1, "correct")),
        (r"\boxed{5}", (0, "wrong"), (-1, "wrong")),
        (r"\boxed{5} no, \boxed{4}", (1, "correct"), (1, "correct")),
        (r"\boxed{4} no, \boxed{5}", (0, "wrong"), (-1, "wrong")),
        ("4", (0, "no_answer"), (-1, "bad_format")),
        ("", (0, "no_answer"), (-1, "bad_format")),
        (r"\boxed{}", (0, "no_answer"), (-1, "bad_format")),
        (r"\boxed{4", (0, "no_answer"), (-1, "bad_format")),
        (r"\boxed{\frac{8}{2}}", (1, "correct"), (1, "correct")),
        (r"\boxed{5=4}", (0, "wrong"), (-1, "wrong")),
        (r"\boxed{x=5=4}", (0, "wrong"), (-1, "wrong")),
        (r"\boxed{9-5=4}", (1, "correct"), (1, "correct")),
        (r"I tried \boxed{5}.</think>It is \boxed{4}.", (1, "correct"), (1, "correct")),
        (r"I tried \boxed{4}.</think>It is 4.", (0, "no_answer"), (-1, "bad_format")),
    ]:
        assert outcome(response, reward="zero_one") == zero_one, (response, zero_one, plus_minus)
        assert outcome(response, reward="plus_minus") == plus_minus, (response, zero_one, plus_minus)


def test_gtpo() -> None:
    for response, paper, strict in [
        (TAGGED.format("4"), (20, "correct"), (20, "correct")),
        (TAGGED.format(r"$\boxed{4}$"), (20, "correct"), (20, "correct")),
        (TAGGED.format("5"), (10, "wrong"), (10, "wrong")),
        (TAGGED.format(""), (10, "no_answer"), (10, "no_answer")),
        ("<answer>4</answer>", (1, "bad_format"), (1, "bad_format")),
        ("<reasoning>so 4", (1, "bad_format"), (1, "bad_format")),
        ("4", (0, "bad_format"), (0, "bad_format")),
        ("", (0, "bad_format"), (0, "bad_format")),
        ("<answer>4</answer><reasoning>why</reasoning>", (20, "correct"), (1, "bad_format")),
        (TAGGED.format("5") + "<answer>4</answer>", (20, "correct"), (1, "bad_format")),
        (TAGGED.format("4") + " Good luck!", (20, "correct"), (1, "bad_format")),
        (TAGGED.format(r"\boxed{5} or \boxed{4}"), (20, "correct"), (20, "correct")),
    ]:
        assert outcome(response, reward="gtpo", rule="paper") == paper, (response, paper, strict)
        assert outcome(response, reward="gtpo", rule="strict") == strict, (response, paper, strict)


def test_strict_is_the_default_and_paper_pays_nothing_for_what_it_cannot_decide(monkeypatch):
    assert task().rule == "strict"
    hard = MathTask().problem_from({"question": "?", "answer": r"\frac{1}{3}"}, "here")
    with MathPool(workers=1, deadline=0.3) as pool:
        monkeypatch.setattr("rlvr_cli.verify.pool.math_pool", lambda: pool)
        slow = r"\boxed{\int \sin(x^x)\cos(e^x) dx}"
        paper, strict = (task(rule=rule).judge(hard, slow) for rule in ("paper", "strict"))
    assert (paper.reward, paper.reason, paper.scorable) == (0, "timeout", True)
    assert math.isnan(strict.reward) and (strict.reason, strict.scorable) == ("timeout", False)


def test_a_gold_answer_with_a_box_is_its_content_and_a_damaged_one_is_named():
    solved = MathTask().problem_from({"question": "?", "answer": r"It is $\boxed{2}$."}, "rows.jsonl:7")
    assert solved.data["answer"] == "2"
    for damaged in ("\frac{1}{2}", "2\times 3", "\beta", "\\left(1\right)"):
        with pytest.raises(UserError, match=r"rows\.jsonl:7: answer has the control character.*Double the"):
            MathTask().problem_from({"question": "?", "answer": damaged}, "rows.jsonl:7")


def test_truncation_is_a_reason_only_where_no_answer_was_reached():
    assert outcome("2 + 2 is", truncated=True) == (0, "too_long")
    assert outcome(r"\boxed{4} and then", truncated=True) == (1, "correct")
    assert outcome("<reasoning>", truncated=True, reward="gtpo") == (1, "too_long")


@pytest.mark.parametrize(
    ("compared", "reason", "scorable"),
    [
        *((TIMEOUT, "timeout", False), (DIED, "timeout", False), (UNPARSED_GOLD, "unparsed", False)),
        *((UNPARSED_ANSWER, "unparsed", True), (TOO_LONG_ANSWER, "unparsed", True), (EQUAL, "correct", True)),
    ],
)
def test_what_nobody_can_judge_has_no_reward(compared, reason, scorable):
    for kind in ("zero_one", "plus_minus"):
        reading = extract_answer(r"\boxed{4}", "boxed", "paper")
        judged = MathTask(reward=kind).verdict(reading, compared, answer="4", truncated=False)
        assert (judged.reason, judged.scorable) == (reason, scorable)
        assert math.isnan(judged.reward) != scorable
        assert all(map(math.isfinite, judged.parts.values()))


def test_many_responses_are_judged_as_one_by_one():
    golds = ["4", r"\frac{1}{2}", r"$x^2-1$", "(1, 2)", r"\sqrt{8}"] * 2
    answers = ["4", "0.5", "(x-1)(x+1)", "(1,2)", r"2\sqrt{2}", "5", r"\frac{2}{3}", "x", "(2,1)", "3"]
    problems = [MathTask().problem_from({"question": "?", "answer": gold}, "here") for gold in golds]
    responses = [f"\\boxed{{{answer}}}" for answer in answers]
    judge = task()
    together = judge.judge_many(problems, responses, [False] * len(problems))
    alone = [judge.judge(problem, response) for problem, response in zip(problems, responses, strict=True)]
    assert together == alone
    assert [one.correct for one in together] == [True] * 5 + [False] * 5


def test_a_reward_for_tags_needs_a_prompt_that_asks_for_them():
    with pytest.raises(UserError, match=r"task.reward=gtpo.*reasoning_answer"):
        load_config(task="math", overrides=["task.reward=gtpo", "task.style=boxed"])
    with pytest.raises(UserError, match=r"task\.style.*boxed.*reasoning_answer"):
        load_config(task="math", overrides=["task.style=plain"])
    assert MathTask(style="reasoning_answer").judge(FOUR, TAGGED.format("4")).reward == 1
