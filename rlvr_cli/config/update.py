"""The section `update`: the optimizer steps of a rollout batch."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rlvr_cli.core.section import Count, Section


class UpdateConfig(Section):
    """Division of a rollout batch into optimizer steps."""

    mini_batches: Count = Field(1, description="Mini-batches per rollout batch, of equal size, each an optimizer step.")
    epochs: Count = Field(1, description="Passes over a rollout batch.")
    micro_batch: Count | None = Field(
        None,
        description="Completions of maximum length per forward pass; of shorter ones more fit. null = a process's "
        "share of the step's batch, or its largest divisor up to 16.",
    )
    micro_tokens: Count | None = Field(
        None,
        description="Tokens per forward pass, prompts included (a longer row has its own pass; not for sft); null = "
        "micro_batch times the longest completion with its prompt.",
    )
    max_grad_norm: Annotated[float, Field(gt=0.0)] = Field(
        1.0, description="Gradient clipping: largest norm of the gradient."
    )
    dropout: bool = Field(
        False,
        description="Enable the model's dropout in updates; the updated policy then differs slightly from the one that "
        "sampled. Adapters have model.adapter.dropout.",
    )
