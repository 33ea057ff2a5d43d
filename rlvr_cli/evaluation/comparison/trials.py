"""What a sweep's folder says of trials that have no run of their own: `trials.json`, which `rlvr sweep` writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TRIALS = "trials.json"


def tell_trials(folder: Path, problems: list[str], notes: list[str], *, unfinished: bool) -> None:
    """Tell which trials of the sweep in ``folder`` share another's run, and which have none yet.

    Args:
        notes: gets a line for each method whose trials are those of another. problems: gets one for trials that were
            not begun (``notes`` gets it where ``unfinished`` is wanted), and for a damaged file.
    """
    path = folder / TRIALS
    if not path.is_file():
        return
    try:
        trials = [one for one in json.loads(path.read_text(encoding="utf-8"))["trials"] if one.get("named", True)]
        own = {str(one["name"]): str(one["method"]) for one in trials if one["run"] == one["name"]}
        shared = {(str(one["method"]), own.get(str(one["run"]), str(one["run"]))) for one in _shared(trials)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        problems.append(f"{path}: cannot be read ({error!r}). The file was altered.")
        return
    notes += [
        f"{folder}: trials of {method} share the runs of {stand_in} (the same gradient) and are no arm of their own."
        for method, stand_in in sorted(shared)
    ]
    waiting = [name for name in own if not (folder / name / "manifest.json").is_file()]
    if waiting:
        few = ", ".join(waiting[:4]) + (f" and {len(waiting) - 4} more" if len(waiting) > 4 else "")
        line = f"{folder}: {len(waiting)} of its {len(trials)} trials were not begun ({few})."
        if unfinished:
            notes.append(line)
        else:
            problems.append(f"{line} Finish the sweep, or compare it as it is with --unfinished.")


def _shared(trials: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for one in trials if one["run"] != one["name"]]
