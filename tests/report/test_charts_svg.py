"""A chart stands in any page: its colours and font, no id twice, nothing from outside, nobody's markup."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rlvr_cli.charts.figure import svg, text_colour, write_chart
from rlvr_cli.core.text import told_apart
from rlvr_cli.report.charts.chart import WIDTH, Chart
from rlvr_cli.report.charts.learning import learning_figures
from rlvr_cli.report.charts.reasons import reasons_figure
from tests.report.charted_runs import SVG, charted

HOSTILE = "</text><script>1</script> $x^2$ \x00\x1b[31m \u202e&amp; 日"
SHOWN = "</text><script>1</script> $x^2$ \\x00\\x1b[31m \\u202e&amp; 日"
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


def test_every_colour_is_the_pages_and_nothing_is_from_outside(figures: list[Chart]) -> None:
    for panel in (panel for figure in figures for panel in figure.panels):
        root = ElementTree.fromstring(panel.svg)
        assert root.tag == f"{SVG}svg"
        assert not {"width", "height"} & set(root.attrib)
        assert root.attrib["role"] == "img" and root.attrib["aria-label"]
        assert float(root.attrib["viewBox"].split()[2]) in (WIDTH, WIDTH / 2)
        painted = {one.get(name) for one in root.iter() for name in ("fill", "stroke")} - {None, "none", "transparent"}
        assert all(str(one).startswith("var(--") for one in painted)
        assert {"var(--ink)", "var(--grid)", "var(--c0)", "var(--c1)"} <= painted
        for element in root.iter():
            assert element.tag.removeprefix(SVG) in ("svg", "g", "path", "line", "rect", "text")
            # No id can be twice in a page, and nothing is pointed to.
            assert not {"id", "href", "style", "clip-path"} & set(element.attrib)
            assert "url(" not in " ".join(element.attrib.values())


def test_equal_numbers_give_equal_bytes(figures: list[Chart], tmp_path: Path) -> None:
    assert figures == draw(tmp_path)


def test_a_hostile_name_is_text(figures: list[Chart]) -> None:
    for figure in figures:
        pictures = "".join(panel.svg for panel in figure.panels)
        assert "<script" not in pictures
        assert not re.search("[\x00-\x08\x1b\u202e]", pictures + figure.caption + str(figure.table))
        assert SHOWN in {cell for row in figure.table for cell in row}


def test_a_file_has_colours_in_place_of_variables(tmp_path: Path) -> None:
    import altair

    text = (
        altair.Chart(altair.Data(values=[{"x": 1, "of": text_colour(2)}]))
        .mark_text(text="a")
        .encode(x="x:Q", color=altair.Color("of:N", scale=None))
    )
    assert 'data-arm="2"' in svg(text)
    for name in ("a", "b"):
        for suffix in ("svg", "png"):
            write_chart(text, tmp_path / f"{name}.{suffix}")
    assert "var(" not in (tmp_path / "a.svg").read_text()
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    for suffix in ("svg", "png"):
        assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()


@pytest.mark.parametrize("most", [20, 58])
def test_long_names_of_arms_are_told_apart(most: int) -> None:
    long = "people=" + "4" * 80
    names = [f"{method} {long} lr={rate} schedule=constant rollouts=60" for method in ("pl", "nl") for rate in (1, 2)]
    called = told_apart([*names, "grpo"], most)
    assert len(set(called.values())) == 5
    assert called["grpo"] == "grpo"
    assert max(map(len, called.values())) <= most
    assert called[names[0]].startswith("pl ") and called[names[2]].startswith("nl ")
