"""The keys of a sweep file, and its reader, which reports every problem with its line."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from rlvr_cli.config.schema import RUN_NAME, Config, RunName
from rlvr_cli.core.errors import UserError, format_problems
from rlvr_cli.core.include import INCLUDE, is_yaml
from rlvr_cli.core.messages import read_section
from rlvr_cli.core.recipes import config_file, read_config
from rlvr_cli.core.section import Count, CountOrZero, FromList, OneOrMore, Section, Text
from rlvr_cli.core.version import FORMAT, FORMAT_KEY, other_format
from rlvr_cli.core.yaml import YamlDocument, YamlProblem, parse
from rlvr_cli.methods.controls import CONTROLS, Control

# A location and a message.
SpecProblem = tuple[str, str]

MAX_SEEDS = 1000
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]
POINT_TITLE = "a mapping from keys to values, as {optimizer.lr: 1e-3}"


class SlotsSpec(Section):
    """The cores and GPUs of each worker."""

    cores: Count | None = Field(None, description="Cores of each worker, exclusive; null = all, shared.")
    gpus: Annotated[int, Field(ge=0, le=1024)] | None = Field(
        None, description="GPUs of each worker (CUDA_VISIBLE_DEVICES); 0 = none; null = all, shared."
    )


class EvalSpec(Section):
    """The evaluation of each finished trial: options of `rlvr eval`."""

    pass_at: Annotated[tuple[Count, ...], FromList] = Field((), description="Every k of pass@k (--pass-at).")
    samples: CountOrZero | None = Field(None, description="Samples a problem (--samples).")
    problems: Count | None = Field(None, description="Held-out problems (--problems).")
    split: Literal["dev", "test"] | None = Field(None, description="Held-out split (--split).")
    benchmark: Annotated[tuple[Text, ...], OneOrMore] = Field(
        (), title="a benchmark or suite, or a list of them", description="Benchmarks (--benchmark)."
    )
    set: dict[str, Any] = Field({}, title=POINT_TITLE, description="Overrides of the evaluation.")


def _named(key: str) -> BeforeValidator:
    """Return a validator that converts a string to a mapping of ``key``."""
    return BeforeValidator(lambda value: {key: value} if isinstance(value, str) else value)


def _switch(value: Any) -> Any:
    """Convert true to the defaults, false to None."""
    return ({} if value else None) if isinstance(value, bool) else value


class ObjectiveSpec(Section):
    """The metric that ranks trials, and that a search optimizes."""

    metric: Text = Field("accuracy", description="accuracy, greedy, pass@K, maj@K, reward, length, ...")
    of: Literal["held_out", "eval", "training"] | None = Field(
        None,
        description="Its source: held-out evaluations in training, the evaluation of the finished trial, or training "
        "metrics; null = the first of these that the trials have.",
    )
    direction: Literal["maximize", "minimize"] | None = Field(
        None, description="null = maximize, for metrics that are better when higher."
    )


class PruningSpec(Section):
    """Early stopping of a search's trials below the median (Optuna's MedianPruner)."""

    startup: Count = Field(5, description="Finished configurations before any is stopped.")
    warmup: Annotated[int, Field(ge=0)] = Field(0, description="Rollouts of a trial before it may be stopped.")


class SearchSpec(Section):
    """An adaptive search over the axes instead of their product."""

    sampler: Literal["tpe", "random"] = Field("tpe", description="Sampler of the configurations.")
    trials: Count | None = Field(None, description="Configurations to run; null = until the budget is spent.")
    startup: Count = Field(10, description="Random configurations before tpe uses results.")
    seed: Annotated[int, Field(ge=0)] = Field(0, description="Seed of the sampler.")
    pruning: Annotated[PruningSpec, BeforeValidator(_switch)] | None = Field(
        None, title="true, false, or a mapping of startup and warmup", description=str(PruningSpec.__doc__)
    )


class ReportedSpec(Section):
    """A table of a paper with its numbers for trials, not results of this sweep."""

    place: Text = Field(description="Source in the paper, as `table 1`.")
    columns: Annotated[tuple[Text, ...], FromList] = Field(
        min_length=1, description="Columns: a metric, or a metric and a benchmark, as `avg@16 aime24`."
    )
    unit: Text = Field("%", description="Unit of the numbers.")
    rows: dict[str, Annotated[tuple[float | None, ...], FromList]] = Field(
        description="The numbers of each trial, by its name without the seed, or by a pattern where the paper leaves "
        "the trial open; null = not reported."
    )


class SweepSpec(Section):
    """A sweep: a base configuration, the axes, and how to run it."""

    format: int = Field(FORMAT, description="Format of the file (docs/runs.md, Versions).")
    name: RunName | None = Field(None, description="Folder of the sweep inside run.dir; null = the file's name.")
    base: Annotated[tuple[Text, ...], OneOrMore] = Field(
        (),
        title="a configuration file, or a list of them (set keys in `set`)",
        description="Configuration files as for `rlvr train -c`, relative to the sweep file; later ones win.",
    )
    set: dict[str, Any] = Field({}, title=POINT_TITLE, description="Overrides of every trial.")
    methods: Annotated[tuple[Text, ...], OneOrMore] | None = Field(
        None, title="a list of methods, as [grpo, dgpo+lopti]", description="An axis: methods, with their modifiers."
    )
    controls: Annotated[tuple[Control, ...], OneOrMore] = Field(
        (),
        title=f"a list of {', '.join(CONTROLS)}",
        description="Control arms: the baseline's method with rewards that do not tell right from wrong.",
    )
    seeds: Annotated[int, Field(ge=1, le=MAX_SEEDS)] | Annotated[tuple[Seed, ...], FromList] | None = Field(
        None,
        title=f"a number of seeds, at least 1 and at most {MAX_SEEDS}, or a list of seeds",
        description="An axis: run.seed, from 0 to one less than the number, or those of the list.",
    )
    grid: dict[str, Any] = Field(
        {}, title="a mapping from keys to lists of values", description="Each key is an axis; a range for a search."
    )
    zip: dict[str, Annotated[tuple[Any, ...], FromList]] = Field(
        {},
        title="a mapping from keys to lists of the same length",
        description="An axis: the keys vary together: first values, second values, ...",
    )
    list: Annotated[tuple[dict[str, Any] | Annotated[tuple[dict[str, Any], ...], FromList], ...], FromList] = Field(
        (),
        title=f"a list whose items are each {POINT_TITLE}, or a list of such lists",
        description="An axis of explicit points; a list of such lists is several axes.",
    )
    exclude: Annotated[tuple[dict[str, Any] | Text, ...], FromList] = Field(
        (),
        title=f"a list whose items are each {POINT_TITLE}, or a pattern of names",
        description="Combinations to exclude: those with all values of an item (a list matches any of its values), or "
        "whose names from `list` match a pattern, as `orz-*`.",
    )
    reported: Annotated[tuple[ReportedSpec, ...], FromList] = Field(
        (),
        title=f"a list whose items are each a mapping of {', '.join(ReportedSpec.model_fields)}",
        description="A paper's numbers for the trials; only shown.",
    )
    identical_arms: bool = Field(
        False, description="Train arms whose methods have the same gradient, which are refused otherwise."
    )
    budget: Count | None = Field(None, description="Maximum rollouts of all trials together.")
    objective: Annotated[ObjectiveSpec, _named("metric")] | None = Field(
        None,
        title=f"a metric, or a mapping of {', '.join(ObjectiveSpec.model_fields)}",
        description=str(ObjectiveSpec.__doc__),
    )
    search: Annotated[SearchSpec, _named("sampler")] | None = Field(
        None,
        title=f"tpe, random, or a mapping of {', '.join(SearchSpec.model_fields)}",
        description=str(SearchSpec.__doc__),
    )
    retries: Annotated[int, Field(ge=0, le=100)] = Field(2, description="Retries of a failed trial.")
    slots: SlotsSpec = Field(SlotsSpec(), title="a mapping of cores and gpus", description=str(SlotsSpec.__doc__))
    eval: EvalSpec | None = Field(
        None,
        title=f"a mapping of {', '.join(EvalSpec.model_fields)}",
        description=f"{EvalSpec.__doc__} null = trials are not evaluated.",
    )


@dataclass(frozen=True)
class SweepFile:
    """A sweep file: ``text`` is its content, ``lines`` the line of each value."""

    path: Path
    text: str
    spec: SweepSpec
    lines: dict[tuple[Any, ...], int]

    @property
    def name(self) -> str:
        return self.spec.name or self.path.stem

    @property
    def base(self) -> list[Path]:
        """The base configuration files."""
        return [config_file(name, self.path.parent) for name in self.spec.base]

    def location(self, *path: Any) -> str:
        """Return `sweep.yaml:7` for the value at ``path``, or for the nearest enclosing value."""
        return YamlDocument(None, self.lines).location(self.path, path)


def read_sweep(path: Path) -> SweepFile:
    """Read a sweep file, or the recipe of that name. Raises UserError with every problem of its keys."""
    path = config_file(path)
    named_yaml = is_yaml(os.path.realpath(path))
    try:
        text = read_config(path)
        document = parse(text)
    except YamlProblem as problem:
        location = f"{path}:{problem.line}" if problem.line else str(path)
        message = problem.message if named_yaml or not problem.line else "not valid YAML"
        raise UserError(format_problems([(location, message)])) from None
    if not isinstance(document.data, dict):
        got = "an empty file" if document.data is None else "a list or a single value"
        raise UserError(f"{path}  must be a mapping with the keys {', '.join(SweepSpec.model_fields)}; got {got}")
    if not named_yaml and not set(document.data) <= set(SweepSpec.model_fields):
        raise UserError(f"{path}  is not a sweep file: it is not named *.yaml, and has other keys than a sweep")
    if fault := other_format(document.data):
        raise UserError(format_problems([(document.location(path, (FORMAT_KEY,)), fault)]))
    spec, faults = read_section(SweepSpec, document.data)
    unknown = set(document.data) - set(SweepSpec.model_fields)
    if unknown and set(document.data) <= {*Config.model_fields, INCLUDE, FORMAT_KEY}:
        raise UserError(
            f"{path}: is a configuration, not a sweep file. Use it with `-c {path}`, or as the `base` of a sweep file."
        )
    if spec is None:
        raise UserError(format_problems([(document.location(path, fault.value_path), str(fault)) for fault in faults]))
    file = SweepFile(path, text, spec, document.lines)
    if not re.fullmatch(RUN_NAME, file.name):
        raise UserError(
            f"{path}  must have a `name:` of letters, digits and _ - . +, since {file.name!r} (from the file's name) "
            "cannot name a folder"
        )
    return file
