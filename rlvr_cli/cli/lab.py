"""`rlvr lab`: rebuild a tiny model that ships with the project, or build another one from a recipe."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from rlvr_cli.cli.command import App
from rlvr_cli.cli.options import output
from rlvr_cli.cli.output import Format, print_json

app = App(help="Build the lab's tiny base models.", no_args_is_help=True)


@app.callback()
def lab() -> None:
    """Build the lab's tiny base models."""


@app.command()
def build(
    out: Annotated[Path, output("DIR", "Folder to write; must be new or empty.")],
    name: Annotated[
        str, typer.Argument(metavar="LAB", help="Which lab: the name of a task that has one (`rlvr tasks list`).")
    ] = "kk",
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Decides weights, problems and traces.")] = 0,
    recipe: Annotated[
        Path | None,
        typer.Option("--recipe", metavar="FILE", help="YAML recipe (docs/lab-build.md); default: the shipped base's."),
    ] = None,
    form: Format = "table",
) -> None:
    """Warm-start a tiny model on generated problems and write it as a model folder; use it as --model DIR."""
    from rlvr_cli.lab import find_lab

    lab = find_lab(name)
    chosen = lab.recipe() if recipe is None else lab.read_recipe(recipe)

    from rlvr_cli.lab.build import SETTINGS, build, check_target, compare_builds, read_manifest
    from rlvr_cli.models.source import LAB_BASES

    check_target(out)
    steps = sum(phase.steps for phase in chosen.phases)
    if form != "json":
        print(f"Building a lab base for {name}: {steps} training steps on one core, seed {seed}.")
    manifest = build(out, lab=lab, recipe=chosen, seed=seed, progress=None if form == "json" else _show)
    # The first build of a new lab has nothing to be compared with.
    shipped = read_manifest(LAB_BASES / name) if (LAB_BASES / name).is_dir() else {"seed": None}
    checks = compare_builds(manifest, shipped) if seed == shipped["seed"] and recipe is None else []
    if form == "json":
        print_json({**manifest, "against_shipped": [{"what": w, "agrees": ok, "detail": d} for w, ok, d in checks]})
        return
    _report(out, manifest)
    for what, agrees, detail in checks:
        print(f"{'same as' if agrees else 'DIFFERS from'} the shipped base: {what} ({detail})")
    if (out / SETTINGS).is_file():
        print(f"next: rlvr train -c {shlex.quote(str(out / SETTINGS))} --model {shlex.quote(str(out))}")


def _show(phase: str, step: int, steps: int, loss: float) -> None:
    if step % 100 == 0 or step == steps:
        print(f"{phase}: step {step} of {steps}, loss {loss:.3f}", flush=True)


def _report(out: Path, manifest: dict[str, Any]) -> None:
    dev = manifest["dev"]
    low, high = dev["sampled_interval"]
    formatted = f"format {dev['format']:.3f}, " if "format" in dev else ""
    print(
        f"{out}: {manifest['parameters']:,} parameters, {manifest['seconds']['training']:.0f} s of training. "
        f"Dev problems ({dev['problems']}, {dev['samples']} samples each): greedy {dev['greedy']:.3f}, "
        f"sampled {dev['sampled']:.3f} [{low:.3f}, {high:.3f}], pass@32 {dev.get('pass@32', float('nan')):.3f}, "
        f"{formatted}{dev['tokens']:.0f} tokens."
    )
