"""The curriculum by pass rate: what it draws, the same in every process and after a resume."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import read_jsonl
from rlvr_cli.core.streams import stream_seed
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.training.curriculum import Curriculum, problem_order
from tests.matrix import metrics, resume
from tests.training.processes import interrupted_after
from tests.training.test_run import start

LAB = {"train__curriculum": 0.2, "task__train_size": 12, "rollout__prompts": 4, "rollout__group_size": 4}
LAB |= {"train__rollouts": 6, "update__mini_batches": 2, "checkpoint__every": 1, "train__on_no_signal": "off"}


def test_without_a_curriculum_the_order_is_a_permutation_per_epoch() -> None:
    expected = []
    for epoch in range(3):
        indices = list(range(7))
        random.Random(stream_seed(5, "problem-order", epoch)).shuffle(indices)
        expected += indices
    assert problem_order(7, 18, 5) == expected[:18]


def test_problems_between_always_and_never_are_visited_as_without_a_curriculum() -> None:
    curriculum = Curriculum(40, 0.1, 3)
    chosen: list[int] = []
    for rollout in range(5):
        chosen += (problems := curriculum.choose(rollout, 8))
        for problem in problems:
            curriculum.record(problem, [True, False])
    assert chosen == problem_order(40, 40, 3) and curriculum.summary() == {
        "curriculum/settled": 0.0,
        "curriculum/passed": 0.0,
    }


@pytest.mark.parametrize("weight", [0.0, 0.25, 0.7])
def test_settled_problems_keep_this_share_of_their_visits(weight: float) -> None:
    curriculum = Curriculum(100, weight, 1)
    for problem in range(50):
        curriculum.record(problem, [problem < 25] * 4)
    visits = Counter(problem for rollout in range(1500) for problem in curriculum.choose(rollout, 10))
    settled, others = (sum(visits[p] for p in part) for part in (range(50), range(50, 100)))
    assert settled + others == 15_000
    error = (weight * (1 - weight) / others) ** 0.5 if weight else 0.0
    assert abs(settled / others - weight) <= 5 * error
    assert max(visits[p] for p in range(50, 100)) - min(visits[p] for p in range(50, 100)) <= 5


def test_a_rollout_has_a_problem_twice_only_if_there_are_no_others() -> None:
    curriculum = Curriculum(12, 0.1, 0)
    for problem in range(11):
        curriculum.record(problem, [True])
    assert all(len(set(curriculum.choose(rollout, 12))) == 12 for rollout in range(20))
    assert Counter(curriculum.choose(20, 30)).most_common()[-1][1] >= 1
    none = Curriculum(5, 0.0, 0)
    for problem in range(5):
        none.record(problem, [False, False])
    assert sorted(none.choose(0, 5)) == list(range(5)) and none.summary()["curriculum/settled"] == 1.0


def test_a_verdict_counts_until_the_next_visit() -> None:
    curriculum = Curriculum(4, 0.0, 0)
    for correct, settled in (([True] * 3, 0.25), ([True, False], 0.0), ([False], 0.25), ([], 0.0)):
        curriculum.record(2, correct)
        assert curriculum.summary()["curriculum/settled"] == settled


def test_its_state_is_all_there_is() -> None:
    """The choice follows from the records of earlier rollouts, in any process and after any number of resumes."""
    rng = random.Random(0)
    first, second = (Curriculum(30, 0.3, 9, ["a"] * 20 + ["b"] * 10) for _ in range(2))
    for rollout in range(40):
        chosen = first.choose(rollout, 7)
        assert second.choose(rollout, 7) == chosen
        for problem in chosen:
            correct = [rng.random() < 0.8 for _ in range(3)]
            first.record(problem, correct)
            second.record(problem, correct)
        resumed = Curriculum(30, 0.3, 9, ["a"] * 20 + ["b"] * 10)
        resumed.restore(json.loads(json.dumps(second.state())))
        second = resumed


def contents(run: RunDir) -> tuple[bytes, list[bytes]]:
    return run.metrics_path.read_bytes(), [path.read_bytes() for path in sorted(run.rollouts_dir.iterdir())]


def problems_of(run: RunDir) -> list[list[list[dict[str, Any]]]]:
    """The groups of each rollout."""
    rollouts = [read_jsonl(path) for path in sorted(run.rollouts_dir.iterdir())]
    return [[rows[i : i + 4] for i in range(0, len(rows), 4)] for rows in rollouts]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return start(tmp_path_factory.mktemp("curriculum"), "whole", **LAB).run


def test_a_training_draws_by_the_verdicts_that_it_recorded(whole: RunDir) -> None:
    config = load_config([whole.path / "config.yaml"])
    ids = [problem.id for problem in config.task.problems("train", 12, 0)]
    curriculum = Curriculum(12, 0.2, 0)
    rows = metrics(whole)
    for rollout, groups in enumerate(problems_of(whole)):
        assert [group[0]["problem"] for group in groups] == [ids[index] for index in curriculum.choose(rollout, 4)]
        for group in groups:
            curriculum.record(ids.index(group[0]["problem"]), [row["correct"] for row in group])
        assert {**rows[2 * rollout], **curriculum.summary()} == rows[2 * rollout]
    assert any(row["curriculum/passed"] for row in rows), "otherwise this shows nothing"


@pytest.mark.parametrize("steps", [4, 5])
def test_a_run_that_was_stopped_draws_what_the_whole_run_drew(whole: RunDir, tmp_path: Path, steps: int) -> None:
    """Stopped at the end of a rollout, and in its middle."""
    with interrupted_after(steps):
        run = start(tmp_path, "broken", **LAB).run
    assert len(metrics(run)) < 12
    assert resume(run).status == "finished"
    assert contents(run) == contents(whole)


def test_replaced_groups_are_counted_and_their_problems_settled(tmp_path: Path) -> None:
    changes = {**LAB, "rollout__dynamic_sampling": 2, "train__rollouts": 3}
    run = start(tmp_path, "replaced", **changes).run
    rows = metrics(run)[::2]
    counts = [row["replaced_groups"] for row in rows]
    assert sum(counts) > 0 and all(row["curriculum/settled"] > 0 for row in rows)
    with interrupted_after(3):
        broken = start(tmp_path, "broken", **changes).run
    assert resume(broken).status == "finished" and contents(broken) == contents(run)


def test_one_completion_a_problem_has_no_pass_rate() -> None:
    overrides = ["train.curriculum=0.5", "rollout.group_size=1", "method.advantage=reinforce_pp"]
    with pytest.raises(UserError, match=r"train\.curriculum=0\.5 compares the verdicts .*remove train\.curriculum"):
        load_config(overrides=overrides)
