"""A curve in one line, whatever the numbers."""

from __future__ import annotations

import pytest

from rlvr_cli.core.sparkline import BLOCKS, sparkline


def of(*values: float) -> list[tuple[int, float]]:
    return list(enumerate(values))


def test_from_least_to_greatest() -> None:
    assert sparkline(of(0, 1, 2, 3, 4, 5, 6, 7), 8, 80) == BLOCKS
    assert sparkline(of(7, 0, 7), 3, 80) == "█▁█"
    assert sparkline(of(-3e-9, 3e-9), 2, 80) == "▁█"


def test_what_is_missing_is_blank_and_keeps_its_place() -> None:
    assert sparkline([(1, 0.0), (3, 1.0)], 5, 80) == " ▁ █ "
    assert sparkline([], 3, 80) == "   "
    assert sparkline([(10**12, 1.0)], 10**12 + 1, 4) == "   ▄"


@pytest.mark.parametrize("values", [(2.0, 2.0), (0.0,), (5e-324, 5e-324), (1e308, 1e308)])
def test_equal_values_are_drawn_half_way(values: tuple[float, ...]) -> None:
    assert set(sparkline(of(*values), len(values), 80)) == {"▄"}


def test_values_at_the_ends_of_what_floats_can_be() -> None:
    assert sparkline(of(-1.7e308, 0.0, 1.7e308), 3, 80) == "▁▅█"
    assert set(sparkline(of(0.0, 5e-324), 2, 80)) <= set(BLOCKS)
