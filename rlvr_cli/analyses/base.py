"""What an analysis is given and what it gives, and how it has its place: by being defined. Imports no torch.

    @analysis("how often kinds of words occur", paper="AR-Lopti", options=WordsOptions, policy=False)
    def words(subject: AnalysisInput, options: WordsOptions) -> Findings:
        ...

Its name is the function's. `rlvr analyze` lists and runs it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import AfterValidator, Field

from rlvr_cli.analyses.saved_rollout import SavedRollout, find_saved_rollout
from rlvr_cli.core.lazy import Tensor
from rlvr_cli.core.section import FromList, Section, Text, define_all
from rlvr_cli.core.table import Table
from rlvr_cli.runs.folder import RunDir

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Share = Annotated[float, Field(gt=0.0, lt=1.0)]
Methods = Annotated[tuple[Text, ...], FromList, Field(min_length=1, max_length=8)]
Options = TypeVar("Options", bound=Section)


def rising(bounds: tuple[Any, ...]) -> tuple[Any, ...]:
    """``bounds``; ValueError unless each is above the one before."""
    if any(low >= high for low, high in itertools.pairwise(bounds)):
        raise ValueError(f"must rise; got {list(bounds)}")
    return bounds


Bounds = Annotated[tuple[Share, ...], FromList, Field(min_length=1), AfterValidator(rising)]


@dataclass(frozen=True)
class AnalysisInput:
    """What is analysed.

    Attributes:
        runs: in the order given; no two are the same.
        root: folder that holds the runs.
        rollout: its number, from 0; None for the newest that can be used.
        step: of the checkpoint; None for the newest.
    """

    runs: tuple[RunDir, ...]
    root: Path
    rollout: int | None = None
    step: int | None = None

    @property
    def run(self) -> RunDir:
        """The one run of an analysis that takes one."""
        return self.runs[0]

    def saved(self) -> SavedRollout:
        """The rollout and the policies around it. Raises UserError as `find_saved_rollout`."""
        return find_saved_rollout(str(self.run.path), self.root, rollout=self.rollout, step=self.step)


def names_of(runs: Sequence[RunDir]) -> list[str]:
    """The runs' names; the path of one whose name another has too."""
    names = [run.name for run in runs]
    return [run.name if names.count(run.name) == 1 else str(run.path) for run in runs]


@dataclass(frozen=True)
class Findings:
    """What an analysis found.

    Attributes:
        headline: the main number in one sentence.
        numbers: JSON values, all that was computed; ``summary`` in it holds the scalars by which runs are compared.
        tables: for people.
        reading: a paragraph on how to read the figure, and what the paper saw.
        draw: makes the figure, inside ``charts.figure.style()``.
        notes: what weakens the numbers here.
    """

    headline: str
    numbers: dict[str, Any]
    tables: tuple[Table, ...]
    reading: str
    draw: Callable[[], Figure]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Analysis:
    """An analysis that has its place.

    Attributes:
        summary: one line for people. paper: whose question it is.
        options: the keys that it takes.
        measure: looks at the subject. Raises UserError where the runs do not hold what it needs.
        runs: most runs that it takes; None for any number.
        policy: whether it needs a checkpoint, of which there must be one then.
    """

    name: str
    summary: str
    paper: str
    options: type[Section]
    measure: Callable[[AnalysisInput, Any], Findings]
    runs: int | None
    policy: bool


_DEFINED: dict[str, Analysis] = {}
MeasureFunction = Callable[[AnalysisInput, Options], Findings]


def analysis(
    summary: str, *, paper: str, options: type[Options], runs: int | None = 1, policy: bool = True
) -> Callable[[MeasureFunction[Options]], MeasureFunction[Options]]:
    """Give a function its place among the analyses, by its name. The arguments are those of `Analysis`."""

    def define(measure: MeasureFunction[Options]) -> MeasureFunction[Options]:
        name = measure.__name__
        _DEFINED[name] = Analysis(name, summary, paper, options, measure, runs, policy)
        return measure

    return define


@cache
def analyses() -> Mapping[str, Analysis]:
    """Every analysis by its name, in the order of names."""
    define_all(__package__)
    return dict(sorted(_DEFINED.items()))


def over(first: float | None, second: float | None) -> float | None:
    """``first / second``; None where one of them does not exist, or the second is 0."""
    return None if first is None or not second else first / second


def minus(first: float | None, second: float | None) -> float | None:
    """``first - second``; None where one of them does not exist."""
    return None if first is None or second is None else first - second


def number_text(value: float | None, form: str) -> str:
    """The number in the format ``form``; `-` where there is none."""
    return "-" if value is None else format(value, form)


def mean_of(values: Tensor) -> float | None:
    """The mean; None of nothing."""
    return float(values.double().mean()) if values.numel() else None
