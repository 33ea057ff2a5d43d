"""Turn the request of `rlvr eval` into checked jobs, and report all problems at once. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rlvr_cli.config.load import SweepRow, load_config, preset_of_task
from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import UserError, collect_problems
from rlvr_cli.core.files import local_path
from rlvr_cli.core.layers import as_typed
from rlvr_cli.core.user_code import edited_file_warnings
from rlvr_cli.core.yaml import parse
from rlvr_cli.evaluation.benchmarks import (
    BenchmarkTable,
    SelectedBenchmark,
    overrides_for,
    select_benchmarks,
    setting_overrides,
)
from rlvr_cli.evaluation.served.options import key_note, option_problems
from rlvr_cli.evaluation.settings import (
    EvalSettings,
    filter_overrides,
    find_option,
    greedy_only_note,
    unused_override_message,
)
from rlvr_cli.evaluation.targets import BASE, EvaluatedModel, Target, find_source_run, find_target, served_target
from rlvr_cli.models.source import PRESETS
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.tasks import Problem
from rlvr_cli.tasks.sets import check_folder, has_fixed_split, is_generated, task_kinds
from rlvr_cli.tasks.suites import Setting, evaluation_names, unknown_name_errors
from rlvr_cli.tracking.trackers import check_trackers

SPLITS = ("dev", "test", "all")
MOST_COMPLETIONS = 10_000_000
_OVERRIDE = re.compile(r"[a-z_]+(\.[A-Za-z0-9_]+)+=")
_PROBLEM_KEYS = ("task.name", "task.data")


@dataclass(frozen=True)
class EvalRequest:
    """The command line of `rlvr eval`; None = not set.

    Attributes:
        arguments: run, checkpoint or model, and overrides, including those of options.
        config: configuration files, which override the run's. Their model is the default target.
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
        return [argument for argument in self.arguments if _OVERRIDE.match(argument)]

    @property
    def names(self) -> list[str]:
        """Return the arguments that are not overrides; more than one is an error."""
        return [argument for argument in self.arguments if not _OVERRIDE.match(argument)]


@dataclass(frozen=True)
class _Models:
    """The models of a request, resolved once for all of its jobs.

    Attributes:
        root: the folder of the runs.
        name: of the run or model to evaluate; None = the newest run.
        target: None if ``name`` cannot be resolved, because of ``unresolved``; a server may have this model.
        run: the run whose configuration gives the default settings, if any.
    """

    root: Path
    name: str | None
    target: Target | None
    unresolved: tuple[str, ...]
    run: RunDir | None
    against: Target | None


@dataclass(frozen=True)
class EvalJob:
    """A target, problems and settings, checked as far as possible without loading a model.

    Attributes:
        benchmark: the requested benchmark; None = the problems are named after their data.
        setting: the benchmark's setting, which is part of the key of the evaluation's folder.
        all_problems: evaluate all problems of the data, not ``settings.problems`` of them.
        max_tokens_option: the option or key of this call that sets the longest completion; None = by default, so that
            it may be clipped to the model's positions.
        notes: for the user, on how the settings were resolved.
        problems: empty until they are read. trained_on: the number of training problems among them, by model label.
    """

    config: Config
    settings: EvalSettings
    target: Target
    against: Target | None
    out: Path | None
    benchmark: str | None = None
    setting: Setting | None = None
    all_problems: bool = False
    notes: tuple[str, ...] = ()
    max_tokens_option: str | None = None
    problems: tuple[Problem, ...] = ()
    trained_on: Mapping[str, int] = field(default_factory=dict)

    @property
    def models(self) -> tuple[EvaluatedModel, ...]:
        return (*self.target.subjects, *(self.against.subjects if self.against else ()))


