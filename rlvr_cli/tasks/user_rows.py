"""The task `own`: the user's rows, prompts from their columns, and reward functions with TRL's signature."""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, StringConstraints

from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.files import local_path
from rlvr_cli.core.hashes import text_digest
from rlvr_cli.core.section import Contradiction, OneOrMore, Probability, Text
from rlvr_cli.core.terminal import print_stderr
from rlvr_cli.core.text import did_you_mean
from rlvr_cli.core.user_code import strip_folder
from rlvr_cli.tasks.base import Data, Task, extract_vote
from rlvr_cli.tasks.hub import HubTable, list_hub_splits, parse_hub_id
from rlvr_cli.tasks.problem import FEW_PROBLEMS, DataSplit, MissingFields, Problem, Split, Verdict
from rlvr_cli.tasks.prompts import (
    chat_prompt,
    conversation_error,
    conversation_variants,
    find_template_error,
    has_template,
    is_conversation,
    leading_bos,
    render_template,
)
from rlvr_cli.tasks.rewards import (
    LIMIT_KEYS,
    MemoryMiB,
    RewardFailure,
    RewardFunctions,
    Rewards,
    Timeout,
    Value,
    describe_row,
    match_reward,
    reward_function,
)

# Columns that are not passed to reward functions, since TRL uses these names.
_NOT_COLUMNS = ("prompt", "completion", "prompts", "completions", "completion_ids")
# Responses of the trial call of the functions, one per row.
_TRIAL_RESPONSES = ("I do not know.", "", "<think> 1 </think> <answer> 1 </answer>")
PromptText = Annotated[str, StringConstraints(min_length=1, max_length=100_000)]


def _check_reward(written: str) -> str:
    if match_reward(written) is None:
        raise ValueError(
            f"must be FILE.py:FUNCTION or MODULE:FUNCTION, as my_rewards.py:accuracy or trl.rewards:accuracy_reward; "
            f"got {written!r}"
        )
    return written


RewardName = Annotated[Text, AfterValidator(_check_reward)]


def _qualified_label(match: re.Match[str]) -> str:
    module = local_path(match["file"]).stem if match["file"].endswith(".py") else match["file"]
    return f"{module}.{match['name']}"


