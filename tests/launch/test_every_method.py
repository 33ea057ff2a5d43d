"""Every method in two processes ends with the weights of one: the table of `python -m benchmarks.processes`."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.processes import LIMIT, cases, table


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_method_in_two_processes(tmp_path: Path) -> None:
    found = list(table([], 2, 1e-4, tmp_path))
    assert len(found) == len(cases([])) > 30
    assert {row.title: row.apart for row in found if row.apart > LIMIT} == {}
    assert all(row.moved > LIMIT for row in found), "weights that stay where they were show nothing"
