"""What `--benchmark` names: benchmarks and suites, as evaluations without repeats and the tables that show them; and
the list of them all, with their settings and sources.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlvr_cli.config.schema import Config
from rlvr_cli.core.table import ResultDocument, Table
from rlvr_cli.tasks.sets import benchmarks, data_sets, generated_names, is_generated, task_kinds
from rlvr_cli.tasks.suites import SUITES, Setting, Suite, setting_alone

_KEY = re.compile(r"[.=]")
HEADER = ("benchmark", "samples", "k", "temperature", "tokens", "prompt")
_KEYS = ("samples", "temperature", "length", "prompt")


@dataclass(frozen=True)
class SelectedBenchmark:
    """One evaluation: a benchmark with its setting; generated problems have none, and are sampled as the run says.

    ``suite`` is the first suite that asked for it.
    """

    benchmark: str
    setting: Setting | None = None
    suite: str | None = None

    @property
    def task(self) -> str:
        """The task that prompts and judges."""
        return data_sets()[self.benchmark].task

    @property
    def folder(self) -> Path:
        """The evaluation's place in ``--output``."""
        return Path(self.benchmark) if self.suite is None else Path(self.suite, self.benchmark)


@dataclass(frozen=True)
class BenchmarkTable:
    """Evaluations shown together: those of a suite, or those that were named one by one (``suite`` is None).

    ``rows`` are places in the list of choices.
    """

    suite: Suite | None
    rows: tuple[int, ...]


def select_benchmarks(names: Sequence[str]) -> tuple[list[SelectedBenchmark], list[BenchmarkTable]]:
    """The evaluations that ``names`` ask for, each once, and the tables that show them: suites first, as named.

    Two suites that ask for a benchmark with different settings ask for two evaluations.

    Args:
        names: known ones.
    """
    found: list[SelectedBenchmark] = []
    places: dict[str, int] = {}
    tables: list[BenchmarkTable] = []
    single: list[int] = []

    def place_of(choice: SelectedBenchmark) -> int:
        what = choice.setting.choices() if choice.setting else None
        key = json.dumps([choice.benchmark, what], sort_keys=True)
        if key not in places:
            places[key] = len(found)
            found.append(choice)
        return places[key]

    for name in dict.fromkeys(names):
        if name in SUITES:
            suite = SUITES[name]
            tables.append(
                BenchmarkTable(suite, tuple(place_of(SelectedBenchmark(s.benchmark, s, name)) for s in suite.settings))
            )
        else:
            single.append(place_of(SelectedBenchmark(name, None if is_generated(name) else setting_alone(name))))
    if single:
        tables.append(BenchmarkTable(None, tuple(single)))
    return found, tables


def completions_of(config: Config, own: int) -> int:
    """Return how many completions `rlvr eval` samples on the benchmarks that ``config`` names (`eval.benchmark`).

    Args:
        own: completions for the held-out problems of the task.
    """
    choices, _ = select_benchmarks(config.eval.benchmark)
    settings = (choice.setting for choice in choices)
    return sum(
        data_sets()[one.benchmark].size * (one.samples + one.greedy) if one is not None else own for one in settings
    )


def overrides_for(
    choice: SelectedBenchmark, choices: Sequence[SelectedBenchmark], overrides: Sequence[str]
) -> list[str]:
    """The overrides without keys of other tasks: those that the choice's task does not know and another's does.

    Generated problems need no folder of data sets.
    """
    if is_generated(choice.benchmark):
        overrides = [text for text in overrides if text[:14] != "task.data_dir=" or text == "task.data_dir=null"]
    theirs = {key for other in choices for key in _keys(other.task)} - _keys(choice.task)
    return [text for text in overrides if not (text.startswith("task.") and _KEY.split(text[5:])[0] in theirs)]


def _keys(task: str) -> set[str]:
    return set(task_kinds()[task].model_fields)


def setting_for_style(setting: Setting, style: str | None) -> Setting:
    """The setting for a model made for prompts of ``style``: the lab's compact words write few people."""
    keys = task_kinds()[data_sets()[setting.benchmark].task].keys_for(setting.task, style)
    return setting if keys is setting.task else replace(setting, task=keys)


def setting_overrides(choice: SelectedBenchmark, style: str | None = None) -> list[str]:
    """A choice as overrides of the configuration, to be laid below those of the command line.

    Args:
        style: of the prompts that the model was made for; generated problems are then some that it can be given.
    """
    lines = [f"task={choice.task}"]
    setting = choice.setting
    if setting is None:
        if not is_generated(choice.benchmark):
            return lines
        keys = task_kinds()[choice.task].keys_for({}, style)
        return [*lines, f"task.data={choice.benchmark}", *(f"task.{key}={_yaml(value)}" for key, value in keys.items())]
    values: dict[str, object] = {"task.data": choice.benchmark}
    values |= {"eval.samples": setting.samples, "eval.pass_at": setting.pass_at, "eval.greedy": setting.greedy}
    values |= {"eval.temperature": setting.temperature, "eval.top_p": setting.top_p}
    values |= {"eval.max_new_tokens": setting.max_new_tokens}
    values |= {"eval.split": "test"}
    values |= {f"task.{key}": value for key, value in setting.task.items()}
    return [*lines, *(f"{key}={_yaml(value)}" for key, value in values.items())]


def _yaml(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {inner!r}" for key, inner in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)


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
                "setting": setting_alone(name).as_json(),
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


def benchmarks_document() -> ResultDocument:
    """The listing for people, as tables with where their values are from, and as rows: one of each setting."""
    content = listing()
    names = [(name, one["task"], str(one["problems"]), one["what"]) for name, one in content["benchmarks"].items()]
    names += [(name, one["task"], "eval.problems", one["what"]) for name, one in content["generated"].items()]
    suites = [
        Table(
            f"suite {suite.name}, {suite.paper}",
            HEADER,
            [_row(setting) for setting in suite.settings],
            note="\n".join(f"- {line}" for line in (*_sources(suite.settings), *suite.notes)),
        )
        for suite in SUITES.values()
    ]
    rule = "- samples by the number of problems"
    rows = [{"suite": None, **setting_alone(name).as_json()} for name in benchmarks()]
    rows += [{"suite": suite.name, **setting.as_json()} for suite in SUITES.values() for setting in suite.settings]
    return ResultDocument(
        tables=[
            Table("", ("benchmark", "task", "problems", "what"), names),
            Table("named alone", HEADER, [_row(setting_alone(name)) for name in benchmarks()], note=rule),
            *suites,
        ],
        data=content,
        rows=rows,
    )


def _sources(settings: Sequence[Setting]) -> list[str]:
    """Return one line for each of samples, temperature, length and prompt and each source of it."""
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
