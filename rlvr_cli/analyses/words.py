"""`rlvr analyze words`: frequencies of kinds of words in completions, and their correlation with the reward.

AR-Lopti, arXiv:2505.12929, section 5.1, figure 5 and table 5.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from pydantic import Field

from rlvr_cli.analyses.base import Analysis, AnalysisInput, Frames, make_frames, records, run_labels, subtract
from rlvr_cli.analyses.saved_rollout import list_rollouts, newest_rollouts
from rlvr_cli.analyses.word_lists import compile_kind, read_lists
from rlvr_cli.core.errors import UserError, collect_problems
from rlvr_cli.core.files import finite, local_path
from rlvr_cli.core.lazy import alt
from rlvr_cli.core.section import Count, Section, Text
from rlvr_cli.core.text import ellipsize, join_and
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
    lists: Text | None = Field(None, description="YAML file of lists of words; null = AR-Lopti's table 5.")
    per: Literal["completion", "100 words"] = Field("completion", description="Unit of the frequency.")
    rollouts: Count = Field(10, description="Number of saved rollouts to analyze, up to --rollout.")
    evaluation: Text | None = Field(
        None, description="Analyze the samples of this folder in the run's `eval` instead, e.g. 'kk-gen-test-*'."
    )
    bins: Count = Field(10, description="Bins of frequency in the figure.")


def measure(inputs: AnalysisInput, options: WordsOptions) -> Frames:
    """Count words in the last ``options.rollouts`` saved rollouts of each run up to ``inputs.rollout``."""
    lists = read_lists(None if options.lists is None else local_path(options.lists))
    patterns = [compile_kind(kind) for kind in lists.values()]
    problems: list[str] = []
    runs: dict[str, RunWords] = {}
    for name, run in zip(run_labels(inputs.runs), inputs.runs, strict=True):
        with collect_problems(problems):
            runs[name] = count_run_words(run, patterns, inputs.rollout, options)
    if problems:
        raise UserError(list(dict.fromkeys(problems)))
    kinds, completions, bins = list[Row](), list[Row](), list[Row]()
    for name, words in runs.items():
        counted, frequencies = words.counted, words.counted.frequencies(options.per)
        before = None if words.start is None else words.start.frequencies(options.per)
        completions.append(
            {
                "run": name,
                "of": words.label,
                "completions": len(counted.rewards),
                "words_mean": float(counted.words.mean()),
                "reward_mean": float(counted.rewards.mean()),
                "occurrences": int(counted.counts.sum()),
            }
        )
        for column, kind in enumerate(lists):
            key, values = {"run": name, "kind": kind}, frequencies[:, column]
            row: Row = {**key, **_kind_row(counted, counted.counts[:, column], values)}
            start = None
            if words.start is not None and before is not None:
                start = _mean_frequency(before[:, column], words.start.problems).value
            kinds.append(row | {"start": start, "change": subtract(row["frequency"], start)})
            bins += [
                key | {"frequency": at, "reward": reward.value, "low": reward.low, "high": reward.high}
                for at, reward in bin_rewards(values, counted.rewards, options.bins)
            ]
    return make_frames(
        _summarize(completions[0], kinds) if len(runs) == 1 else {},
        _make_notes(runs, kinds, options.per),
        completions=completions,
        kinds=kinds,
        bins=bins,
        lists=[{"kind": name, "words": ", ".join(kind.forms())} for name, kind in lists.items()],
    )


def _kind_row(counted: WordCounts, counts: Array, frequencies: Array) -> Row:
    """Return the statistics of a kind of words; a correlation with a constant is None."""
    estimates = {
        "frequency": _mean_frequency(frequencies, counted.problems),
        "pearson": clustered_pearson(frequencies, counted.rewards, counted.problems),
        "spearman": clustered_spearman(frequencies, counted.rewards, counted.problems),
    }
    row: Row = {"occurrences": int(counts.sum()), "share": float((counts > 0).mean())}
    for name, estimate in estimates.items():
        for key, end in ((name, "value"), (f"{name}_low", "low"), (f"{name}_high", "high")):
            row[key] = None if estimate is None else getattr(estimate, end)
    return row


def _summarize(completions: Mapping[str, Any], kinds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    summary = {name: completions[name] for name in ("completions", "words_mean", "reward_mean", "occurrences")}
    for row in kinds:
        names = ("frequency", "share", "pearson", "spearman", "start", "change")
        summary |= {f"{row['kind']}_{name}": row[name] for name in names}
    return summary


def _make_notes(runs: Mapping[str, RunWords], kinds: Sequence[Mapping[str, Any]], per: str) -> list[str]:
    notes = []
    for name, words in runs.items():
        rows = [row for row in kinds if row["run"] == name]
        absent = [row["kind"] for row in rows if not row["occurrences"]]
        if absent and len(absent) < len(rows):
            notes.append(f"{name}: no word of {join_and(absent)}.")
        if (words.counted.rewards == words.counted.rewards[0]).all():
            notes.append(f"{name}: all rewards are the same; no correlation is defined.")
    if any(words.start is None for words in runs.values()):
        notes.append("Runs that did not save their first rollout have no start value.")
    if per == "completion":
        notes.append("Counts grow with completion length; per='100 words' normalizes by it.")
    return notes


def headline(frames: Frames) -> str:
    runs, kinds = records(frames["completions"]), records(frames["kinds"])
    total = sum(row["completions"] for row in runs)
    if not any(row["occurrences"] for row in runs):
        return f"None of the {total:,} completions contains a word of the lists. Set lists=FILE to use others."
    if len(runs) > 1:
        return f"{len(runs)} runs, {total:,} completions."
    up = [row["kind"] for row in kinds if row["pearson_low"] is not None and row["pearson_low"] > 0]
    down = [row["kind"] for row in kinds if row["pearson_high"] is not None and row["pearson_high"] < 0]
    sides = [f"{join_and(names)} with {side} rewards" for names, side in ((up, "higher"), (down, "lower")) if names]
    return f"{total:,} completions. " + (
        f"More words of {' and of '.join(sides)}."
        if sides
        else "No kind of words correlates significantly with the reward."
    )


def plot(frames: Frames) -> alt.TopLevelMixin:
    base = alt.Chart().encode(x=alt.X("frequency:Q"), color="run:N")
    points = base.mark_line(point=True).encode(y=alt.Y("reward:Q", title="mean reward"))
    bars = base.mark_rule().encode(y="low:Q", y2="high:Q")
    panel = alt.layer(points, bars, data=frames["bins"]).properties(width=200, height=140)
    return panel.facet("kind:N", columns=COLUMNS).properties(resolve={"scale": {"x": "independent"}})


@dataclass(frozen=True)
class RunWords:
    """Word counts of a run's rollouts or evaluation; ``start``: the first rollout, None if it was not saved."""

    label: str
    counted: WordCounts
    start: WordCounts | None


