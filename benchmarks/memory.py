"""Peak memory of the update: bytes that one update on long rows needs beyond what is held between two, ours over TRL's.

    python -m benchmarks.memory [--tokens 1024 4096 8192] [--vocabulary 32000 150000]

A thin model (two layers of 64), so that the head is what costs: two rows of as many completion tokens, one row a
forward pass, gradients checked against each other before. What is counted are the bytes of tensors that live at once:
torch's profiler sees every allocation and release on a CPU, and the figure is the same in every run; on a GPU it is
`torch.cuda.max_memory_allocated` over what was allocated before. Weights and the optimizer's state are held between
updates and are not in it; gradients and activations are.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch

from benchmarks.peers import (
    Clocked,
    Place,
    checked,
    comparable,
    our_trainer,
    shape,
    their_trainer,
    trainers_folder,
)
from benchmarks.scripted import Rollout, Script
from benchmarks.turns import heading, line

MIB = 2**20


def profiled() -> Any:
    """Return a profiler that keeps the allocations of what runs under it."""
    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True)


def most_bytes(profiler: Any) -> int:
    """Return the largest growth, in bytes, of the tensors alive while ``profiler`` recorded."""
    live = most = 0
    events = profiler.profiler.kineto_results.events()
    for event in sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        live += event.nbytes()
        most = max(most, live)
    return most


def peak_bytes(trainer: Clocked) -> int:
    """The most bytes of tensors beyond those that live before, during one update."""
    if trainer.args.device.type == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        trainer.update()
        return torch.cuda.max_memory_allocated() - before
    with profiled() as profiler:
        trainer.update()
    return most_bytes(profiler)


def peaks(config: object, rollout: Rollout, place: Place) -> tuple[int, int]:
    """TRL's and ours, on the same rows."""
    script = Script(rollout, config.vocab_size)  # type: ignore[attr-defined]
    with trainers_folder() as folder:
        model = place.model(config)
        method = comparable("grpo", rollout, model, script)
        theirs = their_trainer(folder / "theirs", model, rollout, script, place)
        ours = our_trainer(folder / "ours", place.model(config), rollout, script, place, method)
        checked(theirs, ours, place)
        return peak_bytes(theirs), peak_bytes(ours)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 4096, 8192])
    parser.add_argument("--vocabulary", type=int, nargs="+", default=[32_000, 150_000])
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(heading("vocabulary", "tokens of a row", "TRL, MiB", "ours, MiB", "ours / TRL"))
    for vocabulary in options.vocabulary:
        config = shape("qwen3", vocabulary, 64, 2, 2, 2, 128)
        for tokens in options.tokens:
            rollout = Rollout(2, 2, prompt=32, mean=tokens, longest=tokens, spread="fixed", part=1)
            theirs, ours = peaks(config, rollout, Place(gpu=torch.cuda.is_available()))
            cells = [f"{vocabulary:,}", f"{tokens:,}", f"{theirs / MIB:,.0f}", f"{ours / MIB:,.0f}"]
            print(line([*cells, f"{ours / theirs:.2f}"]), flush=True)


if __name__ == "__main__":
    main()
