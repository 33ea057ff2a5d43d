"""The command lines that make the runs and the page anew."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlvr_cli.compare.options import Question
from rlvr_cli.report.report_measures import Measured
from rlvr_cli.report.report_subject import Subject
from rlvr_cli.results.evaluations import Evaluation, steps_of
from rlvr_cli.results.find import Run
from rlvr_cli.sweeps.folder import Plan, SweepDir
from rlvr_cli.tasks.sets import data_sets, problems_name

AGAIN = "again"


@dataclass(frozen=True)
class Commands:
    """Lines that belong together, and what they do."""

    title: str
    lines: tuple[str, ...]


def commands(subject: Subject, evaluations: Sequence[Measured], output: Path | None) -> list[Commands]:
    """What finishes the runs, trains and evaluates them anew, and makes this page (at ``output``, if given)."""
    question = subject.question
    groups = []
    if subject.readiness.commands:
        groups.append(Commands("Finish and evaluate what is not", subject.readiness.commands))
    swept = {path: plan for path, plan in subject.sweeps.items() if _unchanged(path, plan)}
    places = [shlex.quote(f"{AGAIN}/{plan.name}") for plan in swept.values()]
    train = [_sweep(plan) for plan in swept.values()]
    single = [run for run in subject.runs if run.dir.path.parent not in swept]
    folders = _folders(single)
    for run in single:
        train.append(f"rlvr train -c {shlex.quote(str(run.dir.config_path))} run.dir={shlex.quote(folders[run.path])}")
        places.append(shlex.quote(f"{folders[run.path]}/{run.dir.name}"))
    groups.append(Commands(f"Train anew, into the folder `{AGAIN}`", tuple(train)))
    lines = []
    for run in subject.runs:
        plan = swept.get(run.dir.path.parent)
        if plan is None or plan.eval is None:
            name = f"{AGAIN}/{plan.name}/{run.dir.name}" if plan else f"{folders[run.path]}/{run.dir.name}"
            lines += [_eval(name, run, evaluation) for evaluation in _of_run(run, evaluations)]
    if lines:
        groups.append(Commands("Evaluate those", tuple(lines)))
    options = option_words(question)
    anew = " ".join(dict.fromkeys(places))
    made = [f"rlvr report {anew}{_joined(_unplaced(options))} --output report.html"]
    if subject.comparison is not None:
        made.insert(0, f"rlvr compare {anew}{_joined(_unplaced(options))}")
    groups.append(Commands("Compare them" if subject.comparison else "Make their page", tuple(made)))
    names = " ".join(shlex.quote(name) for name in question.names)
    to = ["--output", str(output)] if output else []
    here = [f"rlvr report {names}{_joined([*options, *to])}"]
    if subject.comparison is not None:
        here.insert(0, f"rlvr compare {names}{_joined(options)}")
    groups.append(Commands("This page, from the records that are there", tuple(here)))
    return groups


def option_words(question: Question) -> list[str]:
    """The options of a question as words of a command line, `--dir` last."""
    words = []
    for option, value in (
        ("--baseline", question.baseline),
        ("--metric", question.metric),
        ("--benchmark", question.benchmark),
        ("--match", question.match),
    ):
        words += [option, value] if value is not None else []
    words += ["--by", ",".join(question.by)] if question.by else []
    words += [word for value in question.where for word in ("--where", value)]
    for option, amount in (("--level", question.level), ("--power", question.power)):
        words += [option, str(amount)] if amount is not None else []
    for option, given in (
        ("--common-problems", question.common_problems),
        ("--unpaired", question.unpaired),
        ("--unfinished", question.unfinished),
    ):
        words += [option] if given else []
    return [*words, *(["--dir", str(question.root)] if question.root != Path("runs") else [])]


def _unplaced(words: Sequence[str]) -> Sequence[str]:
    """Without `--dir`, which tells of the runs there are."""
    return words[: words.index("--dir")] if "--dir" in words else words


def _joined(words: Sequence[str]) -> str:
    return f" {shlex.join(words)}" if words else ""


def _unchanged(folder: Path, plan: Plan) -> bool:
    """Whether the sweep file still is what the trials were made from."""
    try:
        return Path(plan.file).read_bytes() == SweepDir(folder).file_copy.read_bytes()
    except OSError:
        return False


def _sweep(plan: Plan) -> str:
    given = [word for word in plan.given if not word.startswith("run.dir=")]
    return shlex.join(["rlvr", "sweep", plan.file, *given, f"run.dir={AGAIN}"])


def _folders(runs: Sequence[Run]) -> dict[str, str]:
    """Where each run is trained anew: runs of one name need folders of their own."""
    found: dict[str, str] = {}
    taken: set[tuple[str, str]] = set()
    for run in runs:
        folder, number = AGAIN, 2
        while (folder, run.dir.name) in taken:
            folder, number = f"{AGAIN}-{number}", number + 1
        taken.add((folder, run.dir.name))
        found[run.path] = folder
    return found


def _of_run(run: Run, evaluations: Sequence[Measured]) -> list[Evaluation]:
    return [
        one for each in evaluations for own in each.arms.values() for one in own if run.dir.path in one.folder.parents
    ]


def _eval(name: str, run: Run, evaluation: Evaluation) -> str:
    result = evaluation.result
    sampling, task = result["sampling"], result["task"]
    words = ["rlvr", "eval", name]
    if result["benchmark"] != problems_name(run.config.task.name, run.config.task.data):
        known = result["benchmark"] in data_sets()
        words += ["--benchmark", result["benchmark"]] if known else ["--data", str(task["data"])]
    words += [
        "--split",
        str(result["split"]),
        "--problems",
        str(result["problems"]),
        "--samples",
        str(result["samples"]),
    ]
    ks = [metric.removeprefix("pass@") for metric in result.get("metrics", {}) if metric.startswith("pass@")]
    words += ["--pass-at", ",".join(ks)] if ks else []
    for option, key in (("--temperature", "temperature"), ("--top-p", "top_p"), ("--max-new-tokens", "max_new_tokens")):
        words += [option, str(sampling[key])] if key in sampling else []
    words += ["--seed", str(sampling["seed"])] if sampling.get("seed") else []
    steps = steps_of(evaluation)
    words += ["--average-last", str(len(steps))] if len(steps) > 1 else []
    return shlex.join(words)
