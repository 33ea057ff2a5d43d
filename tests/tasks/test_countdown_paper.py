"""TinyZero's reward without its `eval`: a table of cases, and Python's own parser on generated ones."""

import random
from collections import Counter

import pytest

from rlvr_cli.tasks.countdown import Countdown
from tests.tasks import countdown_oracles as oracles

PAPER = Countdown(style="tiny_zero")
ZERO_ONE = Countdown(reward="zero_one", style="tiny_zero")
PROBLEM = Countdown().problem_from({"nums": [3, 5, 2, 8], "target": 15}, "here")
RIGHT = "3 * (8 - 5 + 2)"


PIECES = [*"+-*/(). =_e5", "//", "\r", "\n", "\u00a0", "\u0663", "<answer>", "</answer>", "</think>", "<think>"]
PIECES += ["Assistant:", "<|im_start|>assistant", "so 5 + 4", "<Answer>", "</answer"]


def rewards_agree(cases: int, seed: int) -> Counter:
    rng = random.Random(seed)
    rewards: Counter = Counter()
    for _ in range(cases):
        nums = [rng.randint(1, 20) for _ in range(rng.choice((3, 4)))]
        text = oracles.expression(rng, rng.sample(nums, len(nums)))
        value = oracles.exact_value(text)
        target = int(value) if value is not None and rng.random() < 0.6 else rng.randint(10, 100)
        response = f" hm </think>\n<answer> {text} </answer>"
        if rng.random() < 0.6:
            response = oracles.damaged(rng, response, PIECES)
        reward = PAPER.judge(Countdown().problem_from({"nums": nums, "target": target}, "here"), response).reward
        prompt = "<|im_start|>assistant\nLet me solve this step by step.\n<think>"
        assert reward == oracles.paper_reward(prompt + response, nums, target), (response, nums, target)
        rewards[reward] += 1
    return rewards


def test_whole_responses_get_the_public_reward() -> None:
    rewards = rewards_agree(2_000, seed=0)
    assert min(rewards[reward] for reward in (0.0, 0.1, 1.0)) > 100


def test_the_public_reward() -> None:
    for response, reason, reward in [
        (f" r </think>\n<answer> {RIGHT} </answer>", "correct", 1.0),
        (f"<answer>{RIGHT}</answer>", "correct", 1.0),
        (f"<answer>1</answer> no, <answer>{RIGHT}</answer>", "correct", 1.0),
        (f"r <answer>{RIGHT}</answer><|im_end|>", "correct", 1.0),
        (f"<answer>{RIGHT}</answer> <answer>8 + 5 + 2 + 3</answer>", "wrong", 0.1),
        ("<answer>8 + 5 + 2 + 3</answer>", "wrong", 0.1),
        ("<answer>2 / (3 + 5 - 8)</answer>", "wrong", 0.1),
        ("<answer>8 + 5 + 2</answer>", "wrong_numbers", 0.1),
        (f"<answer>{RIGHT} = 15</answer>", "no_answer", 0.1),
        ("<answer>no idea</answer>", "no_answer", 0.1),
        ("<answer></answer>", "no_answer", 0.1),
        ("<answer>__import__('os').getcwd()</answer>", "no_answer", 0.1),
        (f"<answer>{RIGHT}</answer>\n", "bad_format", 0.0),
        (f"<answer>{RIGHT}</answer>\nDone.", "bad_format", 0.0),
        (f"<answer>\n{RIGHT}\n</answer>", "bad_format", 0.0),
        (f"<answer>{RIGHT}", "bad_format", 0.0),
        (f"< answer >{RIGHT}</answer>", "bad_format", 0.0),
        (f"<Answer>{RIGHT}</Answer>", "bad_format", 0.0),
        (RIGHT, "bad_format", 0.0),
        ("", "bad_format", 0.0),
        (f"<answer>{RIGHT}</answer> Assistant: yes", "bad_format", 0.0),
        (f"Assistant: <answer>{RIGHT}</answer>", "correct", 1.0),
    ]:
        verdict = PAPER.judge(PROBLEM, response)
        assert (verdict.reason, verdict.reward) == (reason, reward), (response, reason, reward)
        assert sum(verdict.parts.values()) == reward, (response, reason, reward)
        assert verdict.correct == (reward == 1.0), (response, reason, reward)
        zero_one = ZERO_ONE.judge(PROBLEM, response)
        assert (zero_one.reason, zero_one.reward, zero_one.correct) == (reason, float(verdict.correct), verdict.correct)
        assert zero_one.parts == {"answer": zero_one.reward}, (response, reason, reward)


