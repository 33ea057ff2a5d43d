"""The worst-case batch before a training: what it runs, what it reports, and how it tells that memory ran out."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.training.probe import ProbeResult, probe, probe_result, worst_case

SMALL = ["rollout.max_new_tokens=24", "task.train_size=32", "run.threads=1"]
MEASURED = ProbeResult(18, 24, 4, "cpu", 100, 200, None, None, 1.0)


@pytest.mark.parametrize(
    ("overrides", "micro_batches"),
    [
        (["update.micro_batch=8"], 2),
        (["rollout.prompts=2", "update.micro_batch=16"], 1),
        (["update={mini_batches: 4, micro_batch: 2}"], 2),
        (["method=lopti", "update.micro_batch=4"], 2),
        (["update.micro_batch=1"], 2),
        (["launch.processes=2", "update.micro_batch=4"], 2),
    ],
)
def test_the_batch_has_the_rows_of_the_training(overrides: list[str], micro_batches: int) -> None:
    config = load_config(overrides=overrides)
    found = worst_case(config).batch
    assert found.micro_batch == config.batch.micro_batch
    assert found.micro_batches == micro_batches
    assert found.steps_total >= 2
    assert worst_case(config).rollout.max_new_tokens == config.rollout.max_new_tokens
    # It is a valid configuration: what is changed still divides.
    from rlvr_cli.config.checks import cross_field_problems

    assert not cross_field_problems(worst_case(config), lambda path: False)


@pytest.mark.parametrize("processes", [1, 2])
def test_passes_that_are_bounded_by_tokens_are_as_full_as_in_the_training(processes: int) -> None:
    """How many rows that makes is known once there are prompts, so that a step has all of them."""
    config = load_config(overrides=["update={micro_batch: 4, micro_tokens: 100000}", f"launch.processes={processes}"])
    assert worst_case(config).batch.share == config.batch.share > 8
    assert worst_case(config).update.micro_tokens == 100000


def test_a_probe_is_no_run_that_is_tracked() -> None:
    assert worst_case(load_config(overrides=["track=[tensorboard]"])).track.to == ()


def test_a_probe_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (measured,) = probe(load_config(overrides=[*SMALL, "update.micro_batch=4"]))
    assert (measured.micro_batch, measured.completion_tokens) == (4, 24)
    assert 0 < measured.prompt_tokens < 100
    assert 0 < measured.before < measured.peak
    assert "rows of" in measured.sentence()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_each_of_two_processes() -> None:
    measured = probe(load_config(overrides=[*SMALL, "update.micro_batch=4", "launch.processes=2"]))
    assert [one.micro_batch for one in measured] == [4, 4]
    assert "the most of 2 processes" in measured[0].sentence(2)


@pytest.mark.slow
def test_supervised_fine_tuning() -> None:
    (measured,) = probe(load_config(method="sft", overrides=[*SMALL[1:], "update.micro_batch=4"]))
    assert measured.completion_tokens > 5


def test_bad_input_is_the_trainings_own(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="model: there is no folder"):
        probe(load_config(model=str(tmp_path / "nothing")))


def test_what_the_child_tells() -> None:
    config = load_config(overrides=["update.micro_batch=8"])
    assert probe_result([{"stage": "x"}, {"measured": asdict(MEASURED)}], 0, "", config) == MEASURED
    with pytest.raises(UserError, match="wrong"):
        probe_result([{"problems": ["wrong"]}], 2, "", config)
    told: list[dict[str, Any]] = [{"stage": "loading the model"}, {"stage": "in the backward pass"}]
    with pytest.raises(RunError) as killed:
        probe_result(told, -9, "", config)
    assert "out of memory while in the backward pass (was killed by the system" in str(killed.value)
    assert "update.micro_batch=4 (now 8)" in str(killed.value)
    with pytest.raises(RunError) as full:
        probe_result(
            [*told, {"error": "OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB"}], 1, "", config
        )
    assert "while in the backward pass (OutOfMemoryError: CUDA out of memory" in str(full.value)
    with pytest.raises(RunError, match=r"failed while starting \(exit status 1\):\nlast\nwords"):
        probe_result([], 1, "much\nbefore\nlast\nwords\n", config)


@pytest.mark.slow
def test_memory_that_runs_out_for_real(tmp_path: Path) -> None:
    """An address space of 6 GiB, and a batch whose logits alone would need more."""
    limit = 6 * 2**30
    code = (
        "from rlvr_cli.cli.app import run; import sys; sys.exit(run(['plan', '--probe', 'run.threads=1', "
        "'rollout={prompts: 512, group_size: 32, max_new_tokens: 400}', 'update.micro_batch=4096', "
        "'task.train_size=32']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    assert done.returncode == 1, done.stderr
    assert "out of memory while" in done.stderr
    assert "update.micro_batch=2048 (now 4096)" in done.stderr
    assert "Traceback" not in done.stderr
