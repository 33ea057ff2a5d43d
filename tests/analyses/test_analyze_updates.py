"""`rlvr analyze weights` and `directions` on a run of the lab, from the command line to numbers and figure."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rlvr_cli.cli.app import run
from tests.analyses.lab_runs import analyzed, trained
from tests.runs.made_seals import reseal

SETTINGS = [
    "train.rollouts=2",
    "rollout.prompts=4",
    "rollout.max_new_tokens=48",
    "update.mini_batches=4",
    "checkpoint.every=4",
    "checkpoint.keep=9",
    "eval.every=0",
    "task.train_size=64",
    # Fast enough for ratios to leave the trust region.
    "optimizer.lr=1e-3",
    "run.threads=1",
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory, SETTINGS)


def refused(capsys: pytest.CaptureFixture[str], root: Path, *arguments: str) -> str:
    capsys.readouterr()
    assert run(["analyze", *arguments, "--run", "lab", "--runs", str(root)]) == 2
    return capsys.readouterr().err


def test_weights_of_a_rollout_after_its_updates(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = analyzed(capsys, root, "weights", "--rollout", "0", "--step", "4")
    summary = found["summary"]
    assert summary["updates_since"] == 4
    assert summary["share_outside"] > 0
    regions = [summary[f"tokens_{name}"] for name in ("LN", "HP", "LP", "HN", "M")]
    assert sum(regions) == summary["tokens_with_advantage"] <= summary["tokens"]
    for name in ("LN", "HP"):
        if summary[f"tokens_{name}"]:
            assert summary[f"bias_grpo_{name}"] == pytest.approx(1)
            assert summary[f"bias_dgpo_{name}"] < 1
    for method in ("grpo", "gppo", "ce_gppo", "dgpo"):
        assert summary[f"bias_{method}_M"] == 0
    assert summary["slope_cispo_LN"] == pytest.approx(-1)
    assert summary["slope_dgpo_LN"] == pytest.approx(1)
    assert summary["slope_grpo_LN"] is None
    assert Path(found["figure"]).read_text().startswith("<svg")
    assert json.loads(Path(found["figure"]).with_suffix(".json").read_text())["frames"] == found["frames"]


def test_fewer_methods_coefficients_alone_and_other_bounds(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = ["methods=[grpo, dgpo+lopti]", "gradients=false", "--rollout", "0", "--step", "4"]
    narrow = analyzed(capsys, root, "weights", *chosen, "eps_low=0.05", "eps_high=0.05")["summary"]
    wide = analyzed(capsys, root, "weights", *chosen)["summary"]
    assert narrow["share_outside"] > wide["share_outside"]
    assert wide["decoupled_bias_grpo_LP"] in (0, None)
    assert "decoupled_bias_dgpo_lopti_LN" in wide
    assert not any(name.startswith("bias_") for name in wide)


def test_a_sample_of_the_completions_is_the_same_at_every_call(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["weights", "methods=[grpo]", "rows=20", "--rollout", "0", "--step", "4"]
    first, second = (analyzed(capsys, root, *arguments) for _ in range(2))
    assert first["frames"] == second["frames"]
    assert any("20 of 32 completions" in note for note in first["notes"])


def test_on_policy_it_is_said_that_no_token_left_the_bounds(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = analyzed(capsys, root, "weights", "gradients=false", "--rollout", "1", "--step", "4")
    assert "clips have nothing to act on" in found["headline"]
    assert any("0 updates after the sampling" in note for note in found["notes"])
    assert found["summary"]["gamma_LN"] is None


def test_directions_of_a_rollout_after_its_updates(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = analyzed(capsys, root, "directions", "--rollout", "0", "--step", "4")
    summary = found["summary"]
    assert (summary["matrices"], summary["k"]) == (28, 6)
    groups = ["low", "high", "entropy", "positive", "negative", "noclip", "cispo", "dapo", "acpo", "onpolicy", "old"]
    for name in groups:
        assert summary[f"norm_{name}"] > 0
        assert 0 <= summary[f"angle_{name}"] <= 90
    assert summary["share_positive"] + summary["share_negative"] == pytest.approx(1)
    assert summary["own_norm_low"] == pytest.approx(summary["norm_low"] / summary["share_low"])
    assert summary["angle_random"] > 70
    assert len({row["matrix"] for row in found["angles"] if row["group"] == "low"}) == 28


def test_directions_with_few_matrices_and_all_their_directions(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = analyzed(capsys, root, "directions", "k=96", "side=left", "matrices=2", "--rollout", "0", "--step", "4")
    assert found["summary"]["matrices"] == 2
    assert any("k directions are all there are" in note for note in found["notes"])


def test_on_policy_every_way_of_clipping_is_the_update(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = analyzed(capsys, root, "directions", "matrices=1", "--rollout", "1", "--step", "4")
    summary = found["summary"]
    for name in ("noclip", "cispo", "dapo", "acpo", "onpolicy", "old"):
        assert summary[f"norm_{name}"] == pytest.approx(1)
        assert summary[f"angle_{name}"] == pytest.approx(0, abs=1e-3)
    assert any("Every ratio is 1" in note for note in found["notes"])


def test_a_rollout_without_advantages_has_neither_weights_nor_directions(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(root / "lab", tmp_path / "lab")
    file = copy / "rollouts" / "rollout-000000.jsonl"
    rows = [{**json.loads(line), "clean_reward": 1.0} for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    reseal(copy)
    for name in ("weights", "directions"):
        found = analyzed(capsys, copy.parent, name, "--rollout", "0", "--step", "4")
        assert found["headline"].startswith(("No token", "The update of grpo"))
        assert "has an advantage" in found["headline"]
        assert Path(found["figure"]).exists()


def test_a_run_with_an_adapter_is_looked_at_merged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = [*SETTINGS, "train.rollouts=1", "update.mini_batches=1", "checkpoint.every=1"]
    assert run(["train", f"run.dir={tmp_path}", "run.name=lab", "model.adapter={kind: lora, rank: 4}", *settings]) == 0
    found = analyzed(capsys, tmp_path, "directions", "matrices=1")
    assert found["summary"]["norm_old"] > 0
    found = analyzed(capsys, tmp_path, "ratio", "updates=[1]")
    assert found["summary"]["kappa_first"] > 0


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("weights", "methods=[grpo, dgqo, grpo+noise]"), "Did you mean `dgpo`"),
        (("weights", "methods=[grpo, dgqo, grpo+noise]"), "noise changes the rewards"),
        (("weights", "methods=[]"), "at least one value"),
        (("weights", "methods=[ppo]"), "value head"),
        (("weights", "eps_low=1"), "eps_low"),
        (("weights", "--step", "3"), "no checkpoint of step 3"),
        (("weights", "--rollout", "7"), "from before the updates on rollout 7"),
        (("directions", "method=grqo"), "Did you mean `grpo`"),
        (("directions", "k=0"), "k=0"),
        (("directions", "side=up"), "right"),
    ],
)
def test_what_cannot_be_is_refused(
    arguments: tuple[str, ...], reason: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reason in refused(capsys, root, *arguments)
