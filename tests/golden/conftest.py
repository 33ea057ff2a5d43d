"""Golden tests run once for every case of the files they name, in whatever folder is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.cases import parameters


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    files = getattr(metafunc.function, "golden_files", None)
    if files is None:
        return
    folder: Path = metafunc.config.getoption("--golden-dir")
    if folder.is_dir():
        metafunc.parametrize("case", parameters(folder, files))
    else:
        skip = pytest.mark.skip(f"no golden numbers at {folder} (give another folder with --golden-dir)")
        metafunc.parametrize("case", [pytest.param(None, id="none", marks=skip)])
