"""`rlvr train --submit slurm`: makes the run, checks what is asked for, and hands the job to SLURM through submitit."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rlvr_cli.config.launch import seconds_of
from rlvr_cli.config.load import LoadedConfig, dump_yaml
from rlvr_cli.config.schema import Config
from rlvr_cli.config.user_files import user_files
from rlvr_cli.core.errors import ConfigError, UserError
from rlvr_cli.core.files import is_held, write_text
from rlvr_cli.core.hashes import text_digest
from rlvr_cli.core.section import Contradiction
from rlvr_cli.core.text import without_secrets
from rlvr_cli.core.user_code import keep_copies
from rlvr_cli.launch.deepspeed_config import check_deepspeed
from rlvr_cli.launch.slurm_script import job_script
from rlvr_cli.runs.folder import STARTED_IN, SUBMITTED, RunDir, check_free, create_run, now, unique_name
from rlvr_cli.tasks.sets import problems_name

INSTALL = 'pip install "rlvr[slurm]"'
FOLDER = "slurm"
_SCRIPT = "_submission.sh"
# SLURM may send its signal so much earlier than it was told to (`man sbatch`, --signal).
_EARLY_SECONDS = 60
# How long a file system may take to notice that the machine that held a run is gone.
LOCK_SECONDS = 180.0


def check_slurm(loaded: LoadedConfig, more: Sequence[Contradiction] = ()) -> None:
    """Raise ConfigError, with the places that set them, where the resources cannot be or do not fit the training.

    Args:
        more: problems next to :func:`slurm_problems`.
    """
    problems = [
        (loaded.merged.places([tuple(key.split(".")) for key in problem.keys]), problem.message)
        for problem in (*slurm_problems(loaded.config), *more)
    ]
    if problems:
        raise ConfigError(problems)


def slurm_problems(config: Config) -> Iterator[Contradiction]:
    """Return what cannot be, or does not fit the training, in the section `slurm`."""
    slurm, processes = config.slurm, config.launch.processes
    share, rest = divmod(processes, slurm.nodes)
    if rest or not share:
        valid = [count for count in (share * slurm.nodes, (share + 1) * slurm.nodes) if count]
        yield Contradiction(
            ("slurm.nodes", "launch.processes"),
            f"slurm.nodes={slurm.nodes} cannot share launch.processes={processes} (over all machines) equally. "
            f"Nearest valid: processes {' or '.join(map(str, valid))}",
        )
    elif slurm.gpus_per_node and share > slurm.gpus_per_node:
        yield Contradiction(
            ("slurm.gpus_per_node", "slurm.nodes", "launch.processes"),
            f"slurm.gpus_per_node={slurm.gpus_per_node} for {share} processes on each machine (launch.processes="
            f"{processes} / slurm.nodes={slurm.nodes}): one process a GPU. Set slurm.gpus_per_node={share}, or "
            f"launch.processes={slurm.gpus_per_node * slurm.nodes}",
        )
    elif slurm.gpus_per_node and share < slurm.gpus_per_node:
        yield Contradiction(
            ("slurm.gpus_per_node", "slurm.nodes", "launch.processes"),
            f"slurm.gpus_per_node={slurm.gpus_per_node} for {share} process{'' if share == 1 else 'es'} on each "
            f"machine (launch.processes={processes} / slurm.nodes={slurm.nodes}): a process uses one GPU, the others "
            f"would be idle. Set launch.processes={slurm.gpus_per_node * slurm.nodes}, or "
            f"slurm.gpus_per_node={share}",
        )
    limit = None if slurm.time is None else seconds_of(slurm.time)
    if limit is not None and limit <= slurm.signal_before + _EARLY_SECONDS:
        yield Contradiction(
            ("slurm.time", "slurm.signal_before"),
            f"slurm.time={slurm.time} is {limit} s, and slurm.signal_before={slurm.signal_before} s before its end "
            f"(SLURM: up to {_EARLY_SECONDS} s earlier still) the job is asked to stop: nothing is left to train in. "
            f"Set a time above {slurm.signal_before + _EARLY_SECONDS} s, or a smaller signal_before",
        )


def missing() -> list[str]:
    """Return what this machine lacks to submit a job."""
    from importlib.util import find_spec

    lacking = []
    if find_spec("submitit") is None:
        lacking.append(f"the package submitit is not installed: {INSTALL}")
    tools = [name for name in ("sbatch", "srun", "scontrol", "squeue") if shutil.which(name) is None]
    if tools:
        lacking.append(f"no {', '.join(tools)} on the PATH: submit from a machine of the cluster (its login node)")
    return lacking


def planned(config: Config) -> Config:
    """The configuration with the name that its run will have: a job that queues again must find the same run."""
    if config.run.name:
        return config
    from rlvr_cli.launch.checks import default_name

    name = unique_name(Path(config.run.dir), default_name(config))
    return config.model_copy(update={"run": config.run.model_copy(update={"name": name})})


def script(config: Config, run: RunDir | None = None, flags: Sequence[str] = ()) -> str:
    """The job that :func:`submit` (or, for a ``run`` that exists, :func:`submit_again`) would hand to SLURM.

    Args:
        config: with a run's name, as of :func:`planned`.
        flags: options of `rlvr train` that are no part of the configuration and that the job repeats.
    """
    path = run.path if run else Path(config.run.dir) / str(config.run.name)
    return job_script(config, path.absolute(), Path.cwd(), flags)


def submit(config: Config, *, overwrite: bool, flags: Sequence[str] = ()) -> tuple[RunDir, str]:
    """Make the run and queue its job: the run and the job's number.

    Raises UserError where the run's place is taken, something is missing, or SLURM refuses; the run is not made then,
    and one that it would have replaced stays.
    """
    if lacking := missing():
        raise UserError(lacking)
    folder = RunDir(Path(config.run.dir) / str(config.run.name))
    check_free(folder, overwrite=overwrite)
    with _set_aside(folder):
        command = ["rlvr", *sys.argv[1:]]
        run = create_run(
            Path(config.run.dir),
            str(config.run.name),
            overwrite=False,
            fill=lambda aside: write_beginning(config, aside, command),
        )
        try:
            return run, _queue(script(config, run, flags), run)
        except BaseException:
            shutil.rmtree(run.path)
            raise


@contextlib.contextmanager
def _set_aside(run: RunDir) -> Iterator[None]:
    """Inside, what is at ``run``'s place is elsewhere; it is deleted when all went well, and else put back."""
    if not run.path.exists():
        yield
        return
    _check_unclaimed(run)
    aside = run.path.with_name(f".{run.name}.replaced-{os.getpid()}")
    with run.lock():
        run.path.rename(aside)
    try:
        yield
    except BaseException:
        aside.rename(run.path)
        raise
    shutil.rmtree(aside)


