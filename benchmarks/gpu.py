"""The checks for the first hour on a GPU, the most valuable first; ``make gpu``.

    python -m benchmarks.gpu [--only NAME ...] [--model Qwen/Qwen2.5-0.5B] [--output build/gpu.jsonl]
    python -m benchmarks.gpu --cpu --tiny      # the code of every check, in minutes

Each check (benchmarks/gpu_checks.py) is a process with a timeout and ends as a line of JSON in the output file: its
status (ok, failed, timeout, or skipped with a reason), seconds, and numbers. A failed one doesn't stop the rest. A
second call runs what has no line with ok or skipped yet. Send the output file back. Models are random weights of
Qwen2.5-0.5B's shape, whose completions run to their longest, unless --model names one.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rlvr_cli.core.files import read_jsonl

# In order of value, with the seconds that each may take on a GPU.
CHECKS = {
    "update-grpo": 420,
    "update-lopti": 420,
    "step-grpo": 420,
    "step-lopti": 420,
    "memory-full": 240,
    "memory-lora": 240,
    "memory-large": 300,
    "versions": 120,
    "pytest": 300,
    "attention": 120,
    "gradient": 300,
    "lab": 300,
    "train-default": 300,
    "train-lora": 300,
    "train-qlora": 300,
    "train-kl": 300,
    "train-sft": 300,
    "zero2": 240,
    "zero3": 240,
}
DONE = ("ok", "skipped")
LAST_LINES = 15


def run_check(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run one check in a process of its own; returns its line."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.gpu_checks",
        name,
        *(["--model", options.model] if options.model else []),
    ]
    command += [flag for flag in ("--cpu", "--tiny") if getattr(options, flag[2:])]
    hidden = {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"} if options.cpu else {}
    limit, started = options.timeout or CHECKS[name], time.monotonic()
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, **hidden, "PYTHONUNBUFFERED": "1", "HF_HUB_DISABLE_TELEMETRY": "1"},
        start_new_session=True,
    ) as process:
        try:
            output, status = process.communicate(timeout=limit)[0], None
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # what the check started too
            output, status = process.communicate()[0], "timeout"
    seconds = round(time.monotonic() - started, 1)
    lines = output.splitlines()
    common = {"check": name, "on": setting(options), "seconds": seconds}
    if status is None and process.returncode == 0 and lines and lines[-1].startswith("{"):
        return {**common, **json.loads(lines[-1])}
    return {**common, "status": status or "failed", "exit": process.returncode, "last": lines[-LAST_LINES:]}


def setting(options: argparse.Namespace) -> str:
    """Return where and on what the checks run: a line of another setting does not count as done."""
    return " ".join(["cpu" if options.cpu else "gpu", *(["tiny"] if options.tiny else []), options.model or "random"])


def table(lines: list[dict[str, Any]]) -> str:
    """Return the newest line of each check, in 80 columns."""
    rows = [f"{'check':<14} {'status':<8} {'s':>6}  numbers"]
    for line in lines:
        said = line.get("why") or ", ".join(f"{k} {v}" for k, v in line.get("numbers", {}).items() if v is not None)
        said = said or (line.get("last") or ["no output"])[-1]
        words, width = f"{line['check']:<14} {line['status']:<8} {line['seconds']:>6.0f}  ", 80
        while len(said) > width - len(words):
            end = said.rfind(" ", 0, width - len(words))
            cut = end if end > 0 else width - len(words)
            rows.append(words + said[:cut])
            words, said = " " * 32, said[cut:].lstrip()
        rows.append(words + said)
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", nargs="+", choices=CHECKS, default=list(CHECKS), metavar="NAME", help=", ".join(CHECKS)
    )
    parser.add_argument("--model", help="a hub id or folder in place of random weights")
    parser.add_argument("--output", type=Path, default=Path("build/gpu.jsonl"))
    parser.add_argument("--timeout", type=float, help="seconds of each check; by default its own")
    parser.add_argument("--cpu", action="store_true", help="hide the GPU: to test the checks themselves")
    parser.add_argument("--tiny", action="store_true", help="models and rows that a CPU computes in seconds")
    options = parser.parse_args()
    options.output.parent.mkdir(parents=True, exist_ok=True)

    def newest() -> dict[str, dict[str, Any]]:
        lines = read_jsonl(options.output) if options.output.exists() else []
        return {line["check"]: line for line in lines if line["on"] == setting(options)}

    for name in options.only:
        if newest().get(name, {}).get("status") in DONE:
            continue
        print(f"{name} ...", flush=True)
        line = run_check(name, options)
        with options.output.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    lines = newest()
    print(table([lines[name] for name in CHECKS if name in lines]))


if __name__ == "__main__":
    main()
