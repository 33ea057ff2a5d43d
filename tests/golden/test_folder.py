"""The folder of golden numbers itself: nothing in it that no test knows, and nothing that a test drops."""

from __future__ import annotations

from pathlib import Path

from tests.golden.cases import FILES, Case, golden, read, why_not_compared


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
        assert len(cases) > len(left_out), f"{file}: no case is compared"
        assert all("clamp_zone" in case.name for case in left_out), file


@golden(*(file for file in FILES if file != "kk_reward"))
def test_case_has_something_to_compare(case: Case) -> None:
    assert case.pending
