"""train.on_collapse=rollback: a run goes back, goes on otherwise, and ends the same when it is killed."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from rlvr_cli.cli.app import app
from rlvr_cli.collapse.watch import Collapse, detect
from rlvr_cli.config.batch import batch_arithmetic
from rlvr_cli.config.load import load_config
from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import RunError
from rlvr_cli.evaluation.comparison.cost import spending
from rlvr_cli.evaluation.comparison.records import ComparedRun
from rlvr_cli.runs import rollbacks as on_disk
from rlvr_cli.runs.checkpoints import file_hash, valid_checkpoints, write_checkpoint
from rlvr_cli.runs.directory import RunDir, create_run
from rlvr_cli.runs.records import read_jsonl
from rlvr_cli.runs.rollbacks import folder_of, rollbacks_of
from rlvr_cli.sweeps.identity import identity
from rlvr_cli.training import run as running
from rlvr_cli.training.recorded import RecordedTrainer
from rlvr_cli.training.rollback import (
    Sick,
    checkpoint_stride,
    checkpoints_to_go_back_to,
    go_back,
    rollback_cautions,
)
from rlvr_cli.training.trainer import RunTrainer
from tests.training.test_on_collapse import LAX
from tests.training.test_on_collapse import SETTINGS as RUINOUS
from tests.training.test_trackers import needs
from tests.vllm.standin import python_with_vllm

# Completions get ever longer; at a hundredth of the rate they stay as they are. Two updates a rollout and a checkpoint
# every five steps: the one to go back to is in the middle of a rollout.
SETTINGS = (
    *RUINOUS,
    "optimizer.lr=3e-4",
    "train.rollouts=7",
    "checkpoint.every=5",
    "checkpoint.keep=1",
    "train.on_collapse=rollback",
    "train.rollback_lr_factor=0.01",
)
FROM, TO, STEPS = 11, 5, 14
LENGTH_ALONE = dataclasses.replace(LAX, longer=1.6, accuracy_drop=0.2, format_drop=2.0, rise_errors=99.0, shorter=0.1)


@pytest.fixture(autouse=True)
def _length_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunTrainer, "thresholds", LENGTH_ALONE)


def trained(folder: Path, name: str, *overrides: str) -> RunDir:
    config = load_config(overrides=[*SETTINGS, f"run.dir={folder}", f"run.name={name}", *overrides])
    return running.start(config, overwrite=False, console=Console(quiet=True)).run


def resume(run: RunDir) -> str:
    return running.resume(run, console=Console(quiet=True)).status


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(RunTrainer, "thresholds", LENGTH_ALONE)
        return trained(tmp_path_factory.mktemp("runs"), "whole", "eval.every=2", "eval.problems=4", "eval.samples=0")


@pytest.fixture(scope="module")
def warned(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """Up to the collapse, with warnings in place of rollbacks."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(RunTrainer, "thresholds", LENGTH_ALONE)
        return trained(tmp_path_factory.mktemp("warned"), "warned", "train.on_collapse=warn", "train.rollouts=6")


def test_it_goes_back_and_on_at_a_lower_rate_with_other_samples(whole: RunDir, warned: RunDir) -> None:
    rows, before = read_jsonl(whole.metrics_path), read_jsonl(warned.metrics_path)
    assert whole.read_manifest()["status"] == "finished" and not detect(rows, 4, LENGTH_ALONE)
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1)), "one truth for each step"
    # Until the collapse it is the run that was but warned; held-out evaluation leaves no trace in training.
    without = [{name: value for name, value in row.items() if name != "eval"} for row in rows[:TO]]
    assert without == before[:TO]
    # The rollout that had begun goes on with its own samples; those after it are others.
    assert rows[TO]["length"] == before[TO]["length"] and rows[TO + 1]["length"] != before[TO + 1]["length"]
    rates = [row["learning_rate"] for row in rows]
    assert rates[:TO] == [3e-4] * TO and rates[TO:] == pytest.approx([3e-6] * (STEPS - TO))
    assert [row.get("rollbacks", 0) for row in rows] == [0] * TO + [1] * (STEPS - TO)


