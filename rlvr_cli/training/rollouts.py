"""Rollouts: sample completions for this process's problems, judge them, store them."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import RunError
from rlvr_cli.core.files import finite, write_text
from rlvr_cli.core.streams import stream_seed
from rlvr_cli.evaluation.sampling import sample_and_judge
from rlvr_cli.methods.controls import majority_rewards, random_reward
from rlvr_cli.methods.gdpo import part_columns
from rlvr_cli.methods.reward import Reward, flip
from rlvr_cli.models.load import eos_token_ids, token_pieces
from rlvr_cli.models.sampling.engine import Completions, Engine, OnDone, SamplingParams, StopStrings
from rlvr_cli.tasks.base import Task, prompt_ids
from rlvr_cli.tasks.problem import Problem, Verdict
from rlvr_cli.training.curriculum import Curriculum
from rlvr_cli.training.metrics import rollout_summary
from rlvr_cli.workers.reward import LARGEST_REWARD, NUMBER

# Groups of each rollout that are recorded token by token.
TOKEN_RECORD_GROUPS = 2


@dataclass(frozen=True)
class RolloutBatch:
    """Completions of one process.

    Attributes:
        prompt_ids, completion_ids: tokens, row by row.
        log_probs: of each token under the sampler at the sampling temperature; empty if not requested.
        entropies: of the same distributions, in nats; None if the sampler does not compute them.
        truncated: whether a completion was cut at the maximum length.
        rewards: NaN for a row excluded from training. correct: the verdicts for training, flipped with the rewards
            (reward noise), or whether a control's reward is 1. Both empty if nothing was judged.
        parts, part_weights, greedy_rewards: as in methods.base.Rollout; empty unless the advantage reads them.
    """

    prompt_ids: list[list[int]]
    completion_ids: list[list[int]]
    log_probs: list[list[float]] = field(default_factory=list)
    entropies: list[list[float]] | None = None
    truncated: list[bool] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    correct: list[bool] = field(default_factory=list)
    parts: list[list[float]] = field(default_factory=list)
    part_weights: list[float] = field(default_factory=list)
    greedy_rewards: list[float] = field(default_factory=list)


class RolloutSource:
    """Samples, judges and stores the rollouts of a run.

    Args:
        gather: concatenates lists over processes, in the order of the processes.
        main: whether this process writes files.
        on_tokens: called with the number of tokens sampled since the last call.
        curriculum: chooses the problems of each rollout; None = the caller does.

    Attributes:
        model: the policy. weights: context around each call of the engine, which prepares its weights.
        greedy: problem -> record of its greedy completion, if the advantage reads the reward of that.
        extra_tokens: tokens that this process sampled for greedy completions and for groups that were replaced.
        seconds: time of `rollout`, sampling with concurrent judging, and `verify`, judging after the last completion.
    """

    def __init__(
        self,
        config: Config,
        task: Task,
        problems: Sequence[Problem],
        tokenizer: Any,
        engine: Engine,
        folder: Path,
        *,
        gather: Callable[[list[dict[str, Any]]], list[dict[str, Any]]],
        main: bool,
        on_tokens: Callable[[int], None],
        curriculum: Curriculum | None = None,
    ) -> None:
        self.config, self.task, self.problems, self.tokenizer = config, task, problems, tokenizer
        self.engine, self.folder = engine, folder
        self.gather, self.main, self.on_tokens = gather, main, on_tokens
        self.curriculum = curriculum
        policy = config.method.policy
        self.reward, advantage = (Reward(), None) if policy is None else (policy.reward, policy.advantage)
        self.needs_parts = advantage is not None and advantage.needs_parts
        self.needs_greedy = advantage is not None and advantage.needs_greedy
        self.compares_verdicts = advantage is not None and advantage.needs_correct and advantage.compares_group
        self.model: Any = None
        self.weights: Callable[[], AbstractContextManager[None]] = nullcontext
        self.seconds = {"rollout": 0.0, "verify": 0.0}
        self.summary: dict[str, float | None] = {}
        self.unscored = 0

    def collect(self, rollout: int, problems: Sequence[int], first_row: int) -> RolloutBatch:
        """Sample and judge a completion for each entry of ``problems``, this process's rows from ``first_row`` on.

        A curriculum chooses the problems instead.
        Replaces groups of equal rewards by other problems, at most ``rollout.dynamic_sampling`` times (DAPO,
        arXiv:2503.14476, section 3.2). A non-finite reward raises RunError, unless ``train.on_nonfinite`` is ``skip``.
        """
        self.rollout, self.first_row, self.replaced_groups = rollout, first_row, 0
        size = self.config.rollout.group_size
        if self.curriculum is not None:
            # The problem of each group in all processes.
            self.chosen = self.curriculum.choose(rollout, self.config.rollout.prompts)
            problems = [self.chosen[(first_row + row) // size] for row in range(len(problems))]
        self.slots = [_Slot(problem) for problem in problems]
        self.greedy: dict[int, dict[str, Any]] = {}
        self.extra_tokens = 0
        self._sample_and_judge(range(len(self.slots)), attempt=0)
        for attempt in range(1, self.config.rollout.dynamic_sampling + 1):
            equal = self._groups_of_equal_rewards()
            if not equal:
                break
            self.replaced_groups += len(equal)
            fresh = dict(zip(equal, self._replacements(rollout, attempt, len(equal)), strict=True))
            if self.curriculum is not None:
                for group, problem in fresh.items():
                    self.curriculum.record(self.chosen[group], equal[group])
                    self.chosen[group] = problem
            resampled = [row for row in range(len(self.slots)) if (first_row + row) // size in fresh]
            for row in resampled:
                self.extra_tokens += len(self.slots[row].ids)
                self.slots[row] = _Slot(fresh[(first_row + row) // size])
            self._sample_and_judge(resampled, attempt)
        entropies = [slot.entropies for slot in self.slots if slot.entropies is not None]
        rewards, greedy_rewards = self._finite_rewards(self.slots), []
        if self.greedy:
            greedy_rewards = [self._baseline(slot) for slot in self.slots]
            # A completion without a baseline is left out of the update, like one without a reward.
            rewards = [
                math.nan if math.isnan(baseline) else reward
                for reward, baseline in zip(rewards, greedy_rewards, strict=True)
            ]
        reward_parts, part_weights = self._reward_parts() if self.needs_parts else ([], [])
        return RolloutBatch(
            prompt_ids=[slot.prompt for slot in self.slots],
            completion_ids=[slot.ids for slot in self.slots],
            log_probs=[slot.log_probs for slot in self.slots],
            entropies=entropies if len(entropies) == len(self.slots) else None,
            truncated=[slot.truncated for slot in self.slots],
            rewards=rewards,
            correct=[self._is_correct(slot) for slot in self.slots],
            parts=reward_parts,
            part_weights=part_weights,
            greedy_rewards=greedy_rewards,
        )

    def sample_before_training(self, problems: Sequence[int]) -> RolloutBatch:
        """Sample a completion for each of ``problems`` from separate random streams; neither judge nor record it."""
        started = time.perf_counter()
        prompts = [prompt_ids(self.task, self.problems[index], self.tokenizer) for index in problems]
        completions = self._sample(prompts, problems, ("initial-entropy",), None)
        self.seconds["rollout"] += time.perf_counter() - started
        return RolloutBatch(prompts, completions.ids, entropies=completions.entropies)

    def _sample(
        self,
        prompts: Sequence[list[int]],
        keys: Sequence[int],
        stream: tuple[str | int, ...],
        on_done: OnDone | None,
        *,
        greedy: bool = False,
    ) -> Completions:
        settings = self.config.rollout
        params = SamplingParams(
            max_new_tokens=settings.max_new_tokens,
            eos_token_ids=eos_token_ids(self.model, self.tokenizer),
            seed=stream_seed(self.config.run.seed, *stream),
            temperature=0.0 if greedy else settings.temperature,
            top_p=settings.top_p,
            top_k=settings.top_k,
            min_p=settings.min_p,
            repetition_penalty=settings.repetition_penalty,
            stop=StopStrings(settings.stop, self.tokenizer) if settings.stop else None,
            extra=settings.generation_kwargs,
            max_rows=settings.batch,
        )
        with self.weights():
            return self.engine(self.model, prompts, params, keys=keys, on_progress=self.on_tokens, on_done=on_done)

    def _sample_and_judge(self, rows: Sequence[int], attempt: int) -> None:
        """Fill the slots ``rows`` of this process.

        A completion's random stream depends on the rollout, the attempt and its row in the whole batch, not on the
        number of processes.
        """
        slots = [self.slots[row] for row in rows]
        for row, slot in zip(rows, slots, strict=True):
            slot.flipped = self._is_flipped(attempt, self.first_row + row)
        stream = ("rollout", self.rollout, *(("attempt", attempt) if attempt else ()))
        self._fill(slots, [self.first_row + row for row in rows], stream)
        if self.reward.source == "majority":
            self._set_majority_rewards(rows)
        elif self.reward.is_control:
            for row, slot in zip(rows, slots, strict=True):
                slot.control = self._control_reward(slot, attempt, self.first_row + row)
        if self.needs_greedy:
            self._add_greedy()

    def _add_greedy(self) -> None:
        """Sample and judge a greedy completion of every distinct problem of the rollout that has none yet.

        The process of a problem's first row samples it. A collective operation.
        """
        rows = self.gather([{"problem": slot.problem} for slot in self.slots])
        first_rows = {row["problem"]: number for number, row in reversed(list(enumerate(rows)))}
        if first_rows.keys() <= self.greedy.keys():
            return
        here = range(self.first_row, self.first_row + len(self.slots))
        local = [problem for problem, row in first_rows.items() if problem not in self.greedy and row in here]
        slots = [_Slot(problem, flipped=self._is_flipped("greedy", problem)) for problem in local]
        self._fill(slots, local, ("greedy", self.rollout), greedy=True)
        self.extra_tokens += sum(len(slot.ids) for slot in slots)
        # In float32, as the rewards of a training.
        rewards = torch.tensor(self._finite_rewards(slots)).tolist()
        records = [
            {
                "reward": finite(reward),
                "correct": slot.verdict.correct,
                "tokens": len(slot.ids),
                "completion": slot.text,
            }
            for slot, reward in zip(slots, rewards, strict=True)
        ]
        named = [{"problem": problem, "greedy": record} for problem, record in zip(local, records, strict=True)]
        self.greedy |= {row["problem"]: row["greedy"] for row in self.gather(named)}

    def _baseline(self, slot: _Slot) -> float:
        """Return the reward of the greedy completion; NaN if it could not be judged."""
        reward = self.greedy[slot.problem]["reward"]
        return math.nan if reward is None else reward

    def _fill(
        self, slots: Sequence[_Slot], keys: Sequence[int], stream: tuple[str | int, ...], *, greedy: bool = False
    ) -> None:
        """Sample and judge a completion for each of ``slots``."""
        started = time.perf_counter()
        encoded = {
            index: prompt_ids(self.task, self.problems[index], self.tokenizer)
            for index in dict.fromkeys(slot.problem for slot in slots)
        }

        def sample(on_done: OnDone | None) -> Completions:
            prompts = [encoded[slot.problem] for slot in slots]
            return self._sample(prompts, keys, stream, on_done, greedy=greedy)

        stops = eos_token_ids(self.model, self.tokenizer)
        problems = [self.problems[slot.problem] for slot in slots]
        judged = sample_and_judge(sample, self.task, problems, self.tokenizer, stops)
        completions = judged.completions
        for row, slot in enumerate(slots):
            slot.prompt, slot.ids = encoded[slot.problem], completions.ids[row]
            slot.log_probs, slot.truncated = completions.log_probs[row], completions.truncated[row]
            slot.entropies = None if completions.entropies is None else completions.entropies[row]
            slot.text, slot.verdict = judged.texts[row], judged.verdicts[row]
        self.seconds["verify"] += judged.seconds
        self.seconds["rollout"] += time.perf_counter() - started - judged.seconds

    def _is_flipped(self, attempt: int | str, row: int) -> bool:
        seed = stream_seed(self.config.run.seed, "reward-noise", self.rollout, attempt, row)
        return self.reward.noise > 0 and random.Random(seed).random() < self.reward.noise

    def _control_reward(self, slot: _Slot, attempt: int, row: int) -> float:
        if self.reward.source == "random":
            seed = stream_seed(self.config.run.seed, "random-reward", self.rollout, attempt, row)
            return random_reward(seed, self.reward.probability)
        verdict, format_range = slot.verdict, self.task.task_of(self.problems[slot.problem]).format_range
        has_answer = verdict.answer is not None
        readable = has_answer if format_range is None else verdict.parts.get("format") == format_range[1]
        return float(readable and (self.reward.source == "format" or (has_answer and not verdict.correct)))

    def _set_majority_rewards(self, rows: Sequence[int]) -> None:
        """Reward the slots ``rows``, whole groups over all processes; a collective operation."""
        size, local = self.config.rollout.group_size, {self.first_row + row: self.slots[row] for row in rows}
        votes = [
            {"row": row, "answer": slot.verdict.answer if slot.verdict.scorable else None}
            for row, slot in local.items()
        ]
        groups: dict[int, dict[int, str | None]] = {}
        for vote in self.gather(votes):
            groups.setdefault(vote["row"] // size, {})[vote["row"]] = vote["answer"]
        for answers in groups.values():
            here = [row for row in answers if row in local]
            if not here:
                continue
            task = self.task.task_of(self.problems[local[here[0]].problem])
            [same] = task.group_answers([[answer for answer in answers.values() if answer is not None]])
            rewards = dict(zip(answers, majority_rewards(list(answers.values()), same), strict=True))
            for row in here:
                local[row].control = rewards[row]

    def _groups_of_equal_rewards(self) -> dict[int, list[bool]]:
        """Return the groups of equal rewards, with the verdicts on their scorable completions.

        Their rewards are equal in float32, as in training, or what the advantage compares instead: the training
        verdicts, the parts of the rewards, or the rewards and the greedy completion's.
        """

        def values(slot: _Slot, reward: float) -> list[Any]:
            baselines = [self._baseline(slot)] if self.greedy else []
            if not slot.verdict.scorable or any(map(math.isnan, baselines)):
                return []
            if self.compares_verdicts:
                return [self._is_correct(slot)]
            return [*baselines, (reward, *sorted(slot.verdict.parts.items())) if self.needs_parts else reward]

        size = self.config.rollout.group_size
        in_float32 = torch.tensor(self._rewards(self.slots)).tolist()
        rows = self.gather(
            [
                {"values": values(slot, reward), "correct": [slot.verdict.correct] * slot.verdict.scorable}
                for slot, reward in zip(self.slots, in_float32, strict=True)
            ]
        )
        groups = {first // size: rows[first : first + size] for first in range(0, len(rows) // size * size, size)}
        return {
            group: [correct for row in of_group for correct in row["correct"]]
            for group, of_group in groups.items()
            if len({value for row in of_group for value in row["values"]}) <= 1
        }

    def _is_correct(self, slot: _Slot) -> bool:
        """Return the verdict for training: flipped with the reward, or whether a control's reward is 1."""
        return slot.control == 1 if self.reward.is_control else slot.verdict.correct != slot.flipped

    def _replacements(self, rollout: int, attempt: int, count: int) -> list[int]:
        """Return ``count`` problems from a permutation of all, different for every attempt."""
        indices = list(range(len(self.problems)))
        seed = stream_seed(self.config.run.seed, "dynamic-sampling", rollout, attempt)
        random.Random(seed).shuffle(indices)
        return [indices[position % len(indices)] for position in range(count)]

    def _reward_parts(self) -> tuple[list[list[float]], list[float]]:
        """Return the parts of this process's rewards, and their weights, in one order for all processes."""
        local = {name for slot in self.slots for name in slot.verdict.parts}
        names = sorted({row["name"] for row in self.gather([{"name": name} for name in local])})
        return part_columns([slot.verdict.parts for slot in self.slots], names, self.task.part_weights)

    def _rewards(self, slots: Sequence[_Slot]) -> list[float]:
        if self.reward.is_control:
            return [slot.control if slot.verdict.scorable else math.nan for slot in slots]
        verified = [slot.verdict.reward if slot.verdict.scorable else math.nan for slot in slots]
        flips = torch.tensor([slot.flipped for slot in slots])
        ranges = [self.task.task_of(self.problems[slot.problem]).reward_range for slot in slots]
        lowest, highest = torch.tensor(ranges, dtype=torch.float64).reshape(-1, 2).unbind(1)
        rewards: list[float] = flip(torch.tensor(verified, dtype=torch.float64), flips, lowest, highest).tolist()
        return rewards

    def _finite_rewards(self, slots: Sequence[_Slot]) -> list[float]:
        """Return the reward of every slot; NaN excludes it from the update and its group's baseline."""
        rewards = self._rewards(slots)
        stops = self.config.train.on_nonfinite == "stop"
        for slot, reward in zip(slots, rewards, strict=True):
            if stops and slot.verdict.scorable and not abs(reward) <= LARGEST_REWARD:
                components = ", ".join(f"{name} {value:g}" for name, value in slot.verdict.parts.items())
                raise RunError(
                    f"rollout {self.rollout}: the reward of a completion of problem {self.problems[slot.problem].id} "
                    f"must be {NUMBER}; got {reward:g} ({components}). The weights are unchanged. Set "
                    "train.on_nonfinite=skip to exclude such completions."
                )
        return [reward if abs(reward) <= LARGEST_REWARD else math.nan for reward in rewards]

    def store(self, rewards: Sequence[float], advantages: Sequence[float], **others: Sequence[float]) -> None:
        """Write the rollout atomically to a file, and summarise it over all processes.

        ``others``: further columns of the records, as `value`.
        """
        prompts = {
            index: self.task.prompt(self.problems[index], self.tokenizer)
            for index in dict.fromkeys(slot.problem for slot in self.slots)
        }
        records = [
            self._record(slot, prompts[slot.problem], reward, advantage)
            | {name: finite(column[row]) for name, column in others.items()}
            for row, (slot, reward, advantage) in enumerate(zip(self.slots, rewards, advantages, strict=True))
        ]
        token_records = max(0, TOKEN_RECORD_GROUPS * self.config.rollout.group_size - self.first_row)
        for slot, record in zip(self.slots[:token_records], records, strict=False):
            record |= self._token_record(slot)
        rows, task = self.gather(records), self.task
        self.summary = rollout_summary(
            rows, task.reasons, task.format_range, replaced=bool(self.reward.terms), by_subgroup=task.by_subgroup
        )
        if self.greedy or self.config.rollout.dynamic_sampling:
            extra = self.gather([{"tokens": self.extra_tokens}])
            self.summary["extra_tokens"] = float(sum(row["tokens"] for row in extra))
        if self.config.rollout.dynamic_sampling:
            self.summary["replaced_groups"] = float(self.replaced_groups)
        if self.curriculum is not None:
            size = self.config.rollout.group_size
            for group, problem in enumerate(self.chosen):
                of_group = rows[group * size : (group + 1) * size]
                self.curriculum.record(problem, [row["correct"] for row in of_group if row["scorable"]])
            self.summary |= self.curriculum.summary()
        self.unscored = sum(row["clean_reward"] is None and row["scorable"] for row in rows)
        if self.main:
            lines = (json.dumps(row, allow_nan=False, ensure_ascii=False) + "\n" for row in rows)
            write_text(self.folder / f"rollout-{self.rollout:06d}.jsonl", "".join(lines))

    def _record(self, slot: _Slot, prompt: str, reward: float, advantage: float) -> dict[str, Any]:
        problem, verdict = self.problems[slot.problem], slot.verdict
        scored = verdict.scorable and abs(verdict.reward) <= LARGEST_REWARD
        return {
            "problem": problem.id,
            "subgroup": problem.subgroup,
            "prompt": prompt,
            "completion": slot.text,
            "token_ids": slot.ids,
            "tokens": len(slot.ids),
            "log_prob": finite(sum(slot.log_probs)),
            "entropy": None if slot.entropies is None else finite(sum(slot.entropies)),
            "truncated": slot.truncated,
            "reward": finite(reward),
            "clean_reward": verdict.reward if scored else None,
            "parts": verdict.parts if scored else dict.fromkeys(verdict.parts, 0.0),
            "correct": verdict.correct,
            "scorable": verdict.scorable,
            "reason": verdict.reason,
            "answer": verdict.answer,
            "advantage": advantage,
            **({"greedy": self.greedy[slot.problem]} if self.greedy else {}),
            **({"logged": dict(verdict.logged)} if verdict.logged else {}),
        }

    def _token_record(self, slot: _Slot) -> dict[str, Any]:
        """Return each token's text and its log-prob at the sampling temperature, to five digits (None = not finite)."""
        log_probs = [finite(float(f"{value:.5g}")) for value in slot.log_probs]
        return {"pieces": token_pieces(self.tokenizer, slot.ids), "log_probs": log_probs}


@dataclass
class _Slot:
    problem: int
    prompt: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    entropies: list[float] | None = None
    truncated: bool = False
    text: str = ""
    flipped: bool = False
    control: float = 0.0
    verdict: Verdict = field(init=False)
