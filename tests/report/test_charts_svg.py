"""A chart stands in any page: its colours and font, no id twice, nothing from outside, nobody's markup."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rlvr_cli.report.charts.chart import Chart
from rlvr_cli.report.charts.learning import learning_figures
from rlvr_cli.report.charts.reasons import reasons_figure
from tests.report.charted_runs import charted

HOSTILE = "</text><script>1</script> $x^2$ \x00\x1b[31m \u202e&amp; 日"
MOST_NAMES = "</text><script>1</script> $x^2$ \\x00\\x1b[31m \\u202e&amp; 日"
ROWS = [
    {"reward": 1.0, "accuracy": 0.2, "entropy": 0.5, "clip_frac/low": 0.1, "reason/correct": 0.2, "reason/wrong": 0.8},
    {"reward": 2.0, "accuracy": 0.4, "entropy": 0.4, "clip_frac/low": 0.3, "reason/correct": 0.4, "reason/wrong": 0.6},
]


def draw(root: Path) -> list[Chart]:
    arms = {name: [charted(root, f"r{place}", ROWS)] for place, name in enumerate(("grpo", HOSTILE))}
    reasons = reasons_figure(arms)
    assert reasons is not None
    return [*learning_figures(arms), reasons]


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> list[Chart]:
    return draw(tmp_path_factory.mktemp("runs"))


def test_equal_numbers_give_equal_bytes(figures: list[Chart], tmp_path: Path) -> None:
    assert figures == draw(tmp_path)


def test_a_hostile_name_is_text(figures: list[Chart]) -> None:
    for figure in figures:
        pictures = "".join(panel.svg for panel in figure.panels)
        assert "<script" not in pictures
        assert not re.search("[\x00-\x08\x1b\u202e]", pictures + " ".join(figure.sentences) + str(figure.table))
        assert MOST_NAMES in {cell for row in figure.table for cell in row}
