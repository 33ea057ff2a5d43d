"""Select the benchmarks and suites of `--benchmark`, and list all with their settings and sources."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr_cli.config.schema import Config
from rlvr_cli.core.table import ResultDocument, Table
from rlvr_cli.tasks.sets import benchmarks, data_sets, generated_names, is_generated, task_kinds
from rlvr_cli.tasks.suites import SUITES, Setting, Suite, default_setting

_KEY = re.compile(r"[.=]")
HEADER = ("benchmark", "samples", "k", "temperature", "tokens", "prompt")
_KEYS = ("samples", "temperature", "length", "prompt")


@dataclass(frozen=True)
class SelectedBenchmark:
    """A benchmark with its setting (None: the run's), and the first ``suite`` that selects it."""

    benchmark: str
    setting: Setting | None = None
    suite: str | None = None

    @property
    def task(self) -> str:
        return data_sets()[self.benchmark].task

    @property
    def folder(self) -> Path:
        return Path(self.benchmark) if self.suite is None else Path(self.suite, self.benchmark)


@dataclass(frozen=True)
class BenchmarkTable:
    """A table: a suite's, or that of all other benchmarks (None). ``rows``: indices of the selected benchmarks."""

    suite: Suite | None
    rows: tuple[int, ...]


def select_benchmarks(names: Sequence[str]) -> tuple[list[SelectedBenchmark], list[BenchmarkTable]]:
    """Return the distinct evaluations (a benchmark has one for each setting), and their tables, suites first."""
    choices: dict[str, SelectedBenchmark] = {}
    tables: list[BenchmarkTable] = []
    alone: list[int] = []

    def add(benchmark: str, setting: Setting | None, suite: str | None = None) -> int:
        key = json.dumps([benchmark, setting.choices() if setting else None], sort_keys=True)
        choices.setdefault(key, SelectedBenchmark(benchmark, setting, suite))
        return list(choices).index(key)

    for name in dict.fromkeys(names):
        if suite := SUITES.get(name):
            rows = tuple(add(setting.benchmark, setting, name) for setting in suite.settings)
            tables.append(BenchmarkTable(suite, rows))
        else:
            alone.append(add(name, None if is_generated(name) else default_setting(name)))
    if alone:
        tables.append(BenchmarkTable(None, tuple(alone)))
    return list(choices.values()), tables


def count_benchmark_completions(config: Config, task_completions: int) -> int:
    """Count the completions of `rlvr eval` on `eval.benchmark`; ``task_completions``: on the task's problems."""
    choices, _ = select_benchmarks(config.eval.benchmark)
    settings = (choice.setting for choice in choices)
    return sum(
        task_completions
        if setting is None
        else data_sets()[setting.benchmark].size * (setting.samples + setting.greedy)
        for setting in settings
    )


def overrides_for(
    choice: SelectedBenchmark, choices: Sequence[SelectedBenchmark], overrides: Sequence[str]
) -> list[str]:
    """Remove overrides of keys that only other choices' tasks have, and of task.data_dir for generated problems."""
    if is_generated(choice.benchmark):
        overrides = [text for text in overrides if text[:14] != "task.data_dir=" or text == "task.data_dir=null"]
    kinds = task_kinds()
    others = {key for other in choices for key in kinds[other.task].model_fields} - set(kinds[choice.task].model_fields)
    return [text for text in overrides if not (text.startswith("task.") and _KEY.split(text[5:])[0] in others)]


def setting_overrides(choice: SelectedBenchmark, style: str | None = None) -> list[str]:
    """Return a choice as overrides of lower precedence than the command line's; ``style`` may restrict the problems."""
    lines = [f"task={choice.task}"]
    setting = choice.setting
    if setting is None:
        if not is_generated(choice.benchmark):
            return lines
        keys = task_kinds()[choice.task].restrict_keys({}, style)
        return [*lines, f"task.data={choice.benchmark}", *(f"task.{key}={_yaml(value)}" for key, value in keys.items())]
    values: dict[str, object] = {"task.data": choice.benchmark, "eval.split": "test"}
    for name in ("samples", "pass_at", "greedy", "temperature", "top_p", "max_new_tokens"):
        values[f"eval.{name}"] = getattr(setting, name)
    values |= {f"task.{key}": value for key, value in setting.task.items()}
    return [*lines, *(f"{key}={_yaml(value)}" for key, value in values.items())]


def _yaml(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {inner!r}" for key, inner in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)


def listing() -> dict[str, Any]:
    """Return all benchmarks with their settings outside suites, and all suites, as JSON values."""
    sets = data_sets()
    return {
        "benchmarks": {
            name: {
                "task": sets[name].task,
                "what": sets[name].summary,
                "problems": sets[name].size,
                "files": sets[name].files["test"],
                "hub": sets[name].hub,
                "setting": default_setting(name).as_json(),
            }
            for name in benchmarks()
        },
        "generated": {name: {"task": sets[name].task, "what": sets[name].summary} for name in generated_names()},
        "suites": {
            suite.name: {
                "paper": suite.paper,
                "settings": [setting.as_json() for setting in suite.settings],
                "averages": [
                    {"name": average.name, "parts": list(map(list, average.figures)), "source": average.source}
                    for average in suite.averages
                ],
                "notes": list(suite.notes),
            }
            for suite in SUITES.values()
        },
    }


def benchmarks_document() -> ResultDocument:
    content = listing()
    names = [
        (name, entry["task"], str(entry.get("problems", "eval.problems")), entry["what"])
        for name, entry in (content["benchmarks"] | content["generated"]).items()
    ]
    tables = [Table("", ("benchmark", "task", "problems", "what"), names)]
    rows: list[dict[str, Any]] = []

    def add(suite: str | None, title: str, settings: Sequence[Setting], notes: Sequence[str]) -> None:
        tables.append(Table(title, HEADER, list(map(_row, settings)), note="\n".join(f"- {line}" for line in notes)))
        rows.extend({"suite": suite, **setting.as_json()} for setting in settings)

    add(None, "named alone", list(map(default_setting, benchmarks())), ["samples by the number of problems"])
    for name, suite in SUITES.items():
        add(name, f"suite {name}, {suite.paper}", suite.settings, [*_sources(suite.settings), *suite.notes])
    return ResultDocument(tables=tables, data=content, rows=rows)


def _sources(settings: Sequence[Setting]) -> list[str]:
    lines = []
    for key in _KEYS:
        by_source: dict[str, list[str]] = {}
        for setting in settings:
            by_source.setdefault(setting.source[key], []).append(setting.benchmark)
        for source, names in by_source.items():
            listed = "" if len(by_source) == 1 else f" ({', '.join(names)})"
            lines.append(f"{key}{listed}: {source}")
    return lines


def _row(setting: Setting) -> list[str]:
    samples = str(setting.samples) if setting.samples else "greedy"
    if setting.samples and setting.greedy:
        samples += " + greedy"
    ks = ", ".join(map(str, setting.pass_at)) or "-"
    temperature = f"{setting.temperature:g}" if setting.samples else "-"
    return [setting.benchmark, samples, ks, temperature, str(setting.max_new_tokens), _prompt(setting)]


def _prompt(setting: Setting) -> str:
    words = [str(setting.task["style"])] if "style" in setting.task else []
    if setting.task.get("template") == "none":
        words.append("no template")
    if "people" in setting.task:
        numbers = sorted(setting.task["people"])
        words.append(f"{numbers[0]} to {numbers[-1]} people")
    return ", ".join(words) or "as the run"
