"""A task in a Python file of the user's: one class with problems, a prompt and a judge.

    from rlvr_cli import Task

    class Sums(Task):
        most: int = 100                                 # a key: task.most=50

        def problems(self, split, count, seed): ...     # dicts of JSON values
        def prompt(self, problem): ...                  # text, or messages
        def judge(self, problem, response): ...         # a number, or a dict

:class:`UserTask` makes it a task as any other: its problems are made and its responses judged in worker processes with
a deadline and a memory limit. The class is a value of one load of a configuration; no other configuration knows it.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import json
import math
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from dataclasses import astuple
from functools import cached_property
from itertools import islice
from numbers import Real
from types import TracebackType
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import BeforeValidator, Field, create_model

from rlvr_cli.core import user_code
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.hashes import text_digest
from rlvr_cli.core.messages import read_section
from rlvr_cli.core.section import Probability, Section
from rlvr_cli.core.terminal import tell
from rlvr_cli.core.text import did_you_mean
from rlvr_cli.core.user_code import UserFile, class_lines, guarded, load_module, shown, value_text, without_folder
from rlvr_cli.tasks import base
from rlvr_cli.tasks.base import HELD_OUT_SEED, Data, vote
from rlvr_cli.tasks.files import text_problem
from rlvr_cli.tasks.problem import Judging, Problem, Split, Verdict, made_here
from rlvr_cli.tasks.prompts import are_messages, conversation_prompt, has_template, leading_bos, unfit_conversation
from rlvr_cli.tasks.rewards import (
    LIMIT_KEYS,
    MemoryMiB,
    Notices,
    RewardFailure,
    Timeout,
    account,
    described,
    why,
    worker_limits,
)
from rlvr_cli.workers.pool import JobError, Limits, Pool, Target, WorkerDied
from rlvr_cli.workers.reward import LARGEST_REWARD

PAGE = "docs/tasks/own.md"
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_-]{0,49}$")
# Problems are made all at once: so many times the deadline of a verdict.
_PROBLEMS = 10
# Seconds of waiting for them after which that is said, and after which it is said again.
_SOON, _AGAIN = 5.0, 30.0
# A function that repeats its problems is asked for twice as many this often, and read to this multiple of the number.
_DOUBLED, _READ = 6, 20
# The share of train that test and dev may take.
_MUCH = 0.25
_SOLUTIONS = 1000
# What is judged before anything starts.
_TRIAL = "I do not know."
# What rlvr calls the methods with.
CALLED: Mapping[str, tuple[str, ...]] = {
    "problems": ("split", "count", "seed"),
    "prompt": ("problem",),
    "judge": ("problem", "response"),
    "solution": ("problem",),
}
NEEDED = ("problems", "prompt", "judge")
Row = dict[str, Any]
Judgement = float | None | Mapping[str, Any]


class Task(Section):
    """Base of a user's task. Its fields, which need defaults, are keys of the section ``task``.

    Attributes:
        reward_range: the lowest and the highest reward; by default the highest is what counts as correct.
    """

    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def problems(self, split: Split, count: int, seed: int) -> Iterable[Row]:
        """Return or yield problems of train, dev or test: ``count`` of them, more, or all there are.

        A problem is a dict of JSON values, of which `id`, `question` and `subgroup` (a row of the accuracy table) have
        a meaning.
        """
        raise NotImplementedError

    def prompt(self, problem: Row) -> str | list[dict[str, str]]:
        """Return the user's turn, or messages as ``[{"role": "user", "content": "..."}]``."""
        raise NotImplementedError

    def judge(self, problem: Row, response: str) -> Judgement | Awaitable[Judgement]:
        """Return the reward of any text: a number, a bool, or None where nothing can be said.

        Or a dict of `reward` and optionally `correct`, `answer` (what majority votes count), `parts` (they add up to
        the reward), and anything else to record with the response. May be ``async``.
        """
        raise NotImplementedError

    def solution(self, problem: Row) -> str | Iterable[str] | None:
        """Return one or several right responses, for `rlvr tasks show` and `--method sft`; None = there is none."""
        return None


