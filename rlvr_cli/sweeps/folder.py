"""A sweep on disk: its trials, the lease and the attempts of each, and how far each is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.files import append_jsonl, is_held, read_jsonl, sole_writer, truncate_jsonl, write_json
from rlvr_cli.runs.folder import RunDir, now
from rlvr_cli.runs.trials import TRIALS, attempts_path, command_of, is_sweep, read_trials
from rlvr_cli.sweeps.expand import folder_of
from rlvr_cli.sweeps.objective import Objective
from rlvr_cli.sweeps.spec import read_sweep

State = Literal["waiting", "queued", "running", "evaluating", "interrupted", "finished", "failed", "pruned"]
# States in which there is something to do, and nobody who does it.
OPEN: tuple[State, ...] = ("waiting", "interrupted")
# So often may a trial lose its worker at the same checkpoint before it counts as what kills it.
MOST_LOST = 20


@dataclass(frozen=True)
class Entry:
    """A trial as `trials.json` has it.

    Attributes:
        named: whether the sweep file still names it; one that it does not is kept, and not continued.
        base, option, overrides: configuration files, what `--method` is given (None: nothing), and overrides.
        rollouts, completions, steps: what it takes.
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

    def train(self) -> list[str]:
        """The arguments of `rlvr train`, but for the place of the run."""
        files = [argument for file in self.base for argument in ("-c", file)]
        return [*files, *(["--method", self.option] if self.option else []), *self.overrides]


@dataclass(frozen=True)
class SearchState:
    """How far an adaptive search is.

    Attributes:
        study: the name of its study, a hash of the space and of what its ends mean.
        base: configuration files of every trial.
        bound, seeds: the most rollouts that a configuration takes, and its number of trials.
        configurations, duplicates, rejected: suggestions that were run, that repeat an earlier one, and that were
            excluded or no configuration.
        asking: whether more are to come, as far as is known.
        ended: why no more will come and all are settled; None until then.
    """

    study: str
    base: list[str]
    bound: int
    seeds: int
    configurations: int = 0
    duplicates: int = 0
    rejected: int = 0
    asking: bool = True
    ended: str | None = None


@dataclass(frozen=True)
class SweepPlan:
    """What the workers of a sweep are to do: the content of `trials.json`.

    ``given`` is what followed the file on the command line and has to again when the sweep is continued.
    """

    name: str
    file: str
    retries: int
    eval: list[str] | None
    slots: dict[str, int | None]
    trials: list[Entry] = field(default_factory=list)
    given: list[str] = field(default_factory=list)
    objective: Objective | None = None
    search: SearchState | None = None

    @property
    def command(self) -> str:
        """What continues the sweep, on a command line."""
        return command_of(vars(self))

    def notes(self) -> list[str]:
        """Return what is missing for a comparison of the arms: an evaluation of the trials."""
        if self.eval is not None or self.search is not None or len(self.named) < 2:
            return []
        return [f"{self.file} has no `eval:`: no trial will be evaluated, and `rlvr compare` needs that"]

    @property
    def named(self) -> list[Entry]:
        """The trials that the sweep file names, in their order."""
        return [entry for entry in self.trials if entry.named]


