"""From the options of `rlvr eval` to a checked request, with every problem reported at once. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rlvr_cli.config.load import SweepRow, load_config, moved_from, preset_of_task
from rlvr_cli.config.schema import Config, EvalConfig
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import local_path
from rlvr_cli.core.layers import OptionOverride, typed
from rlvr_cli.core.user_code import changed_files
from rlvr_cli.core.yaml import parse
from rlvr_cli.evaluation.benchmarks import (
    BenchmarkTable,
    SelectedBenchmark,
    given_samples,
    overrides_for,
    select_benchmarks,
    setting_for_style,
    setting_overrides,
)
from rlvr_cli.evaluation.served.options import key_note, option_problems
from rlvr_cli.evaluation.settings import EvalSettings, engine_of
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


@dataclass(frozen=True)
class Options:
    """The command line of `rlvr eval`, as given; None = not given.

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


@dataclass(frozen=True)
class EvalPlan:
    """Requests for the same models, and the tables that show their results (``rows`` are places in ``requests``)."""

    requests: tuple[EvalJob, ...]
    tables: tuple[BenchmarkTable, ...] = ()


def make_request(options: Options, choice: SelectedBenchmark | None = None) -> EvalJob:
    """Check ``options`` against the runs, models and data on disk.

    Settings are, from the lowest: the defaults, the run's own configuration, those of ``choice``, the overrides and
    options of this call.

    Raises UserError with every problem found: unknown targets, k above n, values out of bounds, too few checkpoints.
    """
    problems: list[str] = []
    notes: list[str] = []
    names = [argument for argument in options.arguments if not _OVERRIDE.match(argument)]
    overrides = [argument for argument in options.arguments if _OVERRIDE.match(argument)]
    if len(names) > 1:
        hint = " An override is SECTION.KEY=VALUE." if any("=" in name for name in names) else ""
        problems.append(f"one run or model can be evaluated at a time; given: {', '.join(names)}.{hint}")
    if options.average_last < 1:
        problems.append(f"--average-last {options.average_last}: must be at least 1.")
    if options.split is not None and options.split not in SPLITS:
        problems.append(f"--split {options.split}: must be one of {', '.join(SPLITS)}.")
    root = Path(collect(problems, load_config, fallback=Config(), overrides=only(overrides, "run.")).run.dir)
    count = max(1, options.average_last)
    name = names[0] if names else _model_of(options.config)
    not_found: list[str] = []
    target = collect(not_found, find_target, name, root, checkpoints=count)
    other = options.against
    if other == BASE and target is not None:
        other = f"{BASE}:{target.run.path}" if target.run is not None else None
        problems += [] if other else [f"--against base: {name} is a model; a run has a base (--against base:RUN)."]
    against = collect(problems, find_target, other, root) if other is not None else None
    asked = overrides
    style = target.subjects[0].style if target is not None else None
    if choice is not None and choice.setting is not None:
        setting = setting_for_style(choice.setting, style)
        if setting is not choice.setting:
            before = choice.setting.task
            shares = (key for key, value in before.items() if isinstance(value, Mapping) and setting.task[key] != value)
            written = " and ".join(f"{', '.join(map(str, setting.task[key]))} {key}" for key in shares)
            notes.append(f"{choice.benchmark}: with {written} only, as many as this model's words can write")
        choice = replace(choice, setting=setting)
    if choice is not None:
        asked = [*setting_overrides(choice, overrides, style), *asked]
    run = find_run_of(name, root) if target is not None else None
    files = [run.config_path] if run is not None else []
    model = None if files else name
    sources = [*files, *options.config]
    asked = [*asked, *_fitting(sources, model, overrides, asked)]
    config = collect(problems, load_config, sources, model=model, overrides=asked, import_files=True, from_start=True)
    if config is not None:
        target, against = (_with_task(one, config, root) for one in (target, against))
    if config is not None and only(overrides, "task.data_dir="):
        collect(problems, check_folder, config.task)
    if config is not None and config.eval.engine == "openai":
        problems += _server_problems(config, count, named=asked_by(overrides, "eval.base_url") is not None)
        if target is None and name is not None and count == 1:
            target, not_found = served_target(name, root), []
    problems = not_found + problems
    if config is not None:
        problems += [wrong for text in overrides if (wrong := _idle_override(text, config))]
    named = bool(files) and asked_by(overrides, "task.data") is not None
    of_run = config is not None and named and _is_of_run(config, files)
    settings = _settings(options, overrides, config or Config(), problems, of_run=of_run)
    if config is not None and asked_by(overrides, "track.to"):
        collect(problems, check_trackers, config.track.to)
    if problems:
        raise UserError(list(dict.fromkeys(problems)))
    if of_run and config is not None and options.split is None and not has_split_mark(config.task.data):
        notes.append(
            f"{config.task.data}: the run was trained on rows of this file, so the {settings.split} rows of it are "
            "taken (--split all takes every row)"
        )
    notes += key_note(config)
    if settings.samples == 0:
        notes += _idle_without_samples(overrides, choice)
    if files and (moved := moved_from(RunDir(files[0].parent))):
        notes.append(moved)
    if config is not None and target is not None and target.run is not None:
        notes += changed_files(target.run.read_manifest())
    if asked_by(overrides, "task.data"):
        # Not a benchmark's problems, and so without its name.
        choice = None
    return EvalJob(
        config,
        settings,
        target,
        against,
        options.out,
        choice.benchmark if choice is not None else None,
        choice.setting if choice is not None else None,
        choice is not None and choice.setting is not None and not asked_by(overrides, "eval.problems"),
        tuple(notes),
        asked_by(overrides, "eval.max_new_tokens") or asked_by(overrides, "rollout.max_new_tokens"),
    )


