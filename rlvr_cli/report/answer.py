"""The answer at the top of a page: the question, the answer in a line, and at most five sentences."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from rlvr_cli.compare.results import ArmOnTask, Contrast, TaskComparison, Verdict
from rlvr_cli.compare.words import comparative, sentence, signed_text, these_runs, what_is_compared
from rlvr_cli.core.text import capital, count, listed, some
from rlvr_cli.evaluation.tables import metric_name
from rlvr_cli.report.data import ReportData
from rlvr_cli.report.evaluations import MeasuredSetting, MetricChange, change_in_words, final_accuracy, in_short
from rlvr_cli.report.setup import eval_words
from rlvr_cli.report.training import without_signal
from rlvr_cli.store.metrics import metric as declared
from rlvr_cli.tasks.sets import problems_name

# Sentences at the top of a page; further ones are folded.
MOST_SENTENCES = 5
# Of more arms the line at the top gives their number, and this many names of each kind.
MOST_NAMED, FEW = 8, 3
Others = Sequence[tuple[ArmOnTask, Contrast]]
WORDS: dict[Verdict, str] = {"unseen": "no difference", "unknown": "no interval"}
# The order of sentences that do not all fit.
_RANKS: Sequence[Verdict] = ("higher", "lower", "uncertain", "single", "unknown", "unseen")


@dataclass(frozen=True)
class Sentence:
    """A sentence about an arm; ``tone`` is good, bad, open or neutral, ``verdict`` is a word or two, or empty."""

    tone: str
    verdict: str
    text: str


@dataclass(frozen=True)
class PageAnswer:
    """The top of a page; ``facts``: lines on the metric and its problems, or on how to measure the rest."""

    question: str
    short: str
    sentences: tuple[Sentence, ...]
    facts: tuple[str, ...] = ()

    @property
    def first(self) -> tuple[Sentence, ...]:
        return self.sentences[:MOST_SENTENCES]

    @property
    def others(self) -> tuple[Sentence, ...]:
        return self.sentences[MOST_SENTENCES:]


def answer(subject: ReportData, changes: dict[str, MetricChange], evaluations: Sequence[MeasuredSetting]) -> PageAnswer:
    """Return the answer.

    Args:
        changes: of the arms that were evaluated at two times, by their names. evaluations: all of `rlvr eval`.
    """
    if subject.comparison is not None:
        return _compared(subject.comparison)
    names = [arm.name for arm in subject.arms]
    tasks = dict.fromkeys(problems_name(run.values["task.name"], run.values["task.data"]) for run in subject.runs)
    models = dict.fromkeys(str(run.values["model.name"]) for run in subject.runs)
    where = f"{listed(list(tasks))} with the model {listed(list(models))}"
    learned = tuple(_learned(name, change) for name, change in changes.items())
    if len(names) > 1:
        short = " ".join(["Not known yet.", *map(capital, subject.readiness.lacking)])
        return PageAnswer(f"How do {listed(names)} compare on {where}?", short, learned)
    finals = [final for setting in evaluations if (final := final_accuracy(setting)) is not None]
    short = " ".join(map(in_short, changes.values())) or (
        f"{finals[0][0]} Its value before training is not known."
        if finals
        else "Not known: it takes held-out evaluations at two times."
    )
    idle = [text for run in subject.arms[0].runs.values() if (text := without_signal(run)) is not None]
    short = " ".join([short, *map(capital, dict.fromkeys(idle))])
    after = tuple(Sentence("neutral", "final", f"{names[0]}: {text}") for _, text in finals)
    facts = tuple(_how_to_know(subject, evaluations[0])) if finals and not changes else ()
    return PageAnswer(f"What did {names[0]} learn on {where}?", short, (*learned, *after), facts)


def _how_to_know(subject: ReportData, setting: MeasuredSetting) -> list[str]:
    """Return the command that measures the model before training as the first run was measured after it."""
    run = subject.runs[0]
    own = next((each for each in setting.evaluations if run.dir.path in each.folder.parents), None)
    if own is None:
        return []
    line = shlex.join([*eval_words(run.path, run, own), "--against", "base"])
    return [f"The model before training is measured by `{line}`"]


def _learned(name: str, change: MetricChange) -> Sentence:
    if not change.clear:
        return Sentence("open", "no difference", f"{name}: {change_in_words(change)}")
    tone = "good" if change.difference.value > 0 else "bad" if change.difference.value < 0 else "neutral"
    return Sentence(tone, change.verb, f"{name}: {change_in_words(change)}")


def _compared(comparison: TaskComparison) -> PageAnswer:
    rows = comparison.others
    ordered = rows if len(rows) <= MOST_SENTENCES else sorted(rows, key=lambda pair: _RANKS.index(pair[1].verdict))
    return PageAnswer(
        question=_question(comparison, rows),
        short=_short(comparison, rows),
        sentences=tuple(_sentence(comparison, row, contrast) for row, contrast in ordered),
        facts=(what_is_compared(comparison)[0],),
    )


def _question(comparison: TaskComparison, rows: Others) -> str:
    metric, base = comparison.scores.metric, comparison.scores.baseline
    names = sorted(row.arm for row, _ in rows)
    if not comparison.tested:
        runs = "does this run" if len(names) == 1 else "do these runs"
        number = len(comparison.scores.arms[base])
        of_base = "this run" if number == 1 else f"these {number} runs"
        return f"How {runs} of {listed(names)} differ from {of_base} of {base}?"
    if declared(metric).higher_is_better is None:
        return f"How does the {metric_name(metric).strip()} of {listed(names)} differ from that of {base}?"
    if len(names) == 1:
        return f"Is {names[0]} better than {base}?"
    if len(names) > MOST_NAMED:
        return f"Is any of {len(names)} arms better than {base}?"
    return f"Is {', '.join(names[:-1])} or {names[-1]} better than {base}?"


def _short(comparison: TaskComparison, rows: Others) -> str:
    """Return the verdicts alone, the surest first, of many arms the first few of each kind.

    `lopti is better than grpo. No difference from grpo detected for dapo.`
    """
    metric, base = comparison.scores.metric, comparison.scores.baseline
    many = len(rows) > MOST_NAMED
    groups: dict[tuple[bool, str], list[str]] = {}
    unseen: list[str] = []
    unknown: list[str] = []
    single: list[str] = []
    for row, contrast in rows:
        verdict = contrast.verdict
        if verdict in ("higher", "lower", "uncertain"):
            key = (verdict == "uncertain", comparative(metric, contrast.difference.value))
            groups.setdefault(key, []).append(row.arm)
        elif verdict == "single":
            difference = signed_text(metric, contrast.difference)
            single.append(f"{capital(these_runs(comparison, row.arm))}: {difference}.")
        else:
            (unseen if verdict == "unseen" else unknown).append(row.arm)
    verdicts = []
    for (uncertain, than), arms in sorted(groups.items(), key=lambda item: item[0][0]):
        verb = "may be" if uncertain else "is" if len(arms) == 1 else "are"
        subjects = listed(arms) if not many else count(len(arms), "arm") if than == "worse than" else some(arms, FEW)
        verdicts.append(f"{subjects} {verb} {than} {base}.")
    if unseen:
        rest = f"the other {len(unseen)}" if groups or unknown else f"any of {len(unseen)} arms"
        verdicts.append(f"No difference from {base} detected for {rest if many else listed(unseen)}.")
    if unknown:
        verdicts.append(f"There is no interval for {some(unknown, FEW) if many else listed(unknown)}.")
    if single:
        verdicts += single if len(single) <= MOST_NAMED else [f"{len(single)} differences are of single runs."]
        verdicts.append("Single runs do not compare methods; `rlvr sweep` with 3 or more seeds does.")
    return " ".join(verdicts)


def _sentence(comparison: TaskComparison, row: ArmOnTask, contrast: Contrast) -> Sentence:
    metric = comparison.scores.metric
    text = sentence(comparison, row)
    if contrast.verdict in ("unseen", "single"):
        text = capital(text)
    if contrast.verdict == "single":
        return Sentence("neutral", "", text)
    if contrast.verdict in WORDS:
        return Sentence("open", WORDS[contrast.verdict], text)
    word = comparative(metric, contrast.difference.value).removesuffix(" than")
    better = declared(metric).higher_is_better
    if contrast.verdict == "uncertain":
        return Sentence("open", f"may be {word}", text)
    tone = "neutral" if better is None else "good" if (contrast.difference.value > 0) == better else "bad"
    return Sentence(tone, word, text)
