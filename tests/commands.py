"""Command lines as a person types them, in this process or several in one fresh one: Python and torch start once."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROGRAM = """
import contextlib, io, json, sys
from rlvr_cli.cli.app import run

for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = run(words)
    with open(sys.argv[2], "a", encoding="utf-8") as file:
        file.write(json.dumps([code, out.getvalue(), err.getvalue()]) + "\\n")
"""


@dataclass(frozen=True)
class Done:
    """What one command came to."""

    code: int
    out: str
    err: str


def run_all(folder: Path, *lines: tuple[str, ...], environment: Mapping[str, str] | None = None) -> list[Done]:
    """What ``rlvr`` says to each of ``lines`` (its arguments), in ``folder``; PYTHONPATH has the repository last."""
    place = folder / "said.jsonl"
    place.unlink(missing_ok=True)
    given = dict(environment or {})
    given["PYTHONPATH"] = os.pathsep.join([*filter(None, [given.get("PYTHONPATH")]), str(ROOT)])
    command = [sys.executable, "-c", PROGRAM, json.dumps(lines), str(place)]
    done = subprocess.run(command, env={**os.environ, **given}, capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr
    return [Done(*json.loads(line)) for line in place.read_text(encoding="utf-8").splitlines()]


def run_in(folder: Path, *lines: tuple[str, ...]) -> list[Done]:
    """What ``rlvr`` says to each of ``lines``, in ``folder`` and this process, which loads torch once for all tests.

    Folders of user files that other tests have loaded are not searched for modules, as in a fresh process.
    """
    from rlvr_cli.cli.app import run
    from rlvr_cli.core import user_code

    done = []
    path = [entry for entry in sys.path if entry not in user_code._FOLDERS]
    with contextlib.chdir(folder), pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "path", path)
        for words in lines:
            with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
                code = run(list(words))
            done.append(Done(code, out.getvalue(), err.getvalue()))
    return done


def run_here(capsys: pytest.CaptureFixture[str], *words: str) -> Done:
    """What ``rlvr`` says to ``words``, in this process and folder."""
    from rlvr_cli.cli.app import run

    capsys.readouterr()
    code = run(list(words))
    said = capsys.readouterr()
    return Done(code, said.out, said.err)
