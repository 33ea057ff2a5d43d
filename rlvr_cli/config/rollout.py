"""The `rollout` section: sampling of completions for training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from rlvr_cli.core.section import Count, CountOrZero, OneOrMore, Probability, Section, Text
from rlvr_cli.methods.correction import AutoCorrection, Correction, CorrectionSetting, TokenCorrection

TopP = Annotated[float, Field(gt=0.0, le=1.0)]
Temperature = Annotated[float, Field(gt=0.0, le=100.0)]
StopTexts = Annotated[tuple[Annotated[str, Field(min_length=1, max_length=200)], ...], OneOrMore]
GenerationValue = bool | int | float | str | list[int] | list[str] | list[list[int]]
# vLLM's share of a GPU's memory next to a trainer (TRL's default).
COLOCATE_MEMORY = 0.3


class VllmConfig(Section):
    """vLLM as the sampler (rollout.engine=vllm_colocate or vllm_server)."""

    server: Text | None = Field(
        None, description="Address of a `vllm serve`, as http://localhost:8000 (engine vllm_server)."
    )
    gpu_memory: Annotated[float, Field(gt=0.0, le=1.0)] | None = Field(
        None, description="Fraction of a GPU's memory that vLLM may use; null = 0.3."
    )
    tensor_parallel: Annotated[int, Field(ge=1, le=64)] = Field(1, description="vLLM's tensor-parallel size, in GPUs.")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="Data type of vLLM's weights; auto = bfloat16 on a GPU, else float32."
    )
    eager: bool = Field(
        False, description="Disable torch.compile and CUDA graphs in vLLM: it starts faster and samples more slowly."
    )
    sleep: bool = Field(False, description="Release vLLM's GPU memory during updates (vLLM's sleep mode).")


class RolloutConfig(Section):
    """Sampling of completions for training."""

    prompts: Count = Field(16, description="Prompts per rollout batch.")
    group_size: Annotated[int, Field(ge=1, le=65536)] = Field(
        8, description="Completions sampled per prompt, the group of group-relative advantages."
    )
    temperature: Temperature = Field(1.0, description="Sampling temperature in training.")
    top_p: TopP = Field(
        1.0,
        description="Nucleus sampling in training: cumulative probability of the most likely tokens to sample from; "
        "1 = all tokens.",
    )
    top_k: CountOrZero = Field(
        0, description="Number of most likely tokens to sample from in training, before top_p; 0 = all tokens."
    )
    min_p: Probability = Field(
        0.0,
        description="Least probability of a token to sample in training, as a share of the most likely token's, after "
        "top_p; 0 = all tokens.",
    )
    repetition_penalty: Annotated[float, Field(gt=0.0, le=100.0)] = Field(
        1.0,
        description="Divisor of the positive logits, and factor of the negative ones, of tokens that are in the prompt "
        "or the completion so far, in training; 1 = none.",
    )
    stop: StopTexts = Field(
        (),
        description="Texts that end a completion, which keeps them: [</answer>]. Such a completion counts as complete.",
    )
    generation_kwargs: dict[Text, GenerationValue] = Field(
        {},
        description="Further arguments of transformers' GenerationConfig (engine transformers) or vLLM's "
        "SamplingParams, as in TRL.",
    )
    max_new_tokens: Count = Field(
        1024, description="Maximum length of a completion, in tokens; longer ones are truncated (too_long)."
    )
    dynamic_sampling: CountOrZero = Field(
        0,
        description="Maximum number of times that groups of equal rewards are replaced by groups of other prompts "
        "before training (DAPO); 0 = never.",
    )
    drop_truncated: bool = Field(
        False, description="Exclude completions truncated at max_new_tokens from training (DAPO's overlong filtering)."
    )
    batch: Count | None = Field(
        None,
        description="Completions sampled at once per process; null = all that fit in free memory (local), or 64 "
        "(transformers); vLLM has its own scheduler. Affects speed and memory; only with engine transformers it also "
        "changes the samples.",
    )
    engine: Literal["auto", "local", "transformers", "vllm_colocate", "vllm_server"] = Field(
        "auto",
        description="Sampler: local = the project's KV-cache sampler, transformers = `generate`, vllm_colocate = "
        "vLLM in the training processes, vllm_server = `vllm serve` on other GPUs; auto = local if the architecture "
        "is supported, else transformers.",
    )
    vllm: VllmConfig = Field(default=VllmConfig(), description=str(VllmConfig.__doc__))
    correction: CorrectionSetting = Field(
        default=AutoCorrection(), description="Weights of the gradient for a sampler that is not the trained policy."
    )
    behind: Annotated[int, Field(ge=0, le=1000)] = Field(
        0,
        description="Staleness: rollout i is sampled by the weights from before its last `behind` rollouts of updates, "
        "the first ones by the initial weights; keeps behind + 1 copies of the trained weights in host memory.",
    )

    @property
    def uses_vllm(self) -> bool:
        return self.engine in ("vllm_colocate", "vllm_server")

    @property
    def limits(self) -> Mapping[str, Any]:
        """The keys, and their values, that make the sampled distribution another than that of the log-probs."""
        neutral = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "generation_kwargs": {}}
        return {key: getattr(self, key) for key, value in neutral.items() if getattr(self, key) != value}

    @property
    def active_correction(self) -> Correction | None:
        """The correction, with `auto` resolved; None = no weights."""
        if isinstance(self.correction, AutoCorrection):
            return TokenCorrection() if self.uses_vllm else None
        return self.correction if isinstance(self.correction, Correction) else None
