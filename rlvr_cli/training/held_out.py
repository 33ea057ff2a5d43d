"""Held-out evaluation in the course of training, every ``eval.every`` rollouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlvr_cli.config.schema import Config
from rlvr_cli.evaluation.evaluate import evaluate_with
from rlvr_cli.evaluation.settings import EvalSettings
from rlvr_cli.launch.world import world_of_group
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.tasks.sets import is_generated
from rlvr_cli.training.prepare import Prepared

Evaluate = Callable[[int], dict[str, Any] | None]


def held_out_evaluation(config: Config, run: RunDir, prepared: Prepared) -> Evaluate | None:
    """A function from the number of rollouts done to the means of the held-out metrics, None without `eval.every`.

    Generated problems are of the dev split: who watches these numbers chooses settings by them, and the test split is
    for what is reported in the end.
    Everything is kept under ``eval/in-training/rollout-N``; the random streams are those of `rlvr eval`, so an
    evaluation leaves no trace in training and repeats exactly after a resume.
    Every process calls it, with weights that are whole, and samples its share; rank 0 alone writes, and gets the means.
    """
    if config.eval.every == 0:
        return None
    split = "dev" if is_generated(config.task.data) else config.eval.split
    from rlvr_cli.evaluation.sampling import LocalSampler
    from rlvr_cli.models.adapter import merged

    settings = EvalSettings.from_config(config, split=split)
    problems = prepared.task.problems(split, settings.problems, settings.problems_seed)

    def evaluate_after(rollouts: int) -> dict[str, Any] | None:
        folder = run.held_out_dir / f"rollout-{rollouts:06d}"
        world = world_of_group()
        with merged(prepared.model) as model:
            sampler = LocalSampler(model, prepared.tokenizer, world=world)
            if not world.main:
                sampler.help(prepared.task, problems, settings)
                return None
            result = evaluate_with(sampler, prepared.task, problems, settings, folder, label=f"rollout {rollouts}")
        return {name: metric["value"] for name, metric in result["metrics"].items()}

    return evaluate_after
