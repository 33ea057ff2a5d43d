"""The papers' evaluations as suites of benchmarks (suites.yaml), and the settings of a benchmark named alone."""

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

# The samples of a benchmark that is named alone, by its number of problems: most problems first.
_BY_SIZE = (
    (1_000, 4, "ACPO, table 1"),
    (40, 8, "ACPO, table 2; K&K: AR-Lopti, section 5.1"),
    (-1, 32, "DGPO, table 3"),
)


@dataclass(frozen=True)
class Setting:
    """Hold how one benchmark is sampled, prompted and judged.

    Attributes:
        samples: sampled completions a problem; 0 = the greedy one alone.
        task: keys of the task's section.
        figures: what the paper prints: `greedy`, `avg` (over all samples), `pass@k` or `maj@k`.
        source: where `samples` (with k and greedy), `temperature`, `length` and `prompt` are from.
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
        """Return what distinguishes this setting from another of its benchmark, whatever the figures' sources are."""
        return {key: value for key, value in self.as_json().items() if key not in ("figures", "source")}


@dataclass(frozen=True)
class Average:
    """Describe a mean over a suite's figures, each with the same weight.

    Attributes:
        parts: (benchmark, figure) pairs.
        by_subgroup: every subgroup of the benchmark is a figure of its own, as K&K's numbers of people.
    """

    name: str
    parts: tuple[tuple[str, str], ...]
    source: str
    by_subgroup: bool = False


@dataclass(frozen=True)
class Suite:
    """Hold what one paper evaluates on."""

    name: str
    paper: str
    settings: tuple[Setting, ...]
    averages: tuple[Average, ...] = ()
    notes: tuple[str, ...] = ()


def _suite(name: str, paper: str, settings: Any, averages: Any = (), notes: tuple[str, ...] = ()) -> Suite:
    """Read an entry of ``suites.yaml``; a setting of several benchmarks is one of each."""
    single = (Setting(**{**entry, "benchmark": name}) for entry in settings for name in entry["benchmark"])
    return Suite(name, paper, tuple(single), tuple(Average(**average) for average in averages), notes)


def _tuples(value: Any) -> Any:
    """Return a YAML value with tuples in place of its lists."""
    if isinstance(value, dict):
        return {key: _tuples(inner) for key, inner in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


_ENTRIES = _tuples(yaml.safe_load(Path(__file__).with_name("suites.yaml").read_text(encoding="utf-8")))
SUITES = {name: _suite(name, **entry) for name, entry in _ENTRIES.items()}


def evaluation_names() -> tuple[str, ...]:
    """Return every name that an evaluation may be asked for by."""
    return (*benchmarks(), *generated_names(), *SUITES)


def unknown_names(names: Sequence[str], key: str) -> list[str]:
    """Return a line for each unknown one of ``names``, which were given as ``key`` (`--benchmark`)."""
    unknown = [name for name in dict.fromkeys(names) if name not in evaluation_names()]
    lines = [f"{key} {name}: unknown.{did_you_mean(name, evaluation_names())}" for name in unknown]
    if lines:
        lines[-1] += f" Benchmarks: {', '.join(benchmarks())}. Generated: {', '.join(generated_names())}. "
        lines[-1] += f"Suites: {', '.join(SUITES)}."
    return lines


def setting_alone(benchmark: str) -> Setting:
    """Return the setting of a benchmark that is named without a suite.

    Samples by the number of problems, with every power of two up to them as k, and the greedy completion; sampled at
    temperature 1. Which problems there are is the benchmark's; how they are prompted and judged is left to the run.
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
