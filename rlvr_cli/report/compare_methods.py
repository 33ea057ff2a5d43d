"""Compare two methods on a saved rollout: load, score, subtract, draw."""

from __future__ import annotations

from dataclasses import dataclass

from rlvr_cli.analysis.method_difference import Difference, method_difference
from rlvr_cli.analysis.saved_rollout import SavedRollout
from rlvr_cli.analysis.scoring import ScoredRun, score
from rlvr_cli.methods.method import Method
from rlvr_cli.report.compare_request import CompareRequest
from rlvr_cli.report.difference_figure import difference_figure
from rlvr_cli.results.figure import style, write_figure


@dataclass(frozen=True)
class Outcome:
    """Two methods, the rollout they were compared on, and what came out."""

    first: Method
    second: Method
    saved: SavedRollout
    run: ScoredRun
    found: Difference


def compare_methods(request: CompareRequest) -> Outcome:
    """Everything of `rlvr methods compare` but showing it."""
    length = request.saved.config.rollout.max_new_tokens
    first, second = (config.bound(length) for config in (request.first, request.second))
    run = score(request.saved, [first, second])
    found = method_difference(first, second, run.scored, top=request.top)
    if request.figure is not None:
        with style():
            write_figure(difference_figure(first, second, run.scored), request.figure)
    return Outcome(first, second, request.saved, run, found)
