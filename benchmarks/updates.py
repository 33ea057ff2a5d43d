"""Seconds of the update on one rollout: ours against TRL's on the same rows, and every method against our own GRPO.

    python -m benchmarks.updates trl [--models lab 10M 100M] [--repeats 5] [--threads 1]
    python -m benchmarks.updates lopti | head | methods

Rows are scripted (scripted.py) and models have random weights (peers.py, which says what is timed). Nothing is printed
of a case in which the gradients of the two trainers differ by more than 1e-4 of their norm, in float32. Two sides take
turns in one process after an unmeasured turn each; ratios are of neighbouring turns: median (lowest to highest). The
ratio of FLOPs is counted, of matrix products, and is the same on every machine.

TRL's side is stock TRL 1.16 with `bf16` and `gradient_checkpointing` switched off, which are on by default and make it
slower on a CPU.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from benchmarks.peers import (
    SHAPES,
    Place,
    checked,
    comparable,
    divided,
    method_named,
    our_trainer,
    their_trainer,
    trainers_folder,
)
from benchmarks.scripted import SPREADS, Rollout, Script
from benchmarks.turns import Compared, compared, heading, line, load_said
from rlvr_cli.methods.names import METHODS

ZEROS = (0.0, 0.5)
# Methods this close to GRPO are named and not tabulated.
NEAR = 0.05
# Of each model: as many rows as a benchmark's patience allows, lengths that are cut at four times their mean.
ROLLOUTS = {
    "tiny": Rollout(rows=16, group=4, prompt=6, mean=8, longest=24, part=4),
    "lab": Rollout(rows=128, group=8, prompt=30, mean=60, longest=144, part=16),
    "10M": Rollout(rows=32, group=8, prompt=32, mean=64, longest=256, part=8),
    "100M": Rollout(rows=16, group=4, prompt=32, mean=64, longest=256, part=4),
}


@dataclass(frozen=True)
class Case:
    """A model and a rollout."""

    model: str
    rollout: Rollout

    @property
    def cells(self) -> list[str]:
        """What distinguishes it, for a table."""
        rollout = self.rollout
        return [
            self.model,
            f"{rollout.rows} x {rollout.mean}, {rollout.spread}",
            str(rollout.prompt),
            f"{rollout.zero:.0%}",
            str(rollout.updates),
        ]


COLUMNS = ("model", "rows x mean length", "prompt", "zero-advantage rows", "updates")


def cases(model: str) -> Iterator[Case]:
    """Shares of zero-advantage rows by spreads of the lengths; then prompts longer than completions, four updates."""
    base = ROLLOUTS[model]
    spreads = {"100M": ("log-normal",), "10M": ("fixed", "log-normal")}
    for spread in spreads.get(model, SPREADS):
        for zero in ZEROS:
            yield Case(model, replace(base, spread=spread, zero=zero))
    if model == "100M":
        return
    for zero in (0.0, 0.5):
        yield Case(model, replace(base, prompt=4 * base.mean, zero=zero))
    yield Case(model, replace(base, updates=4, part=min(base.part, base.rows // 4), zero=0.0))


def against_trl(case: Case, repeats: int, name: str = "grpo") -> list[str]:
    """A method on the clipped ratio against TRL with as many passes over all tokens: seconds, their ratio, FLOPs'."""
    place, config = Place(), SHAPES[case.model]()
    script = Script(case.rollout, config.vocab_size)
    with trainers_folder() as folder:
        model = place.model(config)
        method = comparable(name, case.rollout, model, script)
        passes = len(method.passes.names)
        theirs = their_trainer(folder / "theirs", model, case.rollout, script, place, passes)
        ours = our_trainer(folder / "ours", place.model(config), case.rollout, script, place, method)
        checked(theirs, ours, place)
        flops = ours.update_flops() / theirs.update_flops()
        return [*compared(theirs.update, ours.update, repeats).cells(), f"{flops:.2f}"]


