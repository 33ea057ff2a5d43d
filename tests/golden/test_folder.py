"""The folder of golden numbers itself: nothing in it that no test knows, and nothing that a test drops."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.golden import reference, reference_2026
from tests.golden.cases import FILES, read, why_not_compared


def test_every_file_is_one_that_a_test_compares(golden_dir: Path) -> None:
    names = {path.stem for path in golden_dir.glob("*.json")}
    assert names, f"no golden file in {golden_dir}"
    assert names <= set(FILES), f"no test knows {', '.join(sorted(names - set(FILES)))}"


def test_every_file_has_cases_that_are_compared(golden_dir: Path) -> None:
    for file in FILES:
        if file == "kk_reward" or not (golden_dir / f"{file}.json").is_file():
            continue
        cases = read(golden_dir, file)
        left_out = [case for case in cases if why_not_compared(case)]
        assert [case.name for case in cases if not case.pending] == []
        assert len(cases) > len(left_out), f"{file}: no case is compared"
        assert all("clamp_zone" in case.name for case in left_out), file


def test_the_project_s_own_numbers_are_what_the_reference_computes() -> None:
    for file in FILES:
        stored = json.loads((reference.FOLDER / f"{file}.json").read_text(encoding="utf-8"))
        written_by = reference_2026 if file in reference_2026.FILES else reference
        compare(stored, written_by.document(file))


def compare(stored: Any, computed: Any) -> None:
    """Equal, numbers but for the last digits of another machine's mathematics library."""
    if isinstance(stored, dict):
        assert stored.keys() == computed.keys()
        for key, value in stored.items():
            compare(value, computed[key])
    elif isinstance(stored, list):
        assert len(stored) == len(computed)
        for one, other in zip(stored, computed, strict=True):
            compare(one, other)
    elif isinstance(stored, float):
        assert stored == pytest.approx(computed, rel=1e-8, abs=1e-9)
    else:
        assert stored == computed
