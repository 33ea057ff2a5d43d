"""Does RL work in the lab, and how surely: `rlvr train` and `rlvr eval` over seeds, with a random-reward control.

    python -m benchmarks.lab_seeds --seeds 0 1 2 3 4 --dir runs-lab-seeds > docs/lab-seeds.md

Every run is trained anew; samples of the same weights and problems already on disk are used again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from rlvr_cli.core.files import read_jsonl
from rlvr_cli.runs.environment import hardware, versions
from rlvr_cli.runs.folder import RunDir

METRICS = ("avg@32", "greedy", "pass@8", "pass@32", "maj@32", "length")


def rlvr(*arguments: str) -> str:
    """Standard output of one `rlvr` command, which must succeed."""
    command = [sys.executable, "-m", "rlvr_cli", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def evaluated(target: str, folder: Path) -> dict[str, Any]:
    """The content of metrics.json of `rlvr eval` on the held-out problems."""
    output = rlvr("eval", target, "--pass-at", "1,8,32", "--split", "test", "--format=json", f"run.dir={folder}")
    result: dict[str, Any] = json.loads(output)
    return result


def trained(name: str, folder: Path, *overrides: str) -> RunDir:
    """The run ``name``, trained now."""
    rlvr("train", "--overwrite", "--format=json", f"run.dir={folder}", f"run.name={name}", *overrides)
    return RunDir(folder / name)


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
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--dir", type=Path, default=Path("runs-lab-seeds"))
    options = parser.parse_args()
    base = evaluated("lab", options.dir)
    people = " / ".join(name.removesuffix(" people") for name in base["by_subgroup"])
    print("# The lab over seeds\n")
    print(
        f"`python -m benchmarks.lab_seeds --seeds {' '.join(map(str, options.seeds))}`: "
        "`rlvr train run.seed=S` and nothing else, "
    )
    print(
        f"evaluated on the same {base['problems']} held-out problems (split test), "
        f"{base['samples']} samples each at temperature 1."
    )
    print("avg@32 is sampled accuracy, with its 95% interval over problems; seconds are of training alone.\n")
    print(f"| | {' | '.join(METRICS)} | avg@32 by people ({people}) | seconds |")
    print("|---" * (len(METRICS) + 3) + "|")
    print(row("base", base, None))
    finals: dict[str, list[float]] = {}
    for reward in ("logic_rl", "random"):
        for seed in options.seeds if reward == "logic_rl" else options.seeds[:3]:
            run = trained(f"{reward}-s{seed}", options.dir, f"run.seed={seed}", f"task.reward={reward}")
            result = evaluated(str(run.path), options.dir)
            seconds = sum(line["seconds"] for line in read_jsonl(run.timings_path))
            print(row(f"{'GRPO' if reward == 'logic_rl' else 'random reward'}, seed {seed}", result, seconds))
            finals.setdefault(reward, []).append(result["metrics"]["avg@32"]["value"])
    print()
    for reward, values in finals.items():
        label = "GRPO" if reward == "logic_rl" else "The random-reward control"
        spread = f", standard deviation {statistics.stdev(values):.3f}" if len(values) > 1 else ""
        print(f"{label}: mean {statistics.mean(values):.3f} over {len(values)} seeds{spread}, "
              f"from {base['metrics']['avg@32']['value']:.3f}.\n")  # fmt: skip
    machine = hardware()
    known = ", ".join(f"{name} {version}" for name, version in versions().items() if name in ("python", "torch", "trl"))
    memory = machine["memory_bytes"] / 2**30
    print(f"Machine: {machine['cores']} cores, {machine['processor']}, {memory:.0f} GiB; {known}.")


if __name__ == "__main__":
    main()
