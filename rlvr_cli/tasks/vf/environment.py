"""What runs in the user's Python, by its path: an environment of verifiers 0.3 or 0.4, asked with JSON lines.

`environment.py about ENV` prints what is installed. Without arguments a line comes in for each job and one goes out,
``["ok", answer]`` or ``["error", text]``. The first job loads the environment, ``{"env": ENV, "options": {...}}``; then

- ``{"do": "rows"}``: `rows`, by the set that they are of (train, test), and their hash `digest`; `most` and `least`
  that a reward can be; `infinite`, whether there are more rows than these;
- ``{"do": "digest"}``: the hash of the rows, which must not differ between processes;
- ``{"do": "score", "row": row, "text": response, "truncated": false}``: `reward`; `parts`; `answer`, as the
  environment's parser reads it; `most`; `said`, what verifiers reported of reward functions that failed.

Nothing but the standard library and verifiers is imported, and nothing of rlvr.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.metadata
import importlib.util
import inspect
import itertools
import json
import logging
import os
import platform
import re
import signal
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Rows of a taskset that goes on for ever.
MOST_ROWS = 20_000
_DIE_WITH_PARENT = 1


class Refused(Exception):
    """An environment that is none of those that can be used; the text says why."""


def module_of(env: str) -> str:
    """The module of an environment: `owner/my-env@1.0` is my_env."""
    name = env.rsplit("/", 1)[-1].split("@", 1)[0].replace("-", "_")
    return name if importlib.util.find_spec(name) is not None else name.lower()


def about(env: str) -> dict[str, Any]:
    """The versions of Python, of verifiers and of the environment, the hash of its files, and what else there is."""
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "verifiers": version_of(["verifiers"]),
        "environment": None,
    }
    spec = importlib.util.find_spec(module_of(env))
    if spec is not None and spec.origin is not None:
        names = [module_of(env), *importlib.metadata.packages_distributions().get(spec.name, ())]
        found["environment"], found["code"] = version_of(names) or "of unknown version", digest_of(spec)
    needs = re.compile(r"verifiers\b", re.IGNORECASE)
    all_ = importlib.metadata.distributions()
    found["others"] = sorted({one.metadata["Name"] for one in all_ if any(map(needs.match, one.requires or ()))})
    return found


def version_of(names: list[str]) -> str | None:
    """The version of the first package that is installed; None where none is."""
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def digest_of(spec: Any) -> str:
    """The hash of a module's file, or of all files of a package."""
    root = Path(spec.origin).parent
    package = spec.submodule_search_locations is not None
    files = sorted(path for path in root.rglob("*") if path.is_file()) if package else [Path(spec.origin)]
    found = hashlib.sha256()
    for path in files:
        if "__pycache__" not in path.parts:
            found.update(f"{path.relative_to(root).as_posix()}\n".encode() + path.read_bytes())
    return found.hexdigest()[:12]


