"""What is declared of metrics, and that sweeps, comparisons and charts go by it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlvr_cli.compare.words import comparative, format_amount
from rlvr_cli.evaluation.estimates import problem_metrics
from rlvr_cli.evaluation.settings import EvalSettings
from rlvr_cli.report.charts.learning import learning_figures
from rlvr_cli.store.metrics import METRICS, SFT, Metric, problem_value, training_metrics
from rlvr_cli.store.metrics import metric as declared
from rlvr_cli.store.training import learning_curves
from rlvr_cli.tasks import Problem
from tests.report.charted_runs import by_key, charted, column, texts


def test_a_metric_is_added_by_its_declaration_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluations, objectives of sweeps, curves and a report's figures take it from there."""
    answered = Metric(
        "answered",
        share=True,
        unit="points",
        better="higher",
        of_sample=lambda sample: float(sample["answer"] is not None),
        training=(SFT,),
        curve="answered",
        axis="completions with an answer",
        note="Right or wrong.",
    )
    monkeypatch.setitem(METRICS, "answered", answered)
    line = {"correct": True, "reward": 1.0, "parts": {}, "tokens": 3, "truncated": False, "reason": "correct"}
    samples = {("p", index): {**line, "answer": answer} for index, answer in enumerate(["K", None])}
    (row,) = problem_metrics(
        [Problem("p", "?", {}, "all")], samples, EvalSettings(samples=2, pass_at=(1,), greedy=False), ()
    )
    assert row.values["answered"] == problem_value("answered", list(samples.values())) == 0.5
    assert "answered" in training_metrics(SFT)
    assert declared("answered").higher_is_better is True
    assert learning_curves([{"rollout": 0, "answered": 0.5}]) == {"answered": ((0, 0.5),)}
    assert format_amount("answered", 0.25) == "25 points"
    rows = [{"answered": 0.5, "answered/se": 0.05}, {"answered": 0.75}]
    (figure,) = learning_figures({"a": [charted(tmp_path, "imitated", rows, method="sft")]})[-1:]
    assert (figure.key, figure.title) == ("answered", "Answered")
    assert " ".join(figure.sentences).startswith("Right or wrong.") and "completions with an answer" in texts(figure)
    assert column(figure, "mean") == ["50.0%", "75.0%"]
    # The interval over the prompts of the rollout that has a standard error.
    assert [low != "-" for low in column(figure, "low")] == [True, False]
    # It is declared for imitation alone.
    sampled = learning_figures({"a": [charted(tmp_path, "sampled", rows)]})
    assert "answered" not in by_key(sampled)


def test_one_declaration_decides_everywhere() -> None:
    for name, better, of in [
        ("avg@4", True, "points"),
        ("pass@32", True, "points"),
        ("greedy", True, "points"),
        ("truncated", False, "points"),
        ("reason/correct", True, "points"),
        ("reason/wrong", None, "points"),
        ("reward", True, "of reward"),
        ("reward/format", True, "of reward"),
        ("length", None, "tokens"),
        ("loss", False, "nats"),
        ("entropy", None, "nats"),
        ("grad_norm", None, ""),
    ]:
        assert declared(name).higher_is_better is better, (name, better, of)
        assert declared(name).unit == of, (name, better, of)
        assert declared(name).factor == (100.0 if of == "points" else 1.0), (name, better, of)
        if better is not None:
            assert comparative(name, 0.1) == ("better than" if better else "worse than"), (name, better, of)
            assert comparative(name, -0.1) == ("worse than" if better else "better than"), (name, better, of)