def test_what_was_thrown_away_is_kept_aside_and_told(whole: RunDir, warned: RunDir) -> None:
    (rollback,) = rollbacks_of(whole)
    assert (rollback.number, rollback.from_step, rollback.to_step) == (1, FROM, TO)
    (collapse,) = detect(read_jsonl(warned.metrics_path), 4, LENGTH_ALONE)
    assert rollback.collapses == [collapse.as_json()] and rollback.learning_rate_factor == 0.01
    aside = folder_of(whole, 1)
    thrown = read_jsonl(aside.metrics_path)
    assert [row["step"] for row in thrown] == list(range(TO + 1, FROM + 1)) and thrown[-1]["collapse"]
    assert len(read_jsonl(aside.timings_path)) == FROM - TO
    assert [path.name for path in sorted(aside.rollouts_dir.iterdir())] == [
        f"rollout-{number:06d}.jsonl" for number in (3, 4, 5)
    ]
    assert [path.name for path in aside.held_out_dir.iterdir()] == ["rollout-000004"]
    assert len(list(whole.rollouts_dir.iterdir())) == 7 and len(list(whole.held_out_dir.iterdir())) == 3
    log = whole.log_path.read_text()
    said = f"{collapse}. Rollback 1 of at most 2: it was sound until rollout 4; back from step 11 to step 5"
    assert said in log and log.count("alert:") == 0
    shown = CliRunner().invoke(app, ["runs", "show", str(whole.path), "--json"])
    assert json.loads(shown.output)["rollbacks"] == [dataclasses.asdict(rollback)]


def test_what_was_thrown_away_was_paid_for(whole: RunDir) -> None:
    config = load_config([whole.config_path])
    spent = spending(ComparedRun(whole, config, {}, whole.read_manifest(), 0))
    aside = folder_of(whole, 1)
    lines = [*read_jsonl(whole.timings_path)[:TO], *read_jsonl(aside.timings_path)]
    later = read_jsonl(whole.timings_path)[TO:]
    assert spent[TO - 1].seconds == pytest.approx(sum(line["seconds"] for line in lines[:TO]))
    assert spent[-1].seconds == pytest.approx(sum(line["seconds"] for line in [*lines, *later]))
    # The third rollout was sampled once, the next three for nothing.
    assert (spent[TO].rollouts, spent[TO].updates) == (3 + 3, TO + 6 + 1)
    assert (spent[-1].rollouts, spent[-1].updates) == (7 + 3, STEPS + 6)
    files = [*whole.rollouts_dir.iterdir(), *aside.rollouts_dir.iterdir()]
    tokens = sum(row["tokens"] for path in files for row in read_jsonl(path))
    assert spent[-1].tokens == pytest.approx(tokens)


def same(run: RunDir, whole: RunDir) -> None:
    for one, other in ((run, whole), (folder_of(run, 1), folder_of(whole, 1))):
        assert [
            {name: value for name, value in row.items() if name != "eval"} for row in read_jsonl(one.metrics_path)
        ] == [{name: value for name, value in row.items() if name != "eval"} for row in read_jsonl(other.metrics_path)]
        ours, theirs = ({path.name: path for path in place.rollouts_dir.iterdir()} for place in (one, other))
        assert ours.keys() == theirs.keys()
        assert all(path.read_bytes() == theirs[name].read_bytes() for name, path in ours.items())
        assert len(read_jsonl(one.timings_path)) == len(read_jsonl(other.timings_path))
    newest = [valid_checkpoints(place.checkpoints_dir)[0] for place in (run, whole)]
    for name in ("model.safetensors", "trainer/optimizer.safetensors"):
        assert file_hash(newest[0].path / name) == file_hash(newest[1].path / name)
    ours, theirs = ([dataclasses.replace(entry, time="") for entry in rollbacks_of(place)] for place in (run, whole))
    assert ours == theirs


@contextmanager
def signalled_at(step: int, rollbacks: int) -> Iterator[None]:
    """SIGTERM as step ``step`` of the life after so many rollbacks is recorded, for the next step to end with."""
    record_step = RecordedTrainer.record_step

    def recording(self: RecordedTrainer, number: int, *numbers: float) -> None:
        record_step(self, number, *numbers)
        if number == step and len(self.rollbacks) == rollbacks:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(RecordedTrainer, "record_step", recording)
        yield