@pytest.mark.parametrize(
    ("nums", "target", "answer"),
    [
        ([1, 5, 10], 15, "1.5 * 10"),
        ([4, 2], 16, "4 ** 2"),
        ([5, 10], 15, "5 - -10"),
        ([7, 1, 2, 4], 49, "((-7) ** (1 / 2)) ** 4"),
    ],
)
def test_what_python_takes_and_the_task_did_not_mean_is_rewarded_as_in_the_public_code(
    nums: list[int], target: int, answer: str
) -> None:
    problem = Countdown().problem_from({"nums": nums, "target": target}, "here")
    assert PAPER.judge(problem, f"<answer>{answer}</answer>").reward == 1.0
    strict = Countdown(rule="strict", style="tiny_zero")
    assert not strict.judge(problem, f"r</think><answer>{answer}</answer>").correct


@pytest.mark.parametrize("answer", ["9**9**9**9", "9**(9**9)**9", "(9-9)**-9-9", "9/(9-9)/9", "-9**9**9**9"])
def test_what_python_would_work_out_without_end_has_no_value(answer: str) -> None:
    problem = Countdown().problem_from({"nums": [9, 9, 9, 9], "target": 10}, "here")
    assert PAPER.judge(problem, f"<answer>{answer}</answer>").reward == 0.1


MILLION = 1_000_000
HOSTILE = (
    *(" " * MILLION, "\0" * MILLION, "<answer>" * 125_000, "<answer></answer>" * 60_000, "<" * MILLION),
    *("<" + " " * MILLION + "answer>", ("<" + " " * 1000) * 1000, "</think>" * 125_000, "\u0130" * MILLION),
    *(
        f"</think><answer>{text}</answer>"
        for text in (
            *("(" * 400_000 + "3" + ")" * 400_000, "(" * 4_000 + "3" + ")" * 4_000, "-" * 9_999 + "3", "9" * 9_999),
            *("0" * 9_998 + "3", "3+" * 4_999 + "3", "3**" * 3_000 + "3", "." * 9_999, "(lambda: 15)()"),
            *("\ud800\udfff", "\u202e\u200d\U0001f9d9" * 3_000, "\r" * 9_000 + "3"),
        )
    ),
)


@pytest.mark.timeout(60)
def test_hostile_text_gets_a_verdict() -> None:
    for rule in ["paper", "strict"]:
        task = Countdown.model_validate({"rule": rule}).replace(style="tiny_zero")
        for text in HOSTILE:
            verdict = task.judge(PROBLEM, text, truncated=True)
            assert not verdict.correct, (rule, text[:40])
            assert set(verdict.parts) == {"format", "answer"}, (rule, text[:40])
            assert verdict.reason in task.reasons, (rule, text[:40])


def test_a_verdict_does_not_depend_on_the_depth_of_the_callers_stack() -> None:
    problem = Countdown().problem_from({"nums": [3, 5], "target": 8}, "deep")

    def reason(text: str, depth: int) -> str:
        return reason(text, depth - 1) if depth else PAPER.judge(problem, f"<answer>{text}</answer>").reason

    texts = {"-" * 98 + "3 + 5": "correct", "3 + 5": "correct", "+3" * 100: "wrong_numbers"}
    texts |= {"-" * signs + "3 + 5": "no_answer" for signs in (100, 500, 1500, 2900, 9000)} | {"+3" * 2000: "no_answer"}
    for text, expected in texts.items():
        assert {reason(text, depth) for depth in (0, 400, 700)} == {expected}, text
