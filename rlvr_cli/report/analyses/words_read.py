"""Which completions `rlvr analyze words` looks at: the last rollouts of a run, or one of its evaluations."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlvr_cli.analysis.saved_rollout import last_rollouts, saved_numbers
from rlvr_cli.analysis.words import Counted, count, together
from rlvr_cli.config.analysis_kinds import WordsOptions
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.text import some
from rlvr_cli.results.evaluations import GREEDY, read_samples
from rlvr_cli.runs.directory import RunDir
from rlvr_cli.runs.seals import read_record

Kinds = Sequence[re.Pattern[str]]
SAMPLES = "samples.jsonl"


@dataclass(frozen=True)
class Looked:
    """What was looked at, in numbers.

    Attributes:
        where: in words. counted: the completions.
        start: those of the rollout that was sampled before training; None where it was not saved.
    """

    where: str
    counted: Counted
    start: Counted | None


def look(run: RunDir, kinds: Kinds, last: int | None, options: WordsOptions) -> Looked:
    """Count the kinds in what ``options`` name.

    Args:
        last: of the rollouts; None for the newest.

    Raises:
        UserError: there is no such rollout or evaluation, or no completion in it that has a reward.
    """
    if options.evaluation is not None:
        if last is not None:
            raise UserError(f"--rollout {last}: has no meaning for the completions of an evaluation.")
        where, counted = _evaluation(run, kinds, options.evaluation)
    else:
        numbers = last_rollouts(run, last, options.rollouts)
        where = f"rollout {numbers[0]}" + (f" to {numbers[-1]}" if len(numbers) > 1 else "")
        # One file after another, so that no more than one is in memory.
        counted = together([_rollout(run, number, kinds) for number in numbers])
    if not len(counted.rewards):
        raise UserError(f"{run.path}: no completion of {where} has a reward.")
    start = _rollout(run, 0, kinds) if 0 in saved_numbers(run) else None
    return Looked(where, counted, start if start is not None and len(start.rewards) else None)


def _rollout(run: RunDir, number: int, kinds: Kinds) -> Counted:
    return count(read_record(run, run.rollouts_dir / f"rollout-{number:06d}.jsonl"), kinds)


def _evaluation(run: RunDir, kinds: Kinds, pattern: str) -> tuple[str, Counted]:
    every = sorted(path.parent.name for path in run.eval_dir.glob(f"*/{SAMPLES}"))
    found = sorted(path.parent.name for path in run.eval_dir.glob(f"*/{SAMPLES}") if path.parent.match(pattern))
    if len(found) != 1:
        there = f"There are: {some(every, 8)}." if every else "It has none; `rlvr eval` makes one."
        what = "several evaluations are" if found else "no evaluation is"
        raise UserError(f"{run.path}: {what} called {pattern}. {there}")
    # Of a sample that was judged again, the newest record counts.
    records = {(row["problem"], row["sample"]): row for row in read_samples(run.eval_dir / found[0])}
    drawn = [row for row in records.values() if row["sample"] != GREEDY] or list(records.values())
    return found[0], count(map(_as_rollout, drawn), kinds)


def _as_rollout(row: Mapping[str, Any]) -> dict[str, Any]:
    reward = row["reward"] if row["scorable"] else None
    return {"problem": row["problem"], "completion": row["text"], "clean_reward": reward}
