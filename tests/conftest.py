"""Options and fixtures that several folders of tests share."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Before any Hugging Face library is imported: no telemetry, no network, no bars.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
# oneDNN does not read ATEN_CPU_CAPABILITY: on a CPU with AMX, torch's bf16 attention would ask it for what it left out.
if os.environ.get("ATEN_CPU_CAPABILITY") in ("default", "avx2"):
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")

# A shell ignores Ctrl-C in what it starts in the background, and every child would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--golden-dir",
        type=Path,
        default=ROOT.parent / "shared" / "golden",
        help="Folder with the golden numbers (default: ../shared/golden beside the checkout).",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Hide GPUs, on which bfloat16 would take the place of the arithmetic that is tested, unless ``-m gpu`` asks."""
    if not re.search(r"(?<!not )\bgpu\b", config.option.markexpr):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.fixture
def gpu() -> str:
    """The GPU's name for torch; the test is skipped where there is none."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU here")
    return "cuda"


@pytest.fixture(scope="session")
def golden_dir(request: pytest.FixtureRequest) -> Path:
    """The folder of golden numbers; tests that need it are skipped where there is none."""
    path: Path = request.config.getoption("--golden-dir")
    if not path.is_dir():
        pytest.skip(f"no golden numbers at {path} (give another folder with --golden-dir)")
    return path
