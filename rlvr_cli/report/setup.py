"""The setup of the runs: software and hardware, configurations, and the commands that repeat them."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from rlvr_cli.compare.request import CompareRequest
from rlvr_cli.core.table import NONE, Table
from rlvr_cli.core.text import clock, count, listed, some
from rlvr_cli.report.data import ReportData
from rlvr_cli.report.evaluations import MeasuredSetting
from rlvr_cli.runs.listing import parse_time
from rlvr_cli.store.arm import Arm
from rlvr_cli.store.evaluation import Evaluation
from rlvr_cli.store.find import Run
from rlvr_cli.sweeps.folder import SweepDir, SweepPlan
from rlvr_cli.tasks.sets import data_sets, problems_name

Manifest = Mapping[str, Any]
SHOWN = 3
# Names of runs, and the seed that makes several runs of one arm.
OF_RUN = ("run.name", "run.dir", "run.seed")
_ABSENT = object()
AGAIN = "again"


def environment_table(subject: ReportData) -> Table:
    """Return software and hardware of the manifests; a value that differs between runs with its runs."""
    runs = subject.runs
    packages = dict.fromkeys(name for run in runs for name in _section(run.manifest, "versions"))
    readers: dict[str, Callable[[Manifest], str]] = {
        **{name: lambda manifest, name=name: _text(_section(manifest, "versions").get(name)) for name in packages},  # type: ignore[misc]
        "git commit": _commit,
        "processor": lambda manifest: _text(_section(manifest, "hardware").get("processor")),
        "cores": lambda manifest: _text(_section(manifest, "hardware").get("cores")),
        "memory": lambda manifest: _gib(_section(manifest, "hardware").get("memory_bytes")),
        "system": lambda manifest: _text(_section(manifest, "hardware").get("system")),
        "threads": lambda manifest: _text(manifest.get("threads")),
        "processes": lambda manifest: _text(manifest.get("processes")),
        "sampler": lambda manifest: _text(manifest.get("sampler")),
    }
    rows, differing = [], []
    for name, read in readers.items():
        by_value: dict[str, list[Run]] = {}
        for run in runs:
            by_value.setdefault(read(run.manifest), []).append(run)
        if set(by_value) != {NONE}:
            rows.append((name, _by_run(by_value)))
            differing += [name] if len(by_value) > 1 else []
    differing += [f"the method's code within {arm.name}" for arm in subject.arms if len(_codes(arm)) > 1]
    note = f"Not the same in all runs: {listed(differing)}." if differing else ""
    alike = f", the same in all {len(runs)} runs" if len(runs) > 1 and not differing else ""
    return Table(f"Software and hardware{alike}", ("", "value"), rows, texts=(1,), note=note)


def runs_table(subject: ReportData) -> Table:
    rows = []
    for arm in subject.arms:
        for replicate, run in arm.runs.items():
            manifest = run.manifest
            rows.append(
                (
                    run.path,
                    arm.name,
                    str(replicate.seed),
                    subject.statuses[run.path],
                    f"{_text(manifest.get('rollout'))} of {_text(manifest.get('rollouts_total'))}",
                    f"{moment:%Y-%m-%d %H:%M}" if (moment := parse_time(manifest.get("created"))) else NONE,
                    _lasted(manifest.get("created"), manifest.get("finished")),
                    _text(manifest.get("config_sha256"))[:12],
                )
            )
    header = ("run", "arm", "seed", "status", "rollouts", "created (UTC)", "took", "config")
    return Table(
        count(len(rows), "run"), header, rows, texts=(1, 3, 5, 7), note="config: of its hash, the first 12 digits."
    )


def _by_run(by_value: Mapping[str, Sequence[Run]]) -> str:
    if len(by_value) == 1:
        return next(iter(by_value))
    names = {value: some([run.dir.name for run in runs], SHOWN) for value, runs in by_value.items()}
    return "; ".join(f"{value} ({runs})" for value, runs in names.items())


def _section(manifest: Manifest, name: str) -> Mapping[str, Any]:
    value = manifest.get(name)
    return value if isinstance(value, dict) else {}


def _codes(arm: Arm) -> set[str]:
    """Return the hashes of the method's code of an arm's runs."""
    return {_text(_section(run.manifest, "method_fingerprint").get("code_sha256")) for run in arm.runs.values()}


def _text(value: Any) -> str:
    return NONE if value is None or value in ("", []) else str(value)


def _commit(manifest: Manifest) -> str:
    git = _section(manifest, "git")
    if not git.get("commit"):
        return NONE
    return f"{str(git['commit'])[:12]}{', with uncommitted changes' if git.get('changed') else ''}"


def _gib(value: Any) -> str:
    return f"{value / 2**30:.0f} GiB" if isinstance(value, int | float) and not isinstance(value, bool) else NONE


def _lasted(created: Any, finished: Any) -> str:
    try:
        return clock((datetime.fromisoformat(finished) - datetime.fromisoformat(created)).total_seconds())
    except (TypeError, ValueError):
        return NONE


def differences_table(subject: ReportData) -> Table | None:
    """Return the keys that differ between runs, by arm; None without any."""
    rows = []
    for key in dict.fromkeys(key for run in subject.runs for key in run.values if key not in OF_RUN):
        if len({_value_text(run.values.get(key, _ABSENT)) for run in subject.runs}) > 1:
            rows.append([key, *(_of_arm(arm, key) for arm in subject.arms)])
    if not rows:
        return None
    header = ("key", *(arm.name for arm in subject.arms))
    return Table(
        "What differs between the arms" if len(subject.arms) > 1 else "What differs between the runs",
        header,
        rows,
        texts=range(1, len(header)),
        note="All other settings are the same in all runs, but for names, folders and seeds.",
    )


def settings_table(subject: ReportData) -> Table:
    """Return the keys with the same value in all runs."""
    rows = []
    for key, value in subject.runs[0].values.items():
        text = _value_text(value)
        if key not in OF_RUN and all(_value_text(run.values.get(key, _ABSENT)) == text for run in subject.runs):
            rows.append((key, text))
    alike = ", the same in all runs" if len(subject.runs) > 1 else ""
    return Table(f"{count(len(rows), 'setting')}{alike}", ("key", "value"), rows, texts=(1,))


def _of_arm(arm: Arm, key: str) -> str:
    return " or ".join(dict.fromkeys(_value_text(run.values.get(key, _ABSENT)) for run in arm.runs.values()))


def _value_text(value: Any) -> str:
    if value is _ABSENT:
        return NONE
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True)
class Commands:
    """Command lines with a common purpose."""

    title: str
    lines: tuple[str, ...]


def commands(subject: ReportData, evaluations: Sequence[MeasuredSetting], output: Path | None) -> list[Commands]:
    """Return the commands that finish the runs, repeat them, and write this page (at ``output``, if set)."""
    request = subject.request
    groups = []
    if subject.readiness.commands:
        groups.append(Commands("Finish and evaluate the rest", subject.readiness.commands))
    swept = {path: plan for path, plan in subject.sweeps.items() if _unchanged(path, plan)}
    paths = [shlex.quote(f"{AGAIN}/{plan.name}") for plan in swept.values()]
    train = [_sweep(plan) for plan in swept.values()]
    single = [run for run in subject.runs if run.dir.path.parent not in swept]
    folders = _folders(single)
    for run in single:
        train.append(f"rlvr train -c {shlex.quote(str(run.dir.config_path))} run.dir={shlex.quote(folders[run.path])}")
        paths.append(shlex.quote(f"{folders[run.path]}/{run.dir.name}"))
    groups.append(Commands(f"Train again, into the folder `{AGAIN}`", tuple(train)))
    lines = []
    for run in subject.runs:
        plan = swept.get(run.dir.path.parent)
        if plan is None or plan.eval is None:
            name = f"{AGAIN}/{plan.name}/{run.dir.name}" if plan else f"{folders[run.path]}/{run.dir.name}"
            lines += [shlex.join(eval_words(name, run, evaluation)) for evaluation in _of_run(run, evaluations)]
    if lines:
        groups.append(Commands("Evaluate those", tuple(lines)))
    options = option_words(request)
    names = " ".join(dict.fromkeys(paths))
    # Those that are trained again are found by their paths.
    elsewhere = options[: options.index("--runs")] if "--runs" in options else options
    title = "Compare them" if subject.comparison else "Make their page"
    groups.append(Commands(title, _result_commands(subject, names, elsewhere, ["--output", "report.html"])))
    names = " ".join(shlex.quote(name) for name in request.names)
    to = ["--output", str(output)] if output else []
    groups.append(Commands("This page, from these records", _result_commands(subject, names, options, to)))
    return groups


def _result_commands(subject: ReportData, names: str, options: Sequence[str], output: Sequence[str]) -> tuple[str, ...]:
    page = f"rlvr report {names}{_joined([*options, *output])}"
    return (f"rlvr compare {names}{_joined(options)}", page) if subject.comparison else (page,)


def option_words(request: CompareRequest) -> list[str]:
    """Return the options of a request as words of a command line, `--runs` last."""
    words = []
    for option, value in (
        ("--baseline", request.baseline),
        ("--metric", request.metric),
        ("--benchmark", request.benchmark),
        ("--match", request.match if request.level is None else f"{request.match}@{request.level}"),
    ):
        words += [option, value] if value is not None else []
    words += ["--by", ",".join(request.by)] if request.by else []
    words += [word for value in request.where for word in ("--where", value)]
    words += ["--power", str(request.power)] if request.power is not None else []
    words += ["--common-problems"] if request.common_problems else []
    words += ["--unpaired"] if request.unpaired else []
    words += ["--unfinished"] if request.unfinished else []
    return [*words, *(["--runs", str(request.root)] if request.root != Path("runs") else [])]


def _joined(words: Sequence[str]) -> str:
    return f" {shlex.join(words)}" if words else ""


def _unchanged(folder: Path, plan: SweepPlan) -> bool:
    """Return whether the sweep file is the same as for the trials."""
    try:
        return Path(plan.file).read_bytes() == SweepDir(folder).file_copy.read_bytes()
    except OSError:
        return False


def _sweep(plan: SweepPlan) -> str:
    overrides = [word for word in plan.given if not word.startswith("run.dir=")]
    return shlex.join(["rlvr", "sweep", plan.file, *overrides, f"run.dir={AGAIN}"])


def _folders(runs: Sequence[Run]) -> dict[str, str]:
    """Return the folder to repeat each run in, by its path: runs of the same name need different folders."""
    folders: dict[str, str] = {}
    names = Counter[str]()
    for run in runs:
        names[run.dir.name] += 1
        number = names[run.dir.name]
        folders[run.path] = AGAIN if number == 1 else f"{AGAIN}-{number}"
    return folders


def _of_run(run: Run, evaluations: Sequence[MeasuredSetting]) -> list[Evaluation]:
    return [each for setting in evaluations for each in setting.evaluations if run.dir.path in each.folder.parents]


def eval_words(name: str, run: Run, evaluation: Evaluation) -> list[str]:
    """Return the command that repeats an evaluation with the run ``name``, which is trained as ``run`` was."""
    result = evaluation.result
    sampling, task = result["sampling"], result["task"]
    words = ["rlvr", "eval", name]
    if result["benchmark"] != problems_name(run.config.task.name, run.config.task.data):
        in_data_sets = result["benchmark"] in data_sets()
        words += ["--benchmark", result["benchmark"]] if in_data_sets else ["--data", str(task["data"])]
    for key in ("split", "problems", "samples"):
        words += [f"--{key}", str(result[key])]
    ks = [metric.removeprefix("pass@") for metric in result.get("metrics", {}) if metric.startswith("pass@")]
    words += ["--pass-at", ",".join(ks)] if ks else []
    for option, key in (("--temperature", "temperature"), ("--top-p", "top_p"), ("--max-new-tokens", "max_new_tokens")):
        words += [option, str(sampling[key])] if key in sampling else []
    words += ["--seed", str(sampling["seed"])] if sampling.get("seed") else []
    averaged = len(evaluation.steps)
    return [*words, *(["--average-last", str(averaged)] if averaged > 1 else [])]
