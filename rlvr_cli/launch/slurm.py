"""`rlvr train --submit slurm`: check the resources, create the run, and queue its job through submitit."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rlvr_cli.config.launch import SlurmConfig, parse_time_limit
from rlvr_cli.config.load import LoadedConfig, dump_yaml
from rlvr_cli.config.schema import Config
from rlvr_cli.config.user_files import user_files
from rlvr_cli.core.errors import ConfigError, UserError
from rlvr_cli.core.files import clean_up, is_held, temporary_path, write_text
from rlvr_cli.core.hashes import text_digest
from rlvr_cli.core.section import Contradiction
from rlvr_cli.core.text import redact_secrets
from rlvr_cli.core.user_code import save_copies
from rlvr_cli.launch.checks import check_resumable, default_name
from rlvr_cli.launch.deepspeed_config import check_deepspeed
from rlvr_cli.launch.slurm_job import LAST_SECONDS, Job
from rlvr_cli.launch.slurm_state import FOLDER, find_last_job, has_ended, job_states
from rlvr_cli.runs.folder import STARTED_IN, SUBMITTED, RunDir, check_free, create_run, now, unique_name
from rlvr_cli.tasks.sets import problems_name

# Slurm may send its signal up to this much earlier (`man sbatch`, --signal).
_EARLY_SECONDS = 60


def check_slurm(loaded: LoadedConfig) -> None:
    """Raise ConfigError, with the origins of the values, for resources that do not fit the training."""
    problems = [
        (loaded.merged.format_origins([tuple(key.split(".")) for key in problem.keys]), problem.message)
        for problem in slurm_problems(loaded.config)
    ]
    if problems:
        raise ConfigError(problems)


def slurm_problems(config: Config) -> Iterator[Contradiction]:
    """Yield the conflicts within the section `slurm`, and with the training."""
    slurm, processes = config.slurm, config.launch.processes
    share, rest = divmod(processes, slurm.nodes)
    if rest or not share:
        valid = [count for count in (share * slurm.nodes, (share + 1) * slurm.nodes) if count]
        yield Contradiction(
            ("slurm.nodes", "launch.processes"),
            f"launch.processes={processes} (over all machines) must be a multiple of slurm.nodes={slurm.nodes}. "
            f"Nearest valid: processes {' or '.join(map(str, valid))}",
        )
    elif slurm.gpus_per_node and share != slurm.gpus_per_node:
        yield Contradiction(
            ("slurm.gpus_per_node", "slurm.nodes", "launch.processes"),
            f"slurm.gpus_per_node={slurm.gpus_per_node} for {share} process{'' if share == 1 else 'es'} on each "
            f"machine (launch.processes={processes} / slurm.nodes={slurm.nodes}): a process uses one GPU. Set "
            f"slurm.gpus_per_node={share}, or launch.processes={slurm.gpus_per_node * slurm.nodes}",
        )
    limit = None if slurm.time is None else parse_time_limit(slurm.time)
    if limit is not None and limit <= slurm.signal_before + _EARLY_SECONDS:
        yield Contradiction(
            ("slurm.time", "slurm.signal_before"),
            f"slurm.time must be above {slurm.signal_before + _EARLY_SECONDS} s: the job must stop "
            f"slurm.signal_before={slurm.signal_before} s before its end, or up to {_EARLY_SECONDS} s earlier; got "
            f"{slurm.time} ({limit} s). Set a longer time, or a smaller signal_before",
        )


def check_tools() -> None:
    tools = [name for name in ("sbatch", "srun", "scontrol", "squeue") if shutil.which(name) is None]
    if tools:
        raise UserError(f"no {', '.join(tools)} on the PATH. Submit from a login node of the cluster.")


def submitit_parameters(slurm: SlurmConfig, name: str) -> dict[str, Any]:
    # Since Slurm 22.05 srun does not inherit the number of cores from sbatch.
    step = [] if slurm.cpus_per_task is None else [f"--cpus-per-task={slurm.cpus_per_task}"]
    if slurm.nodes > 1:
        # Let the first machine finish its save after another ended, with a timeout for hanging machines.
        step += ["--kill-on-bad-exit=0", f"--wait={slurm.signal_before}"]
    return {
        "partition": slurm.partition,
        "account": slurm.account,
        "qos": slurm.qos,
        "time": slurm.time,
        "nodes": slurm.nodes,
        "cpus_per_task": slurm.cpus_per_task,
        "job_name": name,
        "ntasks_per_node": 1,
        "gpus_per_node": slurm.gpus_per_node or None,
        "mem": slurm.memory,
        "signal_delay_s": slurm.signal_before,
        "setup": list(slurm.setup) or None,
        "srun_args": step,
        "stderr_to_stdout": True,
        "wckey": None,
        "additional_parameters": {"requeue": True, **{key: on for key, on in slurm.extra.items() if on is not False}},
    }


def render_script(parameters: dict[str, Any], folder: Path, tasks: int = 1) -> str:
    from submitit.slurm.slurm import _make_sbatch_string

    command = shlex.join([sys.executable, "-u", "-m", "submitit.core._submit", str(folder)])
    return _make_sbatch_string(command, folder, **parameters, map_count=tasks if tasks > 1 else None)


def queue_jobs(jobs: Sequence[Job], parameters: dict[str, Any], folder: Path) -> list[str]:
    """Queue ``jobs`` (several as an array) and return their ids. Raises UserError with sbatch's message."""
    import submitit
    from submitit.core.utils import FailedJobError, FailedSubmissionError, environment_variables

    if "%" in str(folder):
        raise UserError(f"{folder}: must not contain %, which Slurm replaces. Set another run.dir.")
    # A job submitted from a job would inherit options (SLURM_MEM_PER_CPU, ...).
    clean_environment = submitit.helpers.clean_env() if "SLURM_JOB_ID" in os.environ else contextlib.nullcontext()
    cluster = {name: os.environ[name] for name in ("SLURM_CONF",) if name in os.environ}
    # submitit prints sbatch's message before it raises; the error repeats it.
    with contextlib.redirect_stderr(io.StringIO()), clean_environment, environment_variables(**cluster):
        try:
            executor = submitit.SlurmExecutor(folder)
            executor.update_parameters(**parameters)
            return [job.job_id for job in executor.submit_array(jobs)]
        except (FailedJobError, FailedSubmissionError) as error:
            lines = str(error).strip().splitlines()
    raise UserError([f"Slurm refused the job: {line}" for line in lines or ["sbatch printed no reason"]])