def plan_evaluations(benchmarks: Sequence[str], options: Options) -> EvalPlan:
    """``make_request`` for each evaluation that ``benchmarks`` ask for (each text one name, or several with commas).

    Without any, those of the run's `eval.benchmark`, unless the call names a task or data; without these, one request
    for the run's own task. With several evaluations, each has a folder of its name in ``options.out``, those of a
    suite in the suite's folder.
    """
    names = list(dict.fromkeys(part.strip() for text in benchmarks for part in text.split(",")))
    overrides = [argument for argument in options.arguments if _OVERRIDE.match(argument)]
    problems = _idle_benchmarks(names, overrides)
    names = names or _own_benchmarks(options, overrides)
    if not names:
        request = collect(problems, make_request, options)
        if problems:
            raise UserError(list(dict.fromkeys(problems)))
        return EvalPlan((request,))
    problems += unknown_names(names, "--benchmark")
    names = [name for name in names if name in evaluation_names()]
    choices, tables = select_benchmarks(names)
    if others := _other_task(choices, overrides):
        raise UserError([*problems, *others])
    notes: tuple[str, ...] = ()
    if data := asked_by(overrides, "task.data"):
        if len(choices) > 1:
            raise UserError([*problems, f"{data}: is for one benchmark; give a folder with --data-dir for several."])
        notes = tuple(
            f"{choice.benchmark}: {data} has other problems, which are evaluated as the task {choice.task}, "
            "without the benchmark's settings"
            for choice in choices
            if choice.setting is not None
        )
        choices = [SelectedBenchmark(choice.task) for choice in choices]
    requests = []
    for choice in choices:
        apart = len(choices) > 1 or choice.suite is not None
        out = options.out / choice.folder if options.out is not None and apart else options.out
        arguments = tuple(overrides_for(choice, choices, options.arguments))
        own = replace(options, arguments=arguments, out=out)
        request = collect(problems, make_request, own, choice)
        requests.append(request and replace(request, notes=(*notes, *request.notes)))
    if problems:
        raise UserError(list(dict.fromkeys(problems)))
    return EvalPlan(tuple(requests), tuple(table for table in tables if table.suite is not None or len(requests) > 1))


