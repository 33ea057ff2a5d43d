"""A rollout: sample completions for the problems of this process, judge them, keep them on disk."""

from __future__ import annotations

import itertools
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
from rlvr_cli.core.files import write_text
from rlvr_cli.core.streams import stream_seed
from rlvr_cli.evaluation.sampling import sample_and_judge
from rlvr_cli.methods.reward import flip
from rlvr_cli.models.load import eos_token_ids, token_pieces
from rlvr_cli.models.sampling.engine import Completions, Engine, OnDone, SamplingParams
from rlvr_cli.tasks.base import Task, prompt_ids
from rlvr_cli.tasks.problem import Problem, Verdict
from rlvr_cli.training.metrics import rollout_summary
from rlvr_cli.workers.reward import LARGEST_REWARD, NUMBER

# Groups of each rollout whose completions are recorded token by token: enough to look at, little to store.
GROUPS_BY_TOKEN = 2


def problem_order(problems: int, rows: int, seed: int) -> list[int]:
    """Indices of the problems in the order of training: ``rows`` of them, a fresh permutation for each epoch.

    A longer run starts with the order of a shorter one, so both see the same problems as far as they go.
    """
    order: list[int] = []
    epoch = 0
    while len(order) < rows:
        indices = list(range(problems))
        random.Random(stream_seed(seed, "problem-order", epoch)).shuffle(indices)
        order.extend(indices)
        epoch += 1
    return order[:rows]


@dataclass(frozen=True)
class RolloutBatch:
    """Completions of one process.

    Attributes:
        prompt_ids, completion_ids: tokens, row by row.
        log_probs: for every token the log-prob that its sampler gave it at the sampling temperature; none where the
            sampler was not asked.
        entropies: in nats at those tokens' positions, of the same distributions; None where the sampler cannot tell.
        truncated: whether a completion was cut off at its longest length.
        rewards: NaN for a row that must not be learned from. correct: the verdicts, mirrored where rewards are. Both
            empty where nothing was judged.
    """

    prompt_ids: list[list[int]]
    completion_ids: list[list[int]]
    log_probs: list[list[float]] = field(default_factory=list)
    entropies: list[list[float]] | None = None
    truncated: list[bool] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    correct: list[bool] = field(default_factory=list)


