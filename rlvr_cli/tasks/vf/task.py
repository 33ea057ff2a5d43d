"""The task `vf`: rows and reward functions of an environment of verifiers, which a Python of the user's own runs."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.files import local_path
from rlvr_cli.core.hashes import digest
from rlvr_cli.core.section import Contradiction, Probability, Text
from rlvr_cli.core.streams import stream_seed
from rlvr_cli.core.text import did_you_mean
from rlvr_cli.tasks.base import Data, Task, vote
from rlvr_cli.tasks.problem import Judging, MissingFields, Problem, Split, Verdict, made_here, wide
from rlvr_cli.tasks.prompts import conversation_prompt
from rlvr_cli.tasks.rewards import LIMIT_KEYS, InWorkers, MemoryMiB, Timeout, Told, why
from rlvr_cli.workers.foreign import environment
from rlvr_cli.workers.pool import Judge, LatestPool, Limits, NoAnswer, Pool

PREFIX = "vf:"
PAGE = "docs/tasks/environments.md"
SUPPORTED = ("0.3.", "0.4.")
SCRIPT = Path(__file__).with_name("environment.py")
# Rows, and what is said to be answered to them, on which an environment is tried before anything starts.
_TRIAL_RESPONSES = ("I do not know.", "", "<think> 1 </think> <answer> 1 </answer>")
# Rounding of a sum of weights.
_CLOSE = 1e-9
_ASKING_SECONDS = 60.0


def keys_of(written: str) -> dict[str, Any]:
    """The keys of `vf:my-env`. Raises UserError."""
    env = written.removeprefix(PREFIX).strip()
    if not env:
        raise UserError(f"--task {written}: name an environment that is installed, as vf:my-env ({PAGE}).")
    return {"name": "vf", "env": env}


class Verifiers(Task):
    """Rows and reward functions of an environment of verifiers."""

    sets: ClassVar = {"vf-gen": made_here("Rows of an environment of verifiers, from a Python of your own.")}
    reasons: ClassVar = ("correct", "partial", "wrong", "error", "timeout", "died")
    pooled: ClassVar = True
    # An environment that works is the same wherever its Python is.
    not_deciding: ClassVar = ("python", "load_timeout", *LIMIT_KEYS)
    keeps_problems: ClassVar = True

    name: Literal["vf"] = Field("vf", description="vf = an environment of verifiers (vf:NAME names it).")
    data: Data = "vf-gen"
    env: Text | None = Field(
        None, description="The environment: the name of a package that is installed in task.python."
    )
    python: Text | None = Field(
        None, description="The Python that has verifiers and the environment: its file, or the folder of a venv."
    )
    options: dict[Text, Any] = Field(
        {}, description="Options of the environment: arguments of load_environment, or keys of a taskset."
    )
    installed: dict[Text, Text] = Field(
        {},
        description="The versions of Python, verifiers and the environment, and the hash of its files. A run keeps "
        "them, and refuses to go on with others; {} = those that are installed.",
    )
    correct_from: float | None = Field(
        None,
        description="The reward from which on a completion is correct; null = the most that there can be: the sum of "
        "the weights above 0, of functions from 0 to 1.",
    )
    load_timeout: Timeout = Field(
        300.0, description="Seconds by the clock that the environment may take to load, with its rows."
    )
    reward_timeout: Timeout = Field(60.0, description="Seconds by the clock that a verdict may take.")
    reward_memory: MemoryMiB = Field(16_384, description="MiB of memory that a process with the environment may use.")
    reward_failures: Probability = Field(
        0.1,
        description="The share of the completions of a rollout that may be without a verdict because the environment "
        "failed; more end the run.",
    )
    reward_workers: Annotated[int, Field(ge=1, le=64)] = Field(2, description="Processes that judge.")

    @model_validator(mode="before")
    @classmethod
    def _with_versions(cls, values: Any) -> Any:
        """The path from the root, and what is installed there, where that is not written yet."""
        if not isinstance(values, dict) or not isinstance(values.get("python"), str):
            return values
        path = local_path(values["python"]).absolute()
        values = {**values, "python": str(path / "bin" / "python" if path.is_dir() else path)}
        env, known = values.get("env"), values.get("installed")
        if isinstance(env, str) and not (isinstance(known, dict) and env in known):
            about = _asked(values["python"], env)
            values["installed"] = _versions(env, about) if isinstance(about, dict) and about["environment"] else {}
        return values

    @property
    def settings(self) -> dict[str, Any]:
        plain: dict[str, Any] = json.loads(json.dumps(super().settings))
        return plain

    @property
    def reward_range(self) -> tuple[float, float]:
        found = self._found()
        return found["least"], found["most"]

    def contradictions(self) -> Iterator[Contradiction]:
        if self.env is None:
            yield Contradiction(
                ("task.name", "task.env"), f"task.name=vf names no environment: --task vf:my-env ({PAGE})"
            )
        elif self.python is None:
            said = (
                f"task.python is not set: verifiers cannot be installed next to rlvr, so {self.env} runs in a Python "
                f"of its own: task.python=path/to/venv ({PAGE})"
            )
            yield Contradiction(("task.python", "task.env"), said)

    def check_before(self) -> None:
        """Raises UserError for an interpreter, a version or an environment that cannot be used, after trying it."""
        _CHECKED.discard(self._key())
        self._check_installed()
        self._try(self.generate("train", len(_TRIAL_RESPONSES), 0))

    def _check_installed(self) -> None:
        if self._key() in _CHECKED:
            return
        python, env = self.python or "", self.env or ""
        if not os.access(python, os.X_OK):
            raise UserError(f"task.python={python}: no such Python. Name the python of a venv that has verifiers.")
        about = _asked.__wrapped__(python, env)
        if isinstance(about, str):
            raise UserError(f"task.python={python}: cannot be inspected: {about}.")
        if about["verifiers"] is None:
            said = f"has no package verifiers: {python} -m pip install verifiers==0.3.1 (or 0.4.0)"
            raise UserError(f"task.python={python}: {said}, and the environment.")
        if not about["verifiers"].startswith(SUPPORTED):
            said = f"has verifiers {about['verifiers']}, and 0.3 and 0.4 are supported"
            raise UserError(f"task.python={python}: {said} (tried: 0.3.1 and 0.4.0).")
        if about["environment"] is None:
            others = about["others"]
            has = f"It has {', '.join(others)}" if others else "It has no package that needs verifiers"
            raise UserError(f"task vf: {python} has no environment {env}.{did_you_mean(env, others)} {has}.")
        now, before = _versions(env, about), dict(self.installed)
        if before not in ({}, now):
            other = [name for name in now if now[name] != before.get(name)]
            changed = [f"{name} {before.get(name)} is {now[name]} now" for name in other]
            raise UserError(
                f"task vf: {env} is not what it was when this configuration was written: {'; '.join(changed)} "
                f"({python}). Results would not be comparable: reinstall that version, or start again with "
                "task.installed={}."
            )
        _CHECKED.add(self._key())

    def about_data(self) -> str:
        parts = Counter(part for _, part in self._divided())
        counts = ", ".join(f"{parts[split]:,} {split}" for split in ("train", "dev", "test"))
        version, verifiers, python = (self.installed.get(name) for name in (self.env or "", "verifiers", "python"))
        rule = "its own evaluation rows are for test, and an eighth of the others, by a hash of the prompt, for dev"
        if set(self._found()["rows"]) != {"train", "test"}:
            rule = "by a hash of the prompt an eighth each is for dev and test"
        most = self.reward_range[1] if self.correct_from is None else self.correct_from
        first = "the first " if self._found()["infinite"] else ""
        rows = f"{self.env} {version} (verifiers {verifiers}, Python {python}): {first}{counts} rows"
        correct = f"correct = a reward of {most:g} (task.correct_from)"
        return "; ".join(filter(None, (rows, rule, correct, wide(parts["test"])))) + "."

    # Rows

    def generate(self, split: Split, count: int, seed: int) -> list[Problem]:
        """The problems; there may be fewer than ``count``."""
        found = [problem for problem, part in self._divided() if part == split]
        if not found:
            raise UserError(f"task vf: {self.env} has no {split} rows (it has {len(self._divided())} in all).")
        return sorted(found, key=lambda problem: stream_seed(seed, "vf", split, problem.id))[:count]

    def _divided(self) -> list[tuple[Problem, Split]]:
        """Every problem with its split: the environment's own, else by the hash of the prompt as for files."""
        self._check_installed()
        rows = self._found()["rows"]
        both, found = {"train", "test"} <= set(rows), dict[str, tuple[Problem, Split]]()
        for name, listed in rows.items():
            for number, row in enumerate(listed, start=1):
                problem = self.problem_from({"row": row}, f"task vf: {self.env}: {name} row {number}")
                part: Split = self.part_of(problem)
                if both:
                    part = "test" if name == "test" else "dev" if self.in_dev(problem) else "train"
                found.setdefault(problem.id, (problem, part))
        return list(found.values())

    def problem_from(self, fields: dict[str, Any], where: str) -> Problem:
        """The problem of a row of the environment, which is its field `row`."""
        if not isinstance(fields.get("row"), dict):
            raise MissingFields(where, ["row"], "a problem of an environment has its row there", fields)
        row = fields["row"]
        messages = messages_of(row, where)
        info = row.get("info")
        group = info.get("env_id") if isinstance(info, dict) else None
        asked = "\n\n".join(message["content"] for message in messages if message["role"] != "system")
        # Its place in the environment says nothing of a row.
        name = f"{self.env}-{digest({key: value for key, value in row.items() if key != 'example_id'})[:16]}"
        return Problem(str(fields.get("id", name)), asked, {"row": row}, group if isinstance(group, str) else "all")

    def prompt(self, problem: Problem, tokenizer: Any) -> str:
        messages = messages_of(problem.data["row"], problem.id)
        instead = "use a model with a working chat template"
        return conversation_prompt(tokenizer, messages, instead=instead, options=self.chat_template_kwargs)

    # Verdicts

    def judging(self) -> Judging:
        self._check_installed()
        timeout = Limits(self.reward_timeout, load_seconds=self.load_timeout)
        return InWorkers(
            self._pool(),
            _score,
            self._verdict,
            lambda error: why(error, f"task vf: {self.env}", "judging", timeout),
            self.reward_failures,
            self._key(),
        )

    def size_pool(self, workers: int) -> None:
        _SIZES[self._key()] = workers

    def _verdict(self, response: str, said: Mapping[str, Any]) -> Verdict:
        for one in said["said"]:
            _TOLD.setdefault(self._key(), Told()).tell(f"task vf: {self.env}: verifiers says: {one}")
        reward = float(said["reward"])
        correct = reward >= (said["most"] if self.correct_from is None else self.correct_from) - _CLOSE
        reason = "correct" if correct else "partial" if reward > 0 else "wrong"
        answer = vote(response) if said["answer"] is None else said["answer"].strip() or None
        parts = {name: said["parts"].get(name, 0.0) for name in self._parts(said["parts"])}
        return Verdict(reward, parts, correct, answer, reason)

    def _parts(self, found: Mapping[str, float]) -> tuple[str, ...]:
        """The names of every verdict's parts: those of the first one."""
        return _PARTS.setdefault(self._key(), tuple(found))

    def _try(self, problems: Sequence[Problem]) -> None:
        """Have responses to a few problems judged. Raises UserError where that fails, or the rows differ by process."""
        key = self._key()
        if key in _TRIED:
            return
        pool = self._pool()
        responses = _TRIAL_RESPONSES[: len(problems)]
        jobs = [_score(problem, said, False) for problem, said in zip(problems, responses, strict=True)]
        try:
            said = [job.result() for job in [pool.submit(job, self.reward_timeout) for job in jobs]]
            rows = pool.submit({"do": "digest"}, self.load_timeout).result()
        except NoAnswer as error:
            limits = Limits(self.reward_timeout, load_seconds=self.load_timeout)
            raise UserError(f"{why(error, f'task vf: {self.env}', 'judging', limits).said}.") from None
        failed = set.intersection(*({one.partition(":")[0] for one in each["said"]} for each in said))
        if failed:
            shown = next(one for one in said[0]["said"] if one.partition(":")[0] in failed)
            raise UserError(f"task vf: {self.env}: on every response that was tried verifiers says: {shown}.")
        if rows != self._found()["digest"]:
            raise UserError(
                f"task vf: {self.env} returns different rows in every process, so no run could be repeated. Make it "
                "draw them with a fixed seed (task.options, if it has an option for that)."
            )
        _TRIED.add(key)

    # Processes

    def _key(self) -> str:
        """What decides what a process with the environment is."""
        limits = [self.load_timeout, self.reward_timeout, self.reward_memory, self.reward_workers]
        return json.dumps([self.python, self.env, self.options, self.installed, limits], sort_keys=True)

    def _found(self) -> dict[str, Any]:
        return _found(self._key())

    def _pool(self) -> Pool:
        return _pool(self._key(), _SIZES.get(self._key(), self.reward_workers))