def save_seconds(slurm: SlurmConfig) -> float:
    return max(5.0, slurm.signal_before - LAST_SECONDS)


def render_job(loaded: LoadedConfig, run: RunDir | None, flags: Sequence[str]) -> str:
    check_slurm(loaded)
    check_deepspeed(loaded.config, installed=False)
    run = run or _new_run(loaded.config)
    text = render_script(submitit_parameters(loaded.config.slurm, run.name), run.path.absolute() / FOLDER)
    return f"{text}\n# The job runs: {shlex.join(_command(run, flags))}\n"


def submit(loaded: LoadedConfig, run: RunDir | None, flags: Sequence[str], *, overwrite: bool) -> tuple[RunDir, str]:
    """Create the run, or continue ``run``, and queue its job; return the run and the job's id.

    ``flags``: further options for the job's command. Raises UserError if the run exists, cannot be resumed or is
    queued, a tool is missing, or Slurm refuses; then no run is created or replaced.
    """
    check_slurm(loaded)
    check_deepspeed(loaded.config)
    check_tools()
    config = loaded.config
    if run is not None:
        check_resumable(run, finished=config.train.rollouts > (run.read_manifest().get("rollouts_total") or 0))
        _check_unclaimed(run)
        return run, _queue(config, run, flags)
    run = _new_run(config)
    # A requeued job must find the same run.
    config = config.model_copy(update={"run": config.run.model_copy(update={"name": run.name})})
    check_free(run, overwrite=overwrite)
    with _set_aside(run):
        fill = partial(write_initial_files, config, command=["rlvr", *sys.argv[1:]])
        create_run(run.path.parent, run.name, overwrite=False, fill=fill)
        try:
            return run, _queue(config, run, flags)
        except BaseException:
            shutil.rmtree(run.path)
            raise


def _new_run(config: Config) -> RunDir:
    root = Path(config.run.dir)
    return RunDir(root / (config.run.name or unique_name(root, default_name(config))))


def _command(run: RunDir, flags: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "rlvr_cli", "train", *flags, "--resume", str(run.path.absolute())]


def _queue(config: Config, run: RunDir, flags: Sequence[str]) -> str:
    job = Job(tuple(_command(run, flags)), save_seconds(config.slurm), run.path.absolute())
    return queue_jobs([job], submitit_parameters(config.slurm, run.name), run.path.absolute() / FOLDER)[0]


@contextlib.contextmanager
def _set_aside(run: RunDir) -> Iterator[None]:
    """Move an existing ``run`` aside; delete it on success (or next time, if killed), restore it on failure."""
    clean_up(run.path)
    if not run.path.exists():
        yield
        return
    _check_unclaimed(run)
    aside = temporary_path(run.path, "replaced")
    with run.lock():
        run.path.rename(aside)
    try:
        yield
    except BaseException:
        aside.rename(run.path)
        raise
    shutil.rmtree(aside)


def _check_unclaimed(run: RunDir) -> None:
    """Raise UserError if a process holds ``run``, or its job is queued or running."""
    job = find_last_job(run.path)
    state = job_states({job: run.name}).get(job) if job else None
    if state is not None and not has_ended(state):
        holder = f"job {job} (cancel it with: scancel {job})"
    elif is_held(run.path):
        holder = "another process"
    else:
        return
    raise UserError(f"{run.path}: is already used by {holder}; a second job would wait or fail.")


def write_initial_files(config: Config, run: RunDir, command: Sequence[str]) -> None:
    """Write the files of a submitted run, which `rlvr train --resume` starts; ``command``: the one to record."""
    text = dump_yaml(config)
    write_text(run.config_path, text)
    run.update_manifest(
        name=config.run.name,
        status=SUBMITTED,
        created=now(),
        finished=None,
        method=config.method.name,
        task=problems_name(config.task.name, config.task.data),
        model=config.model.name,
        seed=config.run.seed,
        step=0,
        rollout=0,
        steps_total=config.batch.steps_total,
        rollouts_total=config.train.rollouts,
        processes=config.launch.processes,
        config_sha256=text_digest(text),
        **save_copies(user_files(config), run.path),
        command=redact_secrets(shlex.join(command)),
        **{STARTED_IN: str(Path.cwd())},
    )
