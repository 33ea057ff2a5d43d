"""The `rollout` section: sampling of completions for training."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rlvr_cli.core.section import Count, CountOrZero, Section, Text

TopP = Annotated[float, Field(gt=0.0, le=1.0)]
Temperature = Annotated[float, Field(gt=0.0, le=100.0)]
# vLLM's share of a GPU's memory next to a trainer (TRL's default), and the cap of its tokens' importance weights (Yao
# et al. and verl).
COLOCATE_MEMORY, VLLM_TIS_CAP = 0.3, 2.0


class VllmConfig(Section):
    """vLLM as the sampler: rollout.engine=vllm_colocate or vllm_server."""

    server: Text | None = Field(
        None, description="Address of a `vllm serve`, as http://localhost:8000; for vllm_server alone."
    )
    gpu_memory: Annotated[float, Field(gt=0.0, le=1.0)] | None = Field(
        None, description="Share of a GPU's memory that vLLM may take; null = 0.3."
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
    sleep: bool = Field(False, description="vLLM gives its GPU memory back while the trainer updates.")


class RolloutConfig(Section):
    """Sampling of completions for training."""

    prompts: Count = Field(16, description="Prompts in one rollout batch.")
    group_size: Annotated[int, Field(ge=1, le=65536)] = Field(
        8, description="Completions sampled for each prompt; group advantages compare them with one another."
    )
    temperature: Temperature = Field(1.0, description="Sampling temperature in training.")
    top_p: TopP = Field(1.0, description="Nucleus sampling in training: keep the likeliest tokens up to this mass.")
    top_k: CountOrZero = Field(
        0, description="Sample from this many of the likeliest tokens in training, before top_p; 0 = all."
    )
    max_new_tokens: Count = Field(1024, description="Longest completion, in tokens; longer ones are cut (too_long).")
    dynamic_sampling: CountOrZero = Field(
        0,
        description="How often groups of equal rewards may be replaced by those of other prompts before training "
        "(DAPO); 0 = never.",
    )
    drop_truncated: bool = Field(
        False, description="Do not learn from completions that were cut at max_new_tokens (DAPO's over-long filter)."
    )
    batch: Count | None = Field(
        None,
        description="Completions that a process samples at once; null = all that its free memory holds (local), "
        "or 64 (transformers); vLLM schedules by itself. Changes speed and memory, not the samples (those of "
        "transformers it does).",
    )
    engine: Literal["auto", "local", "transformers", "vllm_colocate", "vllm_server"] = Field(
        "auto",
        description="Sampler: local = the project's KV-cache sampler, transformers = `generate`, vllm_colocate = vLLM "
        "in the training processes, vllm_server = a `vllm serve` on other GPUs; "
        "auto = local where the architecture is supported, else transformers.",
    )
    vllm: VllmConfig = Field(default=VllmConfig(), description=str(VllmConfig.__doc__))
    tis_cap: Annotated[float, Field(ge=1.0, le=1e6)] | Literal["auto"] | None = Field(
        "auto",
        description="Weigh each token by the trainer's probability over the sampler's, at most this (truncated "
        "importance sampling); null = no weights, the sampler is taken for the policy; auto = 2 with vLLM, else null.",
    )

    @property
    def uses_vllm(self) -> bool:
        """True if vLLM samples the training's completions."""
        return self.engine in ("vllm_colocate", "vllm_server")

    @property
    def largest_weight(self) -> float | None:
        """The cap of importance weights, with ``tis_cap: auto`` resolved; None = no weights."""
        if self.tis_cap == "auto":
            return VLLM_TIS_CAP if self.uses_vllm else None
        return self.tis_cap
