"""Train a run: prepare it, train or resume it, record its status.

transformers' ``Trainer`` loops over the optimizer steps. One rollout and its steps:

1. ``PolicyTrainer.training_step`` (trainer.py) runs an optimizer step. At the first of a rollout, ``_collect_rollout``
   calls ``RolloutSource.collect`` (rollouts.py) to sample completions with the weights of the step
   (``PolicyRunTrainer._sampling_weights``, policy_run.py) and judge them (evaluation/sampling.py).
2. ``Scoring`` (scoring.py) adds the method's old and reference log-probs, entropies and values (``compute_columns``),
   then its rewards and advantages over all processes (``score``).
3. ``split_into_steps`` (packing.py) assigns the rows to the optimizer steps of the rollout.
4. Each step: ``PolicyForward`` (forward.py) packs its rows into micro-batches and computes the log-probs of the chosen
   tokens (log_probs.py), ``objective.loss`` the method's loss; each micro-batch has its backward pass.
5. ``RunTrainer._get_grad_norm`` (run_trainer.py) rejects a non-finite step; else AdamW updates the weights.
   ``Recorder`` (recorder.py) writes the step to metrics.jsonl, ``Checkpointer`` (checkpointer.py) saves the run.

``Config.learning_rate`` (config/optimizer.py) defines the learning rate: ``run_arguments`` passes its peak to AdamW,
``RunTrainer.create_scheduler`` applies the factor of each step (both run_trainer.py).
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
from rlvr_cli.config.checks import config_warnings
from rlvr_cli.config.load import dump_yaml, load_config
from rlvr_cli.config.schema import Config
from rlvr_cli.config.user_files import user_files
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.files import read_jsonl, write_text
from rlvr_cli.core.hashes import text_digest
from rlvr_cli.core.text import redact_secrets
from rlvr_cli.core.user_code import COPIES, format_error, save_copies, user_error_message
from rlvr_cli.launch.checks import check_processes, default_name
from rlvr_cli.launch.stopping import RunEnd, StopRequest
from rlvr_cli.launch.world import ALONE, World
from rlvr_cli.models.architecture import count_parameters
from rlvr_cli.models.sampling.memory import SamplingMemoryError, is_out_of_memory
from rlvr_cli.runs.checkpoints import Checkpoint, Damaged, scan_checkpoints
from rlvr_cli.runs.environment import git_state, hardware, versions
from rlvr_cli.runs.folder import STARTED_IN, SUBMITTED, RunDir, check_free, create_run, now, unique_name
from rlvr_cli.runs.records import FILE as SEAL
from rlvr_cli.runs.records import IN_CHECKPOINT, damaged_records, read_entries, read_seal, rewind, truncate_timings
from rlvr_cli.runs.seal import Entries, write_seal
from rlvr_cli.runs.trained_on import write_training_problems
from rlvr_cli.tasks.sets import problems_name
from rlvr_cli.training.extension import KEY, check_extension, extend, load_extended
from rlvr_cli.training.outcome import outcome_lines
from rlvr_cli.training.prepare import PreparedRun, RunParts, prepare_run, set_up_process
from rlvr_cli.training.progress import Reporter

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


@dataclass(frozen=True)
class _Resumption:
    """The checkpoint to resume from (None = the start), notes for the user, and the digests of the records so far."""

    checkpoint: Checkpoint | None
    notes: tuple[str, ...]
    seal: Entries


@dataclass(frozen=True)
class RunContext:
    world: World = ALONE
    stop: StopRequest = field(default_factory=StopRequest)
    on_start: Callable[[Path], None] = lambda run: None


def start_training(
    config: Config, *, overwrite: bool, console: Console, command: str | None = None, context: RunContext | None = None
) -> RunEnd:
    """Train a new run. Raises UserError before the training starts, RunError during it.

    Every process calls it; only rank 0 writes. ``command``: the command line to record; None = that of this process.
    """
    context = context or RunContext()
    root = Path(config.run.dir)
    if config.run.name and context.world.main:
        check_free(RunDir(root / config.run.name), overwrite=overwrite)
    prepared = prepare_run(config, context.world)

    def create() -> RunDir:
        name = config.run.name or unique_name(root, default_name(config))
        command_line = command or redact_secrets(shlex.join(["rlvr", *sys.argv[1:]]))
        return create_run(
            root,
            name,
            overwrite=overwrite,
            fill=lambda aside: _first_manifest(config, aside, name, prepared, command_line),
        )

    run = context.world.run_on_main(create)
    with _lock_run(run, context.world):
        context.on_start(run.path)
        return _train(run, prepared, None, console, context)


def _first_manifest(config: Config, run: RunDir, name: str, prepared: PreparedRun, command: str) -> None:
    text, teacher = dump_yaml(config), prepared.teacher
    # A submitted run already has copies: the files may have been edited while it was queued.
    copies = {} if (run.path / COPIES).exists() else save_copies(user_files(config), run.path)
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
        learning_rate=config.learning_rate.peak(lambda: count_parameters(prepared.model)),
        step=0,
        rollout=0,
        steps_total=config.batch.steps_total,
        rollouts_total=config.train.rollouts,
        processes=config.launch.processes,
        config_sha256=text_digest(text),
        **copies,
        method_fingerprint=prepared.method.fingerprint(),
        problems_sha256=prepared.problems_sha256(),
        **({} if teacher is None else {"teacher": {"model": teacher.location, "fingerprint": teacher.fingerprint}}),
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
def _lock_run(run: RunDir, world: World) -> Iterator[None]:
    """Lock ``run`` in rank 0 inside the context; every rank waits for the lock."""
    if not world.main:
        world.run_on_main(lambda: None)
        yield
        return
    with ExitStack() as stack:
        world.run_on_main(lambda: stack.enter_context(run.lock()))
        yield


def resume_training(
    run: RunDir, *, console: Console, rollouts: int | None = None, context: RunContext | None = None
) -> RunEnd:
    """Resume ``run`` from its newest valid checkpoint, or from the start; ``rollouts``: a new number extends the run.

    Every process calls it; only rank 0 writes, after all checks. Raises UserError if the run is finished or in use, its
    configuration was edited, or all of its checkpoints are damaged.
    """
    context = context or RunContext()
    overrides = [] if rollouts is None else [f"{KEY}={rollouts}"]
    config = load_extended(run, overrides).config
    check_processes(run, config, context.world)
    if context.world.processes > 1:
        set_up_process(config, context.world)
    with _lock_run(run, context.world):
        context.on_start(run.path)
        if context.world.main:
            check_extension(run, overrides)
        chosen = context.world.run_on_main(lambda: _choose_checkpoint(run))
        prepared = prepare_run(config, context.world)
        submit_command = context.world.run_on_main(lambda: _submit_command(run))
        resumption = None if submit_command else context.world.run_on_main(lambda: _check_run(run, prepared, chosen))
        if context.world.main:
            run.make_folders()
            if submit_command:
                _first_manifest(load_config([run.config_path]), run, run.name, prepared, submit_command)
            else:
                assert resumption is not None
                resumption = replace(resumption, notes=(*extend(run, overrides), *resumption.notes))
                run.update_manifest(status="running", finished=None)
        return _train(run, prepared, resumption, console, context)


def _submit_command(run: RunDir) -> str | None:
    """Return the command that submitted a run to a queue if it has not started yet, else None."""
    manifest = run.read_manifest()
    return str(manifest["command"]) if manifest.get("status") == SUBMITTED else None


def _check_run(run: RunDir, prepared: PreparedRun, resumption: _Resumption) -> _Resumption:
    """Raise UserError for changed problems or another method; add a note if only the method's code was edited."""
    manifest, data = run.read_manifest(), prepared.config.task.data
    if manifest["problems_sha256"] != prepared.problems_sha256():
        raise UserError(
            f"{run.path}: its training problems (task.data={data}) are not those that it was started with. Restore the "
            f"data, or start a new run: rlvr train -c {run.config_path} run.name=NEW"
        )
    recorded, current = manifest["method_fingerprint"], prepared.method.fingerprint()
    if recorded["choices"] != current["choices"]:
        raise UserError(
            f"{run.path}: was started with method {_describe_method(recorded)}; with the current code and data, its "
            f"configuration means {_describe_method(current)}. A run keeps its method; start a new one."
        )
    teacher, before = prepared.teacher, manifest.get("teacher") or {}
    if teacher is not None and teacher.fingerprint != before.get("fingerprint"):
        raise UserError(
            f"{run.path}: its teacher is now {teacher.location} ({teacher.fingerprint[:8]}), and was "
            f"{before.get('model')} ({str(before.get('fingerprint'))[:8]}) at the start. Restore that model, or start "
            "a new run."
        )
    if recorded["code_sha256"] == current["code_sha256"]:
        return resumption
    note = "the code of the method was changed after the run began: the rest may differ from an uninterrupted run"
    return replace(resumption, notes=(*resumption.notes, note))


