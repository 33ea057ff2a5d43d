"""Help is cheap: no command imports anything heavy to say what it does."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from rlvr_cli import __version__
from rlvr_cli.cli.app import app, run
from rlvr_cli.cli.command import TEXTS
from rlvr_cli.cli.key_texts import key_texts

# pydantic is no giant, but it would double the time that a help takes.
HEAVY = {"torch", "transformers", "trl", "datasets", "numpy", "accelerate", "peft", "safetensors", "sympy", "pydantic"}


def command_lines() -> list[list[str]]:
    """Every command, and every command of a group, as arguments."""

    def walk(command: Any, path: list[str]) -> list[list[str]]:
        children = getattr(command, "commands", {})
        return [path, *(line for name, child in children.items() for line in walk(child, [*path, name]))]

    return walk(typer.main.get_command(app), [])


def test_help_imports_nothing_heavy() -> None:
    """All commands in one fresh process: what the first one imports that is heavy is named."""
    code = (
        "import contextlib, io, json, sys\n"
        "from rlvr_cli.cli.app import run\n"
        "found = []\n"
        "for line in json.load(sys.stdin):\n"
        "    with contextlib.redirect_stdout(io.StringIO()) as shown:\n"
        "        code = run([*line, '--help'])\n"
        "    found.append([line, code, shown.getvalue(), sorted(sys.modules)])\n"
        "print(json.dumps(found))"
    )
    lines = json.dumps(command_lines())
    done = subprocess.run([sys.executable, "-c", code], input=lines, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert len(found) > 20
    for line, code, shown, modules in found:
        assert code == 0 and "Usage: rlvr" in shown, line
        assert not HEAVY & set(modules), line
        assert not re.search(r"<(bool|str|int|float|path|list)\b", shown), f"{line}: a type of Python"
        options = shown.partition("─ Options ─")[2].partition("╰")[0]
        first = [name for name in re.findall(r"│ (--[a-z-]+)", options) if name != "--help"]
        if line in (["train"], ["eval"], ["compare"], ["sweep", "run"]):
            assert 5 <= len(first) <= 6, first


def test_a_shell_is_told_how_a_word_goes_on(tmp_path: Path) -> None:
    for folder in ("runs/first", "runs/second", "runs/.hidden"):
        (tmp_path / folder).mkdir(parents=True)
    for words, position, said in (
        ("rlvr train --proc", "2", ["--processes"]),
        ("rlvr train --method dgpo+lop", "3", ["dgpo+lopti"]),
        ("rlvr compare ", "2", ["first", "second"]),
    ):
        environment = {**os.environ, "_RLVR_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": position}
        done = subprocess.run(
            [sys.executable, "-m", "rlvr_cli"],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert done.stdout.split() == said


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"rlvr {__version__}\n"


def test_a_help_says_of_its_keys_what_the_schema_says() -> None:
    assert TEXTS.read_text(encoding="utf-8") == key_texts(), "run: python -m rlvr_cli.cli.key_texts"
