"""A tiny random model, and runs with checkpoints of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rlvr_cli.config.load import dump_yaml, load_config
from rlvr_cli.runs.checkpoints import write_checkpoint
from rlvr_cli.runs.folder import RunDir, create_run


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three folders with random models of the lab's architecture and tokenizer."""
    from experiments.lab.form import ModelSize
    from experiments.lab.model import make_model, make_tokenizer
    from rlvr_cli.tasks import kk_compact as compact

    root = tmp_path_factory.mktemp("models")
    tokenizer = make_tokenizer(compact.vocabulary())
    size = ModelSize(hidden=16, layers=1, heads=2, feed_forward=16, init_std=0.5)
    folders = [root / f"model-{seed}" for seed in range(3)]
    for seed, folder in enumerate(folders):
        make_model(size, tokenizer, seed).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folders


@pytest.fixture
def make_run(models: list[Path], tmp_path: Path) -> Callable[..., RunDir]:
    """``make_run(name, steps)``: a run in ``tmp_path/runs`` whose checkpoints are the random models in turn."""

    def make(name: str = "trained", steps: tuple[int, ...] = (10, 20, 30), created: str = "2026-01-01") -> RunDir:
        run = create_run(tmp_path / "runs", name, overwrite=False)
        overrides = [f"model.name={models[0]}", "rollout.max_new_tokens=12", "eval.problems=6", "eval.samples=4"]
        config = load_config(overrides=[*overrides, "eval.pass_at=[1,4]", "run.threads=1"])
        run.config_path.write_text(dump_yaml(config), encoding="utf-8")
        run.update_manifest(name=name, status="finished", created=created)
        for number, step in enumerate(steps):
            source = models[number % len(models)]
            write_checkpoint(run.checkpoints_dir, step, lambda folder, source=source: _copy(source, folder))
        return run

    return make


def _copy(source: Path, folder: Path) -> None:
    shutil.copytree(source, folder, dirs_exist_ok=True)
