"""The section `update`: the optimizer steps of a rollout batch."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rlvr_cli.core.section import Count, Section


class UpdateConfig(Section):
    """Division of a rollout batch into optimizer steps."""

    mini_batches: Count = Field(
        1, description="Number of equal mini-batches of a rollout batch: optimizer steps per pass over it."
    )
    epochs: Count = Field(1, description="Passes over each rollout batch.")
    micro_batch: Count | None = Field(
        None,
        description="Completions per forward pass if all have the maximum length; more of shorter ones. null = a "
        "process's share of the mini-batch, or its largest divisor up to 16.",
    )
    micro_tokens: Count | None = Field(
        None,
        description="Tokens per forward pass, prompts included; a longer row has a pass to itself. null = the tokens "
        "of micro_batch completions of maximum length with their prompts. Not for sft.",
    )
    max_grad_norm: Annotated[float, Field(gt=0.0)] = Field(
        1.0, description="Maximum gradient norm; larger gradients are scaled down to it."
    )
    dropout: bool = Field(
        False,
        description="Apply the model's own dropout in updates, so that the updated policy differs from the one that "
        "sampled. For adapters see model.adapter.dropout.",
    )