def make_jobs(benchmarks: Sequence[str], request: EvalRequest) -> tuple[list[EvalJob], list[BenchmarkTable]]:
    """Return a job per selected benchmark, and their tables.

    Without ``benchmarks``, those of `eval.benchmark` are selected unless the request sets a task or data; without any,
    one job evaluates the run's task. Several jobs have one folder each in ``request.out``, those of a suite in the
    suite's folder.

    Args:
        benchmarks: names of benchmarks and suites, or several joined by commas.
    Raises UserError with all problems of the request.
    """
    names = list(dict.fromkeys(name.strip() for text in benchmarks for name in text.split(",")))
    overrides = request.overrides
    models, problems = _resolve_models(request)
    problems = [*_request_problems(request), *_benchmark_conflicts(names, overrides), *problems]
    names = names or _default_benchmarks(request, models.run)
    jobs: list[EvalJob] = []
    if not names:
        with collect_problems(problems, UserError):
            jobs = [_make_job(request, models)]
        _raise(problems)
        return jobs, []
    problems += unknown_name_errors(names, "--benchmark")
    choices, tables = select_benchmarks([name for name in names if name in evaluation_names()])
    if conflicts := _task_conflicts(choices, overrides):
        raise UserError([*problems, *conflicts])
    notes: tuple[str, ...] = ()
    if data := find_option(overrides, "task.data"):
        if len(choices) > 1:
            raise UserError([*problems, f"{data}: is for one benchmark. Use --data-dir FOLDER for several."])
        notes = tuple(
            f"{choice.benchmark}: {data} has other problems, which are evaluated as the task {choice.task}, "
            "without the benchmark's settings"
            for choice in choices
            if choice.setting is not None
        )
        choices = [SelectedBenchmark(choice.task) for choice in choices]
    for choice in choices:
        separate = len(choices) > 1 or choice.suite is not None
        out = request.out / choice.folder if request.out is not None and separate else request.out
        arguments = tuple(overrides_for(choice, choices, request.arguments))
        with collect_problems(problems, UserError):
            job = _make_job(replace(request, arguments=arguments, out=out), models, choice)
            jobs.append(replace(job, notes=(*notes, *job.notes)))
    _raise(problems)
    return jobs, [table for table in tables if table.suite is not None or len(jobs) > 1]


def _resolve_models(request: EvalRequest) -> tuple[_Models, list[str]]:
    problems, unresolved = list[str](), list[str]()
    root, name = Path(Config().run.dir), request.names[0] if request.names else None
    target: Target | None = None
    against: Target | None = None
    with collect_problems(problems, UserError):
        root = runs_root(request.overrides)
    if name is None and request.config:
        # Overrides of the task may be for the task of a benchmark.
        overrides = [override for override in request.overrides if not override.startswith("task")]
        name = Config().model.name
        with collect_problems(problems, UserError):
            name = load_config(request.config, overrides=overrides).model.name
    with collect_problems(unresolved, UserError):
        target = find_target(name, root, checkpoints=max(1, request.average_last))
    run = target.run if target is not None else None
    if run is None and target is not None and name is not None:
        run = find_source_run(name, root)
    with collect_problems(problems, UserError):
        against = _find_against(request, name, target, root)
    return _Models(root, name, target, tuple(unresolved), run, against), problems


