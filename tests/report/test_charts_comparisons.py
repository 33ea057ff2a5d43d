"""pass@k over k, effects and reasons: the numbers are those of the samples, the comparison and the records."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from rlvr_cli.compare.read import read_scores
from rlvr_cli.compare.request import CompareRequest
from rlvr_cli.compare.results import compare_task
from rlvr_cli.compare.words import VERDICTS
from rlvr_cli.core.errors import RunError
from rlvr_cli.report.charts.effects import effects_figure
from rlvr_cli.report.charts.over_k import over_k_figures
from rlvr_cli.report.charts.reasons import reasons_figure
from rlvr_cli.stats.clustered import crossed_interval
from rlvr_cli.stats.passk import majority_at_k, pass_at_k
from rlvr_cli.store.evaluation import Evaluation, read_evaluation
from tests.compare.made_runs import make_run
from tests.report.charted_runs import charted, column, texts

RIGHT = [[0, 1, 1, 2, 3, 6], [1, 1, 2, 2, 5, 6], [0, 0, 2, 3, 4, 6]]


def evaluations(root: Path, method: str, rows: list[list[int]] = RIGHT, samples: int = 6) -> list[Evaluation]:
    runs = [
        make_run(root, f"{method}-s{seed}", method=method, seed=seed, right=right, samples=samples)
        for seed, right in enumerate(rows)
    ]
    return [read_evaluation(next(run.eval_dir.glob("*/metrics.json")).parent) for run in runs]


def test_every_k_is_of_the_same_samples_with_the_interval_over_runs_and_problems(tmp_path: Path) -> None:
    passed, majority = over_k_figures({"grpo": evaluations(tmp_path, "grpo"), "lopti": []})
    assert (passed.key, majority.key) == ("pass-over-k", "maj-over-k")
    assert column(passed, "samples k") == ["1", "2", "4", "6"]
    for place, k in enumerate((1, 2, 4, 6)):
        scores = [[pass_at_k(6, right, k) for right in row] for row in RIGHT]
        expected = crossed_interval(scores)
        assert expected.low is not None and expected.high is not None
        assert column(passed, "mean")[place] == f"{100 * np.mean(scores):.1f}%"
        assert column(passed, "low")[place] == f"{100 * max(0, expected.low):.1f}%"
        assert column(passed, "high")[place] == f"{100 * min(1, expected.high):.1f}%"
        # Of the runs made here, every wrong answer is another one.
        votes = [
            majority_at_k(["gold" if i < right else str(i) for i in range(6)], [i < right for i in range(6)], k)
            for row in RIGHT
            for right in row
        ]
        assert column(majority, "mean")[place] == f"{100 * np.mean(votes):.1f}%"
    assert "3 runs x 6 problems x 6 samples" in " ".join(passed.sentences)
    assert "Not evaluated: lopti." in " ".join(passed.sentences)


def test_where_samples_differ_in_number_all_runs_give_the_first_that_all_have(tmp_path: Path) -> None:
    few = evaluations(tmp_path, "lopti", [[4, 0, 2, 1, 1, 3]], samples=4)
    passed, _ = over_k_figures({"grpo": evaluations(tmp_path, "grpo", RIGHT[:1]), "lopti": few})
    assert column(passed, "samples k", arm="grpo") == ["1", "2", "4"]
    # The first of these samples are the right ones, so of 6 right ones in 6 there are 4 in 4.
    assert column(passed, "mean", arm="grpo")[0] == f"{100 * np.mean([0, 1, 1, 2, 3, 4]) / 4:.1f}%"
    assert "for one run over problems alone" in " ".join(passed.sentences)


def test_one_sample_has_no_k_and_damaged_samples_are_named(tmp_path: Path) -> None:
    assert over_k_figures({"a": evaluations(tmp_path, "dapo", RIGHT[:1], samples=1)}) == []
    assert over_k_figures({}) == []
    (one,) = evaluations(tmp_path, "grpo", RIGHT[:1])
    path = one.folder / "samples.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[1:]))
    with pytest.raises(RunError, match=r"samples\.jsonl"):
        over_k_figures({"a": [one]})


def test_effects_are_the_comparisons_differences_around_a_zero(tmp_path: Path) -> None:
    evaluations(tmp_path, "grpo")
    evaluations(tmp_path, "lopti", [[right + (right < 6) for right in row] for row in RIGHT])
    evaluations(tmp_path, "dapo", RIGHT[::-1])
    request = CompareRequest(names=(str(tmp_path),), root=tmp_path, baseline="grpo")
    comparison = compare_task(read_scores(request).first)
    figure = effects_figure(comparison, {"grpo": 0, "dapo": 1, "lopti": 2})
    assert column(figure, "arm") == [row.arm for row in comparison.rows if row.contrast]
    for row in comparison.rows:
        if row.contrast is None:
            continue
        difference = row.contrast.difference
        assert difference.low is not None and difference.high is not None
        shown = [f"{100 * value:+z.1f}" for value in (difference.value, difference.low, difference.high)]
        assert [column(figure, name, arm=row.arm)[0] for name in ("difference, points", "low", "high")] == shown
        assert f"{shown[0]} ({shown[1]} to {shown[2]})" in texts(figure)
        assert column(figure, "verdict", arm=row.arm) == [VERDICTS[row.contrast.verdict]]
    assert {"0", "better →", "← worse", "points, minus grpo"} <= set(texts(figure))
    # What is drawn of an arm can be hidden with it.
    assert set(re.findall('data-arm="([0-9])"', figure.panels[0].svg)) == {"1", "2"}


def test_reasons_are_the_first_rollout_and_the_last_ones(tmp_path: Path) -> None:
    rates = [np.linspace(start, 0.9, 40) for start in (0.1, 0.2, 0.4)]
    runs = [
        charted(
            tmp_path,
            f"r{place}",
            [{"reason/correct": rate, "reason/wrong": 1 - rate, "reason/too_long": 0.0} for rate in row],
        )
        for place, row in enumerate(rates)
    ]
    figure = reasons_figure({"a": runs, "b": runs[:1]})
    assert figure is not None
    last = [row[-5:].mean() for row in rates]
    low, high = stats.t.interval(0.95, 2, np.mean(last), stats.sem(last))
    header, *_ = figure.table
    (row,) = [row for row in figure.table if row[:2] == ("correct", "a")]
    assert row[header.index("first rollout")] == f"{100 * np.mean([0.1, 0.2, 0.4]):.1f}%"
    assert row[header.index("last rollouts") :] == (
        f"{100 * np.mean(last):.1f}%",
        f"{100 * low:.1f}%",
        f"{100 * high:.1f}%",
        "3",
    )
    assert "Never observed: too_long." in " ".join(figure.sentences)
    assert {"correct", "wrong", "a", "b"} <= set(texts(figure))
    # Of few runs each is drawn, in place of an interval as wide as the chart.
    assert "Ticks: single runs" in " ".join(figure.sentences) and "is in the table." in " ".join(figure.sentences)
