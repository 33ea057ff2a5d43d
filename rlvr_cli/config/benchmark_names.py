"""The names of what a model is evaluated on: benchmarks, and the papers' suites of them."""

from __future__ import annotations

from collections.abc import Sequence

from rlvr_cli.config.data_sets import DATA_SETS
from rlvr_cli.core.text import did_you_mean

SUITE_NAMES = ("ar_lopti", "acpo", "dgpo", "gtpo", "landscape")


def benchmarks() -> tuple[str, ...]:
    """The names of the data sets with test problems; every task has one of its own name."""
    return tuple(name for name, one in DATA_SETS.items() if "test" in one.files)


def generated_names() -> tuple[str, ...]:
    """The names of the problems that are generated, one for each task."""
    return tuple(name for name, one in DATA_SETS.items() if one.generated)


def evaluation_names() -> tuple[str, ...]:
    """Every name that an evaluation may be asked for by."""
    return (*benchmarks(), *generated_names(), *SUITE_NAMES)


def unknown_names(names: Sequence[str], key: str) -> list[str]:
    """What is wrong with ``names``, which were given as ``key`` (`--benchmark`): a line for each unknown one."""
    unknown = [name for name in dict.fromkeys(names) if name not in evaluation_names()]
    lines = [f"{key} {name}: unknown.{did_you_mean(name, evaluation_names())}" for name in unknown]
    listed = (
        f" Benchmarks: {', '.join(benchmarks())}. Generated: {', '.join(generated_names())}. "
        f"Suites: {', '.join(SUITE_NAMES)}."
    )
    return [*lines[:-1], *(line + listed for line in lines[-1:])]
