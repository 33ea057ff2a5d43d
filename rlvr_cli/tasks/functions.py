"""A task of the user's own as plain functions of a file: `problems`, `prompt` and `reward`."""

from __future__ import annotations

import asyncio
import copy
import inspect
import json
import math
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property
from itertools import islice
from numbers import Real
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import Field, PydanticUserError, TypeAdapter, create_model

from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.hashes import text_digest
from rlvr_cli.core.messages import read_section
from rlvr_cli.core.own_code import said_of
from rlvr_cli.core.terminal import tell
from rlvr_cli.core.text import did_you_mean
from rlvr_cli.tasks.base import HELD_OUT_SEED, Data, Task, vote
from rlvr_cli.tasks.files import text_problem
from rlvr_cli.tasks.guarded import checked_problem
from rlvr_cli.tasks.problem import Problem, Split, Verdict, made_here
from rlvr_cli.tasks.prompts import are_messages, conversation_prompt, has_template, leading_bos, unfit_conversation
from rlvr_cli.workers.reward import LARGEST_REWARD

# What the functions are called with.
CALLED = {
    "problems": ("split", "count", "seed"),
    "prompt": ("problem",),
    "reward": ("problem", "response"),
    "solution": ("problem",),
}
NEEDED = ("problems", "prompt", "reward")
# A function that repeats its problems is asked for twice as many this often, and read to this multiple of the number.
_DOUBLED, _READ = 6, 20
# The share of train that test and dev may take.
_MUCH = 0.25
_SOLUTIONS = 1000


