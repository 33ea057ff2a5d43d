"""The kinds of adapter: keys below `model.adapter`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from rlvr_cli.core.section import FromList, Section, Text


class _Adapter(Section):
    chooser: ClassVar[str] = "kind"


class NoAdapterConfig(_Adapter):
    """Every weight is trained."""

    kind: Literal["none"] = Field("none", description="none = every weight is trained.")


class LowRankConfig(_Adapter):
    """What every low-rank adapter has (LoRA, arXiv:2106.09685)."""

    rank: Annotated[int, Field(ge=1, le=1024)] = Field(16, description="Rank of the adapters.")
    alpha: Annotated[float, Field(gt=0.0, le=65536.0)] = Field(
        32.0, description="Scale of the adapters: alpha / rank, on what they add to a layer."
    )
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = Field(
        0.0, description="Share of an adapter's inputs that are dropped in training."
    )
    targets: Annotated[tuple[Text, ...] | None, FromList] = Field(
        None,
        min_length=1,
        description="Names of the layers that get an adapter, as [q_proj, v_proj]; null = every linear layer but the "
        "head.",
    )


class LoRAConfig(LowRankConfig):
    """Low-rank adapters on a model in full precision (LoRA)."""

    kind: Literal["lora"] = Field("lora", description="lora = low-rank adapters are trained, the model itself is not.")


class QLoRAConfig(LowRankConfig):
    """Low-rank adapters on a model in 4 bits (QLoRA, arXiv:2305.14314)."""

    kind: Literal["qlora"] = Field(
        "qlora", description="qlora = the same on linear layers held in 4 bits (nf4, double quantization)."
    )


AdapterConfig = Annotated[NoAdapterConfig | LoRAConfig | QLoRAConfig, Field(discriminator="kind")]
