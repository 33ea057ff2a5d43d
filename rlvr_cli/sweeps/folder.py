"""A sweep on disk: its plan, and the lease, attempts and status of each trial."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from rlvr_cli.config.load import load_config
from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import RunError, UserError, collect_problems
from rlvr_cli.core.files import append_jsonl, is_held, lock_folder, read_jsonl, truncate_jsonl, write_json
from rlvr_cli.core.recipes import config_file
from rlvr_cli.core.version import FORMAT, __version__
from rlvr_cli.runs.folder import RunDir, now
from rlvr_cli.runs.trials import TRIALS, attempts_path, is_sweep, read_trials, resume_command
from rlvr_cli.sweeps.expand import sweep_folder
from rlvr_cli.sweeps.objective import Objective
from rlvr_cli.sweeps.spec import read_sweep

State = Literal["waiting", "queued", "running", "evaluating", "interrupted", "finished", "failed", "pruned"]
# States of an unfinished trial without a worker.
OPEN: tuple[State, ...] = ("waiting", "interrupted")
# Required keys of a row of attempts, besides `event`.
EVENT_KEYS = {"start": ("worker", "step"), "end": ("outcome", "reason")}
# A trial fails after this many killed workers at the same checkpoint.
MAX_LOST = 20


@dataclass(frozen=True)
class Entry:
    """A trial in `trials.json`.

    Attributes:
        named: False if it was removed from the sweep file: kept, but not continued.
        base, option, overrides: configuration files, the argument of `--method` (None: no option), and overrides.
        rollouts, completions, steps: its cost.
    """

    id: str
    name: str
    method: str
    seed: int
    varies: dict[str, Any]
    base: list[str]
    option: str | None
    overrides: list[str]
    rollouts: int
    completions: int
    steps: int
    named: bool = True

    def train_arguments(self) -> list[str]:
        files = [argument for file in self.base for argument in ("-c", file)]
        return [*files, *(["--method", self.option] if self.option else []), *self.overrides]

    def load_config(self, *overrides: str) -> Config:
        """Load the trial's configuration, with further ``overrides``. Raises UserError."""
        files = [Path(file) for file in self.base]
        return load_config(files, self.option, overrides=[*self.overrides, *overrides], import_files=True)


@dataclass(frozen=True)
class SearchState:
    """The state of an adaptive search.

    Attributes:
        study: the name of its Optuna study (:func:`rlvr_cli.sweeps.prepare.study_name`).
        base: configuration files of every trial.
        bound, seeds: the maximum rollouts of a configuration, and its number of trials.
        configurations: the number of suggested configurations with runs.
        ended: why the search ended; None until all trials are settled.
    """

    study: str
    base: list[str]
    bound: int
    seeds: int
    configurations: int = 0
    ended: str | None = None


@dataclass(frozen=True)
class SweepPlan:
    """The content of `trials.json`; ``given``: the command-line arguments after the file, repeated to continue."""

    name: str
    file: str
    retries: int
    eval: list[str] | None
    slots: dict[str, int | None]
    trials: list[Entry] = field(default_factory=list)
    given: list[str] = field(default_factory=list)
    objective: Objective | None = None
    search: SearchState | None = None
    format: int = FORMAT
    rlvr: str = __version__

    @property
    def command(self) -> str:
        return resume_command(vars(self))

    def notes(self) -> list[str]:
        if self.eval is not None or self.search is not None or len(self.named) < 2:
            return []
        return [f"{self.file} has no `eval:`: no trial will be evaluated, and `rlvr compare` needs that"]

    @property
    def named(self) -> list[Entry]:
        return [entry for entry in self.trials if entry.named]


@dataclass(frozen=True)
class TrialStatus:
    """The status of a trial.

    Attributes:
        trained: whether its training is finished; its evaluation may be pending.
        attempts, failures, reason: training starts, failures, and the last failure's reason, since the last retry.
    """

    entry: Entry
    state: State
    trained: bool
    attempts: int
    failures: int
    reason: str | None


