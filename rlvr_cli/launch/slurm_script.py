"""The text of a SLURM job, or of an array of them: what it asks for, how it trains, and when it queues again."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlvr_cli.config.launch import SlurmConfig
from rlvr_cli.config.schema import Config

LOG = "slurm-%j.out"
ARRAY_LOG = "slurm-%A_%a.out"
# How long before the end a run that has not saved yet is queued again, to go on from its last checkpoint.
LAST_SECONDS = 15

_STOP = """\
# Asked to end, the job asks rlvr to save (SIGTERM); rlvr ends with 143 when it has, and the job queues again.
stop() {
    interrupted=1
    if [ -z "$asked" ]; then
        asked=1
        # A save that takes too long is given up: the run resumes from its last checkpoint.
        ( sleep @PATIENCE@; kill -0 $$ && requeue "not saved in time" ) &
        timers="$timers $!"
    fi
    [ -z "$child" ] || kill -TERM "$child" 2>/dev/null
}
requeue() {
    [ -z "$stopped" ] || [ ! -e "$stopped" ] || return
    # A job that is ending already was cancelled, or is queued again by Slurm itself.
    if [ "$(squeue --noheader --jobs "$job" --format %t)" = R ]; then
        echo "rlvr job $job: $1, queued again"
        scontrol requeue "$job"
    fi
}
"""

_STOP_OF_A_TRIAL = """\
stop() {
    interrupted=1 asked=1
    [ -z "$child" ] || kill -TERM "$child" 2>/dev/null
}
"""

_AWAIT = """\
child= asked= interrupted= timers= rc=1
await() {  # until process $1 has ended; its status in rc
    while :; do
        interrupted=
        wait "$1"; status=$?
        [ "$status" = 127 ] || rc=$status
        [ -n "$interrupted" ] || break
    done
}
trap stop TERM
trap '[ -z "$timers" ] || kill $timers' EXIT
"""

_ONE_NODE = """\
if [ -z "$asked" ]; then
    "$python" -m @WORK@ &
    child=$!
    await "$child"
else
    rc=143
fi
"""

_NODES = """\
# This machine is the first; a step of one task a machine runs on the others. They agree on when to stop.
export NNODES="$SLURM_NNODES" NODE_RANK=0 MASTER_ADDR MASTER_PORT
MASTER_ADDR=$(scontrol show node "$SLURMD_NODENAME" | sed -n 's/.*NodeAddr=\\([^ ]*\\).*/\\1/p')
MASTER_PORT=$("$python" -c 'from rlvr_cli.launch.command import free_port; print(free_port())')
if [ -z "$asked" ]; then
    "$python" -m @WORK@ &
    child=$!
    export run python
    srun @STEP@ bash -c 'NODE_RANK=$((SLURM_NODEID + 1)) exec "$python" -m @WORK@' &
    others=$!
    while kill -0 "$child" 2>/dev/null && kill -0 "$others" 2>/dev/null; do sleep 1 & wait $!; done
    # When one has ended the rest has a minute: a machine that hangs would hold the job.
    ( sleep 60; kill -TERM "$others"; kill -KILL "$child" ) 2>/dev/null &
    timers="$timers $!"
    await "$child"; first=$rc
    await "$others"
    [ "$first" = 0 ] || rc=$first
else
    rc=143
