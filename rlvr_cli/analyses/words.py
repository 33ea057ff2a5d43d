"""`rlvr analyze words`: how often kinds of words occur in the completions of runs, against the reward.

AR-Lopti, arXiv:2505.12929, section 5.1, figure 5 and table 5.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field

from rlvr_cli.analyses.base import AnalysisInput, Findings, analysis, names_of
from rlvr_cli.analyses.saved_rollout import last_rollouts, saved_numbers
from rlvr_cli.analyses.word_lists import WordKind, compiled, find_lists, read_lists
from rlvr_cli.charts.figure import COLOURS
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import number
from rlvr_cli.core.section import Count, Section, Text
from rlvr_cli.core.table import Table
from rlvr_cli.core.text import listed, shortened, some, told_apart
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.runs.records import read_record
from rlvr_cli.stats.correlation import Correlation, clustered_pearson, clustered_spearman
from rlvr_cli.stats.intervals import Estimate, mean_interval
from rlvr_cli.stats.scores import Array
from rlvr_cli.store.evaluation import read_samples
from rlvr_cli.store.metrics import GREEDY

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_WORDS = 60
_READING = (
    "Of one run: a panel is a kind of words, a dot the completions of about one frequency, its height their mean "
    "reward with a 95% interval; a line that rises says that completions with more of these words are paid better. Of "
    "several runs: bars of the mean frequency, with 95% intervals over problems, next to that of the policy before "
    "training. AR-Lopti finds r > 0 for analysis, statement and causal indicator, r < 0 for conclusion indicator, "
    "assumption and assertion, and that its methods use more of the first three and fewer of the others than GRPO "
    "(figure 5). A correlation is no cause: harder problems have longer completions and lower rewards "
    "(`per='100 words'` takes the length out)."
)
Kinds = Sequence[re.Pattern[str]]
SAMPLES = "samples.jsonl"
COLUMNS = 3
MOST_NAME = 24
START = "before training"


@dataclass(frozen=True)
class RunWords:
    """What was looked at in a run, and what was found of each kind, by its name; ``before``: before training."""

    looked: Looked
    kinds: dict[str, KindFound]
    before: dict[str, KindFound]


class WordsOptions(Section):
    """Keys of `rlvr analyze words`."""

    lists: Text | None = Field(
        None, description="YAML file of lists of words (docs/analyses/words.md); null = AR-Lopti's table 5."
    )
    per: Literal["completion", "100 words"] = Field("completion", description="What a frequency is of.")
    rollouts: Count = Field(10, description="Saved rollouts that are looked at, the last of them --rollout.")
    evaluation: Text | None = Field(
        None, description="In place of rollouts, the samples of this folder in the run's `eval`, as 'kk-gen-test-*'."
    )
    bins: Count = Field(10, description="Bins of frequency in the figure.")


@analysis(
    "how often kinds of words occur, against the reward",
    paper="AR-Lopti",
    options=WordsOptions,
    runs=None,
    policy=False,
)
def words(subject: AnalysisInput, options: WordsOptions) -> Findings:
    """The words in the last ``options.rollouts`` saved rollouts of each run up to ``subject.rollout``.

    Raises:
        UserError: lists that cannot be read, a run without a saved rollout or that evaluation, no rewards.
    """
    lists = read_lists(find_lists(options.lists))
    patterns = [compiled(kind) for kind in lists.values()]
    problems: list[str] = []
    runs: dict[str, RunWords] = {}
    for name, run in zip(names_of(subject.runs), subject.runs, strict=True):
        try:
            looked = look(run, patterns, subject.rollout, options)
        except UserError as error:
            problems += error.problems
            continue
        of = {
            part: dict(zip(lists, found_in(counted, options.per), strict=True)) if counted is not None else {}
            for part, counted in (("now", looked.counted), ("before", looked.start))
        }
        runs[name] = RunWords(looked, of["now"], of["before"])
    if problems:
        raise UserError(list(dict.fromkeys(problems)))
    summaries = {name: _summary(run) for name, run in runs.items()}
    return Findings(
        headline=_headline(runs),
        numbers={
            "summary": next(iter(summaries.values())) if len(runs) == 1 else {},
            "runs": {name: {"summary": summaries[name], **_as_json(run)} for name, run in runs.items()},
            "lists": {name: list(kind.forms()) for name, kind in lists.items()},
        },
        tables=(_list_table(lists), *(_table(name, run, options.per) for name, run in runs.items())),
        reading=_READING,
        draw=lambda: words_figure(
            {name: (run.looked.counted, run.kinds, run.before) for name, run in runs.items()}, options.per, options.bins
        ),
        notes=_notes(runs, options.per),
    )


def _summary(run: RunWords) -> dict[str, float | int | None]:
    summary: dict[str, float | int | None] = {
        "completions": len(run.looked.counted.rewards),
        "words_mean": float(run.looked.counted.words.mean()),
        "reward_mean": float(run.looked.counted.rewards.mean()),
        "occurrences": sum(found.occurrences for found in run.kinds.values()),
    }
    for name, found in run.kinds.items():
        start = run.before[name].frequency.value if run.before else None
        summary |= {
            f"{name}_frequency": found.frequency.value,
            f"{name}_share": found.share,
            f"{name}_pearson": found.pearson.value if found.pearson else None,
            f"{name}_spearman": found.spearman.value if found.spearman else None,
            f"{name}_start": start,
            f"{name}_change": None if start is None else found.frequency.value - start,
        }
    return summary


def _as_json(run: RunWords) -> dict[str, Any]:
    def kinds(of: Mapping[str, KindFound]) -> dict[str, Any]:
        return {
            name: {
                "occurrences": found.occurrences,
                "frequency": found.frequency.as_json(),
                "share": found.share,
                "pearson": found.pearson.as_json() if found.pearson else None,
                "spearman": found.spearman.as_json() if found.spearman else None,
            }
            for name, found in of.items()
        }

    return {"of": run.looked.where, "kinds": kinds(run.kinds), "before": kinds(run.before)}


def _headline(runs: Mapping[str, RunWords]) -> str:
    completions = sum(len(run.looked.counted.rewards) for run in runs.values())
    if not any(found.occurrences for run in runs.values() for found in run.kinds.values()):
        return (
            f"No such word: none of the {completions:,} completions has a word of the lists, so there is nothing to "
            "compare. Name lists that fit the text with lists=FILE."
        )
    if len(runs) > 1:
        return f"{len(runs)} runs, {completions:,} completions."
    ((_, run),) = runs.items()
    up, down = [], []
    for name, found in run.kinds.items():
        if found.pearson is not None and found.pearson.low is not None and found.pearson.high is not None:
            up += [name] if found.pearson.low > 0 else []
            down += [name] if found.pearson.high < 0 else []
    said = [
        *([f"{listed(up)} with higher rewards"] if up else []),
        *([f"{listed(down)} with lower ones" if up else f"{listed(down)} with lower rewards"] if down else []),
    ]
    return f"{completions:,} completions. " + (
        f"More words of {' and of '.join(said)}." if said else "No kind of words goes with the reward beyond the noise."
    )


def _list_table(lists: Mapping[str, WordKind]) -> Table:
    rows = [(name, shortened(", ".join(kind.forms()), MOST_WORDS)) for name, kind in lists.items()]
    return Table("words that are counted", ("kind", "words and forms"), rows)


def _table(name: str, run: RunWords, per: str) -> Table:
    rows = []
    for kind, found in run.kinds.items():
        start = f"{run.before[kind].frequency.value:.3g}" if run.before else "-"
        rows.append(
            (
                kind,
                str(found.occurrences),
                _estimate(found.frequency),
                start,
                f"{found.share:.1%}",
                _correlation(found.pearson),
                _correlation(found.spearman),
            )
        )
    header = ("kind", "times", f"per {per} [95%]", "at the start", "have any", "Pearson [95%]", "Spearman [95%]")
    return Table(f"{name}: {run.looked.where}, {len(run.looked.counted.rewards):,} completions", header, rows)


def _estimate(found: Estimate) -> str:
    if found.low is None or found.high is None:
        return f"{found.value:.3g}"
    return f"{found.value:.3g} [{found.low:.3g}, {found.high:.3g}]"


def _correlation(found: Correlation | None) -> str:
    if found is None:
        return "-"
    if found.low is None or found.high is None:
        return f"{found.value:+.2f}"
    return f"{found.value:+.2f} [{found.low:+.2f}, {found.high:+.2f}]"


def _notes(runs: Mapping[str, RunWords], per: str) -> tuple[str, ...]:
    notes = []
    for name, run in runs.items():
        absent = [kind for kind, found in run.kinds.items() if not found.occurrences]
        if absent and len(absent) < len(run.kinds):
            notes.append(f"{name}: no word of {listed(absent)}.")
        if (run.looked.counted.rewards == run.looked.counted.rewards[0]).all():
            notes.append(f"{name}: all rewards are the same, so nothing correlates with them.")
    if any(run.looked.start is None for run in runs.values()):
        notes.append("The rollout before training was not saved for every run, so these runs have no start value.")
    if per == "completion":
        notes.append("Counts grow with the length of a completion; per='100 words' divides by it.")
    return tuple(notes)


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
        counted = _together([_rollout(run, number, kinds) for number in numbers])
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
    return found[0], count_words(map(_as_rollout, drawn), kinds)


def _as_rollout(row: Mapping[str, Any]) -> dict[str, Any]:
    reward = row["reward"] if row["scorable"] else None
    return {"problem": row["problem"], "completion": row["text"], "clean_reward": reward}


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


@dataclass(frozen=True)
class KindFound:
    """One kind of words in some completions.

    Attributes:
        occurrences: in all completions together.
        frequency: mean over problems of their completions' mean, with Student's 95% interval, cut at 0.
        share: of completions with at least one.
        pearson, spearman: of frequency and reward over completions; None where one of them does not vary.
    """

    occurrences: int
    frequency: Estimate
    share: float
    pearson: Correlation | None
    spearman: Correlation | None


def count_words(records: Iterable[Mapping[str, Any]], kinds: Sequence[re.Pattern[str]]) -> Counted:
    """Count the kinds in the records' completions; records whose completion has no reward are left out."""
    counts, words, rewards, problems = list[list[int]](), list[int](), list[float](), list[str]()
    for record in records:
        reward = number(record.get("clean_reward"))
        if reward is None:
            continue
        text = str(record["completion"]).lower()
        counts.append([sum(1 for _ in kind.finditer(text)) for kind in kinds])
        words.append(len(text.split()))
        rewards.append(reward)
        problems.append(str(record["problem"]))
    table = np.array(counts, dtype=np.float64).reshape(len(counts), len(kinds))
    return Counted(table, np.array(words, dtype=np.float64), np.array(rewards, dtype=np.float64), tuple(problems))