# By the task's key.
_SIZES: dict[str, int] = {}
_POOL = LatestPool()
_PARTS: dict[str, tuple[str, ...]] = {}
_TOLD: dict[str, Told] = {}
_TRIED: set[str] = set()
_CHECKED: set[str] = set()


def _score(problem: Problem, response: str, truncated: bool) -> dict[str, Any]:
    # Half a character is none that a library can be given.
    text = response.encode("utf-8", "replace").decode()
    return {"do": "score", "row": problem.data["row"], "text": text, "truncated": truncated}


def _limits(key: str) -> Limits:
    load, reward, memory, _ = json.loads(key)[4]
    return Limits(reward, memory_mib=memory, load_seconds=load)


def _judge(key: str) -> Judge:
    python, env, options, *_ = json.loads(key)
    settings = {"command": [python, str(SCRIPT)], "first": {"env": env, "options": options}}
    return Judge("rlvr_cli.workers.foreign:ready", settings, what=f"runs {env}")


def _pool(key: str, workers: int) -> Pool:
    """The processes that judge; those with another environment, or of another number, are ended."""
    return _POOL.get((key, workers), lambda: Pool(_judge(key), _limits(key), workers))


@lru_cache(maxsize=4)
def _found(key: str) -> dict[str, Any]:
    """What the environment has, and is; its process is ended again. Raises UserError."""
    env, limits = json.loads(key)[1], _limits(key)
    with Pool(_judge(key), limits) as pool:
        try:
            found: dict[str, Any] = pool.submit({"do": "rows"}, limits.loading).result()
        except NoAnswer as error:
            said = why(error, f"task vf: {env}", "loading", limits, limits.loading).said
            raise UserError(f"{said.replace('task.reward_timeout', 'task.load_timeout')}.") from None
        except RunError as error:
            raise UserError(f"task vf: {env}: {error}") from None
    if not any(found["rows"].values()):
        raise UserError(f"task vf: {env} has no rows.")
    return found


