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


def verified(task, problems, responses):
    verdicts = task.judge_many(problems, responses, [False] * len(problems))
    for problem, verdict in zip(problems, verdicts, strict=True):
        if not verdict.correct:
            print(f"{problem.id} {problem.data['answer'][:60]!r} {verdict.reason}")
    share = sum(verdict.correct for verdict in verdicts) / len(verdicts)
    print(f"{task.name} {task.settings['data']} {task.rule}: {share:.4f} of {len(verdicts)} verified")
    return share


@pytest.mark.filterwarnings("ignore:.*rows with an empty answer")
@pytest.mark.parametrize(("name", "rows"), MATH.items(), ids=MATH)
def test_gold_answers_of_mathematics_verify(name, rows):
    task = MathTask(data=data(name))
    problems = task.problems("all", 10_000, 0)
    assert len(problems) == rows
    responses = [f"Thus the answer is \\boxed{{{problem.data['answer']}}}." for problem in problems]
    assert verified(task, problems, responses) == 1.0
    tagged = MathTask(data=data(name), reward="gtpo")
    responses = [f"<reasoning></reasoning><answer>{problem.data['answer']}</answer>" for problem in problems]
    assert verified(tagged, problems, responses) == 1.0


@pytest.mark.parametrize("name", ["math/math500.jsonl", "math/minerva.jsonl"])
def test_reference_solutions_verify(name):
    task = MathTask(data=data(name))
    problems = task.problems("all", 10_000, 0)
    assert verified(task, problems, [problem.data["solution"] for problem in problems]) == 1.0


def test_gold_answers_in_another_spelling_are_parsed_and_verify():
    """Measured: 485 of 500; the others are words, equations and numbers with a thousands comma after `y =`."""
    task = MathTask(data=data("math/math500.jsonl"))
    problems = task.problems("all", 120, 0)
    assert verified(task, problems, [f"\\boxed{{y={problem.data['answer']}}}" for problem in problems]) >= 0.95


@pytest.mark.parametrize("rule", ["paper", "strict"])
@pytest.mark.parametrize(
    ("name", "rows"), [("gsm8k/test.jsonl", 1319), pytest.param("gsm8k/train.jsonl.gz", 7473, marks=pytest.mark.slow)]
)
def test_gold_answers_and_worked_solutions_of_gsm8k_verify(name, rows, rule):
    for reward in ("zero_one", "gtpo"):
        task = GSM8K(data=data(name), rule=rule, reward=reward)
        problems = task.problems("all", 10_000, 0)
        assert len(problems) == rows
        assert verified(task, problems, [next(task.solutions(problem)) for problem in problems]) == 1.0
        spelled = "\\boxed{{${}.00}}" if reward == "zero_one" else "<reasoning></reasoning><answer>${}.00</answer>"
        golds = [spelled.format(problem.data["answer"]) for problem in problems]
        whole = ["." not in problem.data["answer"] for problem in problems]
        assert all(whole) and verified(task, problems, golds) == 1.0
