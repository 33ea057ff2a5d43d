"""A task in a user file: a class with problems, a prompt and a judge.

    from rlvr_cli import Task

    class Sums(Task):
        most: int = 100                                 # a key: task.most=50

        def problems(self, split, count, seed): ...     # dicts of JSON values
        def prompt(self, problem): ...                  # text, or messages
        def judge(self, problem, response): ...         # a number, or a dict

:class:`SandboxedTask` wraps it: worker processes with a timeout and a memory limit generate its problems and judge its
responses. The wrapper is created when a configuration is loaded and is not registered.
"""

from __future__ import annotations

import copy
import inspect
import json
import math
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import astuple
from functools import cached_property, lru_cache
from itertools import islice
from numbers import Real
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import BeforeValidator, ConfigDict, Field, create_model

from rlvr_cli.core import user_code
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.files import local_path
from rlvr_cli.core.hashes import text_digest
from rlvr_cli.core.messages import read_section
from rlvr_cli.core.section import Probability, Section
from rlvr_cli.core.terminal import print_stderr
from rlvr_cli.core.text import did_you_mean
from rlvr_cli.core.user_code import (
    UserFile,
    describe_value,
    display_path,
    function_line,
    guard,
    load_classes,
    run_async,
    strip_folder,
)
from rlvr_cli.tasks.base import HELD_OUT_SEED, Data, Task, extract_vote
from rlvr_cli.tasks.files import find_text_error
from rlvr_cli.tasks.problem import JudgeSession, Problem, Split, Verdict, generated_set
from rlvr_cli.tasks.prompts import conversation_error, conversation_prompt, has_template, is_conversation, leading_bos
from rlvr_cli.tasks.rewards import (
    LIMIT_KEYS,
    Failures,
    MemoryMiB,
    RewardFailure,
    Timeout,
    describe_row,
    job_failure,
    worker_limits,
)
from rlvr_cli.workers.pool import JobError, Limits, Pool, Target, shared_pool
from rlvr_cli.workers.reward import NUMBER, is_loggable, parse_reward

_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_-]{0,49}$")
# Timeout for generating all problems, in timeouts of a verdict.
_GENERATION_DEADLINES = 10
# If problems repeat: how often to double the requested number, and the multiple of it to read.
_DOUBLED, _READ = 6, 20
# Maximum share of train's prompts in test and dev.
_MAX_OVERLAP = 0.25
_SOLUTIONS = 1000
# Problems of a split that are generated twice, to check reproducibility.
_REPEATS = 16
# The response judged in the trial.
_TRIAL = "I do not know."
# The methods and their arguments.
METHODS: Mapping[str, tuple[str, ...]] = {
    "problems": ("split", "count", "seed"),
    "prompt": ("problem",),
    "judge": ("problem", "response"),
    "solution": ("problem",),
}
# Keys of a judgement that are fields of the verdict.
_JUDGEMENT = ("reward", "parts", "correct", "answer")
Row = dict[str, Any]
Judgement = float | None | Mapping[str, Any]


class UserTask(Section):
    """Base class of a user's task (``rlvr_cli.Task``). Its fields, with defaults, are keys of the section ``task``.

    Attributes:
        reward_range: the lowest and the highest reward; by default a completion with the highest is correct.
    """

    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def problems(self, split: Split, count: int, seed: int) -> Iterable[Row]:
        """Return or yield at least ``count`` problems of train, dev or test, or all.

        A problem is a dict of JSON values. `id`, `question` and `subgroup` (a row of the accuracy table) are special.
        """
        raise NotImplementedError

    def prompt(self, problem: Row) -> str | list[dict[str, str]]:
        """Return the user's turn, or messages as ``[{"role": "user", "content": "..."}]``."""
        raise NotImplementedError

    def judge(self, problem: Row, response: str) -> Judgement | Awaitable[Judgement]:
        """Return the reward of any text: a number, a bool, or None if undecidable.

        Or a dict of `reward` and optionally `correct`, `answer` (for majority votes), `parts` (the reward's summands),
        and further values to record with the response. May be ``async``.
        """
        raise NotImplementedError

    def solution(self, problem: Row) -> str | Iterable[str] | None:
        """Return correct responses, for `rlvr tasks show` and `--method sft`, or None."""
        return None


