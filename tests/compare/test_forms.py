"""JSON, CSV, Markdown and LaTeX say the same."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlvr_cli.compare import compare
from rlvr_cli.evaluation.tables import with_interval

Told = Callable[..., str]


def test_csv_reads_back_to_what_json_has(two_arms: Path, told: Told, compared: Callable[..., dict[str, Any]]) -> None:
    rows = list(csv.DictReader(io.StringIO(told("grpo-s*", "lopti-s*", "--format=csv"))))
    arms = compared("grpo-s*", "lopti-s*")["arms"]
    assert [row["arm"] for row in rows] == [arm["arm"] for arm in arms]
    for row, arm in zip(rows, arms, strict=True):
        assert row["benchmark"] == "kk-gen" and row["baseline"] == "grpo" and int(row["problems"]) == 12
        assert row["sentence"] == (arm["sentence"] or "")
        for path in ("mean.value", "mean.low", "difference.high", "difference.p_value", "cost.update_seconds"):
            value: Any = arm
            for key in path.split("."):
                value = None if value is None else value[key]
            assert row[path] == ("" if value is None else repr(value))


def test_a_frame_has_the_columns_of_csv(two_arms: Path, told: Told) -> None:
    frame = compare("grpo-s*", "lopti-s*", root=two_arms, metric="pass@2")
    rows = list(csv.DictReader(io.StringIO(told("grpo-s*", "lopti-s*", "--metric", "pass@2", "--format=csv"))))
    assert list(frame["arm"]) == [row["arm"] for row in rows] == ["lopti", "grpo"]
    for column in ("mean.value", "difference.low", "p_holm"):
        assert repr(float(frame[column][0])) == rows[0][column]


def test_an_interval_on_one_side_of_zero_is_seen_to_be() -> None:
    def said(low: float, high: float) -> str:
        return with_interval("avg@8", {"value": (low + high) / 2, "low": low, "high": high}, signed=True)

    assert said(0.0004, 0.156) == "+0.078 [+0.0004, +0.156]"
    assert said(-0.156, -0.0004) == "-0.078 [-0.156, -0.0004]"
    assert said(-0.0004, 0.156) == "+0.078 [+0.000, +0.156]"
