"""The `model` section: the model and its adapter."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from rlvr_cli.core.section import FromList, Section, Text


class _Adapter(Section):
    chooser: ClassVar[str] = "kind"


class NoAdapterConfig(_Adapter):
    """Training of all weights."""

    kind: Literal["none"] = Field("none", description="none = all weights are trained.")


class LowRankConfig(_Adapter):
    """Keys of every low-rank adapter (LoRA, arXiv:2106.09685)."""

    rank: Annotated[int, Field(ge=1, le=1024)] = Field(16, description="Rank of the adapters.")
    alpha: Annotated[float, Field(gt=0.0, le=65536.0)] = Field(
        32.0, description="LoRA's alpha: the output of an adapter is multiplied by alpha / rank."
    )
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = Field(
        0.0, description="Dropout probability of the adapters' inputs during training."
    )
    targets: Annotated[tuple[Text, ...] | None, FromList] = Field(
        None,
        min_length=1,
        description="Names of the modules that get an adapter, as [q_proj, v_proj]; null = every linear layer except "
        "the output head.",
    )


class LoRAConfig(LowRankConfig):
    """Low-rank adapters on a model in full precision (LoRA)."""

    kind: Literal["lora"] = Field("lora", description="lora = low-rank adapters on the frozen model.")


class QLoRAConfig(LowRankConfig):
    """Low-rank adapters on a model in 4 bits (QLoRA, arXiv:2305.14314)."""

    kind: Literal["qlora"] = Field(
        "qlora", description="qlora = the same, with the linear layers quantized to 4 bits (nf4, double quantization)."
    )


AdapterConfig = Annotated[NoAdapterConfig | LoRAConfig | QLoRAConfig, Field(discriminator="kind")]


class ModelConfig(Section):
    """The model to train or evaluate."""

    chooser: ClassVar[str] = "name"
    # The other keys apply to any model.
    reset_with_choice: ClassVar[tuple[str, ...] | None] = ("revision",)

    name: Text = Field("lab", description="A preset (`lab`), a Hugging Face hub id, or the folder of a model.")
    revision: Text | None = Field(None, description="Branch, tag or commit of a hub model; null = the default branch.")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="Data type of the weights; auto = bfloat16 for evaluation and for the frozen base of an adapter "
        "if the GPU supports it, else float32.",
    )
    attention: Text | None = Field(
        None,
        description="Attention implementation of transformers: eager, sdpa, flash_attention_2, ...; null = its "
        "default.",
    )
    gradient_checkpointing: Literal["auto", "on", "off"] = Field(
        "auto", description="Recompute activations in the backward pass to save memory; auto = only on a GPU."
    )
    adapter: AdapterConfig = Field(default=NoAdapterConfig(), description="Adapter to train instead of all weights.")
