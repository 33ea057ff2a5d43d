"""What cannot be shown is refused, all at once, before a page is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rlvr_cli.cli.app import run
from tests.compare.made_runs import make_run
from tests.report_page.conftest import BASE


def test_everything_wrong_is_said_at_once(tmp_path: Path, refused: Callable[..., str]) -> None:
    root = tmp_path / "runs"
    torn = make_run(root, "grpo-s0", right=BASE)
    lines = torn.metrics_path.read_text().splitlines()
    torn.metrics_path.write_text("\n".join([lines[0], "{", *lines[2:]]) + "\n")
    altered = make_run(root, "lopti-s0", method="lopti", right=BASE)
    altered.metrics_path.write_text('{"step": 1}\n')
    said = refused("grpo-s0", "lopti-s0", "nothing", "--match", "epochs", "--by", "method.nane", "--runs", root)
    for part in (
        f"{torn.metrics_path}:2: not a JSON line",
        f"{altered.metrics_path}: 1 of its lines are no optimizer step's.",
        "nothing: no run, sweep or folder of runs",
        "--match epochs: unknown budget.",
        "--by method.nane: unknown key.",
        "5 problems. No page was written.",
    ):
        assert part in said


def test_places_where_no_page_can_be(tmp_path: Path, capsys: object) -> None:
    root = tmp_path / "runs"
    make_run(root, "grpo-s0")
    make_run(tmp_path / "others", "grpo-s1", seed=1)
    text = tmp_path / "notes.txt"
    text.write_text("mine")
    for arguments in (["-o", str(tmp_path)], ["-o", str(tmp_path / "no" / "x.html")], ["-o", str(text)]):
        assert run(["report", str(root), *arguments]) == 2
    assert run(["report", str(root), str(tmp_path / "others")]) == 2
    assert text.read_text() == "mine"
