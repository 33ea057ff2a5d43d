"""What a sweep's folder says of its trials: `trials.json`, which `rlvr sweep` writes."""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path
from typing import Any

from rlvr_cli.core.errors import RunError
from rlvr_cli.core.text import some
from rlvr_cli.runs.records import read_jsonl
from rlvr_cli.runs.trials import is_sweep, read_trials


def tell_trials(folder: Path, problems: list[str], notes: list[str], *, unfinished: bool) -> set[str]:
    """Tell which trials of the sweep in ``folder`` share another's run, and which have none yet.

    Returns the names of those that are left out: the sweep file names them no more, or a search gave them up.

    Args:
        notes: gets a line for each method whose trials are those of another, and for what is left out.
        problems: gets one for trials that were not begun (``notes`` gets it where ``unfinished`` is wanted), and for a
            damaged file.
    """
    if not is_sweep(folder):
        return set()
    try:
        content = read_trials(folder)
    except RunError as error:
        problems.append(str(error))
        return set()
    trials = [one for one in content["trials"] if one.get("named", True)]
    dropped = {str(one["name"]) for one in content["trials"] if not one.get("named", True)}
    own = {str(one["name"]): str(one["method"]) for one in trials if one["run"] == one["name"]}
    notes += _shared(folder, trials, own)
    waiting = [name for name in own if not (folder / name / "manifest.json").is_file()]
    if out := sorted(name for name in dropped if (folder / name / "manifest.json").is_file()):
        notes.append(f"{folder}: left out, for the sweep file no longer names them: {some(out, 4)}.")
    if pruned := sorted(name for name in own if name not in dropped and _pruned(folder, name)):
        notes.append(f"{folder}: left out, for the search gave them up before their end: {some(pruned, 4)}.")
    if waiting:
        line = f"{folder}: {len(waiting)} of its {len(trials)} trials were not begun ({some(waiting, 4)})."
        if unfinished:
            notes.append(line)
        else:
            command = _command(content)
            problems.append(f"{line} Finish the sweep with `{command}`, or compare it as it is with --unfinished.")
    return dropped | set(pruned)


def _pruned(folder: Path, name: str) -> bool:
    """Whether the last word on a trial was that it is worth no more rollouts."""
    rows = read_jsonl(folder / "state" / name / "attempts.jsonl")
    return bool(rows) and rows[-1].get("outcome") == "pruned"


def sweep_command(run: Path) -> str | None:
    """What continues the sweep that names the run at ``run`` as a trial's; None where there is none."""
    content = _sweep_of(run)
    if not any(one["run"] == run.name and one.get("named", True) for one in content.get("trials", ())):
        return None
    return _command(content)


def eval_options(run: Path) -> str:
    """What follows `rlvr eval RUN` where a sweep evaluates the run at ``run``, with a blank before it; else nothing."""
    return "".join(f" {shlex.quote(str(one))}" for one in _sweep_of(run).get("eval") or ())


def place_in_sweep(run: Path) -> int | None:
    """Which trial of its sweep's the run at ``run`` is, from 0, in the order of the sweep file; None of other runs."""
    names = [str(one["run"]) for one in _sweep_of(run).get("trials", ())]
    return names.index(run.name) if names else None


def _sweep_of(run: Path) -> dict[str, Any]:
    """The content of `trials.json` beside a run; empty where it has no such run, or is damaged."""
    try:
        content = read_trials(run.parent) if is_sweep(run.parent) else {}
    except RunError:
        return {}
    return content if any(one["run"] == run.name for one in content.get("trials", ())) else {}


def _command(content: dict[str, Any]) -> str:
    # A ledger's trials are in a file of another kind, which `rlvr sweep` cannot read.
    owner = content.get("owner") or ["rlvr", "sweep", content.get("file", "FILE"), *content.get("given", ())]
    return shlex.join(map(str, owner))


def _shared(folder: Path, trials: list[dict[str, Any]], own: dict[str, str]) -> list[str]:
    """A line for each method with trials that share the runs of others, being the same gradient."""
    number = Counter(str(one["method"]) for one in trials)
    found = Counter(
        (str(one["method"]), own.get(str(one["run"]), str(one["run"]))) for one in trials if one["run"] != one["name"]
    )
    lines = []
    for (method, stand_in), count in sorted(found.items()):
        if count == number[method]:
            what = f"trials of {method} share the runs of {stand_in} (the same gradient) and are no arm of their own"
        else:
            others = f"runs of {stand_in}" if stand_in != method else "runs of others of them"
            what = (
                f"{count} of the {number[method]} trials of {method} share {others} (the same gradient there), which "
                f"are compared once, as {stand_in}"
            )
        lines.append(f"{folder}: {what}.")
    return lines
