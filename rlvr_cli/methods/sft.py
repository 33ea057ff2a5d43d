"""Supervised fine-tuning on worked solutions: a baseline without reinforcement learning.

    l = -1/Z sum over the completions' tokens of log pi        Z = number of these tokens in the optimizer step

The first stage of Ouyang et al., arXiv:2203.02155, section 3.5. There are no rollouts, rewards or ratios, and prompts
are not trained on.

How we differ from the paper: it keeps the checkpoint that a reward model prefers; here the last one is evaluated, as
for every other method.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from rlvr_cli.core.section import Count, Text
from rlvr_cli.methods.base import TrainingMethod
from rlvr_cli.methods.lopti import OnePass
from rlvr_cli.methods.preset import MethodPreset, Paper


class SFT(TrainingMethod):
    """Supervised fine-tuning on worked solutions."""

    training: ClassVar[Literal["sft"]] = "sft"
    samples: ClassVar[bool] = False
    splits_steps: ClassVar[bool] = False
    trained_by: ClassVar[str] = "supervised fine-tuning on worked solutions"

    name: Literal["sft"] = Field("sft", description="sft = train on worked solutions, without rollouts or rewards.")
    demonstrations: Count = Field(1024, description="Number of worked solutions from the task.")
    data: Text | None = Field(
        None,
        description="JSONL file of prompt and completion to train on instead of the task's solutions; null = the "
        "task's.",
    )

    def unused(self) -> Iterator[tuple[str, str, str]]:
        if self.data is not None:
            yield "method.demonstrations", "method.data", "method.data gives the worked solutions. Remove one"

    @property
    def policy(self) -> None:
        return

    @property
    def demonstration_count(self) -> int | None:
        return self.demonstrations if self.data is None else None

    @property
    def demonstration_file(self) -> str | None:
        return self.data

    @property
    def passes(self) -> OnePass:
        return OnePass()


PAPER = Paper("Training language models to follow instructions with human feedback", "Ouyang et al.", "2203.02155")
PRESETS = (
    MethodPreset(
        "sft",
        imitates=True,
        title="Supervised Fine-Tuning",
        summary="Imitates worked solutions: a baseline without reinforcement learning.",
        paper=PAPER,
        extra_cost="no sampling, and no old log-probs",
    ),
)
