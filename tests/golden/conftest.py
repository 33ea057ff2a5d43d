"""Golden tests run once for every file they name, in the project's folder and in the one that is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import golden_folders


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    files = getattr(metafunc.function, "golden_files", None)
    if files is not None:
        folders = golden_folders(metafunc.config)
        metafunc.parametrize(
            "golden_file", [_parameter(folder / f"{name}.json") for folder in folders for name in files]
        )


def _parameter(path: Path) -> object:
    marks = [] if path.is_file() else [pytest.mark.skip(f"no {path.name} in {path.parent}")]
    return pytest.param(path, id=f"{path.parent.name}-{path.stem}", marks=marks)
