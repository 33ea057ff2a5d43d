"""What a page's script explores: the points of the charts, and every completion of the held-out evaluations."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rlvr_cli.core.errors import RunError
from rlvr_cli.core.files import number
from rlvr_cli.core.text import count, one_line, shortened, visible
from rlvr_cli.report.charts.chart import Chart
from rlvr_cli.report.data import ReportData
from rlvr_cli.report.evaluations import BASE, MeasuredSetting, MetricChange, first_and_last
from rlvr_cli.store.completions import cut_middle
from rlvr_cli.store.evaluation import Evaluation, read_samples
from rlvr_cli.store.metrics import GREEDY

# Of the compressed completions in a page, which takes a third more as text.
MOST_BYTES = 1_500_000
_MOST_ANSWER = 200


@dataclass(frozen=True)
class Source:
    """An evaluation and what it is of; ``arm``: its place among the arms, None for the model before training."""

    arm: int | None
    run: str
    when: str
    evaluation: Evaluation

    @property
    def of(self) -> str:
        """`kk-gen, test, after 60 rollouts`."""
        return f"{self.evaluation.result['benchmark']}, {self.evaluation.result['split']}, {self.when}"


@dataclass(frozen=True)
class Explorer:
    """``charts``, ``completions``: compressed JSON as text, empty where there is none; ``how``: what is among these."""

    arms: tuple[str, ...]
    charts: str
    completions: str
    how: str


@dataclass(frozen=True)
class ArmPlaces:
    """Which arm a part of a table is of, so that it can be hidden; ``by_name``: an arm's place, by all its names."""

    by_name: Mapping[str, int]

    def column(self, header: Sequence[str], at: int) -> int | None:
        """The arm of a column: its header is the arm's name. A table with a column `arm` has its arms in rows."""
        return None if at == 0 or "arm" in header else self.by_name.get(header[at].removesuffix(" [95%]"))

    def row(self, header: Sequence[str], row: Sequence[str]) -> int | None:
        """The arm of a row, which its column `arm` names."""
        return self.by_name.get(row[header.index("arm")]) if "arm" in header else None


def arm_places(subject: ReportData, names: Sequence[str]) -> ArmPlaces:
    """Arms by their names in the charts (``names``), the tables and the comparison, which may be of fewer runs."""
    if len(subject.arms) < 2:
        return ArmPlaces({})
    places = {name: place for place, arm in enumerate(subject.arms) for name in (names[place], arm.name)}
    of_run = {run.path: place for place, arm in enumerate(subject.arms) for run in arm.runs.values()}
    for name, runs in subject.comparison.scores.arms.items() if subject.comparison else ():
        places.setdefault(name, next(of_run[scores.run.path] for scores in runs.values()))
    return ArmPlaces(places)


def explorer(
    subject: ReportData,
    names: Sequence[str],
    charts: Iterable[Chart],
    evaluations: Sequence[MeasuredSetting],
    changes: Mapping[str, MetricChange],
    problems: list[str],
) -> Explorer:
    """The explorer of a page.

    Args:
        names: of the arms, as the charts have them. problems: gets a line for each damaged file.
    """
    points = {
        chart.key: [
            {"title": one.title, "axis": one.axis, "frame": one.frame, "lines": [asdict(line) for line in one.lines]}
            for one in chart.panels
        ]
        for chart in charts
    }
    found = sources(subject, evaluations, changes, problems)
    completions, how = packed_completions(names, found, problems)
    return Explorer(tuple(names), pack(points), completions, how)


def sources(
    subject: ReportData,
    evaluations: Sequence[MeasuredSetting],
    changes: Mapping[str, MetricChange],
    problems: list[str],
) -> list[Source]:
    """The untrained model's evaluations, those of `rlvr eval`, and of training the first and the last; each once."""
    found: list[Source] = []
    for place, arm in enumerate(subject.arms):
        change = changes.get(arm.name)
        found += (
            [Source(None, str(one.result.get("label", "")), BASE, one) for one in change.untrained] if change else []
        )
        measured = [one for each in evaluations for one in each.arms.get(arm.name, ())]
        for run in arm.runs.values():
            own = [one for one in measured if run.dir.path in one.folder.parents]
            found += [Source(place, run.dir.name, "after training", one) for one in own]
            for when, evaluation in first_and_last(run, problems) or ():
                found.append(Source(place, run.dir.name, when, evaluation))
    return list({one.evaluation.folder: one for one in found}.values())


