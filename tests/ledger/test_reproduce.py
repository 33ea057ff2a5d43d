"""`rlvr reproduce` on a small ledger: from nothing to verdicts, killed on the way, and asked again."""

from __future__ import annotations

import json
import time
from pathlib import Path

import psutil
import pytest

from rlvr_cli.cli.app import run
from rlvr_cli.core.files import read_jsonl
from rlvr_cli.ledger.trainings import Folders, SeededBase, base_folder
from tests.ledger.files import ARMS, CONTRAST, EXACT, LENGTH, NO_NUMBER, begin, finish, write_book


def starts(folder: Path) -> dict[str, int]:
    """How often each training was begun or gone on with."""
    paths = (folder / "ledger-lab" / "state").glob("*/attempts.jsonl")
    return {path.parent.name: sum(row["event"] == "start" for row in read_jsonl(path)) for path in paths}


def measures(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in (folder / "ledger" / "measures").rglob("*.json")}


def verdicts(folder: Path, seeds: int = 0) -> dict[str, str]:
    content = json.loads((folder / "ledger" / f"lab-seeds-{seeds}.json").read_text())
    return {name: one["verdict"] for name, one in content["outcomes"].items()}


def test_nothing_is_done_on_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = str(write_book(tmp_path / "data", [LENGTH]))
    place = ["--claims", data, "--runs", str(tmp_path / "runs")]
    for arguments, said in (
        (["landscape/lenght"], "Did you mean `landscape/length`?"),
        (["landscape", "--scale", "huge"], "must be lab or full"),
        (["--all", "landscape"], "give one of them"),
        (["--dry-run"], "give --all"),
        (["--all", "--output", str(tmp_path / "page.html")], "must end in .md"),
        (["--all", "--against", str(tmp_path / "no.json")], "cannot be read as results"),
    ):
        assert run(["reproduce", *arguments, *place]) in (1, 2)
        assert said in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_an_exact_statement_needs_no_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_book(tmp_path / "data", [EXACT, LENGTH])
    place = ["--claims", str(data), "--runs", str(tmp_path / "runs")]
    assert run(["reproduce", "ar_lopti", "--format=json", *place]) == 0
    (claim,) = json.loads(capsys.readouterr().out)["claims"]
    assert (claim["verdict"], claim["values"], claim["seeds"]) == ("holds", [2.0], [])
    assert not (tmp_path / "runs" / "ledger-lab").exists()
    assert run(["reproduce", *place]) == 0
    assert "holds" in capsys.readouterr().out
    assert run(["reproduce", "--all", "--dry-run", "--format=json", *place]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["trainings_to_do"], plan["measures"], plan["claims"]) == (2, 2, 2)


@pytest.mark.slow
def test_from_nothing_killed_and_asked_again(tmp_path: Path) -> None:
    data = write_book(tmp_path / "data", [EXACT, LENGTH, CONTRAST, NO_NUMBER])
    folder = tmp_path / "runs"
    place = ["--claims", str(data), "--runs", str(folder)]

    # One claim, killed with all that it started while its second training runs.
    process = begin("landscape/length", *place)
    while "tiny-grpo-s1" not in starts(folder):
        assert process.poll() is None
        time.sleep(0.05)
    family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    psutil.wait_procs(family, timeout=30)
    assert not any(one.is_running() for one in family), "something outlived the ledger"

    said = finish(begin("landscape/length", *place))
    assert "landscape/length" in said and "holds" in said
    assert starts(folder)["tiny-grpo-s0"] == 1, "a finished training was done again"
    (first, *_) = before = measures(folder)
    assert len(before) == 2

    # More claims: their own trainings alone are done. One measure is damaged; one claim has none.
    first.write_text(first.read_text()[:50])
    counted = starts(folder)
    said = finish(begin("--all", *place), code=1)
    assert f"{first}: is damaged" in said
    assert "no-number failed: landscape of tiny-grpo-s0: lenght_end" in said and "Did you mean `length_end`?" in said
    assert {name: number for name, number in starts(folder).items() if name in counted} == counted
    after = measures(folder)
    assert len(after) == 4 and [path for path in before if before[path] != after[path]] == [first]
    assert verdicts(folder) == {
        "ar_lopti/cost": "holds",
        "landscape/length": "holds",
        "landscape/updates": "holds",
        "landscape/no-number": "failed",
    }

    # Everything is there: nothing is done.
    counted = starts(folder)
    finish(begin("--all", *place), code=1)
    assert starts(folder) == counted and measures(folder) == after

    # Other seeds, beside the first.
    page = tmp_path / "page.md"
    said = finish(begin("landscape/length", "landscape/updates", "--seed-from", "10", "--output", str(page), *place))
    assert "agrees on 2 of 2 verdicts resting on seeds and contradicts none" in said
    assert verdicts(folder, 10) == {"landscape/length": "holds", "landscape/updates": "holds"}
    assert "| agrees |" in page.read_text() and (tmp_path / "page" / "overview.svg").exists()


def test_a_damaged_base_is_told_before_anything_is_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arms = {**ARMS, "tiny-pl": {"base": "odd", **ARMS["tiny-pl"]}}
    data = write_book(tmp_path / "data", [LENGTH, CONTRAST], arms)
    recipe = data / "bases" / "odd.yaml"
    recipe.parent.mkdir()
    recipe.write_text("puzzles: 100\n")
    # What `rlvr lab build` does not leave, but a full disk or a person may.
    base = base_folder(SeededBase("odd", 0), recipe, Folders(tmp_path / "runs"))
    base.mkdir(parents=True)
    assert run(["reproduce", "landscape/updates", "--claims", str(data), "--runs", str(tmp_path / "runs")]) == 1
    assert f"{base}: this base is damaged" in capsys.readouterr().err
    assert not (tmp_path / "runs" / "ledger-lab").exists()
