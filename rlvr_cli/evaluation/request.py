"""From the options of `rlvr eval` to a checked request, with every problem reported at once. Imports no torch."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlvr_cli.config.errors import UserError
from rlvr_cli.config.load import load_config
from rlvr_cli.config.schema import Config
from rlvr_cli.evaluation.benchmarks import data_of, known, task_of
from rlvr_cli.evaluation.settings import EvalSettings, pass_at_problems
from rlvr_cli.evaluation.targets import Target, find_target
from rlvr_cli.tasks.kk.load import has_split_mark

SPLITS = ("dev", "test", "all")
MOST_COMPLETIONS = 10_000_000
_OVERRIDE = re.compile(r"[a-z_]+(\.[A-Za-z0-9_]+)+=")


@dataclass(frozen=True)
class Options:
    """The command line of `rlvr eval`, as given; None = not given."""

    arguments: tuple[str, ...] = ()
    pass_at: tuple[str, ...] = ()
    samples: int | None = None
    problems: int | None = None
    split: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_new_tokens: int | None = None
    benchmark: str | None = None
    data: str | None = None
    data_dir: Path | None = None
    average_last: int = 1
    against: str | None = None
    seed: int = 0
    out: Path | None = None


@dataclass(frozen=True)
class Request:
    """What to evaluate and how; everything that can be checked without loading a model has been."""

    config: Config
    settings: EvalSettings
    target: Target
    against: Target | None
    out: Path | None
    benchmark: str | None = None


def make_request(options: Options) -> Request:
    """Check ``options`` against the runs, models and data on disk.

    Raises UserError with every problem found: unknown targets, k above n, values out of bounds, too few checkpoints.
    """
    problems: list[str] = []
    names = [argument for argument in options.arguments if not _OVERRIDE.match(argument)]
    overrides = [argument for argument in options.arguments if _OVERRIDE.match(argument)]
    if len(names) > 1:
        problems.append(f"one run or model can be evaluated at a time; given: {', '.join(names)}.")
    if options.average_last < 1:
        problems.append(f"--average-last {options.average_last}: must be at least 1.")
    benchmark = options.benchmark
    if benchmark is not None and benchmark not in known():
        problems.append(f"--benchmark {benchmark}: unknown. Known: {', '.join(known())}.")
        benchmark = None
    if options.data_dir is not None and (options.benchmark is None or options.data is not None):
        problems.append("--data-dir: is for --benchmark, and without --data.")
    if options.split is not None and options.split not in SPLITS:
        problems.append(f"--split {options.split}: must be one of {', '.join(SPLITS)}.")
    pass_at = _pass_at(options.pass_at, problems)
    asked = [*overrides, *_option_overrides(options)]
    if benchmark is not None:
        asked.append(f"task={task_of(benchmark)}")
        data = None if options.data else _collect(problems, data_of, benchmark, options.data_dir)
        if data is not None:
            asked.append(f"task.data={json.dumps(data, ensure_ascii=False)}")

    root = Path(_collect(problems, load_config, fallback=Config(), overrides=_only(overrides, "run.")).run.dir)
    count = max(1, options.average_last)
    target = _collect(problems, find_target, names[0] if names else None, root, checkpoints=count)
    against = _collect(problems, find_target, options.against, root) if options.against is not None else None
    if target is not None and target.run is not None:
        config = _collect(problems, load_config, [target.run.config_path], overrides=asked)
    else:
        config = _collect(problems, load_config, model=names[0] if names else None, overrides=asked)
    settings = _settings(options, config or Config(), pass_at, problems)
    if problems:
        raise UserError(list(dict.fromkeys(problems)))
    return Request(config, settings, target, against, options.out, benchmark)


def make_requests(benchmarks: Sequence[str], options: Options) -> list[Request]:
    """``make_request`` for each of ``benchmarks`` (each one name, or several with commas); one without any.

    With several, each has a folder of its name in ``options.out``.
    """
    names = list(dict.fromkeys(part.strip() for text in benchmarks for part in text.split(",")))
    if not names:
        return [make_request(options)]
    if len(names) > 1 and options.data is not None:
        raise UserError("--data: is for one benchmark; give a folder with --data-dir for several.")
    problems: list[str] = []
    requests = []
    for name in names:
        out = options.out / name if options.out is not None and len(names) > 1 else options.out
        requests.append(_collect(problems, make_request, replace(options, benchmark=name, out=out)))
    if problems:
        raise UserError(list(dict.fromkeys(problems)))
    return requests


def _settings(options: Options, config: Config, pass_at: tuple[int, ...], problems: list[str]) -> EvalSettings:
    samples = options.samples if options.samples is not None else config.eval.samples
    in_bounds = 1 <= samples <= MOST_COMPLETIONS // config.eval.problems
    if not in_bounds:
        problems.append(
            f"--samples {samples}: must be at least 1, and with {config.eval.problems} problems at most "
            f"{MOST_COMPLETIONS // config.eval.problems} (the samples of an evaluation are held in memory)."
        )
    ks = pass_at or tuple(k for k in config.eval.pass_at if k <= samples) or (1,)
    wrong = pass_at_problems(ks, samples) if in_bounds else []
    problems += wrong
    split = options.split or config.eval.split
    data = config.task.data
    named = options.data is not None or options.data_dir is not None
    if options.split is None and named and data is not None and not has_split_mark(data):
        split = "all"
    if split == "all" and data is None:
        problems.append("--split all: generated problems have dev and test; `all` is for problems from --data.")
    if wrong or not in_bounds:
        return EvalSettings()
    return EvalSettings.from_config(config, samples=samples, pass_at=ks, split=split, seed=options.seed)


def _pass_at(texts: Sequence[str], problems: list[str]) -> tuple[int, ...]:
    ks: list[int] = []
    for part in (part.strip() for text in texts for part in text.split(",")):
        if part.isascii() and part.isdigit() and len(part) < 8:
            ks.append(int(part))
        else:
            problems.append(f"--pass-at {part!r}: not a whole number of at least 1. Write a list such as 1,8,32.")
    return tuple(dict.fromkeys(ks))


def _option_overrides(options: Options) -> list[str]:
    """Options that stand for a key, as overrides: so they have the key's bounds and messages."""
    keys: dict[str, Any] = {
        "eval.problems": options.problems,
        "eval.temperature": options.temperature,
        "eval.top_p": options.top_p,
        "eval.max_new_tokens": options.max_new_tokens,
        "task.data": options.data,
    }
    return [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in keys.items() if value is not None]


def _only(overrides: Sequence[str], prefix: str) -> list[str]:
    return [override for override in overrides if override.startswith(prefix)]


def _collect(problems: list[str], function: Any, *args: Any, fallback: Any = None, **kwargs: Any) -> Any:
    try:
        return function(*args, **kwargs)
    except UserError as error:
        problems.extend(error.problems)
        return fallback
