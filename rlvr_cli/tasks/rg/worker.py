"""What the worker processes of reasoning-gym do: they make problems, and score answers.

Some of its verifiers evaluate what a model wrote as Python, some run for ever on `9**9**9**9`. So they run here alone:
in a process with a deadline and a memory limit, that writes no file, starts no program and opens no connection, and has
an empty environment. What they evaluate is checked first. This is against accidents, and no sandbox.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import json
import math
import os
import re
import resource
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

# Of one seed. Some data sets make all of them at once, and others of another number.
ENTRIES = 64
# Verifiers that evaluate an answer as a Python list, for part of the reward: they read a literal here, and no more.
LITERALS = (
    "algorithmic.binary_matrix",
    "algorithmic.spiral_matrix",
    "algorithmic.string_insertion",
    "games.n_queens",
)
# Verifiers that have SymPy evaluate an answer.
PARSERS = ("games.countdown", "games.puzzle24")
# What SymPy may be given: numbers, variables of one letter, operators, and these functions.
_FORMULA = re.compile(r"[\w\s+\-*/^().,]*", re.ASCII)
_NUMBER = re.compile(r"\b\d+(\.\d*)?([eE][+-]?\d+)?\b")
_NAME = re.compile(r"[A-Za-z]|a?(sin|cos|tan)h?|cot|sec|csc|exp|log|ln|sqrt|Abs|pi|Rational")
# Data sets whose entries hold tuples that are compared with tuples, which JSON has not.
_TUPLES = ("arc_agi", "rearc")
# Data sets whose verifier takes the least of 1 and what came out, which is 1 for nan.
_NO_NAN = ("complex_arithmetic",)
# The environment that is left: how text and threads are handled.
_KEPT = ("LANG", "LC_ALL", "OMP_NUM_THREADS", "PYTHONHASHSEED", "TZ")
# Events of Python's audit hooks that are refused: a file opened to be written is refused too.
_REFUSED = (
    "os.",
    "subprocess.",
    "socket.",
    "shutil.",
    "tempfile.",
    "ctypes.",
    "sqlite3.",
    "pty.",
    "ftplib.",
    "smtplib.",
)
_ALLOWED = frozenset({"os.listdir", "os.scandir", "os.walk", "os.fwalk"})
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def ready(settings: Any) -> Callable[[Any], Any]:
    """What a worker does with a job.

    A job is a mapping with `do`, which is `describe`, `check`, `draw` or `score`, and the arguments of the function of
    that name.
    """
    sys.dont_write_bytecode = True
    with open(os.devnull, "ab") as nowhere:  # noqa: PTH123
        for stream in (1, 2):
            os.dup2(nowhere.fileno(), stream)
    os.chdir("/")
    for name in set(os.environ) - set(_KEPT):
        del os.environ[name]
    importlib.import_module("reasoning_gym")
    replace_evaluation()
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    sys.addaudithook(refuse)
    jobs: dict[str, Callable[..., Any]] = {"describe": describe, "check": check, "draw": draw, "score": score}
    return lambda job: jobs[job.pop("do")](**job)


class Refused(Exception):
    """What no verifier needs."""


def refuse(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook. Raises Refused."""
    if event == "open":
        mode, flags = arguments[1], arguments[2]
        writes = flags & _WRITING if isinstance(flags, int) else isinstance(mode, str) and set(mode) & set("wax+")
        if writes:
            raise Refused("a verifier writes no files")
    elif event.startswith(_REFUSED) and event not in _ALLOWED:
        raise Refused(f"a verifier has no {event}")


def replace_evaluation() -> None:
    """Have verifiers read literals in place of evaluating Python, and formulas that are nothing else."""
    for name in LITERALS:
        vars(_module(name))["eval"] = ast.literal_eval
    import sympy
    from sympy.parsing.sympy_parser import parse_expr

    def parse(text: str, *arguments: Any, **options: Any) -> Any:
        return parse_expr(formula(text), *arguments, **options)

    sympy.parse_expr = parse
    for name in PARSERS:
        vars(_module(name))["parse_expr"] = parse


def formula(text: str) -> str:
    """The text, if it is a formula. Raises ValueError."""
    bare = _NUMBER.sub("0", text)
    attribute = re.search(r"\.\s*[^\W\d]", bare)
    if attribute or not _FORMULA.fullmatch(bare) or not all(map(_NAME.fullmatch, re.findall(r"[^\W\d]\w*", bare))):
        raise ValueError("no formula")
    return text


def _module(name: str) -> Any:
    return importlib.import_module(f"reasoning_gym.{name}")


def describe() -> dict[str, dict[str, Any]]:
    """The data sets by name: `group`, and `options` with their defaults."""
    from reasoning_gym.factory import DATASETS

    return {
        name: {"group": DATASETS[name][0].__module__.split(".")[1], "options": _options(name)}
        for name in sorted(set(DATASETS) - {"composite"})
    }


def _options(name: str) -> dict[str, Any]:
    from reasoning_gym.factory import DATASETS

    config = DATASETS[name][1]()
    fields = [one.name for one in dataclasses.fields(config) if one.name not in ("seed", "size")]
    return {field: json.loads(_as_json(getattr(config, field))) for field in fields}


def check(datasets: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What is wrong with data sets and their options: `names` that there are, and by data set `keys` and `wrong`."""
    from reasoning_gym.factory import DATASETS

    about: dict[str, Any] = {}
    for name, options in datasets.items():
        if name not in DATASETS:
            about[name] = None
            continue
        keys = list(_options(name))
        wrong = None
        if set(options) <= set(keys):
            try:
                _dataset(name, json.dumps(options), 0)
            except Exception as error:
                wrong = str(error) or type(error).__name__
        about[name] = {"keys": keys, "wrong": wrong}
    return {"names": sorted(set(DATASETS) - {"composite"}), "about": about}


def draw(name: str, options: Mapping[str, Any], seed: int, start: int, count: int) -> list[list[Any]]:
    """Question, answer (None where there is none) and metadata of some of the seed's ENTRIES, from ``start`` on."""
    dataset = _dataset(name, json.dumps(options), seed)
    entries = (dataset[place] for place in range(start, start + count))
    return [[str(one["question"]), one["answer"], json.loads(_as_json(one["metadata"]))] for one in entries]


def _as_json(metadata: Any) -> str:
    try:
        return json.dumps(metadata)
    except (TypeError, ValueError):
        return json.dumps(metadata, default=str, skipkeys=True)


def score(name: str, options: Mapping[str, Any], entry: Mapping[str, Any], answer: str) -> float:
    """Between 0 and 1. What a verifier raises is its way to say that the answer is none: 0.

    Raises OSError and ImportError, which are no word on the answer, and ends the process where the memory is full.
    """
    if name in _NO_NAN and re.search(r"nan|inf", answer, re.IGNORECASE):
        return 0.0
    metadata = entry["metadata"]
    whole = {**entry, "metadata": _tuples(metadata) if name in _TUPLES else metadata}
    dataset = _dataset(name, json.dumps(options), 0)
    try:
        found = float(dataset.score_answer(answer, whole))
    except MemoryError:
        os._exit(1)
    except (OSError, ImportError):
        raise
    except Exception:
        return 0.0
    return min(1.0, max(0.0, found)) if math.isfinite(found) else 0.0


def _tuples(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_tuples, value))
    return {key: _tuples(one) for key, one in value.items()} if isinstance(value, dict) else value


@lru_cache(maxsize=32)
def _dataset(name: str, options: str, seed: int) -> Any:
    from reasoning_gym.factory import create_dataset

    return create_dataset(name, seed=seed, size=ENTRIES, **json.loads(options))
