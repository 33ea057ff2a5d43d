"""Problems: repeatable, distinct, held out by structure, with the shares of people that are requested."""

from collections import Counter
from typing import Any

import pytest

from rlvr_cli.core.errors import UserError
from rlvr_cli.tasks import Problem, Task
from rlvr_cli.tasks.kk import KnightsAndKnaves
from rlvr_cli.tasks.kk_puzzles import hash_split


def task(style: str = "compact", **config: Any) -> Task:
    return KnightsAndKnaves.model_validate(config).for_model(style)  # type: ignore[arg-type]


def test_problems_repeat_for_the_same_seed_and_differ_for_another() -> None:
    first, again = (task().problems("train", 60, 7) for _ in range(2))
    assert first == again
    assert {problem.id for problem in first}.isdisjoint(problem.id for problem in task().problems("train", 60, 8))


@pytest.fixture(scope="module")
def held_out() -> list[Problem]:
    """420 test problems, more than two people have puzzles for."""
    return task().problems("test", 420, 0)


def test_held_out_problems_are_distinct_prompts_and_share_no_structure_with_training_or_dev(
    held_out: list[Problem],
) -> None:
    kk = task()
    parts = {"train": kk.problems("train", 120, 0), "dev": kk.problems("dev", 120, 0), "test": held_out}
    for name in ("dev", "test"):
        assert len({problem.id for problem in parts[name]}) == len(parts[name])
        assert len({kk.prompt(problem, None) for problem in parts[name]}) == len(parts[name])
        assert {hash_split(str(problem.structure)) for problem in parts[name]} == {name}
    train, dev, test = ({problem.structure for problem in part} for part in parts.values())
    assert not train & dev and not train & test and not dev & test
    assert {problem.id for problem in kk.problems("test", 60, 0)} <= {problem.id for problem in held_out}, (
        "a smaller set draws from the larger one, so that samples can be reused"
    )


def test_where_two_people_have_too_few_held_out_problems_the_others_fill_the_set(held_out: list[Problem]) -> None:
    counts = Counter(problem.subgroup for problem in held_out)
    assert len(held_out) == 420 and 40 <= counts["2 people"] < 126
    assert counts["3 people"] / counts["4 people"] == pytest.approx(0.4 / 0.3, abs=0.02)


def test_the_compact_style_refuses_more_people_than_it_can_write() -> None:
    with pytest.raises(UserError, match=r"at most 5 people; got 7"):
        task("compact", people={7: 1.0})
