"""Run directories as the code writes them, without a training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlvr_cli.runs.folder import RunDir, create_run


def make_run(root: Path, name: str, **manifest: Any) -> RunDir:
    """A finished run of grpo; ``name`` may be `sweep/run`."""
    path = root / name
    made = create_run(path.parent, path.name, overwrite=False)
    made.config_path.write_text("run: {seed: 0}\n")
    fields = {"name": made.name, "status": "finished", "method": "grpo", "task": "kk", "model": "lab", "seed": 0}
    counts = {"step": 60, "steps_total": 60, "rollout": 60, "rollouts_total": 60}
    made.update_manifest(**{**fields, **counts, "created": "2025-01-01T00:00:00+00:00", **manifest})
    return made
