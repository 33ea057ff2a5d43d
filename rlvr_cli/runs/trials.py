"""Layout of a sweep's folder, for `rlvr sweep` and for readers of its runs."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlvr_cli.core.errors import RunError
from rlvr_cli.core.files import read_jsonl
from rlvr_cli.core.recipes import recipe_name
from rlvr_cli.core.version import other_format

TRIALS = "trials.json"


def is_sweep(folder: Path) -> bool:
    return (folder / TRIALS).is_file()


def read_trials(folder: Path) -> dict[str, Any]:
    """Return the content of trials.json. Raises RunError if it is missing, damaged or of another format."""
    path = folder / TRIALS
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        fault = other_format(content)
        unnamed = not fault and not all({"name", "method"} <= trial.keys() for trial in content["trials"])
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{path}: cannot be read ({error}). The file was altered.") from error
    if fault:
        raise RunError(f"{folder}: {fault}.")
    if unnamed:
        raise RunError(f"{path}: cannot be read (a trial has no name or method). The file was altered.")
    return content


def attempts_path(folder: Path, trial: str) -> Path:
    return folder / "state" / trial / "attempts.jsonl"


def is_pruned(folder: Path, trial: str) -> bool:
    """Return whether a search pruned the trial, in its last attempt."""
    rows = read_jsonl(attempts_path(folder, trial))
    return bool(rows) and rows[-1].get("outcome") == "pruned"


def resume_command(content: Mapping[str, Any]) -> str:
    file = recipe_name(Path(str(content.get("file", "FILE"))))
    return shlex.join(map(str, ["rlvr", "sweep", file, *content.get("given", ())]))


def evaluation_command(content: Mapping[str, Any]) -> str:
    """Return the command line that evaluates every trial: the sweep again, after adding `eval` to its file."""
    if content.get("eval") is not None:
        return resume_command(content)
    file = Path(str(content.get("file", "FILE")))
    if (name := recipe_name(file)) != str(file):
        copied = {**content, "file": file.name}
        return f"rlvr config recipes {shlex.quote(name)} > {shlex.quote(file.name)} && {evaluation_command(copied)}"
    return f"printf '\\neval: {{}}\\n' >> {shlex.quote(str(file))} && {resume_command(content)}"
