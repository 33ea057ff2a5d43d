"""Errors become messages and exit codes in one place."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from rlvr_cli.cli import app as cli
from rlvr_cli.cli.templates import files_of
from rlvr_cli.core.errors import RunError, UserError


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, BaseException]]:
    """A command line with one command, `fail`, which raises what the test puts here."""
    raised: dict[str, BaseException] = {}
    app = typer.Typer()

    @app.callback()
    def root() -> None:
        pass

    @app.command()
    def fail() -> None:
        raise raised["error"]

    monkeypatch.setattr(cli, "app", app)
    yield raised


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (UserError("a.yaml:3  no"), 2, "a.yaml:3  no\n1 problem.\n"),
        (UserError(["one", "two"]), 2, "one\ntwo\n2 problems.\n"),
        (RunError("the loss is not finite"), 1, "the loss is not finite\n"),
        (OSError(errno.ENOSPC, "No space left on device", "runs/x"), 1, "runs/x: No space left on device\n"),
        (PermissionError(errno.EACCES, "Permission denied", "runs"), 1, "runs: Permission denied\n"),
        (OSError(errno.ENAMETOOLONG, "File name too long", "aaaa"), 2, "aaaa: File name too long\n"),
        (KeyboardInterrupt(), 130, ""),
        (typer.Exit(143), 143, ""),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_an_error_of_the_world_is_a_message(
    failing: dict[str, BaseException],
    error: BaseException,
    code: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    failing["error"] = error
    assert cli.run(["fail"]) == code
    printed = capsys.readouterr()
    assert printed.err == message
    assert printed.out == ""


@pytest.mark.parametrize("error", [ValueError("ours"), OSError(errno.EBADF, "Bad file descriptor")])
def test_an_error_of_ours_shows_its_traceback(
    failing: dict[str, BaseException],
    error: BaseException,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failing["error"] = error
    monkeypatch.setattr("sys.argv", ["rlvr", "fail"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 70
    printed = capsys.readouterr().err
    assert "Traceback" in printed
    assert "bug in rlvr" in printed


@pytest.mark.parametrize("fault", ["{}['x']", "raise SystemExit(0)"])
def test_an_error_of_the_users_code_names_its_line(
    fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the code leaves: a command that did nothing must not end as one that did all."""
    text = files_of("task", "mine")["mine.py"]
    head, prompt, rest = text.partition("    def prompt(self, problem: dict[str, Any]) -> str:\n")
    file = tmp_path / "mine.py"
    file.write_text(f"{head}{prompt}        {fault}\n{rest}", encoding="utf-8")
    assert cli.run(["tasks", "show", str(file)]) == 1
    printed = capsys.readouterr().err
    line = f"{head}{prompt}".count("\n") + 1
    assert f"mine.py:{line}: " in printed and ("KeyError: 'x'" in printed or "SystemExit" in printed)
    assert "Traceback" not in printed


def test_json_is_short_for_a_format(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["methods", "list", "--json"]) == 0
    assert "methods" in json.loads(capsys.readouterr().out)
    assert cli.run(["sweep", "stop", "nowhere", "--json"]) == 2
