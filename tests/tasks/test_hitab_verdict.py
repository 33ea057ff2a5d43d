"""Answers on tables: lists, texts, where an answer is looked for; hostile texts are never right."""

import json

import pytest

from benchmarks.hostile_texts import written_answer
from rlvr_cli.tasks.hitab import REASONS, HiTab, read_value
from rlvr_cli.tasks.hitab_tables import problem_from
from rlvr_cli.tasks.problem import Problem

RULES = ("paper", "strict")


def judge(gold, response, rule, cut=False, **keys):
    return HiTab(rule=rule, **keys).judge(Problem("x", "", {"answer": gold}, "all"), response, truncated=cut)


def verdict(gold, answer, rule="strict", **keys):
    return judge(gold, f"<think>x</think> <answer> {answer} </answer>", rule, **keys)


@pytest.mark.parametrize("rule", RULES)
def test_tolerance_and_sign_are_settable(rule):
    assert verdict([0.691446], "0.69145", rule).correct
    assert not verdict([0.691446], "0.6915", rule).correct
    assert verdict([0.691446], "0.69", rule, tolerance=0.005).correct
    assert not verdict([25837540], "25837541", rule).correct
    assert not verdict([0.1], "0.10001", rule, tolerance=0.0).correct
    assert not verdict([-0.605], "0.605", rule).correct
    assert verdict([-0.605], "0.605", rule, sign="either").correct


def test_lists_are_compared_as_multisets() -> None:
    for answer in [
        *("8.2; 3.8; 3.8", "3.8, 8.2, 3.8", "3.8, 3.8 and 8.2", "3.8\n8.20\n3.8", "[3.8, 8.2, 3.8]"),
        "3.8 | 3.8 | 8.2",
    ]:
        for rule in RULES:
            assert verdict([3.8, 8.2, 3.8], answer, rule).correct, (answer, rule)
            assert not verdict([3.8, 8.2, 8.2], answer, rule).correct, (answer, rule)
            assert not verdict([3.8, 8.2], answer, rule).correct, (answer, rule)
            assert not verdict([3.8, 8.2, 3.8, 1], answer, rule).correct, (answer, rule)
            assert not verdict([3.8], answer, rule).correct, (answer, rule)


@pytest.mark.parametrize("rule", RULES)
def test_texts(rule):
    gold = ["services to buildings and dwellings", "delta, b.c"]
    assert verdict(gold, "Delta, B.C.; Services to buildings  and dwellings", rule).correct
    assert verdict(gold, json.dumps(gold), rule).correct and verdict(gold, repr(gold), rule).correct
    assert verdict(["qu\u00e9bec"], "Quebec.", rule).correct
    assert verdict(["women's"], "women\u2019s", rule).correct
    assert not verdict(["women"], "men", rule).correct
    assert not verdict(["women"], "women and men", rule).correct
    assert not verdict(["11 to 12"], "11-12", rule).correct
    assert not verdict(["5th"], "5", rule).correct
    assert not verdict([215197], "215, 197", rule).correct


@pytest.mark.parametrize("rule", RULES)
def test_a_full_stop_ends_an_answer_and_is_no_part_of_its_number(rule):
    for text in ("52.1.", "52.1%.", "$52.1.", "**52.1.**", "52.10 ."):
        assert verdict([52.1], text, rule).correct, text
    for text in ("52.1..", "5.21.", "52..1", ".52.1"):
        assert not verdict([52.1], text, rule).correct, text
    assert not verdict([5], "5..", rule).correct
    assert verdict([52.1, 3], "3.; 52.1.", rule).correct


@pytest.mark.parametrize("rule", RULES)
def test_lines_with_bullets_or_numbers_are_a_list(rule):
    assert verdict(["men", "women"], "- women\n- men", rule).correct
    assert verdict(["men", "women"], "* women\n* men", rule).correct
    assert verdict(["men", "women"], "1. women\n2. men", rule).correct
    assert verdict([5.2, 3.8], "1) 3.8\n2) 5.2", rule).correct
    assert verdict([5.2, 3.8], "- 5.2\n- 3.8", rule).correct
    # A dash in front of one answer, or without a space, is a sign; numbers that do not count are no numbering.
    assert verdict([-5.2], "- 5.2", rule).correct and not verdict([5.2], "- 5.2", rule).correct
    assert verdict([-5.2, -3.8], "-5.2\n-3.8", rule).correct
    assert not verdict([-5.2, -3.8], "- 5.2\n- 3.8", rule).correct
    assert verdict([-5.2, -3.8], "- 5.2; - 3.8", rule).correct
    assert not verdict(["men", "women"], "2. women\n1. men", rule).correct
    assert not verdict(["men", "women"], "1. women\nmen", rule).correct


def test_strict_sees_every_candidate_and_every_reasoning_that_is_not_closed():
    for response in (
        "<think>a</think><think><answer>5</answer>",
        "<think>a</think><answer>5</answer><think>no, 6",
        "<think>a</think><answer>5</answer>< THINK >no, 6",
    ):
        assert judge([5], response, "paper").correct
        assert judge([5], response, "strict").reason == "no_answer", response
    for response in (
        *("<answer>5</answer><Answer>6</Answer>", "<answer>5</answer> < answer>6", "<answer>5</answer> \\fbox{6}"),
        *("\\fbox{6} \\boxed{5}", "<answer>\\fbox{6} \\boxed{5}</answer>", "\\boxed {6} \\boxed{5}"),
    ):
        assert judge([5], response, "paper").correct
        assert judge([5], response, "strict").reason == "several_answers", response
    assert judge([5], "<think>a</think><answer>5</answer>", "strict").correct