@dataclass(frozen=True)
class SweepDir:
    """`<run.dir>/<sweep name>/`: runs by the names of their trials, and `state/` with a folder for each trial."""

    path: Path

    @property
    def file_copy(self) -> Path:
        return self.path / "sweep.yaml"

    @property
    def plan_path(self) -> Path:
        return self.path / TRIALS

    @property
    def base_dir(self) -> Path:
        return self.path / "base"

    @property
    def state_dir(self) -> Path:
        return self.path / "state"

    def run_dir(self, entry: Entry) -> RunDir:
        return RunDir(self.path / entry.name)

    def trial_dir(self, entry: Entry) -> Path:
        return self.attempts_path(entry).parent

    def output_path(self, entry: Entry) -> Path:
        return self.trial_dir(entry) / "output.txt"

    def attempts_path(self, entry: Entry) -> Path:
        return attempts_path(self.path, entry.name)

    def exists(self) -> bool:
        return is_sweep(self.path)

    def read_plan(self) -> SweepPlan:
        """Return the plan. Raises RunError if it is missing or damaged."""
        try:
            content = read_trials(self.path)
            content["trials"] = [Entry(**trial) for trial in content["trials"]]
            kinds = {"objective": Objective, "search": SearchState}
            content |= {name: kind(**content[name]) for name, kind in kinds.items() if content.get(name)}
            plan = SweepPlan(**content)
            for entry in plan.trials:
                if not all(type(count) is int and count > 0 for count in (entry.rollouts, entry.steps)):
                    raise ValueError(f"{entry.name}: rollouts and steps must be whole numbers above 0")
            return plan
        except (ValueError, TypeError) as error:
            raise RunError(f"{self.plan_path}: cannot be read ({error}). The file was altered.") from error

    def write_plan(self, plan: SweepPlan) -> None:
        """Replace the plan, and create the folder of each trial."""
        self.state_dir.mkdir(exist_ok=True)
        for entry in plan.trials:
            self.trial_dir(entry).mkdir(parents=True, exist_ok=True)
        write_json(self.plan_path, asdict(plan))

    def is_running(self) -> bool:
        return is_held(self.path)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the sweep's lock. Raises UserError if another process holds it."""
        advice = f"Use `rlvr sweep status {self.path}` to see it, `rlvr sweep stop {self.path}` to save and end it."
        with lock_folder(self.path, advice):
            yield

    @contextmanager
    def lease(self, entry: Entry) -> Iterator[bool]:
        """Lease a trial to this process; yield False if another process holds it."""
        lock = lock_folder(self.trial_dir(entry), "")
        try:
            lock.__enter__()
        except UserError:
            yield False
            return
        try:
            self._close_attempt(entry)
            yield True
        finally:
            lock.__exit__(None, None, None)

    def _close_attempt(self, entry: Entry) -> None:
        """Record the end of an attempt whose worker died; the caller holds the lease."""
        path = self.attempts_path(entry)
        rows = self._attempts(entry)
        # A killed worker may have left an incomplete line.
        truncate_jsonl(path, len(rows))
        if rows and rows[-1]["event"] == "start":
            # The worker may have been killed between the end of the training and its record.
            outcome = "finished" if "eval" not in rows[-1] and self.is_trained(entry) else "lost"
            reason = f"worker {rows[-1]['worker']} was killed"
            self.record(entry, "end", outcome=outcome, exit_code=None, reason=reason, step=rows[-1]["step"])

    def _attempts(self, entry: Entry) -> list[dict[str, Any]]:
        """Return the rows of `attempts.jsonl`. Raises RunError for a row without its required keys."""
        path = self.attempts_path(entry)
        rows = read_jsonl(path)
        for number, row in enumerate(rows, start=1):
            required = ("event", *EVENT_KEYS.get(str(row.get("event")), ()))
            if missing := [key for key in required if key not in row]:
                raise RunError(f"{path}:{number}: has no {', '.join(missing)}. The file was altered.")
        return rows

    def is_trained(self, entry: Entry) -> bool:
        run = self.run_dir(entry)
        return run.manifest_path.exists() and run.read_manifest().get("status") == "finished"

    def close_attempts(self, plan: SweepPlan) -> None:
        for entry in plan.named:
            with self.lease(entry):
                pass

    def record(self, entry: Entry, event: str, **content: Any) -> None:
        """Append to the trial's attempts; the caller holds its lease, or the sweep's lock with no worker alive."""
        row = {"event": event, "time": now(), **content}
        append_jsonl(self.attempts_path(entry), [row], durable=True)

    def status(self, plan: SweepPlan, entry: Entry) -> TrialStatus:
        history = self._attempts(entry)
        retries = [number for number, row in enumerate(history, start=1) if row["event"] == "retry"]
        rows = history[retries[-1] if retries else 0 :]
        attempts = sum(row["event"] == "start" and "eval" not in row for row in rows)
        ends = [row for row in rows if row["event"] == "end"]
        failed = [row for row in ends if row["outcome"] in ("failed", "bad_input")]
        run = self.run_dir(entry)
        lost = sum(row["outcome"] == "lost" and row.get("step") == newest_step(run) for row in ends)
        trained = self.is_trained(entry)
        reason = str(failed[-1]["reason"]) if failed else None
        state: State
        if rows and rows[-1].get("outcome") == "pruned":
            state, reason = "pruned", str(rows[-1]["reason"])
        elif trained and (plan.eval is None or _has_evaluation(history, plan.eval)):
            state = "finished"
        elif any(row["outcome"] == "bad_input" for row in failed) or len(failed) > plan.retries:
            state = "failed"
        elif lost >= MAX_LOST:
            state, reason = "failed", f"its worker was killed {lost} times at the same step (out of memory?)"
        elif is_held(self.trial_dir(entry)):
            state = "evaluating" if trained else "running"
        else:
            started = any(("eval" in row) == trained for row in rows)
            state = "interrupted" if started else "waiting"
        return TrialStatus(entry, state, trained, attempts, len(failed), reason)

    def pruned_rollout(self, entry: Entry) -> int | None:
        """Return the rollout at which a search pruned the trial; None if it did not."""
        rollouts = (row.get("rollout") for row in self._attempts(entry) if row.get("outcome") == "pruned")
        return next((rollout for rollout in rollouts if isinstance(rollout, int)), None)

    def statuses(self, plan: SweepPlan) -> list[TrialStatus]:
        return [self.status(plan, entry) for entry in plan.named]


