"""What data, models, servers and files say reaches terminal and disk as text, never as a command or a secret."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from rlvr_cli.cli.app import run as rlvr
from rlvr_cli.cli.output import print_json, print_table
from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.text import escape_for_terminal, escape_json, redact_secrets

HOSTILE = "\x1b]0;owned\x07\x1b[2J\u202ereversed\u2066\u200b\u200d\u2060\x9b31m\x7f\r\x08\ud800\U000e0041\u00ad"
HARMFUL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\U000e0041]"
)


def test_nothing_that_steers_a_terminal_is_left() -> None:
    shown = escape_for_terminal(HOSTILE)
    assert not HARMFUL.search(shown)
    assert r"\x1b]0;owned\x07" in shown and r"\u202ereversed" in shown
    for kept in ("one\ttwo\nthree", "\u00e9\u4e2d\u0627 \u00a0 \U0001f600 \u2192 \u221a2", "a\\x1b"):
        assert escape_for_terminal(kept) == kept
    assert escape_for_terminal("a\r\nb") == "a\nb"


def test_json_says_the_same_values() -> None:
    text = json.dumps({"answer": HOSTILE}, ensure_ascii=False, indent=2)
    assert not HARMFUL.search(escape_json(text))
    assert json.loads(escape_json(text)) == {"answer": HOSTILE}


def test_tables_and_json_of_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name", HOSTILE), [("run", HOSTILE)])
    print_table(("name",), [(HOSTILE,)], unwrapped=True)
    print_json({HOSTILE: HOSTILE})
    out = capsys.readouterr().out
    assert not HARMFUL.search(out)
    assert out.count("owned") == 5


def problem(path: Path) -> Path:
    row = {"problem": f"What is 1 + 1? {HOSTILE.encode('utf-16', 'replace').decode('utf-16')}", "answer": "2"}
    path.write_text("".join(json.dumps({**row, "problem": f"{n}: {row['problem']}"}) + "\n" for n in range(20)))
    return path


def test_a_problem_of_a_file_is_shown_and_does_not_steer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = problem(tmp_path / "hostile.jsonl")
    for arguments in ([], ["--format=json"]):
        assert rlvr(["tasks", "show", "math", f"task.data={data}", *arguments]) == 0
        out = capsys.readouterr().out
        assert "owned" in out and not HARMFUL.search(out)
    assert rlvr(["compare", f"no-such-run{chr(27)}[2J"]) == 2
    assert "\x1b" not in capsys.readouterr().err


SECRET = "hunter2"


@pytest.mark.parametrize(
    "text",
    [
        f"http://user:{SECRET}@host/v1: refused",
        f"https:/user:{SECRET}@host/x.yaml  no such file",
        f"http://user:p@{SECRET}@host/v1",
        f"http://user:a/{SECRET}@host/v1",
        f"user:{SECRET}@host/v1 is no address",
        f"--base-url=user:{SECRET}@host.org",
        f"user:{SECRET}@localhost",
        f"//user:{SECRET}@host/v1",
        # Nearly a hub id, or a function with the digest of its file.
        f"owner/user:{SECRET}@host/v1",
        f"owner/user:{SECRET}!@host.org",
        f"user.py:{SECRET}@host/v1",
        f"owner/set:main@v1.0 at user:{SECRET}@host/v1",
        f"('https://host/v1?token={SECRET}&x={SECRET}')",
        f"https://host/v1#{SECRET}",
    ],
)
def test_an_address_without_its_secrets(text: str) -> None:
    assert SECRET not in redact_secrets(text) and "***" in redact_secrets(text)
    assert SECRET not in str(RunError(text))
    error = UserError([text])
    assert SECRET not in str(error) and SECRET not in error.problems[0]


@pytest.mark.parametrize(
    "text",
    [
        "http://host:8000/v1",
        "avg@4, kk:pass@32 and math500:pass@1",
        "a@b",
        "x?y=1",
        "task.data=owner/name:main@v1.0 is not one",
        "owner/name:main@v1.0.",
        "'owner/name:main@v1.0': no such revision",
        "owner/name:main@0123456789abcdef0123456789abcdef01234567, and others",
        "r.py:accuracy@abc123def456: no such function",
        "task.reward=[my/r.py:accuracy@abc123def456,/home/me/r.py:length@0123456789ab]",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact_secrets(text) == text


@pytest.mark.parametrize(
    "url", [f"http://u:{SECRET}@h/v1", f"u:{SECRET}@h/v1", f"http://h/v1?token={SECRET}", f"http://u:a/{SECRET}@h/v1"]
)
def test_a_server_s_address_with_a_secret_is_refused_and_not_repeated(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rlvr(["eval", "lab", "--engine", "openai", "--base-url", url]) == 2
    assert SECRET not in capsys.readouterr().err
    with pytest.raises(UserError) as caught:
        load_config(overrides=[f"eval.base_url={url}"])
    assert SECRET not in str(caught.value)
