"""The `launch` section: how many processes train, and what starts them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rlvr_cli.core.section import Section, Text


class LaunchConfig(Section):
    """In how many processes the training runs, and what starts them."""

    processes: Annotated[int, Field(ge=1, le=65536)] = Field(
        1, description="Processes that share each rollout batch and each optimizer step, over all nodes: one a GPU."
    )
    launcher: Literal["torchrun", "accelerate"] = Field(
        "torchrun", description="What starts several processes; the numbers do not depend on it."
    )
    accelerate_config: Text | None = Field(
        None, description="File of `accelerate config` for launcher=accelerate; null = accelerate's own default file."
    )
    deepspeed: Text | None = Field(
        None,
        description="Divide the model among the GPUs by DeepSpeed ZeRO: zero2, zero3, zero3-offload, or a DeepSpeed "
        "configuration (a JSON file); null = every process holds it whole.",
    )
    fsdp: bool = Field(False, description="Divide the model among the GPUs by PyTorch's FSDP2.")
