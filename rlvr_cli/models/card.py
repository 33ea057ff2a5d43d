"""The README of an exported model: what was trained, how, and what it measured. Imports no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rlvr_cli.config.schema import Config
from rlvr_cli.models.adapter_folder import base_of, holds_adapter
from rlvr_cli.models.source import hub_presets
from rlvr_cli.results.evaluations import read_result
from rlvr_cli.runs.directory import RunDir
from rlvr_cli.runs.seals import read_record
from rlvr_cli.tasks.sets import problems_name

IN_TRAINING = ("reward", "accuracy", "loss", "token_accuracy")


def model_card(run: RunDir, config: Config, checkpoint: Path, dtype: str) -> str:
    """The model card. Names no folder of this machine."""
    manifest = run.read_manifest()
    step = int(checkpoint.name.removeprefix("step-"))
    base = _public_name(base_of(checkpoint).name if holds_adapter(checkpoint) else config.model.name)
    on_hub = base if "/" in base else None
    head = [
        "---",
        "library_name: transformers",
        "pipeline_tag: text-generation",
        *([f"base_model: {on_hub}"] if on_hub else []),
        f"tags: [rlvr, {json.dumps(config.method.name)}, {json.dumps(config.task.name)}]",
        "---",
    ]
    adapter = config.model.adapter
    trained = "all weights"
    if adapter.kind != "none":
        trained = f"{adapter.kind}, rank {adapter.rank}, alpha {adapter.alpha:g}, merged into the base"
    rows = {
        "base model": base,
        "method": config.method.name,
        "task": problems_name(config.task.name, config.task.data),
        "trained": trained,
        "seed": config.run.seed,
        "optimizer steps": f"{step} of {manifest.get('steps_total')}",
        "number format": dtype,
        "versions": ", ".join(f"{name} {version}" for name, version in (manifest.get("versions") or {}).items()),
    }
    lines = [*head, "", f"# {run.name}", "", "Trained by reinforcement learning with verifiable rewards (rlvr)."]
    if config.method.name == "sft":
        lines[-1] = "Trained by supervised fine-tuning on worked solutions (rlvr)."
    lines += ["", "| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())]
    lines += _metrics(run, step)
    lines += ["", "`rlvr tasks show` prints the prompt that it was trained on. The licence is that of the base model."]
    return "\n".join(lines) + "\n"


def _public_name(name: str) -> str:
    """A model's name without the folders of this machine."""
    if name in hub_presets():
        return hub_presets()[name]
    return Path(name).name if name.startswith((".", "/", "~")) or Path(name).is_dir() else name


def _metrics(run: RunDir, step: int) -> list[str]:
    """What the run measured at this step, and the evaluations of this checkpoint."""
    lines: list[str] = []
    last = [row for row in read_record(run, run.metrics_path) if row.get("step") == step]
    shown: dict[str, Any] = {}
    for row in last:
        shown = {name: row[name] for name in IN_TRAINING if row.get(name) is not None}
        shown |= {f"held-out {name}": value for name, value in (row.get("eval") or {}).items()}
    if shown:
        lines += ["", "In training, at this step:", "", "| | |", "|---|---|"]
        lines += [f"| {name} | {value:.4g} |" for name, value in shown.items() if isinstance(value, int | float)]
    for path in sorted(run.eval_dir.glob(f"*-step-{step}-*/metrics.json")):
        result = read_result(path)
        lines += ["", f"On {result['benchmark']}, {result['split']}, {result['problems']} problems:", ""]
        lines += ["| metric | value | 95% interval |", "|---|---|---|"]
        for name, metric in result["metrics"].items():
            low, high = metric.get("low"), metric.get("high")
            between = f"{low:.3f} to {high:.3f}" if low is not None and high is not None else ""
            lines.append(f"| {name} | {metric['value']:.3f} | {between} |")
    return lines
