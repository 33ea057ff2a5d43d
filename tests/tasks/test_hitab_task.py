"""Prompts and settings of HiTab."""

import subprocess
import sys

from rlvr_cli.tasks.base import Task
from rlvr_cli.tasks.hitab import HiTab
from rlvr_cli.tasks.hitab_tables import problem_from

SPLITS = ("train", "dev", "test")
STYLES = ("answer_tag", "boxed")


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
    return HiTab(**keys, style=style)


TABLE = [["place", "workers"], ["north", "1,234"], ["south", "12.5"]]
PROBLEM = problem_from({"question": "how many in north?", "table": TABLE, "answer": [1234]}, "x")


def test_there_are_no_generated_tables_and_no_worked_solutions():
    assert task(data=None).data == "hitab" and task().solutions(PROBLEM) is None


def test_prompts():
    problem = PROBLEM
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
        "data": "hitab",
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


def test_judging_needs_no_torch():
    code = (
        "import sys; from rlvr_cli.tasks.hitab import HiTab"
        "; t = HiTab(style='boxed')"
        "; t.judge(t.problem_from({'answer': [1]}, 'x'), 'x')"
        "; assert not {'torch', 'trl', 'transformers', 'datasets'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
