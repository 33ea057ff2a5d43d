"""A method is one file: it has a name, keys, a page and a plan by lying in the package of methods."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

FILE = '''
"""Damped: the ratio, pulled towards 1.

    F = r^(1 / (1 + tau))

How we differ from the paper: there is none.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlvr_cli.core.lazy import Tensor
from rlvr_cli.core.section import Scale
from rlvr_cli.methods.preset import MethodPreset, Paper
from rlvr_cli.methods.base import Tokens
from rlvr_cli.methods.base import PolicyLoss


class Damped(PolicyLoss):
    """The damped ratio."""

    kind: Literal["damped"] = Field("damped", description="damped = the ratio, pulled towards 1.")
    tau: Scale = Field(1.0, description="How much; 0 = the ratio itself.")

    def bounds(self, tokens: Tokens, statistics: Tensor | None = None) -> tuple[float, float]:
        return 0.2, 0.2

    def weight(self, tokens: Tokens, statistics: Tensor | None = None) -> Tensor:
        return tokens.ratio.detach() ** (1 / (1 + self.tau))


PRESETS = (
    MethodPreset(
        "damped",
        title="Damped",
        summary="The ratio, pulled towards 1.",
        paper=Paper("None", "nobody"),
        sets={"policy_loss.kind": ("damped", "an example"), "policy_loss.tau": (3.0, "an example")},
    ),
)
'''
USED = """
import sys
import rlvr_cli.methods
rlvr_cli.methods.__path__.append(sys.argv[1])
from rlvr_cli.cli.app import run
sys.exit(run(sys.argv[2:]))
"""


def rlvr(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", USED, str(folder), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run(command, env=environment, capture_output=True, text=True, cwd=folder, check=False)


def test_it_is_listed_described_planned_and_trained(tmp_path: Path) -> None:
    (tmp_path / "damped.py").write_text(FILE.lstrip())
    listed = json.loads(rlvr(tmp_path, "methods", "list", "--format=json").stdout)
    assert "damped" in [row["name"] for row in listed["methods"]]
    shown = json.loads(rlvr(tmp_path, "config", "show", "--format=json", "--origins", "--method", "damped").stdout)
    assert {row["key"]: row["value"] for row in shown}["method.policy_loss.tau"] == 3.0
    wrong = rlvr(tmp_path, "plan", "--method", "damped", "method.policy_loss.tau=-1", "method.policy_loss.tua=1")
    assert wrong.returncode == 2
    assert "at least 0" in wrong.stderr and "tau" in wrong.stderr
    tiny = ["task.train_size=16", "rollout.prompts=2", "rollout.group_size=2", "rollout.max_new_tokens=8"]
    done = rlvr(tmp_path, "train", "--method", "damped+lopti", "run.name=own", "train.rollouts=1", *tiny)
    assert done.returncode == 0, done.stderr
    manifest = json.loads((tmp_path / "runs" / "own" / "manifest.json").read_text())
    assert manifest["executed"]["Damped"] == 2
