"""Low-rank adapters (LoRA, QLoRA): where they are put, what is saved of them, and the plain model they amount to."""

from __future__ import annotations

import copy
import hashlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rlvr_cli.config.model import LoRAConfig, NoAdapterConfig, QLoRAConfig
from rlvr_cli.core.errors import UserError
from rlvr_cli.models.sampling.engine import Completions, Engine
from rlvr_cli.models.source import ADAPTER_BASE, ADAPTER_WEIGHTS, AdapterBase

# PEFT's name of the one adapter, which stands in the names of parameters but not in those of files.
NAME = "default"
SAMPLED_FROM_EACH = 1024


def peft_config(adapter: NoAdapterConfig | LoRAConfig | QLoRAConfig) -> LoraConfig | None:
    """PEFT's configuration of the adapter, or None where every weight is trained."""
    if isinstance(adapter, NoAdapterConfig):
        return None
    return LoraConfig(
        r=adapter.rank,
        lora_alpha=adapter.alpha,
        target_modules="all-linear" if adapter.targets is None else list(adapter.targets),
        lora_dropout=adapter.dropout,
        bias="none",
        task_type="CAUSAL_LM",
    )


def check_targets(adapter: LoRAConfig | QLoRAConfig, model: Any) -> None:
    """Raise UserError where ``model`` has no linear layer of a name, or it is the head."""
    linear: dict[str, None] = {}
    head = model.get_output_embeddings()
    for path, module in model.named_modules():
        if isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D":
            linear.setdefault(path.rsplit(".", 1)[-1])
    heads = {path.rsplit(".", 1)[-1] for path, module in model.named_modules() if module is head}
    allowed = [name for name in linear if name not in heads]
    wrong = [name for name in adapter.targets or () if name not in allowed]
    if wrong:
        raise UserError(
            f"model.adapter.targets: {', '.join(wrong)}: not a linear layer of this model that can take an adapter. "
            f"Allowed: {', '.join(allowed)}."
        )


def trained_tensors(model: Any) -> dict[str, Tensor]:
    """All that training changes, by its name in PEFT's files: the adapters' weights."""
    return {_file_name(name): weight.detach() for name, weight in model.named_parameters() if weight.requires_grad}


@torch.no_grad()
def load_trained(model: Any, tensors: dict[str, Tensor]) -> None:
    """The inverse of :func:`trained_tensors`. Raises ValueError for other layers or shapes than the model's."""
    own = {_file_name(name): weight for name, weight in model.named_parameters() if ".lora_" in name}
    if own.keys() != tensors.keys():
        raise ValueError(f"the adapter has other layers than the model: {sorted(own.keys() ^ tensors.keys())[:3]}")
    for name, weight in own.items():
        if weight.shape != tensors[name].shape:
            raise ValueError(f"{name} has the shape {tuple(tensors[name].shape)}, not {tuple(weight.shape)}")
        weight.copy_(tensors[name])


def _file_name(parameter: str) -> str:
    return parameter.replace(f".{NAME}.", ".")


