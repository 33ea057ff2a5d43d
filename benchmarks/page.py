"""Writes docs/performance.md: runs the command of every section and keeps what it prints, with the machine it ran on.

    python -m benchmarks.page                   every section
    python -m benchmarks.page update memory     these; the others stay as they are on the page

A section that a machine cannot measure (a GPU's) keeps what the page has of it.
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

import psutil
import torch

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
HEAD = """\
# Performance

Made by `make bench`: every number stands below the command that printed it and the machine it ran on. The two sides of
a ratio take turns in one session; ratios are medians with the lowest and the highest. Other machines give other seconds
and similar ratios. What is computed is also counted, and tests hold the counts: `pytest -m counts`."""
NOT_MEASURED = "Not measured:"


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
        "No `--help` and no configuration error imports torch, transformers or trl; a test counts.",
        ("benchmarks.startup --repeats 7 --peer",),
    ),
    Section(
        "loop",
        "Training loop",
        "To the first step of a training, and what of a step is neither sampling, verification nor update. CPU seconds "
        "are to the end of a training of one step; most of them go to imports of torch, transformers and TRL, during "
        "which Python's garbage collector rests. A rollout waits for the disk twice (its file and the folder), other "
        "records at checkpoints only; tests count this.",
        ("benchmarks.loop",),
    ),
    Section(
        "update",
        "The update against TRL",
        "GRPO on the same scripted rows, after both gradients were found to be equal (1e-4 of the norm, float32). TRL "
        "is stock, with `bf16` and `gradient_checkpointing` off. *FLOPs* is the ratio of those of the matrix "
        "products, counted. *head* models are one thin layer under a large vocabulary. Goals: 0.6 with no "
        "zero-advantage rows, 0.35 with half of them. Rows of one length have no padding that could be left out, and "
        "the lab's head is small: their FLOPs are the bound. With a large vocabulary TRL makes the logits again in "
        "the backward pass, and walks through them many times; its products in place are not counted, so that this "
        "ratio is too high there.",
        ("benchmarks.updates trl", "benchmarks.updates head"),
    ),
    Section(
        "lopti",
        "Lopti",
        "The naive way to two passes is TRL's `num_iterations=2`: both passes over all tokens, which is what this is "
        "compared with. The sum of our two passes' gradients was found equal to that of one of TRL's. Goals: 0.55 of "
        "TRL twice, 1.9 of our own GRPO. Where both passes have tokens near the ends of most rows, the layers run "
        "twice over all of them, and only the head's half is saved.",
        ("benchmarks.updates lopti",),
    ),
    Section(
        "methods",
        "Every method over our GRPO",
        "Each preset on the rows of the lab's size. What costs more by its definition (a reference policy, a value "
        "head, a second pass) is listed in [methods/cost.md](methods/cost.md), counted. Goal: 1.02 for the others. "
        "Methods that train on rows of equal rewards, too (by a KL term, values, or rewards without a group's mean), "
        "take the more over GRPO, the more such rows there are. Against TRL: multiply with the first table.",
        ("benchmarks.updates methods",),
    ),
    Section(
        "everything",
        "What leaving out saves",
        "Our update with everything computed (`run.compute_everything`), over the same as it is "
        "([speed.md](speed.md)); half of the groups have equal rewards.",
        ("benchmarks.updates everything",),
    ),
    Section(
        "step",
        "A whole step",
        "Sampling, judging, updating and recording; then where the time of our step goes: all but a few percent in "
        "sampling, forward and backward, of which matrix products are the most with a large model, and many short "
        "operations with the lab's.",
        (
            "benchmarks.steps",
            "benchmarks.profile_step lab --operators 8",
            "benchmarks.profile_step 125M --steps 2 --operators 8",
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
        "Most of the gain on real rollouts is that rows which have ended leave the batch, and that a group's prompt "
        "is computed once. Where no row ends early both sides are bound by the same matrix products. TRL samples with "
        "this same call of `generate`. A draw takes one softmax and running sums, in blocks for a large vocabulary; "
        "nothing is sorted unless `top_p` or `top_k` asks for it. Goal: three times the tokens per second on real "
        "rollouts.",
        ("benchmarks.sampler", "benchmarks.sampler --counts"),
        (),
    ),
    Section(
        "verifier",
        "Verifier",
        "The pool against math-verify in a loop, on the same responses. Goal: a fifth of the time.",
        ("benchmarks.verifier",),
    ),
    Section(
        "threads",
        "Threads",
        "One training step of the lab with one thread and with two (`rlvr train run.threads=N`). Where the machine "
        "does other work, two threads wait for each other: `model: lab` uses one. They sleep while they wait, as under "
        "`rlvr` (`OMP_WAIT_POLICY`); threads that spin take many times as long next to another process.",
        ("benchmarks.profile_step lab --threads 1", "benchmarks.profile_step lab --threads 2"),
        (("OMP_WAIT_POLICY", "PASSIVE"),),
    ),
    Section("gpu", "On a GPU", "Qwen2.5's shapes with random weights.", ("benchmarks.gpu_updates",), ()),
)


def machine() -> str:
    """This machine and its versions, in a sentence."""
    names = re.findall(r"^model name\s*: (.+)$", _read("/proc/cpuinfo"), re.MULTILINE)
    memory = psutil.virtual_memory().total / 2**30
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "trl", "transformers"))
    return (
        f"{os.cpu_count()} cores ({names[0] if names else platform.machine()}), {memory:.0f} GiB, {gpu}; "
        f"Python {platform.python_version()}, {versions}"
    )


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


def measured(section: Section) -> str | None:
    """The section in Markdown; None where this machine cannot measure it."""
    parts = [f"## {section.title}", section.text]
    variables = "".join(f"{name}={value} " for name, value in section.environment)
    for command in section.commands:
        printed = output(command, section)
        if printed.startswith(NOT_MEASURED):
            return None
        # A table is one in the page, too; other output stands as it was printed.
        told = printed if "\n|---" in printed else f"```\n{printed}\n```"
        parts += [f"`{variables}python -m {command}`, on {machine()}:", told]
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
        have = written(_read(str(PAGE)))
        if new is not None:
            have[section.title] = new
        else:
            have.setdefault(section.title, f"## {section.title}\n\n{section.text}\n\nNot measured yet.")
        kept = [have[known.title] for known in SECTIONS if known.title in have]
        PAGE.write_text("\n\n".join([HEAD, *kept]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
