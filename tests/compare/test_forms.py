"""JSON, CSV, Markdown and LaTeX say the same."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlvr_cli.compare import compare
from rlvr_cli.core.table import latex_text
from rlvr_cli.evaluation.tables import metric_value_text, with_interval
from tests.compare.conftest import BASE, BETTER
from tests.compare.made_runs import make_run

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


def test_options_of_a_frame_may_be_single_words(two_arms: Path) -> None:
    frame = compare("grpo-s*", "lopti-s*", root=two_arms, by="method.name", where="split=test")
    assert list(frame["arm"]) == ["lopti", "grpo"]


def test_latex_is_one_table_with_everything_escaped(root: Path, told: Told) -> None:
    for seed in range(2):
        make_run(root, f"a{seed}", seed=seed, right=BASE)
        make_run(root, f"b{seed}", seed=seed, right=BETTER, overrides=["rollout.group_size=4"])
    text = told("a*", "b*", "--format=latex")
    body = [line for line in text.splitlines() if not line.startswith("%")]
    assert body[0] == r"\begin{tabular}{lrrrrrrr}" and body[-1] == r"\end{tabular}"
    assert body[1] == r"\toprule" and body[-2] == r"\bottomrule"
    rows = [line for line in body if line.endswith(r"\\")]
    assert len(rows) == 3 and all(len(re.findall(r"(?<!\\)&", row)) == 7 for row in rows)
    assert r"group\_size=4" in text
    assert not re.search(r"(?<!\\)[%_#$]", "\n".join(body[2:-1]))
    assert latex_text(r"a_b%c&d\e{f}^~<") == (
        r"a\_b\%c\&d\textbackslash{}e\{f\}\textasciicircum{}\textasciitilde{}\textless{}"
    )


def test_markdown_is_a_table_between_lists(two_arms: Path, told: Told) -> None:
    text = told("grpo-s*", "lopti-s*", "--format=markdown")
    before, table, after = text.strip().split("\n\n")
    assert all(line.startswith("- ") for line in [*before.splitlines(), *after.splitlines()])
    lines = table.splitlines()
    assert len(lines) == 4 and {line.count("|") for line in lines} == {9}
    assert "lopti is better than grpo by" in after


def test_what_rounds_to_zero_has_no_minus() -> None:
    assert metric_value_text("avg@8", -0.0004, signed=True) == "+0.000" and metric_value_text("length", -0.04) == "0.0"


def test_an_interval_on_one_side_of_zero_is_seen_to_be() -> None:
    def said(low: float, high: float) -> str:
        return with_interval("avg@8", {"value": (low + high) / 2, "low": low, "high": high}, signed=True)

    assert said(0.0004, 0.156) == "+0.078 [+0.0004, +0.156]"
    assert said(-0.156, -0.0004) == "-0.078 [-0.156, -0.0004]"
    assert said(-0.0004, 0.156) == "+0.078 [+0.000, +0.156]"
