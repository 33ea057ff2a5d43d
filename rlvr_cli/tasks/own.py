"""The task `own`: the user's rows, a prompt made of their columns, and reward functions with TRL's signature."""

from __future__ import annotations

import contextlib
import hashlib
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
from rlvr_cli.core.section import Contradiction, OneOrMore, Probability, Text
from rlvr_cli.core.terminal import tell
from rlvr_cli.core.text import did_you_mean
from rlvr_cli.core.user_code import without_folder
from rlvr_cli.tasks.base import Data, Task, vote
from rlvr_cli.tasks.files import text_problem
from rlvr_cli.tasks.hub import HubTable, split_hub_id, split_names
from rlvr_cli.tasks.problem import DataSplit, MissingFields, Problem, Split, Verdict, small_sample_note
from rlvr_cli.tasks.prompts import (
    are_messages,
    chat_prompt,
    has_template,
    leading_bos,
    spellings,
    template_writer,
    unfit_conversation,
)
from rlvr_cli.tasks.rewards import (
    LIMIT_KEYS,
    REWARD,
    MemoryMiB,
    RewardFailure,
    RewardFunctions,
    Rewards,
    Timeout,
    Value,
    reward_function,
    row_text,
)
from rlvr_cli.workers.template import template_problem

# Columns that TRL does not pass, since it passes its own values under these names.
_NOT_COLUMNS = ("prompt", "completion", "prompts", "completions", "completion_ids")
# Responses, one for each row, for the trial call of the functions.
_TRIAL_RESPONSES = ("I do not know.", "", "<think> 1 </think> <answer> 1 </answer>")
LongText = Annotated[str, StringConstraints(min_length=1, max_length=100_000)]


def _is_reward(written: str) -> str:
    if REWARD.fullmatch(written) is None:
        raise ValueError(f"{written!r} is not a function of a file; write FILE.py:FUNCTION, as my_rewards.py:accuracy")
    return written


RewardName = Annotated[Text, AfterValidator(_is_reward)]


def _in_file(match: re.Match[str]) -> str:
    """Name a reward function behind its file: `my_rewards.accuracy`."""
    return f"{local_path(match['file']).stem}.{match['name']}"


