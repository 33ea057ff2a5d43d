"""The papers' evaluations as suites of benchmarks (suites.yaml), and the settings of a single benchmark."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rlvr_cli.core.text import did_you_mean
from rlvr_cli.tasks.sets import benchmarks, data_sets, generated_names

POWERS = (1, 2, 4, 8, 16, 32)

# The samples of a single benchmark, by its number of problems: most problems first.
_BY_SIZE = (
    (1_000, 4, "ACPO, table 1"),
    (40, 8, "ACPO, table 2; K&K: AR-Lopti, section 5.1"),
    (-1, 32, "DGPO, table 3"),
)


@dataclass(frozen=True)
class Setting:
    """Sampling, prompting and judging of a benchmark.

    Attributes:
        samples: sampled completions for each problem; 0 = only the greedy one.
        task: keys of the task's section.
        figures: as the paper prints them: `greedy`, `avg` (over all samples), `pass@k` or `maj@k`.
        source: of `samples` (with k and greedy), `temperature`, `length` and `prompt`.
    """

    benchmark: str
    samples: int
    pass_at: tuple[int, ...] = ()
    greedy: bool = False
    temperature: float = 1.0
    top_p: float = 1.0
    max_new_tokens: int = 4096
    task: Mapping[str, Any] = field(default_factory=dict)
    figures: tuple[str, ...] = ()
    source: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the setting as JSON values."""
        values: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return values

    def choices(self) -> dict[str, Any]:
        """Return the values that distinguish settings of a benchmark: all but figures and sources."""
        return {key: value for key, value in self.as_json().items() if key not in ("figures", "source")}


@dataclass(frozen=True)
class Average:
    """An unweighted mean of a suite's figures.

    Attributes:
        parts: (benchmark, figure) pairs.
        by_subgroup: whether each subgroup of the benchmark is a separate figure, as K&K's numbers of people.
    """

    name: str
    parts: tuple[tuple[str, str], ...]
    source: str
    by_subgroup: bool = False


@dataclass(frozen=True)
class Suite:
    """The evaluation of one paper."""

    name: str
    paper: str
    settings: tuple[Setting, ...]
    averages: tuple[Average, ...] = ()
    notes: tuple[str, ...] = ()


def _read_suite(name: str, paper: str, settings: Any, averages: Any = (), notes: tuple[str, ...] = ()) -> Suite:
    """Read an entry of ``suites.yaml``; split a setting of several benchmarks."""
    single = (Setting(**{**entry, "benchmark": name}) for entry in settings for name in entry["benchmark"])
    return Suite(name, paper, tuple(single), tuple(Average(**average) for average in averages), notes)


def _to_tuples(value: Any) -> Any:
    """Return a YAML value with tuples in place of its lists."""
    if isinstance(value, dict):
        return {key: _to_tuples(inner) for key, inner in value.items()}
    return tuple(map(_to_tuples, value)) if isinstance(value, list) else value


_ENTRIES = _to_tuples(yaml.safe_load(Path(__file__).with_name("suites.yaml").read_text(encoding="utf-8")))
SUITES = {name: _read_suite(name, **entry) for name, entry in _ENTRIES.items()}


def evaluation_names() -> tuple[str, ...]:
    """Return every name that `--benchmark` accepts."""
    return (*benchmarks(), *generated_names(), *SUITES)


def unknown_name_errors(names: Sequence[str], key: str) -> list[str]:
    """Return an error for each unknown one of ``names``, given by ``key`` (`--benchmark`)."""
    unknown = [name for name in dict.fromkeys(names) if name not in evaluation_names()]
    lines = [f"{key} {name}: unknown benchmark.{did_you_mean(name, evaluation_names())}" for name in unknown]
    if lines:
        lines[-1] += f" Benchmarks: {', '.join(benchmarks())}. Generated: {', '.join(generated_names())}. "
        lines[-1] += f"Suites: {', '.join(SUITES)}."
    return lines


def default_setting(benchmark: str) -> Setting:
    """Return the setting of a benchmark outside a suite.

    The number of samples depends on the number of problems; k is every power of two up to it; with the greedy
    completion; temperature 1. The run's settings decide prompts and judging.
    """
    data_set = data_sets()[benchmark]
    samples, source = next((n, source) for above, n, source in _BY_SIZE if data_set.size > above)
    by_size = (8192, "DGPO, table 12") if samples == 32 else (4096, "AR-Lopti, table 2")
    length, length_source = data_set.length or by_size
    return Setting(
        benchmark,
        samples,
        pass_at=tuple(k for k in POWERS if k <= samples),
        greedy=True,
        max_new_tokens=length,
        task=data_set.keys,
        source={
            "samples": f"by size: {source}",
            "temperature": "AR-Lopti's code, DGPO's rollouts: 1.0",
            "length": length_source,
            "prompt": "the run's own, else the task's default",
        },
    )
