"""The papers' recipes, for tests: every row of every table below configs/papers."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from rlvr_cli.config.load import SweepRow, load_config
from rlvr_cli.config.schema import Config
from rlvr_cli.sweeps.rows import trial_rows
from rlvr_cli.sweeps.spec import SweepFile, read_sweep

FOLDER = Path(__file__).parents[1] / "configs" / "papers"
PAPERS = ["acpo", "ar_lopti", "dgpo", "gtpo", "landscape"]


@cache
def tables(paper: str = "*") -> dict[str, SweepFile]:
    """The tables and figures of a paper, by names as `acpo/table-1`; what they share is in files that begin with _."""
    files = sorted(FOLDER.glob(f"{paper}/[!_]*.yaml"))
    return {file.relative_to(FOLDER).with_suffix("").as_posix(): read_sweep(file) for file in files}


@cache
def recipes(paper: str = "*") -> dict[str, SweepRow]:
    """Every row, by names as `acpo/table-1/hitab-3b-acpo-off-policy`."""
    return {f"{table}/{name}": row for table, file in tables(paper).items() for name, row in trial_rows(file).items()}


@cache
def loaded(name: str) -> Config:
    """The configuration of a row."""
    return load_config([recipes()[name]])