class SandboxedTask(Task):
    """A section ``task`` that runs the user's class ``kind`` in worker processes."""

    reasons: ClassVar = ("correct", "wrong", "unscored", "error", "timeout", "died")
    runs_user_code: ClassVar = True
    neutral_keys: ClassVar = LIMIT_KEYS
    pooled: ClassVar = True
    kind: ClassVar[type[UserTask]]
    user_file: ClassVar[UserFile]

    held_out: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        500, description="Maximum number of test problems, and of dev problems; both are excluded from train."
    )
    reward_timeout: Timeout = Field(
        60.0, description="Timeout of a verdict in wall-clock seconds; ten times that for generating the problems."
    )
    reward_memory: MemoryMiB = Field(16_384, description="Memory limit of the judge in MiB.")
    reward_failures: Probability = Field(
        0.1,
        description="The maximum share of a rollout's completions without a verdict because the judge failed; more end "
        "the run.",
    )
    reward_workers: Annotated[int, Field(ge=1, le=64)] = Field(2, description="Processes that judge.")

    @property
    def reward_range(self) -> tuple[float, float]:
        low, high = self.kind.reward_range
        return float(low), float(high)

    def with_workers(self, workers: int) -> SandboxedTask:
        return self.model_copy(update={"reward_workers": workers})

    @cached_property
    def task(self) -> UserTask:
        """The user's object with the values of its keys."""
        return self.kind(**{key: copy.deepcopy(getattr(self, key)) for key in self.kind.model_fields})

    # In this process

    @property
    def limits(self) -> Limits:
        return worker_limits(self.reward_timeout, self.reward_memory)

    @property
    def pool(self) -> Pool:
        file, values = self.user_file, json.loads(self.model_dump_json())
        settings = {"file": file.as_json(), "values": values, "seconds": self.limits.loading - 15}
        return shared_pool(
            Target(f"{__name__}:make_handler", settings, purpose=f"runs {display_path(file.path)}"),
            self.limits,
            self.reward_workers,
        )

    @cached_property
    def failures(self) -> Failures:
        return Failures()

    def check_requirements(self) -> None:
        if self.is_generated:
            self._run_job({"try": 2}, "its trial", UserError)
        elif local_path(self.data).exists():
            for problem in self.problems("train", 2, 0):
                job, context = {"judge": list(astuple(problem)), "response": _TRIAL}, f" (problem {problem.id})"
                self._run_job(job, "its trial", UserError, context)

    def generate(self, split: Split, count: int, seed: int) -> list[Problem]:
        context = f" ({count} problems of {split}, seed {seed})."
        return [
            Problem(**row) for row in self._run_job({"generate": [split, count, seed]}, "problems", RunError, context)
        ]

    def _run_job(self, job: Any, method: str, kind: type[UserError | RunError], context: str = "") -> Any:
        seconds = _GENERATION_DEADLINES * self.reward_timeout
        try:
            return self.pool.submit(job, seconds).result()
        except JobError as error:
            failure = job_failure(error, f"{display_path(self.user_file.path)}: {method}", self.limits, seconds)
            raise kind(failure.message + context) from None

    def problem_from(self, fields: dict[str, Any], where: str) -> Problem:
        with guard(self.user_file, "prompt", self.reward_timeout, about=f" ({where})"):
            return self.to_problem({"id": where, **fields}, where)

    def prompt(self, problem: Problem, tokenizer: Any) -> str:
        """Render the prompt with the chat template; without a template a text is returned unchanged."""
        content = self.user_prompt(problem)
        if isinstance(content, str) and not has_template(tokenizer):
            return leading_bos(tokenizer) + content
        messages = [{"role": "user", "content": content}] if isinstance(content, str) else content
        alternative = "return text from prompt and use a model without one"
        return conversation_prompt(tokenizer, messages, alternative=alternative, options=self.chat_template_kwargs)

    def problem_wording(self, problem: Problem) -> str:
        """Return the whole prompt, since a question may refer to other columns of the row."""
        return _prompt_text(self.user_prompt(problem))

    def solutions(self, problem: Problem) -> Iterator[str] | None:
        if self.kind.solution is UserTask.solution:
            return None
        with guard(self.user_file, "solution", self.reward_timeout, about=f" (problem {problem.id})"):
            solutions = self.task.solution(_problem_row(problem))
            several = () if solutions is None else (solutions,) if isinstance(solutions, str) else solutions
            texts = list(islice(several, _SOLUTIONS))
        if not all(isinstance(text, str) for text in texts):
            raise self._invalid_result("solution", solutions, "text, a list of texts, or None")
        return iter(texts) if texts else None

    def start_judging(self) -> JudgeSession:
        return _JudgeSession(self)

    # In a worker, or here

    def user_prompt(self, problem: Problem) -> str | list[dict[str, str]]:
        """Return the user's prompt of a problem, within the timeout. Raises RunError if it is invalid."""
        with guard(self.user_file, "prompt", self.reward_timeout, about=f" (problem {problem.id})"):
            return self._user_prompt(problem)

    def _user_prompt(self, problem: Problem) -> str | list[dict[str, str]]:
        prompt: Any = self.task.prompt(_problem_row(problem))
        is_text = isinstance(prompt, str) and prompt.strip()
        if not is_text and (not is_conversation(prompt) or conversation_error(prompt) is not None):
            raise self._invalid_result("prompt", prompt, "text, or messages with a last turn of the user")
        if (unwritable := find_text_error(prompt)) is not None:
            raise RunError(f"{self._method_line('prompt')}: prompt of problem {problem.id!r}: {unwritable}")
        return cast("str | list[dict[str, str]]", prompt)

    def to_problem(self, row: Any, where: str) -> Problem:
        if not isinstance(row, dict):
            raise self._invalid_result("problems", row, f"a dict ({where})")
        data = {key: value for key, value in row.items() if key != "id"}
        for name, value in data.items():
            try:
                same = isinstance(name, str) and json.loads(json.dumps(value)) == value
            except (TypeError, ValueError, RecursionError):
                same = False
            if not same:
                raise self._invalid_result(
                    "problems", {name: value}, f"JSON values (text, numbers, lists, dicts with text keys) ({where})"
                )
        if (unwritable := find_text_error(row)) is not None:
            raise RunError(f"{self._method_line('problems')}: problems: problem of {where}: {unwritable}")
        identity = text_digest(json.dumps(data))[:16] if row.get("id") is None else str(row["id"])
        subgroup, question = data.get("subgroup"), data.get("question")
        problem = Problem(identity, "", data, subgroup if isinstance(subgroup, str) else "all")
        question = question if isinstance(question, str) else _prompt_text(self._user_prompt(problem))
        return Problem(identity, question, data, problem.subgroup)

    def generate_problems(self, split: Split, count: int, seed: int) -> list[Problem]:
        """Return distinct problems of the user's `problems`; splits share no prompt. Raises RunError for too few."""
        excluded, wanted = self._excluded_prompts, count if split == "train" else self.held_out
        if excluded is None:
            wanted = count
        elif count > wanted:
            raise RunError(
                f"task.held_out={self.held_out}: {split} is limited to that many problems, and {count} were requested. "
                f"Set task.held_out={count}, or request fewer"
            )
        is_excluded = (
            (lambda prompt: _hash_split(prompt) != split) if excluded is None else excluded[split].__contains__
        )
        problems, read, left_out = self._collect(split, wanted, seed, is_excluded)
        rule = " by a hash of their prompts, since train overlaps with them" if excluded is None else ""
        twice = read - left_out - len(problems)
        dropped = f"{left_out:,} belong to other splits{rule}, {twice:,} are duplicates"
        if len(problems) < count:
            key = "task.train_size" if split == "train" else "validation.problems, eval.problems"
            raise RunError(
                f"{self._method_line('problems')}: problems returned {len(problems):,} different {split} problems, and "
                f"{count:,} were requested ({read:,} read; {dropped}). Generate more, or request fewer ({key})"
            )
        if left_out or twice:
            print_stderr(f"{self._method_line('problems')}: of the first {read:,} {split} problems {dropped}: dropped.")
        return list(problems.values())[:count]

    def _collect(
        self, split: Split, count: int, seed: int, is_excluded: Callable[[str], bool]
    ) -> tuple[dict[str, Problem], int, int]:
        """Return up to ``count`` problems by prompt, the number read, and the number excluded by ``is_excluded``."""
        for requested in (count * 2**number for number in range(_DOUBLED)):
            problems: dict[str, Problem] = {}
            read = left_out = 0
            for read, row in enumerate(islice(self._draw_rows(split, requested, seed), _READ * requested), 1):
                problem = self.to_problem(row, f"{split} problem {read}")
                prompt = json.dumps(self._user_prompt(problem))
                if is_excluded(prompt):
                    left_out += 1
                else:
                    problems.setdefault(prompt, problem)
                if len(problems) == count:
                    break
            if len(problems) == count or read != requested:
                break
        return problems, read, left_out

    @cached_property
    def _excluded_prompts(self) -> dict[str, set[str]] | None:
        """The prompts excluded from a split: test's from dev, test's and dev's from train.

        None if they are a large share of train (few problems, or the same in every split): then a hash of the prompt
        assigns the split.
        """
        splits: tuple[Split, ...] = ("test", "dev", "train")
        prompts: dict[str, set[str]] = {}
        for split in splits:
            self._check_reproducible(split)
            rows = islice(self._draw_rows(split, self.held_out, HELD_OUT_SEED), _READ * self.held_out)
            prompts[split] = {json.dumps(self._user_prompt(self.to_problem(row, f"a {split} problem"))) for row in rows}
        if len(prompts["train"] & (prompts["test"] | prompts["dev"])) > _MAX_OVERLAP * len(prompts["train"]):
            return None
        # A split with duplicates has further rows.
        test = prompts["test"] | self._collect("test", self.held_out, HELD_OUT_SEED, set().__contains__)[0].keys()
        dev = prompts["dev"] | self._collect("dev", self.held_out, HELD_OUT_SEED, test.__contains__)[0].keys()
        return {"test": set(), "dev": test, "train": test | dev}

    def _check_reproducible(self, split: Split) -> list[Problem]:
        """Return a few problems. Raises RunError if a second call differs, since every process generates them."""
        problems, repeated = (
            [
                self.to_problem(row, f"a {split} problem")
                for row in islice(self._draw_rows(split, _REPEATS, 0), _REPEATS)
            ]
            for _ in range(2)
        )
        if list(map(_problem_row, problems)) != list(map(_problem_row, repeated)):
            raise RunError(
                f"{self._method_line('problems')}: problems must be deterministic; got other {split} problems for "
                'the same arguments. Draw them by random.Random(f"{split} {seed}"), without state between calls'
            )
        return problems

    def dry_run(self, count: int) -> None:
        """Generate problems of each split, write ``count`` prompts and judge a response to each. Raises RunError."""
        splits: tuple[Split, ...] = ("test", "dev", "train")
        *_, problems = map(self._check_reproducible, splits)
        if not problems:
            raise RunError(f"{self._method_line('problems')}: problems returned no train problem")
        for problem in problems[:count]:
            self.user_prompt(problem)
            with guard(self.user_file, "judge", about=f" (problem {problem.id}; response {_TRIAL!r})"):
                self.judge_response(problem, _TRIAL)

    def _draw_rows(self, split: Split, count: int, seed: int) -> Iterator[Any]:
        rows = self.task.problems(split, count, seed)
        if isinstance(rows, (str, bytes, Mapping)) or not hasattr(rows, "__iter__"):
            raise self._invalid_result("problems", rows, "dicts, in a list or by yield")
        return iter(rows)

    def judge_response(self, problem: Problem, response: str) -> Verdict:
        judgement = run_async(self.task.judge(_problem_row(problem), response))
        fields = judgement if isinstance(judgement, dict) else {"reward": judgement}
        components, answer = fields.get("parts", {}), fields.get("answer", extract_vote(response))
        logged = {str(key): value for key, value in fields.items() if key not in _JUDGEMENT}
        answer = str(answer) if isinstance(answer, Real) else answer
        if not isinstance(components, dict):
            raise self._invalid_result("judge", judgement, "a dict of numbers for parts")
        if "reward" not in fields and "parts" not in fields:
            raise self._invalid_result("judge", judgement, "a dict with reward, or with parts that add up to it")
        for name, value in {**logged, "answer": answer}.items():
            if not is_loggable(value):
                raise self._invalid_result("judge", {name: value}, f"text, None or {NUMBER} for {name}")
        if (unwritable := find_text_error([answer, logged, *map(str, components)])) is not None:
            raise RunError(f"{self._method_line('judge')}: judge returned text that cannot be written: {unwritable}")
        if fields.get("reward", 0.0) is None:
            return Verdict(0.0, {"reward": 0.0}, False, answer, "unscored", False, logged)
        components = {str(name): self._parse_number(value) for name, value in components.items()}
        reward = self._parse_number(fields["reward"] if "reward" in fields else sum(components.values()))
        if components and not math.isclose(sum(components.values()), reward, abs_tol=1e-6):
            raise self._invalid_result(
                "judge", judgement, f"a reward that is the sum of its parts, {sum(components.values()):g}"
            )
        correct = bool(fields.get("correct", reward > self.reward_range[1] - 1e-9))
        reason = "correct" if correct else "wrong"
        return Verdict(reward, components or {"reward": reward}, correct, answer, reason, logged=logged)

    def _parse_number(self, value: Any) -> float:
        number = parse_reward(value)
        if not isinstance(number, float):
            raise self._invalid_result("judge", value, f"{NUMBER}, a bool, None or a dict with reward")
        return number

    def _method_line(self, method: str) -> str:
        return function_line(getattr(self.kind, method), self.user_file)

    def _invalid_result(self, method: str, value: Any, allowed: str) -> RunError:
        return RunError(f"{self._method_line(method)}: {method} must return {allowed}; got {describe_value(value)}")


