"""The options that several commands take, each defined once, and how they become overrides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlvr_cli.core.errors import UserError

if TYPE_CHECKING:
    from rlvr_cli.config.load import SweepRow

ConfigFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="YAML configuration; later files win over earlier ones. FILE:ROW = a trial of a sweep file.",
    ),
]
Method = Annotated[str | None, typer.Option("--method", metavar="NAME", help="Training method, as `grpo`.")]
Task = Annotated[
    str | None,
    typer.Option("--task", metavar="NAME", help="Task, as `math` (`rlvr tasks` lists them), or a file: `my_task.py`."),
]
Model = Annotated[
    str | None,
    typer.Option("--model", metavar="NAME", help="`lab`, a hub id, or a folder with a model in it."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SECTION.KEY=VALUE",
        help="Overrides, as optimizer.lr=1e-6. `rlvr config keys` lists every key.",
        show_default=False,
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        help="Folder in which a data set's name (task.data) is looked for; sets task.data_dir.",
    ),
]
DataOption = Annotated[
    str | None,
    typer.Option("--data", metavar="DATA", help="Problems: a name, a file, a folder or a hub id; sets task.data."),
]
Reward = Annotated[
    list[str] | None,
    typer.Option(
        "--reward",
        metavar="FILE.py:FUNCTION",
        help="A reward function of your own, with TRL's signature (several: give it again); sets task=own and "
        "task.reward.",
    ),
]
TrustRemoteCode = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code",
        help="Let Python code of the model's own repository run here. Nothing stores this: give it each time.",
    ),
]

Overwrite = Annotated[bool, typer.Option("--overwrite", help="Start over and replace the output if it is there.")]
# Of a model's attempts at problems.
Samples = Annotated[
    int | None, typer.Option("--samples", "-n", metavar="N", help="Samples a problem. Default: eval.samples.")
]
Temperature = Annotated[float | None, typer.Option("--temperature", metavar="T", help="Default: eval.temperature.")]
TopP = Annotated[float | None, typer.Option("--top-p", metavar="P", help="Default: eval.top_p.")]
MaxNewTokens = Annotated[
    int | None,
    typer.Option("--max-new-tokens", metavar="N", help="Longest completion. Default: eval.max_new_tokens."),
]


def output(metavar: str, text: str) -> Any:
    """The option that says what a command writes."""
    return typer.Option("--output", "-o", metavar=metavar, help=text, show_default=False)


def config_sources(files: list[Path] | None) -> list[Path | SweepRow]:
    """What `--config` names. Raises UserError for rows that are in no sweep file."""
    from rlvr_cli.sweeps.rows import config_source

    return [config_source(file) for file in files or []]


def with_data_dir(overrides: list[str] | None, folder: Path | None) -> list[str]:
    """The overrides with the one that `--data-dir` stands for.

    Raises:
        UserError: an override sets the same key.
    """
    given = overrides or []
    if folder is None:
        return given
    if any(text.partition("=")[0].strip() == "task.data_dir" for text in given):
        raise UserError(f"--data-dir {folder} and task.data_dir set the same thing; give one of them.")
    return [*given, f"task.data_dir={json.dumps(str(folder), ensure_ascii=False)}"]


def with_own(overrides: list[str], data: str | None, reward: list[str] | None, task: str | None = None) -> list[str]:
    """The overrides with those that `--data` and `--reward` stand for.

    Args:
        task: that of `--task`.
    Raises:
        UserError: an override sets the same key, or a task is named that has rewards of its own.
    """
    name = "own" if reward and task is None else None
    given: dict[str, Any] = {"task.name": name, "task.data": data, "task.reward": reward or None}
    set_already = {text.partition("=")[0].strip() for text in overrides}
    wrong = [
        f"--{key.removeprefix('task.')} and {key} set the same thing; give one of them."
        for key in ("task.data", "task.reward")
        if given[key] is not None and key in set_already
    ]
    if reward and task not in (None, "own"):
        wrong.append(f"--reward and --task {task}: the task {task} has a reward of its own. Leave one out.")
    if wrong:
        raise UserError(wrong)
    new = [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in given.items() if value is not None]
    return [*new, *overrides]


def with_options(overrides: list[str], launch: dict[str, Any]) -> list[str]:
    """The overrides with those that the options of `launch` stand for, by their keys; None is an option not given.

    Raises:
        UserError: an override sets the same key.
    """
    given = {name: value for name, value in launch.items() if value is not None}
    if "accelerate_config" in given:
        given.setdefault("launcher", "accelerate")
    set_already = {text.partition("=")[0].strip() for text in overrides}
    both = [name for name in given if launch.get(name) is not None and f"launch.{name}" in set_already]
    if both:
        raise UserError(
            [f"--{name.replace('_', '-')} and launch.{name} set the same thing; give one of them." for name in both]
        )
    new = [
        f"launch.{name}={json.dumps(value, default=str, ensure_ascii=False)}"
        for name, value in given.items()
        if f"launch.{name}" not in set_already
    ]
    return [*overrides, *new]


Names = Annotated[
    list[str],
    typer.Argument(
        metavar="A B...",
        help="Runs, sweeps (name, folder or file), folders of runs or globs, by name in --runs or by path. Runs "
        "that differ in nothing but the seed are one arm.",
        show_default=False,
    ),
]
Baseline = Annotated[
    str | None,
    typer.Option(
        "--baseline",
        metavar="ARM",
        help="The arm that the others are compared with, by its name or a run of it. Default: the arm of the "
        "first argument, if it is of one arm alone; else the sweep file's first method without modifiers.",
    ),
]
By = Annotated[
    list[str] | None,
    typer.Option("--by", metavar="KEY[,KEY...]", help="Make arms by these keys, as method.name; the rest is pooled."),
]
Metric = Annotated[
    str | None,
    typer.Option(
        "--metric",
        metavar="NAME",
        help="accuracy (avg@n), pass@K, maj@K, greedy, reward, length, ... Default: accuracy.",
    ),
]
Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        metavar="KEY=VALUE",
        help="Which evaluation, where there are several settings: split=dev, sampling.temperature=0.6, ...",
    ),
]
Match = Annotated[
    str | None,
    typer.Option(
        "--match",
        metavar="BUDGET",
        help="Compare the learning curves of held-out evaluations in training at the largest common budget: "
        "rollouts, updates, tokens (sampled) or seconds (of training).",
    ),
]
Level = Annotated[
    float | None,
    typer.Option(
        "--level",
        metavar="VALUE",
        help="With --match: when is this value first reached? Default: the baseline's final one.",
    ),
]
Power = Annotated[
    float | None,
    typer.Option(
        "--power",
        metavar="DIFFERENCE",
        help="How many seeds or problems it takes to see this difference of the metric, as 0.02.",
    ),
]
CommonProblems = Annotated[
    bool, typer.Option("--common-problems", help="Compare on the problems that all runs were evaluated on.")
]
Unpaired = Annotated[
    bool, typer.Option("--unpaired", help="Take all seeds of each arm, and do not pair runs by their seed.")
]
Unfinished = Annotated[bool, typer.Option("--unfinished", help="Compare runs that are not finished as they are.")]
RUNS = Path("runs")
Runs = Annotated[Path, typer.Option("--runs", metavar="FOLDER", help="Folder that holds the runs (run.dir).")]


def chosen_root(given: Path) -> Path | None:
    """The folder of runs; None for the default one before there is a first run.

    Raises:
        UserError: the folder does not exist, is a file, or is itself a run.
    """
    from rlvr_cli.runs.listing import check_root

    if given == RUNS and not RUNS.exists():
        return None
    check_root(given)
    return given