def _together(parts: Sequence[Counted]) -> Counted:
    """The completions of all parts, of which there is at least one."""
    return Counted(
        np.concatenate([part.counts for part in parts]),
        np.concatenate([part.words for part in parts]),
        np.concatenate([part.rewards for part in parts]),
        tuple(problem for part in parts for problem in part.problems),
    )


def found_in(counted: Counted, per: str) -> list[KindFound]:
    """What there is of each kind, in their order. Raises ValueError without any completion."""
    frequencies = counted.frequencies(per)
    return [
        KindFound(
            occurrences=int(counted.counts[:, kind].sum()),
            frequency=_frequency(frequencies[:, kind], counted.problems),
            share=float((counted.counts[:, kind] > 0).mean()),
            pearson=clustered_pearson(frequencies[:, kind], counted.rewards, counted.problems),
            spearman=clustered_spearman(frequencies[:, kind], counted.rewards, counted.problems),
        )
        for kind in range(counted.counts.shape[1])
    ]


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
    which = np.unique(np.asarray(problems), return_inverse=True)[1]
    found = mean_interval(np.bincount(which, weights=values) / np.bincount(which))
    return found if found.low is None else replace(found, low=max(0.0, found.low))


WordCounts = tuple[Counted, Mapping[str, KindFound], Mapping[str, KindFound]]


