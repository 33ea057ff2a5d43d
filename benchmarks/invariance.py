"""What leaving out and splitting changes in the gradients: every method, with everything computed and without.

    python -m benchmarks.invariance [--methods grpo lopti]

A random model in float32, 16 rows of which a quarter of the groups have equal rewards, one update on the rollout and
four. The gradient of the rollout (the sum over its optimizer steps) is compared with that of the update that leaves out
nothing and takes 4 rows a forward pass (one with four updates): |difference| / |gradient|. The learning rate is 0, so
old and new policy are one; with a policy that moves, `test_does_not_depend_on_what_is_left_out`
(tests/training/test_gradient.py) holds the difference to 1e-10 in float64.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.peers import SHAPES, Place, divided, method_named, our_trainer, trainers_folder
from benchmarks.scripted import Rollout, Script
from benchmarks.turns import heading, line
from rlvr_cli.methods.names import METHODS

ROLLOUT = Rollout(rows=16, group=4, prompt=24, mean=8, longest=24, part=4, zero=0.25)
COMPOSITIONS = ["grpo+lopti", "dgpo+lopti", "gspo+low-only", "dapo+high-entropy", "grpo+conflict", "cispo+high-only"]


def settings() -> Iterator[tuple[str, dict[str, Any]]]:
    """What is compared with the update that leaves out nothing."""
    yield "as it is", {}
    for tokens in (40, 120):
        yield f"`update.micro_tokens={tokens}`", {"micro_tokens": tokens}


def gradient(name: str, updates: int, folder: Path, **options: Any) -> Tensor:
    """(number of weights,) of the rollout."""
    place, config = Place(), SHAPES["tiny"]()
    rollout = replace(ROLLOUT, updates=updates, part=ROLLOUT.part // updates)
    script = Script(rollout, config.vocab_size)
    model = place.model(config)
    method = divided(method_named(name, rollout), model, script)
    return our_trainer(folder, model, rollout, script, place, method, **options).rollout_gradient()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = [*sorted(preset.name for preset in METHODS.values() if preset.name != "sft"), *COMPOSITIONS]
    parser.add_argument("--methods", nargs="+", default=every)
    names = parser.parse_args().methods
    errors: dict[str, list[tuple[float, str]]] = {title: [] for title, _ in settings()}
    for name in names:
        for updates in (1, 4):
            with trainers_folder() as folder:
                whole = gradient(name, updates, folder, compute_everything=True)
                for title, options in settings():
                    other = gradient(name, updates, folder, **options)
                    errors[title].append((float((other - whole).norm() / whole.norm()), name))
    print(f"{len(names)} methods and compositions, 1 and 4 updates on a rollout.\n")
    print(heading("against nothing left out", "median", "largest", "of"))
    for title, found in errors.items():
        values = torch.tensor([error for error, _ in found], dtype=torch.float64)
        largest, name = max(found)
        print(line([title, f"{float(values.median()):.1e}", f"{largest:.1e}", name]))


if __name__ == "__main__":
    main()
