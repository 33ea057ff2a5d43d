"""`rlvr analyze words`: how often kinds of words occur in the completions of runs, against the reward.

AR-Lopti, arXiv:2505.12929, section 5.1, figure 5 and table 5.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from pydantic import Field

from rlvr_cli.analyses.base import Analysis, AnalysisInput, Frames, frames_of, minus, names_of, records
from rlvr_cli.analyses.saved_rollout import last_rollouts, saved_numbers
from rlvr_cli.analyses.word_lists import compiled, read_lists
from rlvr_cli.core.errors import UserError, collecting
from rlvr_cli.core.files import local_path, number
from rlvr_cli.core.lazy import alt
from rlvr_cli.core.section import Count, Section, Text
from rlvr_cli.core.text import listed, some
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.runs.records import read_record
from rlvr_cli.stats.correlation import clustered_pearson, clustered_spearman
from rlvr_cli.stats.intervals import Estimate, mean_interval
from rlvr_cli.stats.scores import Array
from rlvr_cli.store.evaluation import read_samples
from rlvr_cli.store.metrics import GREEDY

Row = dict[str, Any]
Kinds = Sequence[re.Pattern[str]]
SAMPLES = "samples.jsonl"
COLUMNS = 3


class WordsOptions(Section):
    """Keys of `rlvr analyze words`."""

    lists: Text | None = Field(None, description="YAML file of lists of words; null = AR-Lopti's table 5.")
    per: Literal["completion", "100 words"] = Field("completion", description="What a frequency is of.")
    rollouts: Count = Field(10, description="Saved rollouts that are looked at, the last of them --rollout.")
    evaluation: Text | None = Field(
        None, description="In place of rollouts, the samples of this folder in the run's `eval`, as 'kk-gen-test-*'."
    )
    bins: Count = Field(10, description="Bins of frequency in the figure.")


def measure(inputs: AnalysisInput, options: WordsOptions) -> Frames:
    """Count the words in the last ``options.rollouts`` saved rollouts of each run up to ``inputs.rollout``.

    Raises:
        UserError: lists that cannot be read, a run without a saved rollout or that evaluation, no rewards.
    """
    lists = read_lists(None if options.lists is None else local_path(options.lists))
    patterns = [compiled(kind) for kind in lists.values()]
    problems: list[str] = []
    runs: dict[str, Looked] = {}
    for name, run in zip(names_of(inputs.runs), inputs.runs, strict=True):
        with collecting(problems):
            runs[name] = look(run, patterns, inputs.rollout, options)
    if problems:
        raise UserError(list(dict.fromkeys(problems)))
    kinds, completions, bins = list[Row](), list[Row](), list[Row]()
    for name, looked in runs.items():
        counted, frequencies = looked.counted, looked.counted.frequencies(options.per)
        before = None if looked.start is None else looked.start.frequencies(options.per)
        completions.append(
            {
                "run": name,
                "of": looked.where,
                "completions": len(counted.rewards),
                "words_mean": float(counted.words.mean()),
                "reward_mean": float(counted.rewards.mean()),
                "occurrences": int(counted.counts.sum()),
            }
        )
        for place, kind in enumerate(lists):
            key, values = {"run": name, "kind": kind}, frequencies[:, place]
            row: Row = {**key, **_row(counted, counted.counts[:, place], values)}
            start = None
            if looked.start is not None and before is not None:
                start = _frequency(before[:, place], looked.start.problems).value
            kinds.append(row | {"start": start, "change": minus(row["frequency"], start)})
            bins += [
                key | {"frequency": at, "reward": of.value, "low": of.low, "high": of.high}
                for at, of in binned(values, counted.rewards, options.bins)
            ]
    return frames_of(
        _summary(completions[0], kinds) if len(runs) == 1 else {},
        _notes(runs, kinds, options.per),
        completions=completions,
        kinds=kinds,
        bins=bins,
        lists=[{"kind": name, "words": ", ".join(kind.forms())} for name, kind in lists.items()],
    )


def _row(counted: Counted, counts: Array, frequencies: Array) -> Row:
    """Return the numbers of a kind of words; a correlation is None where one of the two does not vary."""
    estimates = {
        "frequency": _frequency(frequencies, counted.problems),
        "pearson": clustered_pearson(frequencies, counted.rewards, counted.problems),
        "spearman": clustered_spearman(frequencies, counted.rewards, counted.problems),
    }
    row: Row = {"occurrences": int(counts.sum()), "share": float((counts > 0).mean())}
    for name, of in estimates.items():
        for key, end in ((name, "value"), (f"{name}_low", "low"), (f"{name}_high", "high")):
            row[key] = None if of is None else getattr(of, end)
    return row


def _summary(completions: Mapping[str, Any], kinds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    summary = {name: completions[name] for name in ("completions", "words_mean", "reward_mean", "occurrences")}
    for row in kinds:
        names = ("frequency", "share", "pearson", "spearman", "start", "change")
        summary |= {f"{row['kind']}_{name}": row[name] for name in names}
    return summary


def _notes(runs: Mapping[str, Looked], kinds: Sequence[Mapping[str, Any]], per: str) -> list[str]:
    notes = []
    for name, looked in runs.items():
        rows = [row for row in kinds if row["run"] == name]
        absent = [row["kind"] for row in rows if not row["occurrences"]]
        if absent and len(absent) < len(rows):
            notes.append(f"{name}: no word of {listed(absent)}.")
        if (looked.counted.rewards == looked.counted.rewards[0]).all():
            notes.append(f"{name}: all rewards are the same, so nothing correlates with them.")
    if any(looked.start is None for looked in runs.values()):
        notes.append("The rollout before training was not saved for every run, so these runs have no start value.")
    if per == "completion":
        notes.append("Counts grow with the length of a completion; per='100 words' divides by it.")
    return notes


def headline(frames: Frames) -> str:
    """Name the kinds whose correlation with the reward has an interval on one side of 0."""
    runs, kinds = records(frames["completions"]), records(frames["kinds"])
    total = sum(row["completions"] for row in runs)
    if not any(row["occurrences"] for row in runs):
        return (
            f"No such word: none of the {total:,} completions has a word of the lists, so there is nothing to "
            "compare. Name lists that fit the text with lists=FILE."
        )
    if len(runs) > 1:
        return f"{len(runs)} runs, {total:,} completions."
    up = [row["kind"] for row in kinds if row["pearson_low"] is not None and row["pearson_low"] > 0]
    down = [row["kind"] for row in kinds if row["pearson_high"] is not None and row["pearson_high"] < 0]
    sides = [f"{listed(of)} with {side} rewards" for of, side in ((up, "higher"), (down, "lower")) if of]
    return f"{total:,} completions. " + (
        f"More words of {' and of '.join(sides)}."
        if sides
        else "No kind of words goes with the reward beyond the noise."
    )


def plot(frames: Frames) -> alt.TopLevelMixin:
    """Draw the mean reward by frequency, a panel for each kind."""
    base = alt.Chart().encode(x=alt.X("frequency:Q"), color="run:N")
    points = base.mark_line(point=True).encode(y=alt.Y("reward:Q", title="mean reward"))
    bars = base.mark_rule().encode(y="low:Q", y2="high:Q")
    panel = alt.layer(points, bars, data=frames["bins"]).properties(width=200, height=140)
    chart: alt.TopLevelMixin = panel.facet("kind:N", columns=COLUMNS).resolve_scale(x="independent")
    return chart


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
            raise UserError(f"--rollout {last}: does not apply to the completions of an evaluation.")
        where, counted = _evaluation(run, kinds, options.evaluation)
    else:
        numbers = last_rollouts(run, last, options.rollouts)
        where = f"rollout {numbers[0]}" + (f" to {numbers[-1]}" if len(numbers) > 1 else "")
        # One file after another, so that no more than one is in memory.
        parts = [_rollout(run, number, kinds) for number in numbers]
        counted = Counted(
            np.concatenate([part.counts for part in parts]),
            np.concatenate([part.words for part in parts]),
            np.concatenate([part.rewards for part in parts]),
            tuple(problem for part in parts for problem in part.problems),
        )
    if not len(counted.rewards):
        raise UserError(f"{run.path}: no completion of {where} has a reward.")
    start = _rollout(run, 0, kinds) if 0 in saved_numbers(run) else None
    return Looked(where, counted, start if start is not None and len(start.rewards) else None)


def _rollout(run: RunDir, number: int, kinds: Kinds) -> Counted:
    return count_words(read_record(run, run.rollouts_dir / f"rollout-{number:06d}.jsonl"), kinds)


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
    completions = (
        {
            "problem": row["problem"],
            "completion": row["text"],
            "clean_reward": row["reward"] if row["scorable"] else None,
        }
        for row in drawn
    )
    return found[0], count_words(completions, kinds)


@dataclass(frozen=True)
class Counted:
    """Completions in numbers.

    Attributes:
        counts: (N, K) how often each kind occurs in each completion.
        words: (N,) words of each, parted by white space.
        rewards: (N,) the verifier's.
        problems: (N,) of which problem each is.
    """

    counts: Array
    words: Array
    rewards: Array
    problems: tuple[str, ...]

    def frequencies(self, per: str) -> Array:
        """(N, K) counts, or counts in a hundred words (0 for a completion without a word)."""
        if per == "completion":
            return self.counts
        rates: Array = 100 * self.counts / np.maximum(self.words, 1)[:, None]
        return rates


def count_words(records: Iterable[Mapping[str, Any]], kinds: Sequence[re.Pattern[str]]) -> Counted:
    """Count the kinds in the records' completions; records whose completion has no reward are left out."""
    numbers, problems = list[list[float]](), list[str]()
    for record in records:
        if (reward := number(record.get("clean_reward"))) is not None:
            text = str(record["completion"]).lower()
            counts = [sum(1 for _ in kind.finditer(text)) for kind in kinds]
            numbers.append([reward, len(text.split()), *counts])
            problems.append(str(record["problem"]))
    table = np.array(numbers, dtype=np.float64).reshape(len(numbers), len(kinds) + 2)
    return Counted(table[:, 2:], table[:, 1], table[:, 0], tuple(problems))


