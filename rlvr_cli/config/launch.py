"""The sections `launch` and `slurm`: processes, sharding, and job resources."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from rlvr_cli.core.section import FromList, Section, Text

_TIME = re.compile(
    r"(?:(?P<days>\d+)-(?P<day_hours>\d+)(?::(?P<day_minutes>\d+)(?::(?P<day_seconds>\d+))?)?"
    r"|(?:(?P<hours>\d+):(?=\d+:\d+))?(?P<minutes>\d+)(?::(?P<seconds>\d+))?)"
)
_OPTION = re.compile(r"[a-z][a-z0-9-]*")
_NO_LIMIT = ("UNLIMITED", "INFINITE")

# Options of sbatch that a key of this section or the run sets.
OPTIONS_OF_KEYS = {
    "partition": "slurm.partition",
    "account": "slurm.account",
    "qos": "slurm.qos",
    "time": "slurm.time",
    "nodes": "slurm.nodes",
    "gpus-per-node": "slurm.gpus_per_node",
    "cpus-per-task": "slurm.cpus_per_task",
    "mem": "slurm.memory",
    "signal": "slurm.signal_before",
}
OPTIONS_OF_THE_RUN = (
    *("array", "chdir", "error", "export", "gpus", "gpus-per-task", "job-name", "no-requeue", "ntasks"),
    *("ntasks-per-gpu", "ntasks-per-node", "open-mode", "output", "parsable", "requeue", "test-only", "wait", "wrap"),
)


def parse_time_limit(time: str) -> int | None:
    """Convert a time limit of sbatch (`man sbatch`, --time) to seconds; None = no limit. Raises ValueError."""
    if time.upper() in _NO_LIMIT:
        return None
    match = _TIME.fullmatch(time)
    if match is None:
        raise ValueError(
            f'must be a time limit as minutes, "M:S", "H:M:S", "D-H", "D-H:M", "D-H:M:S" or UNLIMITED; got {time!r}'
        )
    units = {name: int(number or 0) for name, number in match.groupdict().items()}
    return (
        units["days"] * 86400
        + (units["day_hours"] + units["hours"]) * 3600
        + (units["day_minutes"] + units["minutes"]) * 60
        + (units["day_seconds"] + units["seconds"])
    )


def _check_time(value: str) -> str:
    if parse_time_limit(value) == 0:
        raise ValueError(f"must be above zero; got {value!r}")
    return value


def _check_options(options: dict[str, Any]) -> dict[str, Any]:
    problems = []
    for name, value in options.items():
        if name in OPTIONS_OF_KEYS:
            problems.append(f"{name} is the key {OPTIONS_OF_KEYS[name]}. Set that")
        elif name in OPTIONS_OF_THE_RUN:
            problems.append(f"{name} is set by the run. Remove it")
        elif not _OPTION.fullmatch(name):
            problems.append(f"{name!r} must be a long option of sbatch without dashes, as gres or mail-type")
        elif isinstance(value, str) and not (value and value.isprintable()):
            problems.append(f"{name} must be text, not empty, on one line")
    if problems:
        raise ValueError("; ".join(problems))
    return options


def _as_text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class LaunchConfig(Section):
    """Training processes and sharding."""

    processes: Annotated[int, Field(ge=1, le=65536)] = Field(
        1,
        description="Training processes over all nodes, one per GPU. They share each rollout batch and each "
        "optimizer step.",
    )
    deepspeed: Text | None = Field(
        None,
        description="Sharding of the model over the GPUs by DeepSpeed ZeRO: zero2, zero3, zero3-offload, or the path "
        "of a DeepSpeed configuration (JSON); null = none, every process holds the whole model.",
    )


class SlurmConfig(Section):
    """Resources of a job on a Slurm cluster (`rlvr train --submit slurm`); without effect elsewhere."""

    partition: Text | None = Field(None, description="Partition; null = the cluster's default.")
    account: Text | None = Field(None, description="Account to charge; null = the user's default.")
    qos: Text | None = Field(None, description="Quality of service (QOS); null = the cluster's default.")
    time: Annotated[str, BeforeValidator(_as_text), AfterValidator(_check_time)] | None = Field(
        None,
        description='Time limit of a job, in minutes or as "H:M:S" or "D-H:M:S"; before it expires, the job saves a '
        "checkpoint and is requeued. null = the partition's limit.",
    )
    nodes: Annotated[int, Field(ge=1, le=10_000)] = Field(
        1, description="Number of nodes; launch.processes is divided equally among them."
    )
    gpus_per_node: Annotated[int, Field(ge=0, le=64)] | None = Field(
        None, description="GPUs per node, one per process; null = none requested."
    )
    cpus_per_task: Annotated[int, Field(ge=1, le=4096)] | None = Field(
        None, description="CPU cores per node, shared by its processes; null = the cluster's default."
    )
    memory: Annotated[Text, BeforeValidator(_as_text)] | None = Field(
        None, description="Memory per node, in megabytes or with a unit, as 64G; null = the cluster's default."
    )
    signal_before: Annotated[int, Field(ge=10, le=65535)] = Field(
        300,
        description="Seconds before the time limit at which Slurm signals the job to save a checkpoint; must exceed "
        "the time of an optimizer step and a save.",
    )
    setup: Annotated[tuple[Text, ...], FromList] = Field(
        (), description="Bash commands that the job runs before the training, as `module load cuda`."
    )
    extra: Annotated[dict[str, str | int | bool], AfterValidator(_check_options)] = Field(
        {},
        description="Further long options of sbatch without their dashes, as {constraint: a100}; true = an option "
        "without a value.",
    )
