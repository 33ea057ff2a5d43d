"""Runs from start to status: repeatable, stoppable, resumable, and healthy or stopped."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.runs import records
from rlvr_cli.runs.checkpoints import valid_checkpoints
from rlvr_cli.runs.folder import RunDir, open_run
from rlvr_cli.runs.seal import file_digest
from rlvr_cli.tasks.kk import KnightsAndKnaves
from rlvr_cli.training import run as running
from rlvr_cli.training.trainer import PolicyTrainer
from tests import matrix as shared
from tests.matrix import metrics, resume
from tests.training.processes import interrupted_after

STEPS = 12
SETTINGS = {
    "train.rollouts": 3,
    "rollout.prompts": 2,
    "rollout.max_new_tokens": 32,
    "update.mini_batches": 4,
    "checkpoint.every": 3,
    "task.train_size": 32,
    "optimizer.lr": 1e-3,
    "run.threads": 1,
}


def start(folder: Path, name: str, *, overwrite: bool = False, **changes: Any) -> running.RunEnd:
    settings = {**SETTINGS, **{key.replace("__", "."): value for key, value in changes.items()}}
    overrides = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    config = load_config([], overrides=[f"run.dir={folder}", f"run.name={name}", *overrides])
    return running.start_training(config, overwrite=overwrite, console=Console(quiet=True))


def weights_hash(run: RunDir) -> str:
    return file_digest(valid_checkpoints(run.checkpoints_dir)[0].path / "model.safetensors")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return start(tmp_path_factory.mktemp("runs"), "whole").run


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """Stopped by SIGTERM in the second rollout, with a checkpoint at step 3 and one in mid-buffer."""
    folder = tmp_path_factory.mktemp("interrupted")
    with interrupted_after(5):
        outcome = start(folder, "broken")
    assert (outcome.status, outcome.exit_code) == ("interrupted", 128 + signal.SIGTERM)
    return outcome.run


@pytest.fixture
def broken(interrupted: RunDir, tmp_path: Path) -> RunDir:
    return RunDir(Path(shutil.copytree(interrupted.path, tmp_path / "broken")))


def test_same_seed_same_bytes(whole: RunDir, tmp_path: Path) -> None:
    again, other = start(tmp_path, "again").run, start(tmp_path, "other", run__seed=1).run
    assert again.metrics_path.read_bytes() == whole.metrics_path.read_bytes()
    assert weights_hash(again) == weights_hash(whole)
    assert other.metrics_path.read_bytes() != whole.metrics_path.read_bytes()


def test_a_run_leaves_everything_that_the_readme_names(matrix: Path) -> None:
    run = RunDir(matrix / "grpo-0")
    manifest, rows = run.read_manifest(), metrics(run)
    assert (manifest["status"], manifest["step"], manifest["rollout"]) == ("finished", 6, 3)
    assert manifest["versions"]["trl"] and manifest["method_fingerprint"]["choices"]["name"] == "grpo"
    assert manifest["executed"]["PPOClip"] == manifest["executed"]["token_mean"] > 0
    assert [row["step"] for row in rows] == list(range(1, 7))
    assert sum(value for key, value in rows[0].items() if key.startswith("reason/")) == pytest.approx(1)
    assert all(row["grad_norm"] > 0 for row in rows)
    assert len(list(run.rollouts_dir.iterdir())) == 3 and len(run.timings_path.read_text().splitlines()) == 6
    first = json.loads((run.rollouts_dir / "rollout-000000.jsonl").read_text().splitlines()[0])
    assert {"prompt", "completion", "reward", "parts", "reason", "advantage"} <= first.keys()
    assert load_config([run.config_path]).optimizer.lr == 1e-3
    newest = valid_checkpoints(run.checkpoints_dir)[0].path
    assert json.loads((newest / "config.json").read_text())["use_cache"] is True, "who samples from it wants its cache"
    assert all(path.stat().st_mode & 0o044 == 0o044 for path in newest.rglob("*") if path.is_file())
    assert not [path for path in run.path.rglob("*") if path.suffix in (".pt", ".bin", ".pkl", ".pth")]


def test_sigterm_saves_and_resume_is_exact(whole: RunDir, broken: RunDir) -> None:
    step = valid_checkpoints(broken.checkpoints_dir)[0].step
    assert 5 <= step < STEPS and step % 4, "the save should lie in the middle of a buffer"
    assert resume(broken).status == "finished"
    assert broken.metrics_path.read_bytes() == whole.metrics_path.read_bytes()
    assert weights_hash(broken) == weights_hash(whole)


def test_a_damaged_checkpoint_is_named_and_passed_over(whole: RunDir, broken: RunDir) -> None:
    newest = valid_checkpoints(broken.checkpoints_dir)[0].path
    victim = newest / "model.safetensors"
    victim.write_bytes(victim.read_bytes()[:-1])
    resume(broken)
    log = broken.log_path.read_text()
    assert f"{newest} skipped" in log and "model.safetensors" in log
    assert broken.metrics_path.read_bytes() == whole.metrics_path.read_bytes()
    assert weights_hash(broken) == weights_hash(whole)


def test_nothing_is_resumed_when_every_checkpoint_is_damaged(broken: RunDir) -> None:
    for path in broken.checkpoints_dir.glob("step-*"):
        (path / "MANIFEST.json").unlink()
    with pytest.raises(UserError, match=r"no checkpoint can be used .*MANIFEST.json is missing"):
        resume(broken)


def test_a_run_killed_before_its_first_save_starts_over(whole: RunDir, broken: RunDir) -> None:
    shutil.rmtree(broken.checkpoints_dir)
    broken.update_manifest(step=0, rollout=0, status="running")
    resume(broken)
    assert broken.metrics_path.read_bytes() == whole.metrics_path.read_bytes()


def test_a_run_whose_checkpoints_are_gone_is_not_begun_again(broken: RunDir) -> None:
    step = broken.read_manifest()["step"]
    shutil.rmtree(broken.checkpoints_dir)
    before = contents(broken)
    with pytest.raises(UserError, match=rf"checkpoints: holds no checkpoint, and the run was saved at step {step}\b"):
        resume(broken)
    assert contents(broken) == before


@pytest.mark.parametrize("name", ["metrics.jsonl", "checkpoints", "rollouts/rollout-000001.jsonl"])
def test_a_resume_writes_through_no_link(broken: RunDir, tmp_path: Path, name: str) -> None:
    """What a link leads to may be another run, or anybody's file."""
    linked, elsewhere = broken.path / name, tmp_path / "elsewhere"
    linked.rename(elsewhere)
    linked.symlink_to(elsewhere)
    before, there = contents(broken), contents(RunDir(elsewhere))
    with pytest.raises(UserError, match=rf"{re.escape(name)}: is a link to .*elsewhere"):
        resume(broken)
    assert (contents(broken), contents(RunDir(elsewhere))) == (before, there)


