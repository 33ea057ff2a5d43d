"""Every named method and a dozen compositions, trained on the lab for a few rollouts: does each run, and as itself?

    python -m benchmarks.methods_smoke [--rollouts 3] [--updates 1 4] [METHOD ...]

All runs share seed, problems and the sampling noise of the first rollout. For each: seconds a rollout spends in updates
over GRPO's, the mean gradient norm, the share of tokens in each region (of the last rollout), and how far the weights
end from GRPO's. The command fails where weights equal GRPO's and must not, or differ where `rlvr plan` says that the
gradients are the same.
"""

from __future__ import annotations

import argparse
import io
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from safetensors.torch import load_file

from rlvr_cli.config.load import load_config
from rlvr_cli.config.schema import Config
from rlvr_cli.core.files import read_jsonl
from rlvr_cli.methods.equivalence import same_gradients
from rlvr_cli.methods.names import METHODS
from rlvr_cli.runs.checkpoints import valid_checkpoints
from rlvr_cli.training.metrics import REGION_METRICS
from rlvr_cli.training.run import start_training

COMPOSITIONS = [
    "reweight+lopti",
    "dgpo+lopti",
    "acpo+lopti",
    "reinforce-pp+reweight+lopti",
    "gspo+reweight",
    "dapo+high-entropy",
    "cispo+low-only",
    "grpo+conflict",
    "grpo+entropy-filter+entropy-penalty",
    "rloo+entropy-min",
    "grpo+noise",
    "ppo+reweight",
]


@dataclass(frozen=True)
class Result:
    """What one run left."""

    config: Config
    seconds: float
    rows: list[dict[str, Any]]
    weights: dict[str, torch.Tensor]


def run(name: str, updates: int, rollouts: int, folder: Path) -> Result:
    """Train ``name`` on the lab."""
    config = load_config(
        method=name,
        overrides=[
            f"train.rollouts={rollouts}",
            f"update.mini_batches={updates}",
            "checkpoint.every=100000",
            "checkpoint.keep=1",
            f"run.dir={folder}",
            f"run.name={name}-{updates}",
        ],
    )
    outcome = start_training(config, overwrite=True, console=Console(file=io.StringIO()))
    rows = list(read_jsonl(outcome.run.metrics_path))
    timings = list(read_jsonl(outcome.run.timings_path))
    # The first rollout also warms up the machine.
    warm = [row for row in timings if row["step"] > len(rows) // rollouts]
    seconds = sum(row["seconds/update"] for row in warm) / (rollouts - 1)
    weights = load_file(valid_checkpoints(outcome.run.checkpoints_dir)[0].path / "model.safetensors")
    return Result(config, seconds, rows, weights)


def distance(one: Result, other: Result) -> float:
    """Euclidean distance of the weights."""
    squares = [(one.weights[key].double() - other.weights[key].double()).square().sum() for key in one.weights]
    return float(torch.stack(squares).sum().sqrt())


def line(name: str, result: Result, base: Result) -> str:
    rows = result.rows
    last = [row for row in rows if row["rollout"] == rows[-1]["rollout"]]
    regions = [statistics.fmean(row[metric] for row in last) for metric in REGION_METRICS.values()]
    norm = statistics.fmean(row["grad_norm"] for row in rows)
    shares = " | ".join(f"{share:.2%}" for share in regions)
    return (
        f"| {name} | {len(last)} | {result.seconds / base.seconds:.2f} | {norm:.3f} | {shares} | "
        f"{distance(result, base):.2e} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*")
    parser.add_argument("--rollouts", type=int, default=3)
    parser.add_argument("--updates", type=int, nargs="+", default=[1, 4])
    options = parser.parse_args()
    if options.rollouts < 2:
        parser.error("--rollouts must be 2 or more: the first warms up")
    named = [preset.name for preset in METHODS.values() if preset.name not in ("grpo", "sft")]
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        for updates in options.updates:
            base = run("grpo", updates, options.rollouts, Path(folder))
            steps = f"{updates} update{'' if updates == 1 else 's'} a rollout"
            print(f"\n## {steps}, {options.rollouts} rollouts; GRPO's updates take {base.seconds:.2f} s a rollout\n")
            print("| method | steps | seconds / GRPO | gradient norm | LN | HP | LP | HN | distance to GRPO |")
            print("|---|---|---|---|---|---|---|---|---|")
            print(line("grpo", base, base), flush=True)
            for name in options.methods or [*named, *COMPOSITIONS]:
                result = run(name, updates, options.rollouts, Path(folder))
                print(line(name, result, base), flush=True)
                groups = same_gradients({"grpo": base.config.method, name: result.config.method}, updates)
                expected = any(group.when != "first_step" for group in groups)
                if (distance(result, base) == 0) != expected:
                    wrong.append(f"{name} at {steps}: {'differs from' if expected else 'equals'} GRPO, and must not")
    for message in wrong:
        print(message, file=sys.stderr)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
