"""Train a run: prepare, train or resume, record a status.

One rollout and its optimizer steps; transformers' ``Trainer`` loops over the steps:

1. ``PolicyTrainer.training_step`` (trainer.py) is an optimizer step. At the first of a rollout, ``_collect_rollout``
calls
   ``RolloutSource.collect`` (rollouts.py) to sample completions with the weights of the step
   (``PolicyRunTrainer._sampling_weights``, policy_run.py), and judge them (evaluation/sampling.py).
2. ``Scoring.measured`` (scoring.py) adds old and reference log-probs, entropies and values where the method needs them;
   ``Scoring.scored`` the method's rewards and advantages, over all processes.
3. ``split_into_steps`` (packing.py) assigns the rows to the optimizer steps of the rollout.
4. Each step: ``PolicyForward`` (forward.py) packs its rows into micro-batches and computes the log-probs of the chosen
   tokens (log_probs.py), ``objective.loss`` the method's loss, and each micro-batch goes backward.
5. ``RunTrainer._get_grad_norm`` (run_trainer.py) refuses a step that is not finite; else AdamW moves the weights.
   ``Recorder`` (recorder.py) writes the step to metrics.jsonl, ``Checkpointer`` (checkpointer.py) saves the run.

The learning rate: ``Config.learning_rate`` (config/optimizer.py) defines it. ``run_arguments`` passes the peak to
    AdamW,
``RunTrainer.create_scheduler`` applies the factor of each step (both run_trainer.py); ``Recorder`` records the product.
"""

from __future__ import annotations

import errno
import os
import shlex
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from rlvr_cli.collapse.alerts import AlertMonitor
from rlvr_cli.config.batch import BatchArithmetic
from rlvr_cli.config.checks import cautions
from rlvr_cli.config.load import dump_yaml, load_config
from rlvr_cli.config.schema import Config
from rlvr_cli.config.user_files import user_files
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.files import read_jsonl, write_text
from rlvr_cli.core.hashes import text_digest
from rlvr_cli.core.text import without_secrets
from rlvr_cli.core.user_code import COPIES, error_text, escaped_error, keep_copies
from rlvr_cli.launch.checks import check_processes, default_name
from rlvr_cli.launch.stopping import RunEnd, StopRequest
from rlvr_cli.launch.world import ALONE, World
from rlvr_cli.models.architecture import parameters_of
from rlvr_cli.models.sampling.memory import SamplingMemoryError, out_of_memory
from rlvr_cli.runs.checkpoints import Checkpoint, Damaged, survey
from rlvr_cli.runs.environment import git_state, hardware, versions
from rlvr_cli.runs.folder import STARTED_IN, SUBMITTED, RunDir, check_free, create_run, now, unique_name
from rlvr_cli.runs.records import FILE as SEAL
from rlvr_cli.runs.records import IN_CHECKPOINT, damaged_records, read_entries, read_seal, rewind, truncate_timings
from rlvr_cli.runs.seal import Entries, write_seal
from rlvr_cli.runs.trained_on import write_training_problems
from rlvr_cli.tasks.sets import problems_name
from rlvr_cli.training.extension import KEY, check_extension, extend, load_extended
from rlvr_cli.training.outcome import outcome_lines
from rlvr_cli.training.prepare import PreparedRun, RunParts, join, prepare_run
from rlvr_cli.training.progress import Reporter

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


@dataclass(frozen=True)
class _Resumption:
    """The checkpoint to continue from (None = the start), notes for the user, and the hashes of the records so far."""

    checkpoint: Checkpoint | None
    notes: tuple[str, ...]
    seal: Entries


@dataclass(frozen=True)
class RunContext:
    """The environment of a training: its processes, the stop request, and a callback with the run's folder."""

    world: World = ALONE
    stop: StopRequest = field(default_factory=StopRequest)
    on_start: Callable[[Path], None] = lambda run: None


def start_training(
    config: Config, *, overwrite: bool, console: Console, command: str | None = None, context: RunContext | None = None
) -> RunEnd:
    """Train a new run. Raises UserError before the training starts, RunError during it.

    Every process calls it; only rank 0 writes.

    Args:
        command: the command line to record; None = that of this process.
    """
    context = context or RunContext()
    root = Path(config.run.dir)
    if config.run.name and context.world.main:
        check_free(RunDir(root / config.run.name), overwrite=overwrite)
    prepared = prepare_run(config, context.world)

    def create() -> RunDir:
        name = config.run.name or unique_name(root, default_name(config))
        command_line = command or without_secrets(shlex.join(["rlvr", *sys.argv[1:]]))
        return create_run(
            root,
            name,
            overwrite=overwrite,
            fill=lambda aside: _first_manifest(config, aside, name, prepared, command_line),
        )

    run = context.world.from_main(create)
    with _locked(run, context.world):
        context.on_start(run.path)
        return _train(run, prepared, None, console, context)


