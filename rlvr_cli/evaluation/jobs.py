"""From what the user asks of `rlvr eval` to checked jobs, with every problem reported at once. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rlvr_cli.config.load import SweepRow, load_config, moved_from, preset_of_task
from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import local_path
from rlvr_cli.core.layers import typed
from rlvr_cli.core.user_code import changed_files
from rlvr_cli.core.yaml import parse
from rlvr_cli.evaluation.benchmarks import (
    BenchmarkTable,
    SelectedBenchmark,
    overrides_for,
    select_benchmarks,
    setting_for_style,
    setting_overrides,
)
from rlvr_cli.evaluation.served.options import key_note, option_problems
from rlvr_cli.evaluation.settings import EvalSettings, asked_by, idle_override, idle_without_samples, only
from rlvr_cli.evaluation.targets import BASE, EvaluatedModel, Target, find_run_of, find_target, served_target
from rlvr_cli.models.source import PRESETS
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.tasks import Problem
from rlvr_cli.tasks.sets import check_folder, has_split_mark, is_generated
from rlvr_cli.tasks.suites import Setting, evaluation_names, unknown_names
from rlvr_cli.tracking.trackers import check_trackers

SPLITS = ("dev", "test", "all")
MOST_COMPLETIONS = 10_000_000
_OVERRIDE = re.compile(r"[a-z_]+(\.[A-Za-z0-9_]+)+=")
_PROBLEM_KEYS = ("task.name", "task.data")


@dataclass(frozen=True)
class EvalRequest:
    """The command line of `rlvr eval`; None = not given.

    Attributes:
        arguments: run, checkpoint or model, and overrides; options that stand for a key are among these.
        config: configuration files, over the run's own. Their model is evaluated where the arguments name none.
    """

    arguments: tuple[str, ...] = ()
    config: tuple[Path | SweepRow, ...] = ()
    split: str | None = None
    average_last: int = 1
    against: str | None = None
    seed: int = 0
    out: Path | None = None

    @property
    def overrides(self) -> list[str]:
        """Return the arguments that set a key."""
        return [argument for argument in self.arguments if _OVERRIDE.match(argument)]

    @property
    def names(self) -> list[str]:
        """Return the other arguments, of which there should be one at most."""
        return [argument for argument in self.arguments if not _OVERRIDE.match(argument)]


@dataclass(frozen=True)
class _Models:
    """The models of a call, looked up once for all of its jobs.

    Attributes:
        root: the folder of the runs.
        name: of the run or model to evaluate; None = the newest run.
        target: None where no model fits ``name``, for the reasons ``not_found``; a server may know it.
        run: whose configuration the evaluation takes its settings from, if any.
    """

    root: Path
    name: str | None
    target: Target | None
    not_found: tuple[str, ...]
    run: RunDir | None
    against: Target | None


@dataclass(frozen=True)
class EvalJob:
    """A target on a set of problems by settings; everything that can be checked without loading a model has been.

    Attributes:
        benchmark: the benchmark that was asked for; None = the problems have no other name than their data.
        setting: the benchmark's own setting, which keeps evaluations of different settings apart on the disk.
        whole: all problems of the data are meant, whatever ``settings.problems`` says.
        length_asked: the option or key by which this call asks for its longest completion; None = it does not, so a
            length that is too long for the model may be cut.
        notes: what the user should know of how the setting was taken.
        problems: empty until they are read. trained_on: how many of them each model was trained on, by its label.
    """

    config: Config
    settings: EvalSettings
    target: Target
    against: Target | None
    out: Path | None
    benchmark: str | None = None
    setting: Setting | None = None
    whole: bool = False
    notes: tuple[str, ...] = ()
    length_asked: str | None = None
    problems: tuple[Problem, ...] = ()
    trained_on: Mapping[str, int] = field(default_factory=dict)

    @property
    def models(self) -> tuple[EvaluatedModel, ...]:
        """Return the models to evaluate; the last is the one that the others are compared with, if any."""
        return (*self.target.subjects, *(self.against.subjects if self.against else ()))

    @property
    def several(self) -> bool:
        """Return whether there are several evaluations to keep."""
        return len(self.models) > 1


def make_jobs(benchmarks: Sequence[str], request: EvalRequest) -> tuple[list[EvalJob], list[BenchmarkTable]]:
    """Return the jobs that ``benchmarks`` ask for (each text one name, or several with commas), and their tables.

    Without any, those of the run's `eval.benchmark`, unless the call names a task or data; without these, one job
    for the run's own task. With several jobs, each has a folder of its name in ``request.out``, those of a suite in the
    suite's folder.
    """
    names = list(dict.fromkeys(part.strip() for text in benchmarks for part in text.split(",")))
    overrides = request.overrides
    problems = [*_request_problems(request), *_idle_benchmarks(names, overrides)]
    models = _look_up(request, problems)
    names = names or _own_benchmarks(request, models.run)
    if not names:
        job = collect(problems, _make_job, request, models)
        _raise(problems)
        return [job], []
    problems += unknown_names(names, "--benchmark")
    choices, tables = select_benchmarks([name for name in names if name in evaluation_names()])
    if others := _other_task(choices, overrides):
        raise UserError([*problems, *others])
    notes: tuple[str, ...] = ()
    if data := asked_by(overrides, "task.data"):
        if len(choices) > 1:
            raise UserError([*problems, f"{data}: is for one benchmark. Use --data-dir FOLDER for several."])
        notes = tuple(
            f"{choice.benchmark}: {data} has other problems, which are evaluated as the task {choice.task}, "
            "without the benchmark's settings"
            for choice in choices
            if choice.setting is not None
        )
        choices = [SelectedBenchmark(choice.task) for choice in choices]
    jobs: list[EvalJob] = []
    for choice in choices:
        apart = len(choices) > 1 or choice.suite is not None
        out = request.out / choice.folder if request.out is not None and apart else request.out
        arguments = tuple(overrides_for(choice, choices, request.arguments))
        job = collect(problems, _make_job, replace(request, arguments=arguments, out=out), models, choice)
        jobs += [replace(job, notes=(*notes, *job.notes))] if job is not None else []
    _raise(problems)
    return jobs, [table for table in tables if table.suite is not None or len(jobs) > 1]


def _look_up(request: EvalRequest, problems: list[str]) -> _Models:
    """Return the models that ``request`` names; what is wrong with it is added to ``problems``."""
    root, name = runs_root(request.overrides, problems), request.names[0] if request.names else None
    if name is None and request.config:
        # The task may be that of a benchmark, for which other overrides hold.
        overrides = [text for text in request.overrides if not text.startswith("task")]
        name = collect(problems, load_config, request.config, overrides=overrides, fallback=Config()).model.name
    not_found: list[str] = []
    target = collect(not_found, find_target, name, root, checkpoints=max(1, request.average_last))
    run = target.run if target is not None else None
    if run is None and target is not None and name is not None:
        run = find_run_of(name, root)
    against = _against(request, name, target, root, problems)
    return _Models(root, name, target, tuple(not_found), run, against)


def _make_job(request: EvalRequest, models: _Models, choice: SelectedBenchmark | None = None) -> EvalJob:
    """Check ``request`` against the models and the data on disk.

    Settings are, from the lowest: the defaults, the run's own configuration, those of ``choice``, the overrides and
    options of this call.

    Raises UserError with every problem found: unknown targets, values out of bounds, too few checkpoints.
    """
    overrides, problems, notes = request.overrides, list[str](), list[str]()
    name, run, target, not_found = models.name, models.run, models.target, models.not_found
    asked = overrides
    if choice is not None:
        style = target.subjects[0].style if target is not None else None
        choice = _for_style(choice, style, notes)
        asked = [*setting_overrides(choice, style), *overrides]
    files, model = ([run.config_path], None) if run is not None else ([], name)
    sources = [*files, *request.config]
    config = collect(problems, load_config, sources, model=model, overrides=asked, import_files=True, from_start=True)
    if config is None:
        raise UserError([*not_found, *problems])
    target, against = (_with_task(each, config, models.root) for each in (target, models.against))
    if config.eval.engine == "openai" and target is None and name is not None:
        target, not_found = served_target(name, models.root), ()
    of_run = None
    if files and asked_by(overrides, "task.data"):
        of_run = _data_of_run(config, files)
    if of_run is not None:
        config.task._written_data = of_run
    problems = [*not_found, *problems, *_config_problems(request, config)]
    settings = collect(problems, _settings, request, config, of_run=of_run is not None)
    if problems or target is None:
        raise UserError(problems)
    if of_run is not None and request.split is None and not has_split_mark(config.task.data):
        notes.append(
            f"{config.task.data}: the run was trained on rows of this file, so the {settings.split} rows of it are "
            "taken (--split all takes every row)"
        )
    notes += key_note(config)
    if settings.samples == 0 and (idle := idle_without_samples(overrides)):
        notes.append(f"{choice.benchmark}: {idle}" if choice is not None else idle)
    if run is not None and (moved := moved_from(RunDir(run.config_path.parent))):
        notes.append(moved)
    if target.run is not None:
        notes += changed_files(target.run.read_manifest())
    job = EvalJob(config, settings, target, against, request.out, notes=tuple(notes))
    job = replace(job, length_asked=asked_by(overrides, "eval.max_new_tokens", "rollout.max_new_tokens"))
    if choice is None or asked_by(overrides, "task.data"):
        # Other data are not a benchmark's problems, and so without its name.
        return job
    whole = choice.setting is not None and not asked_by(overrides, "eval.problems")
    return replace(job, benchmark=choice.benchmark, setting=choice.setting, whole=whole)


def _request_problems(request: EvalRequest) -> list[str]:
    """Return what is wrong with a call whatever the configuration is."""
    problems: list[str] = []
    if len(request.names) > 1:
        hint = " An override is SECTION.KEY=VALUE." if any("=" in name for name in request.names) else ""
        problems.append(f"only one run or model can be evaluated at a time; got {', '.join(request.names)}.{hint}")
    if request.average_last < 1:
        problems.append(f"--average-last {request.average_last}: must be at least 1.")
    if request.split is not None and request.split not in SPLITS:
        problems.append(f"--split {request.split}: must be one of {', '.join(SPLITS)}.")
    return problems


def _config_problems(request: EvalRequest, config: Config) -> list[str]:
    """Return what is wrong with a call by the ``config`` that it makes."""
    overrides, problems = request.overrides, list[str]()
    if only(overrides, "task.data_dir="):
        collect(problems, check_folder, config.task)
    if config.eval.engine == "openai":
        problems += option_problems(config, named=asked_by(overrides, "eval.base_url") is not None)
        if request.average_last > 1:
            hint = "Evaluate each, or use the engine here."
            problems.append(f"--average-last {request.average_last}: a server serves one checkpoint. {hint}")
    if asked_by(overrides, "track.to"):
        collect(problems, check_trackers, config.track.to)
    return [*problems, *(wrong for text in overrides if (wrong := idle_override(text, config)))]


def _against(
    request: EvalRequest, name: str | None, target: Target | None, root: Path, problems: list[str]
) -> Target | None:
    other = request.against
    if other == BASE and target is not None:
        if target.run is None:
            problems.append(f"--against base: {name} is a model; a run has a base (--against base:RUN).")
            return None
        other = f"{BASE}:{target.run.path}"
    return collect(problems, find_target, other, root) if other is not None else None


def _for_style(choice: SelectedBenchmark, style: str | None, notes: list[str]) -> SelectedBenchmark:
    """Return the benchmark as a model made for prompts of ``style`` can be given it; ``notes`` name the difference."""
    if choice.setting is None:
        return choice
    setting, before = setting_for_style(choice.setting, style), choice.setting.task
    if setting is not choice.setting:
        shares = (key for key, value in before.items() if isinstance(value, Mapping) and setting.task[key] != value)
        written = " and ".join(f"{', '.join(map(str, setting.task[key]))} {key}" for key in shares)
        notes.append(f"{choice.benchmark}: with {written} only, as many as this model's words can write")
    return replace(choice, setting=setting)


def _own_benchmarks(request: EvalRequest, run: RunDir | None) -> list[str]:
    """Return what `eval.benchmark` is, in this call or in the run's configuration; none where it names other problems.

    What is wrong with the configuration is left to :func:`_make_job`, which reports all of it.
    """
    overrides = request.overrides
    if asked_by(overrides, *_PROBLEM_KEYS):
        return []
    files = [*([] if run is None else [run.config_path]), *request.config]
    config = collect([], load_config, files, overrides=only(overrides, "eval.benchmark="), fallback=Config())
    return list(dict.fromkeys(config.eval.benchmark))


def _idle_benchmarks(names: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """Return what is wrong with an `eval.benchmark` of this call that would not be looked at."""
    given = [text for text in only(overrides, "eval.benchmark=") if not text.endswith(("=[]", "=null"))]
    if not given:
        return []
    other = "--benchmark" if names else asked_by(overrides, *_PROBLEM_KEYS)
    return [f"{given[-1]} and {other} cannot be combined. Remove one."] if other else []


def _other_task(choices: Sequence[SelectedBenchmark], overrides: Sequence[str]) -> list[str]:
    """Return what is wrong with a task of this call that is not that of the benchmarks."""
    given = only(overrides, "task.name=")
    wanted = str(parse(given[-1].partition("=")[2]).data) if given else None
    others = [choice for choice in choices if wanted not in (None, choice.task)]
    return [
        f"{typed(given[-1])} and the benchmark {choice.benchmark} of task {choice.task} cannot be combined. Remove one."
        for choice in others
    ]


def _data_of_run(config: Config, files: Sequence[Path]) -> str | None:
    """Return the data of the run as its configuration has them, where those of ``config`` are the same; else None."""
    run = load_config(files, from_start=True).task
    here, its = local_path(config.task.data), local_path(run.data)
    same = config.task.data == run.data or (here.exists() and its.exists() and here.samefile(its))
    return run.settings["data"] if same else None


def _settings(request: EvalRequest, config: Config, *, of_run: bool) -> EvalSettings:
    """Return what the job samples. Raises UserError for too many samples, none, or a split that the data lack."""
    overrides, section, problems = request.overrides, config.eval, list[str]()
    if asked_by(overrides, "eval.samples") and not asked_by(overrides, "eval.pass_at"):
        # The samples of this call are meant, whatever k the run or the benchmark has.
        section = section.model_copy(update={"pass_at": tuple(k for k in section.pass_at if k <= section.samples)})
    if section.samples_needed == 0 and not section.greedy:
        given = typed(only(overrides, "eval.samples=")[-1])
        problems.append(
            f"{given} leaves only the greedy completion, and eval.greedy=false removes it: add eval.greedy=true."
        )
    if section.samples_needed > (most := MOST_COMPLETIONS // section.problems):
        key = asked_by(overrides, "eval.samples", "eval.pass_at") or "eval.samples"
        problems.append(
            f"{key}: {section.samples_needed:,} samples of each of {section.problems} problems; at most {most} (the "
            "samples of an evaluation are held in memory)."
        )
    split, data = request.split or section.split, config.task.data
    if request.split is None and asked_by(overrides, "task.data") and not of_run and not has_split_mark(data):
        split = "all"
    if split == "all" and is_generated(data):
        problems.append("--split all: generated problems have dev and test; `all` is for problems from --data.")
    _raise(problems)
    return EvalSettings.from_config(config, section, split=split, seed=request.seed)


def _with_task(target: Target | None, config: Config, root: Path) -> Target | None:
    """Return the preset `lab` as the lab that the run of ``config`` began from, or as it is with its task.

    Any other target stays as it is.
    """
    if target is None or target.subjects[0].model not in PRESETS:
        return target
    own = preset_of_task(target.subjects[0].model, config.task.name)
    if own == "lab" and config.model.name in PRESETS:
        own = config.model.name
    return find_target(own, root) if own != target.subjects[0].model else target


def runs_root(overrides: Sequence[str], problems: list[str]) -> Path:
    """Return the folder of the runs by `run.dir`; what is wrong with it is added to ``problems``."""
    return Path(collect(problems, load_config, fallback=Config(), overrides=only(overrides, "run.")).run.dir)


def collect(problems: list[str], function: Any, *args: Any, fallback: Any = None, **kwargs: Any) -> Any:
    """Return what ``function`` returns; ``fallback``, and what is wrong in ``problems``, where it raises UserError."""
    try:
        return function(*args, **kwargs)
    except UserError as error:
        problems.extend(error.problems)
        return fallback


def _raise(problems: Sequence[str]) -> None:
    if problems:
        raise UserError(list(dict.fromkeys(problems)))
