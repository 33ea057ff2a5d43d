"""The course of a run in single numbers, from lines of metrics.jsonl written by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rlvr_cli.analyses.base import AnalysisInput, records, summary_of
from rlvr_cli.analyses.landscape import ANALYSIS, LandscapeOptions, find_warning, make_trajectory, measure
from rlvr_cli.charts.figure import render_svg
from rlvr_cli.config.load import dump_yaml, load_config
from rlvr_cli.core.files import append_jsonl
from rlvr_cli.runs.folder import RunDir, create_run


def line(rollout: int, update: int = 0, **values: Any) -> dict[str, Any]:
    steady = {"accuracy": 0.5, "length": 20.0, "entropy": 0.2, "grad_norm": 1.0, "truncated": 0.0, "diversity": 0.9}
    moves = {
        "ratio_mean": 1.0,
        "ratio_std": 0.0,
        "kl_old": 0.0,
        "kl_reference": 0.0,
        "clip_frac/low": 0.0,
        "clip_frac/high": 0.0,
    }
    return {"step": 1, "rollout": rollout, "update": update, **steady, **moves, **values}


def lines(count: int = 12, **series: Sequence[Any]) -> list[dict[str, Any]]:
    return [line(place, **{name: values[place] for name, values in series.items()}) for place in range(count)]


def test_starts_ends_and_extremes() -> None:
    accuracy = [0.1, 0.2, 0.3, 0.9, 0.8, 0.5, 0.5, 0.5, 0.5, 0.5]
    length = [10.0, 20.0, 30.0, 100.0, 5.0, 40.0, 40.0, 40.0, 40.0, 40.0]
    found = make_trajectory(lines(10, accuracy=accuracy, length=length), 16).summary
    expected = {
        "accuracy_start": 0.2,
        "accuracy_best": 0.9,
        "accuracy_end": 0.5,
        "accuracy_loss": 0.4,
        "accuracy_gain": 0.3,
        "length_start": 20,
        "length_end": 40,
        "length_ratio": 2,
        "length_largest_ratio": 5,
        "length_smallest_ratio": 0.25,
        "grad_norm_mean": 1,
        "rollouts": 10,
        "updates": 10,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    unknown = ("accuracy_held_out", "value_correct_end", "value_incorrect_end", "prob_distance_mean", "kl_warning_at")
    assert all(found[name] is None for name in unknown)


def test_a_value_of_a_rollout_is_the_mean_over_its_updates() -> None:
    """RMS of r - 1 is sqrt(spread^2 + (mean - 1)^2): 0 and 0.5, so 0.25; clipped is LN + HP."""
    rows = [
        line(rollout, update, **moved)
        for rollout in range(6)
        for update, moved in enumerate(
            (
                {"prob_distance": 0.0},
                {
                    "ratio_mean": 1.3,
                    "ratio_std": 0.4,
                    "clip_frac/low": 0.1,
                    "clip_frac/high": 0.2,
                    "prob_distance": 0.02,
                },
            )
        )
    ]
    found = make_trajectory(rows, 16).summary
    assert found["ratio_distance_mean"] == pytest.approx(0.25)
    assert found["prob_distance_mean"] == pytest.approx(0.01)
    assert found["clip_share_mean"] == pytest.approx(0.15)
    assert (found["steps_per_rollout"], found["updates"], found["rollouts"]) == (2, 12, 6)


def test_a_length_that_stays_short_has_collapsed_and_one_that_comes_back_has_not() -> None:
    stays = [20.0, 20, 20, 9, 20, 9, 9, 9, 9, 9, 9, 9]
    comes_back = [20.0, 20, 20, 9, 9, 9, 9, 20, 20, 20, 20, 20]
    explodes = [20.0, 20, 20, 20, 20, 20, 20, 41, 41, 41, 41, 41]
    assert make_trajectory(lines(length=stays), 16).summary["length_collapse_at"] == 6
    assert make_trajectory(lines(length=comes_back), 16).summary["length_collapse_at"] is None
    assert make_trajectory(lines(length=explodes), 16).summary["length_explosion_at"] == 8
    assert make_trajectory(lines(), 16).summary["length_explosion_at"] is None


def test_a_warning_is_far_from_the_first_rollouts_for_three_in_a_row() -> None:
    start = [1.0, 1.1, 0.9, 1.0, 1.0]  # standard deviation 0.0707: the bound is 0.283
    after = [1.2, 1.3, 1.0, 1.29, 1.3, 1.4]
    assert find_warning(list(enumerate([*start, *after]))) == 9
    assert find_warning(list(enumerate([*start, 1.2, 1.3, 1.0, 0.7, 0.7, 0.7]))) == 9
    assert find_warning(list(enumerate([*start, 1.3, 1.3, 1.0]))) is None
    assert find_warning(list(enumerate(start))) is None


def test_the_lead_of_entropy_over_kl() -> None:
    entropy = [0.2, 0.21, 0.2, 0.19, 0.2, 0.2, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9]
    kl = [0.0, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.5, 0.5, 0.5]
    found = make_trajectory(lines(entropy=entropy, kl_reference=kl), 16)
    assert [found.summary[f"{name}_warning_at"] for name in ("entropy", "kl")] == [7, 10]
    assert (found.summary["entropy_warning_lead"], found.summary["entropy_warning_first"]) == (3, 1)
    # Without a reference the policy that sampled stands in; one that never warns is later than one that does.
    noise = [0.001, *[0.0] * 10, 0.001]
    twice = [row | {"update": update} for row in lines(entropy=entropy, kl_old=noise) for update in (0, 1)]
    late = make_trajectory(twice, 16)
    assert late.summary["entropy_warning_lead"] is None
    assert late.summary["entropy_warning_first"] == 1
    assert make_trajectory(lines(kl_reference=kl), 16).summary["entropy_warning_first"] == -1
    assert make_trajectory(lines(kl_reference=[0.1] * 12), 16).summary["entropy_warning_first"] == 0
    # With one update it is the policy that sampled, and its divergence is rounding.
    assert make_trajectory(lines(entropy=entropy, kl_old=noise), 16).summary["entropy_warning_lead"] is None


def make_run(root: Path, name: str, rows: Sequence[dict[str, Any]], method: str = "grpo", seed: int = 0) -> RunDir:
    run = create_run(root, name, overwrite=False)
    config = load_config(method=method, overrides=[f"run.seed={seed}", f"run.dir={root}", f"run.name={name}"])
    run.config_path.write_text(dump_yaml(config), encoding="utf-8")
    run.update_manifest(name=name, status="finished", method=method, seed=seed)
    append_jsonl(run.metrics_path, rows)
    return run


def test_runs_of_one_arm_are_averaged_and_one_run_is_flat(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path, "a", lines(10, accuracy=[0.4] * 10), seed=0),
        make_run(tmp_path, "b", lines(10, accuracy=[0.6] * 10), seed=1),
        make_run(tmp_path, "c", lines(10, accuracy=[0.1] * 10), method="pl"),
    ]
    found = measure(AnalysisInput(tuple(runs), tmp_path), LandscapeOptions())
    by_run = {row["run"]: row for row in records(found["runs"])}
    assert {run: row["arm"] for run, row in by_run.items()} == {"a": "grpo", "b": "grpo", "c": "pl"}
    assert summary_of(found) == {}
    means = {(row["arm"], row["number"]): row for row in records(found["arms"])}
    assert means["grpo", "accuracy_end"]["mean"] == pytest.approx(0.5)
    assert "</svg>" in render_svg(ANALYSIS.plot(found))
    alone = measure(AnalysisInput((runs[0],), tmp_path), LandscapeOptions())
    summary = summary_of(alone)
    assert summary == {name: by_run["a"][name] for name in summary}
    assert all(value is None or math.isfinite(value) for value in summary.values())
    cut = measure(AnalysisInput((runs[0],), tmp_path, rollout=6), LandscapeOptions())
    assert summary_of(cut)["rollouts"] == 7
