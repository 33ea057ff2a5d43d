"""The task `mix`: problems of several tasks by share, each with the prompt and the judge of its task."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.messages import read_section
from rlvr_cli.core.section import Contradiction, Text
from rlvr_cli.core.text import did_you_mean
from rlvr_cli.tasks.base import ALL_ROWS, Data, Task
from rlvr_cli.tasks.problem import DataSplit, MissingFields, Problem, Verdict
from rlvr_cli.tasks.shares import Share, SumToOne, quotas, spread

# The field of a problem with the name of its task.
_TASK = "task"


class Mixture(Task):
    """Problems of several tasks."""

    by_subgroup: ClassVar = True
    problem_keys: ClassVar = ("tasks", "options")

    name: Literal["mix"] = Field("mix", description="mix = problems of several tasks, by share.")
    data: Data = "mix"
    tasks: Annotated[dict[Text, Share], SumToOne] = Field(
        {},
        description="Tasks, or data sets (`rlvr tasks sets`) of tasks -> share of the problems: {countdown: 0.7, "
        "gsm8k: 0.3}.",
    )
    options: dict[Text, dict[Text, Any]] = Field(
        {}, description="Keys of these tasks' sections: {countdown: {numbers: {3: 1}}, gsm8k: {style: boxed}}."
    )

    @cached_property
    def _read(self) -> tuple[dict[str, Task], list[str]]:
        """The component tasks by name, and what is wrong with others."""
        from rlvr_cli.tasks.sets import data_sets, task_kinds

        kinds = {name: kind for name, kind in task_kinds().items() if not kind.runs_user_code and kind is not Mixture}
        tasks = dict[str, Task]()
        problems = [f"{name} is in task.options alone" for name in self.options if name not in self.tasks]
        problems += [
            f"task.options.{name} has {key}, which is the mixture's"
            for name, options in self.options.items()
            for key in ("name", "train_size")
            if key in options
        ]
        for name in self.tasks:
            source = {} if name in task_kinds() or name not in data_sets() else {"data": name}
            kind = kinds.get(data_sets()[name].task if source else name)
            if kind is None:
                hint = did_you_mean(name, [*kinds, *data_sets()])
                problems.append(f"{name} cannot be mixed.{hint} Allowed: {', '.join(kinds)}, and their data sets")
                continue
            values = {"chat_template_kwargs": self.chat_template_kwargs, **source, **self.options.get(name, {})}
            task, faults = read_section(kind, {**values, "name": kind.model_fields["name"].default}, "task")
            problems += [f"{name}: {fault}" for fault in faults]
            tasks |= {} if task is None else {name: task}
        return tasks, problems

    @property
    def by_name(self) -> dict[str, Task]:
        return self._read[0]

    @property
    def components(self) -> Sequence[Task]:
        return list(self.by_name.values())

    def contradictions(self) -> Iterator[Contradiction]:
        problems = list(self._read[1])
        problems += [
            # The hint's key, below the options of the task.
            f"{name}: " + re.sub(r"\bSet task\.(\w+)=", rf"In task.options.{name} set \1: ", each.message)
            for name, task in self.by_name.items()
            for each in task.contradictions()
        ]
        if not self.tasks:
            problems.append("task.name=mix names no task; write {countdown: 0.5, kk: 0.5}")
        yield from (Contradiction(("task.tasks", "task.options"), f"task.tasks: {problem}") for problem in problems)
        if self.data != "mix":
            reason = "a mixture has the data of its tasks. Set task.options.NAME.data"
            yield Contradiction(("task.data", "task.name"), f"task.data={self.data} has no effect: {reason}")

    @property
    def reasons(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(dict.fromkeys(reason for task in self.components for reason in task.reasons))

    @property
    def settings(self) -> dict[str, Any]:
        return {**super().settings, "options": {name: task.settings for name, task in self.by_name.items()}}

    @property
    def reward_range(self) -> tuple[float, float]:
        lowest, highest = zip(*(task.reward_range for task in self.components), strict=True)
        return min(lowest), max(highest)

    @property
    def prompt_tokens(self) -> int:
        return max(task.prompt_tokens for task in self.components)

    @property
    def is_generated(self) -> bool:
        return all(task.is_generated for task in self.components)

    def for_model(self, style: str) -> Self:
        if style == "compact" and len(kinds := dict.fromkeys(task.name for task in self.components)) > 1:
            raise UserError(f"task.tasks: a lab's model reads one task, not {', '.join(kinds)}. Use another model.")
        copy = self.model_copy()
        copy.__dict__["_read"] = ({name: task.for_model(style) for name, task in self.by_name.items()}, [])
        return copy

    def check_requirements(self) -> None:
        for task in self.components:
            task.check_requirements()

    def describe_data(self) -> str:
        shares = ", ".join(f"{self.tasks[name]:.0%} {name}" for name in self.by_name)
        return "; ".join([shares, *filter(None, (task.describe_data() for task in self.components))])

    def count_local(self, split: DataSplit, most: int) -> int | None:
        if any(task.count_local(split, 1) is None for task in self.components):
            return None
        return most if self.is_generated else len(self.problems(split, most, 0))

    def problems(self, split: DataSplit, count: int, seed: int) -> list[Problem]:
        """Return ``count`` problems by share, fewer if the data of a task does not suffice for its share."""
        loaded = {
            name: task.problems(split, ALL_ROWS, seed) for name, task in self.by_name.items() if not task.is_generated
        }
        count = min([count, *(int(len(rows) / self.tasks[name]) for name, rows in loaded.items())])
        chosen = []
        for name, number in quotas(self.tasks, count, {}).items():
            rows = (
                loaded[name] if name in loaded else self.by_name[name].problems(split, number, seed) if number else []
            )
            chosen += [self._add_task(name, problem) for problem in rows[:number]]
        return spread(chosen, [problem.subgroup for problem in chosen])

    def _add_task(self, name: str, problem: Problem) -> Problem:
        return replace(problem, id=f"{name}/{problem.id}", data={**problem.data, _TASK: name}, subgroup=name)

    def task_of(self, problem: Problem) -> Task:
        return self.by_name[problem.data[_TASK]]

    def _of(self, problem: Problem) -> tuple[Task, Problem]:
        """Return the task of a problem, and the problem as that task made it, but for its subgroup."""
        data = {key: value for key, value in problem.data.items() if key != _TASK}
        identity = problem.id.removeprefix(f"{problem.data[_TASK]}/")
        return self.task_of(problem), replace(problem, id=identity, data=data)

    def problem_from(self, fields: dict[str, Any], where: str) -> Problem:
        name = fields.get(_TASK)
        if name not in self.by_name:
            raise MissingFields(where, [_TASK], f"a row needs the name of its task ({', '.join(self.by_name)})", fields)
        row = {key: value for key, value in fields.items() if key != _TASK}
        row |= {"id": str(fields["id"]).removeprefix(f"{name}/")} if "id" in fields else {}
        return self._add_task(name, self.by_name[name].problem_from(row, where))

    def problem_wording(self, problem: Problem) -> str:
        task, inner = self._of(problem)
        return task.problem_wording(inner)

    def prompt(self, problem: Problem, tokenizer: Any) -> str:
        task, inner = self._of(problem)
        return task.prompt(inner, tokenizer)

    def solutions(self, problem: Problem) -> Iterator[str] | None:
        task, inner = self._of(problem)
        return task.solutions(inner)

    def judge_many(
        self,
        problems: Sequence[Problem],
        responses: Sequence[str],
        truncated: Sequence[bool],
        token_ids: Sequence[Sequence[int]] | None = None,
    ) -> list[Verdict]:
        verdicts: dict[int, Verdict] = {}
        for name, task in self.by_name.items():
            rows = [row for row, problem in enumerate(problems) if problem.data[_TASK] == name]
            judged = task.judge_many(
                [self._of(problems[row])[1] for row in rows],
                [responses[row] for row in rows],
                [truncated[row] for row in rows],
                None if token_ids is None else [token_ids[row] for row in rows],
            )
            verdicts |= zip(rows, judged, strict=True)
        return [verdicts[row] for row in range(len(problems))]
