"""The strict rule: exact arithmetic, each number once, one answer after the reasoning; an oracle agrees on it."""

import random
from collections import Counter

from rlvr_cli.tasks.countdown import Countdown
from rlvr_cli.tasks.countdown_rules import judge_strict
from tests.tasks import countdown_oracles as oracles

STRICT = Countdown(rule="strict", style="tiny_zero")
PROBLEM = Countdown().problem_from({"nums": [3, 5, 2, 8], "target": 15}, "here")


def answered(answer: str) -> str:
    return f" thinking </think>\n<answer>{answer}</answer>"


def agrees(cases: int, seed: int) -> Counter:
    rng = random.Random(seed)
    typographic = "\u00d7\u22c5\u00b7\u2217\u00f7\u2215\u2212\u00a0\n"
    signs = [*"0123456789+-*/()=. _,e", "**", "//", *typographic, "\u0663", "\uff11", "\u2044", "\u2013"]
    outcomes: Counter = Counter()
    for _ in range(cases):
        nums = [rng.choice((rng.randint(0, 9), rng.randint(1, 99))) for _ in range(rng.choice((2, 3, 4, 4)))]
        text = oracles.expression(rng, rng.sample(nums, len(nums)))
        target = rng.randint(10, 100)
        reached = oracles.exact_value(text)
        if rng.random() < 0.5 and reached is not None and reached.denominator == 1:
            target = int(reached)
        if rng.random() < 0.4:
            text = oracles.damaged(rng, text, signs)
        reading = judge_strict(text, nums, target)
        assert reading.outcome == oracles.strict_outcome(text, nums, target), (text, nums, target)
        outcomes[reading.outcome] += 1
    return outcomes


def test_an_oracle_agrees_on_generated_expressions() -> None:
    outcomes = agrees(3_000, seed=0)
    assert min(outcomes[kind] for kind in ("correct", "wrong", "wrong_numbers", "no_answer")) > 100


def test_what_an_answer_means() -> None:
    for answer, reason in (
        *(("8 + 5 + 2", "wrong_numbers"), ("3 * 5 * (8 / 8)", "wrong_numbers"), ("8 + 5 + 2 + 3", "wrong")),
        *(("3 * (8 - 5 + 2)", "correct"), ("((3)) * ((8 - 5) + (2))", "correct"), ("2 * 5 + 8 - 3", "correct")),
        *(("5 / (8 / (3 * 2))", "wrong"), ("2 / (3 + 5 - 8)", "wrong"), ("5 / (3 + 5 - 8) + 2", "wrong_numbers")),
    ):
        verdict = STRICT.judge(PROBLEM, answered(answer))
        assert (verdict.reason, verdict.answer) == (reason, answer.replace(" ", "")), answer
        assert verdict.reward == sum(verdict.parts.values()) == (1.0 if reason == "correct" else 0.1)
    for answer in ("  3*(\n8-5+2)\t", "3 \u00d7 (8 \u2212 5 + 2)"):
        verdict = STRICT.judge(PROBLEM, answered(answer))
        assert (verdict.reason, verdict.answer) == ("correct", "3*(8-5+2)"), answer
    for answer in (
        *("3 * (8 - 5 + 2) = 15", "15 = 3 * (8 - 5 + 2)", "3 * (8 + -5 + 2)", "+3 * (8 - 5 + 2)", "3 * (8 - (-5 + 2))"),
        *("03 * (8 - 5 + 2)", "3.0 * (8 - 5 + 2)", "3e0 * (8 - 5 + 2)", "0x3 * (8 - 5 + 2)", "3(8 - 5 + 2)", "3 5 2 8"),
        *(
            *("3 * (8 - 5 + 2", "3 * 8 - 5 + 2)", "5 ** 2 - 8 - 3", "8 * 5 // 2 - 3", "\u0663 * (8 - 5 + 2)"),
            *("1 5", "5 = 4"),
        ),
        *("\uff13 * (8 - 5 + 2)", "3 * (8 - 5 + 2) # 15", "3 * (8 - 5 + 2), 15", "3 * (8 - 5 + 2)\n2 * 5 + 8 - 3"),
        *("$3 \\times (8 - 5 + 2)$", "__import__('os').getcwd()", "", "()"),
    ):
        verdict = STRICT.judge(PROBLEM, answered(answer))
        assert (verdict.reason, verdict.answer, verdict.reward) == ("no_answer", None, 0.1), answer


RIGHT = "3 * (8 - 5 + 2)"


def test_the_answer_is_the_one_block_after_the_reasoning() -> None:
    for response, reason in [
        (f"r </think> <answer>{RIGHT}</answer>", "correct"),
        (f"r </think>\n\nSo:\n<answer>\n{RIGHT}\n</answer>\nDone.<|im_end|>", "correct"),
        (f"r </Think>\n< answer >{RIGHT}< / ANSWER >", "correct"),
        (f"I try <answer> 3 + 5 </answer> first. </think> <answer>{RIGHT}</answer>", "correct"),
        (f"<think> again </think> <answer>{RIGHT}</answer>", "correct"),
        (f"<answer>{RIGHT}</answer>", "bad_format"),
        (f"<answer>{RIGHT}</answer> </think>", "bad_format"),
        (f"r </think> {RIGHT}", "bad_format"),
        (f"r </think> <answer>{RIGHT}", "bad_format"),
        (f"r </think> {RIGHT}</answer>", "bad_format"),
        (f"r </think> <answer>1</answer> <answer>{RIGHT}</answer>", "bad_format"),
        (f"r </think> <answer>{RIGHT}</answer> <answer>{RIGHT}</answer>", "bad_format"),
        (f"r </think> <answer><answer>{RIGHT}</answer></answer>", "bad_format"),
        (f"r </think> <answer>{RIGHT}</answer> </think>", "bad_format"),
        (f"r </think> </think> <answer>{RIGHT}</answer>", "bad_format"),
        (f"r </think> <think> <answer>{RIGHT}</answer>", "bad_format"),
    ]:
        verdict = STRICT.judge(PROBLEM, response)
        assert verdict.reason == reason, (response, reason)
        assert verdict.reward == {"correct": 1.0, "bad_format": 0.0}[reason], (response, reason)


def test_a_response_that_was_cut_off_says_so() -> None:
    assert STRICT.judge(PROBLEM, "thinking on", truncated=True).reason == "too_long"
    assert STRICT.judge(PROBLEM, answered(RIGHT) + " and on", truncated=True).reason == "correct"


def test_exactness_is_not_that_of_floats() -> None:
    """49 / 49.000001 would pass a tolerance, and 1/3 + 1/3 + 1/3 would not pass one of zero."""
    near = Countdown().problem_from({"nums": [10**9, 10**9 - 1, 15], "target": 15}, "near")
    text = answered("15 * (1000000000 / 999999999)")
    assert STRICT.judge(near, text).reason == "wrong"
    assert Countdown(rule="paper", style="tiny_zero").judge(near, text).reason == "correct"
    thirds = Countdown().problem_from({"nums": [8, 3, 8, 3], "target": 24}, "thirds")
    assert STRICT.judge(thirds, answered("8 / (3 - 8 / 3)")).reason == "correct"