def words_figure(runs: Mapping[str, WordCounts], per: str, bins: int) -> Figure:
    """A panel for each kind. Must be called inside ``charts.figure.style()``.

    Args:
        runs: by name: completions, what was found of each kind, and what before training.
        per: what a frequency is of. bins: of frequency, for one run.
    """
    from matplotlib.figure import Figure

    kinds = list(next(iter(runs.values()))[1])
    rows = -(-len(kinds) // COLUMNS)
    figure = Figure(figsize=(10.0, 2.6 * rows + 0.2), layout="constrained")
    grid = figure.subplots(rows, COLUMNS, squeeze=False)
    for place, (axes, kind) in enumerate(zip(grid.flat, kinds, strict=False)):
        axes.set_title(kind.replace("_", " "))
        if not any(found[kind].occurrences for _, found, _ in runs.values()):
            axes.text(0.5, 0.5, "no such word", transform=axes.transAxes, ha="center", color="#777777")
            axes.set_xticks([])
            axes.set_yticks([])
        elif len(runs) == 1:
            ((counted, found, _),) = runs.values()
            _draw_rewards(axes, counted, found[kind], place, per, bins)
        else:
            _draw_bars(axes, {name: (found[kind], before.get(kind)) for name, (_, found, before) in runs.items()}, per)
    for axes in grid.flat[len(kinds) :]:
        axes.set_visible(False)
    return figure


def _draw_rewards(axes: Any, counted: Counted, found: KindFound, place: int, per: str, bins: int) -> None:
    points = binned(counted.frequencies(per)[:, place], counted.rewards, bins)
    x, y = [at for at, _ in points], [reward.value for _, reward in points]
    axes.errorbar(x, y, yerr=_errors([reward for _, reward in points]), fmt="o-", markersize=4, color=COLOURS[0])
    axes.set_xlabel(f"times in a {per}" if per == "completion" else f"times in {per}")
    axes.set_ylabel("mean reward")
    said = [
        f"{letter} = {value.value:+.2f}"
        for letter, value in (("r", found.pearson), (r"$\rho$", found.spearman))
        if value is not None
    ]
    axes.text(0.98, 0.97, "  ".join(said), transform=axes.transAxes, ha="right", va="top", fontsize=8)


def _draw_bars(axes: Any, runs: Mapping[str, tuple[KindFound, KindFound | None]], per: str) -> None:
    shown = told_apart(list(runs), MOST_NAME)
    start = next((before for _, before in runs.values() if before is not None), None)
    bars = {
        **({START: start.frequency} if start is not None else {}),
        **{shown[name]: f.frequency for name, (f, _) in runs.items()},
    }
    colours = [*(["#7F7F7F"] if start is not None else []), *(COLOURS[place % 6] for place in range(len(runs)))]
    places = list(range(len(bars)))
    estimates = list(bars.values())
    axes.barh(
        places, [one.value for one in estimates], xerr=_errors(estimates), color=colours, error_kw={"linewidth": 1}
    )
    axes.set_yticks(places, list(bars), fontsize=7)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel(f"per {per}")


def _errors(estimates: list[Estimate]) -> list[list[float]]:
    """Below and above; 0 where there is no interval."""
    return [
        [0.0 if one.low is None else one.value - one.low for one in estimates],
        [0.0 if one.high is None else one.high - one.value for one in estimates],
    ]