class UserTask(base.Task):
    """A task as any other, made of the user's class ``kind``."""

    reasons: ClassVar = ("correct", "wrong", "unscored", "error", "timeout", "died")
    runs_own_code: ClassVar = True
    not_deciding: ClassVar = LIMIT_KEYS
    pooled: ClassVar = True
    kind: ClassVar[type[Task]]
    user_file: ClassVar[UserFile]

    held_out: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        500, description="Problems of test, and of dev, at most; train has none of them."
    )
    reward_timeout: Timeout = Field(
        60.0, description="Seconds by the clock that a verdict may take; all problems, ten times as long."
    )
    reward_memory: MemoryMiB = Field(16_384, description="MiB of memory that the judge may use.")
    reward_failures: Probability = Field(
        0.1,
        description="The share of the completions of a rollout that may be without a verdict because the judge "
        "failed; more end the run.",
    )
    reward_workers: Annotated[int, Field(ge=1, le=64)] = Field(2, description="Processes that judge.")

    @property
    def reward_range(self) -> tuple[float, float]:
        low, high = self.kind.reward_range
        return float(low), float(high)

    def with_workers(self, workers: int) -> UserTask:
        return self.model_copy(update={"reward_workers": workers})

    @cached_property
    def task(self) -> Task:
        """Return the user's object with the values of its keys."""
        return self.kind(**{key: copy.deepcopy(getattr(self, key)) for key in self.kind.model_fields})

    # In this process

    def check_before(self) -> None:
        """Make two problems, and judge a response to each. Raises UserError."""
        if not self.is_generated:
            return
        try:
            _session(self).pool.submit({"try": 2}, _PROBLEMS * self.reward_timeout).result()
        except JobError as error:
            failure = why(error, shown(self.user_file.path), "its trial", self._limits, _PROBLEMS * self.reward_timeout)
            raise UserError(failure.said) from None

    def generate(self, split: Split, count: int, seed: int) -> list[Problem]:
        seconds, where = _PROBLEMS * self.reward_timeout, f"{shown(self.user_file.path)}: problems"
        try:
            made = _session(self).pool.submit({"generate": [split, count, seed]}, seconds)
            what = (
                f"is making {count:,} {split} problems, and first up to {self.held_out:,} of each split, to keep them "
                f"apart (task.held_out); it has {seconds:g} s ({_PROBLEMS} times task.reward_timeout)"
            )
            rows = _waited(made, where, what)
        except JobError as error:
            failure = why(error, shown(self.user_file.path), "problems", self._limits, seconds)
            raise RunError(f"{failure.said} ({count} problems of {split}, seed {seed}).") from None
        return [Problem(**row) for row in rows]

    def problem_from(self, fields: dict[str, Any], where: str) -> Problem:
        with guarded(self.user_file, "prompt", self.reward_timeout, about=f" ({where})"):
            return self.read({"id": where, **fields}, where)

    def prompt(self, problem: Problem, tokenizer: Any) -> str:
        """Write the text as the user's turn of the model's chat template, or as it is where there is none."""
        with guarded(self.user_file, "prompt", self.reward_timeout, about=f" (problem {problem.id})"):
            asked = self.asked(problem)
        if isinstance(asked, str) and not has_template(tokenizer):
            return leading_bos(tokenizer) + asked
        messages = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
        instead = "have prompt return text, and use a model without one"
        return conversation_prompt(tokenizer, messages, instead=instead, options=self.chat_template_kwargs)

    def problem_wording(self, problem: Problem) -> str:
        """The whole prompt: a question may be about something else in the row."""
        with guarded(self.user_file, "prompt", self.reward_timeout, about=f" (problem {problem.id})"):
            asked = self.asked(problem)
        return asked if isinstance(asked, str) else "\n\n".join(message["content"] for message in asked)

    def solutions(self, problem: Problem) -> Iterator[str] | None:
        if self.kind.solution is Task.solution:
            return None
        with guarded(self.user_file, "solution", self.reward_timeout, about=f" (problem {problem.id})"):
            given = self.task.solution(_given(problem))
            texts = [given] if isinstance(given, str) else list(islice(given or (), _SOLUTIONS))
        if not texts or not all(isinstance(one, str) for one in texts):
            raise self._wrong("solution", given, "text, or several")
        return iter(texts)

    def judging(self) -> Judging:
        """Judge every response as a job of its own, while others are still to come."""
        return _Judging(self)

    @property
    def _limits(self) -> Limits:
        return worker_limits(self.reward_timeout, self.reward_memory)

    # In a worker, or here

    def asked(self, problem: Problem) -> str | list[dict[str, str]]:
        """Return the user's prompt of a problem. Raises RunError where it is none."""
        given: Any = self.task.prompt(_given(problem))
        if (isinstance(given, str) and given.strip()) or (are_messages(given) and unfit_conversation(given) is None):
            if (unwritable := text_problem(given)) is not None:
                raise RunError(f"{self._place('prompt')}: prompt of problem {problem.id!r}: {unwritable}")
            return cast("str | list[dict[str, str]]", given)
        raise self._wrong("prompt", given, "text, or messages of which the last is the user's")

    def read(self, row: Any, where: str) -> Problem:
        """Return the problem of a dict. Raises RunError."""
        if not isinstance(row, dict):
            raise self._wrong("problems", row, f"a dict ({where})")
        data = {key: value for key, value in row.items() if key != "id"}
        for name, value in data.items():
            try:
                same = isinstance(name, str) and json.loads(json.dumps(value)) == value
            except (TypeError, ValueError, RecursionError):
                same = False
            if not same:
                wanted = "text, numbers, lists and dicts with names of text"
                raise self._wrong("problems", {name: value}, f"JSON values: {wanted} ({where})")
        # Looked for where it can be: many problems are made.
        if "\\ud" in json.dumps(row, default=str) and (unwritable := text_problem(row)) is not None:
            raise RunError(f"{self._place('problems')}: problems: problem of {where}: {unwritable}")
        identity = text_digest(json.dumps(data))[:16] if row.get("id") is None else str(row["id"])
        subgroup, question = data.get("subgroup"), data.get("question")
        problem = Problem(identity, "", data, subgroup if isinstance(subgroup, str) else "all")
        if not isinstance(question, str):
            asked = self.asked(problem)
            question = asked if isinstance(asked, str) else "\n\n".join(one["content"] for one in asked)
        return Problem(identity, question, data, problem.subgroup)

    def made(self, split: Split, count: int, seed: int) -> list[Problem]:
        """Return problems as the user's `problems` gives them, each prompt once and in one split, whatever the seed.

        Train has nothing that test and dev have. Where that is much of it, as of few problems or of a function that
        gives the same for every split, a hash of the prompt says whose a problem is.

        Raises RunError where there are too few.
        """
        if self._share > _MUCH:
            return self._distinct(split, count, seed, lambda prompt: _part_of(prompt) == split, count)
        if split == "train":
            held = self._pools["test"] | self._pools["dev"]
            return self._distinct(split, count, seed, lambda prompt: prompt not in held, count)
        if count > self.held_out:
            raise RunError(
                f"task.held_out={self.held_out}: {split} is limited to that many problems, and {count} are asked for. "
                f"Set task.held_out={count}, or ask for fewer"
            )
        before = self._pools["test"] if split == "dev" else set()
        return self._distinct(split, self.held_out, seed, lambda prompt: prompt not in before, count)[:count]

    @cached_property
    def _pools(self) -> dict[str, set[str]]:
        """The prompts of a split, as many as are held out; of train as many, to look at what they share."""

        def prompts(split: Split) -> set[str]:
            rows = islice(self._rows(split, self.held_out, HELD_OUT_SEED), _READ * self.held_out)
            return {self._prompt_of(self.read(row, f"a {split} problem")) for row in rows}

        return {split: prompts(split) for split in ("test", "dev", "train")}

    @cached_property
    def _share(self) -> float:
        """The share of the train problems that are problems of test or dev too."""
        train = self._pools["train"]
        return len(train & (self._pools["test"] | self._pools["dev"])) / max(1, len(train))

    def _distinct(self, split: Split, count: int, seed: int, ours: Callable[[str], bool], least: int) -> list[Problem]:
        """``count`` problems of different prompts, or all there are, which must be ``least``."""
        asked = count
        for _ in range(_DOUBLED):
            found: dict[str, Problem] = {}
            read = twice = others = 0
            for row in self._rows(split, asked, seed):
                read += 1
                problem = self.read(row, f"{split} problem {read}")
                prompt = self._prompt_of(problem)
                if prompt in found:
                    twice += 1
                elif not ours(prompt):
                    others += 1
                else:
                    found[prompt] = problem
                if len(found) == count or read == _READ * asked:
                    break
            if len(found) == count or read != asked:
                break
            asked *= 2
        rule = " by a hash of their prompts, as train has many of them too" if self._share > _MUCH else ""
        dropped = f"{others:,} belong to other splits{rule}, {twice:,} came twice"
        if len(found) < least:
            key = "task.train_size" if split == "train" else "eval.problems"
            raise RunError(
                f"{self._place('problems')}: problems gave {len(found):,} different {split} problems, and {least:,} "
                f"are asked for ({read:,} read; {dropped}). Make more, or ask for fewer ({key})"
            )
        if others or twice:
            tell(f"{self._place('problems')}: of the first {read:,} {split} problems {dropped}: left out.")
        return list(found.values())

    def tried(self, count: int) -> None:
        """Make so many problems, write their prompts and judge a response to each. Raises RunError."""
        with guarded(self.user_file, "problems"):
            problems = [self.read(row, "a train problem") for row in islice(self._rows("train", count, 0), count)]
        if not problems:
            raise RunError(f"{self._place('problems')}: problems gave no train problem")
        for problem in problems:
            with guarded(self.user_file, "prompt", about=f" (problem {problem.id})"):
                self.asked(problem)
            with guarded(self.user_file, "judge", about=f" (problem {problem.id}; response {_TRIAL!r})"):
                self.judged(problem, _TRIAL)

    def _rows(self, split: Split, count: int, seed: int) -> Iterator[Any]:
        given = self.task.problems(split, count, seed)
        if isinstance(given, (str, bytes, Mapping)) or not hasattr(given, "__iter__"):
            raise self._wrong("problems", given, "dicts, in a list or by yield")
        return iter(given)

    def _prompt_of(self, problem: Problem) -> str:
        return json.dumps(self.asked(problem))

    def judged(self, problem: Problem, response: str) -> Verdict:
        """Return the verdict of the user's `judge`. Raises RunError where that gives none."""
        given = self.task.judge(_given(problem), response)
        if inspect.isawaitable(given):
            given = _loop().run_until_complete(given)
        return self._verdict(given if isinstance(given, dict) else {"reward": given}, response)

    def _verdict(self, given: Mapping[str, Any], response: str) -> Verdict:
        if not isinstance(given.get("parts", {}), dict):
            raise self._wrong("judge", given, "a dict of numbers for parts")
        if "reward" not in given and "parts" not in given:
            raise self._wrong("judge", given, "a dict with reward, or with parts that add up to it")
        logged = {
            str(name): value for name, value in given.items() if name not in ("reward", "parts", "correct", "answer")
        }
        for name, value in logged.items():
            finite = not isinstance(value, float) or math.isfinite(value)
            if not (isinstance(value, str | float | int | None) and finite):
                raise self._wrong("judge", {name: value}, f"text, a finite number or None for {name}")
        answer = given.get("answer", vote(response))
        answer = str(answer) if isinstance(answer, Real) else answer
        if not (answer is None or isinstance(answer, str)):
            raise self._wrong("judge", {"answer": answer}, "text, a number or None for answer")
        if (unwritable := text_problem([answer, logged, *map(str, given.get("parts") or ())])) is not None:
            raise RunError(f"{self._place('judge')}: judge gave text that cannot be written: {unwritable}")
        if given.get("reward", 0.0) is None:
            return Verdict(0.0, {"reward": 0.0}, False, answer, "unscored", False, logged)
        parts = {str(name): self._number(value) for name, value in given.get("parts", {}).items()}
        reward = self._number(given["reward"] if "reward" in given else sum(parts.values()))
        if parts and not math.isclose(sum(parts.values()), reward, abs_tol=1e-6):
            raise self._wrong("judge", given, f"a reward that is the sum of its parts, {sum(parts.values()):g}")
        correct = bool(given.get("correct", reward > self.reward_range[1] - 1e-9))
        reason = "correct" if correct else "wrong"
        return Verdict(reward, parts or {"reward": reward}, correct, answer, reason, logged=logged)

    def _number(self, given: Any) -> float:
        value = given.item() if hasattr(given, "item") and getattr(given, "size", 1) == 1 else given
        try:
            number = float(value) if isinstance(value, Real) else math.nan
        except OverflowError:
            number = math.inf
        if not abs(number) <= LARGEST_REWARD:
            wanted = f"a number from -{LARGEST_REWARD:g} to {LARGEST_REWARD:g}, a bool, None or a dict with reward"
            raise self._wrong("judge", given, wanted)
        return number

    def _place(self, method: str) -> str:
        return _line(self.user_file, self.kind, method)

    def _wrong(self, method: str, given: Any, wanted: str) -> RunError:
        return RunError(f"{self._place(method)}: {method} returned {value_text(given)}; wanted: {wanted}")


