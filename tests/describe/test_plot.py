"""The picture shows the curves, all of them, and is the same file for the same numbers."""

from __future__ import annotations

import itertools
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure

from rlvr_cli.charts.figure import COLOURS, check_path, style, write_figure
from rlvr_cli.core.errors import UserError
from rlvr_cli.describe.named import policy_config
from rlvr_cli.describe.plot import weight_figure
from rlvr_cli.describe.weights import Curves, weight_curves
from rlvr_cli.methods.names import BASES, MODIFIERS

NAMES = [*(name for name in BASES if name != "sft"), *(f"grpo+{modifier}" for modifier in MODIFIERS)]


def curves(*names: str, old_probs: tuple[float, ...] = (0.1,)) -> Curves:
    return weight_curves([policy_config(name).bound(1) for name in names], old_probs)


def drawn(found: Curves) -> Figure:
    with style():
        return weight_figure(found)


def test_a_panel_for_each_sign_and_kind_with_a_line_for_each_method() -> None:
    found = curves("dgpo", "grpo")
    figure = drawn(found)
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == [
        "weight on grad log π,  A < 0",
        "weight on grad log π,  A > 0",
        "weight on grad π,  A < 0",
        "weight on grad π,  A > 0",
    ]
    for axes, (kind, sign) in zip(figure.axes, itertools.product(("on_log_prob", "on_prob"), (-1, 1)), strict=True):
        # The first line of a panel is the weight without any clip.
        lines = axes.get_lines()[1:]
        of_panel = [curve for curve in found.curves if curve.sign == sign]
        for line, curve in zip(lines, of_panel, strict=True):
            assert list(line.get_xdata()) == curve.ratios.tolist()
            assert list(line.get_ydata()) == getattr(curve, kind).tolist()


def test_a_row_for_each_old_probability() -> None:
    figure = drawn(curves("dgpo", "grpo", old_probs=(0.1, 0.5, 0.9)))
    assert len(figure.axes) == 12
    assert [axes.get_ylabel() for axes in figure.axes[::4]] == ["p = 0.1", "p = 0.5", "p = 0.9"]
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["dgpo", "grpo", "never clipped", "trust region 0.8 to 1.2", "π would exceed 1"]


@pytest.mark.parametrize("names", [NAMES[first : first + len(COLOURS)] for first in range(0, len(NAMES), len(COLOURS))])
def test_every_method_and_modifier_can_be_drawn(names: list[str], tmp_path: Path) -> None:
    with style():
        write_figure(weight_figure(curves(*names)), tmp_path / "weights.png")
    assert (tmp_path / "weights.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_equal_numbers_give_equal_bytes(suffix: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        with style():
            write_figure(weight_figure(curves("dgpo", "grpo")), tmp_path / f"{name}.{suffix}")
    assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()


def test_an_svg_is_xml_without_a_date(tmp_path: Path) -> None:
    path = tmp_path / "weights.SVG"
    with style():
        write_figure(weight_figure(curves("grpo")), path)
    assert ElementTree.parse(path).getroot().tag.endswith("svg")
    assert "<dc:date>" not in path.read_text()


def test_a_failed_write_leaves_the_old_picture_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "weights.png"
    path.write_text("the old one")

    def fail(*_: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr("rlvr_cli.core.files.os.fsync", fail)
    with style(), pytest.raises(OSError, match="no space"):
        write_figure(weight_figure(curves("grpo")), path)
    assert [file.name for file in tmp_path.iterdir()] == ["weights.png"]
    assert path.read_text() == "the old one"


@pytest.mark.parametrize("name", ["weights.pdf", "weights", "missing/weights.png", "folder.png"])
def test_a_file_that_cannot_be_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(UserError):
        check_path(tmp_path / name)