def _describe_method(fingerprint: dict[str, Any]) -> str:
    return f"{fingerprint['choices']['name']} ({fingerprint['choices_sha256'][:8]})"


def _choose_checkpoint(run: RunDir) -> _Resumption:
    entries = scan_checkpoints(run.checkpoints_dir, hashed=1)
    checkpoint = next((entry for entry in entries if isinstance(entry, Checkpoint)), None)
    newer = [
        entry for entry in entries if isinstance(entry, Damaged) and (not checkpoint or entry.step > checkpoint.step)
    ]
    if newer and checkpoint is None:
        reasons = "; ".join(f"{entry.path.name}: {entry.reason}" for entry in newer)
        raise UserError(f"{run.path}: no checkpoint can be used ({reasons}). Start again with --overwrite.")
    skipped = [f"checkpoint {entry.path} skipped: {entry.reason}" for entry in newer]
    saved = run.read_manifest().get("step")
    if checkpoint and isinstance(saved, int) and saved > max(entry.step for entry in entries):
        skipped.append(
            f"checkpoint {run.checkpoints_dir / f'step-{saved}'} is missing, although the run was saved there"
        )
    seal, notes = _read_seal(run, checkpoint)
    damaged = list(damaged_records(run, seal))
    if damaged:
        end = f"step {checkpoint.step}" if checkpoint else "the start"
        raise UserError(
            [
                *damaged,
                f"{run.path}: its records until {end} were altered, and its results depend on them. Restore the files "
                f"from a copy, or train again: rlvr train -c {run.config_path} run.name=NEW",
            ]
        )
    return _Resumption(checkpoint, (*skipped, *notes), seal)