class RolloutSource:
    """Samples, judges and stores the rollouts of a run.

    Args:
        gather: lists of every process, joined in the order of the processes.
        main: whether this process writes files.
        on_tokens: told how many tokens were sampled since the last call.

    Attributes:
        model: the policy that is sampled. weights: entered around each call of the engine; makes its weights ready.
        seconds: spent on `rollout`, which is sampling and what is judged meanwhile, and on `verify`, which is judging
            after the last completion was sampled.
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
    ) -> None:
        self.config, self.task, self.problems, self.tokenizer = config, task, problems, tokenizer
        self.engine, self.folder = engine, folder
        self.gather, self.main, self.on_tokens = gather, main, on_tokens
        policy = config.method.policy
        self.noise = 0.0 if policy is None else policy.reward.noise
        self.replaced = policy is not None and bool(policy.reward.terms)
        self.model: Any = None
        self.weights: Callable[[], AbstractContextManager[None]] = nullcontext
        self.seconds = {"rollout": 0.0, "verify": 0.0}
        self.summary: dict[str, float | None] = {}
        self.unscored = 0

    def collect(self, rollout: int, problems: Sequence[int], first_row: int) -> RolloutBatch:
        """One judged completion for each entry of ``problems``, the rows of this process from ``first_row`` on.

        With ``rollout.dynamic_sampling``, groups whose rewards are all equal are replaced by groups of other problems,
        as often as it says (DAPO, arXiv:2503.14476, section 3.2); what is still equal then stays.

        Raises RunError for a reward of a scored completion that is not finite, unless ``train.on_nonfinite`` is
        ``skip``; then the completion has no part in the update.
        """
        self.rollout, self.first_row = rollout, first_row
        self.slots = [_Slot(problem) for problem in problems]
        self._fill(range(len(self.slots)), attempt=0)
        for attempt in range(1, self.config.rollout.dynamic_sampling + 1):
            equal = self._groups_of_equal_rewards()
            if not equal:
                break
            size = self.config.rollout.group_size
            fresh = dict(zip(equal, self._replacements(rollout, attempt, len(equal)), strict=True))
            again = [row for row in range(len(self.slots)) if (first_row + row) // size in fresh]
            for row in again:
                self.slots[row] = _Slot(fresh[(first_row + row) // size])
            self._fill(again, attempt)
        entropies = [slot.entropies for slot in self.slots if slot.entropies is not None]
        return RolloutBatch(
            prompt_ids=[slot.prompt for slot in self.slots],
            completion_ids=[slot.ids for slot in self.slots],
            log_probs=[slot.log_probs for slot in self.slots],
            entropies=entropies if len(entropies) == len(self.slots) else None,
            truncated=[slot.truncated for slot in self.slots],
            rewards=self._finite_rewards(),
            correct=[slot.verdict.correct != slot.flipped for slot in self.slots],
        )

    def before_training(self, problems: Sequence[int]) -> RolloutBatch:
        """Sample one completion for each of ``problems`` from separate random streams; nothing is recorded."""
        started = time.perf_counter()
        prompts = [prompt_ids(self.task, self.problems[index], self.tokenizer) for index in problems]
        completions = self._sampled(prompts, problems, ("initial-entropy",), None)
        self.seconds["rollout"] += time.perf_counter() - started
        return RolloutBatch(prompts, completions.ids, entropies=completions.entropies)

    def _sampled(
        self, prompts: Sequence[list[int]], keys: Sequence[int], stream: tuple[str | int, ...], on_done: OnDone | None
    ) -> Completions:
        settings = self.config.rollout
        params = SamplingParams(
            max_new_tokens=settings.max_new_tokens,
            eos_token_ids=eos_token_ids(self.model, self.tokenizer),
            seed=stream_seed(self.config.run.seed, *stream),
            temperature=settings.temperature,
            top_p=settings.top_p,
            top_k=settings.top_k,
            max_rows=settings.batch,
        )
        with self.weights():
            return self.engine(self.model, prompts, params, keys=keys, on_progress=self.on_tokens, on_done=on_done)

    def _fill(self, rows: Sequence[int], attempt: int) -> None:
        """Sample and judge completions for ``rows`` of this process.

        The random stream of a completion is named by the rollout, the attempt and its row in the whole batch, so it
        is the same however many processes share the work.
        """
        started = time.perf_counter()
        slots = [self.slots[row] for row in rows]
        encoded = {
            index: prompt_ids(self.task, self.problems[index], self.tokenizer)
            for index in dict.fromkeys(slot.problem for slot in slots)
        }
        stream = ("rollout", self.rollout, *(("attempt", attempt) if attempt else ()))

        def sampled(on_done: OnDone | None) -> Completions:
            prompts = [encoded[slot.problem] for slot in slots]
            return self._sampled(prompts, [self.first_row + row for row in rows], stream, on_done)

        stops = eos_token_ids(self.model, self.tokenizer)
        chosen = [self.problems[slot.problem] for slot in slots]
        judged = sample_and_judge(sampled, self.task, chosen, self.tokenizer, stops)
        completions = judged.completions
        for row, slot, ids, log_probs, truncated, entropies in zip(
            rows,
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
            slot.flipped = self._flipped(self.first_row + row, attempt)
        for slot, text, verdict in zip(slots, judged.texts, judged.verdicts, strict=True):
            slot.text, slot.verdict = text, verdict
        self.seconds["verify"] += judged.seconds
        self.seconds["rollout"] += time.perf_counter() - started - judged.seconds

    def _flipped(self, row: int, attempt: int) -> bool:
        seed = stream_seed(self.config.run.seed, "reward-noise", self.rollout, attempt, row)
        return self.noise > 0 and random.Random(seed).random() < self.noise

    def _groups_of_equal_rewards(self) -> list[int]:
        """The groups of the whole batch in which no two rewards differ, in order; what is unscorable has none.

        In float32, as training has them: sums of the same parts in another order differ in float64 alone.
        """
        size = self.config.rollout.group_size
        rows = self.gather(
            [
                {"reward": reward, "scorable": slot.verdict.scorable}
                for reward, slot in zip(torch.tensor(self._rewards()).tolist(), self.slots, strict=True)
            ]
        )
        rewards = [
            {row["reward"] for row in rows[first : first + size] if row["scorable"]}
            for first in range(0, len(rows) // size * size, size)
        ]
        return [group for group, different in enumerate(rewards) if len(different) <= 1]

    def _replacements(self, rollout: int, attempt: int, count: int) -> list[int]:
        """Return problems to replace groups of equal rewards: a permutation of all, different for every attempt."""
        indices = list(range(len(self.problems)))
        seed = stream_seed(self.config.run.seed, "dynamic-sampling", rollout, attempt)
        random.Random(seed).shuffle(indices)
        return [indices[position % len(indices)] for position in range(count)]

    def _rewards(self) -> list[float]:
        judged = (slot.verdict for slot in self.slots)
        verified = torch.tensor(
            [verdict.reward if verdict.scorable else math.nan for verdict in judged], dtype=torch.float64
        )
        flips = torch.tensor([slot.flipped for slot in self.slots])
        rewards: list[float] = flip(verified, flips, *self.task.reward_range).tolist()
        return rewards

    def _finite_rewards(self) -> list[float]:
        """The reward of every row, NaN where it has no part in the update, nor in its group's baseline.

        ``method.reward.noise`` mirrors the reward of that share of completions in the task's range.
        """
        rewards = self._rewards()
        stops = self.config.train.on_nonfinite == "stop"
        for slot, reward in zip(self.slots, rewards, strict=True):
            if stops and slot.verdict.scorable and not abs(reward) <= LARGEST_REWARD:
                components = ", ".join(f"{name} {value:g}" for name, value in slot.verdict.parts.items())
                raise RunError(
                    f"rollout {self.rollout}: the reward of a completion of problem {self.problems[slot.problem].id} "
                    f"is {reward:g} ({components}); {NUMBER} is needed. The weights were not touched. "
                    "train.on_nonfinite=skip leaves such rows out."
                )
        return [reward if abs(reward) <= LARGEST_REWARD else math.nan for reward in rewards]

    def store(self, rewards: Sequence[float], advantages: Sequence[float], values: Sequence[float] | None) -> None:
        """Write what was collected (one file, whole or absent) and summarise it over all processes."""
        # One rendering for each problem, not for each of its completions.
        prompts = {
            index: self.task.prompt(self.problems[index], self.tokenizer)
            for index in dict.fromkeys(slot.problem for slot in self.slots)
        }
        mine = [
            self._record(slot, prompts[slot.problem], reward, advantage, value)
            for slot, reward, advantage, value in zip(
                self.slots, rewards, advantages, values or itertools.repeat(None, len(self.slots)), strict=True
            )
        ]
        by_token = max(0, GROUPS_BY_TOKEN * self.config.rollout.group_size - self.first_row)
        for slot, row in zip(self.slots[:by_token], mine, strict=False):
            row |= self._by_token(slot)
        rows = self.gather(mine)
        format_range = self.task.format_range
        self.summary = rollout_summary(rows, self.task.reasons, format_range, replaced=self.replaced)
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
            **({"logged": dict(verdict.logged)} if verdict.logged else {}),
            **({} if value is None else {"value": value if math.isfinite(value) else None}),
        }

    def _by_token(self, slot: _Slot) -> dict[str, Any]:
        """The text of each token and its log-prob at the sampling temperature, to five digits; None is not finite."""
        log_probs = [float(f"{value:.5g}") if math.isfinite(value) else None for value in slot.log_probs]
        return {"pieces": token_pieces(self.tokenizer, slot.ids), "log_probs": log_probs}


@dataclass
class _Slot:
    """One completion of this process: its problem (an index), what was sampled and what the judge says."""

    problem: int
    prompt: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    entropies: list[float] | None = None
    truncated: bool = False
    text: str = ""
    flipped: bool = False
    verdict: Verdict = field(init=False)
