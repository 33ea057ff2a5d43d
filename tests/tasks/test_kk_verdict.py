"""The Logic-RL reward matches the public code's numbers; the strict verdict reads meaning and refuses guesses."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rlvr_cli.tasks import Problem, Task
from rlvr_cli.tasks import kk_rules as reward
from rlvr_cli.tasks.answers import last_tagged
from rlvr_cli.tasks.kk import KnightsAndKnaves

ZOEY = Problem(
    id="zoey",
    question="...",
    data={"names": ["Zoey", "Oliver", "Mia"], "solution": [True, False, True], "statements": None},
    subgroup="3 people",
)
RIGHT = "(1) Zoey is a knight\n(2) Oliver is a knave\n(3) Mia is a knight"


def task(reward: str = "logic_rl", style: str = "logic_rl") -> Task:
    return KnightsAndKnaves.model_validate({"people": {3: 1.0}, "reward": reward}).for_model(style)  # type: ignore[arg-type]


def answered(answer: str) -> str:
    return f" thinking </think><answer>{answer}</answer>"


def solution_roles(text: str) -> dict[str, bool]:
    """The roles in a text such as ``(1) Zoey is a knight\\n(2) Oliver is a knave``; True = knight."""
    lines = (re.search(r"\b([A-Za-z]+)\b.*?\b(knight|knave)\b", line, re.IGNORECASE) for line in text.split("\n"))
    return {match[1]: match[2].lower() == "knight" for match in lines if match}


@pytest.fixture
def golden_cases(golden_dir: Path) -> list[dict[str, Any]]:
    path = golden_dir / "kk_reward.json"
    if not path.exists():
        pytest.skip(f"no {path}")
    cases: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cases"]
    assert cases
    return cases


def test_every_golden_case_scores_as_the_public_code_does(golden_cases: list[dict[str, Any]]) -> None:
    for case in golden_cases:
        roles = solution_roles(case["inputs"]["solution_text_format"])
        # Prompt and response, as the public code scores them: it reports the answer block whatever the format.
        response = reward._strip_header(case["inputs"]["text"])
        answer = last_tagged(response) if response != case["inputs"]["text"] else None
        format_ok = reward._has_valid_format(response)
        read = reward._parse_paper_roles(answer, list(roles)) if format_ok and answer else None
        score = reward.roles_verdict(reward.ParsedRoles(format_ok, read), tuple(roles.values())).reward
        expected = case["expected"]
        assert score == expected["score"], case["name"]
        if "format_ok" in expected:
            assert (format_ok, answer) == (expected["format_ok"], expected["answer"]), case["name"]


def test_the_judge_gives_the_golden_reward_to_what_follows_the_prompt(golden_cases: list[dict[str, Any]]) -> None:
    judged = 0
    for case in golden_cases:
        _, header, response = case["inputs"]["text"].partition(reward.RESPONSE_HEADER)
        if not header:
            continue
        roles = solution_roles(case["inputs"]["solution_text_format"])
        data = {"names": list(roles), "solution": list(roles.values()), "statements": None}
        verdict = task().judge(Problem("p", "q", data, "people"), response)
        assert verdict.reward == sum(verdict.parts.values()) == case["expected"]["score"], case["name"]
        assert verdict.correct == (verdict.parts["answer"] == 2.0)
        judged += 1
    assert judged > len(golden_cases) / 2


@pytest.mark.parametrize(
    ("response", "truncated", "reason", "answer", "reward"),
    [
        (answered(RIGHT), False, "correct", "KNK", 3.0),
        (answered(RIGHT.replace("knave", "knight")), False, "wrong", "KKK", -0.5),
        (answered("no idea"), False, "no_answer", None, -1.0),
        ("thinking on", False, "bad_format", None, -3.0),
        ("thinking on", True, "too_long", None, -3.0),
        (answered(RIGHT) + " and on and on", True, "correct", "KNK", 3.0),
    ],
)
def test_reasons_and_votes(response: str, truncated: bool, reason: str, answer: str | None, reward: float) -> None:
    verdict = task().judge(ZOEY, response, truncated=truncated)
    assert (verdict.reason, verdict.answer, verdict.reward) == (reason, answer, reward)
    assert verdict.reason in task().reasons


def test_a_name_is_not_found_inside_another() -> None:
    data = {"names": ["Ann", "Joann"], "solution": [False, True], "statements": None}
    problem = Problem("p", "q", data, "2 people")
    assert task().judge(problem, answered("Joann is a knight, Ann is a knave")).reason == "correct"
    assert task().judge(problem, answered("Joann is a knight, Joann is a knave")).reason == "no_answer"


@pytest.mark.parametrize(
    ("response", "reason", "answer", "reward"),
    [
        (" A: t </think> <answer> KNK </answer>", "correct", "KNK", 3.0),
        (" A: t </think> <answer> KKK </answer>", "wrong", "KKK", -0.5),
        (" A: t </think> <answer> KN </answer>", "no_answer", None, -1.0),
        (" A: t </think> <answer> t </answer>", "no_answer", None, -1.0),
        (" A: t <answer> KNK </answer>", "bad_format", None, -3.0),
        (" <think> A: t </think> <answer> KNK </answer>", "bad_format", None, -3.0),
        (" </think> <answer> KNK </answer> <answer> KNK </answer>", "bad_format", None, -3.0),
    ],
)
def test_the_compact_form_is_scored_by_the_same_scheme(
    response: str, reason: str, answer: str | None, reward: float
) -> None:
    verdict = task(style="compact").judge(ZOEY, response)
    assert (verdict.reason, verdict.answer, verdict.reward) == (reason, answer, reward)


ACCEPTED = [
    RIGHT,
    "Zoey: knight, Oliver: knave, Mia: knight",
    "Zoey is the knight, Oliver is the knave, and Mia is the knight.",
    "Zoey is a **knight**\nOliver is a **knave**\n**Mia** is a knight",
    "Zoey is not a knave. Oliver isn't a knight. Mia is not a knave.",
    "Zoey isn\u2019t a knave \u2013 Oliver \u2192 knave, Mia \u2014 knight",
    "Zoey is a knight, not a knave. Oliver is not a knight but a knave. Mia: knight",
    "Zoey and Mia are knights, Oliver is a knave",
    "Knights: Zoey, Mia\nKnaves: Oliver",
    "The knights are Zoey and Mia; the knave is Oliver.",
    "Final answer:\n| Name | Role |\n|---|---|\n| Zoey | knight |\n| Oliver | knave |\n| Mia | knight |",
    "Zoey is a knight, Oliver is a knave, Mia is a knight. So Zoey is a knight.",
    "Both Zoey and Mia are knights; Oliver is not a knight.",
    "== Final answer ==\nZoey = knight, Oliver == knave, Mia: knight",
    "The roles of all people: Zoey: knight | Oliver: knave | Mia: knight",
    "Zoey is not a knave and is a knight; Oliver is a knave and not a knight; Mia is not a knave: a knight",
]

REFUSED = [
    "",
    "Zoey is a knight, Oliver is a knave",
    "Zoey is a knight, Oliver is a knave, Mia is a knight, Ava is a knave",
    "Zoey is a knight, Oliver is a knave, Mia is a knight. Zoey is a knave.",
    "If Zoey is a knight, Oliver is a knave, Mia is a knight",
    "Zoey says Oliver is a knave, Zoey is a knight, Mia is a knight",
    "None of the following is true: Zoey is a knight, Oliver is a knave, Mia is a knight",
    "Zoey is a knight? Oliver is a knave? Mia is a knight?",
    "Zoey is not not a knight, Oliver is a knave, Mia is a knight",
    "Zoey != knave, Oliver = knave, Mia = knight",
    "Knights: Zoey, Mia, Oliver\nKnaves: Oliver",
    "Knights: Zoey, Mia\nKnaves:",
    "Zoey\u0301 is a knight, Oliver is a knave, Mia is a knight",
    "KNK",
    "Zoey and Mia are not both knaves. Oliver is a knave.",
    "Oliver is a knave. All of Zoey and Mia are not knaves.",
    "Zoey is a knight \u2192 Oliver is a knave, Mia is a knight",
    f"All people are knaves. {RIGHT}",
    f"{RIGHT}\nAll people are knights.",
    "Oliver is a knave. Zoey and all are knights. Mia is a knight",
    "All people are knights: Zoey, Mia. Knaves: Oliver",
    "Knave Oliver is a knight Zoey, Mia",
    "Zoey is a knight = > Oliver is a knave, Mia is a knight",
    "Zoey is a knight\n> Oliver is a knave\nMia is a knight",
    "Zoey is a knight. Knights: all. Oliver is a knave. Mia is a knight",
    "Zoey is not a knave and a knight, Oliver is a knave, Mia is a knight",
]


def test_strict_reads_meaning() -> None:
    for answer in ACCEPTED:
        verdict = task("strict").judge(ZOEY, answered(answer))
        assert (verdict.reason, verdict.answer) == ("correct", "KNK"), answer


def test_strict_refuses_what_it_cannot_be_sure_of() -> None:
    for answer in REFUSED:
        verdict = task("strict").judge(ZOEY, answered(answer))
        assert (verdict.reason, verdict.answer, verdict.reward) == ("no_answer", None, -1.0), answer


def test_strict_sees_a_wrong_answer_in_any_spelling() -> None:
    verdict = task("strict").judge(ZOEY, answered("Zoey is not a knight; Oliver: knave; Mia: knight"))
    assert (verdict.reason, verdict.answer, verdict.reward) == ("wrong", "NNK", -0.5)


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (f"<think> again </think><answer>{RIGHT}</answer>", "correct"),
        (f"r </Think>\n< answer >{RIGHT}< / ANSWER >", "correct"),
        (f"Assistant: r </think><answer>{RIGHT}</answer>", "correct"),
        (f"r </think> {RIGHT}", "bad_format"),
        (f"<answer>{RIGHT}</answer> r </think>", "bad_format"),
        (f"r </think><answer>{RIGHT}", "bad_format"),
        (f"r </think><answer>nothing</answer><answer>{RIGHT}</answer>", "bad_format"),
        (f"r <think> </think><answer>{RIGHT}</answer>", "bad_format"),
        (f"{RIGHT} </think><answer>see above</answer>", "no_answer"),
    ],
)
def test_strict_reads_the_answer_in_the_one_answer_block_and_nowhere_else(response: str, reason: str) -> None:
    assert task("strict").judge(ZOEY, response).reason == reason


@pytest.mark.parametrize(
    ("answer", "reason"),
    [("KNK", "correct"), (" K N K ", "correct"), ("KKK", "wrong"), ("KN", "no_answer"), ("Zoey: knight", "no_answer")],
)
def test_strict_on_the_compact_form_takes_letters_in_the_order_of_the_people(answer: str, reason: str) -> None:
    assert task("strict", "compact").judge(ZOEY, answered(answer)).reason == reason


MILLION = 1_000_000
HOSTILE = (
    *(" " * MILLION, "\0" * MILLION, "<answer>" * 125_000, "<answer></answer>" * 60_000, "<" * MILLION),
    *("<" + " " * MILLION + "think", ("<" + " " * 1000) * 1000, answered("\n" * MILLION), answered("(1" * 500_000)),
    *(answered(("Zoey" + " " * 1000) * 900 + "knight knave knight"), answered("knight " * 140_000)),
    *(answered("Zoey " * 200_000), answered("Zoey'" * 200_000), "<think>" * 140_000 + "</think>" * 1000),
    *(answered("\ud800\udfff" * 1000), answered("\u202e\u200d\U0001f9d9" * 100_000)),
    *(answered("Z" + "\u0301" * MILLION), answered("\u0130" * MILLION)),
)


@pytest.mark.timeout(60)
def test_hostile_text_gets_a_verdict() -> None:
    for paid, style in [("logic_rl", "logic_rl"), ("strict", "logic_rl"), ("logic_rl", "compact")]:
        for text in HOSTILE:
            verdict = task(paid, style).judge(ZOEY, text, truncated=True)
            assert not verdict.correct, (paid, style, text[:40])
            assert set(verdict.parts) == {"format", "answer"}, (paid, style, text[:40])


def test_zero_or_one_pays_for_what_logic_rl_takes_for_right_and_never_less_than_nothing() -> None:
    wrong = answered(RIGHT.replace("knight", "knave"))
    for response in (answered(RIGHT), wrong, answered("no idea"), "no tags"):
        paper, plain = (task(reward).judge(ZOEY, response) for reward in ("logic_rl", "zero_one"))
        assert (plain.reward, plain.parts) == (float(paper.correct), {"answer": float(paper.correct)})
        assert (plain.correct, plain.answer, plain.reason) == (paper.correct, paper.answer, paper.reason)
    assert task("zero_one").judge(ZOEY, answered(RIGHT)).reward == 1.0
    assert task("zero_one").reward_range == (0.0, 1.0)
