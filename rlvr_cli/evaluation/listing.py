"""The benchmarks and suites that `rlvr eval` knows, with their settings and sources: as JSON and as tables."""

from __future__ import annotations

from typing import Any

from rlvr_cli.tasks.sets import benchmarks, data_sets, generated_names
from rlvr_cli.tasks.suites import SUITES, Setting, Suite, alone

HEADER = ("benchmark", "samples", "k", "temperature", "tokens", "prompt")
_KEYS = ("samples", "temperature", "length", "prompt")


def listing() -> dict[str, Any]:
    """Every benchmark with the setting that it has alone, and every suite, as JSON values."""
    sets = data_sets()
    return {
        "benchmarks": {
            name: {
                "task": sets[name].task,
                "what": sets[name].what,
                "problems": sets[name].size,
                "files": sets[name].files["test"],
                "hub": sets[name].hub,
                "setting": alone(name).as_json(),
            }
            for name in benchmarks()
        },
        "generated": {name: {"task": sets[name].task, "what": sets[name].what} for name in generated_names()},
        "suites": {
            suite.name: {
                "paper": suite.paper,
                "settings": [setting.as_json() for setting in suite.settings],
                "averages": [
                    {"name": average.name, "parts": [list(part) for part in average.parts], "source": average.source}
                    for average in suite.averages
                ],
                "notes": list(suite.notes),
            }
            for suite in SUITES.values()
        },
    }


def rows_of(suite: Suite) -> list[list[str]]:
    """A suite's settings, one benchmark a row under ``HEADER``."""
    return [_row(setting) for setting in suite.settings]


def rows_alone() -> list[list[str]]:
    """The settings of benchmarks that are named alone, under ``HEADER``."""
    return [_row(alone(name)) for name in benchmarks()]


def sources_of(suite: Suite) -> list[str]:
    """Where a suite's values are from: one line for each value and the benchmarks that it is said of."""
    return sources([*suite.settings])


def sources(settings: list[Setting]) -> list[str]:
    """One line for each of samples, temperature, length and prompt and each source of it."""
    lines = []
    for key in _KEYS:
        by_source: dict[str, list[str]] = {}
        for setting in settings:
            by_source.setdefault(setting.source[key], []).append(setting.benchmark)
        for source, names in by_source.items():
            whose = "" if len(by_source) == 1 else f" ({', '.join(names)})"
            lines.append(f"{key}{whose}: {source}")
    return lines


def _row(setting: Setting) -> list[str]:
    samples = str(setting.samples) if setting.samples else "greedy"
    if setting.samples and setting.greedy:
        samples += " + greedy"
    ks = ", ".join(map(str, setting.pass_at)) or "-"
    temperature = f"{setting.temperature:g}" if setting.samples else "-"
    return [setting.benchmark, samples, ks, temperature, str(setting.max_new_tokens), _prompt(setting)]


def _prompt(setting: Setting) -> str:
    parts = [str(setting.task["style"])] if "style" in setting.task else []
    if setting.task.get("template") == "none":
        parts.append("no template")
    if "people" in setting.task:
        numbers = sorted(setting.task["people"])
        parts.append(f"{numbers[0]} to {numbers[-1]} people")
    return ", ".join(parts) or "as the run"