def _first_manifest(config: Config, run: RunDir, name: str, prepared: PreparedRun, command: str) -> None:
    text = dump_yaml(config)
    # A submitted run has its copies: the files may have been edited while it was queued.
    copies = {} if (run.path / COPIES).exists() else keep_copies(user_files(config), run.path)
    write_text(run.config_path, text)
    write_seal(run.path / SEAL, {})
    write_training_problems(run.path, prepared.trained_on())
    run.update_manifest(
        name=name,
        status="running",
        created=now(),
        finished=None,
        sealed=True,
        method=config.method.name,
        task=problems_name(config.task.name, config.task.data),
        model=config.model.name,
        seed=config.run.seed,
        learning_rate=config.learning_rate.peak(lambda: parameters_of(prepared.model)),
        step=0,
        rollout=0,
        steps_total=config.batch.steps_total,
        rollouts_total=config.train.rollouts,
        processes=config.launch.processes,
        config_sha256=text_digest(text),
        **copies,
        method_fingerprint=prepared.method.fingerprint(),
        problems_sha256=prepared.problems_sha256(),
        sampler=prepared.engine_reason,
        weights_dtype=str(prepared.model.dtype).removeprefix("torch."),
        **({"without_adapter": prepared.without_adapter} if prepared.without_adapter else {}),
        threads=prepared.threads,
        versions=versions(),
        git=git_state(),
        hardware=hardware(),
        command=command,
        **{STARTED_IN: str(run.started_in() or Path.cwd())},
    )


@contextmanager
def _locked(run: RunDir, world: World) -> Iterator[None]:
    """Lock ``run`` in rank 0; every rank waits for the lock."""
    if not world.main:
        world.from_main(lambda: None)
        yield
        return
    with ExitStack() as stack:
        world.from_main(lambda: stack.enter_context(run.lock()))
        yield


def resume_training(
    run: RunDir, *, console: Console, rollouts: int | None = None, context: RunContext | None = None
) -> RunEnd:
    """Continue ``run`` from its newest valid checkpoint, or from the start if there is none.

    Every process calls it; only rank 0 writes, after all checks.
    Raises UserError when it is finished, in use, its configuration was edited, or it has only damaged checkpoints.

    Args:
        rollouts: the length to extend the run to.
    """
    context = context or RunContext()
    longer = [] if rollouts is None else [f"{KEY}={rollouts}"]
    config = load_extended(run, longer).config
    check_processes(run, config, context.world)
    if context.world.processes > 1:
        join(config, context.world)
    with _locked(run, context.world):
        context.on_start(run.path)
        if context.world.main:
            check_extension(run, longer)
        resumption_point = context.world.from_main(lambda: _choose_checkpoint(run))
        prepared = prepare_run(config, context.world)
        waiting = context.world.from_main(lambda: _submitted(run))
        resumption = None if waiting else context.world.from_main(lambda: _check_run(run, prepared, resumption_point))
        if context.world.main:
            run.make_folders()
            if waiting:
                _first_manifest(load_config([run.config_path]), run, run.name, prepared, waiting)
            else:
                assert resumption is not None
                resumption = replace(resumption, notes=(*extend(run, longer), *resumption.notes))
                run.update_manifest(status="running", finished=None)
        return _train(run, prepared, resumption, console, context)


def _submitted(run: RunDir) -> str | None:
    """Return the command that submitted a run to a queue if this is its first start, else None."""
    manifest = run.read_manifest()
    return str(manifest["command"]) if manifest.get("status") == SUBMITTED else None


