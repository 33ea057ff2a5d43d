"""The trackers of `track.to`, one class each: start a run, log metrics and completions."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from rlvr_cli.config.load import as_plain, dump_yaml, leaves
from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import UserError

PROJECT = "rlvr"
# The x axis of every number, as in transformers' dashboards.
STEP = "train/global_step"
Row = Mapping[str, Any]


@dataclass(frozen=True)
class TrackedRun:
    """A run for trackers; ``folder``: of the files that they write, ``job_type``: train, sweep or eval."""

    name: str
    folder: Path
    job_type: str
    config: Config
    group: str | None = None

    @property
    def tags(self) -> list[str]:
        return list(self.config.track.tags)

    def project(self, variable: str) -> str:
        """Return `track.project`, else the tracker's environment variable, else rlvr."""
        return self.config.track.project or os.environ.get(variable) or PROJECT


class Tracker(ABC):
    """A run at a tracker, started or resumed by the constructor.

    Args:
        state: persistent JSON values of a run, such as the last step `sent`, which the tracker may extend; empty for an
            evaluation.
        step: the optimizer step to resume from.

    Attributes:
        where: URL or command to view the run.
    """

    module: ClassVar[str]
    where = ""

    @abstractmethod
    def __init__(self, run: TrackedRun, state: dict[str, Any], step: int) -> None: ...

    @abstractmethod
    def log(self, values: Mapping[str, float], step: int, completions: Sequence[Row] = ()) -> None:
        """Log the metrics of an optimizer step, with a table of completions if any."""

    @abstractmethod
    def finish(self) -> None:
        """Close the run at the tracker, until it is resumed."""

    @classmethod
    def unusable_reason(cls) -> str | None:
        """Return why this machine cannot use the tracker, with a remedy; None if it can."""
        if importlib.util.find_spec(cls.module) is None:
            return f'the package {cls.module} is not installed. Install it with: pip install "rlvr[{cls.module}]"'
        return None


