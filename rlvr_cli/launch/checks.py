"""Checks before a run starts or resumes, and its default name."""

from __future__ import annotations

from pathlib import Path

from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.hashes import text_digest
from rlvr_cli.launch.world import World
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.tasks.sets import problems_name


def default_name(config: Config) -> str:
    """Return ``<method>-<problems>-<model>-s<seed>``, with the last component of the model's path."""
    problems = problems_name(config.task.name, config.task.data)
    task, model = (
        "".join(letter if letter.isalnum() or letter in "._+-" else "-" for letter in name)
        for name in (problems.removesuffix("/"), Path(config.model.name).name)
    )
    return f"{config.method.name}-{task}-{model}-s{config.run.seed}"[:90]


# Key of the manifest while a longer run's configuration replaces the present one, so that a kill loses neither.
EXTENDING = "extending_to"


def check_resumable(run: RunDir, *, finished: bool = False) -> None:
    """Raise UserError if ``run`` is finished (allowed if ``finished``), was edited, or lost its checkpoints."""
    manifest = run.read_manifest()
    extending = manifest.get(EXTENDING) or {}
    if manifest.get("status") == "finished" and not finished and not extending:
        raise UserError(
            f"{run.path}: this run is finished. To extend it: "
            f"rlvr train --resume {run.path} train.rollouts=N, with N above {manifest.get('rollouts_total')}."
        )
    digest = text_digest(run.config_path.read_text(encoding="utf-8"))
    if digest not in (manifest.get("config_sha256"), extending.get("config_sha256")):
        raise UserError(
            f"{run.config_path}: was changed after the run started, so the run cannot continue exactly. Restore it, "
            f"or start a new run with it: rlvr train -c {run.config_path} run.name=NEW"
        )
    saved = manifest.get("step")
    if saved and not any(run.checkpoints_dir.glob("step-*")):
        raise UserError(
            f"{run.checkpoints_dir}: holds no checkpoint, and the run was saved at step {saved}. Restore step-{saved} "
            "or an earlier one (is a disk missing?). To train again from the start: "
            f"rlvr train -c {run.config_path} run.name=NEW"
        )
    run.check_no_links()


def check_processes(run: RunDir, config: Config, world: World) -> None:
    if config.launch.processes != world.processes:
        raise UserError(
            f"{run.path}: was started with launch.processes={config.launch.processes} and cannot continue exactly with "
            f"{world.processes}. Start {config.launch.processes} processes again."
        )
