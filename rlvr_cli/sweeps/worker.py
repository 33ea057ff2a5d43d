"""`python -m rlvr_cli.sweeps.worker`: takes trials one after the other, each under a lease that ends with it.

It loads no torch: each trial is `rlvr train` in a process of its own, which is killed when this one is.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import await_release, check_no_link
from rlvr_cli.core.layers import override_text
from rlvr_cli.core.processes import end_with_parent
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.sweeps.folder import OPEN, Entry, SweepDir, SweepPlan, newest_step
from rlvr_cli.sweeps.naming import config_hash

if TYPE_CHECKING:
    from rlvr_cli.sweeps.search import PruningWatch, Search

TICK = 0.5
LAST_LINES = 12
BAD_INPUT = 2
# How long the processes of a trial that was killed may take to let go of its run.
RELEASE_SECONDS = 60.0
# All that a run has that was killed before its manifest was written.
INCOMPLETE = {"rollouts", "checkpoints", "eval", ".lock", "config.yaml", "log.txt"}


class SweepWorker:
    """One worker of ``sweep``; ``number`` names it, and ``flags`` are given to each command that it runs."""

    def __init__(self, sweep: SweepDir, number: int | str, flags: list[str]) -> None:
        self.sweep, self.number, self.flags = sweep, number, flags
        self.plan: SweepPlan = sweep.read_plan()
        self.parent = os.getppid()
        self.child: subprocess.Popen[bytes] | None = None
        self.stopping = False
        self.search = None if self.plan.search is None else self._search()

    def work(self) -> None:
        """Every trial that is open and that no other worker has, until it is settled; once through the plan.

        Of a search, again while there is a trial to be begun, which may be one that is asked for now.
        """
        self.listen()
        if self.search is None:
            self._go_through()
            return
        while not self.stopping:
            self.plan = self.search.advance()
            if not any(status.state in OPEN for status in self.sweep.statuses(self.plan)):
                return
            self._go_through()

    def _search(self) -> Search:
        from rlvr_cli.sweeps.search import Search

        return Search(self.sweep, self.plan)

    def _go_through(self) -> None:
        for entry in self.plan.named:
            if self.stopping:
                return
            if self.sweep.status(self.plan, entry).state not in OPEN:
                continue
            self.take(entry)

    def listen(self) -> None:
        """From here on SIGTERM saves the trial, and no other is taken."""
        signal.signal(signal.SIGTERM, self._stop)

    def take(self, entry: Entry) -> bool:
        """Work on ``entry`` until it is settled or SIGTERM came: False where another worker has it."""
        with self.sweep.leased(entry) as mine:
            while mine and not self.stopping and self._open(entry):
                self._attempt(entry)
        return mine

    def _open(self, entry: Entry) -> bool:
        """Whether the trial that this worker holds has something left to do."""
        return self.sweep.status(self.plan, entry).state in ("running", "evaluating")

    def _attempt(self, entry: Entry) -> None:
        """Train the trial, or go on with it, or evaluate it; and record how that ended."""
        run = self.sweep.run_dir(entry)
        evaluation = self.sweep.status(self.plan, entry).trained
        about: dict[str, Any] = {"eval": self.plan.eval} if evaluation else {}
        self.sweep.record(entry, "start", worker=self.number, pid=os.getpid(), step=newest_step(run), **about)
        output = self.sweep.output_path(entry)
        begin = output.stat().st_size if output.exists() else 0
        watch = None if evaluation or self.search is None else self.search.watch(entry)
        try:
            command = self._eval_command(run) if evaluation else self._train_command(entry, run)
        except UserError as error:
            said = " ".join(error.problems)
            self.sweep.record(entry, "end", outcome="bad_input", exit_code=None, reason=said, **about)
            return
        code = self._run(command, output, watch)
        if watch is not None and (rollout := watch()) is not None:
            content = {"reason": watch.evidence(), "rollout": rollout}
            self.sweep.record(entry, "end", outcome="pruned", exit_code=code, **content)
            return
        done = code == 0 and (evaluation or self.sweep.trained(entry))
        if done:
            outcome, reason = "finished", None
        elif self.stopping:
            outcome, reason = "interrupted", None
        elif code == 0:
            outcome, reason = "failed", _unfinished(run, entry)
        else:
            outcome = "bad_input" if code == BAD_INPUT else "failed"
            reason = _reason(code, run, output, begin)
        self.sweep.record(entry, "end", outcome=outcome, exit_code=code, reason=reason, **about)

    def _train_command(self, entry: Entry, run: RunDir) -> list[str]:
        """`rlvr train`, from the start or from the newest checkpoint. Raises UserError where that is not this trial."""
        if not await_release(run.path, RELEASE_SECONDS):
            raise UserError(f"{run.path}: another process is training this run.")
        clear_incomplete(run)
        if run.manifest_path.exists():
            return ["train", "--resume", str(run.path), *self.flags]
        config = load_config(
            [Path(one) for one in entry.base], entry.option, None, None, entry.overrides, import_files=True
        )
        if config_hash(config) != entry.id:
            raise UserError(
                f"{entry.name}: its configuration no longer means what it did when the sweep started (identity "
                f"{config_hash(config)}, not {entry.id}): presets or the environment changed. Run `rlvr sweep` with "
                "the file again."
            )
        place = [override_text("run.dir", str(self.sweep.path)), override_text("run.name", entry.name)]
        return ["train", *self.flags, *entry.train(), *place]

    def _eval_command(self, run: RunDir) -> list[str]:
        assert self.plan.eval is not None
        return ["eval", str(run.path), *self.flags, *self.plan.eval]

    def _run(self, arguments: list[str], output: Path, watch: PruningWatch | None = None) -> int:
        """Run one command to its end and return its exit code. It dies with this process, and this one with its parent.

        A training that ``watch`` stops gets the signal to save and end.
        """
        check_no_link(output)
        with output.open("ab") as stream:
            self.child = subprocess.Popen(
                self._program(arguments),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                preexec_fn=partial(end_with_parent, os.getpid()),
            )
        terminated = self.stopping
        if terminated:
            self.child.terminate()
        while True:
            try:
                return self.child.wait(TICK)
            except subprocess.TimeoutExpired:
                if os.getppid() != self.parent:
                    self.child.kill()
                    os._exit(1)
                if watch is not None and not terminated and watch() is not None:
                    terminated = True
                    self.child.terminate()

    def _program(self, arguments: list[str]) -> list[str]:
        return [sys.executable, "-m", "rlvr_cli", *arguments]

    def _stop(self, number: int, frame: FrameType | None) -> None:
        """The trial saves, and this worker takes no other."""
        self.stopping = True
        if self.child is not None and self.child.poll() is None:
            self.child.terminate()


def clear_incomplete(run: RunDir) -> None:
    """Delete what is left of a run that was killed before it had a manifest. Raises UserError for anything else."""
    if not run.path.exists() or run.manifest_path.exists():
        return
    others = sorted(
        path.name
        for path in run.path.iterdir()
        if (path.name not in INCOMPLETE and not path.name.endswith(".tmp")) or (path.is_dir() and any(path.iterdir()))
    )
    if others:
        raise UserError(
            f"{run.path}: is not a run (it has no manifest.json), and contains {', '.join(others)}. Move it away."
        )
    shutil.rmtree(run.path)


def _reason(code: int, run: RunDir, output: Path, begin: int) -> str:
    """Why a command failed: by its run's manifest, else by how it ended and by what it said last."""
    if code < 0:
        name = signal.Signals(-code).name
        return f"killed by {name}{' (out of memory?)' if -code == signal.SIGKILL else ''}"
    if code in (128 + number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)):
        return f"stopped by {signal.Signals(code - 128).name}, which the sweep did not send"
    if run.manifest_path.exists() and code == 1:
        error = run.read_manifest().get("error")
        if error:
            return str(error)
    with output.open("rb") as stream:
        stream.seek(begin)
        said = stream.read().decode(errors="replace").strip().splitlines()
    return "\n".join(said[-LAST_LINES:]) or f"exit code {code}, without a word"


def _unfinished(run: RunDir, entry: Entry) -> str:
    """Why a training whose exit code says that all went well has failed."""
    return (
        f"exit code 0 at step {newest_step(run)} of {entry.steps}: something ended the process before the training "
        "was finished (os._exit in code of its own?)"
    )


def main() -> None:
    """Arguments: the sweep's folder, this worker's number, its cores as JSON (null = all), flags."""
    folder, number, cores, *flags = sys.argv[1:]
    own = json.loads(cores)
    if own is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, own)
    SweepWorker(SweepDir(Path(folder)), int(number), flags).work()


if __name__ == "__main__":
    main()
