"""How far a run that is running has come: from the ends of its metrics.jsonl and timings.jsonl."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from rlvr_cli.runs.directory import RunDir
from rlvr_cli.runs.numbers import number
from rlvr_cli.runs.records import tail_jsonl

NUMBERS = ("reward", "loss", "accuracy", "token_accuracy", "entropy", "length")
# Rollouts that speed and time to go are averaged over.
RECENT_ROLLOUTS = 10


def live_row(run: dict[str, Any]) -> dict[str, Any]:
    """What `rlvr runs watch` shows of a run, from its summary.

    Of a running one by its newest optimizer step, of another by its manifest: `name`, `status`, `method`, `task`,
    `model`, `seed`, `rollout` (rollouts done), `rollouts_total`, `step`, `steps_total`, the numbers of the last step
    (``NUMBERS``), `tokens_per_second` (trained on, over the whole loop) and `seconds_left`; what is not known is None.
    """
    same = {name: run.get(name) for name in ("name", "path", "status", "damage", "method", "task", "model", "seed")}
    totals = {name: number(run.get(name)) for name in ("rollouts_total", "steps_total")}
    shown = {**same, **totals, "step": number(run.get("step")), "rollout": number(run.get("rollout"))}
    if run["status"] != "running":
        return {**shown, **_numbers(run["last_metrics"]), "tokens_per_second": None, "seconds_left": None}
    place = RunDir(Path(run["path"]))
    rows, timings = tail_jsonl(place.metrics_path), tail_jsonl(place.timings_path)
    last = rows[-1] if rows else run["last_metrics"]
    step = number(last.get("step")) or 0.0
    updates = _updates(totals)
    if rows:
        shown |= {"step": step, "rollout": None if updates is None else float(step // updates)}
    seconds, tokens = _recent(rows, timings, int(updates or 1))
    left = (
        None if seconds is None or totals["steps_total"] is None else max(0.0, totals["steps_total"] - step) * seconds
    )
    return {**shown, **_numbers(last), "tokens_per_second": tokens, "seconds_left": left}


def _numbers(row: dict[str, Any]) -> dict[str, float | None]:
    return {name: number(row.get(name)) for name in NUMBERS}


def _updates(totals: dict[str, float | None]) -> float | None:
    """Optimizer steps of a rollout."""
    rollouts, steps = totals["rollouts_total"], totals["steps_total"]
    return steps // rollouts if rollouts and steps and rollouts > 0 and steps >= rollouts else None


def _recent(
    rows: list[dict[str, Any]], timings: list[dict[str, Any]], updates: int
) -> tuple[float | None, float | None]:
    """Seconds a step, and tokens a second, over the last rollouts of so many steps; without the first, which warms up.

    Saving and evaluating are not among the seconds.
    """
    trained = {row["step"]: number(row.get("update_tokens")) for row in rows if type(row.get("step")) is int}
    timed = {row["step"]: number(row.get("seconds")) for row in timings if type(row.get("step")) is int}
    both = [
        (step, seconds, tokens)
        for step, seconds in sorted(timed.items())[-updates * RECENT_ROLLOUTS :]
        if seconds is not None and (tokens := trained.get(step)) is not None
    ]
    warm = [entry for entry in both if entry[0] > updates] or both
    spent = math.fsum(seconds for _, seconds, _ in warm)
    return (spent / len(warm), math.fsum(tokens for _, _, tokens in warm) / spent) if spent > 0 else (None, None)
