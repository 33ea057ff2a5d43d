"""Sends the numbers of a run to the trackers of `run.track`, through transformers' own integrations."""

from __future__ import annotations

import copy
import json
import math
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers.integrations import (
    MLflowCallback,
    TensorBoardCallback,
    TrackioCallback,
    WandbCallback,
)

from rlvr_cli.config.load import as_plain, dump_yaml, leaves
from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import RunError
from rlvr_cli.core.files import write_json
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.training.progress import Reporter

FILE = "trackers.json"
PROJECT = "rlvr"
_MLFLOW_PARAMETERS_AT_ONCE = 100


class Tracking(TrainerCallback):
    """Rank 0's trackers. A tracker that fails at the start fails the run; one that fails later is left out from then.

    `on_log` takes a line of metrics.jsonl; transformers' own summary at the end is none.
    """

    def __init__(self, config: Config, run: RunDir, reporter: Reporter) -> None:
        self.config, self.run, self.reporter = config, run, reporter
        self._file = run.path / FILE
        self._known: dict[str, dict[str, Any]] = {}
        self._integrations: dict[str, Any] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._known = json.loads(self._file.read_text(encoding="utf-8")) if self._file.exists() else {}
        args = copy.copy(args)
        args.run_name, args.project = self.run.name, os.environ.get("TRACKIO_PROJECT") or PROJECT
        for name in self.config.run.track:
            known = self._known.setdefault(name, {"sent": 0})
            try:
                integration = _BEGIN[name](self, known, state.global_step)
                integration.on_train_begin(args, state, control, **kwargs)
                self._integrations[name] = integration
                self._describe(name, state.global_step)
            except Exception as error:
                raise RunError(
                    f"run.track={name}: {name} cannot be started: {_said(error)}. Nothing was trained; without it: a "
                    "run whose run.track leaves it out."
                ) from error
        self._keep()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if "rollout" not in (logs or {}):
            return
        sent = numbers(logs)
        for name in list(self._integrations):
            # What was done twice after a resume is sent once; TensorBoard takes back by itself what it had too much.
            if name == "tensorboard" or state.global_step > self._known[name]["sent"]:
                # MLflow's file store makes folders of slashes, and would want `reward` to be a file and a folder.
                logs = {key.replace("/", "."): value for key, value in sent.items()} if name == "mlflow" else dict(sent)
                self._call(name, "on_log", args, state, control, logs=logs, **kwargs)
                self._known[name]["sent"] = state.global_step
        self._keep()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        for name in list(self._integrations):
            self._call(name, "on_train_end", args, state, control, **kwargs)
            if name in _END:
                self._guard(name, _END[name])

    def _keep(self) -> None:
        write_json(self._file, self._known)

    def _call(self, name: str, event: str, *args: Any, **kwargs: Any) -> None:
        self._guard(name, lambda: getattr(self._integrations[name], event)(*args, **kwargs))

    def _guard(self, name: str, work: Callable[[], Any]) -> None:
        """A tracker is not worth a training: the run's own files have every number."""
        try:
            work()
        except Exception as error:
            self._integrations.pop(name, None)
            self.reporter.message(
                f"run.track={name}: {name} failed and gets nothing more: {_said(error)}. {self.run.metrics_path} has "
                "every number."
            )

    # --- each tracker's own ------------------------------------------------------------------------------------

    def _tensorboard(self, known: dict[str, Any], step: int) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        root = os.environ.get("TENSORBOARD_LOGGING_DIR")
        folder = Path(root).expanduser() / self.run.name if root else self.run.path / "tensorboard"
        # What the files hold beyond the checkpoint is about to come again.
        return TensorBoardCallback(SummaryWriter(str(folder), purge_step=step + 1))

    def _wandb(self, known: dict[str, Any], step: int) -> Any:
        integration = WandbCallback()
        wandb = import_module("wandb")

        known.setdefault("id", secrets.token_hex(6))
        wandb.init(
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            name=self.run.name,
            id=known["id"],
            resume="allow",
            dir=os.environ.get("WANDB_DIR") or str(self.run.path),
            reinit="finish_previous",
            # Neither the command line, the code and its changes, nor the output leave this machine.
            settings=wandb.Settings(
                console="off", disable_git=True, disable_code=True, x_disable_meta=True, x_save_requirements=False
            ),
        )
        return integration

    def _trackio(self, known: dict[str, Any], step: int) -> Any:
        return TrackioCallback()

    def _mlflow(self, known: dict[str, Any], step: int) -> Any:
        integration = MLflowCallback()
        mlflow = import_module("mlflow")

        mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME") or PROJECT)
        begun = mlflow.start_run(run_id=known.get("id"), run_name=self.run.name)
        known["id"] = begun.info.run_id
        return integration

    def _describe(self, name: str, step: int) -> None:
        """The run's own configuration, next to what the integration sends of transformers' arguments and the model."""
        if name == "tensorboard":
            self._integrations[name].tb_writer.add_text("rlvr", f"```yaml\n{dump_yaml(self.config)}```", step)
        elif name == "mlflow":
            mlflow = import_module("mlflow")

            for part in _parts([(".".join(path), value) for path, value in leaves(self.config)]):
                mlflow.log_params({key: value for key, value in part if len(str(value)) <= 250})
        else:
            import_module(name).config.update({PROJECT: as_plain(self.config)}, allow_val_change=True)


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """A line of metrics.jsonl as plain numbers, without its step: it is the axis.

    What is nested gets its parts joined: `{"eval": {"greedy": {"accuracy": 1}}}` is `eval_greedy/accuracy`, which
    transformers' integrations show as eval/greedy/accuracy, and all else as train/... . No number, no entry.
    """
    return {name: value for name, value in _flat(row, "") if name != "step"}


def _flat(values: Mapping[str, Any], prefix: str) -> Iterable[tuple[str, float]]:
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}/" if prefix else f"{name}_")
        elif isinstance(value, bool | int | float) and math.isfinite(value):
            yield name, float(value) if isinstance(value, float) else int(value)


def _parts(items: list[tuple[str, Any]]) -> Iterator[list[tuple[str, Any]]]:
    for start in range(0, len(items), _MLFLOW_PARAMETERS_AT_ONCE):
        yield items[start : start + _MLFLOW_PARAMETERS_AT_ONCE]


def _end_wandb() -> None:
    import_module("wandb").finish()


def _end_mlflow() -> None:
    import_module("mlflow").end_run()


def _said(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text.rstrip(".")[:500]


_BEGIN: dict[str, Callable[[Tracking, dict[str, Any], int], Any]] = {
    "tensorboard": Tracking._tensorboard,
    "wandb": Tracking._wandb,
    "trackio": Tracking._trackio,
    "mlflow": Tracking._mlflow,
}
_END: dict[str, Callable[[], None]] = {"wandb": _end_wandb, "mlflow": _end_mlflow}
