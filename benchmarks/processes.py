"""Every method in one process and in several: the largest difference of a weight after a few rollouts, as a table.

`python -m benchmarks.processes [--processes N] [--lr X] [NAME ...]`. The processes are real ones (gloo, CPU), started
by torchrun; each trains all the methods one after the other, as `rlvr train` would under an outer launcher.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from safetensors.torch import load_file
from torch import Tensor

from rlvr_cli.config.load import load_config
from rlvr_cli.launch.command import find_free_port
from rlvr_cli.launch.world import ALONE, world_of_environment
from rlvr_cli.methods.names import METHODS
from rlvr_cli.models.source import PRESETS
from rlvr_cli.runs.checkpoints import valid_checkpoints
from rlvr_cli.training.run import RunContext, start_training
from rlvr_cli.training.worker import exit_process

# A step of AdamW at the learning rate of 1e-4, of either sign: what rounding can make of an entry near 0.
LIMIT = 2e-4
# Two rollouts, each updated on twice: the second update is off-policy. Small enough for tests, uneven in length.
SETTINGS = (
    *("train.rollouts=2", "rollout.prompts=4", "rollout.group_size=4", "rollout.max_new_tokens=24"),
    *("update.mini_batches=2", "task.train_size=32", "checkpoint.every=100", "run.threads=1"),
)
# What is not a method of its own: compositions, and settings that decide what is trained on.
MORE: dict[str, tuple[str, tuple[str, ...]]] = {
    "dgpo+lopti": ("dgpo+lopti", ()),
    "acpo+lopti": ("acpo+lopti", ()),
    "reinforce-pp+reweight+lopti": ("reinforce-pp+reweight+lopti", ()),
    "ppo+lopti": ("ppo+lopti", ()),
    "grpo+conflict": ("grpo+conflict", ()),
    "grpo, KL 0.1": ("grpo", ("method.kl.beta=0.1",)),
    "grpo, noise 0.3": ("grpo", ("method.reward.noise=0.3",)),
    "dapo, dynamic sampling": ("dapo", ("rollout.dynamic_sampling=2",)),
    "grpo, drop truncated": ("grpo", ("rollout.drop_truncated=true",)),
    "grpo, two epochs": ("grpo", ("update.epochs=2",)),
    "ppo, two epochs": ("ppo", ("update.epochs=2",)),
    "sft, LoRA": ("sft", ("model.adapter=lora", "model.adapter.rank=4")),
    "grpo, LoRA": ("grpo", ("model.adapter=lora", "model.adapter.rank=4")),
    "grpo, evaluated": (
        "grpo",
        ("validation.every=1", "validation.problems=6", "validation.samples=2", "validation.pass_at=[1,2]"),
    ),
}


@dataclass(frozen=True)
class Case:
    """A training: its row in the table, its method, and what is compared with it."""

    title: str
    method: str
    overrides: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        return "".join(letter if letter.isalnum() else "-" for letter in self.title)


@dataclass(frozen=True)
class Row:
    """How far a case's weights are apart, and how far they moved; shares of the largest weight of each tensor."""

    title: str
    apart: float
    moved: float


def cases(names: list[str]) -> list[Case]:
    """All cases, or those named."""
    listed = [Case(preset.name, preset.name) for preset in METHODS.values()]
    listed += [Case(title, method, overrides) for title, (method, overrides) in MORE.items()]
    unknown = sorted(set(names) - {case.title for case in listed})
    if unknown:
        raise SystemExit(f"unknown case: {', '.join(unknown)}. Allowed: {', '.join(case.title for case in listed)}")
    return [case for case in listed if not names or case.title in names]


def train(case: Case, root: Path, lr: float, processes: int) -> Path:
    """Train ``case`` as this process's part of it; the run's folder."""
    own = ("rollout.max_new_tokens=60", "method.demonstrations=16") if case.method == "sft" else ()
    overrides = (*SETTINGS, *own, f"optimizer.lr={lr}", f"launch.processes={processes}", *case.overrides)
    config = load_config([], method=case.method, overrides=[*overrides, f"run.dir={root}", f"run.name={case.folder}"])
    world = ALONE if processes == 1 else world_of_environment()
    return start_training(config, overwrite=False, console=Console(quiet=True), context=RunContext(world)).run.path


def compared(first: Path, second: Path, base: Path) -> tuple[float, float]:
    """The largest differences of two runs' weights, and of the first's and what it began with."""

    def weights(run: Path) -> dict[str, Tensor]:
        folder = valid_checkpoints(run / "checkpoints")[0].path
        extra = folder / "trainer" / "value_head.safetensors"
        files = [*folder.glob("*.safetensors"), *([extra] if extra.exists() else [])]
        return {key: tensor for file in files for key, tensor in load_file(file).items()}

    def largest(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
        # An adapter is not in the model that it begins with; what it adds begins at 0.
        pairs = [(new, other.get(key, torch.zeros(()))) for key, new in one.items() if key in other or "lora_B" in key]
        return max(float((new - old).abs().max() / new.abs().max().clamp(min=1e-3)) for new, old in pairs)

    one, two = weights(first), weights(second)
    if one.keys() != two.keys():
        raise SystemExit(f"{first.name}: the checkpoints hold other weights: {sorted(one.keys() ^ two.keys())}")
    return largest(one, two), largest(one, load_file(base))


def table(names: list[str], processes: int, lr: float, root: Path) -> Iterator[Row]:
    """Train every case both ways and compare."""
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(processes)),
        *("--master_addr", "127.0.0.1", "--master_port", str(find_free_port())),
        *("--module", "benchmarks.processes", "--rank", str(root / "several")),
        *("--processes", str(processes), "--lr", str(lr), *names),
    ]
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SystemExit(f"the processes failed:\n{ended.stdout[-3000:]}{ended.stderr[-6000:]}")
    for case in cases(names):
        one = train(case, root / "one", lr, 1)
        apart, moved = compared(one, root / "several" / case.folder, PRESETS["lab"] / "model.safetensors")
        yield Row(case.title, apart, moved)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--rank", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank is not None:
        for case in cases(given.names):
            train(case, given.rank, given.lr, given.processes)
        exit_process(0)
    print(f"{'case':<30} {'apart':>10} {'moved':>10}", flush=True)
    found = []
    with tempfile.TemporaryDirectory(prefix="rlvr-processes-") as folder:
        for row in table(given.names, given.processes, given.lr, Path(folder)):
            found.append(row)
            far = "  TOO FAR" * (row.apart > LIMIT)
            print(f"{row.title:<30} {row.apart:>10.1e} {row.moved:>10.1e}{far}", flush=True)
    worst = max(found, key=lambda row: row.apart)
    print(f"{len(found)} cases: at most {worst.apart:.1e} ({worst.title}); limit {LIMIT:g}")
    sys.exit(worst.apart > LIMIT)


if __name__ == "__main__":
    main()
