"""Start-up: wall time of every `--help` and of a config error, as a ratio to `python -c "import typer, rich"`.

    python -m benchmarks.startup [--repeats 15] [--peer]

The commands take turns, so that a busy machine slows all of them alike; medians are reported.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import typer

from rlvr_cli.cli.app import app

BASELINE = "import typer, rich"


def command_lines(*, peer: bool) -> dict[str, list[str]]:
    """What is timed: the baseline, each command's help, a config with an unknown key; TRL's help with `peer`."""
    rlvr = [sys.executable, "-m", "rlvr_cli"]
    lines = {BASELINE: [sys.executable, "-c", BASELINE]}

    def add(command: Any, path: list[str]) -> None:
        lines[" ".join(["rlvr", *path, "--help"])] = [*rlvr, *path, "--help"]
        for name, child in getattr(command, "commands", {}).items():
            add(child, [*path, name])

    add(typer.main.get_command(app), [])
    lines["rlvr train -c bad.yaml"] = [*rlvr, "train", "-c", "bad.yaml"]
    if peer:
        lines["trl grpo --help"] = [str(Path(sys.executable).with_name("trl")), "grpo", "--help"]
    return lines


def measure(repeats: int, *, peer: bool) -> dict[str, float]:
    """Median seconds of each command line over `repeats` interleaved rounds, after one round to warm the disk cache."""
    lines = command_lines(peer=peer)
    seconds: dict[str, list[float]] = {name: [] for name in lines}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "bad.yaml").write_text("optimizer:\n  lrr: 1e-6\n", encoding="utf-8")
        for number in range(repeats + 1):
            for name, line in lines.items():
                begin = time.perf_counter()
                subprocess.run(line, cwd=folder, capture_output=True, check=False)
                if number > 0:
                    seconds[name].append(time.perf_counter() - begin)
    return {name: statistics.median(values) for name, values in seconds.items()}


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--peer", action="store_true", help="also time `trl grpo --help`")
    options = parser.parse_args()
    medians = measure(options.repeats, peer=options.peer)
    baseline = medians[BASELINE]
    print(f"Start-up, median of {options.repeats} interleaved runs:")
    others = sorted(t for name, t in medians.items() if name.startswith("rlvr ") and name[5:].endswith(" --help"))
    shown = {name: medians[name] for name in medians if name == "rlvr --help" or not name.startswith("rlvr ")}
    shown |= {"rlvr X --help, fastest": others[0], "rlvr X --help, slowest": others[-1]}
    shown["rlvr train -c bad.yaml"] = medians["rlvr train -c bad.yaml"]
    for name, median in shown.items():
        print(f"  {name:<28} {median:6.3f} s  {median / baseline:5.2f} x")


if __name__ == "__main__":
    main()
