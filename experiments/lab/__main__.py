"""Rebuild a tiny model that ships with the project, or build another from a recipe.

    python -m experiments.lab kk --output my-base                      # the shipped recipe and seed, compared with it
    python -m experiments.lab countdown --output other --seed 1        # another base of the same recipe
    python -m experiments.lab kk --output mine --recipe recipe.yaml

Trained and measured on one core, in six to ten minutes. Use the folder as --model DIR.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.lab import LABS
from experiments.lab.build import SETTINGS, build, compare_builds, read_manifest
from rlvr_cli.core.errors import UserError
from rlvr_cli.models.source import LAB_BASES


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 2 on bad input, 1 where a rebuild differs from the shipped base."""
    parser = argparse.ArgumentParser(prog="experiments.lab", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("lab", choices=LABS)
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="must be new or empty")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="decides weights, problems and traces")
    parser.add_argument("--recipe", type=Path, metavar="FILE", help="YAML; default: the shipped base's")
    options = parser.parse_args(arguments)
    lab, out = LABS[options.lab], options.output
    try:
        recipe = lab.recipe() if options.recipe is None else lab.read_recipe(options.recipe)
        manifest = build(out, lab=lab, recipe=recipe, seed=options.seed, progress=_show)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    dev = manifest["dev"]
    low, high = dev["sampled_interval"]
    formatted = f"format {dev['format']:.3f}, " if "format" in dev else ""
    print(
        f"{out}: {manifest['parameters']:,} parameters, {manifest['seconds']['training']:.0f} s of training. "
        f"Dev problems ({dev['problems']}, {dev['samples']} samples each): greedy {dev['greedy']:.3f}, "
        f"sampled {dev['sampled']:.3f} [{low:.3f}, {high:.3f}], pass@32 {dev.get('pass@32', float('nan')):.3f}, "
        f"{formatted}{dev['tokens']:.0f} tokens."
    )
    # The first build of a new lab has nothing to be compared with.
    base = LAB_BASES / lab.name
    shipped = read_manifest(base) if base.is_dir() else {"seed": None}
    checks = compare_builds(manifest, shipped) if options.seed == shipped["seed"] and options.recipe is None else []
    for what, agrees, detail in checks:
        print(f"{'same as' if agrees else 'DIFFERS from'} the shipped base: {what} ({detail})")
    if (out / SETTINGS).is_file():
        print(f"next: rlvr train -c {shlex.quote(str(out / SETTINGS))} --model {shlex.quote(str(out))}")
    return 0 if all(agrees for _, agrees, _ in checks) else 1


def _show(phase: str, step: int, steps: int, loss: float) -> None:
    if step % 100 == 0 or step == steps:
        print(f"{phase}: step {step} of {steps}, loss {loss:.3f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