@pytest.mark.parametrize(
    ("step", "rollbacks", "reached"),
    [
        pytest.param(7, 0, 8, marks=pytest.mark.slow),  # before, with a checkpoint that is not to be gone back to
        (FROM - 1, 0, TO),  # with the collapse
        pytest.param(6, 1, 7, marks=pytest.mark.slow),  # after
    ],
)
def test_a_signal_before_with_or_after_it_changes_nothing(
    whole: RunDir, tmp_path: Path, step: int, rollbacks: int, reached: int
) -> None:
    with signalled_at(step, rollbacks):
        run = trained(tmp_path, "broken")
    assert run.read_manifest()["status"] == "interrupted"
    assert len(read_jsonl(run.metrics_path)) == reached == valid_checkpoints(run.checkpoints_dir)[0].step
    assert resume(run) == "finished"
    same(run, whole)


def test_a_rollback_that_was_cut_short_is_carried_out_by_the_next_process(
    whole: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: Path, step: int) -> None:
        raise OSError(28, "No space left on device", str(folder))

    with monkeypatch.context() as patched:
        patched.setattr(on_disk, "remove_after", full)
        with pytest.raises(RunError, match="No space"):
            trained(tmp_path, "broken")
    run = RunDir(tmp_path / "broken")
    assert rollbacks_of(run) == [] and valid_checkpoints(run.checkpoints_dir)[0].step == 10
    assert resume(run) == "finished"
    assert "the rollback that was under way is done" in run.log_path.read_text()
    same(run, whole)


@pytest.mark.slow
def test_after_as_many_as_allowed_a_collapse_stops_the_run(tmp_path: Path) -> None:
    again = ("train.rollback_lr_factor=1", "train.max_rollbacks=1")
    with pytest.raises(RunError, match=r"Stopped, since there were train\.max_rollbacks=1 rollbacks before\. ") as one:
        trained(tmp_path, "ruined", *again)
    run = RunDir(tmp_path / "ruined")
    manifest = run.read_manifest()
    assert manifest["status"] == "failed" and manifest["error"] == str(one.value) and len(rollbacks_of(run)) == 1
    with pytest.raises(RunError) as other:
        resume(run)
    assert str(other.value) == str(one.value), "and so does it when it is resumed"


def test_without_a_collapse_it_is_the_run_that_is_but_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    few = ("train.rollouts=2", "checkpoint.every=1")
    ours, theirs = trained(tmp_path, "ours", *few), trained(tmp_path, "theirs", *few, "train.on_collapse=warn")
    assert ours.metrics_path.read_bytes() == theirs.metrics_path.read_bytes()
    newest = [valid_checkpoints(run.checkpoints_dir)[0].path / "model.safetensors" for run in (ours, theirs)]
    assert file_hash(newest[0]) == file_hash(newest[1])


