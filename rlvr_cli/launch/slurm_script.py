"""The text of a SLURM job: what it asks for, how it trains, and when it queues again."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rlvr_cli.config.schema import Config
from rlvr_cli.config.slurm_keys import SlurmConfig

LOG = "slurm-%j.out"
# How long before the end a run that has not saved yet is queued again, to go on from its last checkpoint.
LAST_SECONDS = 15

_BODY = """\
# Asked to end, the job asks rlvr to save (SIGTERM); rlvr ends with 143 when it has, and the job queues again.
child= asked= interrupted= timers= rc=1
stop() {
    interrupted=1
    if [ -z "$asked" ]; then
        asked=1
        # A save that takes too long is given up: the run goes on from its last checkpoint.
        ( sleep @PATIENCE@; kill -0 $$ && requeue "not saved in time" ) &
        timers="$timers $!"
    fi
    [ -z "$child" ] || kill -TERM "$child" 2>/dev/null
}
requeue() {
    # A job that is ending already was cancelled, or is queued again by Slurm itself.
    if [ "$(squeue --noheader --jobs "$SLURM_JOB_ID" --format %t)" = R ]; then
        echo "rlvr job $SLURM_JOB_ID: $1, queued again"
        scontrol requeue "$SLURM_JOB_ID"
    fi
}
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
    "$python" -m rlvr_cli train@FLAGS@ --resume "$run" &
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
    "$python" -m rlvr_cli train@FLAGS@ --resume "$run" &
    child=$!
    export run python
    srun @STEP@ bash -c 'NODE_RANK=$((SLURM_NODEID + 1)) exec "$python" -m rlvr_cli train@FLAGS@ --resume "$run"' &
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
        flags: options of `rlvr train` beside --resume.
    """
    slurm = config.slurm
    training = _ONE_NODE if slurm.nodes == 1 else _NODES.replace("@STEP@", shlex.join(_step(slurm)))
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH --{option}" for option in _options(slurm, run, folder)),
        "",
        f"# Trains {run}. Written by `rlvr train --submit slurm`.",
        f"run={shlex.quote(str(run))}",
        f"python={shlex.quote(sys.executable)}",
        "# Of a launcher around the shell that submitted it; what is right for this job is set below.",
        "unset NNODES NODE_RANK MASTER_ADDR MASTER_PORT WORLD_SIZE RANK LOCAL_RANK LOCAL_WORLD_SIZE",
        "",
        _BODY.replace("@PATIENCE@", str(max(5, slurm.signal_before - LAST_SECONDS))),
        *(["# slurm.setup", *slurm.setup, ""] if slurm.setup else []),
        "# Started again, possibly on another machine: what ran before must have let go of the run.",
        '[ -z "$SLURM_RESTART_COUNT" ] || "$python" -m rlvr_cli.launch.slurm "$run"',
        "",
        training.replace("@FLAGS@", "".join(f" {flag}" for flag in flags)),
        _END.rstrip(),
        "",
    ]
    return "\n".join(lines)


def _options(slurm: SlurmConfig, run: Path, folder: Path) -> Iterator[str]:
    chosen: Iterable[tuple[str, object]] = (
        ("job-name", run.name),
        ("chdir", folder),
        ("output", str(run).replace("%", "%%") + f"/{LOG}"),
        ("open-mode", "append"),
        ("requeue", True),
        ("signal", f"B:TERM@{slurm.signal_before}"),
        ("nodes", slurm.nodes),
        ("ntasks-per-node", 1),
        ("partition", slurm.partition),
        ("account", slurm.account),
        ("qos", slurm.qos),
        ("time", slurm.time),
        ("gpus-per-node", slurm.gpus_per_node or None),
        ("cpus-per-task", slurm.cpus_per_task),
        ("mem", slurm.memory),
        *slurm.extra.items(),
    )
    for name, value in chosen:
        if value is True:
            yield name
        elif value is not None and value is not False:
            yield f"{name}={shlex.quote(str(value))}"


def _step(slurm: SlurmConfig) -> list[str]:
    """The options of the step on the machines beside the first. What sbatch was told of cores does not reach it."""
    others = slurm.nodes - 1
    return [
        *("--relative=1", f"--nodes={others}", f"--ntasks={others}", "--ntasks-per-node=1"),
        *([f"--cpus-per-task={slurm.cpus_per_task}"] if slurm.cpus_per_task else []),
        *([f"--gpus-per-node={slurm.gpus_per_node}"] if slurm.gpus_per_node else []),
        *("--kill-on-bad-exit=0", "--label"),
    ]
