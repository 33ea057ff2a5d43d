"""The question of a page, and its answer in a line and in full sentences."""

from __future__ import annotations

from dataclasses import dataclass

from rlvr_cli.evaluation.comparison.values import higher_is_better
from rlvr_cli.evaluation.tables import metric_name
from rlvr_cli.report.comparison import Comparison, Row, Verdict
from rlvr_cli.report.comparison_words import comparative, headline, power_lines, sentence
from rlvr_cli.report.report_learned import Change, in_words
from rlvr_cli.report.report_subject import Subject
from rlvr_cli.report.report_table import count, listed

# What a verdict is called, as the reader sees it at the head of its sentence.
WORDS: dict[Verdict, str] = {"unseen": "no difference seen", "unknown": "no interval"}


@dataclass(frozen=True)
class Sentence:
    """A sentence about one arm; ``tone`` is good, bad, open or neutral, ``verdict`` the same in a word or two."""

    tone: str
    verdict: str
    text: str


@dataclass(frozen=True)
class Answer:
    """What stands at the top of a page.

    Attributes:
        facts: what the numbers are of, as lines.
        further: what else was asked (the power of the comparison).
    """

    question: str
    short: str
    sentences: tuple[Sentence, ...]
    facts: tuple[str, ...]
    further: tuple[str, ...] = ()


def answer(subject: Subject, changes: dict[str, Change]) -> Answer:
    """The answer; ``changes``: of the arms that were evaluated at two times, by their names."""
    if subject.comparison is not None:
        return _compared(subject.comparison)
    names = [arm.name for arm in subject.arms]
    run = subject.runs[0]
    tasks, models = (dict.fromkeys(str(one.values[key]) for one in subject.runs) for key in ("task.name", "model.name"))
    where = f"{listed(list(tasks))} with the model {listed(list(models))}"
    learned = tuple(Sentence("neutral", name, in_words(change)) for name, change in changes.items())
    facts = [f"{listed(list(models))} trained on {listed(list(tasks))}: {count(len(subject.runs), 'run')}"]
    if len(names) > 1:
        short = " ".join(["It is not known yet.", *map(_capital, subject.readiness.lacking)])
        return Answer(f"How do {listed(names)} compare on {where}?", short, learned, tuple(facts))
    arm = subject.arms[0]
    seeds = sorted({one.seed for one in arm.runs})
    facts = [f"{names[0]} trained {where}", f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}"]
    if any(subject.metrics.values()):
        facts.append(f"{run.manifest.get('rollouts_total')} rollouts were planned of each run")
    short = learned[0].text if learned else "The run was not evaluated on held-out problems yet."
    return Answer(f"What did {names[0]} learn on {where}?", short, (), tuple(facts))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _compared(comparison: Comparison) -> Answer:
    rows = [row for row in comparison.rows if row.contrast is not None]
    return Answer(
        question=_question(comparison, rows),
        short=_short(comparison, rows),
        sentences=tuple(_sentence(comparison, row) for row in rows),
        facts=tuple(headline(comparison)),
        further=tuple(power_lines(comparison)),
    )


def _question(comparison: Comparison, rows: list[Row]) -> str:
    metric, base = comparison.material.read.metric, comparison.material.baseline
    names = sorted(row.arm for row in rows)
    if not higher_is_better(metric):
        return f"How does the {metric_name(metric).strip()} of {listed(names)} differ from that of {base}?"
    if len(names) == 1:
        return f"Is {names[0]} better than {base}?"
    return f"Is {listed(names, 'or')} better than {base}?"


def _short(comparison: Comparison, rows: list[Row]) -> str:
    """The verdicts alone, the surest first: `lopti is better than grpo. No difference ... can be seen for dapo.`"""
    metric, base = comparison.material.read.metric, comparison.material.baseline
    groups: dict[tuple[bool, str], list[str]] = {}
    unseen: list[str] = []
    unknown: list[str] = []
    for row in rows:
        assert row.contrast is not None
        verdict = row.contrast.verdict
        if verdict in ("higher", "lower", "uncertain"):
            key = (verdict == "uncertain", comparative(metric, row.contrast.difference.value))
            groups.setdefault(key, []).append(row.arm)
        else:
            (unseen if verdict == "unseen" else unknown).append(row.arm)
    parts = []
    for (uncertain, than), arms in sorted(groups.items(), key=lambda item: item[0][0]):
        verb = "may be" if uncertain else "is" if len(arms) == 1 else "are"
        parts.append(f"{listed(arms)} {verb} {than} {base}.")
    if unseen:
        parts.append(f"No difference from {base} can be seen for {listed(unseen)}.")
    if unknown:
        parts.append(f"For {listed(unknown)} there is no interval, so nothing can be said.")
    return " ".join(parts)


def _sentence(comparison: Comparison, row: Row) -> Sentence:
    contrast, metric = row.contrast, comparison.material.read.metric
    assert contrast is not None
    text = _capital(sentence(comparison, row)) if contrast.verdict == "unseen" else sentence(comparison, row)
    if contrast.verdict in WORDS:
        return Sentence("open", WORDS[contrast.verdict], text)
    word = comparative(metric, contrast.difference.value).removesuffix(" than")
    better = higher_is_better(metric)
    if contrast.verdict == "uncertain":
        return Sentence("open", f"may be {word}", text)
    tone = "neutral" if better is None else "good" if (contrast.difference.value > 0) == better else "bad"
    return Sentence(tone, word, text)