class _Session:
    """The workers of a task as it is set, and what was reported of them."""

    def __init__(self, task: UserTask, key: object) -> None:
        self.key, self.notices = key, Notices()
        self.parts: tuple[str, ...] = ()
        settings = {"file": task.user_file.as_json(), "values": json.loads(task.model_dump_json())}
        what = f"runs {shown(task.user_file.path)}"
        target = Target(f"{__name__}:worker", {**settings, "seconds": task._limits.loading - 15}, what=what)
        self.pool = Pool(target, task._limits, task.reward_workers)


_SESSIONS: list[_Session] = []


def _session(task: UserTask) -> _Session:
    """Return the latest session, or begin another one: the workers of an other setting or version are ended."""
    key = (type(task), task.model_dump_json())
    if not _SESSIONS or _SESSIONS[0].key != key or _SESSIONS[0].pool.closed:
        while _SESSIONS:
            _SESSIONS.pop().pool.close()
        _SESSIONS.append(_Session(task, key))
    return _SESSIONS[0]


class _Judging:
    """Responses that are judged in worker processes, each a job of its own."""

    def __init__(self, task: UserTask) -> None:
        self._task, self._session = task, _session(task)
        self._rows: list[tuple[Problem, str, Future[Any]]] = []

    def add(self, problem: Problem, response: str, *, truncated: bool = False) -> None:
        """Have a response judged."""
        job = {"judge": list(astuple(problem)), "response": response}
        self._rows.append((problem, response, self._session.pool.submit(job)))

    def verdicts(self) -> list[Verdict]:
        """Return the verdicts. Raises RunError where more than the allowed share of them could not be had."""
        results = [self._result(future) for _, _, future in self._rows]
        failed = [(row, one) for row, one in enumerate(results) if isinstance(one, RewardFailure)]
        share = self._task.reward_failures
        account(failed, len(results), lambda row: described(*self._rows[row][:2]), share, self._session.notices)
        self._session.parts = next(
            (tuple(one.parts) for one in results if isinstance(one, Verdict)), self._session.parts
        )
        return [
            Verdict(0.0, dict.fromkeys(self._session.parts, 0.0), False, None, one.reason, scorable=False)
            if isinstance(one, RewardFailure)
            else one
            for one in results
        ]

    def _result(self, future: Future[Any]) -> Verdict | RewardFailure:
        try:
            return Verdict(*future.result())
        except JobError as error:
            failure = why(error, shown(self._task.user_file.path), "judge", self._task._limits)
            if error.loading:
                raise RunError(f"{failure.said}.") from None
            return failure

    def __enter__(self) -> _Judging:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for _, _, future in self._rows:
            future.cancel()


