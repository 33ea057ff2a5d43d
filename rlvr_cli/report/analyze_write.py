"""Carries out what `rlvr analyze` was asked, and writes figure and numbers."""

from __future__ import annotations

from rlvr_cli.config.load import load_config
from rlvr_cli.models.libraries import set_threads
from rlvr_cli.report.analyses.catalog import analyze
from rlvr_cli.report.analyses.findings import Findings
from rlvr_cli.report.analyze_request import AnalyzeRequest
from rlvr_cli.results.figure import style, write_figure
from rlvr_cli.runs.atomic import write_json


def analyze_and_write(request: AnalyzeRequest) -> Findings:
    """The findings; the figure and, beside it, the numbers are written before it returns.

    Raises:
        UserError: the runs do not hold what the analysis needs.
    """
    set_threads(load_config([request.subject.run.config_path]).run.threads)
    found = analyze(request.name, request.subject, request.options)
    request.figure.parent.mkdir(parents=True, exist_ok=True)
    with style():
        write_figure(found.draw(), request.figure)
    write_json(request.numbers, as_json(request, found))
    return found


def as_json(request: AnalyzeRequest, found: Findings) -> dict[str, object]:
    """What was analysed, how, and what came out."""
    return {
        "analysis": request.name,
        "options": request.options.model_dump(mode="json"),
        "runs": [str(run.path) for run in request.subject.runs],
        "rollout": request.subject.rollout,
        "step": request.subject.step,
        "headline": found.headline,
        "numbers": found.numbers,
        "notes": list(found.notes),
        "figure": str(request.figure),
    }