def against_grpo(case: Case, repeats: int, name: str, *overrides: str) -> Compared:
    """A method with its preset against our own GRPO on the same rows."""
    place, config = Place(), SHAPES[case.model]()
    script = Script(case.rollout, config.vocab_size)
    with trainers_folder() as folder:
        trainers = []
        for side, (method_name, given) in enumerate((("grpo", ()), (name, overrides))):
            model = place.model(config)
            method = divided(method_named(method_name, case.rollout, *given), model, script)
            trainers.append(our_trainer(folder / str(side), model, case.rollout, script, place, method))
        for trainer in trainers:
            trainer.update()
        return compared(trainers[0].update, trainers[1].update, repeats)


def turns(model: str, repeats: int) -> int:
    """Three of a large model take as long as all of the lab's."""
    return min(repeats, 3) if model in ("10M", "100M") else repeats


def trl_table(models: list[str], repeats: int) -> None:
    """GRPO, one line a case."""
    print(heading(*COLUMNS, "TRL, s", "ours, s", "ours / TRL", "FLOPs"))
    for model in models:
        for case in cases(model):
            print(line([*case.cells, *against_trl(case, turns(model, repeats))]), flush=True)


def head_table(models: list[str], repeats: int) -> None:
    """GRPO on models of one thin layer and rows of one length, which leave little but the head to be computed."""
    rollout = Rollout(rows=8, group=4, prompt=16, mean=64, longest=64, spread="fixed", part=4)
    print(heading(*COLUMNS, "TRL, s", "ours, s", "ours / TRL", "FLOPs"))
    for model in models:
        case = Case(model, rollout)
        print(line([*case.cells, *against_trl(case, repeats)]), flush=True)


def lopti_table(models: list[str], repeats: int) -> None:
    """Lopti's two passes against two of TRL's over all tokens, and against one update of our GRPO."""
    print(heading(*COLUMNS, "TRL twice, s", "ours, s", "ours / TRL twice", "FLOPs", "ours / our GRPO"))
    for model in models:
        for zero in (0.0, 0.5):
            case = Case(model, replace(ROLLOUTS[model], zero=zero))
            found = against_trl(case, turns(model, repeats), "grpo+lopti")
            own = against_grpo(case, turns(model, repeats), "grpo+lopti")
            print(line([*case.cells, *found, own.ratio]), flush=True)


def methods_table(models: list[str], repeats: int) -> None:
    """Every preset over GRPO, by the share of zero-advantage rows."""
    print(heading("method", *(f"over GRPO, {zero:.0%} zero" for zero in ZEROS)))
    near = []
    for model in models:
        for name in sorted(preset.name for preset in METHODS.values() if preset.name not in ("grpo", "sft")):
            found = [against_grpo(Case(model, replace(ROLLOUTS[model], zero=zero)), repeats, name) for zero in ZEROS]
            if all(abs(statistics.median(of_share.ratios) - 1) <= NEAR for of_share in found):
                near.append(name)
            else:
                print(line([name, *(of_share.ratio for of_share in found)]), flush=True)
    print(f"\nBoth within {NEAR:.0%} of 1: {', '.join(near)}.")


TABLES = {
    "trl": trl_table,
    "head": head_table,
    "lopti": lopti_table,
    "methods": methods_table,
}
MODELS = {
    "trl": ["lab", "10M", "100M"],
    "head": ["head, V=32,000", "head, V=150,000"],
    "lopti": ["lab", "10M"],
    "methods": ["lab"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("--models", nargs="+", choices=SHAPES, help="default: those that suit the table")
    parser.add_argument("--repeats", type=int, default=5, help="measured turns of each side; 10M, 100M: 3 at most")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"Median of {options.repeats} turns (10M, 100M: 3 at most), {options.threads} thread(s); {load_said()}.\n")
    TABLES[options.table](options.models or MODELS[options.table], options.repeats)


if __name__ == "__main__":
    main()
