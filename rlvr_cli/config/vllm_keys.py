"""The `rollout.vllm` section: vLLM as the sampler of a training."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from rlvr_cli.core.section import Section, Text

# Shares of a GPU's memory where nothing is said: beside a trainer (TRL's), and alone.
COLOCATE_MEMORY, SERVER_MEMORY = 0.3, 0.9
Seconds = Annotated[float, Field(gt=0.0, le=86400.0)]
Devices = Annotated[str, StringConstraints(max_length=200, pattern=r"^[A-Za-z0-9_-]+(,[A-Za-z0-9_-]+)*$")]


class VllmConfig(Section):
    """vLLM as the sampler: rollout.engine=vllm_colocate or vllm_server."""

    server_url: Annotated[Text, StringConstraints(pattern=r"^https?://[^/?#@\s]+/?$")] | None = Field(
        None,
        description="Address of a running `vllm serve`, as http://host:8000 (vllm_server); null = rlvr starts one and "
        "stops it.",
    )
    python: Text | None = Field(
        None,
        description="Python of the environment that has vllm, for the server that rlvr starts; null = rlvr's own.",
    )
    devices: Devices | None = Field(
        None,
        description="CUDA_VISIBLE_DEVICES of the server that rlvr starts, as 2,3; null = the visible GPUs after those "
        "that train.",
    )
    gpu_memory: Annotated[float, Field(gt=0.0, le=1.0)] | None = Field(
        None,
        description="Share of a GPU's memory that vLLM may take; null = 0.3 with vllm_colocate, 0.9 for the server "
        "that rlvr starts.",
    )
    tensor_parallel: Annotated[int, Field(ge=1, le=64)] = Field(
        1, description="GPUs that one copy of the model is divided among by vLLM."
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="Number format of vLLM's weights; auto = bfloat16 on a GPU, float32 without one."
    )
    eager: bool = Field(
        False, description="No torch.compile and no CUDA graphs in vLLM: it starts sooner and samples slower."
    )
    sleep: bool = Field(False, description="vLLM gives its GPU memory back while the trainer updates (vllm_colocate).")
    weights_dir: Text | None = Field(
        None,
        description="Folder through which weights go to the server, at the same path there; null = /dev/shm for the "
        "server that rlvr starts, else the run's folder.",
    )
    startup_timeout: Seconds = Field(900.0, description="Seconds that the server that rlvr starts may take to answer.")
    request_timeout: Seconds = Field(
        3600.0, description="Seconds that the server may take for one completion, waiting for its turn included."
    )
