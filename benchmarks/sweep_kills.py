"""A sweep whose workers and driver are killed at random: is each trial done once, and as if nobody had been killed?

    python -m benchmarks.sweep_kills [--seeds 5] [--kills 10] [--workers 2] [--own] [--folder DIR]

Runs 4 methods by the seeds twice on the lab, with tiny settings: once undisturbed, once with workers killed (kill -9)
at random moments and the driver once. Prints what was killed, and compares every run with its undisturbed twin. With
--own the rewards, rows and one of the methods are files of the user's own, and the rewards import a file next to them.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from rlvr_cli.cli.templates import files_of
from rlvr_cli.core.files import read_jsonl
from rlvr_cli.core.yaml import dump
from rlvr_cli.sweeps.driver import WORKER
from rlvr_cli.sweeps.expand import expand
from rlvr_cli.sweeps.spec import read_sweep

METHODS = ("grpo", "dapo", "lopti", "reinforce-pp")
# Two rollouts of 16 completions, two updates on each, a checkpoint after every step: some seconds a trial.
SETTINGS = {
    "train.rollouts": 2,
    "rollout.prompts": 4,
    "rollout.group_size": 4,
    "rollout.max_new_tokens": 24,
    "update.mini_batches": 2,
    "task.train_size": 16,
    "optimizer.lr": 1e-3,
    "run.threads": 1,
    "checkpoint.every": 1,
}


@dataclass(frozen=True)
class Tally:
    """What a disturbed sweep came to: trials, those lost, those done twice, those whose numbers differ."""

    trials: int
    lost: list[str]
    doubled: list[str]
    different: list[str]
    worker_kills: int
    driver_kills: int


def write_sweep(path: Path, folder: Path, methods: tuple[str, ...], seeds: int, *, own: bool = False) -> Path:
    """A sweep file whose runs go to ``folder``; ``own``: over :func:`own_files`, written next to it."""
    settings: dict[str, Any] = {key: value for key, value in SETTINGS.items() if not own or key != "task.train_size"}
    settings["run.dir"] = str(folder)
    content: dict[str, Any] = {"name": "sweep", "set": settings, "methods": list(methods), "seeds": seeds}
    if own:
        content["base"] = own_files(path.parent).name
    path.write_text(dump(content))
    return path


def own_files(folder: Path) -> Path:
    """Rows, a reward that imports a file next to it, and a method, in ``folder``; a configuration that names the first
    two.
    """
    written = files_of("reward", "mine")
    head, _, last_answer = written["mine.py"].rpartition("\n\n\n")
    texts = {
        "mine.jsonl": written["mine.jsonl"],
        "answers.py": last_answer,
        "mine.py": f"{head.replace('from typing', 'from answers import _last_answer' + chr(10) + 'from typing')}\n",
        "power.py": files_of("method", "power")["power.py"],
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    task = {"name": "own", "data": str(folder / "mine.jsonl"), "reward": ["mine.py:accuracy", "mine.py:brief"]}
    (folder / "own.yaml").write_text(dump({"task": {**task, "reward_weights": [1.0, 0.2]}}))
    return folder / "own.yaml"


def start(file: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """`rlvr sweep` in a process of its own, its output to a file next to ``file``."""
    with file.with_suffix(".log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "rlvr_cli", "sweep", str(file), *arguments],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def workers(driver: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The living workers of a driver."""
    found = []
    for child in psutil.Process(driver.pid).children():
        try:
            if WORKER in child.cmdline():
                found.append(child)
        except psutil.Error:
            continue
    return found