@pytest.mark.slow
def test_a_tracker_is_sent_the_steps_that_come_in_place_of_others(tmp_path: Path) -> None:
    needs("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = trained(tmp_path, "tracked", "run.track=[tensorboard]")
    read = EventAccumulator(str(run.path / "tensorboard"), size_guidance={"scalars": 0})
    read.Reload()
    rows = read_jsonl(run.metrics_path)
    lengths = [(event.step, event.value) for event in read.Scalars("train/length")]
    assert lengths == [(row["step"], row["length"]) for row in rows]
    known = json.loads((run.path / "trackers.json").read_text())["tensorboard"]
    assert (known["rollbacks"], known["sent"]) == (1, STEPS)


@pytest.mark.slow
def test_vllm_goes_on_with_the_weights_that_were_gone_back_to(tmp_path: Path) -> None:
    """Its server stays: a stand-in, whose log-probs are compared with the trainer's at the first rollouts since."""
    server = ("rollout.engine=vllm_server", f"rollout.vllm.python={python_with_vllm(tmp_path)}")
    run = trained(tmp_path, "served", *server, f"rollout.vllm.weights_dir={tmp_path / 'weights'}")
    log = run.log_path.read_text()
    assert run.read_manifest()["status"] == "finished" and len(rollbacks_of(run)) == 1
    assert log.count("vLLM server: ready") == 1 and "WARNING" not in log
    assert not list((tmp_path / "weights").iterdir())


# --- which checkpoint ----------------------------------------------------------------------------------------------


def sick_run(folder: Path, *, steps: tuple[int, ...], sound: int) -> tuple[Config, RunDir, Sick]:
    """A run of 30 steps, a rollout each, with checkpoints of ``steps``."""
    config = load_config(overrides=["train.on_collapse=rollback", "checkpoint.every=2", "train.rollouts=60"])
    run = create_run(folder, "run", overwrite=False)
    run.update_manifest(status="running")
    for path in (run.metrics_path, run.timings_path):
        path.write_text("".join(json.dumps({"step": step}) + "\n" for step in range(1, 31)))
    for step in steps:
        write_checkpoint(run.checkpoints_dir, step, lambda aside: (aside / "weights").write_bytes(b"x") and None)
    return config, run, Sick((Collapse("format_loss", 29, (), ()),), sound, step=30, window=5)


def back(config: Config, run: RunDir, sick: Sick) -> int:
    go_back(config, run, batch_arithmetic(config), sick, [])
    return rollbacks_of(run)[0].to_step


def test_the_newest_of_the_regular_ones_from_before_it_began(tmp_path: Path) -> None:
    config, run, sick = sick_run(tmp_path, steps=(6, 12, 17, 18, 24, 30), sound=17)
    assert checkpoint_stride(config, 5) == 6
    # 17 was saved by a signal: a run that got none has no such checkpoint.
    assert back(config, run, sick) == 12
    assert [entry.step for entry in valid_checkpoints(run.checkpoints_dir)] == [12, 6]
    manifest = run.read_manifest()
    assert (manifest["step"], manifest["last_metrics"]) == (12, {"step": 12})


def test_what_is_only_among_the_newest_is_not_gone_back_to(tmp_path: Path) -> None:
    """How many regular ones checkpoint.keep has kept depends on what signals saved beside them."""
    config, run, sick = sick_run(tmp_path, steps=(6, 12, 18, 24, 30), sound=19)
    assert back(config, run, sick) == 12
    config, run, sick = sick_run(tmp_path / "again", steps=(6, 12, 18, 24, 30), sound=19)
    # At step 60 there was 12 no more, unless it was among the newest.
    earlier = dataclasses.replace(rollbacks_of(RunDir(tmp_path / "run"))[0], from_step=60, to_step=24)
    go_back(config, run, batch_arithmetic(config), sick, [earlier])
    assert rollbacks_of(run)[-1].to_step == 6


def test_the_start_where_there_was_to_be_none_so_early(tmp_path: Path) -> None:
    config, run, sick = sick_run(tmp_path, steps=(6, 12), sound=5)
    assert back(config, run, sick) == 0
    assert valid_checkpoints(run.checkpoints_dir) == [] and run.metrics_path.read_bytes() == b""


def test_it_stops_where_none_can_be_used(tmp_path: Path) -> None:
    config, run, sick = sick_run(tmp_path, steps=(6, 24), sound=17)
    (run.checkpoints_dir / "step-6" / "weights").write_bytes(b"y")
    with pytest.raises(RunError, match=r"Stopped, since none of the checkpoints up to step 17 is there and whole"):
        back(config, run, sick)
    assert rollbacks_of(run) == [] and len(read_jsonl(run.metrics_path)) == 30


def test_it_is_said_where_no_checkpoint_can_be_early_enough() -> None:
    def said(*overrides: str) -> list[str]:
        return rollback_cautions(load_config(overrides=["train.on_collapse=rollback", *overrides]))

    assert said("train.rollouts=60", "checkpoint.every=10") == said("train.on_collapse=warn") == []
    (late,) = said("train.rollouts=60", "checkpoint.every=58")
    assert "begins at the start; checkpoint.every=5 gives it more" in late
    (short,) = said("train.rollouts=9", "checkpoint.every=1")
    assert "the run is too short for more" in short


def test_how_many_are_kept_and_that_they_decide_a_trial() -> None:
    def of(*overrides: str) -> Config:
        return load_config(overrides=["train.rollouts=60", *overrides])

    back, other = of("train.on_collapse=rollback"), of("train.on_collapse=rollback", "checkpoint.every=4")
    assert [checkpoints_to_go_back_to(config) for config in (of(), back, other)] == [0, 4, 4]
    assert identity(back) != identity(other), "what there is to go back to decides the numbers"
    assert identity(of()) == identity(of("checkpoint.every=4"))


def test_a_manifest_of_any_shape_is_an_error_for_people(tmp_path: Path) -> None:
    run = create_run(tmp_path, "run", overwrite=False)
    entry: dict[str, Any] = {"number": 1}
    run.update_manifest(rollbacks=[entry])
    with pytest.raises(RunError, match=r"manifest\.json: rollbacks: .* The file was altered"):
        rollbacks_of(run)
