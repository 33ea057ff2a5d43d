"""The sweep that a word on the command line means."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import UserError
from rlvr_cli.runs.trials import TRIALS
from rlvr_cli.sweeps.expand import expand
from rlvr_cli.sweeps.folder import SweepDir
from rlvr_cli.sweeps.spec import read_sweep


def find_sweep(name: str) -> SweepDir:
    """The sweep called ``name`` in the folder of runs, at that path, or of that sweep file. Raises UserError."""
    root = Path(load_config([]).run.dir)
    places = [SweepDir(root / name), SweepDir(Path(name))]
    found = next((place for place in places if place.exists()), None)
    if found is not None:
        return found
    if Path(name).is_file():
        folder = SweepDir(expand(read_sweep(Path(name))).folder)
        if folder.exists():
            return folder
        raise UserError(
            f"{name}: this sweep was not begun yet ({folder.path}). Run it: rlvr sweep {name}. If it was begun with "
            "another run.dir, name its folder."
        )
    known = ", ".join(path.parent.name for path in sorted(root.glob(f"*/{TRIALS}"))) or "none"
    raise UserError(
        f"{name}: no such sweep, neither a name, a folder nor a file. Sweeps in {root}: {known}. One of "
        "another run.dir is named by its folder or its sweep file."
    )


def with_sweep_files(names: Sequence[str]) -> list[str]:
    """``names`` with the sweep's folder in the place of each that is a sweep file.

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
        raise UserError(problems, note="")
    return found
