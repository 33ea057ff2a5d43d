"""Benchmarks by name: the task that judges each, and where its problems are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rlvr_cli.config.errors import UserError
from rlvr_cli.config.tree import choices


@dataclass(frozen=True)
class Benchmark:
    """A named set of problems.

    Attributes:
        task: the task that writes its prompts and judges.
        files: file or folder inside a data folder, without `.jsonl` or `.jsonl.gz`.
        hub: the hub data set whose test split it is; None where the project knows none, and where the name is a task's.
    """

    task: str
    files: str
    hub: str | None


BENCHMARKS = {
    "kk": Benchmark("kk", "kk", None),
    "countdown": Benchmark("countdown", "countdown/test", None),
    "hitab": Benchmark("hitab", "hitab", None),
    "gsm8k": Benchmark("gsm8k", "gsm8k/test", None),
    "math500": Benchmark("math", "math/math500", "HuggingFaceH4/MATH-500"),
    "aime24": Benchmark("math", "math/aime24", "HuggingFaceH4/aime_2024"),
    "aime25": Benchmark("math", "math/aime25", "math-ai/aime25"),
    "amc23": Benchmark("math", "math/amc23", "math-ai/amc23"),
    "minerva": Benchmark("math", "math/minerva", "math-ai/minervamath"),
    "olympiadbench": Benchmark("math", "math/olympiadbench", "math-ai/olympiadbench"),
    "college_math": Benchmark("math", "math/college_math", None),
    "gaokao2023en": Benchmark("math", "math/gaokao2023en", None),
}


def known() -> tuple[str, ...]:
    """Every name: the tasks, then the other benchmarks."""
    return tuple(dict.fromkeys([*choices(("task",)), *BENCHMARKS]))


def task_of(name: str) -> str:
    """The task of a known name."""
    return BENCHMARKS[name].task if name in BENCHMARKS else name


def data_of(name: str, folder: Path | None) -> str | None:
    """Where the problems of a known name are; None: those that the task generates.

    Args:
        folder: a folder of data sets; None = the hub. A task's name without a folder is the task with its own problems.
    Raises:
        UserError: the folder has no such data, or there is none on the hub.
    """
    if folder is None:
        if name in choices(("task",)):
            return None
        hub = BENCHMARKS[name].hub
        if hub is None:
            raise UserError(f"--benchmark {name}: on no hub that the project knows. Give a folder with --data-dir.")
        return hub
    if name not in BENCHMARKS:
        raise UserError(f"--benchmark {name}: is a task and no data set, so --data-dir has nothing for it; use --data.")
    stem = folder / BENCHMARKS[name].files
    found = [path for path in (stem, *(Path(f"{stem}{end}") for end in (".jsonl", ".jsonl.gz"))) if path.exists()]
    if not found:
        raise UserError(f"--data-dir {folder}: has no {BENCHMARKS[name].files}(.jsonl, .jsonl.gz), for {name}.")
    return str(found[0])
