"""The whole configuration of a run. `rlvr config keys` prints every key with type, bounds, default and meaning."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, StringConstraints

from rlvr_cli.config.batch import BatchArithmetic
from rlvr_cli.config.evaluation import EvalConfig, ValidationConfig
from rlvr_cli.config.launch import LaunchConfig, SlurmConfig
from rlvr_cli.config.model import ModelConfig
from rlvr_cli.config.optimizer import LearningRate, OptimizerConfig
from rlvr_cli.config.rollout import RolloutConfig
from rlvr_cli.config.update import UpdateConfig
from rlvr_cli.core.section import Count, CountOrZero, OneOrMore, Probability, Section, Text, import_modules
from rlvr_cli.methods.method import AnyMethod, Method
from rlvr_cli.tasks import Task
from rlvr_cli.tasks.kk import KnightsAndKnaves


def _expand_home(value: str) -> str:
    return str(Path(value).expanduser()) if value.startswith("~/") else value


RUN_NAME = r"^[A-Za-z0-9_][A-Za-z0-9._+-]*$"
RunName = Annotated[
    str,
    StringConstraints(max_length=100, pattern=RUN_NAME),
    Field(title="a name of letters, digits and _ - . +, starting with a letter, digit or _, at most 100 long"),
]


class TrainConfig(Section):
    """Training budget, and actions on non-finite numbers, collapse and missing signal."""

    rollouts: Count = Field(100, description="Training budget: number of rollout batches.")
    curriculum: Probability = Field(
        1.0,
        description="Share of their visits that problems keep of whose completions all or none were correct at the "
        "last visit; 1 = every problem once per epoch.",
    )
    on_nonfinite: Literal["stop", "skip"] = Field(
        "stop",
        description="Action on a NaN or infinite reward, loss or gradient: stop the training, or skip the optimizer "
        "step.",
    )
    max_skips: CountOrZero = Field(
        3,
        description="Maximum number of skipped optimizer steps and of rollouts with skipped rewards (on_nonfinite: "
        "skip); one more stops the training.",
    )
    on_collapse: Literal["warn", "stop", "off"] = Field(
        "warn",
        description="Action when accuracy, length or entropy indicates a collapse: warn, stop, or off = no "
        "detection. sft samples nothing and detects none.",
    )
    on_no_signal: Literal["warn", "stop", "off"] = Field(
        "warn",
        description="Action without a learning signal: warn and stop refuse to start if the model cannot read its "
        "prompts, and warn or stop after three rollouts in which every advantage is 0 (all rewards of each problem "
        "are equal); off = no detection.",
    )


class CheckpointConfig(Section):
    """Interval and number of checkpoints."""

    every: Count = Field(10, description="Optimizer steps between checkpoints.")
    keep: Count = Field(3, description="Number of newest checkpoints to keep.")


class RunConfig(Section):
    """Seed, name and folder of the run."""

    seed: Annotated[int, Field(ge=0, le=2**32 - 1)] = Field(
        0, description="Seed of the training problems, their order, and sampling."
    )
    name: RunName | None = Field(
        None, description="Folder name of the run in run.dir; null = <method>-<task>-<model>-s<seed>, made unique."
    )
    dir: Annotated[Text, AfterValidator(_expand_home)] = Field("runs", description="Parent folder of all runs.")
    threads: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        None,
        description="CPU threads per process; null = all cores, divided among the processes. Results are "
        "bit-identical only for the same number.",
    )


class TrackConfig(Section):
    """Experiment trackers that receive the run's metrics; `track=wandb` is enough."""

    main_key: ClassVar[str] = "to"

    to: Annotated[tuple[Literal["tensorboard", "wandb", "trackio", "mlflow"], ...], OneOrMore] = Field(
        (), description="Trackers, each of which is an extra to install; empty = none."
    )
    project: Text | None = Field(
        None,
        description="Project (MLflow: experiment); null = $WANDB_PROJECT, $MLFLOW_EXPERIMENT_NAME or $TRACKIO_PROJECT, "
        "else rlvr.",
    )
    group: Text | None = Field(
        None, description="Group of related runs; null = the sweep's name for a trial, else none."
    )
    name: Text | None = Field(None, description="Name of the run at the tracker; null = the name of the run.")
    tags: Annotated[tuple[Text, ...], OneOrMore] = Field((), description="Tags of the run at the tracker.")
    completions_every: CountOrZero = Field(
        10,
        description="Rollouts between tables of completions with rewards and verdicts; 0 = none: no prompt and no "
        "completion is sent.",
    )
    completions: Annotated[int, Field(ge=1, le=1000)] = Field(
        16, description="Completions per table, evenly spread over the rollout's problems."
    )


# Defining a task registers it in the section `task`.
import_modules("rlvr_cli.tasks")


class Config(Section):
    """The whole configuration of a run."""

    model: ModelConfig = Field(default=ModelConfig(), description=str(ModelConfig.__doc__))
    task: Task = Field(default=KnightsAndKnaves(), description="The task and its problems.")
    method: AnyMethod = Field(default=Method(), description="The training method.")
    rollout: RolloutConfig = Field(default=RolloutConfig(), description=str(RolloutConfig.__doc__))
    update: UpdateConfig = Field(default=UpdateConfig(), description=str(UpdateConfig.__doc__))
    optimizer: OptimizerConfig = Field(default=OptimizerConfig(), description=str(OptimizerConfig.__doc__))
    train: TrainConfig = Field(default=TrainConfig(), description=str(TrainConfig.__doc__))
    validation: ValidationConfig = Field(default=ValidationConfig(), description=str(ValidationConfig.__doc__))
    eval: EvalConfig = Field(default=EvalConfig(), description=str(EvalConfig.__doc__))
    checkpoint: CheckpointConfig = Field(default=CheckpointConfig(), description=str(CheckpointConfig.__doc__))
    launch: LaunchConfig = Field(default=LaunchConfig(), description=str(LaunchConfig.__doc__))
    slurm: SlurmConfig = Field(default=SlurmConfig(), description=str(SlurmConfig.__doc__))
    run: RunConfig = Field(default=RunConfig(), description=str(RunConfig.__doc__))
    track: TrackConfig = Field(default=TrackConfig(), description=str(TrackConfig.__doc__))

    @property
    def batch(self) -> BatchArithmetic:
        """Batch sizes and step counts of a loaded configuration, whose sizes are divisible."""
        passes = len(self.method.passes.names)
        return BatchArithmetic.of(self.rollout, self.update, self.launch, passes=passes, rollouts=self.train.rollouts)

    @property
    def learning_rate(self) -> LearningRate:
        return LearningRate(self.optimizer, self.batch)
