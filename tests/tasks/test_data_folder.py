"""The problem sets in data/: their files are what `rlvr tasks generate` writes, and task.data reads them."""

from __future__ import annotations

import hashlib
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
def test_the_files_are_made_again_byte_for_byte(name: str, tmp_path: Path) -> None:
    for split, count in SIZES.items():
        made = tmp_path / f"{split}.jsonl"
        write_problems(
            choose_task(name.partition("-")[0], [f"task.data={name}"]), made, count=count, split=split, seed=0
        )
        kept = DATA / name / f"{split}.jsonl"
        assert made.read_bytes() == kept.read_bytes(), "run `make data` where the generated problems changed on purpose"
        assert hashlib.sha256(kept.read_bytes()).hexdigest() == RECORDED[f"{name}/{split}.jsonl"]


@pytest.mark.parametrize("name", SETS)
def test_the_task_reads_its_folder(name: str) -> None:
    config = choose_task(name.partition("-")[0], [f"task.data={DATA / name}"])
    generated = choose_task(name.partition("-")[0], [f"task.data={name}"])
    questions = []
    for split, count in SIZES.items():
        found = config.problems(split, 1000, 0)  # type: ignore[arg-type]
        same = {one.id: one for one in generated.problems(split, count, 0)}  # type: ignore[arg-type]
        assert {one.id: (one.question, one.data) for one in found} == {
            one.id: (one.question, one.data) for one in same.values()
        }
        questions += [one.question for one in found]
    assert len(set(questions)) == sum(SIZES.values())
