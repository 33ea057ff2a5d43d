"""Does RL work in the lab, and how surely: `rlvr train` and `rlvr eval` over seeds, with a random-reward control.

    python -m benchmarks.lab_seeds kk --seeds 0 1 2 3 4 --dir runs-lab-seeds > docs/lab-seeds.md
    python -m benchmarks.lab_seeds countdown > docs/lab-seeds-countdown.md

Every run is trained anew; samples of the same weights and problems already on disk are used again.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from rlvr_cli.runs.environment import hardware, versions
from rlvr_cli.runs.folder import RunDir

CONTROL = ("task.reward=random",)
METRICS = ("avg@32", "greedy", "pass@8", "pass@32", "maj@32", "length")


def rlvr(*arguments: str) -> str:
    """Standard output of one `rlvr` command, which must succeed."""
    command = [sys.executable, "-m", "rlvr_cli", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def evaluated(target: str, task: str, folder: Path) -> dict[str, Any]:
    """The content of metrics.json of `rlvr eval` on the held-out problems."""
    asked = ["--pass-at", "1,8,32", "--split", "test", "--format=json", f"run.dir={folder}", f"task.name={task}"]
    result: dict[str, Any] = json.loads(rlvr("eval", target, *asked))
    return result


def trained(name: str, folder: Path, *overrides: str) -> tuple[RunDir, float]:
    """The run ``name``, trained now, and the CPU seconds that it took, those of starting included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    rlvr("train", "--overwrite", "--format=json", f"run.dir={folder}", f"run.name={name}", *overrides)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return RunDir(folder / name), after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def cell(estimate: dict[str, Any]) -> str:
    return f"{estimate['value']:.3f} [{estimate['low']:.3f}, {estimate['high']:.3f}]"


def row(label: str, result: dict[str, Any], seconds: float | None) -> str:
    groups = result["by_subgroup"]
    values = [
        label,
        *(
            cell(result["metrics"][name]) if name == "avg@32" else f"{result['metrics'][name]['value']:.3f}"
            for name in METRICS
        ),
    ]
    values += [" / ".join(f"{groups[name]['avg@32']['value']:.2f}" for name in groups)]
    return "| " + " | ".join([*values, "" if seconds is None else f"{seconds:.0f}"]) + " |"


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("task", nargs="?", default="kk")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--dir", type=Path, default=Path("runs-lab-seeds"))
    options = parser.parse_args()
    task = options.task
    base = evaluated("lab", task, options.dir)
    groups = " / ".join(base["by_subgroup"])
    print(f"# The lab of {task} over seeds\n")
    print(
        f"`python -m benchmarks.lab_seeds {task} --seeds {' '.join(map(str, options.seeds))}`: "
        f"`rlvr train --task {task} run.seed=S` and nothing else, "
    )
    print(
        f"evaluated on the same {base['problems']} held-out problems (split test), "
        f"{base['samples']} samples each at temperature 1."
    )
    print(
        "avg@32 is sampled accuracy, with its 95% interval over problems; seconds are CPU time of the training "
        "command, start-up included.\n"
    )
    print(f"| | {' | '.join(METRICS)} | avg@32, {groups} | seconds |")
    print("|---" * (len(METRICS) + 3) + "|")
    print(row("base", base, None))
    finals: dict[str, list[float]] = {}
    for label, overrides, seeds in (("GRPO", (), options.seeds), ("random reward", CONTROL, options.seeds[:3])):
        for seed in seeds:
            name = f"{task}-{label.replace(' ', '-')}-s{seed}"
            run, seconds = trained(name, options.dir, f"task={task}", f"run.seed={seed}", *overrides)
            result = evaluated(str(run.path), task, options.dir)
            print(row(f"{label}, seed {seed}", result, seconds), flush=True)
            finals.setdefault(label, []).append(result["metrics"]["avg@32"]["value"])
    print()
    for label, values in finals.items():
        spread = f", standard deviation {statistics.stdev(values):.3f}" if len(values) > 1 else ""
        print(f"{label}: mean {statistics.mean(values):.3f} over {len(values)} seeds{spread}, "
              f"from {base['metrics']['avg@32']['value']:.3f}.\n")  # fmt: skip
    machine = hardware()
    known = ", ".join(f"{name} {version}" for name, version in versions().items() if name in ("python", "torch", "trl"))
    memory = machine["memory_bytes"] / 2**30
    print(f"Machine: {machine['cores']} cores, {machine['processor']}, {memory:.0f} GiB; {known}.")


if __name__ == "__main__":
    main()
