"""`rlvr runs list` with filters and orders, and what it says of those that make no sense."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rlvr_cli.cli.app import run
from rlvr_cli.runs.listing import make_query
from tests.runs.folders import make_run


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_run(tmp_path, "a", created="2025-01-10T12:00:00+00:00", last_metrics={"reward": 2})
    other = {"method": "grpo+lopti", "task": "math", "model": "Qwen/Qwen3-0.6B", "status": "failed"}
    make_run(tmp_path, "b", **other, created="2025-01-11T00:00:00+00:00", last_metrics={"reward": 0.5})
    make_run(tmp_path, "s/c", method="reinforce-pp", status="running", created="2025-01-12T23:30:00+00:00")
    make_run(tmp_path, "torn").manifest_path.write_text("{")
    return tmp_path


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], ["a", "b", "s/c", "torn"]),
        (["method=grpo"], ["a"]),
        (["method=REINFORCE++"], ["s/c"]),
        (["method=*lopti*", "method=reinforce-pp"], ["b", "s/c"]),
        (["task=kk"], ["a", "s/c"]),
        (["model=Qwen3-0.6B"], ["b"]),
        (["model=Qwen/*"], ["b"]),
        (["status=killed"], ["s/c"]),
        (["status=damaged"], ["torn"]),
        (["status=failed", "status=killed", "task=kk"], ["s/c"]),
        (["since=2025-01-11"], ["b", "s/c"]),
        (["until=2025-01-11"], ["a", "b"]),
        (["since=2025-01-10", "until=2025-01-10"], ["a"]),
        (["since=2025-01-10T12:00", "until=2025-01-11T01:00+01:00"], ["a", "b"]),
        (["since=3d"], []),
        (["--sort", "reward"], ["b", "a", "s/c", "torn"]),
        (["--sort", "-reward"], ["a", "b", "torn", "s/c"]),
        (["--sort", "method"], ["a", "b", "s/c", "torn"]),
        (["--sort=-created"], ["s/c", "b", "a", "torn"]),
    ],
    ids=" ".join,
)
def test_filters_and_orders(
    root: Path, capsys: pytest.CaptureFixture[str], options: list[str], expected: list[str]
) -> None:
    assert run(["runs", "list", "--runs", str(root), "--format=json", *options]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == expected


def test_dates_are_utc_and_ages_count_back() -> None:
    now = datetime(2025, 3, 1, 1, 30, tzinfo=UTC)
    created = {"damage": None, "name": "a", "last_metrics": {}, "created": "2025-02-28T23:59:59+00:00"}
    for option, fits in [
        (["since=90m"], False),
        (["since=91m"], True),
        (["since=today"], False),
        (["since=yesterday", "until=yesterday"], True),
        (["until=2h"], False),
        (["since=2025-03-01T00:59:59+01:00"], True),
        (["since=2025-03-01T01:00:00+01:00"], False),
    ]:
        assert bool(make_query(option, now=now).select([created])) is fits, option
    for value in (None, 5, "soon", "today", "9999-12-31T23:59:59-12:00"):
        assert make_query(["since=2000-01-01"]).select([{**created, "created": value}]) == []


def test_every_mistake_is_named_at_once(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["status=runing", "method=lopty", "since=31.01.2025", "--sort", "rewards"]
    assert run(["runs", "list", "--runs", str(root), *options, "until=999999w"]) == 2
    method, status, since, until, sort, count = capsys.readouterr().err.splitlines()
    assert method.startswith("method: ") and "lopty" in method and "`lopti`" in method
    assert status.startswith("status=runing: ") and "`running`" in status and "submitted, running," in status
    assert since.startswith("since=31.01.2025: ") and "2025-01-31, 2025-01-31T12:30," in since
    assert until.startswith("until=999999w: ")
    assert sort.startswith("--sort rewards: ") and "`reward`" in sort
    assert count.startswith("5 problems")
    assert run(["runs", "list", "--runs", str(root), "since=2025-02-01", "until=2025-01-01"]) == 2
    assert "since=2025-02-01" in capsys.readouterr().err


def test_filters_that_nothing_fits_say_what_there_is(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["task=math", "status=killed", "since=2025-01-12"]
    assert run(["runs", "list", "--runs", str(root), *options]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [
        f"No run fits all filters; there are 4 in {root}:",
        "  task=math: fits 1 of 4; there are kk (2), math (1)",
        "  status=killed: fits 1 of 4; there are finished (1), failed (1), killed (1), damaged (1)",
        "  since=2025-01-12: fits 1 of 4; they were created from 2025-01-10T12:00:00+00:00 to "
        "2025-01-12T23:30:00+00:00",
    ]
    assert printed.err == "Damaged runs fit no filter but status=damaged: torn\n"
    assert run(["runs", "list", "--runs", str(root), *options, "--format=json"]) == 0
    printed = capsys.readouterr()
    assert printed.out == "[]\n" and "task=math: fits 1 of 4" in printed.err


def test_a_filter_leaves_the_others_out(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["runs", "list", "--runs", str(root), "method=grpo"]) == 0
    printed = capsys.readouterr()
    header, line = printed.out.splitlines()
    assert header.split()[:3] == ["run", "status", "rollouts"] and line.split()[:2] == ["a", "finished"]
    assert "torn" in printed.err


@pytest.mark.parametrize("text", ["stauts=failed", "status", "=failed", "reward=1", ""])
def test_what_is_no_filter(root: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    assert run(["runs", "list", text, "--runs", str(root)]) == 2
    assert f"{text}: is not a filter." in (said := capsys.readouterr().err) and "since, until" in said


def test_two_dates_are_one_too_many(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["runs", "list", "since=3d", "since=4d", "--runs", str(root)]) == 2
    assert "since=3d since=4d: give one of them" in capsys.readouterr().err
