"""What a measure is kept under, and what becomes of a file that is not what was written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlvr_cli.analyses.base import analyses
from rlvr_cli.core.errors import RunError
from rlvr_cli.ledger import measures
from rlvr_cli.ledger.claim_results import claim_result
from rlvr_cli.ledger.measures import RunAnalysis, number_of
from rlvr_cli.ledger.schema import At, Call
from rlvr_cli.runs.folder import RunDir
from tests.ledger.files import CONTRAST, LENGTH, claim_set

NUMBERS = {
    "summary": {"length_end": 12, "collapsed": True, "never": None, "word": "x"},
    "groups": [{"norm": 2.5}],
    "by": {"low": {"share": 0.25}},
}


@pytest.mark.parametrize(
    ("name", "value"), [("length_end", 12.0), ("collapsed", 1.0), ("groups.0.norm", 2.5), ("by.low.share", 0.25)]
)
def test_a_number_by_its_name(name: str, value: float) -> None:
    assert number_of(NUMBERS, name, None) == value


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("lenght_end", "no such number. Did you mean `length_end`?"),
        ("zzz", "It has: length_end, collapsed"),
        ("never", "has no value"),
        ("word", "is no number"),
        ("groups.1.norm", "there is no 1 in it"),
        ("by.high.share", "there is no high in it"),
        ("by.low", "is no number"),
    ],
)
def test_a_number_that_is_none(name: str, said: str) -> None:
    with pytest.raises(RunError, match=said.replace("?", r"\?")):
        number_of(NUMBERS, name, None)


def test_what_stands_for_null() -> None:
    assert number_of(NUMBERS, "never", 30.0) == 30.0
    assert number_of(NUMBERS, "length_end", 30.0) == 12.0


def test_a_contrast_is_seed_by_seed_and_a_failure_is_told(tmp_path: Path) -> None:
    read = claim_set(tmp_path, [LENGTH, {**CONTRAST, "measure": {"analysis": "landscape", "number": "length_end"}}])
    lengths: dict[tuple[str, int], float | None] = {
        ("tiny-pl", 0): 4.0,
        ("tiny-pl", 1): 6.0,
        ("tiny-grpo", 0): 2.0,
        ("tiny-grpo", 1): 3.0,
    }

    def numbers(call: Call, seed: int) -> dict[str, Any]:
        if seed == 2:
            raise RunError("its training failed: no memory")
        return {"summary": {"length_end": lengths[call.arm, seed]}}

    ratio = read.claims["landscape/updates"]
    found = claim_result(ratio, read, [0, 1], numbers)
    assert (found.values, found.sides) == ([2.0, 2.0], [[4.0, 2.0], [6.0, 3.0]])
    assert found.verdict == "does not hold"
    lengths["tiny-grpo", 1] = None
    missing = claim_result(ratio, read, [0, 1], numbers)
    assert missing.verdict == "undecided" and missing.reason == "tiny-grpo-s1: length_end has no value (null)"
    failed = claim_result(read.claims["landscape/length"], read, [0, 2], numbers)
    assert failed.verdict == "failed" and failed.reason == "landscape of tiny-grpo-s2: its training failed: no memory"


def test_two_arms_that_are_the_same_decide_nothing(tmp_path: Path) -> None:
    """A difference of exactly 0 in every seed comes from a term that never acted: no evidence against it."""
    measure = {"analysis": "landscape", "number": "length_end"}
    read = claim_set(tmp_path, [LENGTH, {**CONTRAST, "measure": measure, "rule": {"above": 1.0}}])
    found = claim_result(
        read.claims["landscape/updates"], read, [0, 1], lambda call, seed: {"summary": {"length_end": 4.0}}
    )
    assert found.verdict == "undecided" and "the same number in every seed" in str(found.reason)


def reading(folder: Path, **changed: Any) -> RunAnalysis:
    run = RunDir(folder / "arm-s0")
    run.path.mkdir(exist_ok=True)
    if not run.metrics_path.exists():
        run.metrics_path.write_text('{"step": 1}\n')
    about = {"training": "abc", "analysis": "landscape", "options": {"samples": 4}, "at": At(), **changed}
    return RunAnalysis(run, **about)


def keep(one: RunAnalysis, folder: Path) -> Path:
    """A file as `compute` writes it."""
    path = one.path(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"key": one.key(), "numbers": NUMBERS, "notes": [], "seconds": 1.0}
    path.write_text(json.dumps({**content, "check": measures.short_hash(NUMBERS)}))
    return path


def test_all_that_decides_a_measure(tmp_path: Path) -> None:
    one = reading(tmp_path)
    path = keep(one, tmp_path)
    assert one.read(tmp_path) == NUMBERS
    for changed in (
        {"training": "abd"},
        {"analysis": "conflicts"},
        {"options": {"samples": 5}},
        {"at": At(rollout=1)},
        {"at": At(step=1)},
    ):
        assert reading(tmp_path, **changed).path(tmp_path) != path
    one.run.metrics_path.write_text('{"step": 2}\n')
    assert reading(tmp_path).read(tmp_path) is None, "the training was repeated, and came out differently"


@pytest.mark.parametrize("damage", [lambda text: text[:40], lambda text: text.replace("12", "13"), lambda text: "[]"])
def test_a_damaged_file_is_no_measure(tmp_path: Path, damage: Any) -> None:
    one = reading(tmp_path)
    path = keep(one, tmp_path)
    path.write_text(damage(path.read_text()))
    assert one.read(tmp_path) is None


def test_another_version_of_an_analysis_is_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(reading(tmp_path), tmp_path)
    newer = replace(analyses()["landscape"], version=99)
    monkeypatch.setattr(measures, "analysis_of", lambda name: newer)
    assert reading(tmp_path).read(tmp_path) is None