def write_beginning(config: Config, run: RunDir, command: Sequence[str]) -> None:
    """Write what a run has before its first start, which `rlvr train --resume` then begins; ``command`` made it."""
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
        **keep_copies(user_files(config), run.path),
        command=without_secrets(shlex.join(command)),
        **{STARTED_IN: str(Path.cwd())},
    )


def submit_again(run: RunDir, config: Config, flags: Sequence[str] = ()) -> tuple[RunDir, str]:
    """Queue a job that continues ``run``: the run and the job's number.

    Raises UserError where the run cannot be resumed, is running or waits in the queue, or SLURM refuses.
    """
    from rlvr_cli.launch.checks import check_resumable

    if lacking := missing():
        raise UserError(lacking)
    check_resumable(run, finished=config.train.rollouts > (run.read_manifest().get("rollouts_total") or 0))
    _check_unclaimed(run)
    return run, _queue(script(config, run, flags), run)


def _check_unclaimed(run: RunDir) -> None:
    """Raise UserError where a process has ``run``, or a job that waits or runs."""
    job = job_of(run.path)
    if job is not None and _in_queue(job):
        holder = f"job {job} (cancel it with: scancel {job})"
    elif is_held(run.path):
        holder = "another process"
    else:
        return
    raise UserError(f"{run.path}: is {holder}'s already; a second job would wait for the first or fail.")


