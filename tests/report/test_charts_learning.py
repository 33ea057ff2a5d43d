"""Learning curves show the numbers of the records: means and bands as SciPy has them, nothing smoothed unsaid."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from rlvr_cli.charts.lines import running_mean
from rlvr_cli.compare.read import read_scores
from rlvr_cli.compare.request import CompareRequest
from rlvr_cli.compare.results import compare_task
from rlvr_cli.core.errors import RunError
from rlvr_cli.report.charts.chart import thin
from rlvr_cli.report.charts.learning import learning_figures
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.stats.intervals import share_interval_of_error
from rlvr_cli.store.find import Run
from tests.compare.made_runs import make_run
from tests.report.charted_runs import by_key, charted, column, elements, found, heights, texts, thin_lines

REWARDS = [[0.1, 0.5, 0.9, 1.0], [0.0, 0.7, 0.8, 1.4], [-0.4, 0.2, 1.1, 1.3]]


def test_the_line_is_the_mean_over_runs_and_the_band_students_interval(tmp_path: Path) -> None:
    runs = [charted(tmp_path, f"r{i}", [{"reward": value} for value in row]) for i, row in enumerate(REWARDS)]
    figure = by_key(learning_figures({"grpo": runs}))["reward"]
    table = np.array(REWARDS)
    low, high = stats.t.interval(0.95, 2, table.mean(0), stats.sem(table, axis=0))
    assert column(figure, "rollouts") == ["1", "2", "3", "4"]
    assert column(figure, "mean") == [f"{value:.4g}" for value in table.mean(0)]
    assert column(figure, "low") == [f"{value:.4g}" for value in low]
    assert column(figure, "high") == [f"{value:.4g}" for value in high]
    assert set(column(figure, "runs")) == {"3"}
    assert "mean over 3 runs" in " ".join(figure.sentences)
    # The picture is the same numbers on a linear scale.
    slope, start = np.polyfit(table.mean(0), heights(figure), 1)
    assert slope > 0
    assert np.allclose(heights(figure), start + slope * table.mean(0), atol=0.2)


def test_a_mean_ends_where_the_shortest_run_does_and_the_others_go_on_thin(tmp_path: Path) -> None:
    short = charted(tmp_path, "short", [{"reward": 0.0}, {"reward": 1.0}])
    same = charted(tmp_path, "same", [{"reward": 2.0}, {"reward": 2.0}])
    long = charted(tmp_path, "long", [{"reward": 1.0}, {"reward": 3.0}, {"reward": 9.0}])
    figure = by_key(learning_figures({"a": [short, same, long], "b": [long]}))["reward"]
    assert column(figure, "mean", arm="a") == ["1", "2"]
    assert "a at 2 rollouts" in " ".join(figure.sentences)
    # The three thin runs of a; the longest goes on after the mean.
    assert sorted(one.count("L") + 1 for one in thin_lines(figure)) == [2, 2, 3]


def test_one_run_has_the_interval_over_the_problems_of_its_rollouts(tmp_path: Path) -> None:
    rows = [{"accuracy": 0.5, "accuracy/se": 0.05}, {"accuracy": 0.98, "accuracy/se": 0.04}]
    rows += [{"accuracy": 0.0, "accuracy/se": 0.0}]
    figure = by_key(learning_figures({"a": [charted(tmp_path, "r", rows, overrides=["rollout.prompts=8"])]}))[
        "accuracy"
    ]
    # As of a held-out evaluation: no share is above 1, and problems that agree are no certainty.
    ends = [share_interval_of_error(*one, 8) for one in ((0.5, 0.05), (0.98, 0.04), (0.0, 0.0))]
    low, high = (
        [f"{100 * (end or 0.0):.1f}%" for end in side] for side in zip(*((e.low, e.high) for e in ends), strict=True)
    )
    assert column(figure, "low") == low and column(figure, "high") == high
    assert 0.95 < (ends[1].high or 0.0) < 1.0 and 0.3 < (ends[2].high or 0.0) < 0.5
    assert "95% interval over a rollout's problems is in the table" in " ".join(figure.sentences)
    # It is no band: it would fill the chart, and says nothing of other runs.
    assert not any(one.get("fill") == "var(--c0)" for one in elements(figure))
    (panel,) = figure.panels
    assert panel.lines[0].values[0] == f"50.0% ({low[0]} to {high[0]})"


def evaluated(root: Path, name: str, held_out: dict[int, list[int]], **more: Any) -> Run:
    """A run with these held-out evaluations, told in its metrics as training does."""
    run = make_run(root, name, held_out=held_out, **more)
    rows = [json.loads(line) for line in run.metrics_path.read_text().splitlines()]
    for rollouts in held_out:
        metrics = held_out_metrics(run, rollouts)
        rows[rollouts - 1]["eval"] = {name: metric["value"] for name, metric in metrics.items()}
    run.metrics_path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return found(run)


def held_out_metrics(run: RunDir, rollouts: int) -> dict[str, Any]:
    path = run.held_out_dir / f"rollout-{rollouts:06d}" / "metrics.json"
    metrics: dict[str, Any] = json.loads(path.read_text())["metrics"]
    return metrics


def test_several_runs_have_the_interval_of_the_comparison_at_equal_budget(tmp_path: Path) -> None:
    counts = [[0, 1, 2, 4, 4, 1], [1, 1, 3, 4, 2, 1], [2, 2, 2, 3, 4, 0], [1, 0, 0, 4, 3, 2]]
    for method in ("grpo", "dapo"):
        for seed in range(3):
            held_out = {2: counts[seed], 4: counts[seed + 1] if method == "grpo" else counts[3 - seed]}
            evaluated(tmp_path, f"{method}-s{seed}", held_out, method=method, seed=seed)
    comparison = compare_task(
        read_scores(CompareRequest(names=(str(tmp_path),), root=tmp_path, match="rollouts")).first
    )
    arms = {name: [found(RunDir(tmp_path / f"{name}-s{seed}")) for seed in range(3)] for name in ("grpo", "dapo")}
    figure = by_key(learning_figures(arms))["held-out-accuracy"]
    for row in comparison.rows:
        last = {name: column(figure, name, arm=row.arm)[-1] for name in ("mean", "low", "high")}
        assert row.mean.low is not None and row.mean.high is not None
        ends = {"mean": row.mean.value, "low": row.mean.low, "high": row.mean.high}
        assert last == {name: f"{100 * value:.1f}%" for name, value in ends.items()}
    assert "over runs and problems" in " ".join(figure.sentences)
    # Without the problems' values there are the runs' means alone.
    shutil.rmtree(arms["grpo"][0].dir.held_out_dir)
    arms["grpo"][0] = found(arms["grpo"][0].dir)
    figure = by_key(learning_figures(arms))["held-out-accuracy"]
    means = [sum(counts[seed]) / 24 for seed in range(3)]
    low, _ = stats.t.interval(0.95, 2, np.mean(means), stats.sem(means))
    assert column(figure, "low", arm="grpo")[0] == f"{100 * max(0.0, low):.1f}%"
    assert "over runs alone" in " ".join(figure.sentences)


def test_one_run_has_the_interval_of_its_held_out_evaluations(tmp_path: Path) -> None:
    run = evaluated(tmp_path, "r", {2: [0, 1, 2, 4, 4, 1], 4: [2, 2, 2, 4, 4, 4]})
    ends = {rollouts: held_out_metrics(run.dir, rollouts)["avg@4"] for rollouts in (2, 4)}
    figures = by_key(learning_figures({"a": [run]}))
    figure = figures["held-out-accuracy"]
    assert column(figure, "rollouts") == ["2", "4"]
    for name, key in (("mean", "value"), ("low", "low"), ("high", "high")):
        assert column(figure, name) == [f"{100 * end[key]:.1f}%" for end in ends.values()]
    assert "pass@4" in texts(figures["held-out-pass-at-k"])
    assert "over problems" in " ".join(figure.sentences)
    (run.dir.held_out_dir / "rollout-000002" / "metrics.json").write_text("[]")
    with pytest.raises(RunError, match="rollout-000002"):
        learning_figures({"a": [found(run.dir)]})


@pytest.mark.parametrize(
    ("budget", "label", "spent"),
    [("updates", "updates", 4), ("tokens", "sampled tokens", 10 * 128), ("seconds", "seconds of training", 10)],
)
def test_a_value_stands_where_its_rollout_was_done_on_the_budget(
    tmp_path: Path, budget: str, label: str, spent: float
) -> None:
    overrides = ["update.mini_batches=4", "rollout.prompts=16", "rollout.group_size=8"]
    run = charted(tmp_path, "r", [{"reward": 1.0}, {"reward": 2.0}], overrides=overrides, seconds=2.5)
    figure = by_key(learning_figures({"a": [run]}, budget))["reward"]
    assert column(figure, label) == [f"{spent:,.6g}", f"{2 * spent:,.6g}"]


def test_what_is_no_finite_number_is_left_out_and_said(tmp_path: Path) -> None:
    rows = [{"grad_norm": value, "entropy": None} for value in (0.5, None, float("nan"), float("inf"), "x", 1e300, 0.7)]
    run = charted(tmp_path, "r", rows)
    figures = by_key(learning_figures({"a": [run], "b": [charted(tmp_path, "empty", [])]}))
    assert column(figures["grad-norm"], "rollouts") == ["1", "7"]
    assert "Dropped: 5 non-finite values" in " ".join(figures["grad-norm"].sentences)
    assert "No values: b." in " ".join(figures["grad-norm"].sentences)
    # Nothing finite, nothing recorded.
    assert "entropy" not in figures
    assert "reward" not in figures
    assert learning_figures({"a": []}) == []


def test_a_long_run_is_a_running_mean_that_says_so_over_all_its_peaks(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    values = generator.normal(1.0, 0.1, 2000)
    values[777] = 5.0
    figure = by_key(learning_figures({"a": [charted(tmp_path, "r", [{"reward": one} for one in values])]}))["reward"]
    assert "50 rollouts" in " ".join(figure.sentences)
    assert "maximum" in " ".join(figure.sentences)
    raw, mean = heights(figure, width="0.8"), heights(figure)
    assert raw.max() > mean.max() + 50
    assert len(raw) <= 100
    chosen = thin(values)
    for part in np.array_split(np.arange(2000), 25):
        assert {part[values[part].argmin()], part[values[part].argmax()]} <= set(chosen)
    assert np.allclose(running_mean(values, 5)[2:-2], np.convolve(values, np.ones(5) / 5, "valid"))