def count_run_words(run: RunDir, kinds: Kinds, last: int | None, options: WordsOptions) -> RunWords:
    """Count words in the rollouts up to ``last``, or in ``options.evaluation``. Raises UserError for missing data."""
    if options.evaluation is not None:
        if last is not None:
            raise UserError("--rollout and evaluation= cannot be combined. Remove one.")
        label, counted = _count_evaluation(run, kinds, options.evaluation)
    else:
        numbers = newest_rollouts(run, last, options.rollouts)
        label = f"rollout {numbers[0]}" + (f" to {numbers[-1]}" if len(numbers) > 1 else "")
        counted = _count_rollouts(run, numbers, kinds)
    if not len(counted.rewards):
        raise UserError(f"{run.path}: no completion of {label} has a reward.")
    start = _count_rollouts(run, [0], kinds) if 0 in list_rollouts(run) else None
    return RunWords(label, counted, start if start is not None and len(start.rewards) else None)


def _count_rollouts(run: RunDir, numbers: Sequence[int], kinds: Kinds) -> WordCounts:
    files = [run.rollouts_dir / f"rollout-{number:06d}.jsonl" for number in numbers]
    return count_words((row for file in files for row in read_record(run, file)), kinds)


def _count_evaluation(run: RunDir, kinds: Kinds, pattern: str) -> tuple[str, WordCounts]:
    names = sorted(path.parent.name for path in run.eval_dir.glob(f"*/{SAMPLES}"))
    matches = sorted(path.parent.name for path in run.eval_dir.glob(f"*/{SAMPLES}") if path.parent.match(pattern))
    if len(matches) != 1:
        available = f"Evaluations: {ellipsize(names, 8)}." if names else "Use `rlvr eval` to make one."
        number = f"{len(matches)} evaluations match" if matches else "no evaluation matches"
        raise UserError(f"{run.path}: {number} {pattern}. {available}")
    # A sample that was judged again has several records; the newest wins.
    records = {(row["problem"], row["sample"]): row for row in read_samples(run.eval_dir / matches[0])}
    drawn = [row for row in records.values() if row["sample"] != GREEDY] or list(records.values())
    completions = (
        {
            "problem": row["problem"],
            "completion": row["text"],
            "clean_reward": row["reward"] if row["scorable"] else None,
        }
        for row in drawn
    )
    return matches[0], count_words(completions, kinds)