def packed_completions(names: Sequence[str], found: Sequence[Source], problems: list[str]) -> tuple[str, str]:
    """The completions of all sources as columns, problem by problem, and a sentence on how many there are.

    Of more than ``MOST_BYTES`` those of each evaluation's last problems are left out, of all evaluations alike.
    """
    read: list[tuple[int, dict[str, Any]]] = []
    kept: list[Source] = []
    for one in found:
        if (one.evaluation.folder / "samples.jsonl").exists():
            try:
                read += [(len(kept), row) for row in map(_shown, read_samples(one.evaluation.folder))]
            except (RunError, KeyError, TypeError) as error:
                problems.append(str(error) if isinstance(error, RunError) else _damaged(one, error))
            kept.append(one)
    if not read:
        return "", ""
    ranks: dict[tuple[str, str], int] = {}
    for one in kept:
        for rank, row in enumerate(one.evaluation.rows):
            ranks.setdefault((_set(one), row.id), rank)
    sets = list(dict.fromkeys(map(_set, kept)))
    read = [(at, row) for at, row in read if (_set(kept[at]), row["problem"]) in ranks]
    ranks = _differing_first(ranks, kept, read)
    read.sort(key=lambda pair: (sets.index(_set(kept[pair[0]])), _rank(ranks, kept, pair)))
    deepest = 1 + max(ranks.values())
    most = deepest
    text = _packed(names, kept, read)
    while (size := len(text) * 3 // 4) > MOST_BYTES and most > 1:
        most = max(1, min(most - 1, int(0.97 * most * MOST_BYTES / size)))
        text = _packed(names, kept, [pair for pair in read if _rank(ranks, kept, pair) < most])
    shown = sum(_rank(ranks, kept, pair) < most for pair in read)
    how = f"{count(shown, 'completion')} of {count(len(kept), 'evaluation')} on held-out problems."
    if shown < len(read):
        how += (
            f" That is of {len(read):,} those of the first {most:,} of up to {deepest:,} problems of each evaluation: "
            f"a page holds {MOST_BYTES / 1e6:g} MB of them, compressed. The runs' samples.jsonl have all."
        )
    return text, how


def _differing_first(
    ranks: Mapping[tuple[str, str], int], kept: Sequence[Source], read: Sequence[tuple[int, Mapping[str, Any]]]
) -> dict[tuple[str, str], int]:
    """Ranks of the problems, those first whose answers differ: what is the same everywhere says least."""
    answers: dict[tuple[str, str], set[str | None]] = {}
    for at, row in read:
        answers.setdefault((_set(kept[at]), row["problem"]), set()).add(row["answer"])
    ordered = sorted(ranks, key=lambda key: (len(answers.get(key, ())) < 2, ranks[key]))
    found: dict[str, int] = {}
    places = {}
    for key in ordered:
        places[key] = found[key[0]] = found.get(key[0], -1) + 1
    return places


def _set(one: Source) -> str:
    return f"{one.evaluation.result['benchmark']} {one.evaluation.result['split']}"


def _rank(ranks: Mapping[tuple[str, str], int], kept: Sequence[Source], pair: tuple[int, Mapping[str, Any]]) -> int:
    return ranks[_set(kept[pair[0]]), pair[1]["problem"]]


def _damaged(one: Source, error: Exception) -> str:
    return f"{one.evaluation.folder / 'samples.jsonl'}: a sample, or a part of one, is missing ({error})."


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    """What a page shows of a sample. Raises KeyError and TypeError where a part is missing."""
    answer, tokens = row["answer"], row["tokens"]
    return {
        "problem": str(row["problem"]),
        "sample": GREEDY if row["sample"] == GREEDY else int(row["sample"]) + 1,
        "reason": one_line(row["reason"]),
        "right": int(bool(row["correct"])),
        "reward": number(row.get("reward")),
        "tokens": tokens if isinstance(tokens, int) else None,
        "cut": int(bool(row["truncated"])),
        "answer": None if answer is None else shortened(one_line(str(answer)), _MOST_ANSWER),
        "text": cut_middle(visible(row["text"]))[0],
    }


def _packed(names: Sequence[str], kept: Sequence[Source], rows: Sequence[tuple[int, Mapping[str, Any]]]) -> str:
    groups = {row.id: one_line(row.subgroup) for one in kept for row in one.evaluation.rows}
    ids = list(dict.fromkeys(row["problem"] for _, row in rows))
    places = {name: place for place, name in enumerate(ids)}
    columns: dict[str, list[Any]] = {"source": [at for at, _ in rows]}
    for key in rows[0][1]:
        columns[key] = [places[row[key]] if key == "problem" else row[key] for _, row in rows]
    return pack(
        {
            "arms": list(names),
            "sources": [{"arm": one.arm, "run": one_line(one.run), "of": one_line(one.of)} for one in kept],
            "problems": [[one_line(name), groups[name]] for name in ids],
            "rows": columns,
        }
    )


def pack(value: Any) -> str:
    """Compressed JSON in base64, the same bytes for the same value; empty for an empty value."""
    if not value:
        return ""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()
