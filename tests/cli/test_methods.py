"""`rlvr methods`: list, show, plot."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlvr_cli.cli.app import run
from rlvr_cli.methods.names import BASES, MODIFIERS


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["methods", *arguments]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["methods", *arguments]) == 2
    return capsys.readouterr().err


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    return json.loads(shown(capsys, *arguments, "--format=json"))


def modules_after(*arguments: str, code: int = 0) -> set[str]:
    """The modules that one command line loads."""
    program = (
        "import json, sys\n"
        "from rlvr_cli.cli.app import run\n"
        "code = run(json.loads(sys.argv[1]))\n"
        "print(json.dumps([code, sorted(sys.modules)]))"
    )
    line = [sys.executable, "-c", program, json.dumps(["methods", *arguments])]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=True)
    found, modules = json.loads(done.stdout.splitlines()[-1])
    assert found == code
    return set(modules)


# --- list ----------------------------------------------------------------------------------------------------------


def test_every_method_modifier_and_alias_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    listed = as_json(capsys, "list")
    assert [row["name"] for row in listed["methods"]] == list(BASES)
    assert [row["name"] for row in listed["modifiers"]] == list(MODIFIERS)
    for row in [*listed["methods"], *listed["modifiers"]]:
        assert row["paper"] and row["summary"] and row["extra_cost"]
    assert listed["aliases"]["nsr"] == "nl"
    assert listed["aliases"]["ar-lopti"] == "reweight+lopti"
    assert listed["aliases"]["reinforce++"] == "reinforce-pp"


def test_without_a_command_it_lists(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys)
    assert text == shown(capsys, "list")
    for name in (*BASES, *MODIFIERS):
        assert any(line.startswith(f"{name} ") for line in text.splitlines())
    assert "arXiv:2603.14389" in text
    assert "nsr = nl" in text


@pytest.mark.parametrize("arguments", [[], ["list", "--format=json"], ["show", "dgpo+lopti"], ["show", "nothing"]])
def test_listing_and_showing_load_neither_torch_nor_a_plotting_library(arguments: list[str]) -> None:
    modules = modules_after(*arguments, code=2 if "nothing" in arguments else 0)
    assert not {"torch", "transformers", "altair", "numpy"} & modules


def test_a_list_in_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    rows = list(csv.DictReader(io.StringIO(shown(capsys, "list", "--format", "csv"))))
    assert {row["name"] for row in rows if row["kind"] == "method"} == set(BASES)
    assert {row["name"] for row in rows if row["kind"] == "modifier"} == set(MODIFIERS)
    assert "| dgpo |" in shown(capsys, "list", "--format", "markdown")
    assert r"\begin{tabular}" in shown(capsys, "list", "--format", "latex")
    assert "Allowed: table, json." in refused(capsys, "show", "dgpo", "--format", "csv")


# --- show ----------------------------------------------------------------------------------------------------------


def test_every_method_and_modifier_can_be_shown(capsys: pytest.CaptureFixture[str]) -> None:
    for name in [*BASES, *(f"grpo+{modifier}" for modifier in MODIFIERS)]:
        assert shown(capsys, "show", name).startswith(f"{name}\n"), name
        assert as_json(capsys, "show", name)["name"] == name, name


def test_what_is_shown_of_a_method(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "show", "dgpo")
    assert "Decoupled Gradient Policy Optimization" in text
    assert "arXiv:2603.14389" in text
    assert "F = r (r / (1 - eps_low))^n" in text
    assert "How we differ from the released code" in text
    assert "rlvr_cli/methods/dgpo.py" in text
    assert "golden/dgpo.json" in text
    assert "rlvr train --method dgpo" in text
    for choice in ("advantage = group", "policy_loss = dgpo", "shaping: none", "aggregation = token_mean"):
        assert choice in text
    (row,) = [line for line in text.splitlines() if "method.policy_loss.n " in line]
    assert "1.0" in row and "DGPO paper" in row


def test_what_is_shown_fits_the_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = shown(capsys, "show", "dgpo").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("  Fu et al."))
    paragraph = lines[start : lines.index("", start)]
    assert all(60 < len(line) <= 80 for line in paragraph[:-1])


def test_a_composition_says_what_its_modifiers_set(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "show", "AR_Lopti")
    assert text.startswith("reweight+lopti\n")
    assert 'method.passes.kind: "one_pass" -> "lopti"  (+lopti)' in text
    changed = as_json(capsys, "show", "dgpo+reweight")["changed_by_modifiers"]
    assert changed == [{"key": "method.shaping.reweight.alpha", "before": 0.0, "after": 0.3, "modifier": "reweight"}]


def test_an_unknown_name_offers_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Did you mean `dgpo`?" in refused(capsys, "show", "dgop")
    assert "Did you mean `lopti`?" in refused(capsys, "show", "dgpo+lopt")


# --- plot ----------------------------------------------------------------------------------------------------------


def test_a_picture_with_the_default_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = shown(capsys, "plot", "dgpo", "GRPO")
    assert text.startswith("weights-dgpo-grpo.png: dgpo, grpo, at old probability 0.1, 0.5, 0.9")
    assert [path.name for path in tmp_path.iterdir()] == ["weights-dgpo-grpo.png"]


def test_json_has_the_numbers_of_the_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = as_json(capsys, "plot", "gppo", "acpo", "--old-prob", "0.1", "--output", str(tmp_path / "w.svg"))
    assert data["methods"] == ["gppo", "acpo"]
    assert any("standard deviation 0.1 (1 - p)" in note for note in data["notes"])
    (curve,) = [curve for curve in data["curves"] if curve["label"] == "gppo" and curve["sign"] == 1]
    assert curve["trust_region"] == [0.8, 1.2]
    assert curve["on_grad_log_prob"][-1] == pytest.approx(1.2)
    assert curve["on_grad_prob"][-1] == pytest.approx(1.2 / (4 * 0.1))


@pytest.mark.parametrize(
    "arguments",
    [["--old-prob", "0.1,0.5"], ["--old-prob", "0.1", "--old-prob", "0.5"]],
)
def test_old_probabilities_may_be_written_in_two_ways(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert as_json(capsys, "plot", "grpo", *arguments, "--output", str(tmp_path / "w.svg"))["old_probs"] == [0.1, 0.5]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["dgpo", "--output", "w.pdf"], ".png or .svg"),
        (["dgpo", "--output", "w"], ".png or .svg"),
        (["dgpo", "--output", "no-such-folder/w.png"], "no such folder: no-such-folder"),
        (["dgop"], "Did you mean `dgpo`?"),
        (["sft"], "no token weight"),
        (["dgpo", "--old-prob", "1.5"], "--old-prob 1.5"),
        (["dgpo", "--old-prob", "0"], "--old-prob 0"),
        (["dgpo", "--old-prob", "often"], "--old-prob often"),
        (["dgpo", "--old-prob", "0.1,0.2,0.3,0.4,0.5,0.6"], "at most 5"),
        (["dgpo", "0.5"], "0.5"),
        (["acpo", "--spread", "1"], "--spread 1"),
        (["grpo", "dapo", "dr-grpo", "gspo", "rloo", "ppo", "cispo", "gppo", "aspo"], "at most 8"),
    ],
)
def test_what_cannot_be_drawn_is_refused(
    arguments: list[str],
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert expected in refused(capsys, "plot", *arguments)
    assert not list(tmp_path.iterdir())


def test_a_bad_name_is_refused_before_anything_heavy_is_loaded() -> None:
    assert not {"torch", "altair"} & modules_after("plot", "dgpo", "--output", "w.pdf", code=2)
