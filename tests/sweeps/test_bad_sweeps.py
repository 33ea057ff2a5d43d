"""Bad sweep files: every problem at once, each with its line, before anything is started."""

from __future__ import annotations

from pathlib import Path

from tests.sweeps.files import problems

SNAPSHOT = Path(__file__).with_name("bad_sweeps.txt")


def test_every_problem_with_its_line(tmp_path: Path) -> None:
    """Each sweep file of the snapshot and the messages that it gets."""
    for case in SNAPSHOT.read_text().removeprefix("===\n").split("\n===\n"):
        text, _, messages = case.rstrip("\n").partition("\n---\n")
        assert problems(tmp_path, text) == messages.splitlines(), text


def test_a_problem_of_some_trials_names_them(tmp_path: Path) -> None:
    text = "methods: [grpo, loptii]\nseeds: 4"
    (line,) = problems(tmp_path, text)
    assert line.endswith("(trials loptii-s0, loptii-s1, loptii-s2 and 1 more)")
    (line,) = problems(tmp_path, "methods: [grpo, lopti]\nset: {optimizer.lr: -1}")
    assert line.startswith("s.yaml:2 optimizer.lr: must be") and "trial" not in line


def test_overrides_of_the_command_line(tmp_path: Path) -> None:
    text = "methods: [grpo, lopti]"
    (line,) = problems(tmp_path, text, "method=dgpo")
    assert line == "override method=dgpo method.name is an axis (s.yaml:1), which would override it"
    (line,) = problems(tmp_path, text, "run.name=x")
    assert "trials are named by what varies" in line
    (line,) = problems(tmp_path, text, "optimizer.lr=-1")
    assert line.startswith("override optimizer.lr=-1 optimizer.lr: must be")