def test_where_the_rules_differ():
    for answer, number in (("(5.2)", 5.2), ("1,2,3", 123), ("5.2)", 5.2)):
        assert verdict([number], answer, "paper").correct and not verdict([number], answer, "strict").correct
    assert verdict(["ontario"], "Ontario (Canada)[1]", "paper").correct
    assert not verdict(["ontario"], "Ontario (Canada)[1]", "strict").correct
    for response in (
        "<answer>4</answer> <answer>5</answer>",
        "\\boxed{4} \\boxed{5}",
        "\\boxed{4} <answer>5</answer>",
        "<answer>\\boxed{4} \\boxed{5}</answer>",
    ):
        assert judge([5], response, "paper").correct
        refused = judge([5], response, "strict")
        assert (refused.reason, refused.answer, refused.reward) == ("several_answers", None, 0.0)
    assert judge([5], "<think> hm <answer>5</answer>", "strict").reason == "no_answer"


@pytest.mark.parametrize("rule", RULES)
def test_the_answer_is_after_the_reasoning(rule):
    def judged(response, cut=False):
        return judge([5], response, rule, cut)

    assert judged("<think><answer>4</answer></think><answer>5</answer>").correct
    assert judged("<think>5</think><answer>$\\boxed{5}$</answer>").correct
    assert judged("<answer>Answer: 5</answer>").correct
    assert judged("<answer>5</answer></think> no more").reason == "no_answer"
    assert judged("5").reason == "no_answer"
    assert judged("<think> and so on", cut=True).reason == "too_long"
    assert (
        judged("\\boxed{5").reason == judged("<answer>5").reason == judged("<answer> </answer>").reason == "no_answer"
    )
    assert judged("<answer>4</answer>", cut=True).reason == "wrong"


def test_a_verdict_of_the_task_is_the_judges_under_its_own_keys():
    hitab = HiTab(tolerance=0.01, percent="either", sign="either", style="answer_tag")
    assert {key: hitab.settings[key] for key in ("tolerance", "percent", "sign", "rule", "corrected")} == {
        "tolerance": 0.01,
        "percent": "either",
        "sign": "either",
        "rule": "paper",
        "corrected": False,
    }
    problem = problem_from({"answer": [-0.691446]}, "x")
    judged = hitab.judge(problem, "<answer>69%</answer>")
    assert judged.correct and judged.reward == sum(judged.parts.values()) == hitab.reward_range[1]
    assert not HiTab(style="answer_tag").judge(problem, "<answer>69%</answer>").correct
    assert hitab.judge(problem, "", truncated=True).reason == "too_long"
    assert HiTab(data=None).data == "hitab" and HiTab().solutions(problem) is None, "there are no generated tables"


def test_canonical_answers_gather_votes():
    assert {verdict([5], text).answer for text in ("1,234.50", "$1234.5", "1 234.5")} == {"1234.5"}
    assert verdict([1, 2], "2; 1.0").answer == verdict([1, 2], "[1, 2]").answer == "1; 2"
    assert verdict(["a"], "Women.").answer == "women"


def test_gold_answers_as_responses():
    for gold in ([51.0], [8.2, 3.8], ["a; b", "c"], ["[x]"], ["delta, b.c", "x and y"], [-0.605], [1e-06], [10**30]):
        for rule in RULES:
            assert verdict(gold, written_answer(gold), rule).correct, gold
    assert written_answer([51.0, 1234]) == "51; 1234"


def test_matching_moves_earlier_pairs():
    values = [read_value(item, "strict") for item in ("0.5%", "50", "50%")]
    gold = [read_value(item, "strict") for item in (0.005, 0.5, 50)]
    assert HiTab(percent="either").answers_match(gold, values)
    many = [read_value(index, "strict") for index in range(300)]
    assert HiTab(tolerance=1.0).answers_match(many, many[::-1])


HOSTILE = [
    *("9**9**9", "__import__('os').system('true')", "1e999999999", "9" * 100_000, "1/0", "\\frac{1}{0}", "nan", "inf"),
    *("[" * 100_000, "[" * 50_000 + "]" * 50_000, "['" * 50_000 + "]", "{" * 100_000, "\\boxed{" * 50_000),
    *("\\text{" * 5_000, "<answer>" * 50_000, "</answer>" * 50_000, "</think>" * 50_000, "<answer>1</answer>" * 50_000),
    *("\x00\x01\ud800\u202e", "\u0661\u0662\u0663", ",".join("1" * 4_000), " ()" * 3_000, "[1]" * 3_000, ";" * 5_000),
    *(" and " * 1_900, "-" * 60, "$" * 9_000, "\\" * 9_000, "\u00b2" * 9_000, "a\u0301" * 4_000),
]


def test_hostile_texts_are_never_right() -> None:
    for text in HOSTILE:
        for rule in RULES:
            for gold in ([5], ["women", 5.5]):
                for response in (text, f"<answer>{text}</answer>", f"\\boxed{{{text}}}"):
                    judged = judge(gold, response, rule)
                    assert not judged.correct and judged.reason in REASONS and judged.reward == 0.0, (text, rule)
