"""Generated tables: answers computed anew from the prompt, disjoint splits, repeatable sets; prompts and settings."""

import re
import subprocess
import sys
from decimal import Decimal
from fractions import Fraction

import pytest

from rlvr_cli.core.errors import UserError
from rlvr_cli.tasks.base import Task
from rlvr_cli.tasks.hitab import problems as generate
from rlvr_cli.tasks.hitab.problems import problem_from
from rlvr_cli.tasks.hitab.reward import written_answer
from rlvr_cli.tasks.hitab.task import HiTab

SPLITS = ("train", "dev", "test")
STYLES = ("answer_tag", "boxed")
WHERE = r"for (?P<group>[a-z ]+) in (?P<year>\d{4})\?"
WHAT = r"the number of [a-z]+"
QUESTIONS = {
    "lookup": rf"what was {WHAT} in (?P<a>[a-z ]+) \((?P<sa>[a-z]+)\) {WHERE}",
    "sum": rf"what was {WHAT} in all items of (?P<sa>[a-z]+) together {WHERE}",
    "difference": rf"what is {WHAT} in (?P<a>[a-z ]+) \((?P<sa>[a-z]+)\) minus that in (?P<b>[a-z ]+) "
    rf"\((?P<sb>[a-z]+)\) {WHERE}",
    "ratio": rf"how many times that in (?P<b>[a-z ]+) \((?P<sb>[a-z]+)\) was {WHAT} in (?P<a>[a-z ]+) "
    rf"\((?P<sa>[a-z]+)\) {WHERE}",
    "argmax": rf"which item of (?P<sa>[a-z]+) had the highest number of [a-z]+ {WHERE}",
}


class Plain:
    """A tokenizer without a chat template."""

    chat_template = None
    bos_token = "<s>"
    bos_token_id = 1

    def __call__(self, text, add_special_tokens=True):
        return {"input_ids": [1] if add_special_tokens else []}


class Chat(Plain):
    chat_template = "x"

    def apply_chat_template(self, turns, tokenize, add_generation_prompt):
        return "".join(f"[{turn['role']}]{turn['content']}" for turn in turns) + "[assistant]"


def task(style="answer_tag", **keys):
    return HiTab(**{"data": "hitab-gen", **keys}, style=style)


def solved(prompt, kind):
    """The answer, from the prompt's text alone and with decimals instead of the generator's fractions."""
    lines = [line.strip("| ").split(" | ") for line in prompt.splitlines() if line.startswith("| ")]
    head, rows = lines[0], {line[0]: dict(zip(lines[0], line, strict=True)) for line in lines[2:]}
    asked = re.search(QUESTIONS[kind], prompt)
    column = f"{asked['year']} / {asked['group']}"
    assert column in head

    def cell(section, item):
        return Decimal(rows[f"{section} / {item}"][column].replace(",", ""))

    if kind in ("sum", "argmax"):
        items = [name.split(" / ")[1] for name in rows if name.startswith(asked["sa"] + " / ")]
        if kind == "sum":
            return sum(cell(asked["sa"], item) for item in items)
        ranked = sorted(items, key=lambda item: cell(asked["sa"], item))
        assert cell(asked["sa"], ranked[-1]) > cell(asked["sa"], ranked[-2])
        return ranked[-1]
    first = cell(asked["sa"], asked["a"])
    if kind == "lookup":
        return first
    second = cell(asked["sb"], asked["b"])
    return first - second if kind == "difference" else round(first / second, 6)


@pytest.mark.parametrize("split", SPLITS)
def test_answers_are_those_of_an_independent_computation(split):
    hitab = task(rule="strict")
    problems = hitab.problems(split, 300, 5)
    for problem in problems:
        prompt = hitab.prompt(problem, Plain())
        right = solved(prompt, problem.subgroup)
        given = problem.data["answer"]
        assert given == [right] if isinstance(right, str) else Decimal(str(given[0])) == right, problem.question
        assert hitab.judge(problem, f"<answer>{right}</answer>").correct
        assert not hitab.judge(problem, f"<answer>1{right}</answer>").correct
    counts = {kind: sum(problem.subgroup == kind for problem in problems) for kind in generate.KINDS}
    assert set(counts.values()) == {60}


