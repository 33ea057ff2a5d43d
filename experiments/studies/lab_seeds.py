"""Does RL work in the lab, and how surely: `rlvr train` and `rlvr eval` over seeds, with a random-reward control.

    python -m experiments.studies.lab_seeds > experiments/studies/lab-seeds.md
    python -m experiments.studies.lab_seeds countdown --seeds 0 1

Every run is trained again; samples of the same weights and problems already on disk are used again.
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

CONTROL = ("method=grpo+random-reward",)
METRICS = ("avg@32", "greedy", "pass@8", "pass@32", "maj@32", "length")

PAGE = """# The labs over seeds

`python -m experiments.studies.lab_seeds`: `rlvr train --task TASK run.seed=S` and nothing else, evaluated on the same
420 held-out problems (split test), 32 samples each at temperature 1. avg@32 is sampled accuracy, with its 95%
interval over problems; seconds are CPU time of the training command with its start. The control is rewarded at random.
"""


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


def machine() -> str:
    """The machine and the versions that a page's figures were made with."""
    about = hardware()
    known = ", ".join(f"{name} {version}" for name, version in versions().items() if name in ("python", "torch", "trl"))
    return f"Machine: {about['cores']} cores, {about['processor']}, {about['memory_bytes'] / 2**30:.0f} GiB; {known}."


def section(task: str, seeds: list[int], folder: Path) -> None:
    """Train and evaluate on one task; each row is printed as it is there."""
    base = evaluated("lab", task, folder)
    print(f"## {task}\n")
    print(f"| | {' | '.join(METRICS)} | avg@32, {' / '.join(base['by_subgroup'])} | seconds |")
    print("|---" * (len(METRICS) + 3) + "|")
    print(row("base", base, None))
    finals: dict[str, list[float]] = {}
    for label, overrides, some in (("GRPO", (), seeds), ("random reward", CONTROL, seeds[:3])):
        for seed in some:
            name = f"{task}-{label.replace(' ', '-')}-s{seed}"
            run, seconds = trained(name, folder, f"task={task}", f"run.seed={seed}", *overrides)
            result = evaluated(str(run.path), task, folder)
            print(row(f"{label}, seed {seed}", result, seconds), flush=True)
            finals.setdefault(label, []).append(result["metrics"]["avg@32"]["value"])
    print()
    for label, values in finals.items():
        spread = f", standard deviation {statistics.stdev(values):.3f}" if len(values) > 1 else ""
        print(f"{label}: mean {statistics.mean(values):.3f} over {len(values)} seeds{spread}, "
              f"from {base['metrics']['avg@32']['value']:.3f}.\n")  # fmt: skip


def main() -> None:
    """Print the page as Markdown."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("tasks", nargs="*", default=["kk", "countdown", "math"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--dir", type=Path, default=Path("runs-lab-seeds"))
    options = parser.parse_args()
    print(PAGE)
    for task in options.tasks:
        section(task, options.seeds, options.dir)
    print(machine())


if __name__ == "__main__":
    main()
