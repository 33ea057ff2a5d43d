"""The training loop: time to the first step of `rlvr train`, and what a step costs besides sampling and update.

    python -m benchmarks.loop [--repeats 5] [--rollouts 12]

The first step is timed in processes of their own, in turns with `python -c "from trl import GRPOTrainer"`, which no
training on TRL can do without; wall and CPU seconds, medians. A step of the lab's defaults is timed in this process:
what is left of it without the sampler, the verifier, and forward, backward and optimizer, is the loop's.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from rich.console import Console

from rlvr_cli.config.load import load_config

PEER = 'python -c "from trl import GRPOTrainer"'
FIRST_STEP = "rlvr train, to the first step"
SHORT = ["rollout.prompts=4", "rollout.group_size=4", "train.rollouts=1", "run.name=first"]


def to_the_line(command: list[str], begins: str, folder: str) -> tuple[float, float]:
    """Wall seconds until ``command`` prints a line that begins so (all of them where it is ""), CPU seconds in all."""
    before, started = _cpu_of_children(), time.perf_counter()
    seconds = 0.0
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if begins and line.startswith(begins):
                seconds = time.perf_counter() - started
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: ended with {process.returncode}")
    return seconds or time.perf_counter() - started, _cpu_of_children() - before


def _cpu_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def first_step(repeats: int) -> dict[str, tuple[float, float]]:
    """Median wall and CPU seconds of the peer and of a short training, in turns, after a round that is not counted."""
    lines = {
        PEER: ([sys.executable, "-c", "from trl import GRPOTrainer; GRPOTrainer"], ""),
        FIRST_STEP: ([sys.executable, "-m", "rlvr_cli", "train", "--overwrite", *SHORT], "step 1/"),
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in lines}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(repeats + 1):
            for name, (command, begins) in lines.items():
                timed = to_the_line(command, begins, folder)
                if number > 0:
                    found[name].append(timed)
    return {
        name: (statistics.median(wall for wall, _ in pairs), statistics.median(cpu for _, cpu in pairs))
        for name, pairs in found.items()
    }


def steps(rollouts: int) -> list[tuple[float, float, int]]:
    """Seconds of each step of a training with one update a rollout, the loop's among them, and waits for the disk.

    Without the first two steps, which warm up; no checkpoint is among them.
    """
    from rlvr_cli.tasks import Task
    from rlvr_cli.training import build
    from rlvr_cli.training import run as running
    from rlvr_cli.training.policy_run import PolicyRunTrainer
    from rlvr_cli.training.prepare import RunParts
    from rlvr_cli.training.recorder import Recorder

    spent, began, waits, found = [0.0], [0.0], [0], []

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            started = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                spent[0] += time.perf_counter() - started

        return call

    class Timed(PolicyRunTrainer):
        _rollout_seconds = 0.0

        def __init__(self, parts: RunParts) -> None:
            super().__init__(parts)
            self.rollouts.engine = timed(self.rollouts.engine)
            began[0] = time.perf_counter()

        def training_step(self, *arguments: Any, **named: Any) -> Any:
            started, before = time.perf_counter(), spent[0]
            loss = super().training_step(*arguments, **named)
            # All of it, but of the rollout only the sampler and the verifier.
            spent[0] = before + time.perf_counter() - started - self._rollout_seconds
            self._rollout_seconds = 0.0
            return loss

        def _rows_of_step(self, batch: Any) -> Any:
            started, before = time.perf_counter(), spent[0]
            inputs = super()._rows_of_step(batch)
            self._rollout_seconds = time.perf_counter() - started - (spent[0] - before)
            return inputs

        def create_optimizer(self, *arguments: Any, **named: Any) -> Any:
            optimizer = super().create_optimizer(*arguments, **named)
            optimizer.step = timed(optimizer.step)
            return optimizer

        def _clip_grad_norm(self, model: Any) -> Any:
            return timed(super()._clip_grad_norm)(model)

    record = Recorder.on_step_end

    def recorded(self: Recorder, *arguments: Any, **named: Any) -> None:
        record(self, *arguments, **named)
        now = time.perf_counter()
        found.append((now - began[0], now - began[0] - spent[0], waits[0]))
        began[0], spent[0], waits[0] = now, 0.0, 0

    real_fsync = os.fsync

    def fsync(descriptor: int) -> None:
        waits[0] += 1
        real_fsync(descriptor)

    with (
        tempfile.TemporaryDirectory() as folder,
        patch.object(build, "PolicyRunTrainer", Timed),
        patch.object(Recorder, "on_step_end", recorded),
        patch.object(Task, "judge_many", timed(Task.judge_many)),
        patch.object(os, "fsync", fsync),
    ):
        changes = [f"run.dir={folder}", "run.name=steps", f"train.rollouts={rollouts}", "checkpoint.every=100000"]
        running.start_training(load_config([], overrides=changes), overwrite=False, console=Console(quiet=True))
    return found[2:]


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loop", description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5, help="measured starts of each command")
    parser.add_argument("--rollouts", type=int, default=12, help="of the training whose steps are timed")
    options = parser.parse_args()
    print(f"medians of {options.repeats} in turns; load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n")
    print("| command | seconds | CPU seconds | ratio |\n|---|---|---|---|")
    medians = first_step(options.repeats)
    for name, (wall, cpu) in medians.items():
        print(f"| `{name}` | {wall:.2f} | {cpu:.2f} | {cpu / medians[PEER][1]:.2f} |", flush=True)
    found = steps(options.rollouts)
    whole, loop = (statistics.median(row[place] for row in found) for place in (0, 1))
    print("\n| of a step of the lab | seconds | share | waits for the disk |\n|---|---|---|---|")
    print(f"| all | {whole:.3f} | 100% | {max(row[2] for row in found)} |")
    print(f"| outside sampling, verification and update | {loop:.4f} | {loop / whole:.1%} | |")


if __name__ == "__main__":
    main()
