"""Accuracy of a lab model on held-out puzzles of the dev split, as `rlvr eval` measures it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from rlvr_cli.evaluation.evaluate import evaluate
from rlvr_cli.evaluation.settings import EvalSettings
from rlvr_cli.tasks.kk.task import KnightsAndKnaves


def measure(
    model: Any, tokenizer: Any, people: dict[int, float], *, count: int, samples: int, max_new_tokens: int
) -> dict[str, Any]:
    """Greedy and sampled accuracy (temperature 1) with its 95% interval, pass@k, format rate, tokens a response.

    ``people``: number of people -> weight; ``count`` puzzles, ``samples`` completions of each.
    """
    whole = sum(people.values())
    shares = {number: weight / whole for number, weight in people.items() if weight}
    task = KnightsAndKnaves(people=shares, style="compact")
    settings = EvalSettings(
        problems=count,
        samples=samples,
        pass_at=tuple(k for k in (1, 8, 32) if k <= samples),
        max_new_tokens=max_new_tokens,
        split="dev",
    )
    with tempfile.TemporaryDirectory() as folder:
        problems = task.problems("dev", count, settings.problems_seed)
        result = evaluate(model, tokenizer, task, problems, settings, Path(folder))
    metrics, sampled = result["metrics"], f"avg@{samples}"
    return {
        "puzzles": result["problems"],
        "samples": samples,
        "greedy": round(metrics["greedy"]["value"], 4),
        "sampled": round(metrics[sampled]["value"], 4),
        "sampled_interval": [round(metrics[sampled][end], 4) for end in ("low", "high")],
        **{f"pass@{k}": round(metrics[f"pass@{k}"]["value"], 4) for k in settings.pass_at if k > 1},
        "format": round((metrics["reward/format"]["value"] + 1) / 2, 4),
        "tokens": round(metrics["length"]["value"], 1),
        "sampled_by_people": {
            name.removesuffix(" people"): round(group[sampled]["value"], 4)
            for name, group in result["by_subgroup"].items()
        },
    }
