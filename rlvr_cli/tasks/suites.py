"""Suites of benchmarks as in the papers (suites.yaml), and default settings of a single benchmark."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from rlvr_cli.core.nested import to_tuples
from rlvr_cli.core.text import did_you_mean
from rlvr_cli.tasks.sets import benchmarks, data_sets, generated_names

POWERS = (1, 2, 4, 8, 16, 32)

# Samples per problem of a single benchmark: (more problems than, samples, source).
_BY_SIZE = (
    (1_000, 4, "ACPO, table 1"),
    (40, 8, "ACPO, table 2; K&K: AR-Lopti, section 5.1"),
    (-1, 32, "DGPO, table 3"),
)


@dataclass(frozen=True)
class Setting:
    """Sampling, prompting and judging of a benchmark.

    Attributes:
        samples: sampled completions per problem; 0 = only the greedy one.
        task: keys of the section `task`.
        figures: those reported by the paper: `greedy`, `avg` (over all samples), `pass@k` or `maj@k`.
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
        values: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return values

    def choices(self) -> dict[str, Any]:
        """Return the values that affect results: all but figures and sources."""
        return {key: value for key, value in self.as_json().items() if key not in ("figures", "source")}


@dataclass(frozen=True)
class Average:
    """An unweighted mean of a suite's figures.

    ``figures``: (benchmark, figure) pairs. ``by_subgroup``: whether each subgroup of the benchmark is a separate
    figure, as K&K's numbers of people.
    """

    name: str
    figures: tuple[tuple[str, str], ...]
    source: str
    by_subgroup: bool = False


@dataclass(frozen=True)
class Suite:
    """The evaluation of a paper."""

    name: str
    paper: str
    settings: tuple[Setting, ...]
    averages: tuple[Average, ...] = ()
    notes: tuple[str, ...] = ()


def _read_suite(name: str, paper: str, settings: Any, averages: Any = (), notes: tuple[str, ...] = ()) -> Suite:
    single = (Setting(**{**entry, "benchmark": name}) for entry in settings for name in entry["benchmark"])
    return Suite(name, paper, tuple(single), tuple(Average(**average) for average in averages), notes)


_ENTRIES = to_tuples(yaml.safe_load(Path(__file__).with_name("suites.yaml").read_text(encoding="utf-8")))
SUITES = {name: _read_suite(name, **entry) for name, entry in _ENTRIES.items()}


def evaluation_names() -> tuple[str, ...]:
    return (*benchmarks(), *generated_names(), *SUITES)


def unknown_name_errors(names: Sequence[str], key: str) -> list[str]:
    unknown = [name for name in dict.fromkeys(names) if name not in evaluation_names()]
    errors = [f'{key}: unknown benchmark "{name}".{did_you_mean(name, evaluation_names())}' for name in unknown]
    if errors:
        errors[-1] += f" Benchmarks: {', '.join(benchmarks())}. Generated: {', '.join(generated_names())}. "
        errors[-1] += f"Suites: {', '.join(SUITES)}."
    return errors


def default_setting(benchmark: str) -> Setting:
    """Return the setting of a benchmark outside a suite; the run decides prompts and judging.

    The number of samples depends on the number of problems unless the set has the authors' own, and k is every power of
    two up to it.
    """
    data_set = data_sets()[benchmark]
    samples, source = next((n, source) for above, n, source in _BY_SIZE if data_set.size > above)
    by_size = (8192, "DGPO, table 12") if samples == 32 else (4096, "AR-Lopti, table 2")
    length, length_source = data_set.length or by_size
    sources = {
        "samples": f"by size: {source}",
        "temperature": "AR-Lopti's code, DGPO's rollouts: 1.0",
        "length": length_source,
        "prompt": "the run's own, else the task's default",
    }
    setting = Setting(benchmark, samples, greedy=True, max_new_tokens=length, task=data_set.keys)
    published = {**data_set.sampling, "source": {**sources, **data_set.sampling.get("source", {})}}
    setting = replace(setting, **published)
    return replace(setting, pass_at=tuple(k for k in POWERS if k <= setting.samples))
