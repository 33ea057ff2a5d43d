"""What a rank does about its parent before it trains."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlvr_cli.launch import link

ROOT = Path(__file__).parents[2]
RANK = """
import sys, time
from pathlib import Path
from rlvr_cli.launch.link import Link
from rlvr_cli.launch.world import ALONE
Link(Path(sys.argv[1]), ALONE)
print("here", flush=True)
time.sleep(60)
"""


def rank_of(folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", RANK, str(folder)], cwd=ROOT)


@pytest.mark.parametrize("folder_is_there", [True, False])
def test_a_rank_whose_parent_was_killed_while_it_started(tmp_path: Path, folder_is_there: bool) -> None:
    """Nobody has the other ends of its pipes open: it must not wait for them for ever."""
    folder = tmp_path / "launch"
    if folder_is_there:
        folder.mkdir()
        for name in (link.ALIVE, "output-0"):
            os.mkfifo(folder / name)
    rank = rank_of(folder)
    try:
        assert rank.wait(timeout=30) == 1
    finally:
        rank.kill()
    assert not folder.exists()


def test_a_rank_ends_with_its_parent(tmp_path: Path) -> None:
    folder = tmp_path / "launch"
    folder.mkdir()
    for name in (link.ALIVE, "output-0"):
        os.mkfifo(folder / name)
    alive, output = (os.open(folder / name, os.O_RDWR) for name in (link.ALIVE, "output-0"))
    rank = rank_of(folder)
    try:
        said = b""
        while not said.endswith(b"\n"):
            said += os.read(output, 4096)
        assert said == b"here\n" and rank.poll() is None
        os.close(alive)
        assert rank.wait(timeout=30) == 1
    finally:
        rank.kill()
        os.close(output)
    assert not folder.exists()
