"""Generated problems, which every clone has: their gold answers and worked solutions verify, others' answers don't."""

import itertools

import pytest

from rlvr_cli.tasks.countdown import Countdown
from rlvr_cli.tasks.kk import KnightsAndKnaves
from rlvr_cli.tasks.math import MathTask
from tests.tasks import kk_reader

# The problems of each task below: data=None names the generated ones.
COUNT = 60
RULES = pytest.mark.parametrize("rule", ["paper", "strict"])


def verified(task, problems, responses):
    verdicts = task.judge_many(problems, responses, [False] * len(problems))
    return [verdict.correct for verdict in verdicts]


@RULES
def test_answers_of_mathematics(rule):
    for reward, spelled in (
        ("zero_one", "Thus \\boxed{{{}}}."),
        ("gtpo", "<reasoning></reasoning><answer>{}</answer>"),
    ):
        task = MathTask(data=None, rule=rule, reward=reward)
        problems = task.problems("test", COUNT, 0)
        golds = [problem.data["answer"] for problem in problems]
        assert all(verified(task, problems, [spelled.format(gold) for gold in golds]))
        assert all(verified(task, problems, [next(task.solutions(problem)) for problem in problems]))
        others = [*golds[1:], golds[0]]
        right = verified(task, problems, [spelled.format(other) for other in others])
        assert not any(ok for ok, gold, other in zip(right, golds, others, strict=True) if gold != other)


def test_answers_of_countdown():
    paper, strict = (Countdown(data=None, rule=rule, style="tiny_zero") for rule in ("paper", "strict"))
    for problem in paper.problems("test", COUNT, 0):
        for solution in itertools.islice(paper.solutions(problem), 3):
            assert paper.judge(problem, solution).reward == strict.judge(problem, solution).reward == 1.0


def test_answers_of_knights_and_knaves_and_what_their_english_says():
    task = KnightsAndKnaves(data=None, people=dict.fromkeys(range(2, 9), 1 / 7), style="logic_rl")
    for problem in task.problems("test", COUNT, 0):
        names, roles = problem.data["names"], problem.data["solution"]
        read, claims = kk_reader.read_puzzle(problem.question)
        assert (list(read), kk_reader.solutions(read, claims)) == (list(names), [tuple(roles)])
        for wrong in (None, 0):
            said = [role != (place == wrong) for place, role in enumerate(roles)]
            pairs = zip(names, said, strict=True)
            answer = ", ".join(f"{name} is a {'knight' if role else 'knave'}" for name, role in pairs)
            assert task.judge(problem, f"r</think><answer>{answer}</answer>").reward == (3.0 if wrong is None else -0.5)
