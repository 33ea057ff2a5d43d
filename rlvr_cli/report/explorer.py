"""Data of a page's script: points of the charts, and all completions of the held-out evaluations."""

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
from rlvr_cli.report.evaluations import BASE, EvaluatedSetting, MetricChange, find_first_and_last
from rlvr_cli.store.completions import cut_middle
from rlvr_cli.store.evaluation import Evaluation
from rlvr_cli.store.metrics import GREEDY

# Compressed completions of a page; base64 takes a third more.
MOST_BYTES = 1_500_000
_MOST_ANSWER = 200


@dataclass(frozen=True)
class Source:
    """An evaluation; ``arm``: index of its arm, None for the model before training."""

    arm: int | None
    run: str
    when: str
    evaluation: Evaluation

    @property
    def label(self) -> str:
        """Return `kk-gen, test, after 60 rollouts`."""
        return f"{self.problem_set}, {self.when}"

    @property
    def problem_set(self) -> str:
        return f"{self.evaluation.result['benchmark']}, {self.evaluation.result['split']}"


@dataclass(frozen=True)
class ArmIndices:
    """Indices of arms by name, and by rows and columns of tables, to hide them."""

    by_name: Mapping[str, int]

    def column(self, header: Sequence[str], at: int) -> int | None:
        """Return the arm named by a column's header; None in a table with a column `arm`."""
        return None if at == 0 or "arm" in header else self.by_name.get(header[at].removesuffix(" [95%]"))

    def row(self, header: Sequence[str], row: Sequence[str]) -> int | None:
        return self.by_name.get(row[header.index("arm")]) if "arm" in header else None


def index_arms(data: ReportData, names: Sequence[str]) -> ArmIndices:
    """Index arms by their names in the charts (``names``), in tables, and in a comparison of fewer runs."""
    if len(data.arms) < 2:
        return ArmIndices({})
    indices = {name: index for index, arm in enumerate(data.arms) for name in (names[index], arm.name)}
    of_run = {run.path: index for index, arm in enumerate(data.arms) for run in arm.runs.values()}
    for name, runs in data.comparison.scores.arms.items() if data.comparison else ():
        indices.setdefault(name, next(of_run[scores.run.path] for scores in runs.values()))
    return ArmIndices(indices)


def make_explorer(
    data: ReportData,
    names: Sequence[str],
    charts: Iterable[Chart],
    evaluations: Sequence[EvaluatedSetting],
    changes: Mapping[str, MetricChange],
    problems: list[str],
) -> dict[str, Any]:
    """Return the data of a page's script: `charts` and `completions` as compressed JSON in base64, or empty.

    Errors of damaged files are added to ``problems``.
    """
    points = {
        chart.key: [
            {"title": panel.title, "axis": panel.axis, "frame": panel.frame, "lines": list(map(vars, panel.lines))}
            for panel in chart.panels
        ]
        for chart in charts
    }
    completions, summary = _pack_completions(names, _find_sources(data, evaluations, changes, problems), problems)
    return {"arms": names, "charts": _pack(points), "completions": completions, "summary": summary}


def _find_sources(
    data: ReportData,
    evaluations: Sequence[EvaluatedSetting],
    changes: Mapping[str, MetricChange],
    problems: list[str],
) -> list[Source]:
    """Return evaluations of the untrained model, those of `rlvr eval`, and the first and the last of training."""
    sources: list[Source] = []
    for index, arm in enumerate(data.arms):
        untrained = changes[arm.name].untrained if arm.name in changes else ()
        sources += [Source(None, str(each.result.get("label", "")), BASE, each) for each in untrained]
        measured = [each for setting in evaluations for each in setting.arms.get(arm.name, ())]
        for run in arm.runs.values():
            finals = [("after training", each) for each in measured if run.dir.path in each.folder.parents]
            timed = [*finals, *(find_first_and_last(run, problems) or ())]
            sources += [Source(index, run.dir.name, when, each) for when, each in timed]
    return list({source.evaluation.folder: source for source in sources}.values())


def _pack_completions(names: Sequence[str], sources: Sequence[Source], problems: list[str]) -> tuple[str, str]:
    """Return all completions by problem up to ``MOST_BYTES``, and a sentence on their number."""
    sources = [source for source in sources if (source.evaluation.folder / "samples.jsonl").exists()]
    # Index of the source, and fields of a completion.
    rows: list[tuple[int, dict[str, Any]]] = []
    for index, source in enumerate(sources):
        try:
            rows += [(index, _sample_fields(sample)) for sample in source.evaluation.samples]
        except RunError as error:
            problems.append(str(error))
        except (KeyError, TypeError) as error:
            path = source.evaluation.folder / "samples.jsonl"
            problems.append(f"{path}: a sample or one of its fields is missing ({error}).")
    if not rows:
        return "", ""
    ranks = _rank_problems(sources, rows)
    sets = list(dict.fromkeys(source.problem_set for source in sources))
    ranked = [
        (index, ranks[key], row)
        for index, row in rows
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
    summary = f"{count(len(chosen), 'completion')} of {count(len(sources), 'evaluation')} on held-out problems."
    if len(chosen) < len(ranked):
        summary += (
            f" Shows the first {most:,} of up to {deepest:,} problems per evaluation, within {MOST_BYTES / 1e6:g} MB "
            f"({len(ranked):,} completions in all, in the runs' samples.jsonl)."
        )
    return text, summary


def _rank_problems(
    sources: Sequence[Source], rows: Sequence[tuple[int, Mapping[str, Any]]]
) -> dict[tuple[str, str], int]:
    """Rank the problems of each set, by set and id: problems with different answers first."""
    order: dict[tuple[str, str], int] = {}
    for source in sources:
        for rank, problem in enumerate(source.evaluation.rows):
            order.setdefault((source.problem_set, problem.id), rank)
    answers: dict[tuple[str, str], set[str | None]] = {}
    for index, row in rows:
        answers.setdefault((sources[index].problem_set, row["problem"]), set()).add(row["answer"])
    counts = Counter[str]()
    ranks = {}
    for key in sorted(order, key=lambda key: (len(answers.get(key, ())) < 2, order[key])):
        ranks[key] = counts[key[0]]
        counts[key[0]] += 1
    return ranks


def _sample_fields(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Return a sample's fields for the page. Raises KeyError and TypeError if one is missing."""
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
        "text": cut_middle(escape_control(sample["text"])),
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
                {"arm": source.arm, "run": to_one_line(source.run), "of": to_one_line(source.label)}
                for source in sources
            ],
            "problems": [[to_one_line(name), groups[name]] for name in indices],
            "rows": columns,
        }
    )


def _pack(value: Any) -> str:
    """Return gzipped JSON in base64, deterministic; empty for an empty value."""
    if not value:
        return ""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()
