"""`rlvr analyze`: the request, checked before torch is loaded; the analysis; its figure and numbers as files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr_cli.analyses.base import Analysis, AnalysisInput, analyses, records
from rlvr_cli.charts.figure import check_path, write_chart
from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import UserError, collecting
from rlvr_cli.core.files import write_json
from rlvr_cli.core.layers import label
from rlvr_cli.core.messages import read_section
from rlvr_cli.core.section import Section
from rlvr_cli.core.table import ResultDocument, Table
from rlvr_cli.core.text import did_you_mean, shortened
from rlvr_cli.core.yaml import YamlProblem, parse, yaml_text
from rlvr_cli.models.libraries import set_threads
from rlvr_cli.runs.folder import RunDir, find_run

FOLDER = "analysis"
# Most rows of a table and characters of a cell in the terminal; the files hold everything.
MOST_ROWS = 40
MOST_TEXT = 60


@dataclass(frozen=True)
class AnalyzeRequest:
    """An analysis, its keys, its input, and the path of the figure (the numbers go to ``.json`` next to it)."""

    name: str
    options: Section
    subject: AnalysisInput
    figure: Path

    @property
    def numbers(self) -> Path:
        return self.figure.with_suffix(".json")


def analyze_request(
    name: str,
    runs: Sequence[str],
    root: Path,
    *,
    rollout: int | None = None,
    step: int | None = None,
    overrides: Sequence[str] = (),
    figure: Path | None = None,
) -> AnalyzeRequest:
    """Return the checked request of a command line.

    Raises:
        UserError: an unknown analysis or key, a value out of range, too many runs, a missing run, an invalid path.
    """
    analysis = find_analysis(name)
    problems: list[str] = []
    options = _read_options(name, analysis, overrides, problems)
    if not runs:
        problems.append(f"{name}: needs a run, as --run RUN.")
    if analysis.runs is not None and len(runs) > analysis.runs:
        problems.append(f"{name}: analyzes one run; got {len(runs)}.")
    folders: list[RunDir] = []
    for run in dict.fromkeys(runs):
        with collecting(problems):
            folders.append(find_run(run, root))
    for value, option in ((rollout, "--rollout"), (step, "--step")):
        if value is not None and value < 0:
            problems.append(f"{option} {value}: must be 0 or more.")
    if step is not None and not analysis.policy:
        problems.append(f"{name}: analyzes rollouts only; --step does not apply.")
    if figure is not None:
        with collecting(problems):
            check_path(figure)
    if problems or options is None:
        raise UserError(problems)
    subject = AnalysisInput(tuple(folders), root, rollout, step)
    if figure is None:
        suffixes = [f"-{key}-{value}" for key, value in (("rollout", rollout), ("step", step)) if value is not None]
        # In the run's folder; with several runs, in the folder that holds them.
        folder = subject.run.path if len(folders) == 1 else root
        figure = folder / FOLDER / f"{name}{''.join(suffixes)}.svg"
    return AnalyzeRequest(name, options, subject, figure)


def find_analysis(name: str) -> Analysis:
    """Return the analysis. Raises UserError for an unknown name."""
    available = analyses()
    if name not in available:
        raise UserError(f"{name}: unknown analysis.{did_you_mean(name, available)} Allowed: {', '.join(available)}.")
    return available[name]


def _read_options(name: str, kind: Analysis, overrides: Sequence[str], problems: list[str]) -> Section | None:
    values: dict[str, Any] = {}
    labels: dict[str, str] = {}
    for text in overrides:
        key, equals, written = text.partition("=")
        key = key.strip()
        if not equals or not key:
            fields = kind.options.model_fields.items()
            example = next((f"{name}={yaml_text(field.default)}" for name, field in fields), "key=value")
            problems.append(f"{label(text)}: must be `key=value`, as in {example}")
            continue
        try:
            values[key] = parse(written).data
            labels[key] = label(text)
        except YamlProblem as problem:
            problems.append(f"{label(text)}: {problem.message}")
    if values and not kind.options.model_fields:
        problems.append(f"{', '.join(labels.values())}: {name} has no keys.")
        return None
    options, faults = read_section(kind.options, values, name)
    for fault in faults:
        key = str(fault.path[0])
        problems.append(f"{labels.get(key, f'{name}.{key}')}: {fault.message}")
    return options


def analyze_and_write(request: AnalyzeRequest) -> ResultDocument:
    """Run the analysis, write its chart and numbers, and return the result.

    Raises:
        UserError: the runs do not hold what the analysis needs.
    """
    set_threads(load_config([request.subject.run.config_path]).run.threads)
    analysis = find_analysis(request.name)
    frames = analysis.measure(request.subject, request.options)
    headline, rows = analysis.headline(frames), {name: records(frame) for name, frame in frames.items()}
    notes = [row["note"] for row in rows.pop("notes")]
    data = {
        "analysis": request.name,
        "options": request.options.model_dump(mode="json"),
        "runs": [str(run.path) for run in request.subject.runs],
        "rollout": request.subject.rollout,
        "step": request.subject.step,
        "headline": headline,
        "frames": rows,
        "notes": notes,
        "figure": str(request.figure),
    }
    request.figure.parent.mkdir(parents=True, exist_ok=True)
    write_chart(analysis.plot(frames), request.figure)
    write_json(request.numbers, data)
    single = [{"number": name, "value": value} for name, value in rows["summary"][0].items()]
    tables = {**{name: frame for name, frame in rows.items() if name != "summary"}, "summary": single}
    tables = {name: frame for name, frame in tables.items() if 0 < len(frame) <= MOST_ROWS or name == "summary"}
    return ResultDocument(
        tables=[_table(name, frame) for name, frame in tables.items()],
        data=data,
        rows=[{"frame": name, **row} for name, frame in rows.items() for row in frame],
        before=[headline, *(f"Note: {line}" for line in notes)],
        after=[f"figure: {request.figure}, numbers: {request.numbers}"],
    )


def _table(name: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    header = list(dict.fromkeys(key for row in rows for key in row))
    return Table(name.replace("_", " "), header, [[_cell(row.get(key)) for key in header] for row in rows])


def _cell(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(_cell, value))
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else shortened(str(value), MOST_TEXT)
