"""The section `update`: the optimizer steps of a rollout batch."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rlvr_cli.core.section import Count, Section


class UpdateConfig(Section):
    """Division of a rollout batch into optimizer steps."""

    mini_batches: Count = Field(
        1, description="Equal parts of a rollout batch, each with an optimizer step: the steps of one pass over it."
    )
    epochs: Count = Field(1, description="Passes over a rollout batch.")
    micro_batch: Count | None = Field(
        None,
        description="Completions in one forward pass if all are as long as can be; shorter ones share it with "
        "more. null = a process's share of the step's batch, or its largest divisor up to 16.",
    )
    micro_tokens: Count | None = Field(
        None,
        description="Tokens in one forward pass, prompts included (a longer row has a pass to itself; not for sft); "
        "null = the tokens of micro_batch of the longest completions with their prompts.",
    )
    max_grad_norm: Annotated[float, Field(gt=0.0)] = Field(
        1.0, description="The gradient is scaled down to this norm when it is longer."
    )
    dropout: bool = Field(
        False,
        description="Whether the model's own dropout is on in updates: the policy that is updated is then not quite "
        "the one that sampled. That of adapters is model.adapter.dropout.",
    )
