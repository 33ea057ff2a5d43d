"""A collapse that lasts to the end is at the top of the page; so is an alert that was resolved, as such."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.collapse.test_alerts import HARM, PROBLEMS, run_of
from tests.compare.made_runs import make_run
from tests.report_page.page_reader import Page

BAD = {"length": 900.0, **HARM}
LONG = ["train.rollouts=40", f"rollout.prompts={PROBLEMS}"]


ALERT = "grpo: accuracy drop and length explosion in 1 of 1 run (bad)"


@pytest.mark.parametrize(
    ("course", "expected", "at_the_end"),
    [
        (((10, {}), (30, BAD)), f"collapse {ALERT}.", "active"),
        (((10, {}), (10, BAD), (20, {})), f"alert {ALERT}, resolved.", "resolved"),
    ],
)
def test_collapses_and_alarms(
    tmp_path: Path,
    report: Callable[..., Page],
    course: tuple[tuple[int, dict[str, float]], ...],
    expected: str,
    at_the_end: str,
) -> None:
    made = make_run(tmp_path / "runs", "bad", overrides=LONG)
    lines: list[dict[str, Any]] = [json.loads(line) for line in made.metrics_path.read_text().splitlines()]
    merged = [{**line, **numbers} for line, numbers in zip(lines, run_of(*course), strict=True)]
    made.metrics_path.write_text("".join(json.dumps(line) + "\n" for line in merged))
    page = report(made.path)
    assert expected in page.sections["answer"]
    assert "length 900 from 400 at the start" in page.sections["alerts"]
    assert at_the_end in page.sections["alerts"]