def job_of(run: Path) -> str | None:
    """The number of the job that was submitted last for the run at ``run``."""
    jobs = [path.name.removesuffix(_SCRIPT) for path in (run / FOLDER).glob(f"[0-9]*{_SCRIPT}")]
    return max(jobs, key=int, default=None)


def _in_queue(job: str) -> bool:
    """Return whether SLURM has ``job``, waiting or running; False also where it cannot be asked."""
    command = ["squeue", "--noheader", f"--jobs={job}", "--format=%t"]
    if shutil.which("squeue") is None:
        return False
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    return answer.returncode == 0 and bool(answer.stdout.strip())


def _queue(text: str, run: RunDir) -> str:
    """Hand the script to sbatch; it stays in the run's folder under the job's number, which is returned."""
    job = hand_over(text)
    copy = run.path / FOLDER / f"{job}{_SCRIPT}"
    copy.parent.mkdir(exist_ok=True)
    write_text(copy, text)
    return job


def hand_over(text: str) -> str:
    """Queue the script ``text``: the job's number. Raises UserError, with sbatch's own words, where SLURM refuses."""
    import submitit

    class Executor(submitit.SlurmExecutor):
        """submitit's way to submit, with a script of ours: its own would run a pickle, and miss SIGTERM."""

        def _make_submission_file_text(self, command: str, uid: str) -> str:
            return text

    # submitit prints sbatch's message before it raises; the error repeats it. It replaces %j in names of folders.
    with contextlib.redirect_stderr(io.StringIO()), _outside_of_jobs(), tempfile.TemporaryDirectory() as aside:
        try:
            return str(Executor(aside)._submit_command("").job_id)
        except (submitit.core.utils.FailedJobError, submitit.core.utils.FailedSubmissionError) as error:
            lines = str(error).strip().splitlines()
    raise UserError([f"SLURM refused the job: {line}" for line in lines or ["sbatch printed no reason"]])


@contextlib.contextmanager
def _outside_of_jobs() -> Iterator[None]:
    """Inside, the environment says nothing of a job that this process itself may be part of.

    It would be handed on, and what the new job does not set again would contradict it (SLURM_MEM_PER_CPU, ...).
    """
    inside = "SLURM_JOB_ID" in os.environ
    of_this_job = [name for name in os.environ if inside and name.startswith("SLURM_") and name != "SLURM_CONF"]
    hidden = {name: os.environ.pop(name) for name in of_this_job}
    try:
        yield
    finally:
        os.environ.update(hidden)


def await_release(run: Path, seconds: float = LOCK_SECONDS) -> bool:
    """Wait until no process holds the run at ``run``: whether that came about within ``seconds``."""
    end = time.monotonic() + seconds
    while is_held(run):
        if time.monotonic() > end:
            return False
        time.sleep(1.0)
    return True


def main(arguments: list[str]) -> None:
    """Wait in a restarted job until the run is released: `python -m rlvr_cli.launch.slurm RUN`."""
    run = Path(arguments[0])
    if is_held(run):
        print(f"{run}: still held by what ran before; waiting for up to {LOCK_SECONDS:.0f} s", flush=True)
        await_release(run)


def submitted(
    loaded: LoadedConfig, run: RunDir | None, *, overwrite: bool, print_only: bool, flags: Sequence[str] = ()
) -> dict[str, Any] | str:
    """Return what the command line does: the job's script where it is only asked for, else the run and its job.

    Args:
        run: the run to continue; None for a new one.
    """
    check_slurm(loaded)
    check_deepspeed(loaded.config, here=not print_only)
    config = loaded.config if run else planned(loaded.config)
    if print_only:
        return script(config, run, flags)
    job_run, job = submit_again(run, config, flags) if run else submit(config, overwrite=overwrite, flags=flags)
    return {"run": str(job_run.path), "job": job, "log": str(job_run.path / f"slurm-{job}.out")}


if __name__ == "__main__":
    main(sys.argv[1:])