class Own(Task):
    """Your rows, judged by your reward functions."""

    reasons: ClassVar = ("correct", "wrong", "unscored", "error", "timeout", "died")
    runs_own_code: ClassVar = True
    rows_alike: ClassVar = True
    divides_train: ClassVar = True
    templateless: ClassVar = {"chat_template": (False,)}
    not_deciding: ClassVar = LIMIT_KEYS
    problem_keys: ClassVar = ("splits", "held_out")

    name: Literal["own"] = Field("own", description="own = your rows and reward functions.")
    data: Data = "data.jsonl"
    reward: Annotated[tuple[RewardName, ...], OneOrMore] = Field(
        (),
        description="Reward functions with TRL's signature, each as FILE.py:FUNCTION. A run keeps a copy of the file, "
        "and the first digits of its SHA-256 after an @.",
    )
    reward_weights: Annotated[tuple[float, ...], OneOrMore] = Field(
        (), description="Weight of each reward function in the sum; [] = 1 each."
    )
    reward_values: Annotated[tuple[float, ...], OneOrMore, Field(min_length=2, max_length=2)] = Field(
        (0.0, 1.0), description="Lowest and highest value of each function (not enforced)."
    )
    reward_timeout: Timeout = Field(
        60.0, description="Timeout of a call of a reward function, and of loading its file, in wall-clock seconds."
    )
    reward_memory: MemoryMiB = Field(16_384, description="Memory limit of a reward function in MiB.")
    reward_failures: Probability = Field(
        0.1,
        description="Largest share of a call's completions without a reward because a function failed; above it the "
        "run ends.",
    )
    correct: Text | None = Field(
        None, description="Reward function that determines whether a completion is correct; null = the first."
    )
    correct_above: float | None = Field(
        None,
        description="Threshold of that function's unweighted value, above which a completion is correct; null = the "
        "middle of reward_values.",
    )
    columns: dict[Text, Text] = Field(
        {},
        description="Other names for columns of the data: {prompt: question} reads the prompt from question.",
    )
    prompt_template: LongText | None = Field(
        None, description="The prompt as a Jinja template over the columns; null = the column prompt as it is."
    )
    system_prompt: LongText | None = Field(None, description="A system turn in front of every prompt.")
    chat_template: bool = Field(True, description="Apply the model's chat template, if it has one.")
    splits: dict[Literal["train", "dev", "test"], Text] = Field(
        {}, description="Names of the splits in a hub data set: {test: validation}."
    )
    held_out: Annotated[float, Field(gt=0.0, lt=0.5)] = Field(
        0.125,
        description="Share of the rows held out for test, and the same for dev, by a hash of the prompt, if the data "
        "has no such split.",
    )

    @property
    def settings(self) -> dict[str, Any]:
        """The settings without the folders of rewards, which are identified by their digests."""
        return {**super().settings, "reward": [without_folder(reward) for reward in self.reward]}

    @property
    def weights(self) -> tuple[float, ...]:
        return self.reward_weights or (1.0,) * len(self.reward)

    @property
    def reward_range(self) -> tuple[float, float]:
        ends = [sorted(weight * value for value in self.reward_values) for weight in self.weights]
        return sum(low for low, _ in ends), sum(high for _, high in ends)

    @property
    def labels(self) -> list[str]:
        """The name of each reward function in tables, prefixed by its file where several share it."""
        named = [match for match in map(REWARD.fullmatch, self.reward) if match]
        names = Counter(match["name"] for match in named)
        return [match["name"] if names[match["name"]] == 1 else _in_file(match) for match in named]

    @property
    def judge_label(self) -> str:
        """The reward function that decides whether a completion is correct."""
        return self.labels[0] if self.correct is None else self.correct

    @property
    def threshold(self) -> float:
        """The value of that function above which a completion is correct."""
        return sum(self.reward_values) / 2 if self.correct_above is None else self.correct_above

    def contradictions(self) -> Iterator[Contradiction]:
        yield from super().contradictions()
        if not self.reward:
            message = "task.name=own has no reward function: --reward FILE.py:FUNCTION, or task.reward=FILE.py:FUNCTION"
            yield Contradiction(("task.name", "task.reward"), message)
        if self.reward_weights and self.reward and len(self.reward_weights) != len(self.reward):
            yield Contradiction(
                ("task.reward_weights", "task.reward"),
                f"task.reward_weights has {len(self.reward_weights)} numbers and task.reward {len(self.reward)} "
                "functions. Give one number for each",
            )
        labels = Counter(_in_file(match) for match in map(REWARD.fullmatch, self.reward) if match)
        for label, times in labels.items():
            if times > 1:
                message = f"task.reward names {times} functions {label}, which tables could not tell apart. Rename one"
                yield Contradiction(("task.reward",), message)
        if self.reward and self.correct is not None and self.correct not in self.labels:
            hint = f"{did_you_mean(self.correct, self.labels)} Allowed: {', '.join(self.labels)}"
            message = f"task.correct={self.correct!r}: unknown reward function.{hint}"
            yield Contradiction(("task.correct", "task.reward"), message)
        if self.reward_values[0] >= self.reward_values[1]:
            message = f"task.reward_values={list(self.reward_values)}: the lowest value first, then the highest"
            yield Contradiction(("task.reward_values",), message)
        if self.prompt_template is not None and (wrong := template_problem(self.prompt_template)):
            yield Contradiction(("task.prompt_template",), f"task.prompt_template: {wrong}")

    # Rows

    def problem_from(self, fields: dict[str, Any], where: str) -> Problem:
        """Return a problem of a row's columns that are JSON values. Raises UserError."""
        data = self._json_columns({key: value for key, value in fields.items() if key != "id"}, where)
        content = self._prompt_content(self._rename_columns(data, where), where)
        text = content if isinstance(content, str) else "\n\n".join(message["content"] for message in content)
        subgroup = data.get("subgroup")
        return Problem(str(fields.get("id", where)), text, data, subgroup if isinstance(subgroup, str) else "all")

    def _json_columns(self, columns: Mapping[str, Any], where: str) -> dict[str, Any]:
        """Drop the columns whose values are not JSON, as timestamps and bytes. Raises UserError for NaN."""
        data = {}
        for column, value in columns.items():
            try:
                json.dumps(value, allow_nan=False)
            except TypeError:
                if column not in self._reported_columns:
                    self._reported_columns.add(column)
                    kind = type(value).__name__
                    tell(f"{self.data}: column {column} is left out: JSON has no values of its type ({kind}).")
            except ValueError as error:
                raise UserError(
                    f"{where}: column {column} is not a JSON value ({error}). Write a number or null."
                ) from error
            else:
                data[column] = value
        return data

    def load(self, split: DataSplit) -> list[Problem]:
        problems = super().load(split)
        # A column that only some rows have is None in the others, as in a table.
        columns = dict.fromkeys(key for problem in problems for key in problem.data)
        return [
            replace(problem, data=problem.data | {key: None for key in columns if key not in problem.data})
            for problem in problems
        ]

    def problems(self, split: DataSplit, count: int, seed: int) -> list[Problem]:
        problems = super().problems(split, count, seed)
        self._try(problems[: len(_TRIAL_RESPONSES)])
        return problems

    def check_before(self) -> None:
        """Load the functions, and call them on rows if those are local. Raises UserError."""
        self._functions.load()
        if local_path(self.data).exists():
            self.problems("train", len(_TRIAL_RESPONSES), 0)

    def about_data(self) -> str:
        rule = (
            f"where the data has no test or dev rows, a share of {self.held_out:g} is held out for each by "
            "a hash of the prompt (task.held_out)"
        )
        verdict = f"correct = {self.judge_label} above {self.threshold:g}"
        if self.correct_above is None and self.reward_values == (0.0, 1.0):
            verdict = f"correct = {self.judge_label} is 1, or above {self.threshold:g} where it is graded"
        verdict += " (task.correct, task.correct_above)"
        if not local_path(self.data).exists():
            return f"{self.data}: {rule}; {verdict}."
        counts: dict[Split, int] = {"train": 0, "dev": 0, "test": 0}
        for split in counts:
            with contextlib.suppress(UserError):
                counts[split] = len(super().load(split))
        counts["train"] = min(counts["train"], self.training_problems)
        rows = ", ".join(f"{number:,} {split}" if number else f"no {split}" for split, number in counts.items())
        return (
            f"{self.data}: {rows} rows; "
            + "; ".join(filter(None, (rule, verdict, small_sample_note(counts["test"]))))
            + "."
        )

    def divider(self, problem: Problem) -> str:
        named = self._rename_columns(problem.data, problem.id)
        return json.dumps(named.get("prompt", problem.data), sort_keys=True, ensure_ascii=False)

    def part_of(self, problem: Problem) -> Split:
        number = hashlib.sha256(self.divider(problem).encode("utf-8", "surrogatepass")).digest()[:8]
        share = int.from_bytes(number, "big") / 2**64
        return "test" if share < self.held_out else "dev" if share < 2 * self.held_out else "train"

    def hub_tables(self, hub_id: str, split: Split) -> list[HubTable]:
        theirs = self._hub_splits()
        return [HubTable(theirs.get(split, theirs["train"]))]

    def hub_share(self, problems: list[Problem], split: Split) -> list[Problem]:
        theirs = self._hub_splits()
        if split != "train" and split in theirs:
            return problems
        divided = [(problem, self.part_of(problem)) for problem in problems]
        return [problem for problem, ours in divided if (ours if ours not in theirs else "train") == split]

    def _hub_splits(self) -> dict[str, str]:
        """Map our splits to those of the hub data set. Raises UserError."""
        names = split_names(*split_hub_id(self.data))
        usual = {"train": ("train",), "dev": ("validation", "dev"), "test": ("test",)}
        splits = {split: name for split, usual_names in usual.items() for name in usual_names[::-1] if name in names}
        splits |= {str(split): theirs for split, theirs in self.splits.items()}
        wrong = [f"{split}: {theirs}" for split, theirs in self.splits.items() if theirs not in names]
        if wrong or "train" not in splits:
            lacking = ", ".join(wrong) or "split train"
            raise UserError(
                f"task.data={self.data!r}: has no {lacking}; it has {', '.join(names)}. "
                "Name them: task.splits={train: ...}."
            )
        return splits

    # Prompts

    def _rename_columns(self, data: Mapping[str, Any], where: str) -> dict[str, Any]:
        """Rename the columns by ``columns``. Raises UserError for a missing column."""
        missing = [old for old in self.columns.values() if old not in data]
        if missing:
            wanted = ", ".join(f"{new}: {old}" for new, old in self.columns.items())
            raise MissingFields(where, missing, f"task.columns={{{wanted}}} names columns of the data", data)
        others = {key: value for key, value in data.items() if key not in self.columns.values()}
        return {**others, **{new: data[old] for new, old in self.columns.items()}}

    def _prompt_content(self, named: Mapping[str, Any], where: str) -> str | list[dict[str, str]]:
        """Return the prompt as text or as messages, without the system turn. Raises UserError."""
        if self.prompt_template is not None:
            text = template_writer(self.prompt_template).write(named, where)
            if (unwritable := text_problem(text)) is not None:
                raise UserError(f"{where}: task.prompt_template: {unwritable}")
            return text
        if named.get("prompt") is None:
            needed = "set the prompt's column (task.columns={prompt: ...}), or task.prompt_template"
            raise MissingFields(where, ["prompt"], needed, named)
        prompt = named["prompt"]
        if isinstance(prompt, str) and prompt.strip():
            return prompt
        if are_messages(prompt):
            unfit = unfit_conversation(prompt)
            if unfit is not None:
                raise UserError(f"{where}: prompt: {unfit}.")
            return [dict(message) for message in prompt]
        raise UserError(
            f"{where}: prompt is {json.dumps(prompt, ensure_ascii=False)[:80]}; it must be text, or a list of messages "
            '[{"role": "user", "content": "..."}]. A template can write text: task.prompt_template.'
        )

    def prompt(self, problem: Problem, tokenizer: Any) -> str:
        content = self._question(problem)
        if not (self.chat_template and has_template(tokenizer)):
            if not isinstance(content, str):
                raise UserError(
                    f"task.data={self.data!r}: prompts are messages, which only a chat template can write, and "
                    + ("task.chat_template=false leaves it out." if has_template(tokenizer) else "the model has none.")
                    + " Write the prompt with task.prompt_template."
                )
            return leading_bos(tokenizer) + "\n\n".join(filter(None, (self.system_prompt, content)))
        messages = [{"role": "user", "content": content}] if isinstance(content, str) else content
        if self.system_prompt is not None:
            messages = [{"role": "system", "content": self.system_prompt}, *messages]
        instead = "set task.chat_template=false"
        if not isinstance(content, str):
            instead = f"write the messages as text with task.prompt_template and {instead}"
        return chat_prompt(tokenizer, *spellings(messages), instead=instead, options=self.chat_template_kwargs)

    def _question(self, problem: Problem) -> str | list[dict[str, str]]:
        return self._prompt_content(self._rename_columns(problem.data, problem.id), problem.id)

    # Rewards

    @cached_property
    def _functions(self) -> RewardFunctions:
        limits = self.reward_timeout, self.reward_memory
        return RewardFunctions([reward_function(reward, *limits) for reward in self.reward])

    @cached_property
    def _reported_columns(self) -> set[str]:
        """The columns whose omission was reported."""
        return set()

    @cached_property
    def _tried_columns(self) -> set[tuple[str, ...]]:
        """The columns of the rows on which the functions were called."""
        return set()

    def _try(self, problems: Sequence[Problem]) -> None:
        """Call the functions on a few rows, once for each set of columns. Raises UserError."""
        columns = tuple(self._columns(problems, ["" for _ in problems]))
        if not problems or columns in self._tried_columns:
            return
        self._functions.load()
        try:
            self._rewards(problems, _TRIAL_RESPONSES[: len(problems)], [[0] for _ in problems], 0.0)
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
        """Return the verdicts; call each function once, with all rows.

        Raises RunError where more completions than the share ``reward_failures`` have no reward, or none ever had one.
        """
        if not problems:
            return []
        results = self._rewards(problems, responses, token_ids, self.reward_failures)
        self._functions.check_silence(results, len(problems))
        labels = self.labels
        rows = list(zip(*(result.values for result in results), strict=True))
        judge = labels.index(self.judge_label)
        if any(row[judge] is None and any(isinstance(value, float) for value in row) for row in rows):
            self._functions.failures.warn_once(
                f"task.correct={self.judge_label}: it returned None for completions that have another reward. They are "
                "trained on and count as not correct; a function that is to judge all of them can have the weight 0 "
                "(task.reward_weights)"
            )
        logged = {name: values for result in results for name, values in result.logged.items()}
        return [
            self._verdict(labels, values, response, {name: column[row] for name, column in logged.items()})
            for row, (response, values) in enumerate(zip(responses, rows, strict=True))
        ]

    def _rewards(
        self,
        problems: Sequence[Problem],
        responses: Sequence[str],
        token_ids: Sequence[Sequence[int]] | None,
        share: float,
    ) -> list[Rewards]:
        columns: dict[str, Any] = self._columns(problems, responses)
        if token_ids is not None:
            columns["completion_ids"] = [list(ids) for ids in token_ids]
        return self._functions.rewards(
            columns, len(problems), lambda row: row_text(problems[row], responses[row]), share
        )

    def _verdict(
        self, labels: Sequence[str], values: Sequence[Value], response: str, logged: Mapping[str, Any]
    ) -> Verdict:
        failed = next((value for value in values if isinstance(value, RewardFailure)), None)
        weighted = [
            weight * value if isinstance(value, float) else 0.0
            for weight, value in zip(self.weights, values, strict=True)
        ]
        reward, scorable = sum(weighted), failed is None and any(value is not None for value in values)
        judged = values[labels.index(self.judge_label)]
        correct = scorable and isinstance(judged, float) and judged > self.threshold
        components = dict(zip(labels, weighted, strict=True))
        reason = failed.reason if failed else "correct" if correct else "unscored" if judged is None else "wrong"
        return Verdict(reward, components, correct, vote(response), reason, scorable, logged)

    def _columns(self, problems: Sequence[Problem], responses: Sequence[str]) -> dict[str, list[Any]]:
        """Return the keyword arguments of a reward function: one value a row in each."""
        rows = [self._rename_columns(problem.data, problem.id) for problem in problems]
        turns = [self._question(problem) for problem in problems]
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
