"""The data of a page's script: the points of the charts, and every completion of the held-out evaluations."""

from __future__ import annotations

import base64
import gzip
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlvr_cli.core.errors import RunError
from rlvr_cli.core.files import finite
from rlvr_cli.core.text import count, escape_control, shorten, to_one_line
from rlvr_cli.report.charts.chart import Chart
from rlvr_cli.report.data import ReportData
from rlvr_cli.report.evaluations import BASE, MeasuredSetting, MetricChange, first_and_last
from rlvr_cli.store.completions import cut_middle
from rlvr_cli.store.evaluation import Evaluation
from rlvr_cli.store.metrics import GREEDY

# Of the compressed completions in a page; as text they take a third more.
MOST_BYTES = 1_500_000
_MOST_ANSWER = 200


@dataclass(frozen=True)
class Source:
    """An evaluation; ``arm``: the index of its arm, None for the model before training."""

    arm: int | None
    run: str
    when: str
    evaluation: Evaluation

    @property
    def of(self) -> str:
        """Return `kk-gen, test, after 60 rollouts`."""
        return f"{self.problem_set}, {self.when}"

    @property
    def problem_set(self) -> str:
        return f"{self.evaluation.result['benchmark']}, {self.evaluation.result['split']}"


@dataclass(frozen=True)
class Explorer:
    """``charts``, ``completions``: compressed JSON as text, empty without any; ``how``: the number of completions."""

    arms: tuple[str, ...]
    charts: str
    completions: str
    how: str


@dataclass(frozen=True)
class ArmIndices:
    """The index of an arm by all its names, and by the rows and columns of tables, so that they can be hidden."""

    by_name: Mapping[str, int]

    def column(self, header: Sequence[str], at: int) -> int | None:
        """Return the arm whose name is a column's header; None in a table with arms in rows, a column `arm`."""
        return None if at == 0 or "arm" in header else self.by_name.get(header[at].removesuffix(" [95%]"))

    def row(self, header: Sequence[str], row: Sequence[str]) -> int | None:
        """Return the arm of a row by its column `arm`."""
        return self.by_name.get(row[header.index("arm")]) if "arm" in header else None


def arm_indices(subject: ReportData, names: Sequence[str]) -> ArmIndices:
    """Index arms by their names in the charts (``names``), the tables and the comparison, maybe of fewer runs."""
    if len(subject.arms) < 2:
        return ArmIndices({})
    indices = {name: index for index, arm in enumerate(subject.arms) for name in (names[index], arm.name)}
    of_run = {run.path: index for index, arm in enumerate(subject.arms) for run in arm.runs.values()}
    for name, runs in subject.comparison.scores.arms.items() if subject.comparison else ():
        indices.setdefault(name, next(of_run[scores.run.path] for scores in runs.values()))
    return ArmIndices(indices)


def explorer(
    subject: ReportData,
    names: Sequence[str],
    charts: Iterable[Chart],
    evaluations: Sequence[MeasuredSetting],
    changes: Mapping[str, MetricChange],
    problems: list[str],
) -> Explorer:
    """Return the explorer of a page.

    Args:
        names: of the arms, as in the charts. problems: gets a line for each damaged file.
    """
    points = {
        chart.key: [
            {"title": panel.title, "axis": panel.axis, "frame": panel.frame, "lines": list(map(vars, panel.lines))}
            for panel in chart.panels
        ]
        for chart in charts
    }
    completions, how = _pack_completions(names, _sources(subject, evaluations, changes, problems), problems)
    return Explorer(tuple(names), _pack(points), completions, how)


def _sources(
    subject: ReportData,
    evaluations: Sequence[MeasuredSetting],
    changes: Mapping[str, MetricChange],
    problems: list[str],
) -> list[Source]:
    """Return the untrained model's evaluations, those of `rlvr eval`, and the first and the last of training."""
    sources: list[Source] = []
    for index, arm in enumerate(subject.arms):
        untrained = changes[arm.name].untrained if arm.name in changes else ()
        sources += [Source(None, str(each.result.get("label", "")), BASE, each) for each in untrained]
        measured = [each for setting in evaluations for each in setting.arms.get(arm.name, ())]
        for run in arm.runs.values():
            own = [each for each in measured if run.dir.path in each.folder.parents]
            moments = [*(("after training", each) for each in own), *(first_and_last(run, problems) or ())]
            sources += [Source(index, run.dir.name, when, each) for when, each in moments]
    return list({source.evaluation.folder: source for source in sources}.values())


