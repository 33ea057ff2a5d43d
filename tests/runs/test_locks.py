"""One writer, and readers who ask whether there is one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rlvr_cli.config.errors import UserError
from rlvr_cli.runs.locks import is_held, sole_writer

ASK = """
import sys, time
from pathlib import Path
from rlvr_cli.runs.locks import is_held
while True:
    is_held(Path(sys.argv[1]))
    time.sleep(0.0005)
"""


def test_a_reader_that_asks_is_not_taken_for_a_writer(tmp_path: Path) -> None:
    """`rlvr runs watch` asks again and again while runs are started and resumed."""
    with sole_writer(tmp_path, ""):
        readers = [subprocess.Popen([sys.executable, "-c", ASK, str(tmp_path)]) for _ in range(2)]
    try:
        for _ in range(300):
            with sole_writer(tmp_path, ""):
                assert is_held(tmp_path)
    finally:
        for reader in readers:
            reader.kill()
            reader.wait()


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    with sole_writer(tmp_path, ""), pytest.raises(UserError, match=r"in use by another process \(pid \d+\)\. Wait"):  # noqa: SIM117
        with sole_writer(tmp_path, "Wait."):
            pass
    assert not is_held(tmp_path)