def test_splits_are_disjoint_and_sets_repeatable():
    sets = {split: task().problems(split, 200, 0) for split in SPLITS}
    for key in ("id", "structure", "question"):
        values = {split: [getattr(problem, key) for problem in problems] for split, problems in sets.items()}
        if key != "question":
            assert all(len(set(items)) == 200 for items in values.values())
            assert not set(values["train"]) & (set(values["dev"]) | set(values["test"]))
            assert not set(values["dev"]) & set(values["test"])
    tables = {split: {problem.data["table"] for problem in problems} for split, problems in sets.items()}
    assert not tables["train"] & tables["test"] and not tables["train"] & tables["dev"]
    assert sets["train"] == task().problems("train", 200, 0) != task().problems("train", 200, 1)
    assert {p.id for p in task().problems("test", 50, 0)} <= {p.id for p in sets["test"]}


def test_relabelled_tables_stay_in_their_split():
    values = ((10, 20), (30, 40))
    assert generate.split_of(values) == generate.split_of(tuple(tuple(row) for row in values))
    shares = [generate.split_of(((number,),)) for number in range(4000)]
    assert [shares.count(split) / 4000 for split in SPLITS] == pytest.approx([0.75, 0.125, 0.125], abs=0.02)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("rule", ["paper", "strict"])
def test_worked_solutions_are_correct(style, rule):
    hitab = task(style, rule=rule)
    for problem in hitab.problems("train", 100, 2):
        solutions = list(hitab.solutions(problem))
        assert solutions and solutions == list(hitab.solutions(problem))
        assert all(hitab.judge(problem, text).correct for text in solutions)
        assert all(cell in solutions[0] for cell in problem.data["working"]["cells"])
    loaded = problem_from({"answer": [1]}, "x")
    with pytest.raises(UserError, match=r"task\.data: problem hitab-"):
        hitab.solutions(loaded)


def test_prompts():
    problem = task().problems("test", 1, 0)[0]
    tagged, boxed = (task(style).prompt(problem, Plain()) for style in STYLES)
    assert tagged.startswith("<s>User: ") and tagged.endswith("\nAssistant:")
    assert problem.data["table"] in tagged and problem.question in tagged
    assert "<answer>" in tagged and "<answer>" not in boxed and "\\boxed{}" in boxed
    assert task().prompt(problem, Chat()).startswith("[user]Answer a question about a table.")
    assert task().prompt(problem, Chat()).endswith("</answer>.[assistant]")
    assert "## Table" not in task().prompt(problem_from({"question": "q?", "answer": [1]}, "x"), Plain())


def test_the_task_is_what_the_protocol_asks():
    hitab: Task = task(tolerance=0.01, percent="either", sign="either")
    assert hitab.settings == {
        "name": "hitab",
        "data": "hitab-gen",
        "corrected": False,
        "style": "answer_tag",
        "tolerance": 0.01,
        "percent": "either",
        "sign": "either",
        "rule": "paper",
    }
    problem = problem_from({"answer": [-0.691446]}, "x")
    verdict = hitab.judge(problem, "<answer>69%</answer>")
    assert verdict.correct and verdict.reward == sum(verdict.parts.values()) == hitab.reward_range[1]
    assert verdict.reason in hitab.reasons and not task().judge(problem, "<answer>69%</answer>").correct
    assert hitab.judge(problem, "", truncated=True).reason == "too_long"
    with pytest.raises(UserError, match="split `all`"):
        hitab.problems("all", 1, 0)


def test_results_are_exact():
    thirds = [Fraction(1), Fraction(3)]
    assert generate.as_json(generate.result("ratio", thirds)) == 0.333333
    assert generate.as_json(generate.result("sum", [Fraction(1, 10), Fraction(2, 10)])) == 0.3
    assert written_answer([generate.as_json(generate.result("difference", thirds))]) == "-2"


def test_judging_needs_no_torch():
    code = (
        "import sys; from rlvr_cli.tasks.hitab.task import HiTab"
        "; t = HiTab(data='hitab-gen', style='boxed')"
        "; p = t.problems('test', 3, 0)[0]; t.judge(p, 'x')"
        "; assert not {'torch', 'trl', 'transformers', 'datasets'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
