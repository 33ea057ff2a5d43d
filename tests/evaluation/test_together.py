"""An evaluation in several processes is the one that a single process makes."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rlvr_cli.core.files import read_jsonl
from rlvr_cli.evaluation.sampling import partition_keys
from rlvr_cli.evaluation.settings import EvalSettings
from rlvr_cli.store.evaluation import read_samples
from rlvr_cli.tasks.kk import KnightsAndKnaves
from tests.training.processes import run_as_two

PROBLEMS = 5
SETTINGS = EvalSettings(problems=PROBLEMS, samples=3, pass_at=(1, 3), max_new_tokens=10, batch=4)


def keys(*counts: int) -> list[tuple[str, int | str]]:
    """As many samples of problem p0, p1, ..."""
    return [(f"p{problem}", index) for problem, count in enumerate(counts) for index in range(count)]


def test_every_sample_has_one_process_and_no_process_more_than_its_part() -> None:
    for counts in [(), (1,), (5,), (1,) * 7, (4,) * 6, (3, 3, 1), (100, 1, 1), (2, 9, 2, 9)]:
        for processes in [1, 2, 3, 8]:
            shares = partition_keys(keys(*counts), processes)
            assert len(shares) == processes, (counts, processes)
            assert Counter(key for share in shares for key in share) == Counter(keys(*counts)), (counts, processes)
            assert max(map(len, shares)) <= -(-sum(counts) // processes), (counts, processes)


def test_samples_of_a_problem_stay_together_and_neighbours_go_apart() -> None:
    first, second = partition_keys(keys(4, 4, 4, 4), 2)
    assert {problem for problem, _ in first} == {"p0", "p2"} and {problem for problem, _ in second} == {"p1", "p3"}
    assert partition_keys(keys(8), 2) == [keys(8)[:4], keys(8)[4:]]


@pytest.fixture(scope="module")
def folders(models: list[Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Evaluations of a model: in one process; in two; in two, which find the beginning, or every third sample."""
    from rlvr_cli.evaluation.evaluate import evaluate_with
    from rlvr_cli.evaluation.sampling import LocalSampler
    from rlvr_cli.models.load import load_model

    root = tmp_path_factory.mktemp("together")
    found = {name: root / name for name in ("one", "two", "begun", "gaps", "done")}
    task = KnightsAndKnaves(style="compact")
    sampler = LocalSampler(*load_model(str(models[0])))
    evaluate_with(sampler, task, task.problems("test", PROBLEMS, 0), SETTINGS, found["one"])
    lines = (found["one"] / "samples.jsonl").read_text().splitlines(keepends=True)
    # As a kill leaves it: whole lines, and the beginning of one.
    for name, left in (("begun", [*lines[:9], lines[9][:30]]), ("gaps", lines[::3]), ("done", lines)):
        found[name].mkdir()
        (found[name] / "meta.json").write_bytes((found["one"] / "meta.json").read_bytes())
        (found[name] / "samples.jsonl").write_text("".join(left))
    together = [str(folder) for name, folder in found.items() if name != "one"]
    run_as_two(Path(__file__).with_name("evaluation_of_processes.py"), str(models[0]), *together)
    return found


def samples(folder: Path) -> list[dict[str, Any]]:
    """The samples in the order of the file; sums of rounded numbers are compared by themselves."""
    return [{**row, "log_prob": None} for row in read_samples(folder)]


@pytest.mark.parametrize("name", ["two", "begun", "gaps", "done"])
def test_two_processes_make_the_same_evaluation(folders: dict[str, Path], name: str) -> None:
    one, other = folders["one"], folders[name]
    assert len(samples(one)) == PROBLEMS * 4
    order = {(row["problem"], row["sample"]): at for at, row in enumerate(samples(one))}
    in_order = sorted(samples(other), key=lambda row: order[row["problem"], row["sample"]])
    assert in_order == samples(one)
    # What was there stands first; the rest is in the order of the plan.
    assert name == "gaps" or in_order == samples(other)
    numbers = [
        {row["problem"] + str(row["sample"]): row["log_prob"] for row in read_jsonl(folder / "samples.jsonl")}
        for folder in (one, other)
    ]
    assert numbers[0] == pytest.approx(numbers[1], abs=2e-3)
    assert (other / "metrics.json").read_bytes() == (one / "metrics.json").read_bytes()
    assert (other / "problems.jsonl").read_bytes() == (one / "problems.jsonl").read_bytes()
    assert json.loads((other / "meta.json").read_text()) == json.loads((one / "meta.json").read_text())
    assert {path.name for path in other.iterdir()} == {path.name for path in one.iterdir()}