def _waited(made: Future[Any], where: str, what: str) -> Any:
    """Wait for problems; where it takes long, say so on standard error."""
    began = time.monotonic()
    while not wait([made], _AGAIN if time.monotonic() - began > _SOON else _SOON).done:
        tell(f"{where} {what or f'is at work for {time.monotonic() - began:.0f} s'}.")
        what = ""
    return made.result()


def worker(settings: Mapping[str, Any]) -> Callable[[Any], Any]:
    """Make what a worker does with a job: ``{"generate": [...]}`` to problems, ``{"judge": ...}`` to a verdict."""
    file = UserFile.of_json(settings["file"])
    kind = load_task(file, settings["seconds"])
    task = None if settings["values"] is None else kind.model_validate_json(json.dumps(settings["values"]))

    def answer(job: Any) -> Any:
        assert task is not None
        if "try" in job:
            return task.tried(job["try"])
        if "generate" in job:
            with guarded(file, "problems"):
                return [vars(one) for one in task.made(*job["generate"])]
        with guarded(file, "judge"):
            return list(astuple(task.judged(Problem(*job["judge"]), job["response"])))

    return answer


def try_task(file: UserFile) -> None:
    """Import a task's file in a process of its own, before this one does. Raises UserError."""
    settings = {"file": file.as_json(), "values": None, "seconds": user_code.LOADING}
    limits = Limits(user_code.LOADING, memory_mib=16_384, load_seconds=user_code.LOADING + 15)
    with Pool(Target(f"{__name__}:worker", settings, what=f"runs {shown(file.path)}"), limits) as pool:
        try:
            pool.submit({}).result()
        except WorkerDied as error:
            raise UserError(f"{shown(file.path)}: {error} when it was loaded.") from None
        except JobError as error:
            if error.loading:
                said = str(error) or f"{shown(file.path)}: took more than {user_code.LOADING:g} s to load."
                raise UserError(said.split("\n")) from None