def disturbed(file: Path, sweep: Path, *, kills: int, count: int, rng: random.Random) -> tuple[int, int]:
    """Run the sweep to its end under kill -9: ``kills`` of workers, and one of the driver in the middle of them.

    A kill comes up to two seconds after as many optimizer steps of all trials together as were drawn for it, and
    before the last ``count`` of them: what has ended cannot be killed.
    Returns the kills of workers and of drivers that were made.
    """
    made = drivers = 0
    steps = sum(trial.config.batch.steps_total for trial in expand(read_sweep(file)).trials)
    moments = sorted(rng.sample(range(1, steps - count), kills + 1))
    driver = start(file, "--workers", str(count))
    while driver.poll() is None:
        time.sleep(0.05)
        if not moments or recorded(sweep) < moments[0] or not workers(driver):
            continue
        until = time.monotonic() + rng.uniform(0.0, 2.0)
        while time.monotonic() < until and recorded(sweep) < steps - count:
            time.sleep(0.02)
        living = workers(driver) if driver.poll() is None else []
        if living and drivers == 0 and made >= kills // 2:
            family = psutil.Process(driver.pid).children(recursive=True)
            driver.kill()
            driver.wait()
            drivers += 1
            _, alive = psutil.wait_procs(family, timeout=30)
            assert not alive, f"processes outlived their driver: {alive}"
            driver = start(file, "--workers", str(count))
        elif living:
            rng.choice(living).send_signal(signal.SIGKILL)
            made += 1
        else:
            continue
        moments.pop(0)
    assert driver.returncode == 0, file.with_suffix(".log").read_text()
    return made, drivers


def recorded(sweep: Path) -> int:
    """The optimizer steps that all trials have recorded."""
    return sum(path.read_bytes().count(b"\n") for path in sweep.glob("*/metrics.jsonl"))


def compare(whole: Path, broken: Path, kills: tuple[int, int]) -> Tally:
    """Hold the runs of a disturbed sweep against those of an undisturbed one."""
    wanted = sorted(path.parent.name for path in whole.glob("*/manifest.json"))
    found = sorted(path.parent.name for path in broken.glob("*/manifest.json"))
    ends = {name: read_jsonl(broken / "state" / name / "attempts.jsonl") for name in found}
    finished = {name: sum(row.get("outcome") == "finished" for row in rows) for name, rows in ends.items()}

    def bytes_of(root: Path, name: str) -> list[bytes]:
        run = root / name
        return [path.read_bytes() for path in (run / "metrics.jsonl", *sorted((run / "rollouts").iterdir()))]

    return Tally(
        trials=len(wanted),
        lost=[name for name in wanted if not finished.get(name)],
        doubled=[name for name in found if name not in wanted or finished[name] > 1],
        different=[name for name in wanted if name in found and bytes_of(whole, name) != bytes_of(broken, name)],
        worker_kills=kills[0],
        driver_kills=kills[1],
    )


def survive(
    folder: Path, *, methods: tuple[str, ...], seeds: int, kills: int, count: int, seed: int = 0, own: bool = False
) -> Tally:
    """An undisturbed and a disturbed sweep in ``folder``, compared."""
    whole = write_sweep(folder / "whole.yaml", folder / "whole", methods, seeds, own=own)
    driver = start(whole, "--workers", str(count))
    assert driver.wait() == 0, whole.with_suffix(".log").read_text()
    broken = write_sweep(folder / "broken.yaml", folder / "broken", methods, seeds, own=own)
    made = disturbed(broken, folder / "broken" / "sweep", kills=kills, count=count, rng=random.Random(seed))
    return compare(folder / "whole" / "sweep", folder / "broken" / "sweep", made)


def main() -> None:
    """Print the tally; exit code 1 where a trial was lost, doubled or changed."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--own", action="store_true", help="Rewards, rows and a method of the user's own.")
    options = parser.parse_args()
    methods = (*METHODS[:3], "power.py") if options.own else METHODS
    with tempfile.TemporaryDirectory(prefix="rlvr-sweep-kills-") as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        tally = survive(
            folder, methods=methods, seeds=options.seeds, kills=options.kills, count=options.workers, own=options.own
        )
    print(
        f"{tally.trials} trials, {options.workers} workers; killed: {tally.worker_kills} workers, "
        f"{tally.driver_kills} driver\n"
        f"lost: {len(tally.lost)}  doubled: {len(tally.doubled)}  different from the undisturbed sweep's: "
        f"{len(tally.different)}"
    )
    sys.exit(1 if tally.lost or tally.doubled or tally.different else 0)


if __name__ == "__main__":
    main()
