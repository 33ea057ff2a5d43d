"""The problem sets in data/: their files are what `rlvr tasks generate` writes, and task.data reads them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from rlvr_cli.config.load import choose_task
from rlvr_cli.describe.task import write_problems

DATA = Path(__file__).parents[2] / "data"
SETS = ("kk-gen", "countdown-gen", "math-story-gen")
SIZES = {"train": 200, "dev": 100, "test": 100}
RECORDED = dict(line.split()[::-1] for line in (DATA / "SHA256SUMS").read_text().splitlines())


def test_every_file_has_a_hash() -> None:
    assert set(RECORDED) == {f"{name}/{split}.jsonl" for name in SETS for split in SIZES}
    assert {path.parent.name for path in DATA.glob("*/*.jsonl")} == set(SETS)


@pytest.mark.parametrize("name", SETS)
def test_the_files_are_made_again_byte_for_byte_and_read_as_they_were_made(name: str, tmp_path: Path) -> None:
    task = choose_task(name.partition("-")[0], [f"task.data={name}"])
    of_folder = task.replace(data=str(DATA / name))
    questions: set[str] = set()
    for split, count in SIZES.items():
        made, kept = tmp_path / f"{split}.jsonl", DATA / name / f"{split}.jsonl"
        write_problems(task, made, count=count, split=split, seed=0)
        assert made.read_bytes() == kept.read_bytes(), "run `make data` where the generated problems changed on purpose"
        assert hashlib.sha256(kept.read_bytes()).hexdigest() == RECORDED[f"{name}/{split}.jsonl"]
        rows = [json.loads(line) for line in made.read_text(encoding="utf-8").splitlines()]
        found = {problem.id: json.loads(json.dumps(problem.fields)) for problem in of_folder.problems(split, 1000, 0)}
        assert found == {row["id"]: row for row in rows}
        questions |= {row["question"] for row in rows}
    assert len(questions) == sum(SIZES.values())
