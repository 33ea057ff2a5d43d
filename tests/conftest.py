"""Options and fixtures that several folders of tests share."""

from __future__ import annotations

import functools
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

ROOT = Path(__file__).parents[1]

# Before any Hugging Face library is imported: no telemetry, no network, no bars.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
# The width of output is that of no terminal, also where the runner of the tests or a shell says another.
os.environ.pop("COLUMNS", None)
# oneDNN does not read ATEN_CPU_CAPABILITY: on a CPU with AMX, torch's bf16 attention would ask it for what it left out.
if os.environ.get("ATEN_CPU_CAPABILITY") in ("default", "avx2"):
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")

# Commands in this process parse their words by one parser, which takes a tenth of a second to make.
typer.main.get_command = functools.cache(typer.main.get_command)

# A shell ignores Ctrl-C in what it starts in the background, and every child would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


# The project's own golden numbers, written by tests/golden/reference.py.
OWN_NUMBERS = ROOT / "tests" / "golden" / "numbers"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--golden-dir",
        type=Path,
        default=ROOT.parent / "shared" / "golden",
        help="A further folder of golden numbers, read where there is one (default: ../shared/golden).",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Hide GPUs, on which bfloat16 would take the place of the arithmetic that is tested, unless ``-m gpu`` asks."""
    if not re.search(r"(?<!not )\bgpu\b", config.option.markexpr):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def _set_torch_threads() -> None:
    if "torch" in sys.modules and "OMP_NUM_THREADS" in os.environ:
        sys.modules["torch"].set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


@pytest.fixture(autouse=True)
def torch_threads() -> Iterator[None]:
    """Give each test, and the fixtures after it, the threads of OMP_NUM_THREADS: commands in this process set more."""
    _set_torch_threads()
    yield
    _set_torch_threads()


@pytest.fixture
def gpu() -> str:
    """The GPU's name for torch; the test is skipped where there is none."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU here")
    return "cuda"


@pytest.fixture(scope="session")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the runs of tests/matrix.py, which a test only reads."""
    from tests.matrix import make_matrix, once

    return once(tmp_path_factory, "matrix", make_matrix)


def golden_folders(config: pytest.Config) -> list[Path]:
    """The project's own numbers, and the folder that was given."""
    further: Path = config.getoption("--golden-dir")
    return [OWN_NUMBERS, *([further] if further.is_dir() and further.resolve() != OWN_NUMBERS else [])]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "golden_dir" in metafunc.fixturenames:
        folders = golden_folders(metafunc.config)
        metafunc.parametrize("golden_dir", folders, ids=[folder.name for folder in folders])
