"""A method is one file: every command works with it by its lying in the package of methods."""

from __future__ import annotations

import json
from pathlib import Path

from tests.commands import run_all

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
from rlvr_cli.methods.base import PolicyLoss, Tokens
from rlvr_cli.methods.preset import MethodPreset, Paper


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
# In every process, those of a sweep's trials too.
EVERYWHERE = "import rlvr_cli.methods\nrlvr_cli.methods.__path__.append({folder!r})\n"
BASE = """
task: {train_size: 16}
rollout: {prompts: 2, group_size: 2, max_new_tokens: 8}
train: {rollouts: 1, on_no_signal: "off"}
"""
SWEEP = "base: base.yaml\nmethods: [grpo, damped]\nseeds: 1\neval: {problems: 4, samples: 2, pass_at: [1, 2]}\n"


def test_it_is_listed_described_planned_trained_evaluated_and_compared(tmp_path: Path) -> None:
    for folder in ("site", "own"):
        (tmp_path / folder).mkdir()
    (tmp_path / "own" / "damped.py").write_text(FILE.lstrip())
    (tmp_path / "site" / "sitecustomize.py").write_text(EVERYWHERE.format(folder=str(tmp_path / "own")))
    (tmp_path / "base.yaml").write_text(BASE)
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    evaluated = ("--samples", "2", "--pass-at", "1", "eval.problems=4")
    listed, shown, keys, wrong, *others, compared = run_all(
        tmp_path,
        ("methods", "list", "--format=json"),
        ("methods", "show", "damped"),
        ("config", "show", "--format=json", "--origins", "--method", "damped"),
        ("plan", "--method", "damped", "method.policy_loss.tau=-1", "method.policy_loss.tua=1"),
        ("methods", "plot", "damped", "--output", "damped.svg"),
        ("plan", "-c", "base.yaml", "--method", "damped"),
        ("sweep", "sweep.yaml", "--dry-run"),
        ("train", "-c", "base.yaml", "--method", "damped+lopti", "run.name=own"),
        ("train", "-c", "base.yaml", "run.name=grpo"),
        ("eval", "own", *evaluated),
        ("eval", "grpo", *evaluated),
        ("compare", "own", "grpo"),
        environment={"PYTHONPATH": str(tmp_path / "site")},
    )
    assert "damped" in [row["name"] for row in json.loads(listed.out)["methods"]]
    assert shown.code == 0 and "tau" in shown.out, shown
    assert {row["key"]: row["value"] for row in json.loads(keys.out)}["method.policy_loss.tau"] == 3.0
    assert wrong.code == 2
    assert "at least 0" in wrong.err and "tau" in wrong.err
    assert [done for done in others if done.code] == []
    manifest = json.loads((tmp_path / "runs" / "own" / "manifest.json").read_text())
    assert manifest["executed"]["Damped"] == 2
    assert compared.code == 0 and "damped" in compared.out, compared