_LOADED: dict[tuple[str, str], type[UserTask]] = {}


def is_loaded(file: UserFile) -> bool:
    """Whether this process has imported the file."""
    return (str(file.path), file.digest) in _LOADED


def load_task(file: UserFile, seconds: float | None = None) -> type[UserTask]:
    """Import the file and return its task. Raises UserError, each problem with file and line."""
    key = (str(file.path), file.digest)
    if key not in _LOADED:
        module = load_module(file, seconds)
        classes = [
            kind for kind in vars(module).values() if isinstance(kind, type) and kind.__module__ == module.__name__
        ]
        lines, where = class_lines(file.text), shown(file.path)
        found = [kind for kind in dict.fromkeys(classes) if issubclass(kind, Task)]
        # A base of the file's own is no task of its own.
        found = [kind for kind in found if not any(kind in other.__mro__[1:] for other in found)]
        if not found:
            wrong = next((kind for kind in classes if issubclass(kind, base.Task)), None)
            if wrong is not None:
                said = (
                    f"{wrong.__name__} inherits from a built-in task; inherit from Task of `from rlvr_cli import Task`"
                )
                raise UserError(f"{where}:{lines.get(wrong.__name__, 1)}: {said} ({PAGE}).")
            raise UserError(
                f"{where}:1: has no task: a class that inherits from Task of `from rlvr_cli import Task` ({PAGE})."
            )
        if len(found) > 1:
            named = ", ".join(f"{kind.__name__} (line {lines.get(kind.__name__, 1)})" for kind in found)
            raise UserError(f"{where}:1: has several tasks, {named}. Put each into a file of its own.")
        _LOADED[key] = _task_of(found[0], file, lines)
    return _LOADED[key]


