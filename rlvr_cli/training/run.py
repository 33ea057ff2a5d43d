"""From a configuration to a trained run on disk: prepare, train or resume, leave a status."""

from __future__ import annotations

import shlex
import sys
import traceback
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from rlvr_cli.config.batch import batch_arithmetic
from rlvr_cli.config.errors import RunError, UserError
from rlvr_cli.config.load import dump_yaml, load_config
from rlvr_cli.config.schema import Config
from rlvr_cli.runs.atomic import write_text
from rlvr_cli.runs.checkpoints import Checkpoint, Damaged, survey
from rlvr_cli.runs.directory import RunDir, create_run, now, unique_name
from rlvr_cli.runs.environment import git_state, hardware, versions
from rlvr_cli.runs.records import read_jsonl, truncate_jsonl
from rlvr_cli.training.prepare import Prepared, prepare


@dataclass(frozen=True)
class Outcome:
    """How a run ended: ``finished`` (exit code 0) or ``interrupted`` (128 + the signal)."""

    run: RunDir
    status: str
    exit_code: int


def start(config: Config, *, overwrite: bool, console: Console, quiet: bool = False) -> Outcome:
    """Train a new run. Raises UserError before anything is started, RunError while running."""
    prepared = prepare(config)
    root = Path(config.run.dir)
    name = config.run.name or unique_name(root, default_name(config))
    run = create_run(root, name, overwrite=overwrite)
    with run.lock():
        write_text(run.config_path, dump_yaml(config))
        run.update_manifest(
            name=name,
            status="running",
            created=now(),
            finished=None,
            method=config.method.name,
            task=config.task.name,
            model=config.model.name,
            seed=config.run.seed,
            step=0,
            rollout=0,
            steps_total=batch_arithmetic(config).steps_total,
            rollouts_total=config.train.rollouts,
            versions=versions(),
            git=git_state(),
            hardware=hardware(),
            command=shlex.join(["rlvr", *sys.argv[1:]]),
        )
        return _train(config, run, prepared, None, console=console, quiet=quiet)


def resume(run: RunDir, *, console: Console, quiet: bool = False) -> Outcome:
    """Continue ``run`` from its newest valid checkpoint, or from the start when it was killed before the first.

    Raises UserError when it is finished, in use, or has only damaged checkpoints.
    """
    config = load_config([run.config_path])
    with run.lock():
        manifest = run.read_manifest()
        if manifest.get("status") == "finished":
            raise UserError(f"{run.path}: this run is finished; there is nothing to resume.")
        found = survey(run.checkpoints_dir)
        checkpoint = next((entry for entry in found if isinstance(entry, Checkpoint)), None)
        damaged = [entry for entry in found if isinstance(entry, Damaged)]
        if damaged and checkpoint is None:
            listed = "; ".join(f"{entry.path.name}: {entry.reason}" for entry in damaged)
            raise UserError(f"{run.path}: no checkpoint can be used ({listed}). Start again with --overwrite.")
        notes = [
            f"checkpoint {entry.path} skipped: {entry.reason}"
            for entry in damaged
            if checkpoint is None or entry.step > checkpoint.step
        ]
        prepared = prepare(config)
        run.update_manifest(status="running", finished=None)
        return _train(config, run, prepared, checkpoint, console=console, quiet=quiet, resumed=True, notes=notes)


def default_name(config: Config) -> str:
    """``<method>-<task>-<model>-s<seed>``, with a model's path reduced to its last part."""
    model = Path(config.model.name).name
    safe = "".join(letter if letter.isalnum() or letter in "._+-" else "-" for letter in model)
    return f"{config.method.name}-{config.task.name}-{safe}-s{config.run.seed}"[:90]


def _train(
    config: Config,
    run: RunDir,
    prepared: Prepared,
    checkpoint: Checkpoint | None,
    *,
    console: Console,
    quiet: bool,
    resumed: bool = False,
    notes: list[str] | None = None,
) -> Outcome:
    from rlvr_cli.methods.method import make_method
    from rlvr_cli.training.build import build_trainer
    from rlvr_cli.training.progress import Reporter
    from rlvr_cli.training.stopping import StopRequest
    from rlvr_cli.training.trainer import remove_after

    batch = batch_arithmetic(config)
    method = make_method(config.method)
    fingerprint = method.fingerprint()
    with ExitStack() as stack:
        reporter = stack.enter_context(
            Reporter(
                run.log_path, console=console, rollouts=config.train.rollouts, steps=batch.steps_total, quiet=quiet
            )
        )
        step = checkpoint.step if checkpoint else 0
        for note in notes or ():
            reporter.message(note)
        if resumed:
            where = f"step {step}" if checkpoint else "the start (no checkpoint was written yet)"
            reporter.message(f"resuming {run.path} at {where} of {batch.steps_total}")
            rollouts_done = -(-step // batch.steps_per_rollout)
            truncate_jsonl(run.metrics_path, step)
            truncate_jsonl(run.timings_path, step)
            remove_after(run, rollouts_done)
            reporter.resumed_at(step // batch.steps_per_rollout)
        else:
            reporter.message(
                f"run {run.path}: {config.method.name} on {config.task.name} with {config.model.name}, seed "
                f"{config.run.seed}, {config.train.rollouts} rollouts of {batch.completions} completions, "
                f"{batch.steps_per_rollout} optimizer step{'' if batch.steps_per_rollout == 1 else 's'} each; "
                f"sampler: {prepared.engine_reason}"
            )
        run.update_manifest(method_fingerprint=fingerprint, sampler=prepared.engine_reason, threads=prepared.threads)
        stop = stack.enter_context(
            StopRequest(lambda name: reporter.message(f"{name}: saving after this step (Ctrl-C again: stop at once)"))
        )
        trainer = build_trainer(config, batch, run, prepared, method, reporter, stop)
        try:
            trainer.train(resume_from_checkpoint=str(checkpoint.path) if checkpoint else None)
        except KeyboardInterrupt:
            reporter.message(f"stopped without saving; continue with: rlvr train --resume {run.path}")
            _close(run, trainer, "interrupted")
            raise
        except OSError as error:
            _close(run, trainer, "failed", error=str(error))
            raise RunError(
                f"{run.path}: {error.strerror or error}. Free some space or choose another run.dir; "
                f"then continue with: rlvr train --resume {run.path}"
            ) from error
        except BaseException as error:
            reporter.log(traceback.format_exc())
            _close(run, trainer, "failed", error=str(error))
            raise
        if trainer.state.global_step == batch.steps_total:
            _close(run, trainer, "finished")
            reporter.message(f"finished: {run.path}")
            return Outcome(run, "finished", 0)
        _close(run, trainer, "interrupted")
        reporter.message(f"saved at step {trainer.state.global_step}; continue with: rlvr train --resume {run.path}")
        return Outcome(run, "interrupted", stop.exit_code)


def _close(run: RunDir, trainer: Any, status: str, **fields: Any) -> None:
    rows = read_jsonl(run.metrics_path)
    run.update_manifest(
        status=status,
        finished=now(),
        last_metrics=rows[-1] if rows else {},
        executed=trainer.meter.executed,
        **fields,
    )