def test_what_is_made_again_stays_until_it_is(whole: RunDir, broken: RunDir) -> None:
    """The newest checkpoint is gone, so the run goes back to the one before and makes the same steps again."""
    newest = valid_checkpoints(broken.checkpoints_dir)[0]
    shutil.rmtree(newest.path)
    lines = broken.metrics_path.read_bytes().splitlines(keepends=True)
    with interrupted_after(4):
        resume(broken)
    step = valid_checkpoints(broken.checkpoints_dir)[0].step
    aside = RunDir(broken.path / "rewound" / "1")
    assert step < newest.step and f"{newest.path} is missing" in broken.log_path.read_text()
    assert aside.metrics_path.read_bytes() == b"".join(lines[3:])
    assert resume(broken).status == "finished"
    assert broken.metrics_path.read_bytes() == whole.metrics_path.read_bytes()
    assert weights_hash(broken) == weights_hash(whole)
    assert not aside.path.parent.exists(), "all of it stands in the run again"


def contents(run: RunDir) -> dict[Path, bytes]:
    files = (path for path in run.path.rglob("*") if path.is_file() and path.name != ".lock")
    return {path: path.read_bytes() for path in files}


def test_names_and_locks(whole: RunDir, broken: RunDir) -> None:
    root = whole.path.parent
    with pytest.raises(UserError, match="this run exists"):
        start(root, "whole")
    with pytest.raises(UserError, match="is finished"):
        resume(whole)
    with pytest.raises(UserError, match="no such run"):
        open_run(root / "none")
    (root / "precious").mkdir()
    (root / "precious" / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="not a run directory"):
        start(root, "precious", overwrite=True)
    with broken.lock(), pytest.raises(UserError, match="in use by another process"):
        resume(broken)
    with broken.lock(), pytest.raises(UserError, match="in use by another process"):
        start(broken.path.parent, "broken", overwrite=True)
    assert start(broken.path.parent, "broken", overwrite=True, train__rollouts=1).status == "finished"


