"""How often kinds of words occur in completions, and how that goes with the reward. Imports no torch.

AR-Lopti, arXiv:2505.12929, section 5.1, figure 5 and table 5.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rlvr_cli.runs.numbers import number
from rlvr_cli.stats.clustered_correlation import Correlation, pearson, spearman
from rlvr_cli.stats.intervals import Estimate, mean_interval
from rlvr_cli.stats.scores import Array


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


def count(records: Iterable[Mapping[str, Any]], kinds: Sequence[re.Pattern[str]]) -> Counted:
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


def together(parts: Sequence[Counted]) -> Counted:
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
            pearson=pearson(frequencies[:, kind], counted.rewards, counted.problems),
            spearman=spearman(frequencies[:, kind], counted.rewards, counted.problems),
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
