"""Real searches on the lab: two workers and kills among them; a configuration that is given up."""

from __future__ import annotations

import signal
import subprocess
from functools import partial
from pathlib import Path

import psutil
import pytest
from optuna.trial import TrialState

from benchmarks.sweep_kills import SETTINGS, start, workers
from rlvr_cli.core.files import read_jsonl
from rlvr_cli.core.yaml import dump
from rlvr_cli.sweeps.folder import SweepDir
from rlvr_cli.sweeps.search import Search
from tests.sweeps.test_sweep_runs import attempts, wait_for

# The seed of a random search that tries the second of two values first.
SEED = 3
EVALUATED = {"validation.every": 1, "validation.problems": 8, "validation.samples": 2, "validation.pass_at": [1]}


def write_search(path: Path, **content: object) -> Path:
    settings = {**SETTINGS, **EVALUATED, "run.dir": str(path.parent / "runs")}
    del settings["optimizer.lr"]
    settings |= content.pop("set", {})  # type: ignore[arg-type]
    path.write_text(dump({"name": "sweep", "set": settings, "objective": "accuracy", **content}))
    return path


def finish(driver: subprocess.Popen[bytes], file: Path) -> str:
    """What a sweep said that finished all of its trials, which may take a while on a busy machine."""
    driver.wait(timeout=800)
    said = file.with_suffix(".log").read_text()
    assert driver.returncode == 0, said
    return said


def recorded(sweep: SweepDir) -> int:
    return sum(path.read_bytes().count(b"\n") for path in sweep.path.glob("*/metrics.jsonl"))


def working(sweep: SweepDir, driver: subprocess.Popen[bytes], steps: int) -> list[psutil.Process]:
    """The workers, once all trials together have recorded so many steps."""
    return workers(driver) if recorded(sweep) >= steps else []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_kills_lose_no_trial_and_double_none(tmp_path: Path) -> None:
    """Five configurations of one seed, 4 steps each (lopti: 8): workers are killed three times, the driver once."""
    file = write_search(
        tmp_path / "s.yaml",
        grid={"optimizer.lr": {"log_range": [1e-5, 1e-3]}},
        methods=["grpo", "lopti"],
        search={"trials": 5, "startup": 2},
    )
    sweep = SweepDir(tmp_path / "runs" / "sweep")
    driver = start(file, "--workers", "2")
    for steps in (2, 6, 11):
        living = wait_for(partial(working, sweep, driver, steps), driver, file)
        living[0].send_signal(signal.SIGKILL)
        if steps == 6:
            family = psutil.Process(driver.pid).children(recursive=True)
            driver.kill()
            driver.wait()
            _, alive = psutil.wait_procs(family, timeout=30)
            assert not alive, f"processes outlived their driver: {alive}"
            driver = start(file, "--workers", "2")
    said = finish(driver, file)
    plan = sweep.read_plan()
    assert len(plan.trials) == 5 and len({entry.id for entry in plan.trials}) == 5
    for entry in plan.trials:
        assert attempts(sweep, entry.name).count("finished") == 1
        assert len(read_jsonl(sweep.run_dir(entry).metrics_path)) == (4 if entry.method == "grpo" else 8)
    search = Search(sweep, plan)
    configurations = search.configurations()
    assert [trial.state for trial in configurations] == [TrialState.COMPLETE] * 5
    assert [trial.user_attrs["runs"] for trial in configurations] == [[entry.id] for entry in plan.trials]
    # A suggestion whose worker was killed before it was taken in has failed, and was made again.
    others = [trial.state for trial in search.study.trials if "runs" not in trial.user_attrs]
    assert set(others) <= {TrialState.FAIL}
    assert plan.search is not None and plan.search.ended
    assert "best of 5 by accuracy" in said and "biased high" in said and "rlvr sweep" in said
    # The same line again does nothing.
    before = (sweep.path / "search.journal").read_bytes()
    finish(start(file), file)
    assert len(sweep.read_plan().trials) == 5
    again = Search(sweep, sweep.read_plan()).study.trials
    assert [trial.state for trial in again] == [trial.state for trial in search.study.trials]
    assert len((sweep.path / "search.journal").read_bytes()) - len(before) < 1000


@pytest.mark.slow
def test_a_configuration_below_the_median_is_stopped(tmp_path: Path) -> None:
    """Evaluations of at most 4 tokens are shorter than those of 24; the second configuration ends early."""
    file = write_search(
        tmp_path / "s.yaml",
        set={"train.rollouts": 30, "checkpoint.every": 1000},
        grid={"validation.max_new_tokens": [4, 24]},
        objective={"metric": "length", "direction": "maximize"},
        search={"trials": 2, "sampler": "random", "seed": SEED, "pruning": {"startup": 1}},
    )
    sweep = SweepDir(tmp_path / "runs" / "sweep")
    said = finish(start(file), file)
    plan = sweep.read_plan()
    assert [entry.varies["validation.max_new_tokens"] for entry in plan.trials] == [24, 4]
    assert [status.state for status in sweep.statuses(plan)] == ["finished", "pruned"]
    stopped = plan.trials[1]
    assert sweep.pruned_rollout(stopped) == 1 and "below the median" in said
    assert 1 <= len(read_jsonl(sweep.run_dir(stopped).metrics_path)) < 60
    assert attempts(sweep, stopped.name) == ["interrupted", "pruned"]
    assert Search(sweep, plan).configurations()[1].state == TrialState.PRUNED
