"""Supervised fine-tuning on worked solutions: a baseline without reinforcement learning.

    l = -1/Z sum over the completions' tokens of log pi        Z = their number in the whole optimizer step

The first stage of Ouyang et al., arXiv:2203.02155, section 3.5. There are no rollouts, rewards or ratios, and prompts
are not trained on.

How we differ from the paper: it keeps the model that a reward model prefers; here the last one is evaluated like that
of every other method.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from rlvr_cli.core.section import Count, Section, Text
from rlvr_cli.methods.lopti import OnePass
from rlvr_cli.methods.preset import MethodPreset, Paper


class SFT(Section):
    """Supervised fine-tuning on worked solutions."""

    chooser: ClassVar[str] = "name"

    name: Literal["sft"] = Field("sft", description="sft = imitate worked solutions, without rollouts or rewards.")
    demonstrations: Count = Field(1024, description="Number of the task's own worked solutions.")
    data: Text | None = Field(
        None, description="Worked solutions to use in place of the task's own: JSONL of prompt and completion."
    )

    def unused(self) -> Iterator[tuple[str, str, str]]:
        """Keys that nothing reads as things stand: (key, the key that switches it off, the reason)."""
        if self.data is not None:
            yield "method.demonstrations", "method.data", "method.data gives the worked solutions. Leave one out"

    @property
    def needs_reference(self) -> bool:
        """No second model is held."""
        return False

    @property
    def passes(self) -> OnePass:
        """One pass over all tokens."""
        return OnePass()


PAPER = Paper("Training language models to follow instructions with human feedback", "Ouyang et al.", "2203.02155")
PRESETS = (
    MethodPreset(
        "sft",
        title="Supervised Fine-Tuning",
        summary="Imitates worked solutions: a baseline without reinforcement learning.",
        paper=PAPER,
        extra_cost="no sampling, and no old log-probs",
    ),
)