class OfFunctions(Task):
    """A task whose problems, prompts and rewards are functions of a file."""

    reasons: ClassVar = ("correct", "wrong", "unscored")
    # What a method is called in the file.
    called: ClassVar[Mapping[str, str]] = {"generate": "problems", "judge": "reward", "solutions": "solution"}
    module: ClassVar[ModuleType]

    held_out: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        500, description="Problems of test, and of dev, at most; train has none of them."
    )

    @property
    def reward_range(self) -> tuple[float, float]:
        low, high = getattr(self.module, "reward_range", (0.0, 1.0))
        return float(low), float(high)

    def generate(self, split: Split, count: int, seed: int) -> list[Problem]:
        """As the file's `problems` gives them, each prompt once and in one split alone, whatever the seed.

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
            return {self._prompt_of(self._read(row, f"a {split} problem")) for row in rows}

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
                problem = self._read(row, f"{split} problem {read}")
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
            said = f"{self._place('problems')}: of the first {read:,} {split} problems {dropped}: left out."
            tell(said)
        return list(found.values())

    def _rows(self, split: Split, count: int, seed: int) -> Iterator[Any]:
        keys = {key: copy.deepcopy(getattr(self, key)) for key in self.problem_keys if key != "held_out"}
        said = self.module.problems(split, count, seed, **keys)
        if isinstance(said, (str, bytes, Mapping)) or not hasattr(said, "__iter__"):
            raise self._wrong("problems", said, "dicts, in a list or by yield")
        return iter(said)

    def _read(self, row: Any, where: str) -> Problem:
        if not isinstance(row, dict):
            raise self._wrong("problems", row, f"a dict ({where})")
        data = {key: value for key, value in row.items() if key != "id"}
        given = row.get("id")
        identity = text_digest(json.dumps(data, default=str, skipkeys=True))[:16] if given is None else str(given)
        subgroup = row.get("subgroup")
        problem = Problem(identity, "", data, subgroup if isinstance(subgroup, str) else "all")
        checked_problem(self._place("problems"), "problems", problem)
        asked = self._asked(problem)
        text = asked if isinstance(asked, str) else "\n\n".join(one["content"] for one in asked)
        unwritable = None if text.isascii() else text_problem(text)
        if unwritable is not None:
            raise RunError(f"{self._place('prompt')}: prompt of problem {problem.id!r}: {unwritable}")
        question = data.get("question")
        return Problem(identity, question if isinstance(question, str) else text, data, problem.subgroup)

    def problem_wording(self, problem: Problem) -> str:
        """The whole prompt: a question may be about something else in the row."""
        asked = self._asked(problem)
        return asked if isinstance(asked, str) else "\n\n".join(message["content"] for message in asked)

    def problem_from(self, fields: dict[str, Any], where: str) -> Problem:
        return self._read({"id": where, **fields}, where)

    def _prompt_of(self, problem: Problem) -> str:
        return json.dumps(self._asked(problem))

    def _asked(self, problem: Problem) -> str | list[dict[str, str]]:
        said = self.module.prompt(_given(problem))
        if (isinstance(said, str) and said.strip()) or (are_messages(said) and unfit_conversation(said) is None):
            return cast("str | list[dict[str, str]]", said)
        raise self._wrong("prompt", said, "text, or messages of which the last is the user's")

    def prompt(self, problem: Problem, tokenizer: Any) -> str:
        """A text goes through a model's chat template as the user's turn, and stays as it is where there is none."""
        asked = self._asked(problem)
        if isinstance(asked, str) and not has_template(tokenizer):
            return leading_bos(tokenizer) + asked
        messages = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
        instead = "have prompt return text, and use a model without one"
        return conversation_prompt(tokenizer, messages, instead=instead, options=self.chat_template_kwargs)

    def judge(self, problem: Problem, response: str, *, truncated: bool = False) -> Verdict:
        said = self.module.reward(_given(problem), response)
        if inspect.isawaitable(said):
            said = _loop().run_until_complete(said)
        if isinstance(said, Verdict):
            return said
        return self._verdict(said if isinstance(said, dict) else {"reward": said}, response)

    def _verdict(self, said: Mapping[str, Any], response: str) -> Verdict:
        """The verdict of `reward` or `parts`, and `correct` and `answer` where they are given; the rest is logged."""
        if "reward" not in said and "parts" not in said:
            raise self._wrong("reward", said, "a dict with reward, or with parts that add up to it")
        logged = {
            str(name): value for name, value in said.items() if name not in ("reward", "parts", "correct", "answer")
        }
        for name, value in logged.items():
            if not isinstance(value, str | float | int | None) or (
                isinstance(value, float) and not math.isfinite(value)
            ):
                raise self._wrong("reward", {name: value}, f"text, a finite number or None for {name}")
        answer = said.get("answer", vote(response))
        answer = str(answer) if isinstance(answer, Real) else answer
        if said.get("reward", 0.0) is None:
            return Verdict(0.0, {"reward": 0.0}, False, answer, "unscored", False, logged)
        if not isinstance(said.get("parts", {}), dict):
            raise self._wrong("reward", said, "a dict of numbers for parts")
        parts = {str(name): self._number(value) for name, value in said.get("parts", {}).items()}
        reward = self._number(said["reward"] if "reward" in said else sum(parts.values()))
        if parts and not math.isclose(sum(parts.values()), reward, abs_tol=1e-6):
            raise self._wrong("reward", said, f"a reward that is the sum of its parts, {sum(parts.values()):g}")
        correct = bool(said.get("correct", reward > self.reward_range[1] - 1e-9))
        reason = "correct" if correct else "wrong"
        return Verdict(reward, parts or {"reward": reward}, correct, answer, reason, logged=logged)

    def _number(self, said: Any) -> float:
        value = said.item() if hasattr(said, "item") and getattr(said, "size", 1) == 1 else said
        try:
            number = float(value) if isinstance(value, Real) else math.nan
        except OverflowError:
            number = math.inf
        if not abs(number) <= LARGEST_REWARD:
            wanted = f"a number from -{LARGEST_REWARD:g} to {LARGEST_REWARD:g}, a bool, None or a dict with reward"
            raise self._wrong("reward", said, wanted)
        return number

    def solutions(self, problem: Problem) -> Iterator[str] | None:
        if not hasattr(self.module, "solution"):
            return None
        said = self.module.solution(_given(problem))
        found = [said] if isinstance(said, str) else list(islice(said or (), _SOLUTIONS))
        if not found or not all(isinstance(one, str) for one in found):
            raise self._wrong("solution", said, "text, or several")
        return iter(found)

    def _place(self, function: str) -> str:
        return _place(self.module, function)

    def _wrong(self, function: str, said: Any, wanted: str) -> RunError:
        got = f"{said!r:.60} ({type(said).__name__})"
        return RunError(f"{self._place(function)}: {function} returned {got}; wanted: {wanted}")


def _part_of(prompt: str) -> Split:
    number = int(text_digest(prompt)[:8], 16) % 8
    return "test" if number == 0 else "dev" if number == 1 else "train"


def has_functions(module: ModuleType) -> bool:
    """Whether the file is meant as a task of functions."""
    return any(callable(getattr(module, name, None)) for name in NEEDED)


def task_of_functions(module: ModuleType, taken: Collection[str]) -> type[Task]:
    """The task that the functions of a file are; its name is the file's.

    Parameters of `problems` besides the three, which need a default, are keys of the task.

    Raises:
        UserError: with all that is wrong with the functions; ``taken`` are names of other tasks.
    """
    file = str(module.__file__)
    name = Path(file).stem
    problems = [f"{file}: the task is called as its file, and {name} is a built-in task. Rename it"] * (name in taken)
    own = [key for key, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    for needed in NEEDED:
        if not callable(getattr(module, needed, None)):
            hint = did_you_mean(needed, [key for key in own if key not in CALLED])
            said = f"{needed}({', '.join(CALLED[needed])})"
            problems.append(f"{file}: has no function {said}.{hint}".rstrip("."))
    keys: dict[str, Any] = {}
    for function, given in CALLED.items():
        if not callable(getattr(module, function, None)):
            continue
        unfit = _unfit(module, function, given)
        if unfit is not None:
            problems.append(f"{_place(module, function)}: {unfit}")
        elif function == "problems":
            keys, wrong = _keys(module)
            problems += wrong
    clash = [key for key in keys if key in OfFunctions.model_fields or key.startswith("_") or key == "name"]
    problems += [f"{_place(module, 'problems')}: {key} is a key of every task; call it otherwise" for key in clash]
    low_high = getattr(module, "reward_range", (0.0, 1.0))
    if not _is_range(low_high):
        problems.append(f"{file}: reward_range is {low_high!r:.60}; write two numbers, the lowest first")
    if problems:
        raise UserError(problems)
    what = (module.__doc__ or f"The task of {Path(file).name}.").strip().split("\n")[0]
    make: Any = create_model
    made = make(
        "TaskOfFunctions",
        __base__=OfFunctions,
        __module__=module.__name__,
        __doc__=what,
        name=(Literal[name], Field(name, description=f"{name} = the task of {Path(file).name}.")),
        data=(Data, f"{name}-gen"),
        **keys,
    )
    _, faults = read_section(made, {key: field.default for key, (_, field) in keys.items()})
    if faults:
        raise UserError([f"{_place(module, 'problems')}: {fault}" for fault in faults])
    made.sets = {f"{name}-gen": made_here(f"The problems of {Path(file).name}.")}
    made.problem_keys = ("held_out", *keys)
    made.module = module
    return cast("type[Task]", made)


def _unfit(module: ModuleType, function: str, given: tuple[str, ...]) -> str | None:
    """What keeps a function from being called with ``given``."""
    call = getattr(module, function)
    calls = f"rlvr calls {function}({', '.join(given)})"
    try:
        signature = inspect.signature(call)
    except (TypeError, ValueError):
        return None
    try:
        signature.bind(*given)
    except TypeError:
        return f"{function}{signature}: {calls}"
    if inspect.iscoroutinefunction(call) and function != "reward":
        return f"{function} is async; only reward may be"
    return None


def _keys(module: ModuleType) -> tuple[dict[str, Any], list[str]]:
    """The parameters of `problems` besides the three, as fields: type and default; and what is wrong with them."""
    others = list(inspect.signature(module.problems).parameters.values())[len(CALLED["problems"]) :]
    found: dict[str, Any] = {}
    wrong: list[str] = []
    for one in others:
        if one.kind in (one.VAR_KEYWORD, one.VAR_POSITIONAL):
            continue
        kind: Any = Any if one.default is None else type(one.default)
        try:
            if one.annotation is not one.empty:
                # Each by itself: what the function returns may have a name that is for type checkers alone.
                alone = SimpleNamespace(__annotations__={one.name: one.annotation})
                kind = typing.get_type_hints(alone, vars(module), include_extras=True)[one.name]
                kind = kind | None if one.default is None else kind
            TypeAdapter(kind).json_schema()
            json.dumps(one.default, allow_nan=False)
        except Exception as error:  # an annotation is any expression
            said = "no type of JSON values" if isinstance(error, PydanticUserError) else said_of(error)
            wrong.append(f"{_place(module, 'problems')}: {one} cannot be a key of the task: {said}")
            continue
        text = f"{one.name} of problems in {Path(str(module.__file__)).name}."
        found[one.name] = (kind, Field(one.default, description=text))
    return found, wrong


def _is_range(value: Any) -> bool:
    if not isinstance(value, (tuple, list)) or len(value) != 2 or not all(isinstance(one, Real) for one in value):
        return False
    return math.isfinite(value[0]) and math.isfinite(value[1]) and value[0] < value[1]


def _place(module: ModuleType, function: str) -> str:
    """The file, and the line on which a function of it begins."""
    code = getattr(inspect.unwrap(getattr(module, function)), "__code__", None)
    line = code.co_firstlineno if code is not None and code.co_filename == module.__file__ else None
    return str(module.__file__) if line is None else f"{module.__file__}:{line}"


def _given(problem: Problem) -> dict[str, Any]:
    """The problem for a function: a copy of the row that `problems` gave."""
    return {"id": problem.id, **copy.deepcopy(problem.data)}


_LOOPS: list[asyncio.AbstractEventLoop] = []


def _loop() -> asyncio.AbstractEventLoop:
    # One for all calls, as clients that a module keeps belong to theirs.
    _LOOPS[:] = _LOOPS or [asyncio.new_event_loop()]
    return _LOOPS[0]
