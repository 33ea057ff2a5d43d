"""Evaluate a run on held-out problems while it trains."""

from __future__ import annotations

from typing import Any

from rlvr_cli.evaluation.evaluate import evaluate_with
from rlvr_cli.evaluation.settings import EvalSettings
from rlvr_cli.launch.world import world_of_group
from rlvr_cli.models.adapter import merge_adapters
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.store.evaluation import Provenance
from rlvr_cli.tasks.sets import problems_name
from rlvr_cli.training.prepare import PreparedRun
from rlvr_cli.training.recorder import Evaluate


def make_evaluate(run: RunDir, prepared: PreparedRun) -> Evaluate | None:
    """Return a function from the number of finished rollouts to the held-out metrics; None without `validation.every`.

    Generated problems are of the dev split, since these metrics select settings; test is for final results. Results are
    written to ``eval/in-training/rollout-N``. The random streams are those of `rlvr eval`, so evaluations do not affect
    the training and repeat exactly after a resume. Every process calls the function, with gathered weights, and samples
    its share; only rank 0 writes and returns the metrics.
    """
    config = prepared.config
    if config.validation.every == 0:
        return None
    from rlvr_cli.evaluation.sampling import LocalSampler

    settings = EvalSettings.in_training(config)
    problems = prepared.task.problems(settings.split, settings.problems, settings.problems_seed)
    benchmark = problems_name(config.task.name, config.task.data)

    def evaluate_after(rollouts: int) -> dict[str, Any] | None:
        folder = run.held_out_dir / f"rollout-{rollouts:06d}"
        world = world_of_group()
        with merge_adapters(prepared.model) as model:
            sampler = LocalSampler(model, prepared.tokenizer, settings.engine, world, "validation.engine")
            if not world.main:
                sampler.fill(None, prepared.task, problems, settings)
                return None
            steps = (rollouts * config.batch.steps_per_rollout,)
            provenance = Provenance(f"rollout {rollouts}", config.model.name, benchmark, steps, rollouts)
            metrics: dict[str, Any] = evaluate_with(
                sampler, prepared.task, problems, settings, folder, provenance=provenance
            ).result["metrics"]
        return metrics

    return evaluate_after
