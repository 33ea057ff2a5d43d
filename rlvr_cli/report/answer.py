"""Summary at the top of a page: the question, a one-line answer, and a sentence per arm."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from rlvr_cli.compare.results import ArmOnTask, Contrast, TaskComparison, Verdict
from rlvr_cli.compare.words import (
    comparative,
    control_sentences,
    describe_comparison,
    format_signed,
    sentence,
    these_runs,
)
from rlvr_cli.core.text import capitalize, count, ellipsize, join_and
from rlvr_cli.evaluation.tables import metric_name
from rlvr_cli.report.data import ReportData
from rlvr_cli.report.evaluations import (
    EvaluatedSetting,
    MetricChange,
    describe_change,
    final_accuracy,
    summarize_change,
)
from rlvr_cli.report.provenance import eval_command
from rlvr_cli.report.training import summarize_no_signal
from rlvr_cli.store.metrics import metric as declared
from rlvr_cli.tasks.sets import problems_name

# Further sentences are folded.
MOST_SENTENCES = 5
# With more arms, the answer gives their number and FEW names per verdict.
MOST_NAMED, FEW = 8, 3
Others = Sequence[tuple[ArmOnTask, Contrast]]
WORDS: dict[Verdict, str] = {"unseen": "not detected", "unknown": "no interval"}
# Order of sentences if some are folded.
_RANKS: Sequence[Verdict] = ("higher", "lower", "uncertain", "single", "unknown", "unseen")


@dataclass(frozen=True)
class Sentence:
    """A sentence about an arm; ``tone``: good, bad, open or neutral; ``verdict``: one or two words, or empty."""

    tone: str
    verdict: str
    text: str


@dataclass(frozen=True)
class PageAnswer:
    """The summary of a page; ``facts``: lines on the metric and its problems, or on missing measurements."""

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


def make_answer(
    data: ReportData, changes: dict[str, MetricChange], evaluations: Sequence[EvaluatedSetting]
) -> PageAnswer:
    """Summarize a report; ``changes``: by arm, of those with evaluations at two times."""
    if data.comparison is not None:
        return _answer_comparison(data.comparison)
    names = [arm.name for arm in data.arms]
    tasks = dict.fromkeys(problems_name(run.values["task.name"], run.values["task.data"]) for run in data.runs)
    models = dict.fromkeys(str(run.values["model.name"]) for run in data.runs)
    where = f"{join_and(list(tasks))} with the model {join_and(list(models))}"
    learned = tuple(_describe_learning(name, change) for name, change in changes.items())
    if len(names) > 1:
        short = " ".join(["Not comparable yet.", *map(capitalize, data.readiness.obstacles)])
        return PageAnswer(f"How do {join_and(names)} compare on {where}?", short, learned)
    finals = [final for setting in evaluations if (final := final_accuracy(setting)) is not None]
    short = " ".join(map(summarize_change, changes.values())) or (
        f"{finals[0][0]} The model before training was not evaluated."
        if finals
        else "No change measured: fewer than two held-out evaluations."
    )
    idle = [text for run in data.arms[0].runs.values() if (text := summarize_no_signal(run)) is not None]
    short = " ".join([short, *map(capitalize, dict.fromkeys(idle))])
    after = tuple(Sentence("neutral", "final", f"{names[0]}: {text}") for _, text in finals)
    facts = tuple(_baseline_commands(data, evaluations[0])) if finals and not changes else ()
    return PageAnswer(f"What did {names[0]} learn on {where}?", short, (*learned, *after), facts)


def _baseline_commands(data: ReportData, setting: EvaluatedSetting) -> list[str]:
    """Return the command that evaluates the model before training under the setting of the first run."""
    run = data.runs[0]
    evaluation = next((each for each in setting.evaluations if run.dir.path in each.folder.parents), None)
    if evaluation is None:
        return []
    line = shlex.join([*eval_command(run.path, run, evaluation), "--against", "base"])
    return [f"Evaluate the model before training with `{line}`"]


def _describe_learning(name: str, change: MetricChange) -> Sentence:
    if not change.significant:
        return Sentence("open", "not detected", f"{name}: {describe_change(change)}")
    tone = "good" if change.difference.value > 0 else "bad" if change.difference.value < 0 else "neutral"
    return Sentence(tone, change.verb, f"{name}: {describe_change(change)}")


def _answer_comparison(comparison: TaskComparison) -> PageAnswer:
    rows = comparison.others
    ordered = rows if len(rows) <= MOST_SENTENCES else sorted(rows, key=lambda pair: _RANKS.index(pair[1].verdict))
    return PageAnswer(
        question=_write_question(comparison, rows),
        short=_write_short(comparison, rows),
        sentences=(
            *(_write_sentence(comparison, row, contrast) for row, contrast in ordered),
            *(Sentence("neutral", "control", capitalize(text)) for text in control_sentences(comparison)),
        ),
        facts=(describe_comparison(comparison)[0],),
    )


def _write_question(comparison: TaskComparison, rows: Others) -> str:
    metric, base = comparison.scores.metric, comparison.scores.baseline
    names = sorted(row.arm for row, _ in rows)
    if not comparison.tested:
        runs = "does this run" if len(names) == 1 else "do these runs"
        number = len(comparison.scores.arms[base])
        of_base = "this run" if number == 1 else f"these {number} runs"
        return f"How {runs} of {join_and(names)} differ from {of_base} of {base}?"
    if declared(metric).higher_is_better is None:
        return f"How does the {metric_name(metric).strip()} of {join_and(names)} differ from that of {base}?"
    if len(names) == 1:
        return f"Is {names[0]} better than {base}?"
    if len(names) > MOST_NAMED:
        return f"Is any of {len(names)} arms better than {base}?"
    return f"Is {', '.join(names[:-1])} or {names[-1]} better than {base}?"


def _write_short(comparison: TaskComparison, rows: Others) -> str:
    """Return the verdicts, the most certain first: `lopti is better than grpo. No interval for dapo.`"""
    metric, base = comparison.scores.metric, comparison.scores.baseline
    many = len(rows) > MOST_NAMED
    groups: dict[tuple[bool, str], list[str]] = {}
    for row, contrast in rows:
        if contrast.verdict in ("higher", "lower", "uncertain"):
            key = (contrast.verdict == "uncertain", comparative(metric, contrast.difference.value))
            groups.setdefault(key, []).append(row.arm)
    unseen, unknown = (
        [row.arm for row, contrast in rows if contrast.verdict == verdict] for verdict in ("unseen", "unknown")
    )
    single = [
        f"{capitalize(these_runs(comparison, row.arm))}: {format_signed(metric, contrast.difference)}."
        for row, contrast in rows
        if contrast.verdict == "single"
    ]
    verdicts = []
    for (uncertain, than), arms in sorted(groups.items(), key=lambda item: item[0][0]):
        verb = "may be" if uncertain else "is" if len(arms) == 1 else "are"
        subjects = (
            join_and(arms) if not many else count(len(arms), "arm") if than == "worse than" else ellipsize(arms, FEW)
        )
        verdicts.append(f"{subjects} {verb} {than} {base}.")
    if unseen:
        rest = f"the other {len(unseen)}" if groups or unknown else f"any of {len(unseen)} arms"
        verdicts.append(f"No difference from {base} detected for {rest if many else join_and(unseen)}.")
    if unknown:
        verdicts.append(f"No interval for {ellipsize(unknown, FEW) if many else join_and(unknown)}.")
    if single:
        verdicts += single if len(single) <= MOST_NAMED else [f"{len(single)} differences are between single runs."]
        verdicts.append("A single run cannot rank methods. Use `rlvr sweep` with 3 or more seeds.")
    return " ".join(verdicts)


def _write_sentence(comparison: TaskComparison, row: ArmOnTask, contrast: Contrast) -> Sentence:
    metric = comparison.scores.metric
    text = sentence(comparison, row)
    if contrast.verdict in ("unseen", "single"):
        text = capitalize(text)
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