fi
"""

_END = """\
[ "$rc" = 143 ] && requeue "saved"
exit "$rc"
"""


def job_script(config: Config, run: Path, folder: Path, flags: Sequence[str] = ()) -> str:
    """The batch script that begins, or continues, the run at ``run``.

    Args:
        run: the run's folder; the job's output goes into it.
        folder: where the job works, as the place that relative paths of the configuration start from.
        flags: options of `rlvr train` next to --resume.
    """
    slurm = config.slurm
    return _script(
        slurm,
        _options(slurm, run.name, folder, _pattern(run, LOG)),
        [
            f"# Trains {run}. Written by `rlvr train --submit slurm`.",
            f"run={shlex.quote(str(run))}",
            "job=$SLURM_JOB_ID stopped=",
        ],
        [
            "# Started again, possibly on another machine: what ran before must have let go of the run.",
            '[ -z "$SLURM_RESTART_COUNT" ] || "$python" -m rlvr_cli.launch.slurm "$run"',
            "",
            _training(slurm, flags),
        ],
    )


def _training(slurm: SlurmConfig, flags: Sequence[str]) -> str:
    """Begin or continue `$run`, on one machine or on several."""
    training = _ONE_NODE if slurm.nodes == 1 else _NODES.replace("@STEP@", shlex.join(_step(slurm)))
    return training.replace("@WORK@", f'rlvr_cli train{"".join(f" {flag}" for flag in flags)} --resume "$run"')


def trial_script(slurm: SlurmConfig, run: Path, flags: Sequence[str] = ()) -> str:
    """Return what a task of an array runs to begin, or continue, the run at ``run`` on all of its machines.

    Its exit code is the training's; the task that runs it queues again, not this.
    """
    names = [f"run={shlex.quote(str(run))}", f"python={shlex.quote(sys.executable)}"]
    return "\n".join([*names, _STOP_OF_A_TRIAL + _AWAIT, _training(slurm, flags), 'exit "$rc"', ""])


@dataclass(frozen=True)
class Array:
    """An array of jobs: one task for each of ``trials``, at most ``limit`` of them at a time (None: all).

    Attributes:
        sweep: the sweep's folder, as its trials are to know it.
        state: where the tasks' output goes, and the file that keeps them from queueing again (:func:`stop_file`).
        after: the number of a job to wait for the end of.
    """

    slurm: SlurmConfig
    name: str
    sweep: Path
    state: Path
    trials: tuple[str, ...]
    limit: int | None = None
    after: str | None = None


def stop_file(state: Path, job: str) -> Path:
    """The file that says of the array ``job`` that it is to save and not to queue again."""
    return state / f"slurm-{job}.stop"


def array_script(array: Array, folder: Path, flags: Sequence[str] = ()) -> str:
    """The batch script whose tasks carry out the trials of a sweep, each one, with their retries and evaluations.

    Args:
        folder: where the tasks work, as in :func:`job_script`.
        flags: options that each command of a trial is given.
    """
    slurm = array.slurm
    limit = f"%{array.limit}" if array.limit else ""
    dependency = ",".join(filter(None, [str(slurm.extra.get("dependency", "")), _after(array)]))
    tasks = {"array": f"0-{len(array.trials) - 1}{limit}", **({"dependency": dependency} if dependency else {})}
    work = " ".join(["rlvr_cli.sweeps.slurm_task", '"$sweep" "$trial"', *flags])
    return _script(
        slurm,
        _options(slurm, array.name, folder, _pattern(array.state, ARRAY_LOG), tasks),
        [
            f"# Carries out trials of {array.sweep}, one a task. Written by `rlvr sweep --submit slurm`.",
            f"sweep={shlex.quote(str(array.sweep))}",
            "trials=(",
            *(f"    {shlex.quote(trial)}" for trial in array.trials),
            ")",
            "trial=${trials[$SLURM_ARRAY_TASK_ID]}",
            "# Not SLURM_JOB_ID: one task of an array has the number that stands for all of them.",
            "job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID",
            f"stopped={shlex.quote(f'{array.state}/')}{stop_file(Path(), '$SLURM_ARRAY_JOB_ID')}",
        ],
        [_ONE_NODE.replace("@WORK@", work)],
    )


def _after(array: Array) -> str | None:
    return f"afterany:{array.after}" if array.after else None


def _pattern(folder: Path, file: str) -> str:
    """Return the name of a file of ``folder`` for sbatch, with percent signs of the folder escaped."""
    return str(folder).replace("%", "%%") + f"/{file}"


def _script(slurm: SlurmConfig, options: Iterable[str], head: Sequence[str], work: Sequence[str]) -> str:
    """``head``: what the job is about; ``work``: what it does once the user's own preparations are done."""
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH --{option}" for option in options),
        "",
        *head,
        f"python={shlex.quote(sys.executable)}",
        "# Of a launcher around the shell that submitted it; what is right for this job is set below.",
        "unset NNODES NODE_RANK MASTER_ADDR MASTER_PORT WORLD_SIZE RANK LOCAL_RANK LOCAL_WORLD_SIZE",
        "",
        _STOP.replace("@PATIENCE@", str(max(5, slurm.signal_before - LAST_SECONDS))) + _AWAIT,
        *(["# slurm.setup", *slurm.setup, ""] if slurm.setup else []),
        *work,
        _END.rstrip(),
        "",
    ]
    return "\n".join(lines)


def _options(
    slurm: SlurmConfig, name: str, folder: Path, output: str, tasks: Mapping[str, str] | None = None
) -> Iterator[str]:
    chosen: dict[str, object] = {
        "job-name": name,
        "chdir": folder,
        "output": output,
        "open-mode": "append",
        "requeue": True,
        "signal": f"B:TERM@{slurm.signal_before}",
        "nodes": slurm.nodes,
        "ntasks-per-node": 1,
        "partition": slurm.partition,
        "account": slurm.account,
        "qos": slurm.qos,
        "time": slurm.time,
        "gpus-per-node": slurm.gpus_per_node or None,
        "cpus-per-task": slurm.cpus_per_task,
        "mem": slurm.memory,
        **slurm.extra,
        **(tasks or {}),
    }
    for option, value in chosen.items():
        if value is True:
            yield option
        elif value is not None and value is not False:
            yield f"{option}={shlex.quote(str(value))}"


def _step(slurm: SlurmConfig) -> list[str]:
    """The options of the step on the machines next to the first. What sbatch was told of cores does not reach it."""
    others = slurm.nodes - 1
    return [
        *("--relative=1", f"--nodes={others}", f"--ntasks={others}", "--ntasks-per-node=1"),
        *([f"--cpus-per-task={slurm.cpus_per_task}"] if slurm.cpus_per_task else []),
        *([f"--gpus-per-node={slurm.gpus_per_node}"] if slurm.gpus_per_node else []),
        *("--kill-on-bad-exit=0", "--label"),
    ]
