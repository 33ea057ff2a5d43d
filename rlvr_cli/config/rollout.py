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
        None, description="Address of a `vllm serve`, as http://localhost:8000 (engine vllm_server)."
    )
    gpu_memory: Annotated[float, Field(gt=0.0, le=1.0)] | None = Field(
        None, description="Fraction of a GPU's memory for vLLM; null = 0.3."
    )
    tensor_parallel: Annotated[int, Field(ge=1, le=64)] = Field(1, description="vLLM's tensor-parallel size, in GPUs.")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="Number format of vLLM's weights; auto = bfloat16 on a GPU, float32 without one."
    )
    eager: bool = Field(
        False, description="Disable torch.compile and CUDA graphs in vLLM: faster start, slower sampling."
    )
    sleep: bool = Field(False, description="Release vLLM's GPU memory while the trainer updates.")


class RolloutConfig(Section):
    """Sampling of completions for training."""

    prompts: Count = Field(16, description="Prompts in one rollout batch.")
    group_size: Annotated[int, Field(ge=1, le=65536)] = Field(
        8, description="Completions sampled per prompt, the group of group-relative advantages."
    )
    temperature: Temperature = Field(1.0, description="Sampling temperature in training.")
    top_p: TopP = Field(
        1.0, description="Nucleus sampling in training: keep the likeliest tokens up to this probability mass."
    )
    top_k: CountOrZero = Field(
        0, description="Sample from this many of the likeliest tokens in training, before top_p; 0 = all."
    )
    max_new_tokens: Count = Field(
        1024, description="Longest completion, in tokens; longer ones are truncated (too_long)."
    )
    dynamic_sampling: CountOrZero = Field(
        0,
        description="Dynamic sampling (DAPO): how often groups of equal rewards may be replaced by groups of other "
        "prompts; 0 = never.",
    )
    drop_truncated: bool = Field(
        False, description="Exclude completions truncated at max_new_tokens from training (DAPO's overlong filtering)."
    )
    batch: Count | None = Field(
        None,
        description="Completions that a process samples concurrently; null = what fits in its free memory "
        "(local), or 64 (transformers); vLLM schedules by itself. Changes speed and memory, but not the samples "
        "(except those of transformers).",
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
        description="Truncated importance sampling: cap of the ratio of the trainer's to the sampler's probability "
        "by which each token is weighted; null = no weights; auto = 2 with vLLM, else null.",
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