@dataclass(frozen=True)
class TrialStatus:
    """How a trial stands.

    Attributes:
        trained: whether its training is finished; it may have to be evaluated still.
        attempts: how often its training was begun or gone on with; like ``failures`` and the ``reason`` of the last,
            since `rlvr sweep retry` was asked for it.
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
        """The run whose numbers are the trial's."""
        return RunDir(self.path / entry.name)

    def trial_dir(self, entry: Entry) -> Path:
        """The trial's lease, attempts and output."""
        return self.attempts_path(entry).parent

    def output_path(self, entry: Entry) -> Path:
        """All that the trial's processes printed."""
        return self.trial_dir(entry) / "output.txt"

    def attempts_path(self, entry: Entry) -> Path:
        return attempts_path(self.path, entry.name)

    def exists(self) -> bool:
        """Whether a sweep was begun here."""
        return is_sweep(self.path)

    def read_plan(self) -> SweepPlan:
        """The plan. Raises RunError when it is missing or damaged."""
        try:
            content = read_trials(self.path)
            parts = {"trials": [Entry(**one) for one in content["trials"]]}
            kinds = {"objective": Objective, "search": SearchState}
            parts |= {name: kind(**content[name]) for name, kind in kinds.items() if content.get(name)}
            plan = SweepPlan(**{**content, **parts})
            _check(plan)
            return plan
        except (ValueError, TypeError) as error:
            raise RunError(f"{self.plan_path}: cannot be read ({error}). The file was altered.") from error

    def write_plan(self, plan: SweepPlan) -> None:
        """Replace the plan, and make the folder of each trial."""
        self.state_dir.mkdir(exist_ok=True)
        for entry in plan.trials:
            self.trial_dir(entry).mkdir(parents=True, exist_ok=True)
        write_json(self.plan_path, asdict(plan))

    def running(self) -> bool:
        """Whether a living process carries the sweep out."""
        return is_held(self.path)

    @contextmanager
    def driven(self) -> Iterator[None]:
        """Hold the sweep for the one process that starts its workers. Raises UserError when another does."""
        advice = f"See `rlvr sweep status {self.path}`; `rlvr sweep stop {self.path}` saves and ends it."
        with sole_writer(self.path, advice):
            yield

    @contextmanager
    def leased(self, entry: Entry) -> Iterator[bool]:
        """Hold a trial for this process, while it lives: whether that came about."""
        lease = sole_writer(self.trial_dir(entry), "")
        try:
            lease.__enter__()
        except UserError:
            yield False
            return
        try:
            self._close_attempt(entry)
            yield True
        finally:
            lease.__exit__(None, None, None)

    def _close_attempt(self, entry: Entry) -> None:
        """Say of an attempt without an end how it ended: the one who made it holds the lease no more."""
        path = self.attempts_path(entry)
        rows = self._attempts(entry)
        # What a killed worker left of a line would spoil the next.
        truncate_jsonl(path, len(rows))
        if rows and rows[-1]["event"] == "start":
            # A worker may be killed between the end of a training and its own word of it.
            outcome = "finished" if "eval" not in rows[-1] and self.trained(entry) else "lost"
            reason = f"worker {rows[-1]['worker']} was killed"
            self.record(entry, "end", outcome=outcome, exit_code=None, reason=reason, step=rows[-1]["step"])

    def _attempts(self, entry: Entry) -> list[dict[str, Any]]:
        """All that was recorded of a trial. Raises RunError for a line that no worker wrote."""
        path = self.attempts_path(entry)
        rows = read_jsonl(path)
        for number, row in enumerate(rows, start=1):
            missing = _missing(row)
            if missing:
                raise RunError(f"{path}:{number}: has no {', '.join(missing)}. The file was altered.")
        return rows

    def trained(self, entry: Entry) -> bool:
        """Whether the trial's training is finished, as its run says."""
        run = self.run_dir(entry)
        return run.manifest_path.exists() and run.read_manifest().get("status") == "finished"

    def close_attempts(self, plan: SweepPlan) -> None:
        """Say of every attempt that nobody makes any more how it ended."""
        for entry in plan.named:
            with self.leased(entry):
                pass

    def record(self, entry: Entry, event: str, **content: Any) -> None:
        """Append to the trial's attempts: only by who holds its lease, or drives the sweep with no worker alive."""
        row = {"event": event, "time": now(), **content}
        append_jsonl(self.attempts_path(entry), [row], durable=True)

    def status(self, plan: SweepPlan, entry: Entry) -> TrialStatus:
        """How ``entry`` stands."""
        everything = self._attempts(entry)
        begun_again = [number for number, row in enumerate(everything, start=1) if row["event"] == "retry"]
        rows = everything[begun_again[-1] if begun_again else 0 :]
        attempts = sum(row["event"] == "start" and "eval" not in row for row in rows)
        ends = [row for row in rows if row["event"] == "end"]
        failed = [row for row in ends if row["outcome"] in ("failed", "bad_input")]
        run = self.run_dir(entry)
        lost = sum(row["outcome"] == "lost" and row.get("step") == newest_step(run) for row in ends)
        trained = self.trained(entry)
        reason = str(failed[-1]["reason"]) if failed else None
        state: State
        if rows and rows[-1].get("outcome") == "pruned":
            state, reason = "pruned", str(rows[-1]["reason"])
        elif trained and (plan.eval is None or _evaluated(everything, plan.eval)):
            state = "finished"
        elif any(row["outcome"] == "bad_input" for row in failed) or len(failed) > plan.retries:
            state = "failed"
        elif lost >= MOST_LOST:
            state, reason = "failed", f"its worker was killed {lost} times at the same step (out of memory?)"
        elif is_held(self.trial_dir(entry)):
            state = "evaluating" if trained else "running"
        else:
            begun = any(("eval" in row) == trained for row in rows)
            state = "interrupted" if begun else "waiting"
        return TrialStatus(entry, state, trained, attempts, len(failed), reason)

    def pruned_at(self, entry: Entry) -> int | None:
        """The rollout at which a search first gave the trial up; None where it did not, whatever came after."""
        found = (row.get("rollout") for row in self._attempts(entry) if row.get("outcome") == "pruned")
        return next((rollout for rollout in found if isinstance(rollout, int)), None)

    def statuses(self, plan: SweepPlan) -> list[TrialStatus]:
        """How each trial that the file names stands."""
        return [self.status(plan, entry) for entry in plan.named]


