"""The picture shows the curves, all of them, and is the same file for the same numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from rlvr_cli.charts.figure import COLOURS, check_path, write_chart
from rlvr_cli.core.errors import UserError
from rlvr_cli.describe.named import policy_config
from rlvr_cli.describe.plot import KINDS, weight_chart
from rlvr_cli.describe.weights import Curves, weight_curves
from rlvr_cli.methods.names import BASES, MODIFIERS

NAMES = [*(name for name in BASES if name != "sft"), *(f"grpo+{modifier}" for modifier in MODIFIERS)]


def curves(*names: str, old_probs: tuple[float, ...] = (0.1,)) -> Curves:
    return weight_curves([policy_config(name).with_max_length(1) for name in names], old_probs)


def panels(drawn: Curves) -> list[tuple[str, dict[str, list[tuple[float, float]]]]]:
    """Each panel's title, and the points of each line of a method in it."""
    spec = weight_chart(drawn).to_dict()
    read = []

    def walk(chart: dict[str, Any]) -> None:
        for inner in chart.get("hconcat", chart.get("vconcat", [])):
            walk(inner)
        if "layer" in chart:
            kind = chart["layer"][-1]["encoding"]["y"]["field"]
            lines: dict[str, list[tuple[float, float]]] = {}
            for row in spec["datasets"][chart["data"]["name"]]:
                lines.setdefault(row["label"], []).append((row["ratio"], row[kind]))
            read.append((chart["title"], lines))

    walk(spec)
    return read


@pytest.mark.parametrize("old_probs", [(0.1,), (0.1, 0.5, 0.9)])
def test_each_panel_has_the_points_of_its_curves(old_probs: tuple[float, ...]) -> None:
    drawn = curves("dgpo", "grpo", old_probs=old_probs)
    expected = []
    for old_prob in old_probs:
        for kind, words in KINDS.items():
            for sign, advantage in ((-1, "A < 0"), (1, "A > 0")):
                title = f"{words},  {advantage}" + (f",  p = {old_prob:g}" if len(old_probs) > 1 else "")
                lines = {
                    curve.label: list(zip(curve.ratios.tolist(), getattr(curve, kind).tolist(), strict=True))
                    for curve in drawn.curves
                    if (curve.sign, curve.old_prob) == (sign, old_prob)
                }
                expected.append((title, lines))
    assert panels(drawn) == expected


@pytest.mark.parametrize("names", [NAMES[first : first + len(COLOURS)] for first in range(0, len(NAMES), len(COLOURS))])
def test_every_method_and_modifier_can_be_drawn(names: list[str], tmp_path: Path) -> None:
    write_chart(weight_chart(curves(*names)), tmp_path / "weights.png")
    assert (tmp_path / "weights.png").read_bytes().startswith(b"\x89PNG")


def test_equal_numbers_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("a.SVG", "b.SVG"):
        write_chart(weight_chart(curves("dgpo", "grpo")), tmp_path / name)
    assert (tmp_path / "a.SVG").read_bytes() == (tmp_path / "b.SVG").read_bytes()
    assert ElementTree.parse(tmp_path / "a.SVG").getroot().tag.endswith("svg")


@pytest.mark.parametrize("name", ["weights.pdf", "weights", "missing/weights.png", "folder.png"])
def test_a_file_that_cannot_be_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(UserError):
        check_path(tmp_path / name)