class _JudgeSession(JudgeSession):
    def __init__(self, task: SandboxedTask) -> None:
        self._task, self._pool = task, task.pool
        self._rows: list[tuple[Problem, str, Future[Any]]] = []

    def add(self, problem: Problem, response: str, *, truncated: bool = False) -> None:
        job = {"judge": list(astuple(problem)), "response": response}
        self._rows.append((problem, response, self._pool.submit(job)))

    def verdicts(self) -> list[Verdict]:
        results = [self._result(future) for _, _, future in self._rows]
        self._task.failures.check_failure_rate(
            results, lambda row: describe_row(*self._rows[row][:2]), self._task.reward_failures
        )
        components = next((result.parts for result in results if isinstance(result, Verdict)), {"reward": 0.0})
        return [
            Verdict(0.0, dict.fromkeys(components, 0.0), False, None, result.reason, scorable=False)
            if isinstance(result, RewardFailure)
            else result
            for result in results
        ]

    def _result(self, future: Future[Any]) -> Verdict | RewardFailure:
        try:
            return Verdict(*future.result())
        except JobError as error:
            failure = job_failure(error, f"{display_path(self._task.user_file.path)}: judge", self._task.limits)
            if error.loading:
                raise RunError(f"{failure.message}.") from None
            return failure

    def close(self) -> None:
        for _, _, future in self._rows:
            future.cancel()


