"""Provenance of the runs: software, hardware, configurations, and the commands that reproduce them."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from rlvr_cli.compare.request import CompareRequest
from rlvr_cli.core.table import NONE, Table
from rlvr_cli.core.text import count, ellipsize, format_seconds, join_and
from rlvr_cli.report.data import ReportData
from rlvr_cli.report.evaluations import EvaluatedSetting
from rlvr_cli.runs.listing import parse_time
from rlvr_cli.store.arm import Arm
from rlvr_cli.store.evaluation import Evaluation
from rlvr_cli.store.find import Run
from rlvr_cli.sweeps.folder import SweepDir, SweepPlan
from rlvr_cli.tasks.sets import data_sets, problems_name

Manifest = Mapping[str, Any]
MOST_NAMES = 3
# Keys that may differ between runs of an arm.
RUN_KEYS = ("run.name", "run.dir", "run.seed")
_ABSENT = object()
AGAIN = "again"


def environment_table(data: ReportData) -> Table:
    """Return software and hardware of the manifests; values that differ are listed with their runs."""
    runs = data.runs
    packages = dict.fromkeys(name for run in runs for name in _get_section(run.manifest, "versions"))
    environments = [_read_environment(run.manifest, packages) for run in runs]
    rows, differing = [], []
    for name in environments[0]:
        by_value: dict[str, list[Run]] = {}
        for run, environment in zip(runs, environments, strict=True):
            by_value.setdefault(environment[name], []).append(run)
        if set(by_value) != {NONE}:
            rows.append((name, _format_by_run(by_value)))
            differing += [name] if len(by_value) > 1 else []
    differing += [f"the method's code within {arm.name}" for arm in data.arms if len(_code_digests(arm)) > 1]
    note = f"Different between runs: {join_and(differing)}." if differing else ""
    equal = f", the same in all {len(runs)} runs" if len(runs) > 1 and not differing else ""
    return Table(f"Software and hardware{equal}", ("", "value"), rows, texts=(1,), note=note)


def _read_environment(manifest: Manifest, packages: Iterable[str]) -> dict[str, str]:
    versions, hardware = _get_section(manifest, "versions"), _get_section(manifest, "hardware")
    values = {name: versions.get(name) for name in packages} | {"git commit": _format_commit(manifest)}
    values |= {name: hardware.get(name) for name in ("processor", "cores")}
    values |= {"memory": _format_gib(hardware.get("memory_bytes")), "system": hardware.get("system")}
    values |= {name: manifest.get(name) for name in ("threads", "processes", "sampler")}
    return {name: _format_value(value) for name, value in values.items()}


def runs_table(data: ReportData) -> Table:
    rows = []
    for arm in data.arms:
        for replicate, run in arm.runs.items():
            manifest = run.manifest
            rows.append(
                (
                    run.path,
                    arm.name,
                    str(replicate.seed),
                    data.statuses[run.path],
                    f"{_format_value(manifest.get('rollout'))} of {_format_value(manifest.get('rollouts_total'))}",
                    f"{moment:%Y-%m-%d %H:%M}" if (moment := parse_time(manifest.get("created"))) else NONE,
                    _format_duration(manifest.get("created"), manifest.get("finished")),
                    _format_value(manifest.get("config_sha256"))[:12],
                )
            )
    header = ("run", "arm", "seed", "status", "rollouts", "created (UTC)", "took", "config")
    return Table(
        count(len(rows), "run"), header, rows, texts=(1, 3, 5, 7), note="config: first 12 digits of its SHA-256 digest."
    )


def _format_by_run(by_value: Mapping[str, Sequence[Run]]) -> str:
    if len(by_value) == 1:
        return next(iter(by_value))
    names = {value: ellipsize([run.dir.name for run in runs], MOST_NAMES) for value, runs in by_value.items()}
    return "; ".join(f"{value} ({runs})" for value, runs in names.items())


def _get_section(manifest: Manifest, name: str) -> Mapping[str, Any]:
    value = manifest.get(name)
    return value if isinstance(value, dict) else {}


def _code_digests(arm: Arm) -> set[str]:
    return {
        _format_value(_get_section(run.manifest, "method_fingerprint").get("code_sha256")) for run in arm.runs.values()
    }


def _format_value(value: Any) -> str:
    return NONE if value is None or value in ("", []) else str(value)


def _format_commit(manifest: Manifest) -> str:
    git = _get_section(manifest, "git")
    if not git.get("commit"):
        return NONE
    return f"{str(git['commit'])[:12]}{', with uncommitted changes' if git.get('changed') else ''}"


def _format_gib(value: Any) -> str:
    return f"{value / 2**30:.0f} GiB" if isinstance(value, int | float) and not isinstance(value, bool) else NONE


def _format_duration(created: Any, finished: Any) -> str:
    try:
        return format_seconds((datetime.fromisoformat(finished) - datetime.fromisoformat(created)).total_seconds())
    except (TypeError, ValueError):
        return NONE


def differences_table(data: ReportData) -> Table | None:
    """Return the keys that differ between runs, by arm; None if there are none."""
    rows = []
    for key in dict.fromkeys(key for run in data.runs for key in run.values if key not in RUN_KEYS):
        if len({_format_setting(run.values.get(key, _ABSENT)) for run in data.runs}) > 1:
            rows.append([key, *(_format_arm_value(arm, key) for arm in data.arms)])
    if not rows:
        return None
    header = ("key", *(arm.name for arm in data.arms))
    return Table(
        f"Differences between the {'arms' if len(data.arms) > 1 else 'runs'}",
        header,
        rows,
        texts=range(1, len(header)),
        note="All other settings except names, folders and seeds are the same in all runs.",
    )


def settings_table(data: ReportData) -> Table:
    rows = []
    for key, value in data.runs[0].values.items():
        text = _format_setting(value)
        if key not in RUN_KEYS and all(_format_setting(run.values.get(key, _ABSENT)) == text for run in data.runs):
            rows.append((key, text))
    equal = ", the same in all runs" if len(data.runs) > 1 else ""
    return Table(f"{count(len(rows), 'setting')}{equal}", ("key", "value"), rows, texts=(1,))


def _format_arm_value(arm: Arm, key: str) -> str:
    return " or ".join(dict.fromkeys(_format_setting(run.values.get(key, _ABSENT)) for run in arm.runs.values()))


def _format_setting(value: Any) -> str:
    if value is _ABSENT:
        return NONE
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


# A title and command lines.
Commands = tuple[str, Sequence[str]]


def make_commands(data: ReportData, evaluations: Sequence[EvaluatedSetting], output: Path | None) -> list[Commands]:
    """Return the commands that finish the runs, reproduce them, and write this page (to ``output``, if set)."""
    request = data.request
    groups = list[Commands]()
    if data.readiness.commands:
        groups.append(("Finish and evaluate the remaining runs", data.readiness.commands))
    swept = {path: plan for path, plan in data.sweeps.items() if _is_unchanged(path, plan)}
    paths = [shlex.quote(f"{AGAIN}/{plan.name}") for plan in swept.values()]
    train = [_sweep_command(plan) for plan in swept.values()]
    single = [run for run in data.runs if run.dir.path.parent not in swept]
    folders = _assign_folders(single)
    for run in single:
        train.append(f"rlvr train -c {shlex.quote(str(run.dir.config_path))} run.dir={shlex.quote(folders[run.path])}")
        paths.append(shlex.quote(f"{folders[run.path]}/{run.dir.name}"))
    groups.append((f"Train again, in the folder `{AGAIN}`", tuple(train)))
    lines = []
    for run in data.runs:
        plan = swept.get(run.dir.path.parent)
        if plan is None or plan.eval is None:
            name = f"{AGAIN}/{plan.name}/{run.dir.name}" if plan else f"{folders[run.path]}/{run.dir.name}"
            lines += [
                shlex.join(eval_command(name, run, evaluation))
                for setting in evaluations
                for evaluation in setting.evaluations
                if run.dir.path in evaluation.folder.parents
            ]
    if lines:
        groups.append(("Evaluate the new runs", tuple(lines)))
    options = option_arguments(request)
    names = " ".join(dict.fromkeys(paths))
    # The new runs are named by path, not by name in --runs.
    without_root = options[: options.index("--runs")] if "--runs" in options else options
    title = "Compare the new runs" if data.comparison else "Report on the new runs"
    groups.append((title, _result_commands(data, names, without_root, ["--output", "report.html"])))
    names = " ".join(shlex.quote(name) for name in request.names)
    target = ["--output", str(output)] if output else []
    groups.append(("This page, from the same records", _result_commands(data, names, options, target)))
    return groups


def _result_commands(data: ReportData, names: str, options: Sequence[str], output: Sequence[str]) -> tuple[str, ...]:
    page = f"rlvr report {names}{_join_arguments([*options, *output])}"
    return (f"rlvr compare {names}{_join_arguments(options)}", page) if data.comparison else (page,)


def option_arguments(request: CompareRequest) -> list[str]:
    """Return the options of a request as command-line arguments, `--runs` last."""
    values: dict[str, object] = {
        "--baseline": request.baseline,
        "--metric": request.metric,
        "--benchmark": request.benchmark,
        "--match": request.match if request.level is None else f"{request.match}@{request.level}",
        "--by": ",".join(request.by) or None,
    }
    words = [word for option, value in values.items() if value is not None for word in (option, str(value))]
    words += [word for value in request.where for word in ("--where", value)]
    words += ["--power", str(request.power)] if request.power is not None else []
    words += [
        f"--{name.replace('_', '-')}"
        for name in ("common_problems", "unpaired", "unfinished")
        if getattr(request, name)
    ]
    return [*words, *(["--runs", str(request.root)] if request.root != Path("runs") else [])]


def _join_arguments(words: Sequence[str]) -> str:
    return f" {shlex.join(words)}" if words else ""


def _is_unchanged(folder: Path, plan: SweepPlan) -> bool:
    try:
        return Path(plan.file).read_bytes() == SweepDir(folder).file_copy.read_bytes()
    except OSError:
        return False


def _sweep_command(plan: SweepPlan) -> str:
    overrides = [word for word in plan.given if not word.startswith("run.dir=")]
    return shlex.join(["rlvr", "sweep", plan.file, *overrides, f"run.dir={AGAIN}"])


def _assign_folders(runs: Sequence[Run]) -> dict[str, str]:
    """Return the folder to reproduce each run in, by its path; runs of equal names get different folders."""
    folders: dict[str, str] = {}
    names = Counter[str]()
    for run in runs:
        names[run.dir.name] += 1
        number = names[run.dir.name]
        folders[run.path] = AGAIN if number == 1 else f"{AGAIN}-{number}"
    return folders


def eval_command(name: str, run: Run, evaluation: Evaluation) -> list[str]:
    """Return the command that repeats an evaluation of ``run`` with the run ``name``."""
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
    words += [f"eval.stop={json.dumps(sampling['stop'], ensure_ascii=False)}"] if "stop" in sampling else []
    words += ["--seed", str(sampling["seed"])] if sampling.get("seed") else []
    averaged = len(evaluation.steps)
    return [*words, *(["--average-last", str(averaged)] if averaged > 1 else [])]