def _check(plan: SweepPlan) -> None:
    """Raise ValueError for a trial without numbers."""
    for entry in plan.trials:
        if not all(type(one) is int and one > 0 for one in (entry.rollouts, entry.steps)):
            raise ValueError(f"{entry.name}: rollouts and steps must be whole numbers above 0")


def _missing(row: dict[str, Any]) -> list[str]:
    """What a line of `attempts.jsonl` lacks."""
    needed = {"start": ("worker", "step"), "end": ("outcome", "reason")}
    return [key for key in ("event", *needed.get(str(row.get("event")), ())) if key not in row]


def newest_step(run: RunDir) -> int:
    """The step of the newest checkpoint, by its name; 0 where there is none."""
    steps = [path.name.removeprefix("step-") for path in run.checkpoints_dir.glob("step-*")]
    return max((int(step) for step in steps if step.isdigit()), default=0)


def _evaluated(rows: Iterable[dict[str, Any]], arguments: list[str]) -> bool:
    return any(row["event"] == "end" and row["outcome"] == "finished" and row.get("eval") == arguments for row in rows)


def find_sweep(name: str) -> SweepDir:
    """The sweep called ``name`` in the folder of runs, at that path, or of that sweep file. Raises UserError."""
    root = Path(load_config([]).run.dir)
    places = [SweepDir(root / name), SweepDir(Path(name))]
    found = next((place for place in places if place.exists()), None)
    if found is not None:
        return found
    if Path(name).is_file():
        folder = SweepDir(folder_of(read_sweep(Path(name))))
        if folder.exists():
            return folder
        raise UserError(
            f"{name}: this sweep has not started yet ({folder.path}). Run it: rlvr sweep {name}. If it was started "
            "with another run.dir, name its folder."
        )
    known = ", ".join(path.parent.name for path in sorted(root.glob(f"*/{TRIALS}"))) or "none"
    raise UserError(
        f"{name}: no sweep of this name, and no such folder or file. Sweeps in {root}: {known}. Name a sweep in "
        "another run.dir by its folder or its sweep file."
    )


def with_sweep_files(names: Sequence[str]) -> list[str]:
    """``names`` with the sweep's folder in place of each that is a sweep file.

    Raises UserError with what is wrong with every one of them.
    """
    found, problems = list(names), list[str]()
    for place, name in enumerate(names):
        if Path(name).is_file():
            try:
                found[place] = str(find_sweep(name).path)
            except UserError as error:
                problems.extend(error.problems)
    if problems:
        raise UserError(problems)
    return found
