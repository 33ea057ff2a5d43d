"""Build a lab base from a recipe and a seed: puzzles, warm start, measurement, a Hugging Face model folder."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.streams import stream_seed
from rlvr_cli.lab.measure import measure
from rlvr_cli.lab.model import make_model
from rlvr_cli.lab.recipe import Recipe
from rlvr_cli.lab.tokenizer import make_tokenizer
from rlvr_cli.lab.warm_start import Progress, data_hash, stream, train_phase, training_puzzles
from rlvr_cli.runs.checkpoints import file_hash

MANIFEST = "lab_manifest.json"
BASE = Path(__file__).parent / "base"


def config_hash(folder: Path) -> str:
    """SHA-256 of a model folder's `config.json`, without the version of transformers that wrote it."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config.pop("transformers_version", None)
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a built base."""
    manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    return manifest


def check_target(folder: Path) -> None:
    """Raise UserError when `folder` cannot take a new base, before any work is done."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"--out {folder}: exists and is not an empty folder. Choose another name or remove it first.")
    parent = next(p for p in folder.absolute().parents if p.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise UserError(f"--out {folder}: cannot write in {parent}.")


@contextmanager
def _one_thread() -> Iterator[None]:
    """Sums depend on the number of threads; one thread makes a build repeatable on a machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def build(
    folder: Path,
    *,
    recipe: Recipe,
    seed: int,
    progress: Progress | None = None,
    dev_count: int = 420,
    samples: int = 32,
) -> dict[str, Any]:
    """Train a base, measure it on dev puzzles and write it to `folder`, which must be new or empty.

    The folder appears complete or not at all. Returns the manifest. Raises UserError when the folder is taken.
    """
    check_target(folder)
    start = time.perf_counter()
    with _one_thread():
        pools = training_puzzles(recipe, seed)
        tokenizer = make_tokenizer()
        model = make_model(recipe.model, tokenizer, stream_seed(seed, "lab", "weights") % 2**32)
        for phase in recipe.phases:
            rng = stream(seed, f"phase/{phase.name}")
            train_phase(model, tokenizer, pools, phase, max_tokens=recipe.max_tokens, rng=rng, progress=progress)
        trained = time.perf_counter()
        model.eval()
        people = recipe.phases[-1].people
        dev = measure(model, tokenizer, people, count=dev_count, samples=samples, max_new_tokens=recipe.max_tokens)
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        model.save_pretrained(aside)
        tokenizer.save_pretrained(aside)
        manifest = {
            "seed": seed,
            "recipe": recipe.model_dump(mode="json"),
            "recipe_sha256": recipe.fingerprint(),
            "data_sha256": data_hash(pools),
            "config_sha256": config_hash(aside),
            "tokenizer_sha256": file_hash(aside / "tokenizer.json"),
            "weights_sha256": file_hash(aside / "model.safetensors"),
            "parameters": model.num_parameters(),
            "dev": dev,
            "seconds": {
                "training": round(trained - start, 1),
                "measuring": round(time.perf_counter() - trained, 1),
            },
            "threads": 1,
            "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        }
        (aside / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        aside.chmod(0o755)
        for path in aside.iterdir():
            path.chmod(0o644)  # safetensors makes files that only their owner can read
        if folder.exists():
            folder.rmdir()
        aside.rename(folder)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return manifest


def compare(manifest: dict[str, Any], shipped: dict[str, Any]) -> list[tuple[str, bool, str]]:
    """A rebuild against the shipped base: (what, whether it agrees, detail) for hashes and dev accuracy.

    Weights may differ in the last bits between machines; data and configuration may not. Accuracy agrees within
    the two 95% intervals added, plus 0.05 for what another order of sums does to training.
    """
    lines = [
        (name, manifest[key] == shipped[key], manifest[key][:12])
        for name, key in (("recipe", "recipe_sha256"), ("data", "data_sha256"), ("config", "config_sha256"))
    ]
    ours, theirs = manifest["dev"], shipped["dev"]
    allowed = sum(dev["sampled_interval"][1] - dev["sampled_interval"][0] for dev in (ours, theirs)) / 2 + 0.05
    detail = f"{ours['sampled']:.3f}, shipped {theirs['sampled']:.3f}, allowed difference {allowed:.3f}"
    return [*lines, ("dev accuracy", abs(ours["sampled"] - theirs["sampled"]) <= allowed, detail)]