def _own_benchmarks(options: Options, overrides: Sequence[str]) -> list[str]:
    """What `eval.benchmark` says, in this call or in the run's configuration; nothing where other problems are named.

    What is wrong with the call is left to :func:`make_request`, which tells all of it.
    """
    if any(_names_problems(text) for text in overrides):
        return []
    names = [argument for argument in options.arguments if not _OVERRIDE.match(argument)]
    ignored: list[str] = []
    root = Path(collect(ignored, load_config, fallback=Config(), overrides=only(overrides, "run.")).run.dir)
    run = collect(ignored, find_run_of, names[0] if names else _model_of(options.config), root)
    files = [*([] if run is None else [run.config_path]), *options.config]
    config = collect(ignored, load_config, files, overrides=only(overrides, "eval.benchmark="), fallback=Config())
    return list(dict.fromkeys(config.eval.benchmark))


_PROBLEM_KEYS = ("task.name", "task.data")


def _names_problems(override: str) -> bool:
    return override.partition("=")[0] in _PROBLEM_KEYS


def _idle_benchmarks(names: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """What is wrong with an `eval.benchmark` of this call that would not be looked at."""
    given = [text for text in only(overrides, "eval.benchmark=") if not text.endswith(("=[]", "=null"))]
    if not given:
        return []
    others = ["--benchmark"] if names else []
    others += [name for key in _PROBLEM_KEYS if (name := asked_by(overrides, key))]
    return [f"{given[-1]}: {others[0]} says which problems are meant; leave one of the two out."] if others else []


def _other_task(choices: Sequence[SelectedBenchmark], overrides: Sequence[str]) -> list[str]:
    """What is wrong with a task of this call that is not that of the benchmarks."""
    given = only(overrides, "task.name=")
    wanted = str(parse(given[-1].partition("=")[2]).data) if given else None
    others = [choice for choice in choices if wanted not in (None, choice.task)]
    return [
        f"{typed(given[-1])}: the benchmark {choice.benchmark} is of the task {choice.task}; leave one of the two out."
        for choice in others
    ]


# What an evaluation reads of the configuration, next to `eval` and `task`.
_READ = frozenset(
    (
        *("model.revision", "model.dtype", "model.attention", "rollout.engine", "rollout.max_new_tokens"),
        *("run.dir", "run.threads"),
    )
)
_TRAINING_ONLY = frozenset(("eval.every", "task.train_size", "track.completions_every", "track.completions"))
_SERVER_ONLY = frozenset(
    (
        *("eval.base_url", "eval.model_name", "eval.server", "eval.endpoint", "eval.concurrency", "eval.retries"),
        *("eval.request_timeout", "eval.api_key_variable"),
    )
)
_NOT_OF_A_SERVER = frozenset(("eval.batch", "model.dtype", "model.attention", "run.threads"))


def idle_key(key: str) -> str | None:
    """Why an evaluation does not read the existing ``key``, and what to do; None where it does."""
    section, _, name = key.partition(".")
    if key in _READ or (section in ("eval", "task", "track") and key not in _TRAINING_ONLY):
        return None
    if key == "model.name":
        return "the model is named as the first argument: rlvr eval MODEL"
    if key == "run.seed":
        return "the seed of the samples is --seed"
    if section == "rollout" and name in EvalConfig.model_fields:
        return f"an evaluation reads eval.{name}"
    return "an evaluation does not read it"


def _idle_override(text: str, config: Config) -> str | None:
    """What is wrong with an override of this call that changes nothing in an evaluation by ``config``."""
    key = text.partition("=")[0]
    why = idle_key(key)
    if why is None and config.eval.engine != "openai" and key in _SERVER_ONLY:
        why = "it is for a server. Give --engine openai too"
    elif why is None and config.eval.engine == "openai" and key in _NOT_OF_A_SERVER:
        why = "the server decides it"
    elif key == "rollout.max_new_tokens" and config.eval.max_new_tokens is not None:
        why = f"eval.max_new_tokens={config.eval.max_new_tokens} decides. Give --max-new-tokens"
    elif key == "rollout.engine" and engine_of(config) != config.rollout.engine:
        why = "an evaluation reads eval.engine (--engine)"
    return f"{typed(text)}: has no effect in an evaluation; {why}." if why is not None else None


def _idle_without_samples(overrides: Sequence[str], choice: SelectedBenchmark | None) -> list[str]:
    """A line where this call sets how samples are drawn, and the greedy completion is all that is asked for."""
    keys = ("eval.temperature", "eval.top_p")
    given = [name for key in keys if (name := asked_by(overrides, key))]
    what = f"{choice.benchmark}: " if choice is not None else ""
    return [f"{what}greedy completions only, so {' and '.join(given)} changes nothing"] if given else []


def _model_of(files: Sequence[Path | SweepRow]) -> str | None:
    """Return the model that configuration files name; None without files, or where they are wrong."""
    return collect([], load_config, files, fallback=Config()).model.name if files else None


def _fitting(
    files: Sequence[Path | SweepRow], model: str | None, call: Sequence[str], overrides: Sequence[str]
) -> list[str]:
    """Return, as an override, the k of pass@k that the samples of a ``call`` leave, or the samples that its k need.

    Args:
        overrides: those of the call, and below them those of a benchmark.
    """
    samples, ks = given_samples(call), only(call, "eval.pass_at=")
    if bool(samples) == bool(ks) or (ks and only(call, "eval.samples=")):
        return []
    without = [text for text in overrides if text not in (*ks, *only(call, "eval.samples="))]
    config = collect([], load_config, files, model=model, overrides=without, fallback=Config())
    if samples:
        return [f"eval.pass_at={[k for k in config.eval.pass_at if k <= samples] or [1]}"]
    wanted = parse(ks[-1].partition("=")[2]).data
    return [f"eval.samples={max([config.eval.samples, *(k for k in wanted if type(k) is int)])}"]


def _is_of_run(config: Config, files: Sequence[Path]) -> bool:
    """Whether the data that this call names are those of the run's own configuration, which are then known as such."""
    run = load_config(files, from_start=True).task
    here, its = local_path(config.task.data), local_path(run.data)
    same = config.task.data == run.data or (here.exists() and its.exists() and here.samefile(its))
    if same:
        config.task._written_data = run.settings["data"]
    return same


def _settings(
    options: Options, overrides: Sequence[str], config: Config, problems: list[str], *, of_run: bool
) -> EvalSettings:
    most = MOST_COMPLETIONS // config.eval.problems
    if config.eval.samples > most:
        problems.append(
            f"{asked_by(overrides, 'eval.samples') or 'eval.samples'}: {config.eval.samples:,} samples of each of "
            f"{config.eval.problems} problems; at most {most} (the samples of an evaluation are held in memory)."
        )
    if not config.eval.samples and (asked := asked_by(overrides, "eval.pass_at")):
        problems.append(
            f"{asked}: the greedy completion alone is asked for. Give --samples {max(config.eval.pass_at)}."
        )
    split = options.split or config.eval.split
    data = config.task.data
    other = asked_by(overrides, "task.data") and not of_run
    if options.split is None and other and not has_split_mark(data):
        split = "all"
    if split == "all" and is_generated(data):
        problems.append("--split all: generated problems have dev and test; `all` is for problems from --data.")
    return EvalSettings.from_config(config, split=split, seed=options.seed)


def _server_problems(config: Config, checkpoints: int, *, named: bool) -> list[str]:
    found = option_problems(config, named=named)
    if checkpoints > 1:
        found.append(
            f"--average-last {checkpoints}: a server serves one checkpoint. Evaluate each, or use the engine here."
        )
    return found


def asked_by(overrides: Sequence[str], key: str) -> str | None:
    """The option or the key by which this call sets ``key``; None where it does not."""
    given = next((text for text in reversed(overrides) if text.partition("=")[0] == key), None)
    return given.typed.split()[0] if isinstance(given, OptionOverride) else key if given is not None else None


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


def only(overrides: Sequence[str], prefix: str) -> list[str]:
    """The overrides that begin so."""
    return [override for override in overrides if override.startswith(prefix)]


def collect(problems: list[str], function: Any, *args: Any, fallback: Any = None, **kwargs: Any) -> Any:
    """What ``function`` returns; ``fallback``, and what is wrong in ``problems``, where it raises UserError."""
    try:
        return function(*args, **kwargs)
    except UserError as error:
        problems.extend(error.problems)
        return fallback