@dataclass(frozen=True)
class WordCounts:
    """Word counts of N completions: (N, K) ``counts`` by kind; (N,) ``words``, ``rewards`` and ids of ``problems``."""

    counts: Array
    words: Array
    rewards: Array
    problems: tuple[str, ...]

    def frequencies(self, per: str) -> Array:
        """Return the (N, K) counts, or counts per hundred words (0 for a completion without words)."""
        if per == "completion":
            return self.counts
        rates: Array = 100 * self.counts / np.maximum(self.words, 1)[:, None]
        return rates


def count_words(records: Iterable[Mapping[str, Any]], kinds: Sequence[re.Pattern[str]]) -> WordCounts:
    """Count words of each kind in the records' completions; records without a reward are skipped."""
    numbers, problems = list[list[float]](), list[str]()
    for record in records:
        if (reward := finite(record.get("clean_reward"))) is not None:
            text = str(record["completion"]).lower()
            counts = [sum(1 for _ in kind.finditer(text)) for kind in kinds]
            numbers.append([reward, len(text.split()), *counts])
            problems.append(str(record["problem"]))
    table = np.array(numbers, dtype=np.float64).reshape(len(numbers), len(kinds) + 2)
    return WordCounts(table[:, 2:], table[:, 1], table[:, 0], tuple(problems))


def bin_rewards(frequencies: Array, rewards: Array, bins: int) -> list[tuple[float, Estimate]]:
    """Return mean frequency and mean reward in quantile bins of frequency, ascending.

    Ties share a bin, so there may be fewer than ``bins``. The interval, for the figure, assumes independent
    completions.
    """
    # By upper ends: completions without a word of the kind share the first bin.
    ends = np.unique(np.quantile(frequencies, np.linspace(0, 1, bins + 1)[1:]))
    bin_of_row = np.searchsorted(ends, frequencies, side="left")
    return [
        (float(frequencies[bin_of_row == index].mean()), mean_interval(rewards[bin_of_row == index]))
        for index in np.unique(bin_of_row)
    ]


def _mean_frequency(values: Array, problems: Sequence[str]) -> Estimate:
    """Return the mean over problems of their completions' mean, with Student's 95% interval clipped at 0."""
    problem_of_row = np.unique(np.asarray(problems), return_inverse=True)[1]
    interval = mean_interval(np.bincount(problem_of_row, weights=values) / np.bincount(problem_of_row))
    return interval if interval.low is None else replace(interval, low=max(0.0, interval.low))


ANALYSIS = Analysis(
    "frequency of kinds of words, and its correlation with the reward",
    "AR-Lopti",
    WordsOptions,
    measure,
    plot,
    headline,
    max_runs=None,
    takes_step=False,
)