class Reported(logging.Handler):
    """What verifiers reports, and does not raise: it gives 0 for a reward function that fails."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


class Classic:
    """An environment with `load_environment`, of verifiers 0.3."""

    def __init__(self, env: str, options: dict[str, Any]) -> None:
        import verifiers

        self.env, self.loop = verifiers.load_environment(env, **options), asyncio.new_event_loop()
        members = list(self._members(self.env))
        for one in members:
            if not isinstance(one, verifiers.SingleTurnEnv):
                raise Refused(f"its {type(one).__name__} takes several turns or calls tools; single-turn ones are used")
            if getattr(one, "tool_defs", None):
                raise Refused("it gives the model tools; environments without any are used")
            if any(base.__name__ == "JudgeRubric" for rubric in rubrics(one.rubric) for base in type(rubric).__mro__):
                raise Refused("its rubric asks a model to judge (JudgeRubric); no server is asked here")
            if one.rubric.has_group_rewards:
                raise Refused("a reward function of it compares the completions of a group; each is judged alone here")
        weights = [[float(weight) for weight in one.rubric._get_reward_weights()] for one in members]
        self.most, self.least = max(map(highest, weights)), min(-highest([-one for one in each]) for each in weights)
        self.client, self.reported = self._client(verifiers), Reported()
        logging.getLogger("verifiers").addHandler(self.reported)

    def _members(self, env: Any) -> Iterator[Any]:
        for one in getattr(env, "envs", None) or ():
            yield from self._members(one)
        if not getattr(env, "envs", None):
            yield env

    def _member(self, row: dict[str, Any]) -> Any:
        info, env = row.get("info") or {}, self.env
        route = (json.loads(info) if isinstance(info, str) else info).get("env_id") or []
        for name in [route] if isinstance(route, str) else route:
            env = getattr(env, "env_map", {}).get(name, env)
        return env

    @staticmethod
    def _client(verifiers: Any) -> Any:
        """Stands where verifiers has a model, and says what the model said."""
        from verifiers.types import Response, ResponseMessage

        async def get_response(self: Any, *arguments: Any, **options: Any) -> Any:
            end = "length" if self.truncated else "stop"
            message = ResponseMessage(content=self.text, finish_reason=end, is_truncated=self.truncated)
            return Response(id="", created=0, model="", message=message)

        nothing = dict.fromkeys(verifiers.Client.__abstractmethods__)
        made = type("Given", (verifiers.Client,), {**nothing, "get_response": get_response})
        return made(None)

    def rows(self) -> dict[str, list[dict[str, Any]]]:
        """The rows of its two data sets, as far as it has them."""
        built = {"train": self.env.build_dataset(), "test": self.env.build_eval_dataset()}
        return {name: [dict(row) for row in rows] for name, rows in built.items() if rows is not None}

    def score(self, row: dict[str, Any], text: str, truncated: bool) -> dict[str, Any]:
        """The verdict on a response, with all that verifiers does around a model's answer."""
        self.client.text, self.client.truncated, self.reported.lines = text, truncated, []
        return self.loop.run_until_complete(self._score(row))

    async def _score(self, row: dict[str, Any]) -> dict[str, Any]:
        state = await self.env.rollout(row, self.client, "", {})
        if state.get("error") is not None:
            raise state["error"]
        await self.env.rubric.score_rollout(state)
        await self.env.rubric.cleanup(state)
        one, found = self._member(row), state["metrics"]
        known = dict(zip(one.rubric._get_reward_func_names(), one.rubric._get_reward_weights(), strict=False))
        # What is no reward is only watched: it keeps its own scale. Of turns there is always one.
        parts = {name: float(value) * (known.get(name) or 1.0) for name, value in found.items() if name != "num_turns"}
        reads = type(one.parser).__name__ != "Parser"
        answer = one.parser.parse_answer(state["completion"]) if reads else None
        answer = answer if isinstance(answer, str) else None
        most = highest(one.rubric._get_reward_weights())
        return {"reward": state["reward"], "parts": parts, "answer": answer, "most": most, "said": self.reported.lines}


class Taskset:
    """A taskset of `verifiers.v1`."""

    def __init__(self, env: str, options: dict[str, Any]) -> None:
        import verifiers.v1 as vf
        from verifiers.v1.utils import loaders

        self.vf, self.loop = vf, asyncio.new_event_loop()
        played = loaders.environment_class(env)
        if played is not vf.SingleAgentEnv:
            raise Refused(f"it brings {played.__name__}, for several agents or turns; one model is asked once here")
        if loaders.default_harness_id(env) == env:
            raise Refused("it brings a harness of its own, which calls a model itself; the model is asked once here")
        config = loaders.taskset_config_type(env)(id=env, **options)
        self.taskset = loaders.load_taskset(config)
        self.infinite = bool(getattr(self.taskset, "INFINITE", False))
        self.tasks = list(itertools.islice(self.taskset, MOST_ROWS if self.infinite else None))
        if not self.tasks:
            raise Refused("it has no tasks")
        self.first = first = self.tasks[0]
        if type(self.taskset).toolsets(config) or type(first).toolsets(first.config):
            raise Refused("it gives the model tools; tasksets without any are used")
        if first.config.judges:
            raise Refused("it has a model judge (task.judges), which needs a server; none is asked here")
        hooks = [*first.hooks("reward"), *first.hooks("metric")]
        boxed = [name for name in ("setup", "finalize") if getattr(type(first), name) is not getattr(vf.Task, name)]
        boxed += [one.__name__ for one in hooks if needs_runtime(one)]
        if first.NEEDS_CONTAINER or boxed:
            raise Refused(
                f"it works in a runtime ({', '.join(boxed) or 'a container'}); the response alone is judged here"
            )
        weights = [float(getattr(one, "_vf_weight", 1.0)) for one in first.hooks("reward")]
        self.most, self.least = highest(weights), -highest([-one for one in weights])
        self._task(self._row(first))

    def _row(self, task: Any) -> dict[str, Any]:
        # The place in the taskset says nothing of the task.
        row = task.data.model_dump(mode="json", exclude_defaults=True)
        return {name: value for name, value in row.items() if name != "idx"}

    def _task(self, row: dict[str, Any]) -> Any:
        return type(self.first)(type(self.first.data).model_validate(row), self.first.config)

    def rows(self) -> dict[str, list[dict[str, Any]]]:
        """The tasks, as their data."""
        return {"train": [self._row(task) for task in self.tasks]}

    def score(self, row: dict[str, Any], text: str, truncated: bool) -> dict[str, Any]:
        """The verdict on a response, as verifiers gives it to a trace of one turn."""
        vf, task = self.vf, self._task(row)
        system, prompt = task.data.system_prompt, task.data.prompt
        said = [vf.UserMessage(content=prompt)] if isinstance(prompt, str) else list(prompt)
        said = [
            *([] if system is None else [vf.SystemMessage(content=system)]),
            *said,
            vf.AssistantMessage(content=text),
        ]
        nodes = [
            vf.MessageNode(message=one, sampled=place == len(said) - 1, **({"parent": place - 1} if place else {}))
            for place, one in enumerate(said)
        ]
        of = vf.TraceTask(type=type(task).__name__, data=task.data)
        trace = vf.Trace(task=of, agent=vf.AgentInfo(config=vf.AgentConfig()), nodes=nodes)
        self.loop.run_until_complete(task.score(trace))
        parts = {name: one.value for name, one in trace.rewards.items() if one is not None}
        parts = {**{name: float(value) for name, value in trace.metrics.items() if value is not None}, **parts}
        return {"reward": trace.reward, "parts": parts, "answer": None, "most": self.most, "said": []}


