"""`rlvr runs list` over many run directories, with its index and without.

    python -m benchmarks.runs_index [--runs 2000] [--repeats 7] [--changed 0.01] [--json]

The directories have manifests as `rlvr train` writes them, half of them in folders of sweeps; after the index is made,
a share of the manifests is changed. Two things are timed, by turns, so that other work on the machine slows both alike:
reading the runs in a process that runs already, and the whole command. `not cached`: the system was asked to forget the
contents of all files before (not their names and times). Ends with an error if the two ways do not give the same runs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.turns import processor_seconds
from rlvr_cli.config.load import dump_yaml, load_config
from rlvr_cli.runs.atomic import write_text
from rlvr_cli.runs.environment import git_state, hardware, versions
from rlvr_cli.runs.index import index_path, read_runs, update_index

METHODS = ("grpo", "dgpo", "lopti", "gppo+lopti")
# Numbers in the last line of metrics.jsonl of a training on Knights & Knaves.
NUMBERS = 40


def make_runs(root: Path, count: int) -> list[Path]:
    """``count`` run directories, half of them in folders of sweeps of twenty; their manifests' paths."""
    text = dump_yaml(load_config([]))
    same = {"versions": versions(), "git": git_state(), "hardware": hardware(), "command": "rlvr train " + "x" * 200}
    made = []
    for number in range(count):
        folder = root / (f"run-{number:05d}" if number % 2 else f"sweep-{number // 40:03d}/run-{number:05d}")
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text(text, encoding="utf-8")
        manifest = folder / "manifest.json"
        write_manifest(manifest, number, same)
        made.append(manifest)
    return made


def write_manifest(path: Path, number: int, same: dict[str, Any]) -> None:
    """A manifest as a finished training leaves it."""
    fields = {
        "name": path.parent.name,
        "status": "failed" if number % 7 == 0 else "finished",
        "created": f"2025-{number % 12 + 1:02d}-{number % 28 + 1:02d}T{number % 24:02d}:00:00+00:00",
        "finished": "2025-12-31T00:00:00+00:00",
        "method": METHODS[number % len(METHODS)],
        "task": "kk",
        "model": "lab",
        "seed": number,
        "learning_rate": 0.001,
        "step": 60,
        "rollout": 60,
        "steps_total": 60,
        "rollouts_total": 60,
        "processes": 1,
        "method_fingerprint": {"choices": {f"choice-{index}": {"class": "Choice"} for index in range(20)}},
        **same,
        "last_metrics": {f"metric/{index}": index / 7 + number for index in range(NUMBERS)}
        | {"reward": number / 1000, "accuracy": number / 10_000},
        "executed": {"GroupAdvantage": 60, "ClippedRatio": 60, "token_mean": 60, "pass:all": 60},
    }
    path.write_text(json.dumps(fields, indent=2), encoding="utf-8")


def change(manifests: list[Path], share: float) -> None:
    """Replace a share of the manifests, as a training does, by ones with another step."""
    every = round(1 / share) if share else len(manifests) + 1
    for path in manifests[every - 1 :: every]:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        write_text(path, json.dumps({**manifest, "step": 61}, indent=2))


def command(root: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "rlvr_cli", "runs", "list", "--dir", str(root), *options]


def forget(files: list[Path]) -> None:
    """Ask the system to drop what it holds of the files' contents."""
    for path in files:
        with path.open("rb") as stream:
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@dataclass(frozen=True)
class Cost:
    """Seconds that went by, and processor seconds, which other work on the machine changes less."""

    wall: float
    processor: float


def cost_of(call: Callable[[], Any]) -> Cost:
    """What one call costs, with the processes that it starts and waits for."""
    wall, processor = time.perf_counter(), processor_seconds()
    call()
    return Cost(time.perf_counter() - wall, processor_seconds() - processor)


def measure(root: Path, repeats: int) -> dict[str, Cost]:
    """The median cost of each way, by turns, after one turn that is not counted."""

    def process(*options: str) -> Callable[[], Any]:
        return lambda: subprocess.run(command(root, *options), capture_output=True, check=True)

    ways: dict[str, Callable[[], Any]] = {
        "read, no index": lambda: read_runs(root, use_index=False),
        "read, index": lambda: read_runs(root),
        "list, no index": process("--no-index"),
        "list, index": process(),
        "list --method dgpo --status failed, no index": process("--method", "dgpo", "--status", "failed", "--no-index"),
        "list --method dgpo --status failed, index": process("--method", "dgpo", "--status", "failed"),
        "list of an empty folder": lambda: subprocess.run(command(root / "empty"), capture_output=True, check=True),
    }
    (root / "empty").mkdir()
    for name in ("read, no index", "read, index"):
        ways[f"{name}, not cached"] = ways[name]
    files = [index_path(root), *root.glob("**/manifest.json")]
    costs: dict[str, list[Cost]] = {name: [] for name in ways}
    for turn in range(repeats + 1):
        for name, call in ways.items():
            if name.endswith("not cached"):
                forget(files)
            cost = cost_of(call)
            if turn:
                costs[name].append(cost)
    return {
        name: Cost(statistics.median(one.wall for one in found), statistics.median(one.processor for one in found))
        for name, found in costs.items()
    }


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--changed", type=float, default=0.01, help="share of manifests changed after indexing")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        manifests = make_runs(root, options.runs)
        # What has just been written is not indexed yet.
        time.sleep(3)
        costs = {"index made": cost_of(lambda: update_index(root))}
        costs["index updated, nothing changed"] = cost_of(lambda: update_index(root))
        change(manifests, options.changed)
        os.sync()
        costs |= measure(root, options.repeats)
        same = read_runs(root).runs == read_runs(root, use_index=False).runs
    if options.json:
        print(json.dumps({"same": same, **{name: asdict(cost) for name, cost in costs.items()}}, indent=2))
    else:
        print(f"{options.runs} runs, {options.changed:.0%} changed since indexing; median of {options.repeats}:")
        for name, cost in costs.items():
            print(f"  {name:<46} {cost.wall:7.3f} s, processor {cost.processor:6.3f} s")
    if not same:
        sys.exit("the index and the directories do not agree")


if __name__ == "__main__":
    main()
