"""How long a training takes: from a measured run, or from tokens a second that somebody gives."""

from __future__ import annotations

from dataclasses import dataclass

from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.files import read_jsonl
from rlvr_cli.runs.folder import RunDir


@dataclass(frozen=True)
class Speed:
    """Completion tokens a second of the whole loop: sampling, judging and every update on them.

    Attributes:
        tokens_per_completion: how long completions were on average, where that was measured.
    """

    tokens_per_second: float
    source: str
    tokens_per_completion: float | None = None


@dataclass(frozen=True)
class Duration:
    """Seconds of a training. ``at_most`` if every completion has the full length, ``expected`` if they are as long as
    in the measured run (None where none was measured)."""

    at_most: float
    expected: float | None


def measured_speed(run: RunDir) -> Speed:
    """The speed of a run by its records, the first rollout left out where there are more: it warms up.

    Raises UserError when it has no whole rollout yet, RunError for records that are damaged.
    """
    steps, timings = read_jsonl(run.metrics_path), read_jsonl(run.timings_path)
    rows = [{**step, **timing} for step, timing in zip(steps, timings, strict=False) if "length" in step]
    for number, row in enumerate(rows, start=1):
        if not all(isinstance(row.get(key), int | float) for key in ("rollout", "length", "seconds")):
            raise RunError(
                f"{run.path}: its step {number} has no rollout, length or seconds in {run.metrics_path.name} and "
                f"{run.timings_path.name}. The files were altered."
            )
    rollouts = sorted({int(row["rollout"]) for row in rows})
    used = rollouts[1:] or rollouts
    rows = [row for row in rows if row["rollout"] in used]
    if not rows:
        raise UserError(f"--run {run.path}: has no finished rollout, so its speed is not known")
    seconds = sum(float(row["seconds"]) for row in rows)
    # Every step of a rollout repeats the rollout's own numbers.
    lengths = {int(row["rollout"]): float(row["length"]) for row in rows}
    completions = run_completions(run)
    tokens = sum(lengths.values()) * completions
    source = f"{run.path}, {len(used)} rollout{'s' if len(used) > 1 else ''}"
    return Speed(tokens / seconds, source, sum(lengths.values()) / len(lengths))


def run_completions(run: RunDir) -> int:
    """Completions of one rollout of ``run``."""
    from rlvr_cli.config.batch import batch_arithmetic
    from rlvr_cli.config.load import load_config

    return batch_arithmetic(load_config([run.config_path])).completions


def duration(completions: int, tokens_each: int, speed: Speed) -> Duration:
    """The time of a training of ``completions`` completions of at most ``tokens_each`` tokens at ``speed``."""
    mean = speed.tokens_per_completion
    expected = None if mean is None else completions * min(mean, tokens_each) / speed.tokens_per_second
    return Duration(completions * tokens_each / speed.tokens_per_second, expected)


def in_words(seconds: float) -> str:
    """`3 h 20 min`, `5 d 4 h`, `42 s`."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h"
