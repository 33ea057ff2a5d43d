"""A task in a user file: one class with problems, a prompt and a judge.

    from rlvr_cli import Task

    class Sums(Task):
        most: int = 100                                 # a key: task.most=50

        def problems(self, split, count, seed): ...     # dicts of JSON values
        def prompt(self, problem): ...                  # text, or messages
        def judge(self, problem, response): ...         # a number, or a dict

:class:`UserTask` wraps it: worker processes with a deadline and a memory limit generate its problems and judge its
responses. The class belongs to one load of a configuration and is not registered.
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
from rlvr_cli.core.terminal import tell
from rlvr_cli.core.text import did_you_mean
from rlvr_cli.core.user_code import (
    UserFile,
    awaited,
    classes_of,
    function_line,
    guarded,
    shown,
    value_text,
    without_folder,
)
from rlvr_cli.tasks import base
from rlvr_cli.tasks.base import HELD_OUT_SEED, Data, vote
from rlvr_cli.tasks.files import text_problem
from rlvr_cli.tasks.problem import Judging, Problem, Split, Verdict, generated_set
from rlvr_cli.tasks.prompts import are_messages, conversation_prompt, has_template, leading_bos, unfit_conversation
from rlvr_cli.tasks.rewards import (
    LIMIT_KEYS,
    Failures,
    MemoryMiB,
    RewardFailure,
    Timeout,
    failure_of,
    row_text,
    worker_limits,
)
from rlvr_cli.workers.pool import JobError, Limits, Pool, Target, shared_pool
from rlvr_cli.workers.reward import NUMBER, can_be_logged, reward_number

_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_-]{0,49}$")
# Deadline of the generation of all problems, in deadlines of a verdict.
_PROBLEMS = 10
# For a function that repeats its problems: how often to double the requested number, and the multiple of it to read.
_DOUBLED, _READ = 6, 20
# The share of train that test and dev may take.
_MUCH = 0.25
_SOLUTIONS = 1000
# Problems of a split that are generated twice, to check that they are reproducible.
_SAMPLE = 16
# The response judged in the trial.
_TRIAL = "I do not know."
# The arguments of the methods.
CALLED: Mapping[str, tuple[str, ...]] = {
    "problems": ("split", "count", "seed"),
    "prompt": ("problem",),
    "judge": ("problem", "response"),
    "solution": ("problem",),
}
# Keys of a judgement that become fields of the verdict.
_JUDGEMENT = ("reward", "parts", "correct", "answer")
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
    """A task that wraps the user's class ``kind``."""

    reasons: ClassVar = ("correct", "wrong", "unscored", "error", "timeout", "died")
    runs_own_code: ClassVar = True
    not_deciding: ClassVar = LIMIT_KEYS
    pooled: ClassVar = True
    kind: ClassVar[type[Task]]
    user_file: ClassVar[UserFile]

    held_out: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        500, description="Largest number of test and of dev problems, which train never has."
    )
    reward_timeout: Timeout = Field(
        60.0, description="Timeout of a verdict in wall-clock seconds; ten times that for generating the problems."
    )
    reward_memory: MemoryMiB = Field(16_384, description="Memory limit of the judge in MiB.")
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
            Target(f"{__name__}:worker", settings, purpose=f"runs {shown(file.path)}"), self.limits, self.reward_workers
        )

    @cached_property
    def failures(self) -> Failures:
        """The failures of the judge reported so far."""
        return Failures()

    def check_before(self) -> None:
        """Generate two problems, or read them if they are local, and judge a response to each. Raises UserError."""
        if self.is_generated:
            self._run_job({"try": 2}, "its trial", UserError)
        elif local_path(self.data).exists():
            for problem in self.problems("train", 2, 0):
                job, about = {"judge": list(astuple(problem)), "response": _TRIAL}, f" (problem {problem.id})"
                self._run_job(job, "its trial", UserError, about)

    def generate(self, split: Split, count: int, seed: int) -> list[Problem]:
        about = f" ({count} problems of {split}, seed {seed})."
        return [
            Problem(**row) for row in self._run_job({"generate": [split, count, seed]}, "problems", RunError, about)
        ]

    def _run_job(self, job: Any, called: str, kind: type[UserError | RunError], about: str = "") -> Any:
        seconds = _PROBLEMS * self.reward_timeout
        try:
            return self.pool.submit(job, seconds).result()
        except JobError as error:
            failure = failure_of(error, f"{shown(self.user_file.path)}: {called}", self.limits, seconds)
            raise kind(failure.message + about) from None

    def problem_from(self, fields: dict[str, Any], where: str) -> Problem:
        with guarded(self.user_file, "prompt", self.reward_timeout, about=f" ({where})"):
            return self.read({"id": where, **fields}, where)

    def prompt(self, problem: Problem, tokenizer: Any) -> str:
        """Return the text as the user's turn of the chat template, or unchanged for a model without a template."""
        content = self.user_prompt(problem)
        if isinstance(content, str) and not has_template(tokenizer):
            return leading_bos(tokenizer) + content
        messages = [{"role": "user", "content": content}] if isinstance(content, str) else content
        instead = "have prompt return text, and use a model without one"
        return conversation_prompt(tokenizer, messages, instead=instead, options=self.chat_template_kwargs)

    def problem_wording(self, problem: Problem) -> str:
        """Return the whole prompt: a question may refer to other columns of the row."""
        return _text(self.user_prompt(problem))

    def solutions(self, problem: Problem) -> Iterator[str] | None:
        if self.kind.solution is Task.solution:
            return None
        with guarded(self.user_file, "solution", self.reward_timeout, about=f" (problem {problem.id})"):
            solutions = self.task.solution(_row(problem))
            several = () if solutions is None else (solutions,) if isinstance(solutions, str) else solutions
            texts = list(islice(several, _SOLUTIONS))
        if not all(isinstance(text, str) for text in texts):
            raise self._invalid_result("solution", solutions, "text, several, or None")
        return iter(texts) if texts else None

    def judging(self) -> Judging:
        """Start judging responses as separate jobs."""
        return _Judging(self)

    # In a worker, or here

    def user_prompt(self, problem: Problem) -> str | list[dict[str, str]]:
        """Return the user's prompt of a problem, within the deadline. Raises RunError for an invalid one."""
        with guarded(self.user_file, "prompt", self.reward_timeout, about=f" (problem {problem.id})"):
            return self._user_prompt(problem)

    def _user_prompt(self, problem: Problem) -> str | list[dict[str, str]]:
        prompt: Any = self.task.prompt(_row(problem))
        is_text = isinstance(prompt, str) and prompt.strip()
        if not is_text and (not are_messages(prompt) or unfit_conversation(prompt) is not None):
            raise self._invalid_result("prompt", prompt, "text, or messages of which the last is the user's")
        if (unwritable := text_problem(prompt)) is not None:
            raise RunError(f"{self._line('prompt')}: prompt of problem {problem.id!r}: {unwritable}")
        return cast("str | list[dict[str, str]]", prompt)

    def read(self, row: Any, where: str) -> Problem:
        """Return the problem of a row. Raises RunError."""
        if not isinstance(row, dict):
            raise self._invalid_result("problems", row, f"a dict ({where})")
        data = {key: value for key, value in row.items() if key != "id"}
        for name, value in data.items():
            try:
                same = isinstance(name, str) and json.loads(json.dumps(value)) == value
            except (TypeError, ValueError, RecursionError):
                same = False
            if not same:
                wanted = "text, numbers, lists and dicts with names of text"
                raise self._invalid_result("problems", {name: value}, f"JSON values: {wanted} ({where})")
        if (unwritable := text_problem(row)) is not None:
            raise RunError(f"{self._line('problems')}: problems: problem of {where}: {unwritable}")
        identity = text_digest(json.dumps(data))[:16] if row.get("id") is None else str(row["id"])
        subgroup, question = data.get("subgroup"), data.get("question")
        problem = Problem(identity, "", data, subgroup if isinstance(subgroup, str) else "all")
        question = question if isinstance(question, str) else _text(self._user_prompt(problem))
        return Problem(identity, question, data, problem.subgroup)

    def generate_problems(self, split: Split, count: int, seed: int) -> list[Problem]:
        """Return distinct problems of the user's `problems`, each prompt in one split only, for any seed.

        Raises RunError if they are too few.
        """
        excluded, wanted = self._excluded_prompts, count if split == "train" else self.held_out
        if excluded is None:
            wanted = count
        elif count > wanted:
            raise RunError(
                f"task.held_out={self.held_out}: {split} is limited to that many problems, and {count} are requested. "
                f"Set task.held_out={count}, or ask for fewer"
            )
        others = (lambda prompt: _split_of(prompt) != split) if excluded is None else excluded[split].__contains__
        problems, read, left_out = self._distinct(split, wanted, seed, others)
        rule = " by a hash of their prompts, as train has many of them too" if excluded is None else ""
        twice = read - left_out - len(problems)
        dropped = f"{left_out:,} belong to other splits{rule}, {twice:,} came twice"
        if len(problems) < count:
            key = "task.train_size" if split == "train" else "validation.problems, eval.problems"
            raise RunError(
                f"{self._line('problems')}: problems gave {len(problems):,} different {split} problems, and {count:,} "
                f"are requested ({read:,} read; {dropped}). Make more, or ask for fewer ({key})"
            )
        if left_out or twice:
            tell(f"{self._line('problems')}: of the first {read:,} {split} problems {dropped}: left out.")
        return list(problems.values())[:count]

    def _distinct(
        self, split: Split, count: int, seed: int, others: Callable[[str], bool]
    ) -> tuple[dict[str, Problem], int, int]:
        """Return up to ``count`` problems by prompt, the number read, and the number of prompts in ``others``."""
        for requested in (count * 2**number for number in range(_DOUBLED)):
            problems: dict[str, Problem] = {}
            read = left_out = 0
            for read, row in enumerate(islice(self._rows(split, requested, seed), _READ * requested), 1):
                problem = self.read(row, f"{split} problem {read}")
                prompt = json.dumps(self._user_prompt(problem))
                if others(prompt):
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
        """Return the prompts excluded from a split: from dev those of test, from train those of both.

        None where they are a large share of train (few problems, or the same for every split): then a hash of the
        prompt decides the split.
        """
        splits: tuple[Split, ...] = ("test", "dev", "train")
        prompts: dict[str, set[str]] = {}
        for split in splits:
            self._sample(split)
            rows = islice(self._rows(split, self.held_out, HELD_OUT_SEED), _READ * self.held_out)
            prompts[split] = {json.dumps(self._user_prompt(self.read(row, f"a {split} problem"))) for row in rows}
        if len(prompts["train"] & (prompts["test"] | prompts["dev"])) > _MUCH * len(prompts["train"]):
            return None
        # With duplicates a split has more rows than were read.
        test = prompts["test"] | self._distinct("test", self.held_out, HELD_OUT_SEED, set().__contains__)[0].keys()
        dev = prompts["dev"] | self._distinct("dev", self.held_out, HELD_OUT_SEED, test.__contains__)[0].keys()
        return {"test": set(), "dev": test, "train": test | dev}

    def _sample(self, split: Split) -> list[Problem]:
        """Return a few problems. Raises RunError if a second call differs: every process generates them itself."""
        problems, again = (
            [self.read(row, f"a {split} problem") for row in islice(self._rows(split, _SAMPLE, 0), _SAMPLE)]
            for _ in range(2)
        )
        if list(map(_row, problems)) != list(map(_row, again)):
            raise RunError(
                f"{self._line('problems')}: problems gives other {split} problems for the same arguments. Draw them by "
                'random.Random(f"{split} {seed}"), and change nothing that the next call reads'
            )
        return problems

    def dry_run(self, count: int) -> None:
        """Generate problems of each split, write ``count`` prompts and judge a response to each. Raises RunError."""
        _, _, problems = self._sample("test"), self._sample("dev"), self._sample("train")
        if not problems:
            raise RunError(f"{self._line('problems')}: problems returned no train problem")
        for problem in problems[:count]:
            self.user_prompt(problem)
            with guarded(self.user_file, "judge", about=f" (problem {problem.id}; response {_TRIAL!r})"):
                self.judge_response(problem, _TRIAL)

    def _rows(self, split: Split, count: int, seed: int) -> Iterator[Any]:
        rows = self.task.problems(split, count, seed)
        if isinstance(rows, (str, bytes, Mapping)) or not hasattr(rows, "__iter__"):
            raise self._invalid_result("problems", rows, "dicts, in a list or by yield")
        return iter(rows)

    def judge_response(self, problem: Problem, response: str) -> Verdict:
        """Return the verdict of the user's `judge`. Raises RunError for an invalid one."""
        judgement = awaited(self.task.judge(_row(problem), response))
        fields = judgement if isinstance(judgement, dict) else {"reward": judgement}
        components, answer = fields.get("parts", {}), fields.get("answer", vote(response))
        logged = {str(key): value for key, value in fields.items() if key not in _JUDGEMENT}
        answer = str(answer) if isinstance(answer, Real) else answer
        if not isinstance(components, dict):
            raise self._invalid_result("judge", judgement, "a dict of numbers for parts")
        if "reward" not in fields and "parts" not in fields:
            raise self._invalid_result("judge", judgement, "a dict with reward, or with parts that add up to it")
        for name, value in {**logged, "answer": answer}.items():
            if not can_be_logged(value):
                raise self._invalid_result("judge", {name: value}, f"text, None or {NUMBER} for {name}")
        if (unwritable := text_problem([answer, logged, *map(str, components)])) is not None:
            raise RunError(f"{self._line('judge')}: judge gave text that cannot be written: {unwritable}")
        if fields.get("reward", 0.0) is None:
            return Verdict(0.0, {"reward": 0.0}, False, answer, "unscored", False, logged)
        components = {str(name): self._number(value) for name, value in components.items()}
        reward = self._number(fields["reward"] if "reward" in fields else sum(components.values()))
        if components and not math.isclose(sum(components.values()), reward, abs_tol=1e-6):
            raise self._invalid_result(
                "judge", judgement, f"a reward that is the sum of its parts, {sum(components.values()):g}"
            )
        correct = bool(fields.get("correct", reward > self.reward_range[1] - 1e-9))
        reason = "correct" if correct else "wrong"
        return Verdict(reward, components or {"reward": reward}, correct, answer, reason, logged=logged)

    def _number(self, value: Any) -> float:
        number = reward_number(value)
        if not isinstance(number, float):
            raise self._invalid_result("judge", value, f"{NUMBER}, a bool, None or a dict with reward")
        return number

    def _line(self, method: str) -> str:
        return function_line(getattr(self.kind, method), self.user_file)

    def _invalid_result(self, method: str, value: Any, wanted: str) -> RunError:
        return RunError(f"{self._line(method)}: {method} must return {wanted}; got {value_text(value)}")


