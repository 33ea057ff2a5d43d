"""A chart stands in any page: its colours and font, no id twice, nothing from outside, nobody's markup."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rlvr_cli.core.text import told_apart
from rlvr_cli.report.charts.learning import learning_figures
from rlvr_cli.report.charts.lines import legend_rows, spread_labels
from rlvr_cli.report.charts.reasons import reasons_figure
from rlvr_cli.report.charts.svg import INK, WIDTH, Chart, page_style, page_svg
from tests.report.charted_runs import SVG, charted, texts

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
    for figure in figures:
        root = ElementTree.fromstring(figure.svg)
        assert root.tag == f"{SVG}svg"
        assert "width" not in root.attrib and "height" not in root.attrib
        assert root.attrib["viewBox"].startswith(f"0 0 {WIDTH:g} ")
        used = "".join(value for element in root.iter() for value in element.attrib.values() if "url(" not in value)
        assert not re.search(r"#[0-9a-fA-F]{6}|rgb\(|font:|DejaVu", used)
        assert {"var(--ink)", "var(--grid)", "var(--c0)", "var(--c1)"} <= set(re.findall(r"var\(--\w+\)", used))
        for element in root.iter():
            assert element.tag.removeprefix(SVG) not in ("script", "style", "image", "foreignObject", "a")
            assert element.attrib.get("href", "#").startswith("#")
            assert all(
                link.startswith("url(#") for value in element.attrib.values() for link in re.findall("url.*", value)
            )


def test_no_id_is_twice_in_a_page_and_every_reference_is_met(figures: list[Chart]) -> None:
    ids: list[str] = []
    for figure in figures:
        elements = list(ElementTree.fromstring(figure.svg).iter())
        own = [element.attrib["id"] for element in elements if "id" in element.attrib]
        assert all(name.startswith(f"{figure.key}-") for name in own)
        pointed = {link for one in elements for link in re.findall(r"#([^)]+)", " ".join(one.attrib.values()))}
        assert pointed <= set(own)
        ids += own
    assert len(ids) == len(set(ids))


def test_who_hears_it_is_told_the_title_and_the_caption(figures: list[Chart]) -> None:
    for figure in figures:
        root = ElementTree.fromstring(figure.svg)
        assert root.attrib["role"] == "img"
        named = [root.find(f"*[@id='{name}']") for name in root.attrib["aria-labelledby"].split()]
        assert [one.text for one in named if one is not None] == [figure.title, figure.caption]
        assert len({len(row) for row in figure.table}) == 1


def test_equal_numbers_give_equal_bytes(figures: list[Chart], tmp_path: Path) -> None:
    assert figures == draw(tmp_path)


def test_a_hostile_name_is_text(figures: list[Chart]) -> None:
    for figure in figures:
        assert "<script" not in figure.svg
        assert not re.search("[\x00-\x08\x1b\u202e]", figure.svg + figure.caption + str(figure.table))
        assert SHOWN in {cell for row in figure.table for cell in row}
    assert SHOWN in texts(figures[0].svg)


def test_a_colour_that_the_page_does_not_know_is_refused() -> None:
    from matplotlib.figure import Figure

    with page_style():
        picture = Figure()
        picture.text(0, 0, "x", color=INK)
        assert "var(--ink)" in page_svg(picture, "k", "t", "d")
        picture.text(0, 0, "x", color="#123456")
        with pytest.raises(ValueError, match="#123456"):
            page_svg(picture, "k", "t", "d")


def test_names_at_the_ends_keep_apart_and_in_their_order() -> None:
    wanted = [10.0, 11.0, 199.0, 200.0, 12.0]
    placed = spread_labels(wanted, 15.0, 200.0)
    order = sorted(range(5), key=lambda index: wanted[index])
    ends = [placed[index] for index in order]
    assert all(second - first >= 15.0 - 1e-9 for first, second in itertools.pairwise(ends))
    assert min(ends) >= 0 and max(ends) <= 200.0
    assert spread_labels([1.0], 15.0, 200.0) == [1.0]
    # As near as can be: around what is wanted, not above it.
    assert spread_labels([100.0, 100.0, 20.0], 10.0, 200.0) == [95.0, 105.0, 20.0]
    # More names than fit share the room there is.
    assert spread_labels([0.0] * 5, 15.0, 40.0) == [0.0, 10.0, 20.0, 30.0, 40.0]


def test_a_legend_has_every_arm_in_the_width() -> None:
    rows = legend_rows({0: "grpo", 3: "x" * 200, 5: "lopti", 7: "dapo"})
    assert [[arm for _, arm, _ in row] for row in rows] == [[0], [3], [5, 7]]
    assert all(left + len(name) * 6 < WIDTH for row in rows for left, _, name in row)


@pytest.mark.parametrize("most", [20, 58])
def test_long_names_of_arms_are_told_apart(most: int) -> None:
    long = "people=" + "4" * 80
    names = [f"{method} {long} lr={rate} schedule=constant rollouts=60" for method in ("pl", "nl") for rate in (1, 2)]
    called = told_apart([*names, "grpo"], most)
    assert len(set(called.values())) == 5
    assert called["grpo"] == "grpo"
    assert max(map(len, called.values())) <= most
    assert called[names[0]].startswith("pl ") and called[names[2]].startswith("nl ")