def _task_of(kind: type[Task], file: UserFile, lines: Mapping[str, int]) -> type[UserTask]:
    """Make the task of a user's class. Raises UserError with all that is wrong with the class."""
    name = file.path.stem
    place = f"{shown(file.path)}:{lines.get(kind.__name__, 1)}: {kind.__name__}"
    problems = []
    if name in base.Task.kinds:
        problems.append(f"{place}: the task is named after its file, and {name} is built in. Rename the file")
    if not _NAME.match(name):
        problems.append(
            f"{place}: the task is named after its file: {name!r} must be letters, digits, _ and -, at most 50"
        )
    own = [key for key in vars(kind) if not key.startswith("_")]
    for method in NEEDED:
        if getattr(kind, method) is getattr(Task, method):
            hint = did_you_mean(method, [key for key in own if key not in CALLED])
            problems.append(f"{place} has no method {method}(self, {', '.join(CALLED[method])}).{hint}".rstrip("."))
    for method, given in CALLED.items():
        if (unfit := _unfit(kind, method, given)) is not None:
            problems.append(f"{_line(file, kind, method)}: {unfit}")
    taken = {*UserTask.model_fields, "file", "task", "kind"} & {*kind.model_fields}
    problems += [f"{place}: {key} is reserved; use another name" for key in sorted(taken)]
    if not _is_range(kind.reward_range):
        problems.append(f"{place}: reward_range is {kind.reward_range!r:.60}; write two numbers, the lowest first")
    fields: dict[str, Any] = {}
    for key, field in kind.model_fields.items():
        if field.is_required():
            problems.append(f"{place}: {key} has no default; write `{key}: ... = DEFAULT`")
            continue
        annotation = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
        default = field.get_default(call_default_factory=True)
        fields[key] = (annotation, Field(default, description=field.description or f"{key} of {file.path.name}."))
        try:
            json.dumps(default, allow_nan=False)
        except (TypeError, ValueError):
            problems.append(f"{place}: {key} is {default!r:.60}; keys of a task hold JSON values")
    if not problems:
        _, faults = read_section(kind, {key: field.default for key, (_, field) in fields.items()})
        problems += [f"{place}: {fault}" for fault in faults]
    if problems:
        raise UserError(problems)
    what = (kind.__doc__ or f"The task of {file.path.name}.").strip().split("\n")[0]
    reference = (Annotated[str, BeforeValidator(lambda _: file.reference)], Field(file.reference, description=FILE))
    make: Any = create_model
    made = make(
        kind.__name__,
        __base__=UserTask,
        __module__=kind.__module__,
        __doc__=what,
        name=(Literal[name], Field(name, description=f"{name} = the task of {file.path.name}.")),
        data=(Data, f"{name}-gen"),
        **fields,
        file=reference,
    )
    made.sets = {f"{name}-gen": made_here(f"The problems of {file.path.name}.")}
    made.problem_keys = ("held_out", *fields)
    made.kind, made.user_file = kind, file
    return cast("type[UserTask]", made)


