"""The papers' evaluations as suites of benchmarks (suites.yaml), and the settings of a benchmark named alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
    """How one benchmark is sampled, prompted and judged.

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
        """The setting as JSON values."""
        return {
            "benchmark": self.benchmark,
            "samples": self.samples,
            "pass_at": list(self.pass_at),
            "greedy": self.greedy,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "max_new_tokens": self.max_new_tokens,
            "task": {key: _plain(value) for key, value in self.task.items()},
            "figures": list(self.figures),
            "source": dict(self.source),
        }

    def choices(self) -> dict[str, Any]:
        """What distinguishes this setting from another of its benchmark, whatever the figures' sources are."""
        return {key: value for key, value in self.as_json().items() if key not in ("figures", "source")}


@dataclass(frozen=True)
class Average:
    """A mean over a suite's figures, each with the same weight.

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
    """What one paper evaluates on."""

    name: str
    paper: str
    settings: tuple[Setting, ...]
    averages: tuple[Average, ...] = ()
    notes: tuple[str, ...] = ()


def _plain(value: Any) -> Any:
    return {str(key): inner for key, inner in value.items()} if isinstance(value, Mapping) else value


def _read_suites() -> dict[str, Suite]:
    """Read ``suites.yaml``; an entry of several benchmarks is a setting of each."""
    entries = yaml.safe_load(Path(__file__).with_name("suites.yaml").read_text(encoding="utf-8"))
    return {name: _suite(name, **entry) for name, entry in entries.items()}


def _suite(
    name: str,
    paper: str,
    settings: Sequence[dict[str, Any]],
    averages: Sequence[dict[str, Any]] = (),
    notes: Sequence[str] = (),
) -> Suite:
    tuples = ("pass_at", "figures")
    read = [
        Setting(**{**entry, "benchmark": benchmark, **{key: tuple(entry.get(key, ())) for key in tuples}})
        for entry in settings
        for benchmark in entry["benchmark"]
    ]
    means = [Average(**{**average, "parts": tuple(map(tuple, average["parts"]))}) for average in averages]
    return Suite(name, paper, tuple(read), tuple(means), tuple(notes))


SUITES = _read_suites()


def evaluation_names() -> tuple[str, ...]:
    """Every name that an evaluation may be asked for by."""
    return (*benchmarks(), *generated_names(), *SUITES)


def unknown_names(names: Sequence[str], key: str) -> list[str]:
    """What is wrong with ``names``, which were given as ``key`` (`--benchmark`): a line for each unknown one."""
    unknown = [name for name in dict.fromkeys(names) if name not in evaluation_names()]
    lines = [f"{key} {name}: unknown.{did_you_mean(name, evaluation_names())}" for name in unknown]
    listed = (
        f" Benchmarks: {', '.join(benchmarks())}. Generated: {', '.join(generated_names())}. "
        f"Suites: {', '.join(SUITES)}."
    )
    return [*lines[:-1], *(line + listed for line in lines[-1:])]


def setting_alone(benchmark: str) -> Setting:
    """The setting of a benchmark that is named without a suite.

    Samples by the number of problems: 32 up to 40 problems, 8 up to 1,000, 4 above, with every power of two up to them
    as k, and the greedy completion; sampled at temperature 1.
    """
    one = data_sets()[benchmark]
    samples, source = next((n, source) for above, n, source in _BY_SIZE if one.size > above)
    by_size = (8192, "DGPO, table 12") if samples == 32 else (4096, "AR-Lopti, table 2")
    length, length_source = one.length or by_size
    # Which problems there are is the benchmark's, not the run's; how they are prompted and judged is left to the run.
    return Setting(
        benchmark,
        samples,
        pass_at=tuple(k for k in POWERS if k <= samples),
        greedy=True,
        max_new_tokens=length,
        task=one.keys,
        source={
            "samples": f"by size: {source}",
            "temperature": "AR-Lopti's code, DGPO's rollouts: 1.0",
            "length": length_source,
            "prompt": "the run's own, else the task's default",
        },
    )
