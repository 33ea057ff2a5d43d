"""Layout of a sweep's folder, for `rlvr sweep`, which writes it, and for readers of its runs."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlvr_cli.core.errors import RunError
from rlvr_cli.core.files import read_jsonl

TRIALS = "trials.json"


def is_sweep(folder: Path) -> bool:
    """Return whether a sweep was begun in ``folder``."""
    return (folder / TRIALS).is_file()


def read_trials(folder: Path) -> dict[str, Any]:
    """Return what the sweep in ``folder`` says: a mapping whose `trials` are mappings, each with `name` and `method`.

    Raises RunError when the file is missing or damaged.
    """
    path = folder / TRIALS
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path}: cannot be read ({error}). The file was altered.") from error
    fault = _fault(content)
    if fault:
        raise RunError(f"{path}: cannot be read ({fault}). The file was altered.")
    return content  # type: ignore[no-any-return]


def attempts_path(folder: Path, trial: str) -> Path:
    """Return where each attempt at a trial, and how it ended, is recorded."""
    return folder / "state" / trial / "attempts.jsonl"


def is_pruned(folder: Path, trial: str) -> bool:
    """Return whether the last word on a trial was that it is worth no more rollouts."""
    rows = read_jsonl(attempts_path(folder, trial))
    return bool(rows) and rows[-1].get("outcome") == "pruned"


def command_of(content: Mapping[str, Any]) -> str:
    """Return what continues the sweep, on a command line."""
    return shlex.join(map(str, ["rlvr", "sweep", content.get("file", "FILE"), *content.get("given", ())]))


def command_to_evaluate(content: Mapping[str, Any]) -> str:
    """Return the command line that evaluates every trial: the sweep again, with the key `eval` in its file."""
    if content.get("eval") is not None:
        return command_of(content)
    return f"printf '\\neval: {{}}\\n' >> {shlex.quote(str(content.get('file', 'FILE')))} && {command_of(content)}"


def _fault(content: Any) -> str | None:
    """Return the problem of the content, or None."""
    if not isinstance(content, dict) or not isinstance(content.get("trials"), list):
        return "it has no list of trials"
    for key in ("given", "eval"):
        if not isinstance(content.get(key) or [], list):
            return f"its {key} is not a list"
    for number, trial in enumerate(content["trials"], start=1):
        missing = [key for key in ("name", "method") if not isinstance(trial, dict) or key not in trial]
        if missing:
            return f"its trial {number} has no {', '.join(missing)}"
    return None
