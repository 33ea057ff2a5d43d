"""Where the time of a training step goes, on a CPU: sampling, judging, forward, backward, optimizer, records, rest.

    python -m benchmarks.profile_step [lab] [125M] [--steps 4] [--threads 1] [--operators 10]

`rlvr train` itself is run, for one step more than is measured; the first is left out. Each part is wall time without
that of the parts inside it, a mean over the steps. With --operators, the second step of another training runs under
torch's profiler, and the operators that took the most processor time of their own follow.
"""

from __future__ import annotations

import argparse
import functools
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from rich.console import Console

from benchmarks.random_model import random_model
from benchmarks.tensors import profiled
from benchmarks.turns import heading, line, load_said
from rlvr_cli.config.load import load_config
from rlvr_cli.tasks import Task
from rlvr_cli.training.checkpointer import Checkpointer
from rlvr_cli.training.forward import PolicyForward
from rlvr_cli.training.recorder import Recorder
from rlvr_cli.training.rollouts import RolloutSource
from rlvr_cli.training.run import start_training
from rlvr_cli.training.trainer import PolicyTrainer

REST = "rest"
PARTS: dict[str, list[tuple[Any, str]]] = {
    "sampling": [(RolloutSource, "collect")],
    "judging": [(Task, "judge_many")],
    "forward": [(PolicyForward, "__call__"), (PolicyTrainer, "_loss")],
    "backward": [(Accelerator, "backward")],
    "optimizer": [(AcceleratedOptimizer, "step"), (Accelerator, "clip_grad_norm_")],
    "records": [(RolloutSource, "store"), (Recorder, "on_step_end")],
    "checkpoints": [(Checkpointer, "save")],
}
MODELS = {
    "lab": [],
    "125M": [
        "rollout={prompts: 4, group_size: 4, max_new_tokens: 64}",
        # A random model gets nothing right, and completions of equal rewards are not trained on: a coin judges.
        "task={name: kk, style: compact, train_size: 64, reward: random}",
    ],
}


class Parts:
    """Seconds of each part, those of parts inside it taken out; from the end of the first step to that of the last.

    Attributes:
        steps: that have ended. last: the seconds when the last of them ended.
    """

    def __init__(self) -> None:
        self.seconds = dict.fromkeys((*PARTS, REST), 0.0)
        self.steps, self.last = 0, dict[str, float]()
        self._inside: list[str] = [REST]
        self._since = time.perf_counter()

    def _enter(self, part: str) -> None:
        now = time.perf_counter()
        self.seconds[self._inside[-1]] += now - self._since
        self._inside.append(part)
        self._since = now

    def _leave(self) -> None:
        now = time.perf_counter()
        part = self._inside.pop()
        self.seconds[part] += now - self._since
        self._since = now

    def watched(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, whose time is that of ``part``."""

        @functools.wraps(function)
        def run(*arguments: Any, **named: Any) -> Any:
            self._enter(part)
            try:
                return function(*arguments, **named)
            finally:
                self._leave()
                if function.__name__ == "on_step_end":
                    self._step_ended()

        return run

    def _step_ended(self) -> None:
        if self.steps == 0:
            self.seconds = dict.fromkeys(self.seconds, 0.0)
        self.steps += 1
        self.last = dict(self.seconds)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Every part is watched inside."""
        kept = [(owner, name, getattr(owner, name)) for parts in PARTS.values() for owner, name in parts]
        own = {(owner, name): name in vars(owner) for owner, name, _ in kept}
        try:
            for part, functions in PARTS.items():
                for owner, name in functions:
                    setattr(owner, name, self.watched(part, getattr(owner, name)))
            yield
        finally:
            for owner, name, function in kept:
                if own[owner, name]:
                    setattr(owner, name, function)
                else:
                    delattr(owner, name)


def train(model: str, steps: int, threads: int) -> None:
    """`rlvr train` for so many rollouts of one update, in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="rlvr-benchmark-") as folder:
        source = model
        if model != "lab":
            source = f"{folder}/model"
            random_model("qwen3-125M", Path(source))
        overrides = [
            *MODELS[model],
            f"train.rollouts={steps}",
            f"run.threads={threads}",
            "checkpoint.every=1000",
            f"run.dir={folder}/runs",
            "run.name=profiled",
        ]
        start_training(load_config(model=source, overrides=overrides), overwrite=False, console=Console(quiet=True))


def second_step(model: str, threads: int) -> Any:
    """torch's profile of a training's second step; the first is left out, and what goes before it."""
    profiler, steps = profiled(), 0
    record = Recorder.on_step_end

    def recorded(*arguments: Any, **named: Any) -> None:
        nonlocal steps
        record(*arguments, **named)
        steps += 1
        (profiler.start if steps == 1 else profiler.stop)()

    Recorder.on_step_end = recorded  # type: ignore[method-assign]
    try:
        train(model, 2, threads)
    finally:
        Recorder.on_step_end = record  # type: ignore[method-assign]
    return profiler


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help=f"of {', '.join(MODELS)}; all by default")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--operators", type=int, default=0, help="how many to list")
    options = parser.parse_args()
    unknown = sorted(set(options.models) - set(MODELS))
    if unknown:
        parser.error(f"no such model: {', '.join(unknown)}; there are {', '.join(MODELS)}")
    print(f"Mean of {options.steps} steps, {options.threads} thread(s); {load_said()}.\n")
    print(heading("model", "seconds a step", *PARTS, REST))
    for model in options.models or MODELS:
        parts = Parts()
        with parts.watching():
            train(model, options.steps + 1, options.threads)
        steps = parts.steps - 1
        whole = sum(parts.last.values())
        shares = [f"{parts.last[part] / whole:.0%}" for part in (*PARTS, REST)]
        print(line([model, f"{whole / steps:.3f}", *shares]), flush=True)
    if options.operators:
        for model in options.models or MODELS:
            profiler = second_step(model, options.threads)
            print(f"\n{model}:\n\n{heading('operator', 'calls', 'own seconds')}")
            events = sorted(profiler.key_averages(), key=lambda event: -event.self_cpu_time_total)
            for event in events[: options.operators]:
                print(line([f"`{event.key}`", f"{event.count:,}", f"{event.self_cpu_time_total / 1e6:.3f}"]))


if __name__ == "__main__":
    main()