def _read_seal(run: RunDir, checkpoint: Checkpoint | None) -> tuple[Entries, list[str]]:
    """Return the digests of the records up to ``checkpoint``, and notes."""
    path = checkpoint.path / IN_CHECKPOINT if checkpoint else None
    seal = read_entries(path) if path is not None and path.exists() else {}
    try:
        read_seal(run)
    except RunError as error:
        return seal, [f"{error} It is rebuilt from the checkpoint."]
    return seal, []


def _train(
    run: RunDir, prepared: PreparedRun, resumption: _Resumption | None, console: Console, context: RunContext
) -> RunEnd:
    config, batch = prepared.config, prepared.config.batch
    world, stop = context.world, context.stop
    log_path = run.log_path if world.main else Path(os.devnull)
    output = console if world.main else Console(quiet=True, force_terminal=False)
    with Reporter(log_path, console=output, rollouts=config.train.rollouts, steps=batch.steps_total) as reporter, stop:
        reporter.watch_stop(stop)
        run_parts = RunParts(prepared, run, reporter, stop)
        resume_hint = f"continue with: rlvr train --resume {shlex.quote(str(run.path))}"
        try:
            if resumption:
                world.run_on_main(lambda: _rewind(run, resumption, batch, reporter))
            else:
                reporter.show(_announcement(run, prepared))
            for caution in (*config_warnings(config), *prepared.cautions):
                reporter.show(caution)
            if prepared.without_adapter:
                reporter.show(
                    f"weights of experts without an adapter, not trained: {', '.join(prepared.without_adapter)}"
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
            reporter.show(f"stopped without saving; {resume_hint}")
            raise
        except (Exception, SystemExit) as error:
            reporter.end()
            reporter.log(traceback.format_exc())
            failure = explain_error(error, run, resume_hint)
            try:
                _close(run, world, run_parts.executed, "failed", error=str(failure))
            except OSError as write_error:
                failure.add_note(f"the status could not be written either: {write_error}")
            if failure is error:
                raise
            raise failure from error
        if reached == batch.steps_total:
            no_signal = None
            if world.main and config.train.on_no_signal != "off":
                rows = read_jsonl(run.metrics_path)
                no_signal = AlertMonitor(config.rollout.prompts, rows=rows).no_signal_summary()
            _close(run, world, run_parts.executed, "finished", no_signal=no_signal)
            reporter.show(f"finished: {run.path}")
            for line in outcome_lines(run, config.rollout.prompts) if world.main else ():
                reporter.show(line)
            if no_signal:
                reporter.log(f"WARNING: {no_signal}")  # the command prints it last
            return RunEnd(run, "finished", 0)
        _close(run, world, run_parts.executed, "interrupted")
        reporter.show(f"saved at step {reached}; {resume_hint}")
        return RunEnd(run, "interrupted", stop.exit_code)


def _announcement(run: RunDir, prepared: PreparedRun) -> str:
    config, batch = prepared.config, prepared.config.batch
    processes = f" in {batch.processes} processes" if batch.processes > 1 else ""
    rows = config.task.describe_data()
    return (
        f"run {run.path}{processes}: {config.method.name} on "
        f"{problems_name(config.task.name, config.task.data)} with {config.model.name}, seed "
        f"{config.run.seed}, {prepared.announcement()}" + (f"\n{rows}" if rows else "")
    )


def _rewind(run: RunDir, resumption: _Resumption, batch: BatchArithmetic, reporter: Reporter) -> None:
    """Move the records after the checkpoint aside, since these steps are repeated."""
    for note in resumption.notes:
        reporter.show(note)
    step = resumption.checkpoint.step if resumption.checkpoint else 0
    start = f"step {step}" if step else "the start (there is no checkpoint)"
    reporter.show(f"resuming {run.path} at {start} of {batch.steps_total}")
    write_seal(run.path / SEAL, resumption.seal)
    aside = rewind(run, step, batch.steps_per_rollout)
    if aside is not None:
        reporter.show(f"the records after step {step} are in {aside} until these steps are repeated")
    missing = truncate_timings(run.timings_path, step)
    if missing:
        reporter.show(f"warning: {run.timings_path} lacks the seconds of {missing} of {step} steps; continuing")
    reporter.set_rollout(step // batch.steps_per_rollout)


def _close(run: RunDir, world: World, executed: Counter[str], status: str, **fields: Any) -> None:
    if world.main:
        run.update_manifest(status=status, finished=now(), executed=executed, **fields)


def explain_error(error: Exception | SystemExit, run: RunDir, resume_hint: str) -> Exception:
    """Return ``error`` as a message for the user. Bugs are returned unchanged."""
    if isinstance(error, SystemExit):
        line = user_error_message(error) or f"{run.path}: {format_error(error)}"
        return RunError(f"{line} ended the training; {resume_hint}")
    if isinstance(error, SamplingMemoryError):
        return RunError(
            f"{run.path}: {error} To change settings, start a new run; if another program used the memory, "
            f"{resume_hint}"
        )
    if isinstance(error, RunError):
        return error
    if isinstance(error, UserError):
        return RunError("\n".join([*error.problems, resume_hint]))
    if is_out_of_memory(error):
        first_line = (str(error) or type(error).__name__).splitlines()[0][:200]
        return RunError(
            f"{run.path}: out of memory ({first_line}). Decrease update.micro_batch, rollout.max_new_tokens or "
            "rollout.prompts in a new run."
        )
    if isinstance(error, OSError):
        remedy = "Free disk space or check that the disk is writable; then " if error.errno in DISK_FULL else "Then "
        return RunError(f"{error.filename or run.path}: {error.strerror or error}. {remedy}{resume_hint}")
    return error