def highest(weights: list[float]) -> float:
    """The most that weighted functions of 0 to 1 give."""
    return sum(one for one in weights if one > 0)


def rubrics(one: Any) -> Iterator[Any]:
    """A rubric and all that are inside."""
    yield one
    for inner in getattr(one, "rubrics", ()):
        yield from rubrics(inner)


def needs_runtime(function: Any) -> bool:
    """Whether a function of a task cannot be called without a runtime."""
    given = inspect.signature(function).parameters.get("runtime")
    return given is not None and given.default is given.empty


def loaded(env: str, options: dict[str, Any]) -> Classic | Taskset:
    """The environment. Raises Refused, and whatever its code raises."""
    module = importlib.import_module(module_of(env))
    exported = [getattr(module, name, None) for name in getattr(module, "__all__", ())]
    tasksets = [one for one in exported if any(base.__name__ == "Taskset" for base in getattr(one, "__mro__", ())[1:])]
    classic = hasattr(module, "load_environment")
    if classic and not tasksets and not importlib.metadata.version("verifiers").startswith("0.3."):
        raise Refused("it has load_environment, which verifiers had until 0.3; install verifiers==0.3.1")
    if not classic and not tasksets:
        raise Refused("it has neither load_environment nor a Taskset in __all__")
    made = Taskset(env, options) if tasksets else Classic(env, options)
    if not made.most > 0:
        raise Refused("it has no reward function of a weight above 0")
    return made


def described(error: BaseException, env: str) -> str:
    """An exception in one line, with the last line of the environment that it passed through."""
    while error.__cause__ is not None:
        error = error.__cause__
    spec: Any = importlib.util.find_spec(module_of(env))
    root = str(Path(spec.origin).parent) if spec.submodule_search_locations is not None else spec.origin
    lines = [one for one in traceback.extract_tb(error.__traceback__) if one.filename.startswith(root)]
    where = f"{lines[-1].filename}:{lines[-1].lineno}: " if lines else ""
    return where + " ".join(f"{type(error).__name__}: {error}".split())


def as_json(rows: dict[str, list[dict[str, Any]]]) -> str:
    """The rows as text. Raises Refused for one with another value than JSON has."""
    for row in itertools.chain.from_iterable(rows.values()):
        for name, value in row.items():
            try:
                json.dumps(value, allow_nan=False)
            except (TypeError, ValueError):
                said = f"a row's {name} is not a JSON value ({type(value).__name__})"
                raise Refused(f"{said}; problems are kept and sent as JSON") from None
    return json.dumps(rows)


def serve() -> None:
    """Answer jobs until the input ends. What anything here prints goes to standard error."""
    jobs, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    own, one = os.getpid(), None
    for line in jobs:
        job = json.loads(line)
        try:
            if one is None:
                name = job["env"]
                one = loaded(name, job["options"])
                # A cluster sends SIGTERM to every process; answers are wanted until the caller ends.
                signal.signal(signal.SIGTERM, lambda *_: None)
                said = None
            elif job["do"] == "score":
                said = one.score(job["row"], job["text"], job["truncated"])
            else:
                text = as_json(one.rows())
                digest = hashlib.sha256(text.encode()).hexdigest()[:12]
                kind = {"most": one.most, "least": one.least, "infinite": getattr(one, "infinite", False)}
                said = digest if job["do"] == "digest" else {**kind, "rows": json.loads(text), "digest": digest}
            reply = json.dumps(["ok", said])
        except MemoryError:
            os._exit(1)
        except BaseException as error:
            reply = json.dumps(["error", str(error) if isinstance(error, Refused) else described(error, name)])
        if os.getpid() != own:
            os._exit(0)
        answers.write(reply.encode() + b"\n")
        answers.flush()


if __name__ == "__main__":
    # The folder of this file has modules of rlvr, which nothing here may import.
    sys.path[:] = [place for place in sys.path if place != str(Path(__file__).parent)]
    if sys.argv[1:2] == ["about"]:
        print(json.dumps(about(sys.argv[2])))
    else:
        serve()
