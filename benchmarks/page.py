"""Writes docs/performance.md: runs the command of every section and keeps what it prints, with the machine it ran on.

python -m benchmarks.page                   every section
python -m benchmarks.page update memory     these; the others stay as they are on the page
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
HEAD = """\
# Performance

Made by `make bench`, on CPUs: each figure is below its command and machine. The two sides of a ratio are measured in
turns; ratios are medians with the lowest and highest. Other machines have other seconds and similar ratios."""


@dataclass(frozen=True)
class Section:
    """A heading, what to read its numbers by, and the commands (arguments of `python -m`) whose output follows."""

    name: str
    title: str
    text: str
    commands: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = (("OMP_NUM_THREADS", "1"),)


SECTIONS = (
    Section(
        "startup",
        "Start-up",
        "No `--help` and no configuration error imports torch, transformers or trl (a test checks this).",
        ("benchmarks.startup --repeats 7 --peer",),
    ),
    Section(
        "loop",
        "Training loop",
        "Time to the first step, and the share of a step outside sampling, verification and update.",
        ("benchmarks.loop",),
    ),
    Section(
        "update",
        "The update against TRL",
        "GRPO on the same scripted rows, with equal gradients (1e-4 of the norm, float32). TRL is stock, "
        "without `bf16` and `gradient_checkpointing`. *FLOPs* is the ratio of counted matrix products. Goals: "
        "0.6 without zero-advantage rows, 0.35 with half of them. `python -m benchmarks.updates head` "
        "measures models with a large vocabulary.",
        ("benchmarks.updates trl",),
    ),
    Section(
        "lopti",
        "Lopti",
        "The reference is TRL's `num_iterations=2`: two passes over all tokens. The sum of our two gradients "
        "equals that of one of TRL's. Goals: 0.55 of TRL twice, 1.9 of our GRPO.",
        ("benchmarks.updates lopti",),
    ),
    Section(
        "methods",
        "Every method over our GRPO",
        "[methods/cost.md](methods/cost.md) counts what a method costs by definition (reference policy, value "
        "head, second pass). Rows have the lab's size. Methods that also train on rows of equal rewards (KL term, "
        "values, rewards without a group mean) cost more over GRPO, the more such rows there are.",
        ("benchmarks.updates methods",),
    ),
    Section(
        "step",
        "A whole step",
        "Sampling, verification, update and records, then where a step spends its time.",
        (
            "benchmarks.steps",
            "benchmarks.profile_step lab",
            "benchmarks.profile_step 125M --steps 2",
        ),
    ),
    Section(
        "memory",
        "Memory of the update",
        "Peak bytes beyond what is held between two updates. Goal: half of TRL's at 4,096 tokens.",
        ("benchmarks.memory",),
    ),
    Section(
        "sampler",
        "Sampler",
        "The baseline is `generate` as TRL calls it. Most of the gain on real rollouts comes from dropping "
        "finished rows from the batch and computing a group's prompt once. Goal: three times the tokens per "
        "second.",
        ("benchmarks.sampler",),
        (),
    ),
    Section(
        "verifier",
        "Verifier",
        "The pool, under `strict`, against math-verify in a loop, on the same responses. The pool's start, "
        "with SymPy loaded, is included. Goal: a fifth of the time.",
        ("benchmarks.verifier --rows 256 --parts plain",),
    ),
    Section(
        "gpu",
        "On a GPU",
        "Nothing has been measured on a GPU yet. `make gpu` (`python -m benchmarks.gpu`) measures the update "
        "and the whole step of GRPO and Lopti on Qwen2.5-0.5B's shape against stock TRL, and checks attention "
        "kernels, gradients against float64, short trainings and ZeRO, without a network. Please attach "
        "`build/gpu.jsonl` to an issue.",
        (),
        (),
    ),
)


def machine() -> str:
    """This machine and its versions, in a sentence."""
    names = re.findall(r"^model name\s*: (.+)$", _read("/proc/cpuinfo"), re.MULTILINE)
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "trl", "transformers"))
    return f"{os.cpu_count()} CPU cores ({names[0] if names else platform.machine()}){gpu}; {versions}"


def _read(path: str) -> str:
    return Path(path).read_text(encoding="utf-8") if Path(path).exists() else ""


def output(command: str, section: Section) -> str:
    """What a command prints. Raises SystemExit with its last words where it fails."""
    # Else DeepSpeed, which TRL imports, says into the table that it found no accelerator.
    quiet = {} if torch.cuda.is_available() else {"DS_ACCELERATOR": "cpu"}
    environment = {**os.environ, **quiet, **dict(section.environment)}
    line = [sys.executable, "-m", *command.split()]
    done = subprocess.run(line, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"python -m {command} failed:\n{done.stderr[-3000:]}\nThe section stays as it was.")
    return done.stdout.strip()


def measured(section: Section) -> str:
    """The section in Markdown."""
    parts = [f"## {section.title}", section.text]
    variables = "".join(f"{name}={value} " for name, value in section.environment)
    for number, command in enumerate(section.commands):
        printed = output(command, section)
        # A table is one in the page, too; other output stands as it was printed.
        told = printed if "\n|---" in printed else f"```\n{printed}\n```"
        where = "" if number else f", on {machine()}"
        parts += [f"`{variables}python -m {command}`{where}:", told]
    return "\n\n".join(parts)


def written(page: str) -> dict[str, str]:
    """The sections that ``page`` has, by title."""
    parts = re.split(r"^## ", page, flags=re.MULTILINE)[1:]
    return {part.partition("\n")[0]: f"## {part.strip()}" for part in parts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [section.name for section in SECTIONS]
    parser.add_argument("sections", nargs="*", help=f"of {', '.join(names)}; all by default")
    wanted = parser.parse_args().sections or names
    unknown = sorted(set(wanted) - set(names))
    if unknown:
        parser.error(f"no such section: {', '.join(unknown)}; there are {', '.join(names)}")
    for section in SECTIONS:
        if section.name not in wanted:
            continue
        print(f"{section.title} ...", flush=True)
        new = measured(section)
        have = {**written(_read(str(PAGE))), section.title: new}
        kept = [have[known.title] for known in SECTIONS if known.title in have]
        PAGE.write_text("\n\n".join([HEAD, *kept]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