def test_a_run_whose_configuration_was_edited_is_not_resumed(broken: RunDir) -> None:
    broken.config_path.write_text(broken.config_path.read_text().replace("0.001", "0.002"))
    with pytest.raises(UserError, match=r"config\.yaml: was changed after the run started"):
        resume(broken)


def break_steps(monkeypatch: pytest.MonkeyPatch, *steps: int) -> None:
    """Make the loss infinite, or NaN where it is 0, at the given optimizer steps."""
    whole = PolicyTrainer._loss

    def loss(self: PolicyTrainer, *arguments: Any, **named: Any) -> torch.Tensor:
        return whole(self, *arguments, **named) * (math.inf if self.state.global_step + 1 in steps else 1.0)

    monkeypatch.setattr(PolicyTrainer, "_loss", loss)


def test_a_gradient_that_is_not_finite_stops_before_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_steps(monkeypatch, 5)
    with pytest.raises(RunError, match=r"step 5: .*The weights are unchanged"):
        start(tmp_path, "sick")
    run = RunDir(tmp_path / "sick")
    assert run.read_manifest()["status"] == "failed"
    assert [checkpoint.step for checkpoint in valid_checkpoints(run.checkpoints_dir)] == [3]
    monkeypatch.undo()
    assert resume(run).status == "finished"


def test_a_gradient_that_is_not_finite_can_be_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    break_steps(monkeypatch, 5, 7)
    run = start(tmp_path, "skips", train__on_nonfinite="skip", checkpoint__every=1, checkpoint__keep=20).run
    rows = metrics(run)
    assert [row["skips"] for row in rows] == [0] * 4 + [1] * 2 + [2] * 6
    assert rows[4]["grad_norm"] is None
    hashes = [file_digest(run.checkpoints_dir / f"step-{step}" / "model.safetensors") for step in (4, 5, 6)]
    assert hashes[0] == hashes[1] != hashes[2], "a skipped step must leave the weights as they were"
    final = load_file(valid_checkpoints(run.checkpoints_dir)[0].path / "model.safetensors")
    assert all(torch.isfinite(tensor).all() for tensor in final.values())