class _Judging(Judging):
    """Judges responses in worker processes, each as a separate job."""

    def __init__(self, task: UserTask) -> None:
        self._task, self._pool = task, task.pool
        self._rows: list[tuple[Problem, str, Future[Any]]] = []

    def add(self, problem: Problem, response: str, *, truncated: bool = False) -> None:
        """Start judging a response."""
        job = {"judge": list(astuple(problem)), "response": response}
        self._rows.append((problem, response, self._pool.submit(job)))

    def verdicts(self) -> list[Verdict]:
        """Return the verdicts. Raises RunError where more than the allowed share failed."""
        results = [self._result(future) for _, _, future in self._rows]
        self._task.failures.check_failure_rate(
            results, lambda row: row_text(*self._rows[row][:2]), self._task.reward_failures
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
            failure = failure_of(error, f"{shown(self._task.user_file.path)}: judge", self._task.limits)
            if error.loading:
                raise RunError(f"{failure.message}.") from None
            return failure

    def close(self) -> None:
        for _, _, future in self._rows:
            future.cancel()


def worker(settings: Mapping[str, Any]) -> Callable[[Any], Any]:
    """Return the worker's job handler: ``{"generate": [...]}`` to problems, ``{"judge": ...}`` to a verdict."""
    file = UserFile.of_json(settings["file"])
    user_code.load_module(file, settings["seconds"])
    task = load_task(file).model_validate_json(json.dumps(settings["values"]))

    def answer(job: Any) -> Any:
        if "judge" in job:
            with guarded(file, "judge"):
                return list(astuple(task.judge_response(Problem(*job["judge"]), job["response"])))
        with guarded(file, "problems"):
            if "try" in job:
                return task.dry_run(job["try"])
            return [vars(problem) for problem in task.generate_problems(*job["generate"])]

    return answer


def load_task(file: UserFile) -> type[UserTask]:
    """Import the file and return its task. Raises UserError, each problem with file and line."""
    classes = classes_of(file)
    tasks = [kind for kind in classes if issubclass(kind, Task)]
    # Base classes in the file are not tasks.
    tasks = [kind for kind in tasks if not any(kind in other.__mro__[1:] for other in tasks)]
    if len(tasks) > 1:
        names = ", ".join(f"{kind.__name__} ({file.at(kind.__name__)})" for kind in tasks)
        raise UserError(f"{shown(file.path)}:1: has several tasks, {names}. Put each into a separate file.")
    if not tasks:
        wrong = next((kind for kind in classes if issubclass(kind, base.Task)), None)
        reason = "has no task" if wrong is None else f"{wrong.__name__} must not inherit from a built-in task"
        where = file.at("" if wrong is None else wrong.__name__)
        raise UserError(
            f"{where}: {reason}: a class that inherits from Task of `from rlvr_cli import Task` (`rlvr new task NAME` "
            "writes an example)."
        )
    (kind,) = tasks
    if problems := list(_problems(kind, file, f"{file.at(kind.__name__)}: {kind.__name__}")):
        raise UserError(problems)
    return _user_task(kind, file)


def _problems(kind: type[Task], file: UserFile, where: str) -> Iterator[str]:
    name = file.path.stem
    if name in base.Task.kinds:
        yield f"{where}: the task is named after its file, and {name} is built in. Rename the file"
    if not _NAME.match(name):
        yield f"{where}: the task is named after its file: {name!r} must be letters, digits, _ and -, at most 50"
    for method, arguments in CALLED.items():
        function, call = getattr(kind, method), f"{method}(self, {', '.join(arguments)})"
        if method != "solution" and function is getattr(Task, method):
            hint = did_you_mean(method, [key for key in vars(kind) if not key.startswith("_") and key not in CALLED])
            yield f"{where} has no method {call}.{hint}".rstrip(".")
        try:
            inspect.signature(function).bind("self", *arguments)
        except TypeError:
            line = function_line(function, file)
            yield f"{line}: {method}{inspect.signature(function)}: rlvr calls {call}"
        if inspect.iscoroutinefunction(function) and method != "judge":
            yield f"{function_line(function, file)}: {method} is async; only judge may be"
    reserved = {*UserTask.model_fields, *dir(UserTask), "file", "task"}
    for key in sorted(reserved & {*kind.model_fields}):
        yield f"{where}: {key} is reserved; use another name"
    ends = kind.reward_range
    numbers = isinstance(ends, (tuple, list)) and all(isinstance(end, Real) and math.isfinite(end) for end in ends)
    if not numbers or len(ends) != 2 or not ends[0] < ends[1]:
        yield f"{where}: reward_range is {ends!r:.60}; write two numbers, the lowest first"
    defaults = {}
    for key, field in kind.model_fields.items():
        if field.is_required():
            yield f"{where}: {key} has no default; write `{key}: ... = DEFAULT`"
            continue
        defaults[key] = field.get_default(call_default_factory=True)
        try:
            json.dumps(defaults[key], allow_nan=False)
        except (TypeError, ValueError):
            yield f"{where}: {key} is {defaults[key]!r:.60}; keys of a task hold JSON values"
    if len(defaults) == len(kind.model_fields):
        yield from (f"{where}: {fault}" for fault in read_section(kind, defaults)[1])


def _user_task(kind: type[Task], file: UserFile) -> type[UserTask]:
    name, fields = file.path.stem, dict[str, Any]()
    for key, field in kind.model_fields.items():
        annotation = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
        description = field.description or f"{key} of {file.path.name}."
        fields[key] = (annotation, Field(field.get_default(call_default_factory=True), description=description))
    make: Any = create_model
    task = make(
        kind.__name__,
        __base__=UserTask,
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
    return cast("type[UserTask]", task)


FILE = "The user file of the task, with the beginning of its SHA-256."


class _Recorded(base.Task):
    """A task whose file is not imported: any keys, unchecked, and no problems, prompts or verdicts."""

    model_config = ConfigDict(extra="allow")
    runs_own_code: ClassVar = True
    not_deciding: ClassVar = LIMIT_KEYS


@lru_cache(maxsize=64)
def recorded_task(name: str) -> type[base.Task]:
    """Return a section ``task`` for the user's task ``name`` without importing its file."""
    generated, make = f"{without_folder(name).removesuffix(user_code.ENDING)}-gen", cast("Any", create_model)
    keys = {"name": (Literal[name], name), "data": (Data, generated)}
    task = make("Recorded", __base__=_Recorded, __module__=f"{user_code.PREFIX}recorded", **keys)
    task.sets = {generated: generated_set("The problems of a user's file.")}
    return cast("type[base.Task]", task)


def _split_of(prompt: str) -> Split:
    number = int(text_digest(prompt)[:8], 16) % 8
    return "test" if number == 0 else "dev" if number == 1 else "train"


def _row(problem: Problem) -> Row:
    return {"id": problem.id, **copy.deepcopy(problem.data)}


def _text(prompt: str | list[dict[str, str]]) -> str:
    return prompt if isinstance(prompt, str) else "\n\n".join(message["content"] for message in prompt)