def _make_job(request: EvalRequest, models: _Models, choice: SelectedBenchmark | None = None) -> EvalJob:
    """Check ``request`` against the models and the data on disk.

    Precedence of settings, from the lowest: defaults, the run's configuration, those of ``choice``, overrides and
    options.
    Raises UserError with all problems: unknown targets, values out of bounds, too few checkpoints.
    """
    overrides, problems, notes = request.overrides, list[str](), list[str]()
    name, run, target, unresolved = models.name, models.run, models.target, models.unresolved
    merged = overrides
    if choice is not None:
        style = target.subjects[0].style if target is not None else None
        choice, notes = _adapt_to_style(choice, style)
        merged = [*setting_overrides(choice, style), *overrides]
    files, model = ([run.config_path], None) if run is not None else ([], name)
    try:
        sources = [*files, *request.config]
        config = load_config(sources, model=model, overrides=merged, import_files=True, from_start=True)
    except UserError as error:
        raise UserError([*unresolved, *error.problems]) from error
    target, against = (_choose_lab(each, config, models.root) for each in (target, models.against))
    if config.eval.engine == "openai" and target is None and name is not None:
        target, unresolved = served_target(name, models.root), ()
    training_data = None
    if files and find_option(overrides, "task.data"):
        training_data = _same_training_data(config, files)
    if training_data is not None:
        config.task._written_data = training_data
    problems = [*unresolved, *_config_problems(request, config)]
    settings: EvalSettings | None = None
    with collect_problems(problems, UserError):
        settings = _settings(request, config, trained_on=training_data is not None)
    if problems or target is None or settings is None:
        raise UserError(problems)
    if training_data is not None and request.split is None and not has_fixed_split(config.task.data):
        notes.append(
            f"{config.task.data}: the run was trained on rows of this file, so its {settings.split} rows are evaluated "
            "(--split all evaluates every row)"
        )
    notes += key_note(config)
    if settings.samples == 0 and (note := greedy_only_note(overrides)):
        notes.append(f"{choice.benchmark}: {note}" if choice is not None else note)
    if target.run is not None:
        notes += edited_file_warnings(target.run.read_manifest())
    job = EvalJob(config, settings, target, against, request.out, notes=tuple(notes))
    job = replace(job, max_tokens_option=find_option(overrides, "eval.max_new_tokens", "rollout.max_new_tokens"))
    if choice is None or find_option(overrides, "task.data"):
        # With other data, the problems are not the benchmark's.
        return job
    all_problems = choice.setting is not None and not find_option(overrides, "eval.problems")
    return replace(job, benchmark=choice.benchmark, setting=choice.setting, all_problems=all_problems)


def _request_problems(request: EvalRequest) -> list[str]:
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
    overrides, problems = request.overrides, list[str]()
    if filter_overrides(overrides, "task.data_dir="):
        with collect_problems(problems, UserError):
            check_folder(config.task)
    if config.eval.engine == "openai":
        problems += option_problems(config, named=find_option(overrides, "eval.base_url") is not None)
        if request.average_last > 1:
            hint = "Evaluate each, or use another engine."
            problems.append(f"--average-last {request.average_last}: a server serves one checkpoint. {hint}")
    if find_option(overrides, "track.to"):
        with collect_problems(problems, UserError):
            check_trackers(config.track.to)
    return [*problems, *(message for text in overrides if (message := unused_override_message(text, config)))]


def _find_against(request: EvalRequest, name: str | None, target: Target | None, root: Path) -> Target | None:
    other = request.against
    if other == BASE and target is not None:
        if target.run is None:
            raise UserError(f"--against base: {name} is a model; a run has a base (--against base:RUN).")
        other = f"{BASE}:{target.run.path}"
    return find_target(other, root) if other is not None else None


def _adapt_to_style(choice: SelectedBenchmark, style: str | None) -> tuple[SelectedBenchmark, list[str]]:
    """Return the benchmark restricted to problems that prompts of ``style`` can express, and a note if it is."""
    if choice.setting is None:
        return choice, []
    before = choice.setting.task
    keys = task_kinds()[choice.task].restrict_keys(before, style)
    if keys is before:
        return choice, []
    shares = (key for key, value in before.items() if isinstance(value, Mapping) and keys[key] != value)
    sizes = " and ".join(f"{', '.join(map(str, keys[key]))} {key}" for key in shares)
    note = f"{choice.benchmark}: only problems with {sizes}, the sizes that this model's vocabulary covers"
    return replace(choice, setting=replace(choice.setting, task=keys)), [note]


