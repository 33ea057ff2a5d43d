"""Interface of an analysis, one file of this folder: measure -> data frames, plot -> chart, headline -> sentence.

    ANALYSIS = Analysis("how often words occur", "AR-Lopti", WordsOptions, measure, plot, headline, takes_step=False)

Its name is the file's. `request` parses options and writes the figure and JSON. Imports no torch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field

from rlvr_cli.analyses.saved_rollout import SavedRollout, find_saved_rollout
from rlvr_cli.core.lazy import Tensor, alt
from rlvr_cli.core.section import FromList, Section, Text, import_modules
from rlvr_cli.runs.folder import RunDir

if TYPE_CHECKING:
    import pandas as pd

Share = Annotated[float, Field(gt=0.0, lt=1.0)]
Dtype = Annotated[
    Literal["float32", "float64"] | None,
    Field(description="Type of the weights; null = float64 on a CPU, float32 on a GPU."),
]
Methods = Annotated[tuple[Text, ...], FromList, Field(min_length=1, max_length=8)]


def check_increasing(bounds: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return ``bounds``. Raises ValueError unless strictly increasing."""
    if any(low >= high for low, high in itertools.pairwise(bounds)):
        raise ValueError(f"must be strictly increasing; got {list(bounds)}")
    return bounds


Bounds = Annotated[tuple[Share, ...], FromList, Field(min_length=1), AfterValidator(check_increasing)]


@dataclass(frozen=True)
class AnalysisInput:
    """Runs in the folder ``root``, a rollout and a checkpoint's step (None: the newest usable) to analyze."""

    runs: tuple[RunDir, ...]
    root: Path
    rollout: int | None = None
    step: int | None = None

    @property
    def run(self) -> RunDir:
        return self.runs[0]

    def find_rollout(self) -> SavedRollout:
        """Return the rollout with the policies before and after it. Raises UserError as `find_saved_rollout`."""
        return find_saved_rollout(str(self.run.path), self.root, rollout=self.rollout, step=self.step)


def run_labels(runs: Sequence[RunDir]) -> list[str]:
    """Return unique labels: the runs' names, or paths for equal names."""
    names = [run.name for run in runs]
    return [run.name if names.count(run.name) == 1 else str(run.path) for run in runs]


Frames = dict[str, "pd.DataFrame"]


def make_frames(summary: Mapping[str, Any], notes: Iterable[str] = (), **tables: Iterable[Mapping[str, Any]]) -> Frames:
    """Return the frames of an analysis; ``notes`` are caveats, ``tables`` the rows of the other frames."""
    import pandas as pd

    frames = {name: pd.DataFrame(list(rows)) for name, rows in tables.items()}
    return {**frames, "summary": pd.DataFrame([dict(summary)]), "notes": pd.DataFrame({"note": list(notes)})}


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows as JSON values, NaN as None."""
    return [
        {str(name): None if isinstance(value, float) and math.isnan(value) else value for name, value in row.items()}
        for row in frame.to_dict("records")
    ]


def summary_of(frames: Frames) -> dict[str, Any]:
    return records(frames["summary"])[0]


@dataclass(frozen=True)
class Analysis:
    """An analysis.

    Attributes:
        summary: one line for the list of analyses. paper: source of the question. options: its keys.
        measure: returns the frames of `make_frames`. Raises UserError if the runs lack the data.
        plot: draws the frames. headline: the main result in one sentence.
        max_runs: None = unlimited. takes_step: whether `--step` selects the policy to analyze.
    """

    summary: str
    paper: str
    options: type[Section]
    measure: Callable[[AnalysisInput, Any], Frames]
    plot: Callable[[Frames], alt.TopLevelMixin]
    headline: Callable[[Frames], str]
    max_runs: int | None = 1
    takes_step: bool = True


@cache
def analyses() -> Mapping[str, Analysis]:
    """Return the analyses by name, sorted."""
    modules = {module.__name__.rpartition(".")[2]: module for module in import_modules(__package__)}
    return {name: module.ANALYSIS for name, module in modules.items() if hasattr(module, "ANALYSIS")}


def divide(first: float | None, second: float | None) -> float | None:
    """Return ``first / second``; None if either is None or the second is 0."""
    return None if first is None or not second else first / second


def subtract(first: float | None, second: float | None) -> float | None:
    """Return ``first - second``; None if either is None."""
    return None if first is None or second is None else first - second


def mean_of(values: Tensor) -> float | None:
    """Return the mean; None if empty."""
    return float(values.double().mean()) if values.numel() else None