class TensorBoard(Tracker):
    module = "tensorboard"

    def __init__(self, run: TrackedRun, state: dict[str, Any], step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        root = os.environ.get("TENSORBOARD_LOGGING_DIR")
        folder = Path(root).expanduser() / run.name if root else run.folder / "tensorboard"
        folder = folder / "eval" if run.job_type == "eval" else folder
        # Purge a step that was written before a kill but not recorded as sent: it is sent again.
        self.writer = SummaryWriter(str(folder), purge_step=state["sent"] + 1 if "sent" in state else None)
        about = {
            "job type": run.job_type,
            "group": run.group or "none",
            "tags": ", ".join(run.tags) or "none",
        }
        self.writer.add_text("run", "\n\n".join(f"{name}: {value}" for name, value in about.items()), step)
        self.writer.add_text("config", _indented(dump_yaml(run.config)), step)
        self.where = f"tensorboard --logdir {folder}"

    def log(self, values: Mapping[str, float], step: int, completions: Sequence[Row] = ()) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        if completions:
            self.writer.add_text("completions", "\n\n---\n\n".join(map(format_completion, completions)), step)
        self.writer.flush()

    def finish(self) -> None:
        self.writer.close()


class WeightsAndBiases(Tracker):
    module = "wandb"

    def __init__(self, run: TrackedRun, state: dict[str, Any], step: int) -> None:
        self.wandb = import_module("wandb")
        state.setdefault("id", secrets.token_hex(6))
        self.run = self.wandb.init(
            project=run.project("WANDB_PROJECT"),
            name=run.name,
            id=state["id"],
            resume="allow",
            # None: WANDB_RUN_GROUP and WANDB_TAGS apply.
            group=run.group,
            tags=run.tags or None,
            job_type=run.job_type,
            dir=os.environ.get("WANDB_DIR") or str(run.folder),
            reinit="finish_previous",
            config=as_plain(run.config),
            allow_val_change=True,
            # Send neither the command line, nor the code and its changes, nor the output.
            settings=self.wandb.Settings(
                console="off",
                silent=True,
                disable_git=True,
                disable_code=True,
                x_disable_meta=True,
                x_save_requirements=False,
            ),
        )
        self.run.define_metric(STEP)
        self.run.define_metric("*", step_metric=STEP, step_sync=True)
        self.where = self.run.url or f"offline; wandb sync {Path(self.run.dir).parent}"

    def log(self, values: Mapping[str, float], step: int, completions: Sequence[Row] = ()) -> None:
        sent: dict[str, Any] = {**values, STEP: step}
        if completions:
            sent["completions"] = self.wandb.Table(
                columns=list(completions[0]), data=[list(row.values()) for row in completions]
            )
        self.run.log(sent)

    def finish(self) -> None:
        self.run.finish()

    @classmethod
    def unusable_reason(cls) -> str | None:
        missing = super().unusable_reason()
        if missing or os.environ.get("WANDB_MODE") in ("offline", "disabled", "dryrun"):
            return missing
        wandb = import_module("wandb")
        if wandb.setup().settings.mode != "online" or wandb.login(prompt=False):
            return None
        return (
            "not logged in to Weights & Biases. Run `wandb login`, or set WANDB_API_KEY, or WANDB_MODE=offline for a "
            "later `wandb sync`"
        )


class MLflow(Tracker):
    module = "mlflow"
    parameters_at_once, longest_parameter = 100, 250

    def __init__(self, run: TrackedRun, state: dict[str, Any], step: int) -> None:
        self.mlflow = import_module("mlflow")
        experiment = self.mlflow.set_experiment(run.project("MLFLOW_EXPERIMENT_NAME"))
        about = {"job_type": run.job_type, "group": run.group}
        active = self.mlflow.start_run(run_id=state.get("id"), run_name=run.name)
        state["id"] = active.info.run_id
        self.mlflow.set_tags(dict.fromkeys(run.tags, "true") | {name: value for name, value in about.items() if value})
        parameters = [(".".join(path), str(value)) for path, value in leaves(run.config)]
        # MLflow's parameters are immutable, but an extended run has a larger training budget.
        logged = self.mlflow.get_run(state["id"]).data.params
        new = [pair for pair in parameters if pair[0] not in logged and len(pair[1]) <= self.longest_parameter]
        for start in range(0, len(new), self.parameters_at_once):
            self.mlflow.log_params(dict(new[start : start + self.parameters_at_once]))
        self.where = f"{self.mlflow.get_tracking_uri()}, experiment {experiment.name}"

    def log(self, values: Mapping[str, float], step: int, completions: Sequence[Row] = ()) -> None:
        self.mlflow.log_metrics({mlflow_name(name): value for name, value in values.items()}, step=step)
        if completions:
            columns = {name: [row[name] for row in completions] for name in completions[0]}
            self.mlflow.log_table(columns, f"completions/step-{step:06d}.json")

    def finish(self) -> None:
        self.mlflow.end_run()


def mlflow_name(name: str) -> str:
    """Return a metric's name for MLflow: `train/reward.format`, `eval/pass_1`.

    With a single slash: its file store maps slashes to folders, and `train/reward` cannot be a file and a folder.
    """
    section, _, rest = name.partition("/")
    return re.sub(r"[^\w./ :-]", "_", f"{section}/{rest.replace('/', '.')}")


class Trackio(Tracker):
    module = "trackio"

    def __init__(self, run: TrackedRun, state: dict[str, Any], step: int) -> None:
        self.trackio = import_module("trackio")
        project = run.project("TRACKIO_PROJECT")
        about = {"job_type": run.job_type, "tags": run.tags}
        # trackio prints to stdout, which is reserved for results with --json.
        with contextlib.redirect_stdout(io.StringIO()):
            self.run = self.trackio.init(
                project,
                name=run.name,
                group=run.group,
                config={**as_plain(run.config), **about},
                # trackio identifies runs by name: a new run must not resume an existing one of the same name.
                resume="allow" if state.get("begun") else "never",
                embed=False,
            )
        state["begun"] = True
        self.where = f"trackio show --project {project}"

    def log(self, values: Mapping[str, float], step: int, completions: Sequence[Row] = ()) -> None:
        sent: dict[str, Any] = dict(values)
        if completions:
            sent["completions"] = self.trackio.Table(
                columns=list(completions[0]), data=[list(row.values()) for row in completions]
            )
        self.run.log(sent, step=step)

    def finish(self) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            self.trackio.finish()


TRACKERS: Mapping[str, type[Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "trackio": Trackio,
    "mlflow": MLflow,
}


def find_unusable(names: Iterable[str]) -> dict[str, str]:
    return {name: reason for name in names if (reason := TRACKERS[name].unusable_reason()) is not None}


def check_trackers(names: Iterable[str]) -> None:
    """Raise UserError, with a remedy, for each tracker that this machine cannot use; sends nothing."""
    problems = [
        f"track.to={name}: {reason}; or remove {name} from track.to." for name, reason in find_unusable(names).items()
    ]
    if problems:
        raise UserError(problems)


def format_completion(row: Row) -> str:
    facts = [
        f"**{name}** {' '.join(str(value).split())}"
        for name, value in row.items()
        if name not in ("prompt", "completion")
    ]
    return "\n\n".join([", ".join(facts), _indented(row["prompt"]), _indented(row["completion"])])


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