def fingerprint(model: Any) -> str:
    """SHA-256 over names and shapes of a model's tensors and up to 1024 numbers spread over each: quick, and another
    one for another model, or for one that was trained on.

    Of a model in 4 bits, only what is not: how the others are packed depends on the device.
    """
    whole = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        if not tensor.is_floating_point() or ".weight." in name:
            continue
        flat = tensor.detach().reshape(-1)
        some = flat[:: max(1, flat.numel() // SAMPLED_FROM_EACH)].float().cpu().contiguous()
        whole.update(f"{name}:{tuple(tensor.shape)};".encode())
        whole.update(some.view(torch.uint8).numpy().tobytes())
    return whole.hexdigest()


@contextmanager
def merged(model: Any) -> Iterator[Any]:
    """Inside, the model as a plain one: its linear layers hold the adapted weights, none is in 4 bits.

    The layers are replaced and afterwards put back, so that no rounding ever reaches the base weights. A model without
    adapters and 4-bit layers is given as it is.
    """
    base = _base_of(model)
    replaced = dict(_special_layers(base))
    for name, layer in replaced.items():
        base.set_submodule(name, _plain_layer(layer, base.dtype))
    try:
        yield base
    finally:
        for name, layer in replaced.items():
            base.set_submodule(name, layer)


def merge(model: Any) -> Any:
    """The base model of a PEFT model with the adapters merged into it for good, and nothing left in 4 bits."""
    base = _base_of(model)
    for name, layer in _special_layers(base):
        base.set_submodule(name, _plain_layer(layer, base.dtype))
    for attribute in ("peft_config", "hf_quantizer", "quantization_method", "is_loaded_in_4bit", "is_quantized"):
        if attribute in vars(base):
            delattr(base, attribute)
    if hasattr(base.config, "quantization_config"):
        del base.config.quantization_config
    base._hf_peft_config_loaded = False
    return base


def _base_of(model: Any) -> Any:
    # The base of a PEFT model has the attribute peft_config too.
    return model.get_base_model() if isinstance(model, PeftModel) else model


def _special_layers(base: Any) -> list[tuple[str, Any]]:
    """Layers with an adapter, and those in 4 bits without one."""
    adapted = {name: layer for name, layer in base.named_modules() if isinstance(layer, LoraLayer)}
    quantized = {
        name: layer
        for name, layer in base.named_modules()
        if _in_4_bits(layer) and not any(name.startswith(f"{outer}.") for outer in adapted)
    }
    return [*adapted.items(), *quantized.items()]


def _in_4_bits(layer: Any) -> bool:
    return type(layer).__name__ == "Linear4bit" and hasattr(layer.weight, "quant_state")


@torch.no_grad()
def _plain_layer(layer: Any, dtype: torch.dtype) -> nn.Module:
    plain = layer.get_base_layer() if isinstance(layer, LoraLayer) else layer
    quantized = _in_4_bits(plain)
    weight = _dequantized(plain) if quantized else plain.weight
    if isinstance(layer, LoraLayer):
        (adapter,) = layer.active_adapters
        delta = layer.get_delta_weight(adapter)
        # The sum is rounded once, to the format of the weights.
        exact = torch.promote_types(torch.promote_types(weight.dtype, delta.dtype), torch.float32)
        weight = (weight.to(exact) + delta.to(exact)).to(dtype if quantized else weight.dtype)
    else:
        weight = weight.to(dtype)
    made = nn.Parameter(weight, requires_grad=False)
    if quantized:
        linear = nn.Linear(plain.in_features, plain.out_features, bias=plain.bias is not None, device="meta")
        linear.weight = made
        if plain.bias is not None:
            linear.bias = nn.Parameter(plain.bias.detach().to(dtype), requires_grad=False)
        return linear
    # A deep copy that takes the new weight for the old one, and shares the bias.
    copied: nn.Module = copy.deepcopy(plain, {id(plain.weight): made, id(plain.bias): plain.bias})
    return copied


def _dequantized(layer: Any) -> Tensor:
    functional: Any = import_module("bitsandbytes.functional")
    weight: Tensor = functional.dequantize_4bit(layer.weight.data, layer.weight.quant_state)
    return weight


def engine_for_adapters(engine: Engine, *, merges: bool) -> Engine:
    """``engine`` for a PEFT model: it is given the plain model with the adapters merged into it.

    Args:
        merges: False gives the base with the adapters in its layers, which needs no second copy of the weights.
    """

    def sample(model: Any, *arguments: Any, **named: Any) -> Completions:
        if not merges:
            return engine(model.get_base_model(), *arguments, **named)
        with merged(model) as plain:
            return engine(plain, *arguments, **named)

    return sample


class AdapterFolder:
    """What a checkpoint of adapters holds in place of a model: PEFT's two files, the base's name and config.

    It has the two things that a trainer asks of a model that is saved: ``config`` and ``save_pretrained``.
    """

    def __init__(self, model: Any, base: AdapterBase) -> None:
        self.config, self.peft, self.base = model.get_base_model().config, model.peft_config[NAME], base

    def save_pretrained(self, folder: Path, state_dict: dict[str, Tensor]) -> None:
        """Write the adapters' weights ``state_dict`` (names of :func:`trained_tensors`) to ``folder``."""
        weights = {name: weight.detach().cpu().contiguous() for name, weight in state_dict.items()}
        save_file(weights, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
        peft = copy.copy(self.peft)
        peft.base_model_name_or_path, peft.revision, peft.inference_mode = self.base.name, self.base.revision, True
        peft.exclude_modules = None  # a value head, which the model has in training alone
        peft.save_pretrained(str(folder))
        (folder / ADAPTER_BASE).write_text(self.base.text(), encoding="utf-8")
        described = copy.deepcopy(self.config)
        if hasattr(described, "quantization_config"):
            del described.quantization_config
        described.save_pretrained(folder)


def attach(model: Any, folder: Path, base: AdapterBase) -> Any:
    """``model``, the base of the adapter in ``folder``, as a PEFT model with it; nothing is trained.

    Raises:
        UserError: it is another model than the adapter was trained on, or the adapter does not fit it.
    """
    if base.fingerprint is not None and fingerprint(model) != base.fingerprint:
        raise UserError(
            f"model: {folder} is an adapter on {base.name}, whose weights have changed since the adapter was trained. "
            "Restore the original weights, or set their folder in base.json."
        )
    try:
        config = LoraConfig.from_pretrained(str(folder))
        config.base_model_name_or_path = model.config._name_or_path  # else PEFT warns that the model has another name
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of transformers, about what PEFT calls
            adapted = get_peft_model(model, config)
        _check_mergeable(adapted)
        load_trained(adapted, load_file(folder / ADAPTER_WEIGHTS))
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"model: the adapter in {folder} does not fit {base.name}: {error}") from error
    return adapted.eval()


def _check_mergeable(model: Any) -> None:
    """Raise ValueError where more than B A would have to be added to the base's weights, or to two layers at once."""
    base = model.get_base_model()
    ends = [base.get_input_embeddings(), base.get_output_embeddings()]
    tied = ends[1] is not None and ends[0].weight is ends[1].weight
    for name, layer in base.named_modules():
        if not isinstance(layer, LoraLayer):
            continue
        if layer.lora_variant or any(layer.lora_bias.values()):
            kinds = [type(variant).__name__ for variant in layer.lora_variant.values()] or ["lora_bias"]
            raise ValueError(f"it is not a plain LoRA adapter ({', '.join(kinds)}); merge it with PEFT first")
        if tied and any(end.weight is layer.get_base_layer().weight for end in ends):
            raise ValueError(f"it adapts {name}, which shares its weights; merge it with PEFT first")


def load_adapter_of_checkpoint(model: Any, checkpoint: Path) -> None:
    """Load what :class:`AdapterFolder` wrote into ``model``, to train on."""
    load_trained(model, load_file(checkpoint / ADAPTER_WEIGHTS))