def make_handler(settings: Mapping[str, Any]) -> Callable[[Any], Any]:
    """Return the worker's job handler: maps ``{"generate": [...]}`` to problems, ``{"judge": ...}`` to a verdict."""
    file = UserFile.from_json(settings["file"])
    user_code.load_module(file, settings["seconds"])
    task = load_task(file).model_validate_json(json.dumps(settings["values"]))

    def handle(job: Any) -> Any:
        if "judge" in job:
            with guard(file, "judge"):
                return list(astuple(task.judge_response(Problem(*job["judge"]), job["response"])))
        with guard(file, "problems"):
            if "try" in job:
                return task.dry_run(job["try"])
            return [vars(problem) for problem in task.generate_problems(*job["generate"])]

    return handle


def load_task(file: UserFile) -> type[SandboxedTask]:
    """Import the file and return its task. Raises UserError, every error with file and line."""
    classes = load_classes(file)
    tasks = [kind for kind in classes if issubclass(kind, UserTask)]
    # Base classes in the file are not tasks.
    tasks = [kind for kind in tasks if not any(kind in other.__mro__[1:] for other in tasks)]
    if len(tasks) > 1:
        names = ", ".join(f"{kind.__name__} ({file.location(kind.__name__)})" for kind in tasks)
        raise UserError(f"{display_path(file.path)}:1: has several tasks, {names}. Move each to a separate file.")
    if not tasks:
        remedy = "Subclass `rlvr_cli.Task`, not a built-in task (`rlvr new task NAME` writes an example)"
        raise UserError(f"{file.location('')}: has no task. {remedy}.")
    (kind,) = tasks
    if problems := list(_definition_errors(kind, file, f"{file.location(kind.__name__)}: {kind.__name__}")):
        raise UserError(problems)
    return _make_section(kind, file)