def _check_run(run: RunDir, prepared: PreparedRun, resumption: _Resumption) -> _Resumption:
    """Raise UserError for other problems or another method; add a note if only the method's code was edited."""
    manifest, data = run.read_manifest(), prepared.config.task.data
    if "problems_sha256" not in manifest:
        raise UserError(
            f"{run.path}: was started with an earlier version of rlvr, which recorded no hash of its problems."
        )
    if manifest["problems_sha256"] != prepared.problems_sha256():
        raise UserError(
            f"{run.path}: its training problems (task.data={data}) are not those that it was started with. Restore the "
            f"data, or start a new run: rlvr train -c {run.config_path} run.name=NEW"
        )
    before, now_ = manifest.get("method_fingerprint") or {}, prepared.method.fingerprint()
    if before.get("choices") != now_["choices"]:
        raise UserError(
            f"{run.path}: was started with method {_described(before)}; with the current code and data, its "
            f"configuration means {_described(now_)}. A run keeps its method; start a new one."
        )
    if before.get("code_sha256") == now_["code_sha256"]:
        return resumption
    changed = "the code of the method was changed after the run began: the rest may differ from an unbroken run"
    return replace(resumption, notes=(*resumption.notes, changed))


def _described(fingerprint: dict[str, Any]) -> str:
    choices = fingerprint.get("choices")
    return f"{choices['name']} ({fingerprint.get('choices_sha256', '')[:8]})" if choices else "(not recorded)"


def _choose_checkpoint(run: RunDir) -> _Resumption:
    entries = survey(run.checkpoints_dir, hashed=1)
    checkpoint = next((entry for entry in entries if isinstance(entry, Checkpoint)), None)
    newer = [
        entry for entry in entries if isinstance(entry, Damaged) and (not checkpoint or entry.step > checkpoint.step)
    ]
    if newer and checkpoint is None:
        listed = "; ".join(f"{entry.path.name}: {entry.reason}" for entry in newer)
        raise UserError(f"{run.path}: no checkpoint can be used ({listed}). Start again with --overwrite.")
    skipped = [f"checkpoint {entry.path} skipped: {entry.reason}" for entry in newer]
    saved = run.read_manifest().get("step")
    if checkpoint and isinstance(saved, int) and saved > max(entry.step for entry in entries):
        skipped.append(f"checkpoint {run.checkpoints_dir / f'step-{saved}'} is gone, though the run was saved there")
    seal, notes = _seal_at(run, checkpoint)
    damaged = list(damaged_records(run, seal))
    if damaged:
        where = f"step {checkpoint.step}" if checkpoint else "the start"
        raise UserError(
            [
                *damaged,
                f"{run.path}: its records until {where} were altered, and its results depend on them. Put the files "
                f"back from a copy, or train again: rlvr train -c {run.config_path} run.name=NEW",
            ]
        )
    return _Resumption(checkpoint, (*skipped, *notes), seal)


def _seal_at(run: RunDir, checkpoint: Checkpoint | None) -> tuple[Entries, list[str]]:
    """Return the hashes of the records up to ``checkpoint``, and notes."""
    path = checkpoint.path / IN_CHECKPOINT if checkpoint else None
    seal = read_entries(path) if path is not None and path.exists() else {}
    try:
        read_seal(run)
    except RunError as error:
        return seal, [f"{error} It is made again from the checkpoint."]
    return seal, []


def _train(
    run: RunDir, prepared: PreparedRun, resumption: _Resumption | None, console: Console, context: RunContext
) -> RunEnd:
    config, batch = prepared.config, prepared.config.batch
    world, stop = context.world, context.stop
    log_path = run.log_path if world.main else Path(os.devnull)
    output = console if world.main else Console(quiet=True, force_terminal=False)
    with Reporter(log_path, console=output, rollouts=config.train.rollouts, steps=batch.steps_total) as reporter, stop:
        reporter.follow(stop)
        run_parts = RunParts(prepared, run, reporter, stop)
        hint = f"continue with: rlvr train --resume {shlex.quote(str(run.path))}"
        try:
            if resumption:
                world.from_main(lambda: _rewind(run, resumption, batch, reporter))
            else:
                reporter.message(_announcement(run, prepared))
            for caution in (*cautions(config), *prepared.cautions):
                reporter.message(caution)
            if prepared.without_adapter:
                reporter.message(
                    f"the experts get no adapter and stay as they are: {', '.join(prepared.without_adapter)}"
                )
            from rlvr_cli.training.build import build_trainer

            checkpoint = resumption.checkpoint if resumption else None
            trainer = build_trainer(run_parts)
            trainer.train(resume_from_checkpoint=str(checkpoint.path) if checkpoint else None)
            reached = int(trainer.state.global_step)
            reporter.end()
        except KeyboardInterrupt:
            reporter.end()
            _close(run, world, run_parts.executed, "interrupted")
            reporter.message(f"stopped without saving; {hint}")
            raise
        except (Exception, SystemExit) as error:
            reporter.end()
            reporter.log(traceback.format_exc())
            failure = explain(error, run, hint)
            try:
                _close(run, world, run_parts.executed, "failed", error=str(failure))
            except OSError as second:
                failure.add_note(f"the status could not be written either: {second}")
            if failure is error:
                raise
            raise failure from error
        if reached == batch.steps_total:
            watched = config.train.on_no_signal != "off"
            ending = world.from_main(lambda: _no_signal(config, run)) if watched else None
            _close(run, world, run_parts.executed, "finished", no_signal=ending)
            reporter.message(f"finished: {run.path}")
            for line in outcome_lines(run, config.rollout.prompts) if world.main else ():
                reporter.message(line)
            if ending:
                reporter.log(f"WARNING: {ending}")  # shown after the last line of all
            return RunEnd(run, "finished", 0)
        _close(run, world, run_parts.executed, "interrupted")
        reporter.message(f"saved at step {reached}; {hint}")
        return RunEnd(run, "interrupted", stop.exit_code)