def _default_benchmarks(request: EvalRequest, run: RunDir | None) -> list[str]:
    """Return `eval.benchmark`, none if the request sets other problems; errors are left to :func:`_make_job`."""
    overrides, config = request.overrides, Config()
    if find_option(overrides, *_PROBLEM_KEYS):
        return []
    with collect_problems([], UserError):
        files = [*([] if run is None else [run.config_path]), *request.config]
        config = load_config(files, overrides=filter_overrides(overrides, "eval.benchmark="))
    return list(dict.fromkeys(config.eval.benchmark))


def _benchmark_conflicts(names: Sequence[str], overrides: Sequence[str]) -> list[str]:
    keys = [text for text in filter_overrides(overrides, "eval.benchmark=") if not text.endswith(("=[]", "=null"))]
    other = "--benchmark" if names else find_option(overrides, *_PROBLEM_KEYS)
    return [f"{keys[-1]} and {other} cannot be combined. Remove one."] if keys and other else []


def _task_conflicts(choices: Sequence[SelectedBenchmark], overrides: Sequence[str]) -> list[str]:
    keys = filter_overrides(overrides, "task.name=")
    task = str(parse(keys[-1].partition("=")[2]).data) if keys else None
    return [
        f"{as_typed(keys[-1])} and the benchmark {choice.benchmark} of task {choice.task} cannot be combined. "
        "Remove one."
        for choice in choices
        if task not in (None, choice.task)
    ]


def _same_training_data(config: Config, files: Sequence[Path]) -> str | None:
    """Return the run's data, as its configuration names them, if ``config`` has the same data; else None."""
    run = load_config(files, from_start=True).task
    current, recorded = local_path(config.task.data), local_path(run.data)
    same = config.task.data == run.data or (current.exists() and recorded.exists() and current.samefile(recorded))
    return run.settings["data"] if same else None


def _settings(request: EvalRequest, config: Config, *, trained_on: bool) -> EvalSettings:
    """Return the sampling settings. Raises UserError for too many samples or none, or a split that the data lack."""
    overrides, section, problems = request.overrides, config.eval, list[str]()
    if find_option(overrides, "eval.samples") and not find_option(overrides, "eval.pass_at"):
        # Drop a default k above the requested number of samples.
        section = section.model_copy(update={"pass_at": tuple(k for k in section.pass_at if k <= section.samples)})
    if section.samples_needed == 0 and not section.greedy:
        option = as_typed(filter_overrides(overrides, "eval.samples=")[-1])
        problems.append(
            f"{option} leaves only the greedy completion, and eval.greedy=false removes it: add eval.greedy=true."
        )
    if section.samples_needed > (most := MOST_COMPLETIONS // section.problems):
        key = find_option(overrides, "eval.samples", "eval.pass_at") or "eval.samples"
        problems.append(
            f"{key}: {section.samples_needed:,} samples of each of {section.problems} problems; at most {most} (the "
            "samples of an evaluation are held in memory)."
        )
    split, data = request.split or section.split, config.task.data
    if request.split is None and find_option(overrides, "task.data") and not (trained_on or has_fixed_split(data)):
        split = "all"
    if split == "all" and is_generated(data):
        problems.append("--split all: generated problems have dev and test; `all` is for problems from --data.")
    _raise(problems)
    return EvalSettings.from_config(config, section, split=split, seed=request.seed)


def _choose_lab(target: Target | None, config: Config, root: Path) -> Target | None:
    """Return the preset `lab` as the lab of the task, else as the preset of ``config``; any other target unchanged."""
    if target is None or target.subjects[0].model not in PRESETS:
        return target
    preset = preset_of_task(target.subjects[0].model, config.task.name)
    if preset == "lab" and config.model.name in PRESETS:
        preset = config.model.name
    return find_target(preset, root) if preset != target.subjects[0].model else target


def runs_root(overrides: Sequence[str]) -> Path:
    return Path(load_config(overrides=filter_overrides(overrides, "run.")).run.dir)


def _raise(problems: Sequence[str]) -> None:
    if problems:
        raise UserError(list(dict.fromkeys(problems)))