def newest_step(run: RunDir) -> int:
    steps = [path.name.removeprefix("step-") for path in run.checkpoints_dir.glob("step-*")]
    return max((int(step) for step in steps if step.isdigit()), default=0)


def _has_evaluation(rows: Iterable[dict[str, Any]], arguments: list[str]) -> bool:
    return any(row["event"] == "end" and row["outcome"] == "finished" and row.get("eval") == arguments for row in rows)


def find_sweep(name: str) -> SweepDir:
    """Return the sweep of a name in run.dir, a path, or a sweep file. Raises UserError."""
    root = Path(load_config([]).run.dir)
    for folder in (SweepDir(root / name), SweepDir(Path(name))):
        if folder.exists():
            return folder
    if config_file(name).is_file():
        folder = SweepDir(sweep_folder(read_sweep(Path(name))))
        if folder.exists():
            return folder
        raise UserError(
            f"{name}: this sweep has not started yet ({folder.path}). Start it: rlvr sweep {name}. If it was started "
            "with another run.dir, pass its folder."
        )
    existing = ", ".join(path.parent.name for path in sorted(root.glob(f"*/{TRIALS}"))) or "none"
    raise UserError(
        f"{name}: no such sweep, folder or file. Sweeps in {root}: {existing}. For a sweep in another run.dir pass its "
        "folder or its sweep file."
    )


def resolve_sweep_files(names: Sequence[str]) -> list[str]:
    """Replace each sweep file in ``names`` by the folder of its sweep. Raises UserError with all problems."""
    folders, problems = list(names), list[str]()
    for index, name in enumerate(names):
        if Path(name).is_file():
            with collect_problems(problems, UserError):
                folders[index] = str(find_sweep(name).path)
    if problems:
        raise UserError(problems)
    return folders
