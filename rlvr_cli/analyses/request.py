"""`rlvr analyze`: validate the request without torch, run the analysis, and write its figure and numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr_cli.analyses.base import Analysis, AnalysisInput, analyses, records
from rlvr_cli.charts.figure import check_path, write_chart
from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import UserError, collect_problems
from rlvr_cli.core.files import write_json
from rlvr_cli.core.layers import override_label
from rlvr_cli.core.messages import read_section
from rlvr_cli.core.section import Section
from rlvr_cli.core.table import ResultDocument, Table
from rlvr_cli.core.text import did_you_mean, shorten
from rlvr_cli.core.yaml import YamlProblem, parse, yaml_text
from rlvr_cli.models.libraries import set_threads
from rlvr_cli.runs.folder import RunDir, find_run

FOLDER = "analysis"
# Limits of a table in the terminal: rows, and characters of a cell. The files are complete.
MAX_ROWS = 40
MOST_TEXT = 60


@dataclass(frozen=True)
class AnalyzeRequest:
    """A validated request; ``figure``: output path, the numbers go to the same path with suffix ``.json``."""

    name: str
    options: Section
    inputs: AnalysisInput
    figure: Path

    @property
    def numbers(self) -> Path:
        return self.figure.with_suffix(".json")


def make_request(
    name: str,
    runs: Sequence[str],
    root: Path,
    *,
    rollout: int | None = None,
    step: int | None = None,
    overrides: Sequence[str] = (),
    figure: Path | None = None,
) -> AnalyzeRequest:
    """Validate the arguments of a command line. Raises UserError."""
    analysis = find_analysis(name)
    problems: list[str] = []
    options = _read_options(name, analysis, overrides, problems)
    if not runs:
        problems.append(f"{name}: requires a run. Use --run RUN.")
    if analysis.max_runs is not None and len(runs) > analysis.max_runs:
        problems.append(f"{name}: analyzes one run; got {len(runs)}.")
    folders: list[RunDir] = []
    for run in dict.fromkeys(runs):
        with collect_problems(problems):
            folders.append(find_run(run, root))
    for value, option in ((rollout, "--rollout"), (step, "--step")):
        if value is not None and value < 0:
            problems.append(f"{option}: must be 0 or more; got {value}.")
    if step is not None and not analysis.takes_step:
        problems.append(f"{name}: uses no checkpoint. Remove --step.")
    if figure is not None:
        with collect_problems(problems):
            check_path(figure)
    if problems or options is None:
        raise UserError(problems)
    inputs = AnalysisInput(tuple(folders), root, rollout, step)
    if figure is None:
        suffixes = [f"-{key}-{value}" for key, value in (("rollout", rollout), ("step", step)) if value is not None]
        folder = inputs.run.path if len(folders) == 1 else root
        figure = folder / FOLDER / f"{name}{''.join(suffixes)}.svg"
    return AnalyzeRequest(name, options, inputs, figure)


def find_analysis(name: str) -> Analysis:
    available = analyses()
    if name not in available:
        raise UserError(f"{name}: unknown analysis.{did_you_mean(name, available)} Allowed: {', '.join(available)}.")
    return available[name]


def _read_options(name: str, analysis: Analysis, overrides: Sequence[str], problems: list[str]) -> Section | None:
    values: dict[str, Any] = {}
    labels: dict[str, str] = {}
    for text in overrides:
        key, equals, written = text.partition("=")
        key = key.strip()
        if not equals or not key:
            fields = analysis.options.model_fields.items()
            example = next((f"{name}={yaml_text(field.default)}" for name, field in fields), "key=value")
            problems.append(f"{override_label(text)}: must be `key=value`, as in {example}")
            continue
        try:
            values[key] = parse(written).data
            labels[key] = override_label(text)
        except YamlProblem as problem:
            problems.append(f"{override_label(text)}: {problem.message}")
    if values and not analysis.options.model_fields:
        problems.append(f"{', '.join(labels.values())}: {name} has no keys.")
        return None
    options, errors = read_section(analysis.options, values, name)
    for error in errors:
        key = str(error.path[0])
        problems.append(f"{labels.get(key, f'{name}.{key}')}: {error.message}")
    return options


def analyze_and_write(request: AnalyzeRequest) -> ResultDocument:
    """Run the analysis, write its figure and numbers, and return the tables. Raises UserError for missing data."""
    set_threads(load_config([request.inputs.run.config_path]).run.threads)
    analysis = find_analysis(request.name)
    frames = analysis.measure(request.inputs, request.options)
    headline, rows = analysis.headline(frames), {name: records(frame) for name, frame in frames.items()}
    notes = [row["note"] for row in rows.pop("notes")]
    data = {
        "analysis": request.name,
        "options": request.options.model_dump(mode="json"),
        "runs": [str(run.path) for run in request.inputs.runs],
        "rollout": request.inputs.rollout,
        "step": request.inputs.step,
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
    tables = {name: frame for name, frame in tables.items() if 0 < len(frame) <= MAX_ROWS or name == "summary"}
    return ResultDocument(
        tables=[_make_table(name, frame) for name, frame in tables.items()],
        data=data,
        rows=[{"frame": name, **row} for name, frame in rows.items() for row in frame],
        before=[headline, *(f"Note: {line}" for line in notes)],
        after=[f"figure: {request.figure}, numbers: {request.numbers}"],
    )


def _make_table(name: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    header = list(dict.fromkeys(key for row in rows for key in row))
    return Table(name.replace("_", " "), header, [[_format_cell(row.get(key)) for key in header] for row in rows])


def _format_cell(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(_format_cell, value))
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else shorten(str(value), MOST_TEXT)