def _definition_errors(kind: type[UserTask], file: UserFile, where: str) -> Iterator[str]:
    name = file.path.stem
    if name in Task.kinds:
        yield f"{where}: the task is named after its file, and {name} is built in. Rename the file"
    if not _NAME.match(name):
        rule = "must be letters, digits, _ and -, at most 50"
        yield f"{where}: the task is named after its file, whose name {rule}; got {name!r}"
    for method, arguments in METHODS.items():
        function, call = getattr(kind, method), f"{method}(self, {', '.join(arguments)})"
        if method != "solution" and function is getattr(UserTask, method):
            hint = did_you_mean(method, [key for key in vars(kind) if not key.startswith("_") and key not in METHODS])
            yield f"{where} has no method {call}.{hint}".rstrip(".")
        try:
            inspect.signature(function).bind("self", *arguments)
        except TypeError:
            line = function_line(function, file)
            yield f"{line}: {method}{inspect.signature(function)}: rlvr calls {call}"
        if inspect.iscoroutinefunction(function) and method != "judge":
            yield f"{function_line(function, file)}: {method} is async; only judge may be"
    reserved = {*SandboxedTask.model_fields, *dir(SandboxedTask), "file", "task"}
    for key in sorted(reserved & {*kind.model_fields}):
        yield f"{where}: {key} is reserved; use another name"
    ends = kind.reward_range
    numbers = isinstance(ends, (tuple, list)) and all(isinstance(end, Real) and math.isfinite(end) for end in ends)
    if not numbers or len(ends) != 2 or not ends[0] < ends[1]:
        yield f"{where}: reward_range must be two numbers, the lowest first; got {ends!r:.60}"
    defaults = {}
    for key, field in kind.model_fields.items():
        if field.is_required():
            yield f"{where}: {key} has no default; write `{key}: ... = DEFAULT`"
            continue
        defaults[key] = field.get_default(call_default_factory=True)
        try:
            json.dumps(defaults[key], allow_nan=False)
        except (TypeError, ValueError):
            yield f"{where}: {key} must be a JSON value; got {defaults[key]!r:.60}"
    if len(defaults) == len(kind.model_fields):
        yield from (f"{where}: {fault}" for fault in read_section(kind, defaults)[1])


