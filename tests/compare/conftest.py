"""The command, and two arms of which one is better by a known amount."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlvr_cli.cli.app import run
from tests.compare.made_runs import make_run

BASE = [0, 1, 1, 2, 2, 3, 0, 1, 2, 3, 1, 2]
BETTER = [1, 2, 2, 3, 3, 4, 1, 2, 3, 4, 2, 3]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def two_arms(root: Path) -> Path:
    """grpo and lopti, three seeds each; lopti has one sample of four more right, but on two to four problems."""
    for seed in range(3):
        base, better = BASE.copy(), BETTER.copy()
        for place in range(seed + 1):
            base[place] += 1
        better[seed + 3] -= 1
        make_run(root, f"grpo-s{seed}", seed=seed, right=base)
        make_run(root, f"lopti-s{seed}", method="lopti", seed=seed, right=better, seconds=1.5)
    return root


@pytest.fixture
def told(root: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What `rlvr compare` prints."""

    def call(*arguments: str) -> str:
        capsys.readouterr()
        assert run(["compare", *arguments, "--runs", str(root)]) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    return call


@pytest.fixture
def compared(told: Callable[..., str]) -> Callable[..., dict[str, Any]]:
    """What it prints with --format json."""
    return lambda *arguments: json.loads(told(*arguments, "--format=json"))


@pytest.fixture
def refused(root: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What it says when it refuses."""

    def call(*arguments: str) -> str:
        capsys.readouterr()
        assert run(["compare", *arguments, "--runs", str(root)]) == 2
        return capsys.readouterr().err

    return call