def _pack_completions(names: Sequence[str], sources: Sequence[Source], problems: list[str]) -> tuple[str, str]:
    """Return the completions of all sources as columns, problem by problem, and a sentence on their number.

    Beyond ``MOST_BYTES`` those of each evaluation's last problems are left out, of all evaluations alike.
    """
    sources = [source for source in sources if (source.evaluation.folder / "samples.jsonl").exists()]
    # Index of the source, rank of the problem among those of its set, and fields of a completion.
    rows: list[tuple[int, int, dict[str, Any]]] = []
    for index, source in enumerate(sources):
        try:
            rows += [(index, 0, _fields(sample)) for sample in source.evaluation.samples]
        except RunError as error:
            problems.append(str(error))
        except (KeyError, TypeError) as error:
            path = source.evaluation.folder / "samples.jsonl"
            problems.append(f"{path}: a sample, or a field of it, is missing ({error}).")
    if not rows:
        return "", ""
    ranks = _rank_problems(sources, rows)
    sets = list(dict.fromkeys(source.problem_set for source in sources))
    ranked = [
        (index, ranks[key], row)
        for index, _, row in rows
        if (key := (sources[index].problem_set, row["problem"])) in ranks
    ]
    ranked.sort(key=lambda entry: (sets.index(sources[entry[0]].problem_set), entry[1]))
    most = deepest = 1 + max(ranks.values())
    chosen = ranked
    text = _pack_rows(names, sources, chosen)
    while (size := len(text) * 3 // 4) > MOST_BYTES and most > 1:
        most = max(1, min(most - 1, int(0.97 * most * MOST_BYTES / size)))
        chosen = [entry for entry in ranked if entry[1] < most]
        text = _pack_rows(names, sources, chosen)
    how = f"{count(len(chosen), 'completion')} of {count(len(sources), 'evaluation')} on held-out problems."
    if len(chosen) < len(ranked):
        how += (
            f" That is of {len(ranked):,} those of the first {most:,} of up to {deepest:,} problems of each "
            f"evaluation: a page holds {MOST_BYTES / 1e6:g} MB of them, compressed. The runs' samples.jsonl have all."
        )
    return text, how


def _rank_problems(
    sources: Sequence[Source], rows: Sequence[tuple[int, int, Mapping[str, Any]]]
) -> dict[tuple[str, str], int]:
    """Return the rank of each problem in its set, by set and id: problems with different answers first."""
    order: dict[tuple[str, str], int] = {}
    for source in sources:
        for rank, problem in enumerate(source.evaluation.rows):
            order.setdefault((source.problem_set, problem.id), rank)
    answers: dict[tuple[str, str], set[str | None]] = {}
    for index, _, row in rows:
        answers.setdefault((sources[index].problem_set, row["problem"]), set()).add(row["answer"])
    counts = Counter[str]()
    ranks = {}
    for key in sorted(order, key=lambda key: (len(answers.get(key, ())) < 2, order[key])):
        ranks[key] = counts[key[0]]
        counts[key[0]] += 1
    return ranks


def _fields(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a sample for the page. Raises KeyError and TypeError if one is missing."""
    answer, tokens = sample["answer"], sample["tokens"]
    return {
        "problem": str(sample["problem"]),
        "sample": GREEDY if sample["sample"] == GREEDY else int(sample["sample"]) + 1,
        "reason": to_one_line(sample["reason"]),
        "right": int(bool(sample["correct"])),
        "reward": finite(sample.get("reward")),
        "tokens": tokens if isinstance(tokens, int) else None,
        "cut": int(bool(sample["truncated"])),
        "answer": None if answer is None else shorten(to_one_line(str(answer)), _MOST_ANSWER),
        "text": cut_middle(escape_control(sample["text"]))[0],
    }


def _pack_rows(
    names: Sequence[str], sources: Sequence[Source], rows: Sequence[tuple[int, int, Mapping[str, Any]]]
) -> str:
    groups = {problem.id: to_one_line(problem.subgroup) for source in sources for problem in source.evaluation.rows}
    indices = {name: index for index, name in enumerate(dict.fromkeys(row["problem"] for *_, row in rows))}
    columns: dict[str, list[Any]] = {"source": [index for index, *_ in rows]}
    for key in rows[0][2]:
        columns[key] = [indices[row[key]] if key == "problem" else row[key] for *_, row in rows]
    return _pack(
        {
            "arms": list(names),
            "sources": [
                {"arm": source.arm, "run": to_one_line(source.run), "of": to_one_line(source.of)} for source in sources
            ],
            "problems": [[to_one_line(name), groups[name]] for name in indices],
            "rows": columns,
        }
    )


def _pack(value: Any) -> str:
    """Return compressed JSON in base64, the same bytes for the same value; empty for an empty value."""
    if not value:
        return ""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()
