"""The public files of mathematics and GSM8K: all rows load, and gold answers and reference solutions verify."""

import os
from pathlib import Path

import pytest

from rlvr_cli.tasks.gsm8k import GSM8K
from rlvr_cli.tasks.math import MathTask

BESIDE = Path(__file__).parents[3] / "shared" / "data"

# Rows that load: all but those with an empty answer.
MATH = {
    "math/aime24.jsonl": 30,
    "math/aime25.jsonl": 30,
    "math/amc23.jsonl": 40,
    "math/college_math.jsonl.gz": 2818,
    "math/gaokao2023en.jsonl": 383,
    "math/math500.jsonl": 500,
    "math/minerva.jsonl": 272,
    "math/olympiadbench.jsonl.gz": 675,
    "train/dsr_uniform.jsonl.gz": 2000,
    "train/math_lvl3to5.jsonl.gz": 1999,
}


def data(name):
    folder = Path(os.environ.get("RLVR_DATA_DIR") or BESIDE)
    if not (folder / name).is_file():
        pytest.skip(f"no public data at {folder} (set RLVR_DATA_DIR to the folder that holds {name})")
    return str(folder / name)


def refused(task, problems, responses):
    """The problems whose responses are not right."""
    verdicts = task.judge_many(problems, responses, [False] * len(problems))
    return {
        problem.id: verdict.reason for problem, verdict in zip(problems, verdicts, strict=True) if not verdict.correct
    }


@pytest.mark.filterwarnings("ignore:.*rows with an empty answer")
@pytest.mark.parametrize(("name", "rows"), MATH.items(), ids=MATH)
def test_gold_answers_of_mathematics_verify(name, rows):
    task = MathTask(data=data(name))
    problems = task.problems("all", 10_000, 0)
    assert len(problems) == rows
    some = problems[:: 1 + len(problems) // 300]
    assert refused(task, some, [f"Thus the answer is \\boxed{{{one.data['answer']}}}." for one in some]) == {}


def test_reference_solutions_and_answers_in_tags_verify():
    problems = MathTask(data=data("math/math500.jsonl")).problems("all", 10_000, 0)
    assert refused(MathTask(), problems, [problem.data["solution"] for problem in problems]) == {}
    tagged = [f"<reasoning></reasoning><answer>{problem.data['answer']}</answer>" for problem in problems]
    assert refused(MathTask(reward="gtpo"), problems, tagged) == {}


@pytest.mark.parametrize("rule", ["paper", "strict"])
def test_gold_answers_and_worked_solutions_of_gsm8k_verify(rule):
    for reward, spelled in (
        ("zero_one", "\\boxed{{${}.00}}"),
        ("gtpo", "<reasoning></reasoning><answer>${}.00</answer>"),
    ):
        task = GSM8K(data=data("gsm8k/test.jsonl"), rule=rule, reward=reward)
        problems = task.problems("all", 10_000, 0)
        assert len(problems) == 1319
        assert refused(task, problems, [next(task.solutions(problem)) for problem in problems]) == {}
        assert refused(task, problems, [spelled.format(problem.data["answer"]) for problem in problems]) == {}