FILE = "The user file of the task, with the beginning of its SHA-256."


def recorded_task(values: Mapping[str, Any]) -> type[base.Task]:
    """Make the section ``task`` of a recorded run, or of a configuration, without importing the file that it names.

    It has the keys that stand there, as they are, and no problems, prompts or verdicts.
    """
    name = str(values.get("name"))
    generated = f"{without_folder(name).removesuffix(user_code.ENDING)}-gen"
    fixed: dict[str, Any] = {"name": (Literal[name], name), "data": (Data, generated)}
    others: dict[str, Any] = {key: (Any, None) for key in values if key not in base.Task.model_fields}
    mixin = type("Recorded", (), {"runs_own_code": True, "not_deciding": LIMIT_KEYS})
    make: Any = create_model
    made = make(
        "RecordedTask", __base__=(mixin, base.Task), __module__=f"{user_code.PREFIX}recorded", **fixed, **others
    )
    made.sets = {generated: made_here("The problems of a user's file.")}
    return cast("type[base.Task]", made)


def _unfit(kind: type[Task], method: str, given: tuple[str, ...]) -> str | None:
    """Return what keeps a method from being called with ``given``."""
    function = getattr(kind, method)
    try:
        signature = inspect.signature(function)
        signature.bind("self", *given)
    except TypeError:
        return f"{method}{signature}: rlvr calls {method}(self, {', '.join(given)})"
    except ValueError:
        return None
    if inspect.iscoroutinefunction(function) and method != "judge":
        return f"{method} is async; only judge may be"
    return None


def _is_range(value: Any) -> bool:
    if not isinstance(value, (tuple, list)) or len(value) != 2 or not all(isinstance(one, Real) for one in value):
        return False
    return math.isfinite(value[0]) and math.isfinite(value[1]) and value[0] < value[1]


def _line(file: UserFile, kind: type[Task], method: str) -> str:
    code = getattr(inspect.unwrap(getattr(kind, method)), "__code__", None)
    line = code.co_firstlineno if code is not None and code.co_filename == str(file.path) else 1
    return f"{shown(file.path)}:{line}"


def _part_of(prompt: str) -> Split:
    number = int(text_digest(prompt)[:8], 16) % 8
    return "test" if number == 0 else "dev" if number == 1 else "train"


def _given(problem: Problem) -> Row:
    """Copy the row that `problems` gave."""
    return {"id": problem.id, **copy.deepcopy(problem.data)}


_LOOPS: list[asyncio.AbstractEventLoop] = []


def _loop() -> asyncio.AbstractEventLoop:
    # One for all calls, as clients that a module keeps belong to theirs.
    _LOOPS[:] = _LOOPS or [asyncio.new_event_loop()]
    return _LOOPS[0]