def _make_section(kind: type[UserTask], file: UserFile) -> type[SandboxedTask]:
    name, fields = file.path.stem, dict[str, Any]()
    for key, field in kind.model_fields.items():
        annotation = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
        description = field.description or f"{key} of {file.path.name}."
        fields[key] = (annotation, Field(field.get_default(call_default_factory=True), description=description))
    make: Any = create_model
    task = make(
        kind.__name__,
        __base__=SandboxedTask,
        __module__=kind.__module__,
        __doc__=(kind.__doc__ or f"The task of {file.path.name}.").strip().split("\n")[0],
        name=(Literal[name], Field(name, description=f"{name} = the task of {file.path.name}.")),
        data=(Data, f"{name}-gen"),
        **fields,
        file=(Annotated[str, BeforeValidator(lambda _: file.reference)], Field(file.reference, description=FILE)),
    )
    task.sets = {f"{name}-gen": generated_set(f"The problems of {file.path.name}.")}
    task.problem_keys = ("held_out", *fields)
    task.kind, task.user_file = kind, file
    return cast("type[SandboxedTask]", task)


FILE = "The user file of the task, with the first digits of its SHA-256."


class _UnimportedTask(Task):
    """A task whose file is not imported: unchecked keys, without problems, prompts or verdicts."""

    model_config = ConfigDict(extra="allow")
    runs_user_code: ClassVar = True
    neutral_keys: ClassVar = LIMIT_KEYS


@lru_cache(maxsize=64)
def recorded_task(name: str) -> type[Task]:
    """Return a section ``task`` for the user's task ``name`` without importing its file."""
    generated, make = f"{strip_folder(name).removesuffix(user_code.SUFFIX)}-gen", cast("Any", create_model)
    keys = {"name": (Literal[name], name), "data": (Data, generated)}
    task = make("Recorded", __base__=_UnimportedTask, __module__=f"{user_code.PREFIX}recorded", **keys)
    task.sets = {generated: generated_set("The problems of a user's file.")}
    return cast("type[Task]", task)


def _hash_split(prompt: str) -> Split:
    number = int(text_digest(prompt)[:8], 16) % 8
    return "test" if number == 0 else "dev" if number == 1 else "train"


def _problem_row(problem: Problem) -> Row:
    return {"id": problem.id, **copy.deepcopy(problem.data)}


def _prompt_text(prompt: str | list[dict[str, str]]) -> str:
    return prompt if isinstance(prompt, str) else "\n\n".join(message["content"] for message in prompt)
