"""The task `mix`: problems of several tasks by share, each with the prompt and the judge of its own task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

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
        """The tasks by name, and what is wrong with others."""
        from rlvr_cli.tasks.sets import data_sets, task_kinds

        kinds = {name: kind for name, kind in task_kinds().items() if not kind.runs_user_code and kind is not Mixture}
        parts = dict[str, Task]()
        problems = [f"{name} is in task.options alone" for name in self.options if name not in self.tasks]
        for name in self.tasks:
            source = {} if name in task_kinds() or name not in data_sets() else {"data": name}
            kind = kinds.get(data_sets()[name].task if source else name)
            if kind is None:
                hint = did_you_mean(name, [*kinds, *data_sets()])
                problems.append(f"{name} cannot be mixed.{hint} Allowed: {', '.join(kinds)}, and their data sets")
                continue
            values = {"chat_template_kwargs": self.chat_template_kwargs, **source, **self.options.get(name, {})}
            part, faults = read_section(kind, {**values, "name": kind.model_fields["name"].default}, "task")
            problems += [f"{name}: {fault}" for fault in faults]
            parts |= {} if part is None else {name: part}
        return parts, problems

    @property
    def parts(self) -> dict[str, Task]:
        return self._read[0]

    def contradictions(self) -> Iterator[Contradiction]:
        problems = list(self._read[1])
        problems += [f"{name}: {each.message}" for name, part in self.parts.items() for each in part.contradictions()]
        if not self.tasks:
            problems.append("task.name=mix names no task; write {countdown: 0.5, kk: 0.5}")
        yield from (Contradiction(("task.tasks", "task.options"), f"task.tasks: {problem}") for problem in problems)
        if self.data != "mix":
            reason = "a mixture has the data of its tasks. Set task.options.NAME.data"
            yield Contradiction(("task.data", "task.name"), f"task.data={self.data} has no effect: {reason}")

    @property
    def components(self) -> Sequence[Task]:
        return list(self.parts.values())

    @property
    def reasons(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(dict.fromkeys(reason for part in self.components for reason in part.reasons))

    @property
    def settings(self) -> dict[str, Any]:
        return {**super().settings, "options": {name: part.settings for name, part in self.parts.items()}}

    @property
    def reward_range(self) -> tuple[float, float]:
        ends = [part.reward_range for part in self.components]
        return min(low for low, _ in ends), max(high for _, high in ends)

    def range_of(self, problem: Problem) -> tuple[float, float]:
        return self._of(problem)[0].reward_range

    @property
    def prompt_tokens(self) -> int:
        return max(part.prompt_tokens for part in self.components)

    @property
    def is_generated(self) -> bool:
        return all(part.is_generated for part in self.components)

    def for_model(self, style: str) -> Self:
        copy = self.model_copy()
        copy.__dict__["_read"] = ({name: part.for_model(style) for name, part in self.parts.items()}, [])
        return copy

    def check_requirements(self) -> None:
        for part in self.components:
            part.check_requirements()

    def describe_data(self) -> str:
        texts = (f"{self.tasks[name]:.0%} {name}" for name in self.parts)
        return "; ".join([", ".join(texts), *filter(None, (part.describe_data() for part in self.components))])

    def count_local(self, split: DataSplit, most: int) -> int | None:
        is_local = all(part.count_local(split, 1) is not None for part in self.components)
        return len(self.problems(split, most, 0)) if is_local and not self.is_generated else most if is_local else None

    def problems(self, split: DataSplit, count: int, seed: int) -> list[Problem]:
        """Return ``count`` problems by share, or as many as the tasks with data have for these shares."""
        loaded = {
            name: part.problems(split, ALL_ROWS, seed) for name, part in self.parts.items() if not part.is_generated
        }
        count = min([count, *(int(len(rows) / self.tasks[name]) for name, rows in loaded.items())])
        chosen = []
        for name, number in quotas(self.tasks, count, {}).items():
            rows = loaded[name] if name in loaded else self.parts[name].problems(split, number, seed) if number else []
            chosen += [self._named(name, problem) for problem in rows[:number]]
        return spread(chosen, [problem.subgroup for problem in chosen])

    def _named(self, name: str, problem: Problem) -> Problem:
        return replace(problem, id=f"{name}/{problem.id}", data={**problem.data, _TASK: name}, subgroup=name)

    def _of(self, problem: Problem) -> tuple[Task, Problem]:
        """Return the task of a problem, and the problem as that task made it, but for its subgroup."""
        data = dict(problem.data)
        name = data.pop(_TASK)
        return self.parts[name], replace(problem, id=problem.id.removeprefix(f"{name}/"), data=data)

    def problem_from(self, fields: dict[str, Any], where: str) -> Problem:
        name = fields.get(_TASK)
        if name not in self.parts:
            raise MissingFields(where, [_TASK], f"a row needs the name of its task ({', '.join(self.parts)})", fields)
        own = {key: value for key, value in fields.items() if key != _TASK}
        own |= {"id": str(fields["id"]).removeprefix(f"{name}/")} if "id" in fields else {}
        return self._named(name, self.parts[name].problem_from(own, where))

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
        rows: dict[str, list[int]] = {}
        for row, problem in enumerate(problems):
            rows.setdefault(problem.data[_TASK], []).append(row)
        verdicts: dict[int, Verdict] = {}
        for name, of_task in rows.items():
            inner = [self._of(problems[row])[1] for row in of_task]
            ids = None if token_ids is None else [token_ids[row] for row in of_task]
            judged = self.parts[name].judge_many(
                inner, [responses[row] for row in of_task], [truncated[row] for row in of_task], ids
            )
            verdicts |= dict(zip(of_task, judged, strict=True))
        return [verdicts[row] for row in range(len(problems))]
