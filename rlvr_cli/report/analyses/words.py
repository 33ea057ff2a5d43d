"""`rlvr analyze words`: how often kinds of words occur in the completions of runs, against the reward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlvr_cli.analysis.word_lists import Kind, compiled, find_lists, read_lists
from rlvr_cli.analysis.words import KindFound, found_in
from rlvr_cli.config.analysis_kinds import WordsOptions
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.text import listed, shortened
from rlvr_cli.report.analyses.findings import Findings, Subject, Table, told_apart
from rlvr_cli.report.analyses.words_figure import words_figure
from rlvr_cli.report.analyses.words_read import Looked, look
from rlvr_cli.stats.clustered_correlation import Correlation
from rlvr_cli.stats.intervals import Estimate

MOST_WORDS = 60
_READING = (
    "Of one run: a panel is a kind of words, a dot the completions of about one frequency, its height their mean "
    "reward with a 95% interval; a line that rises says that completions with more of these words are paid better. Of "
    "several runs: bars of the mean frequency, with 95% intervals over problems, beside that of the policy before "
    "training. AR-Lopti finds r > 0 for analysis, statement and causal indicator, r < 0 for conclusion indicator, "
    "assumption and assertion, and that its methods use more of the first three and fewer of the others than GRPO "
    "(figure 5). A correlation is no cause: harder problems have longer completions and lower rewards "
    "(`per='100 words'` takes the length out)."
)


@dataclass(frozen=True)
class RunWords:
    """What was looked at in a run, and what was found of each kind, by its name; ``before``: before training."""

    looked: Looked
    kinds: dict[str, KindFound]
    before: dict[str, KindFound]


def analyze(subject: Subject, options: WordsOptions) -> Findings:
    """The words in the last ``options.rollouts`` saved rollouts of each run up to ``subject.rollout``.

    Raises:
        UserError: lists that cannot be read, a run without a saved rollout or that evaluation, no rewards.
    """
    lists = read_lists(find_lists(options.lists))
    patterns = [compiled(kind) for kind in lists.values()]
    problems: list[str] = []
    runs: dict[str, RunWords] = {}
    for name, run in zip(told_apart(subject.runs), subject.runs, strict=True):
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


def _list_table(lists: Mapping[str, Kind]) -> Table:
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
            notes.append(f"{name}: all rewards are the same, so that nothing goes with them.")
    if any(run.looked.start is None for run in runs.values()):
        notes.append("The rollout sampled before training was not saved for every run; there is no start of those.")
    if per == "completion":
        notes.append("Counts grow with the length of a completion; per='100 words' divides by it.")
    return tuple(notes)
