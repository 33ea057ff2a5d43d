"""How far a run that is running has come: from the ends of its metrics.jsonl and timings.jsonl."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from rlvr_cli.runs.directory import RunDir
from rlvr_cli.runs.numbers import number

NUMBERS = ("reward", "loss", "accuracy", "token_accuracy", "entropy", "length")
# Rollouts that speed and time to go are averaged over.
RECENT_ROLLOUTS = 10
_TAIL_BYTES = 1 << 17


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
    rows, timings = _tail(place.metrics_path), _tail(place.timings_path)
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


def _tail(path: Path) -> list[dict[str, Any]]:
    """The last complete lines of a file that is being written; lines that are no JSON object are passed over.

    A reader that looks while a run is rewound may meet anything; `rlvr runs show` reads the whole and names damage.
    """
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(max(0, size - _TAIL_BYTES))
            lines = stream.read().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    if size > _TAIL_BYTES:
        lines = lines[1:]
    rows = []
    for line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows
