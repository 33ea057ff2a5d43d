"""Options shared by commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlvr_cli.cli.command import DATA_PANEL, MORE, key_option

if TYPE_CHECKING:
    from rlvr_cli.config.load import SweepRow


def complete_method(incomplete: str) -> list[str]:
    from rlvr_cli.methods.names import BASES, MODIFIERS

    before, plus, _ = incomplete.rpartition("+")
    names = [f"{before}+{name}" for name in MODIFIERS] if plus else BASES
    return [name for name in names if name.startswith(incomplete)]


def complete_task(incomplete: str) -> list[str]:
    from rlvr_cli.tasks.sets import task_kinds

    return [name for name in task_kinds() if name.startswith(incomplete)]


def complete_run(incomplete: str) -> list[str]:
    names = [path.name for path in RUNS.iterdir() if path.is_dir()] if RUNS.is_dir() else []
    return sorted(name for name in names if name.startswith(incomplete) and not name.startswith("."))


RUNS = Path("runs")
ConfigFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="YAML file or recipe (`rlvr config recipes`); later ones win. FILE:ROW = a trial of a sweep file.",
    ),
]
Method = Annotated[
    str | None,
    typer.Option("--method", metavar="NAME", autocompletion=complete_method, help="Training method, as `grpo`."),
]
Task = Annotated[
    str | None,
    typer.Option(
        "--task",
        metavar="NAME",
        autocompletion=complete_task,
        help="Task, as `math` (`rlvr tasks` lists them), or a file: `my_task.py`.",
    ),
]
Model = Annotated[str | None, typer.Option("--model", metavar="NAME", help="`lab`, a hub id, or a model folder.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="Overrides, as optimizer.lr=1e-6. `rlvr config keys` lists every key.",
        show_default=False,
    ),
]
DATA_DIR = key_option("task.data_dir", "--data-dir", metavar="DIR", panel=DATA_PANEL)
DATA = key_option(
    "task.data",
    "--data",
    metavar="DATA",
    help="Problems: a name (`rlvr tasks sets`), a file, a folder or a hub id.",
    panel=DATA_PANEL,
)
REWARD = key_option(
    "task.reward",
    "--reward",
    metavar="FILE.py:FUNCTION",
    help="Your reward function, with TRL's signature, or an installed one as trl.rewards:accuracy_reward (repeat the "
    "option for several); implies task=own.",
    several=True,
    panel=DATA_PANEL,
)
# Options of every command that configures a training.
TRAINING = (DATA, REWARD, DATA_DIR, key_option("launch.processes", "--processes", panel=MORE))
TrustRemoteCode = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code",
        rich_help_panel=MORE,
        help="Allow the model's repository to run its Python code here. Never stored: repeat it each time.",
    ),
]

Speed = Annotated[
    str | None,
    typer.Option(
        "--speed",
        metavar="RUN|X",
        rich_help_panel=MORE,
        help="For the time: the speed of this run, or completion tokens a second of the whole loop.",
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Start over and replace existing output.")]


def output(metavar: str, text: str) -> Any:
    return typer.Option("--output", "-o", metavar=metavar, help=text, show_default=False)


def config_sources(files: list[Path] | None, *, import_files: bool = True) -> list[Path | SweepRow]:
    """Return the sources of `--config`. Raises UserError for rows that no sweep file has."""
    from rlvr_cli.sweeps.rows import resolve_config

    return [resolve_config(file, import_files=import_files) for file in files or []]


Runs = Annotated[
    Path, typer.Option("--runs", metavar="DIR", rich_help_panel=MORE, help="Folder that holds the runs (run.dir).")
]


def check_root_option(folder: Path) -> Path | None:
    """Return the folder of runs; None for the default before the first run. Raises UserError for a file or a run."""
    from rlvr_cli.runs.listing import check_root

    if folder == RUNS and not RUNS.exists():
        return None
    check_root(folder)
    return folder
