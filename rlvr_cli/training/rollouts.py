"""Rollouts: sample completions for this process's problems, judge them, store them."""

from __future__ import annotations

import itertools
import json
import math
import random
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import RunError
from rlvr_cli.core.files import write_text
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
        parts, part_weights, greedy_rewards: as in methods.base.Rollout, if the advantage reads them, else empty.
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
        greedy: the greedy completion of each problem sampled in the rollout, if the advantage reads its reward.
        extra_tokens: tokens that this process sampled beyond the rollout's completions: greedy completions, and groups
            that dynamic sampling replaced.
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
        self.reward = Reward() if policy is None else policy.reward
        self.advantage = None if policy is None else policy.advantage
        self.model: Any = None
        self.weights: Callable[[], AbstractContextManager[None]] = nullcontext
        self.seconds = {"rollout": 0.0, "verify": 0.0}
        self.summary: dict[str, float | None] = {}
        self.unscored = 0

    def collect(self, rollout: int, problems: Sequence[int], first_row: int) -> RolloutBatch:
        """Sample and judge a completion for each entry of ``problems``, this process's rows from ``first_row`` on.

        A curriculum chooses other problems of that number.
        Replaces groups of equal rewards by other problems, at most ``rollout.dynamic_sampling`` times (DAPO,
        arXiv:2503.14476, section 3.2). A non-finite reward raises RunError, unless ``train.on_nonfinite`` is ``skip``.
        """
        self.rollout, self.first_row, self.replaced_groups = rollout, first_row, 0
        size = self.config.rollout.group_size
        if self.curriculum is not None:
            # Of each group of the rollout, in all processes.
            self.chosen = self.curriculum.choose(rollout, self.config.rollout.prompts)
            problems = [self.chosen[(first_row + row) // size] for row in range(len(problems))]
        self.slots = [_Slot(problem) for problem in problems]
        self.greedy: dict[int, _Greedy] = {}
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
                    self.curriculum.record(self.chosen[group], [False])
                    self.chosen[group] = problem
            resampled = [row for row in range(len(self.slots)) if (first_row + row) // size in fresh]
            for row in resampled:
                self.extra_tokens += len(self.slots[row].ids)
                self.slots[row] = _Slot(fresh[(first_row + row) // size])
            self._sample_and_judge(resampled, attempt)
        entropies = [slot.entropies for slot in self.slots if slot.entropies is not None]
        rewards, greedy_rewards = self._finite_rewards(self.slots), []
        if self.greedy:
            greedy_rewards = [self.greedy[slot.problem].baseline for slot in self.slots]
            # Without a baseline a completion is left out of the update, like one without a reward.
            rewards = [
                math.nan if math.isnan(baseline) else reward
                for reward, baseline in zip(rewards, greedy_rewards, strict=True)
            ]
        parts, part_weights = self._parts() if self.advantage is not None and self.advantage.needs_parts else ([], [])
        return RolloutBatch(
            prompt_ids=[slot.prompt for slot in self.slots],
            completion_ids=[slot.ids for slot in self.slots],
            log_probs=[slot.log_probs for slot in self.slots],
            entropies=entropies if len(entropies) == len(self.slots) else None,
            truncated=[slot.truncated for slot in self.slots],
            rewards=rewards,
            correct=[
                slot.control == 1 if self.reward.is_control else slot.verdict.correct != slot.flipped
                for slot in self.slots
            ],
            parts=parts,
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
            temperature=settings.temperature,
            top_p=settings.top_p,
            top_k=settings.top_k,
            min_p=settings.min_p,
            repetition_penalty=settings.repetition_penalty,
            stop=StopStrings(settings.stop, self.tokenizer) if settings.stop else None,
            extra=settings.generation_kwargs,
            max_rows=settings.batch,
        )
        if greedy:
            params = replace(params, temperature=0.0, top_p=1.0, top_k=0)
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
        if self.reward.is_control:
            for slot, reward in zip(slots, self._control_rewards(rows, attempt), strict=True):
                slot.control = reward
        if self.advantage is not None and self.advantage.needs_greedy:
            self._add_greedy()

    def _add_greedy(self) -> None:
        """Sample and judge a greedy completion of every distinct problem of the rollout that has none yet.

        The process with a problem's first row samples it; a collective operation.
        """
        rows = self.gather([{"problem": slot.problem} for slot in self.slots])
        first_rows = {row["problem"]: number for number, row in reversed(list(enumerate(rows)))}
        missing = [problem for problem in first_rows if problem not in self.greedy]
        if not missing:
            return
        here = range(self.first_row, self.first_row + len(self.slots))
        local = [problem for problem in missing if first_rows[problem] in here]
        slots = [_Slot(problem, flipped=self._is_flipped("greedy", problem)) for problem in local]
        self._fill(slots, local, ("greedy", self.rollout), greedy=True)
        self.extra_tokens += sum(len(slot.ids) for slot in slots)
        # In float32, as the rewards of a training.
        rewards = torch.tensor(self._finite_rewards(slots)).tolist()
        completions = [
            {"problem": slot.problem, "completion": _Greedy(reward, slot.verdict.correct, slot.text, len(slot.ids))}
            for slot, reward in zip(slots, rewards, strict=True)
        ]
        self.greedy |= {row["problem"]: row["completion"] for row in self.gather(completions)}

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
        for slot, ids, log_probs, truncated, entropies in zip(
            slots,
            completions.ids,
            completions.log_probs,
            completions.truncated,
            completions.entropies or itertools.repeat(None, len(slots)),
            strict=True,
        ):
            slot.prompt, slot.ids, slot.truncated = encoded[slot.problem], ids, truncated
            slot.log_probs = log_probs
            slot.entropies = entropies
        for slot, text, verdict in zip(slots, judged.texts, judged.verdicts, strict=True):
            slot.text, slot.verdict = text, verdict
        self.seconds["verify"] += judged.seconds
        self.seconds["rollout"] += time.perf_counter() - started - judged.seconds

    def _is_flipped(self, attempt: int | str, row: int) -> bool:
        seed = stream_seed(self.config.run.seed, "reward-noise", self.rollout, attempt, row)
        return self.reward.noise > 0 and random.Random(seed).random() < self.reward.noise

    def _control_rewards(self, rows: Sequence[int], attempt: int) -> list[float]:
        """Return the control's rewards of the slots ``rows``, whole groups over all processes; a collective call."""
        source, verdicts = self.reward.source, [self.slots[row].verdict for row in rows]
        if source == "majority":
            return self._majority_rewards(rows)
        if source == "random":
            keys = (("random-reward", self.rollout, attempt, self.first_row + row) for row in rows)
            return [random_reward(stream_seed(self.config.run.seed, *key), self.reward.probability) for key in keys]
        readable = [self._is_readable(verdict) for verdict in verdicts]
        if source == "incorrect":
            wrong = [verdict.answer is not None and not verdict.correct for verdict in verdicts]
            return [float(of_format and is_wrong) for of_format, is_wrong in zip(readable, wrong, strict=True)]
        return list(map(float, readable))

    def _is_readable(self, verdict: Verdict) -> bool:
        """Return whether the answer is in the requested format: by the reward's component, or an answer was found."""
        span = self.task.format_range
        return verdict.answer is not None if span is None else verdict.parts.get("format") == span[1]

    def _majority_rewards(self, rows: Sequence[int]) -> list[float]:
        size = self.config.rollout.group_size
        local = [(self.first_row + row, self.slots[row].verdict) for row in rows]
        answers: dict[int, dict[int, str | None]] = {}
        votes = [{"row": row, "answer": verdict.answer if verdict.scorable else None} for row, verdict in local]
        for vote in self.gather(votes):
            answers.setdefault(vote["row"] // size, {})[vote["row"]] = vote["answer"]
        groups = {row // size: answers[row // size] for row, _ in local}
        read = [[answer for answer in group.values() if answer is not None] for group in groups.values()]
        rewards: dict[int, float] = {}
        for group, same in zip(groups.values(), self.task.group_answers(read), strict=True):
            rewards |= zip(group, majority_rewards(list(group.values()), same), strict=True)
        return [rewards[row] for row, _ in local]

    def _groups_of_equal_rewards(self) -> list[int]:
        """Return the groups with equal rewards in float32, as in training, without unscorable completions.

        With an advantage that reads them: with equal parts of the reward; equal to the greedy completion's reward.
        """
        by_part = self.advantage is not None and self.advantage.needs_parts

        def values(slot: _Slot, reward: float) -> list[Any]:
            baselines = [self.greedy[slot.problem].baseline] if self.greedy else []
            if not slot.verdict.scorable or any(map(math.isnan, baselines)):
                return []
            return [*baselines, (reward, *sorted(slot.verdict.parts.items())) if by_part else reward]

        size = self.config.rollout.group_size
        in_float32 = torch.tensor(self._rewards(self.slots)).tolist()
        rows = self.gather([{"values": values(*pair)} for pair in zip(self.slots, in_float32, strict=True)])
        rewards = [
            {value for row in rows[first : first + size] for value in row["values"]}
            for first in range(0, len(rows) // size * size, size)
        ]
        return [group for group, distinct in enumerate(rewards) if len(distinct) <= 1]

    def _replacements(self, rollout: int, attempt: int, count: int) -> list[int]:
        """Return ``count`` problems from a permutation of all, different for every attempt."""
        indices = list(range(len(self.problems)))
        seed = stream_seed(self.config.run.seed, "dynamic-sampling", rollout, attempt)
        random.Random(seed).shuffle(indices)
        return [indices[position % len(indices)] for position in range(count)]

    def _parts(self) -> tuple[list[list[float]], list[float]]:
        """Return the parts of this process's rewards, and their weights, in one order for all processes."""
        local = {name for slot in self.slots for name in slot.verdict.parts}
        names = sorted({row["name"] for row in self.gather([{"name": name} for name in local])})
        return part_columns([slot.verdict.parts for slot in self.slots], names, self.task.part_weights)

    def _rewards(self, slots: Sequence[_Slot]) -> list[float]:
        if self.reward.is_control:
            return [slot.control if slot.verdict.scorable else math.nan for slot in slots]
        verdicts = (slot.verdict for slot in slots)
        verified = torch.tensor(
            [verdict.reward if verdict.scorable else math.nan for verdict in verdicts], dtype=torch.float64
        )
        flips = torch.tensor([slot.flipped for slot in slots])
        ranges = [self.task.range_of(self.problems[slot.problem]) for slot in slots]
        lowest, highest = torch.tensor(ranges, dtype=torch.float64).reshape(-1, 2).unbind(1)
        rewards: list[float] = flip(verified, flips, lowest, highest).tolist()
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

    def store(
        self,
        rewards: Sequence[float],
        advantages: Sequence[float],
        values: Sequence[float] | None,
        length_terms: Sequence[float] | None = None,
    ) -> None:
        """Write the rollout atomically to a file, and summarise it over all processes."""
        prompts = {
            index: self.task.prompt(self.problems[index], self.tokenizer)
            for index in dict.fromkeys(slot.problem for slot in self.slots)
        }
        records = [
            self._record(slot, prompts[slot.problem], reward, advantage, value)
            for slot, reward, advantage, value in zip(
                self.slots, rewards, advantages, values or itertools.repeat(None, len(self.slots)), strict=True
            )
        ]
        for record, term in zip(records, length_terms or (), strict=False):
            record["length_reward"] = term
        token_records = max(0, TOKEN_RECORD_GROUPS * self.config.rollout.group_size - self.first_row)
        for slot, record in zip(self.slots[:token_records], records, strict=False):
            record |= self._token_record(slot)
        rows = self.gather(records)
        self.summary = rollout_summary(
            rows,
            self.task.reasons,
            self.task.format_range,
            replaced=bool(self.reward.terms),
            by_subgroup=self.task.by_subgroup,
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

    def _record(self, slot: _Slot, prompt: str, reward: float, advantage: float, value: float | None) -> dict[str, Any]:
        problem, verdict = self.problems[slot.problem], slot.verdict
        log_prob = sum(slot.log_probs)
        entropy = math.nan if slot.entropies is None else sum(slot.entropies)
        finite = verdict.scorable and abs(verdict.reward) <= LARGEST_REWARD
        return {
            "problem": problem.id,
            "subgroup": problem.subgroup,
            "prompt": prompt,
            "completion": slot.text,
            "token_ids": slot.ids,
            "tokens": len(slot.ids),
            "log_prob": log_prob if math.isfinite(log_prob) else None,
            "entropy": entropy if math.isfinite(entropy) else None,
            "truncated": slot.truncated,
            "reward": reward if math.isfinite(reward) else None,
            "clean_reward": verdict.reward if finite else None,
            "parts": verdict.parts if finite else dict.fromkeys(verdict.parts, 0.0),
            "correct": verdict.correct,
            "scorable": verdict.scorable,
            "reason": verdict.reason,
            "answer": verdict.answer,
            "advantage": advantage,
            **({"greedy": self.greedy[slot.problem].record()} if self.greedy else {}),
            **({"logged": dict(verdict.logged)} if verdict.logged else {}),
            **({} if value is None else {"value": value if math.isfinite(value) else None}),
        }

    def _token_record(self, slot: _Slot) -> dict[str, Any]:
        """Return each token's text and its log-prob at the sampling temperature, to five digits (None = not finite)."""
        log_probs = [float(f"{value:.5g}") if math.isfinite(value) else None for value in slot.log_probs]
        return {"pieces": token_pieces(self.tokenizer, slot.ids), "log_probs": log_probs}


@dataclass(frozen=True)
class _Greedy:
    """The greedy completion of a prompt; its reward ``baseline`` is NaN if the verifier could not judge it."""

    baseline: float
    correct: bool
    text: str
    tokens: int

    def record(self) -> dict[str, Any]:
        reward = None if math.isnan(self.baseline) else self.baseline
        return {"reward": reward, "correct": self.correct, "tokens": self.tokens, "completion": self.text}


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
