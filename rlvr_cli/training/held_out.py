"""Held-out evaluation in the course of training, every ``eval.every`` rollouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlvr_cli.config.schema import Config
from rlvr_cli.evaluation.evaluate import evaluate
from rlvr_cli.evaluation.settings import EvalSettings
from rlvr_cli.runs.directory import RunDir
from rlvr_cli.training.prepare import Prepared

HELD_OUT = "in-training"


def held_out_evaluation(config: Config, run: RunDir, prepared: Prepared) -> Callable[[int], dict[str, Any] | None]:
    """A function from the number of rollouts done to the means of the held-out metrics, None where none is due.

    Everything is kept under ``eval/in-training/rollout-N``; the random streams are those of `rlvr eval`, so an
    evaluation leaves no trace in training and repeats exactly after a resume.
    """
    if config.eval.every == 0:
        return lambda rollouts: None
    settings = EvalSettings.from_config(config)
    problems = prepared.task.problems(config.eval.split, settings.problems, settings.problems_seed)

    def evaluate_after(rollouts: int) -> dict[str, Any] | None:
        if rollouts % config.eval.every:
            return None
        folder = run.eval_dir / HELD_OUT / f"rollout-{rollouts:06d}"
        result = evaluate(
            prepared.model, prepared.tokenizer, prepared.task, problems, settings, folder, label=f"rollout {rollouts}"
        )
        return {name: metric["value"] for name, metric in result["metrics"].items()}

    return evaluate_after
