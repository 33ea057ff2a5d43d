"""Errors become messages and exit codes in one place."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from rlvr_cli.cli import app as cli
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


def test_an_error_of_the_users_code_names_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "tasks" / "own.md").read_text(encoding="utf-8")
    file = tmp_path / "my_task.py"
    text = page.split("```python\n")[2].split("```")[0].rstrip()
    file.write_text(f"{text}\n\n    def contradictions(self):\n        return {{}}['x']\n", encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["rlvr", "config", "show", "--task", str(file)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    printed = capsys.readouterr().err
    assert end.value.code == 1
    assert printed.splitlines()[-1] == f"{file}:{len(file.read_text().splitlines())}: KeyError: 'x'"
    assert "Traceback" not in printed


@pytest.mark.parametrize("leave", ["raise SystemExit", "raise SystemExit(0)", "raise SystemExit('done')"])
def test_code_of_the_user_s_that_leaves_is_a_failure(
    leave: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command that did nothing must not end as one that did all."""
    page = (Path(__file__).parents[2] / "docs" / "tasks" / "own.md").read_text(encoding="utf-8")
    file = tmp_path / "my_task.py"
    text = page.split("```python\n")[2].split("```")[0].rstrip()
    file.write_text(f"{text}\n\n    def contradictions(self):\n        {leave}\n", encoding="utf-8")
    assert cli.run(["config", "show", "--task", str(file)]) == 1
    assert f"{file}:{len(file.read_text().splitlines())}: SystemExit" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["trian"], ["plan", "--no-such-option"], ["runs", "show"], []])
def test_a_wrong_command_line_is_bad_input(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(arguments) == 2
    printed = capsys.readouterr()
    assert "Usage: rlvr" in printed.err + printed.out
    assert "Traceback" not in printed.err


def test_a_user_error_needs_a_problem() -> None:
    with pytest.raises(ValueError, match="at least one"):
        UserError([])


@pytest.mark.parametrize(
    ("line", "note"),
    [
        ("train optimizer.lrr=1", " Nothing was started."),
        ("sweep missing.yaml", " Nothing was started."),
        ("eval lab eval.btach=3", " Nothing was started."),
        ("compare nowhere", " Nothing was compared."),
        ("plan optimizer.lrr=1", ""),
        ("runs show nowhere", ""),
        ("methods show dgop", ""),
        ("config keys optimiser", ""),
    ],
)
def test_only_what_would_have_been_done_is_said_not_to_be(
    line: str, note: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run(line.split()) == 2
    assert capsys.readouterr().err.endswith(f"1 problem.{note}\n")


def test_json_is_short_for_a_format(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["methods", "list", "--json"]) == 0
    assert "methods" in json.loads(capsys.readouterr().out)
    assert cli.run(["sweep", "stop", "nowhere", "--json"]) == 2