def _no_signal(config: Config, run: RunDir) -> str | None:
    return AlertMonitor(config.rollout.prompts, rows=read_jsonl(run.metrics_path)).no_signal_summary()


def _announcement(run: RunDir, prepared: PreparedRun) -> str:
    config, batch = prepared.config, prepared.config.batch
    work = prepared.announcement(
        f"{batch.steps_per_rollout} optimizer step{'' if batch.steps_per_rollout == 1 else 's'} each"
    )
    together = f" in {batch.processes} processes" if batch.processes > 1 else ""
    rows = config.task.about_data()
    return (
        f"run {run.path}{together}: {config.method.name} on "
        f"{problems_name(config.task.name, config.task.data)} with {config.model.name}, seed "
        f"{config.run.seed}, {work}" + (f"\n{rows}" if rows else "")
    )


def _rewind(run: RunDir, resumption: _Resumption, batch: BatchArithmetic, reporter: Reporter) -> None:
    """Move the records after the checkpoint aside, since these steps are repeated."""
    for note in resumption.notes:
        reporter.message(note)
    step = resumption.checkpoint.step if resumption.checkpoint else 0
    where = f"step {step}" if step else "the start (there is no checkpoint)"
    reporter.message(f"resuming {run.path} at {where} of {batch.steps_total}")
    write_seal(run.path / SEAL, resumption.seal)
    aside = rewind(run, step, batch.steps_per_rollout)
    if aside is not None:
        reporter.message(f"the records after step {step} are in {aside} until these steps are repeated")
    unknown = truncate_timings(run.timings_path, step)
    if unknown:
        reporter.message(f"warning: {run.timings_path} lacks the seconds of {unknown} of {step} steps; continuing")
    reporter.resumed_at(step // batch.steps_per_rollout)


def _close(run: RunDir, world: World, executed: Counter[str], status: str, **fields: Any) -> None:
    if world.main:
        run.update_manifest(status=status, finished=now(), executed=executed, **fields)


def explain(error: Exception | SystemExit, run: RunDir, hint: str) -> Exception:
    """Return ``error`` as a message for the user; ``hint``: how to continue. Bugs are returned unchanged."""
    if isinstance(error, SystemExit):
        line = escaped_error(error) or f"{run.path}: {error_text(error)}"
        return RunError(f"{line} ended the training; {hint}")
    if isinstance(error, SamplingMemoryError):
        return RunError(
            f"{run.path}: {error} To change settings, start a new run; if another program took the memory, {hint}"
        )
    if isinstance(error, RunError):
        return error
    if isinstance(error, UserError):
        return RunError("\n".join([*error.problems, hint]))
    if out_of_memory(error):
        return RunError(
            f"{run.path}: out of memory ({_first_line(error)}). Make update.micro_batch, rollout.max_new_tokens or "
            "rollout.prompts smaller in a new run."
        )
    if isinstance(error, OSError):
        advice = "Make room, or see whether the disk can be written to; then " if error.errno in NO_ROOM else "Then "
        where = error.filename or run.path
        return RunError(f"{where}: {error.strerror or error}. {advice}{hint}")
    return error


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]
