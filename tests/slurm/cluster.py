"""A private Slurm: slurmctld and slurmd of this machine on the loopback, without systemd, cgroups or munge."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel")
_CONFIGURATION = """\
ClusterName=rlvrtest
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/controller.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
MinJobAge=600
KillWait=60
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=5,sched_min_interval=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
{nodes}
PartitionName=low  Nodes={names} Default=YES MaxTime=60 PriorityTier=1  PreemptMode=REQUEUE GraceTime=60 State=UP
PartitionName=high Nodes={names} MaxTime=60 PriorityTier=10 PreemptMode=OFF State=UP
"""


def missing() -> list[str]:
    """The programs that are not installed; daemons are often outside of a user's PATH."""
    return [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


class Cluster:
    """Two nodes of two CPUs each, both this machine. Use as a context manager."""

    NODES = ("n1", "n2")

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._conf = str(folder / "slurm.conf")
        self.environment = {**os.environ, "SLURM_CONF": self._conf, "PATH": _path()}
        self._hastened: set[tuple[str, str]] = set()

    def __enter__(self) -> Cluster:
        ports = _free_ports(1 + len(self.NODES))
        host = socket.gethostname().split(".")[0]
        nodes = "\n".join(
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory=1024"
            for name, port in zip(self.NODES, ports[1:], strict=True)
        )
        for name in ("state", *(f"spool/{node}" for node in self.NODES)):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "slurm.conf").write_text(
            _CONFIGURATION.format(
                host=host,
                controller=ports[0],
                user=getpass.getuser(),
                folder=self.folder,
                nodes=nodes,
                names=",".join(self.NODES),
            )
        )
        try:
            self.say("slurmctld", "-c")
            for node in self.NODES:
                self.say("slurmd", "-N", node)
            self.await_(lambda: self.say("sinfo", "-h", "-o", "%T").split() == ["idle"], "no node became idle", 60)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        if (self.folder / "controller.pid").exists():
            subprocess.run(["scancel", "--user", getpass.getuser()], env=self.environment, check=False)
        for file in [*self.folder.glob("n*.pid"), self.folder / "controller.pid"]:
            if file.exists():
                os.kill(int(file.read_text()), signal.SIGTERM)

    def say(self, *command: str) -> str:
        """The output of a command of Slurm's; raises where it fails."""
        ended = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, f"{command}: {ended.stderr or ended.stdout}"
        return ended.stdout

    def job(self, number: str) -> dict[str, str]:
        """Slurm's record of a job: JobState, Restarts, ..."""
        words = self.say("scontrol", "show", "job", number, "--oneliner").split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    @contextlib.contextmanager
    def lost(self, node: str) -> Iterator[None]:
        """Inside, ``node`` is down: its daemon and all that its jobs had started are killed without a word."""
        processes = list(self._processes(node))
        daemons = {process.parent() for process in processes if _is(process.parent(), "slurmstepd")}
        os.kill(int((self.folder / f"{node}.pid").read_text()), signal.SIGKILL)
        for process in (*filter(None, daemons), *processes):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.say("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=lost")
        try:
            yield
        finally:
            self.say("slurmd", "-N", node)
            self.await_(lambda: "idle" in self.say("sinfo", "-h", "-n", node, "-o", "%T"), f"{node} stays down", 60)

    def _processes(self, node: str) -> Iterator[psutil.Process]:
        """Yield the processes of this cluster's jobs on ``node``."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                variables = process.environ()
                if (variables.get("SLURM_CONF"), variables.get("SLURMD_NODENAME")) == (self._conf, node):
                    yield process

    def await_(self, condition, what: str, seconds: float = 600) -> None:  # type: ignore[no-untyped-def]
        """Wait until ``condition()`` holds; fails with ``what`` after ``seconds``."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, what
            time.sleep(0.2)

    def hasten(self, number: str, seconds: int = 3) -> dict[str, str]:
        """Start a job that was requeued in ``seconds``, where Slurm would wait two minutes; return its record."""
        job = self.job(number)
        key = (number, job["Restarts"])
        if job["JobState"] == "PENDING" and job["Reason"] == "BeginTime" and key not in self._hastened:
            # Not at once: a node refuses a job that it has just killed.
            self.say("scontrol", "update", f"JobId={number}", f"StartTime=now+{seconds}")
            self._hastened.add(key)
        return job

    def await_end(self, number: str) -> dict[str, str]:
        """Wait for the end of a job, requeued or not."""
        ends = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        self.await_(lambda: self.hasten(number)["JobState"] in ends, f"job {number} did not end")
        return self.job(number)


def _is(process: psutil.Process | None, name: str) -> bool:
    return process is not None and process.name() == name


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()
