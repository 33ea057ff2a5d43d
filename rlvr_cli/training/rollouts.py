"""A rollout: sample completions for the problems of this process, judge them, keep them on disk."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rlvr_cli.config.errors import RunError
from rlvr_cli.config.schema import Config
from rlvr_cli.models.completions import Completions, Engine
from rlvr_cli.models.load import eos_token_ids
from rlvr_cli.runs.atomic import write_text
from rlvr_cli.streams import stream_seed
from rlvr_cli.tasks.base import Problem, Task, Verdict, prompt_ids, response_text
from rlvr_cli.training.metrics import rollout_summary


class RolloutSource:
    """Samples, judges and stores the rollouts of a run.

    Args:
        gather: lists of every process, joined in the order of the processes.
        main: whether this process writes files.
        on_tokens: told how many tokens were sampled since the last call.
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
        self.model: Any = None
        self.seconds = {"rollout": 0.0, "verify": 0.0}
        self.summary: dict[str, float] = {}
        self.unscored = 0

    def sample(self, rollout: int, problems: Sequence[int], first_row: int) -> tuple[list[list[int]], list[list[int]]]:
        """Prompt and completion token ids, one completion for each entry of ``problems``.

        The random stream of a completion is named by the rollout and its row in the whole batch, so it is the same
        however many processes share the work.
        """
        started = time.perf_counter()
        self.rollout, self.rows = rollout, [self.problems[index] for index in problems]
        encoded = {index: prompt_ids(self.task, self.problems[index], self.tokenizer) for index in set(problems)}
        prompts = [encoded[index] for index in problems]
        settings = self.config.rollout
        self.completions: Completions = self.engine(
            self.model,
            prompts,
            keys=range(first_row, first_row + len(prompts)),
            seed=stream_seed(self.config.run.seed, "rollout", rollout),
            max_new_tokens=settings.max_new_tokens,
            eos_token_ids=eos_token_ids(self.model, self.tokenizer),
            temperature=settings.temperature,
            top_p=settings.top_p,
            on_progress=self.on_tokens,
        )
        self.seconds["rollout"] += time.perf_counter() - started
        return prompts, self.completions.ids

    def judge(self) -> list[float]:
        """The reward of every completion just sampled, NaN where it is not a finite number.

        Raises RunError for such a reward unless ``train.on_nonfinite`` is ``skip``; then the completion has no part
        in the update.
        """
        started = time.perf_counter()
        self.texts = [response_text(self.tokenizer, ids) for ids in self.completions.ids]
        self.verdicts: list[Verdict] = [
            self.task.judge(problem, text, truncated=truncated)
            for problem, text, truncated in zip(self.rows, self.texts, self.completions.truncated, strict=True)
        ]
        rewards = [verdict.reward if math.isfinite(verdict.reward) else math.nan for verdict in self.verdicts]
        for problem, verdict, reward in zip(self.rows, self.verdicts, rewards, strict=True):
            if math.isnan(reward) and self.config.train.on_nonfinite == "stop":
                raise RunError(
                    f"rollout {self.rollout}: the reward of a completion of problem {problem.id} is "
                    f"{verdict.reward}. The weights were not touched. train.on_nonfinite=skip leaves such rows out."
                )
        self.seconds["verify"] += time.perf_counter() - started
        return rewards

    def finish(self, advantages: Sequence[float]) -> None:
        """Store the rollout (one file, whole or absent) and summarise it over all processes."""
        # One rendering for each problem, not for each of its completions.
        prompts = {problem.id: self.task.prompt(problem, self.tokenizer) for problem in _distinct(self.rows)}
        rows = self.gather(
            [self._record(index, prompts[self.rows[index].id], advantage) for index, advantage in enumerate(advantages)]
        )
        self.summary = rollout_summary(rows, self.task.reasons)
        self.unscored = sum(row["reward"] is None for row in rows)
        if self.main:
            lines = (json.dumps(row, allow_nan=False, ensure_ascii=False) + "\n" for row in rows)
            write_text(self.folder / f"rollout-{self.rollout:06d}.jsonl", "".join(lines))

    def _record(self, index: int, prompt: str, advantage: float) -> dict[str, Any]:
        problem, verdict = self.rows[index], self.verdicts[index]
        finite = math.isfinite(verdict.reward)
        return {
            "problem": problem.id,
            "subgroup": problem.subgroup,
            "prompt": prompt,
            "completion": self.texts[index],
            "tokens": len(self.completions.ids[index]),
            "log_prob": sum(self.completions.log_probs[index]),
            "truncated": self.completions.truncated[index],
            "reward": verdict.reward if finite else None,
            "parts": verdict.parts if finite else dict.fromkeys(verdict.parts, 0.0),
            "correct": verdict.correct,
            "reason": verdict.reason,
            "answer": verdict.answer,
            "advantage": advantage,
        }


def _distinct(problems: Sequence[Problem]) -> list[Problem]:
    return list({problem.id: problem for problem in problems}.values())