class UserRows(Task):
    """Your rows, judged by your reward functions."""

    reasons: ClassVar = ("correct", "wrong", "unscored", "error", "timeout", "died")
    runs_user_code: ClassVar = True
    splits_train_file: ClassVar = True
    bypasses_template: ClassVar = {"chat_template": (False,)}
    neutral_keys: ClassVar = LIMIT_KEYS
    problem_keys: ClassVar = ("splits", "held_out")

    name: Literal["own"] = Field("own", description="own = your rows and reward functions.")
    data: Data = "data.jsonl"
    reward: Annotated[tuple[RewardName, ...], OneOrMore] = Field(
        (),
        description="Reward functions with TRL's signature, each as FILE.py:FUNCTION or, installed, as MODULE:FUNCTION "
        "(trl.rewards:accuracy_reward). After an @, a run appends the first digits of the SHA-256 of the file, of "
        "which it keeps a copy, or the package's version.",
    )
    reward_weights: Annotated[tuple[float, ...], OneOrMore] = Field(
        (), description="Weight of each reward in the sum; [] = 1 each."
    )
    reward_values: Annotated[tuple[float, ...], OneOrMore, Field(min_length=2, max_length=2)] = Field(
        (0.0, 1.0), description="The lowest and the highest value of each function; not enforced."
    )
    messages: bool = Field(
        False,
        description="Whether functions get prompts and completions as lists of messages even if the prompt is text, as "
        "TRL's own functions need.",
    )
    reward_timeout: Timeout = Field(
        60.0, description="Timeout of a call of a reward function, and of loading its file, in wall-clock seconds."
    )
    reward_memory: MemoryMiB = Field(16_384, description="Memory limit of a reward function in MiB.")
    reward_failures: Probability = Field(
        0.1,
        description="The maximum share of a call's completions without a reward because a function failed; more end "
        "the run.",
    )
    correct: Text | None = Field(
        None, description="The reward function that decides whether a completion is correct; null = the first."
    )
    correct_above: float | None = Field(
        None,
        description="The value of that function, before weighting, above which a completion is correct; null = the "
        "midpoint of reward_values: 0.5 by default.",
    )
    columns: dict[Text, Text] = Field({}, description="Renamed columns, new: old, as {prompt: question}.")
    prompt_template: PromptText | None = Field(
        None, description="Jinja template of the prompt over the columns; null = the column prompt."
    )
    system_prompt: PromptText | None = Field(None, description="System turn before every prompt.")
    chat_template: bool = Field(True, description="Whether to apply the model's chat template, if it has one.")
    splits: dict[Literal["train", "dev", "test"], Text] = Field(
        {}, description="Splits of a hub data set with other names, as {test: validation}."
    )
    held_out: Annotated[float, Field(gt=0.0, lt=0.5)] = Field(
        0.125,
        description="The share of rows held out for test, and again for dev, by a hash of the prompt, if the data "
        "lacks the split.",
    )

    @property
    def settings(self) -> dict[str, Any]:
        """The settings without the folders of reward files, which are identified by their digests."""
        settings = {**super().settings, "reward": [strip_folder(reward) for reward in self.reward]}
        return settings if self.messages else {key: value for key, value in settings.items() if key != "messages"}

    @property
    def weights(self) -> tuple[float, ...]:
        return self.reward_weights or (1.0,) * len(self.reward)

    @property
    def reward_range(self) -> tuple[float, float]:
        ends = [sorted(weight * value for value in self.reward_values) for weight in self.weights]
        return sum(low for low, _ in ends), sum(high for _, high in ends)

    @property
    def labels(self) -> list[str]:
        """The name of each reward function in tables, qualified by its file if not unique."""
        named = [match for match in map(match_reward, self.reward) if match]
        names = Counter(match["name"] for match in named)
        return [match["name"] if names[match["name"]] == 1 else _qualified_label(match) for match in named]

    @property
    def part_weights(self) -> Mapping[str, float]:
        return dict(zip(self.labels, self.weights, strict=True))

    @property
    def judge_label(self) -> str:
        """The reward function that decides whether a completion is correct."""
        return self.labels[0] if self.correct is None else self.correct

    @property
    def threshold(self) -> float:
        """The value of ``judge_label`` above which a completion is correct."""
        return sum(self.reward_values) / 2 if self.correct_above is None else self.correct_above

    def contradictions(self) -> Iterator[Contradiction]:
        yield from super().contradictions()
        if not self.reward:
            message = "task.name=own has no reward function. Use --reward FILE.py:FUNCTION, or set task.reward"
            yield Contradiction(("task.name", "task.reward"), message)
        if self.reward_weights and self.reward and len(self.reward_weights) != len(self.reward):
            yield Contradiction(
                ("task.reward_weights", "task.reward"),
                f"task.reward_weights has {len(self.reward_weights)} numbers and task.reward {len(self.reward)} "
                "functions. Set one weight per function",
            )
        labels = Counter(_qualified_label(match) for match in map(match_reward, self.reward) if match)
        for label, times in labels.items():
            if times > 1:
                message = f"task.reward has {times} functions named {label}, which tables cannot tell apart. Rename one"
                yield Contradiction(("task.reward",), message)
        if self.reward and self.correct is not None and self.correct not in self.labels:
            hint = f"{did_you_mean(self.correct, self.labels)} Allowed: {', '.join(self.labels)}"
            message = f"task.correct={self.correct!r}: unknown reward function.{hint}"
            yield Contradiction(("task.correct", "task.reward"), message)
        if self.reward_values[0] >= self.reward_values[1]:
            message = f"task.reward_values must be [lowest, highest]; got {list(self.reward_values)}"
            yield Contradiction(("task.reward_values",), message)
        if self.prompt_template is not None and (wrong := find_template_error(self.prompt_template)):
            yield Contradiction(("task.prompt_template",), f"task.prompt_template: {wrong}")

    # Rows

    def problem_from(self, fields: dict[str, Any], where: str) -> Problem:
        data = self._select_json_columns({key: value for key, value in fields.items() if key != "id"}, where)
        content = self._prompt_content(self._rename_columns(data, where), where)
        text = content if isinstance(content, str) else "\n\n".join(message["content"] for message in content)
        subgroup = data.get("subgroup")
        return Problem(str(fields.get("id", where)), text, data, subgroup if isinstance(subgroup, str) else "all")

    def _select_json_columns(self, columns: Mapping[str, Any], where: str) -> dict[str, Any]:
        """Drop columns of other types than JSON's, as timestamps and bytes. Raises UserError for NaN."""
        data = {}
        for column, value in columns.items():
            try:
                json.dumps(value, allow_nan=False)
            except TypeError:
                if column not in self._reported_columns:
                    self._reported_columns.add(column)
                    kind = type(value).__name__
                    print_stderr(f"{self.data}: column {column} is dropped: its type {kind} is not a JSON type.")
            except ValueError as error:
                raise UserError(
                    f"{where}: column {column} is not a JSON value ({error}). Write a number or null."
                ) from error
            else:
                data[column] = value
        return data

    def load(self, split: DataSplit) -> list[Problem]:
        problems = super().load(split)
        # A missing column is None, as in a table.
        columns = dict.fromkeys(key for problem in problems for key in problem.data)
        return [
            replace(problem, data=problem.data | {key: None for key in columns if key not in problem.data})
            for problem in problems
        ]

    def problems(self, split: DataSplit, count: int, seed: int) -> list[Problem]:
        problems = super().problems(split, count, seed)
        self._try_functions(problems[: len(_TRIAL_RESPONSES)])
        return problems

    def check_requirements(self) -> None:
        self._functions.load()
        if local_path(self.data).exists():
            self.problems("train", len(_TRIAL_RESPONSES), 0)

    def describe_data(self) -> str:
        rule = (
            f"if the data has no test or dev rows, a share of {self.held_out:g} is held out for each by a hash of the "
            "prompt (task.held_out)"
        )
        verdict = f"correct = {self.judge_label} above {self.threshold:g} (task.correct, task.correct_above)"
        if not local_path(self.data).exists():
            return f"{self.data}: {rule}; {verdict}."
        counts: dict[Split, int] = {"train": 0, "dev": 0, "test": 0}
        for split in counts:
            with contextlib.suppress(UserError):
                counts[split] = len(super().load(split))
        counts["train"] = min(counts["train"], self.training_problems)
        rows = ", ".join(f"{number:,} {split}" if number else f"no {split}" for split, number in counts.items())
        few = f"; {counts['test']} test rows make wide intervals" if 0 < counts["test"] < FEW_PROBLEMS else ""
        return f"{self.data}: {rows} rows; {rule}; {verdict}{few}."

    def split_key(self, problem: Problem) -> str:
        named = self._rename_columns(problem.data, problem.id)
        return json.dumps(named.get("prompt", problem.data), sort_keys=True, ensure_ascii=False)

    def assign_split(self, problem: Problem) -> Split:
        share = int(text_digest(self.split_key(problem))[:16], 16) / 2**64
        return "test" if share < self.held_out else "dev" if share < 2 * self.held_out else "train"

    def hub_tables(self, hub_id: str, split: Split) -> list[HubTable]:
        hub_splits = self._hub_splits()
        return [HubTable(hub_splits.get(split, hub_splits["train"]))]

    def select_split(self, problems: list[Problem], split: Split) -> list[Problem]:
        hub_splits = self._hub_splits()
        if split != "train" and split in hub_splits:
            return problems
        divided = [(problem, self.assign_split(problem)) for problem in problems]
        return [
            problem for problem, assigned in divided if (assigned if assigned not in hub_splits else "train") == split
        ]

    def _hub_splits(self) -> dict[str, str]:
        names = list_hub_splits(*parse_hub_id(self.data))
        usual = {"train": ("train",), "dev": ("validation", "dev"), "test": ("test",)}
        splits = {split: name for split, usual_names in usual.items() for name in usual_names[::-1] if name in names}
        splits |= {str(split): hub_split for split, hub_split in self.splits.items()}
        wrong = [f"{split}: {hub_split}" for split, hub_split in self.splits.items() if hub_split not in names]
        if wrong or "train" not in splits:
            lacking = ", ".join(wrong) or "split train"
            raise UserError(f"task.data={self.data!r}: has no {lacking}; it has {', '.join(names)}. Set task.splits.")
        return splits

    # Prompts

    def _rename_columns(self, data: Mapping[str, Any], where: str) -> dict[str, Any]:
        missing = [old for old in self.columns.values() if old not in data]
        if missing:
            mapping = ", ".join(f"{new}: {old}" for new, old in self.columns.items())
            raise MissingFields(where, missing, f"task.columns={{{mapping}}} must name columns of the data", data)
        others = {key: value for key, value in data.items() if key not in self.columns.values()}
        return {**others, **{new: data[old] for new, old in self.columns.items()}}

    def _prompt_content(self, named: Mapping[str, Any], where: str) -> str | list[dict[str, str]]:
        """Return the prompt as text or messages, without the system turn. Raises UserError."""
        if self.prompt_template is not None:
            return render_template(self.prompt_template, named, where)
        if named.get("prompt") is None:
            needed = "set the prompt's column (task.columns={prompt: ...}), or task.prompt_template"
            raise MissingFields(where, ["prompt"], needed, named)
        prompt = named["prompt"]
        if isinstance(prompt, str) and prompt.strip():
            return prompt
        if is_conversation(prompt):
            unfit = conversation_error(prompt)
            if unfit is not None:
                raise UserError(f"{where}: prompt: {unfit}.")
            return [dict(message) for message in prompt]
        raise UserError(
            f'{where}: prompt must be text or a list of messages [{{"role": "user", "content": "..."}}]; got '
            f"{json.dumps(prompt, ensure_ascii=False)[:80]}. Use task.prompt_template to convert other columns."
        )

    def prompt(self, problem: Problem, tokenizer: Any) -> str:
        content = self._content(problem)
        if not (self.chat_template and has_template(tokenizer)):
            if not isinstance(content, str):
                raise UserError(
                    f"task.data={self.data!r}: prompts are messages, which need a chat template, but "
                    + ("task.chat_template=false." if has_template(tokenizer) else "the model has none.")
                    + " Set task.prompt_template."
                )
            return leading_bos(tokenizer) + "\n\n".join(filter(None, (self.system_prompt, content)))
        messages = [{"role": "user", "content": content}] if isinstance(content, str) else content
        if self.system_prompt is not None:
            messages = [{"role": "system", "content": self.system_prompt}, *messages]
        alternative = "set task.chat_template=false"
        if not isinstance(content, str):
            alternative = f"convert the messages to text with task.prompt_template and {alternative}"
        return chat_prompt(
            tokenizer, *conversation_variants(messages), alternative=alternative, options=self.chat_template_kwargs
        )

    def _content(self, problem: Problem) -> str | list[dict[str, str]]:
        return self._prompt_content(self._rename_columns(problem.data, problem.id), problem.id)

    # Rewards

    @cached_property
    def _functions(self) -> RewardFunctions:
        limits = self.reward_timeout, self.reward_memory
        return RewardFunctions([reward_function(reward, *limits) for reward in self.reward])

    @cached_property
    def _reported_columns(self) -> set[str]:
        return set()

    @cached_property
    def _tried_columns(self) -> set[tuple[str, ...]]:
        return set()

    def _try_functions(self, problems: Sequence[Problem]) -> None:
        """Call the functions on a few rows, once per set of columns. Raises UserError."""
        columns = tuple(self._reward_arguments(problems, ["" for _ in problems]))
        if not problems or columns in self._tried_columns:
            return
        self._functions.load()
        try:
            self._compute_rewards(problems, _TRIAL_RESPONSES[: len(problems)], [[0] for _ in problems], 0.0)
        except RunError as error:
            raise UserError(str(error)) from error
        self._tried_columns.add(columns)

    def judge_many(
        self,
        problems: Sequence[Problem],
        responses: Sequence[str],
        truncated: Sequence[bool],
        token_ids: Sequence[Sequence[int]] | None = None,
    ) -> list[Verdict]:
        """Return the verdicts, each function called once. Raises RunError for too many failures."""
        if not problems:
            return []
        results = self._compute_rewards(problems, responses, token_ids, self.reward_failures)
        labels = self.labels
        rows = list(zip(*(result.values for result in results), strict=True))
        judge = labels.index(self.judge_label)
        if any(row[judge] is None and any(isinstance(value, float) for value in row) for row in rows):
            self._functions.failures.warn_once(
                f"task.correct={self.judge_label}: returned None for completions that have another reward. They are "
                "trained on and count as incorrect. To judge all, set task.correct to a function that never returns "
                "None (weight 0 if it should not train)"
            )
        logged = {name: values for result in results for name, values in result.logged.items()}
        return [
            self._make_verdict(labels, values, response, {name: column[row] for name, column in logged.items()})
            for row, (response, values) in enumerate(zip(responses, rows, strict=True))
        ]

    def _compute_rewards(
        self,
        problems: Sequence[Problem],
        responses: Sequence[str],
        token_ids: Sequence[Sequence[int]] | None,
        share: float,
    ) -> list[Rewards]:
        columns: dict[str, Any] = self._reward_arguments(problems, responses)
        if token_ids is not None:
            columns["completion_ids"] = [list(ids) for ids in token_ids]
        return self._functions.compute(
            columns, len(problems), lambda row: describe_row(problems[row], responses[row]), share
        )

    def _make_verdict(
        self, labels: Sequence[str], values: Sequence[Value], response: str, logged: Mapping[str, Any]
    ) -> Verdict:
        failed = next((value for value in values if isinstance(value, RewardFailure)), None)
        components = {
            label: weight * value
            for label, weight, value in zip(labels, self.weights, values, strict=True)
            if isinstance(value, float)
        }
        reward, scorable = sum(components.values()), failed is None and any(value is not None for value in values)
        judged = values[labels.index(self.judge_label)]
        correct = scorable and isinstance(judged, float) and judged > self.threshold
        reason = failed.reason if failed else "correct" if correct else "unscored" if judged is None else "wrong"
        return Verdict(reward, components, correct, extract_vote(response), reason, scorable, logged)

    def _reward_arguments(self, problems: Sequence[Problem], responses: Sequence[str]) -> dict[str, list[Any]]:
        """Return the keyword arguments of a reward function, with a value per row."""
        rows = [self._rename_columns(problem.data, problem.id) for problem in problems]
        turns = [self._content(problem) for problem in problems]
        if self.messages:
            turns = [[{"role": "user", "content": turn}] if isinstance(turn, str) else turn for turn in turns]
        names = dict.fromkeys(key for row in rows for key in row if key not in _NOT_COLUMNS)
        return {
            "prompts": turns,
            "completions": [
                response if isinstance(prompt, str) else [{"role": "assistant", "content": response}]
                for prompt, response in zip(turns, responses, strict=True)
            ],
            "id": [problem.id for problem in problems],
            **{name: [row.get(name) for row in rows] for name in names},
        }
