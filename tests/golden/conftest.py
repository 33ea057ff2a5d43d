"""Golden tests run once for every case of the files they name, in the project's folder and in whatever is given."""

from __future__ import annotations

import pytest

from tests.conftest import golden_folders
from tests.golden.cases import parameters


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    files = getattr(metafunc.function, "golden_files", None)
    if files is not None:
        metafunc.parametrize(
            "case", [each for folder in golden_folders(metafunc.config) for each in parameters(folder, files)]
        )