@lru_cache(maxsize=16)
def _asked(python: str, env: str) -> dict[str, Any] | str:
    """What the interpreter says of itself and of an environment; text = why it says nothing."""
    try:
        said = subprocess.run(
            [python, str(SCRIPT), "about", env],
            capture_output=True,
            text=True,
            timeout=_ASKING_SECONDS,
            env=environment(),
            stdin=subprocess.DEVNULL,
            check=False,
        )
        found: dict[str, Any] = json.loads(said.stdout.strip().rpartition("\n")[2])
        return found
    except subprocess.TimeoutExpired:
        return f"it said nothing for {_ASKING_SECONDS:.0f} s"
    except OSError as error:
        return str(error)
    except ValueError:
        last = said.stderr.strip().rpartition("\n")[2]
        return last or f"it ended with exit code {said.returncode}"


def _versions(env: str, about: Mapping[str, Any]) -> dict[str, str]:
    """What a configuration keeps of that, in the order in which changes are named."""
    named = {env: about["environment"], "code": about["code"]}
    return {**named, "verifiers": str(about["verifiers"]), "python": about["python"]}


def messages_of(row: Mapping[str, Any], where: str) -> list[dict[str, str]]:
    """The messages of a row: `prompt`, text or messages, behind its `system_prompt`. Raises UserError."""
    prompt, system = row.get("prompt"), row.get("system_prompt")
    listed = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    if not isinstance(listed, list) or not listed:
        raise UserError(f"{where}: has no prompt; the user would open the conversation, and one prompt is needed.")
    found = [] if system is None else [{"role": "system", "content": str(system)}]
    for message in listed:
        role = message.get("role") if isinstance(message, dict) else None
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list):
            texts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
            content = "".join(map(str, texts)) if len(texts) == len(content) else None
        if role not in ("system", "user", "assistant") or not isinstance(content, str) or message.get("tool_calls"):
            raise UserError(
                f"{where}: its prompt has a message that is not text from system, user or assistant: {message}"
            )
        found.append({"role": role, "content": content})
    roles = [message["role"] for message in found]
    if roles[-1] != "user" or "system" in roles[1:]:
        said = "a system turn may be the first, and the user's is the last"
        raise UserError(f"{where}: its prompt has the turns {', '.join(roles)}; {said}.")
    return found