def binned(frequencies: Array, rewards: Array, bins: int) -> list[tuple[float, Estimate]]:
    """Mean frequency and mean reward in bins of about as many completions each, the lowest first.

    Completions of one frequency are in one bin, so that there are fewer where many are the same. The rewards' interval
    is over completions as if they were independent: it is for the figure.
    """
    # Upper ends: where many completions have none of the words, these are a bin.
    ends = np.unique(np.quantile(frequencies, np.linspace(0, 1, bins + 1)[1:]))
    which = np.searchsorted(ends, frequencies, side="left")
    return [
        (float(frequencies[which == place].mean()), mean_interval(rewards[which == place]))
        for place in np.unique(which)
    ]


def _frequency(values: Array, problems: Sequence[str]) -> Estimate:
    """Mean over problems of their completions' mean, with Student's 95% interval, cut at 0."""
    which = np.unique(np.asarray(problems), return_inverse=True)[1]
    found = mean_interval(np.bincount(which, weights=values) / np.bincount(which))
    return found if found.low is None else replace(found, low=max(0.0, found.low))


ANALYSIS = Analysis(
    "how often kinds of words occur, against the reward",
    "AR-Lopti",
    WordsOptions,
    measure,
    plot,
    headline,
    runs=None,
    policy=False,
)