def test_too_many_skipped_rewards_stop_and_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other rewards of the rollout have changed the weights."""
    judge, calls = KnightsAndKnaves.judge, iter(range(10**6))

    def faulty(self: KnightsAndKnaves, *arguments: Any, **named: Any) -> Any:
        verdict = judge(self, *arguments, **named)
        return dataclasses.replace(verdict, reward=math.inf) if next(calls) % 8 == 3 else verdict

    monkeypatch.setattr(KnightsAndKnaves, "judge", faulty)
    with pytest.raises(RunError) as caught:
        start(tmp_path, "sick", train__on_nonfinite="skip", train__max_skips=1)
    message = str(caught.value)
    assert "max_skips=1 skips: " in message and "rollouts with non-finite or too large rewards" in message
    assert "updates were not finite" not in message and metrics(RunDir(tmp_path / "sick"))[-1]["skips"] == 1


def test_a_reward_that_is_not_finite_can_be_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judge, count = KnightsAndKnaves.judge, iter(range(10**6))

    def faulty(self: KnightsAndKnaves, *arguments: Any, **named: Any) -> Any:
        verdict = judge(self, *arguments, **named)
        return dataclasses.replace(verdict, reward=math.nan) if next(count) == 3 else verdict

    monkeypatch.setattr(KnightsAndKnaves, "judge", faulty)
    run = start(tmp_path, "skips", train__on_nonfinite="skip").run
    row = json.loads((run.rollouts_dir / "rollout-000000.jsonl").read_text().splitlines()[3])
    assert row["reward"] is None and row["advantage"] == 0
    assert metrics(run)[-1]["skips"] == 1


def test_what_an_outer_accelerate_would_compute_with_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`accelerate launch` sets these from its file; on a CPU the run would be another, and nobody told."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    with pytest.raises(RunError, match=r"accelerate computes with .*bf16.*ACCELERATE_MIXED_PRECISION"):
        start(tmp_path, "run", train__rollouts=1)


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """Interrupted in its second rollout, with held-out evaluations on the way."""
    with interrupted_after(5):
        settings = {"validation__every": 1, "validation__problems": 4, "validation__samples": 0}
        return start(tmp_path_factory.mktemp("evaluated"), "evaluated", **settings).run


@pytest.mark.parametrize(
    ("record", "damage"),
    [
        ("metrics.jsonl", "flip"),
        ("rollouts/rollout-000000.jsonl", "cut"),
        ("eval/in-training/rollout-000001/samples.jsonl", "delete"),
    ],
)
def test_a_record_that_was_altered_is_named_and_the_run_left_alone(
    evaluated: RunDir, tmp_path: Path, record: str, damage: str
) -> None:
    run = RunDir(Path(shutil.copytree(evaluated.path, tmp_path / "run")))
    path = run.path / record
    data = path.read_bytes()
    if damage == "flip":
        middle = data.index(b'"tokens": ' if b'"tokens": ' in data else b'"reward": ') + 10
        path.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
    elif damage == "cut":
        path.write_bytes(data[: len(data) // 2])
    else:
        path.unlink()
    before = contents(run)
    with pytest.raises(UserError, match=f"{path}: (was altered|is missing)"):
        resume(run)
    assert contents(run) == before


def test_a_record_from_after_the_checkpoint_is_made_again(whole: RunDir, broken: RunDir) -> None:
    """It is not among what the resumed run rests on, whatever became of it."""
    newest = valid_checkpoints(broken.checkpoints_dir)[0]
    shutil.rmtree(newest.path)
    (broken.rollouts_dir / "rollout-000001.jsonl").write_text("{}\n")
    lines = broken.metrics_path.read_bytes().splitlines(keepends=True)
    broken.metrics_path.write_bytes(b"".join([*lines[:4], b"torn"]))
    assert resume(broken).status == "finished"
    assert broken.metrics_path.read_bytes() == whole.metrics_path.read_bytes()
    kept = broken.path / "rewound" / "1" / "rollouts" / "rollout-000001.jsonl"
    assert kept.read_text() == "{}\n", "it was not made again, so it is not deleted"


def test_every_record_of_a_finished_run_is_sealed(evaluated: RunDir, tmp_path: Path) -> None:
    run = RunDir(Path(shutil.copytree(evaluated.path, tmp_path / "run")))
    resume(run)
    seal = records.read_seal(run)
    assert seal is not None and seal["metrics.jsonl"]["size"] == run.metrics_path.stat().st_size
    names = {path.relative_to(run.path).as_posix() for path in (*run.rollouts_dir.iterdir(),)}
    held_out = run.held_out_dir.glob("*/[!.]*")
    assert names | {path.relative_to(run.path).as_posix() for path in held_out} | {"metrics.jsonl"} == seal.keys()
    assert list(records.damaged_records(run, seal)) == []
    (run.path / records.FILE).unlink()
    with pytest.raises(RunError, match=r"records\.json: is missing"):
        records.read_record(run, run.metrics_path)


# In the second rollout, before the last step of its last pass; Lopti has two passes.
@pytest.mark.parametrize("of", ["grpo-0", "quantile", "ppo", "gtpo", "acpo", "noise", "lora", "sft"])
def test_every_kind_of_state_survives_a_resume(matrix: Path, tmp_path: Path, of: str) -> None:
    """Passes, thresholds, value heads, the initial entropy, statistics, noise, a reference and adapters: same bytes."""
    expected = RunDir(matrix / of)
    steps = len(metrics(expected)) // 3
    with interrupted_after(2 * steps - 2):
        broken = shared.start(tmp_path, of, of).run
    assert valid_checkpoints(broken.checkpoints_dir)[0].step % steps > 0, "the save should lie within a rollout"
    if of == "grpo-0":
        # Left by a killed run on another machine: its weights differ in the last bits, its samples must not be used.
        stale = broken.held_out_dir / "rollout-000002"
        shutil.copytree(broken.held_out_dir / "rollout-000001", stale, dirs_exist_ok=True)
        kl = [row["kl_reference"] for row in metrics(expected)]
        assert abs(kl[0]) < 1e-9 < kl[-1], "the reference is the model that training began with"
    assert resume(broken).status == "finished"
    assert shared.contents(broken) == shared.contents(expected)
    assert any(row["grad_norm"] for row in metrics(expected)[2 * steps - 2 :]), "there is something to go on with"
