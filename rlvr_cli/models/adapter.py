"""Attach, save and merge low-rank adapters (LoRA, QLoRA)."""

from __future__ import annotations

import copy
import hashlib
import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model, set_peft_model_state_dict
from peft.tuners.lora import LoraLayer, ParamWrapper
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rlvr_cli.config.model import LoRAConfig, NoAdapterConfig, QLoRAConfig
from rlvr_cli.core.errors import UserError
from rlvr_cli.models.sampling.engine import Completions, Engine
from rlvr_cli.models.source import ADAPTER_BASE, ADAPTER_WEIGHTS, AdapterBase

# PEFT's name of the adapter, in parameter names but not in tensor names of files.
NAME = "default"
VALUES_PER_TENSOR = 1024
# PEFT's false warning for fused experts: it searches for modules of these names, but adapts parameters.
PATTERNS_OF_PARAMETERS = "The following (rank|alpha)_pattern keys did not match"


def peft_config(adapter: NoAdapterConfig | LoRAConfig | QLoRAConfig) -> LoraConfig | None:
    """Return PEFT's configuration of the adapter; None if every weight is trained."""
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
    """Raise UserError for targets that are not linear layers of ``model``, or the head.

    Also for linear routers with further outputs (Llama 4, Phi-MoE): PEFT would fail in their first forward pass.
    """
    linear: dict[str, None] = {}
    head = model.get_output_embeddings()
    excluded = set()
    for path, module in model.named_modules():
        name = path.rsplit(".", 1)[-1]
        if isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D":
            linear.setdefault(name)
        if module is head or _has_extra_outputs(module):
            excluded.add(name)
    allowed = [name for name in linear if name not in excluded]
    routers = [path for path, module in model.named_modules() if _has_extra_outputs(module)]
    if adapter.targets is None and routers:
        raise UserError(
            f"model.adapter: {routers[0]} of this model is a linear layer with extra outputs and supports no adapter. "
            f"Set the layers to adapt: 'model.adapter.targets=[{', '.join(allowed)}]'."
        )
    invalid = [name for name in adapter.targets or () if name not in allowed]
    if invalid:
        raise UserError(
            f"model.adapter.targets: {', '.join(invalid)}: not a linear layer of this model that supports an adapter. "
            f"Allowed: {', '.join(allowed)}."
        )


def _has_extra_outputs(module: Any) -> bool:
    is_custom = type(module).__module__.startswith("transformers.models.")
    return isinstance(module, nn.Linear) and is_custom and type(module).forward is not nn.Linear.forward


def experts_without_adapter(adapter: LoRAConfig | QLoRAConfig, model: Any) -> tuple[str, ...]:
    """Return the weights of experts in a mixture (``experts.down_proj``) that get no adapter.

    transformers has one tensor for all experts of a layer, which PEFT adapts in supported models. Tested on the meta
    device. Raises UserError if PEFT fails.
    """
    if not _expert_weights(model):
        return ()
    with torch.device("meta"):
        plain = type(model)(copy.deepcopy(model.config))
    try:
        wrapped = _add_adapter(plain, peft_config(adapter), low_cpu_mem_usage=True)
    except ValueError as error:
        if not adapter.dropout:
            raise UserError(f"model.adapter: cannot adapt this mixture of experts: {error}") from error
        raise UserError(
            f"model.adapter.dropout={adapter.dropout:g}: adapters on the experts of a mixture support no dropout. Set "
            "it to 0, or other layers in model.adapter.targets."
        ) from error
    adapted = {
        (id(layer.get_base_layer()), layer.parameter_name)
        for layer in wrapped.modules()
        if isinstance(layer, ParamWrapper)
    }
    without = {name for key, name in _expert_weights(wrapped).items() if key not in adapted}
    return tuple(sorted(without))


def _expert_weights(model: Any) -> dict[tuple[int, str], str]:
    """Return (id of the module, name in it) -> full name of every weight with a matrix for each expert."""
    names = {}
    for path, module in model.named_modules():
        *_, module_name = path.replace(".base_layer", "").split(".")
        for name, weight in module.named_parameters(recurse=False):
            if "expert" in module_name and weight.ndim == 3:
                names[id(module), name] = f"{module_name}.{name}"
    return names


def trained_tensors(model: Any) -> dict[str, Tensor]:
    return {_file_name(name): weight.detach() for name, weight in model.named_parameters() if weight.requires_grad}


@torch.no_grad()
def load_trained_tensors(model: Any, tensors: dict[str, Tensor]) -> None:
    """Load the weights of :func:`trained_tensors`. Raises ValueError for other layers or shapes than the model's."""
    weights = {_file_name(name): weight for name, weight in model.named_parameters() if ".lora_" in name}
    if weights.keys() != tensors.keys():
        raise ValueError(f"the adapter has other layers than the model: {sorted(weights.keys() ^ tensors.keys())[:3]}")
    for name, weight in weights.items():
        if weight.shape != tensors[name].shape:
            raise ValueError(f"the shape of {name} must be {tuple(weight.shape)}; got {tuple(tensors[name].shape)}")
        weight.copy_(tensors[name])


def _file_name(parameter: str) -> str:
    return parameter.replace(f".{NAME}.", ".")


def fingerprint(model: Any) -> str:
    """Return the SHA-256 of the names and shapes of a model's tensors and of about 1024 evenly spaced values of each.

    Excludes weights in 4 bits, whose packing depends on the device.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        if not tensor.is_floating_point() or ".weight." in name:
            continue
        flat = tensor.detach().reshape(-1)
        values = flat[:: max(1, flat.numel() // VALUES_PER_TENSOR)].float().cpu().contiguous()
        digest.update(f"{name}:{tuple(tensor.shape)};".encode())
        digest.update(values.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


@contextmanager
def merge_adapters(model: Any) -> Iterator[Any]:
    """Merge the adapters into dequantized linear layers inside the context; yield the base model.

    Layers are replaced and restored, so that the base weights are never rounded.
    """
    base = _base_model(model)
    replaced = dict(_wrapped_layers(base))
    for name, layer in replaced.items():
        base.set_submodule(name, _merge_layer(layer, base.dtype))
    try:
        yield base
    finally:
        for name, layer in replaced.items():
            base.set_submodule(name, layer)


def merge_and_unload(model: Any) -> Any:
    """Merge the adapters of a PEFT model into its base permanently and dequantize it; return the base."""
    base = _base_model(model)
    for name, layer in _wrapped_layers(base):
        base.set_submodule(name, _merge_layer(layer, base.dtype))
    for attribute in ("peft_config", "hf_quantizer", "quantization_method", "is_loaded_in_4bit", "is_quantized"):
        if attribute in vars(base):
            delattr(base, attribute)
    if hasattr(base.config, "quantization_config"):
        del base.config.quantization_config
    base._hf_peft_config_loaded = False
    return base.requires_grad_(True)  # as after loading, for further training


def _base_model(model: Any) -> Any:
    # The base of a PEFT model also has the attribute peft_config.
    return model.get_base_model() if isinstance(model, PeftModel) else model


def _wrapped_layers(base: Any) -> list[tuple[str, Any]]:
    """Return the outermost layers with adapters or in 4 bits."""
    layers: list[tuple[str, Any]] = []
    for name, layer in base.named_modules():
        inside = layers and name.startswith(f"{layers[-1][0]}.")
        if not inside and (isinstance(layer, LoraLayer) or _in_4_bits(layer)):
            layers.append((name, layer))
    return layers


def _in_4_bits(layer: Any) -> bool:
    return type(layer).__name__ == "Linear4bit" and hasattr(layer.weight, "quant_state")


def _adapted_weight(layer: LoraLayer) -> str:
    """Return the name of the adapted parameter in the base layer; PEFT adapts experts by parameter."""
    return layer.parameter_name if isinstance(layer, ParamWrapper) else "weight"


@torch.no_grad()
def _merge_layer(layer: Any, dtype: torch.dtype) -> nn.Module:
    adapters, plain = [], layer
    while isinstance(plain, LoraLayer):  # one wrapper for each adapted parameter of a module
        adapters.append(plain)
        plain = plain.base_layer
    quantized = _in_4_bits(plain)
    weights = {"weight": _dequantize(plain)} if quantized else {}
    for adapter in adapters:
        name, delta = _adapted_weight(adapter), _delta_weight(adapter)
        weight = weights.get(name, getattr(plain, name))
        exact = torch.promote_types(torch.promote_types(weight.dtype, delta.dtype), torch.float32)
        weights[name] = weight.to(exact) + delta.to(exact)
    # The sum is rounded once, to the format of the weights.
    parameters = {
        name: nn.Parameter(weight.to(dtype if quantized else getattr(plain, name).dtype), requires_grad=False)
        for name, weight in weights.items()
    }
    if quantized:
        linear = nn.Linear(plain.in_features, plain.out_features, bias=plain.bias is not None, device="meta")
        linear.weight = parameters["weight"]
        if plain.bias is not None:
            linear.bias = nn.Parameter(plain.bias.detach().to(dtype), requires_grad=False)
        return linear
    # A deep copy with the new weights, sharing the other tensors.
    shared = {id(tensor): tensor for tensor in (*plain.parameters(), *plain.buffers())}
    copied: nn.Module = copy.deepcopy(
        plain, {**shared, **{id(getattr(plain, name)): parameters[name] for name in parameters}}
    )
    return copied


def _delta_weight(layer: Any) -> Tensor:
    """Return the adapter's update of the layer's weight, in the adapter's number format."""
    (adapter,) = layer.active_adapters
    if not isinstance(layer, ParamWrapper):
        delta: Tensor = layer.get_delta_weight(adapter)
        return delta
    # PEFT rounds it to the parameter's format, and reads the parameter only for that.
    parameter, dtype = layer.get_param(), layer.lora_B[adapter].weight.dtype
    original, parameter.data = parameter.data, parameter.data.new_empty(0, dtype=dtype)
    try:
        delta = layer.get_delta_weight(adapter)
    finally:
        parameter.data = original
    return delta


def _dequantize(layer: Any) -> Tensor:
    functional: Any = import_module("bitsandbytes.functional")
    weight: Tensor = functional.dequantize_4bit(layer.weight.data, layer.weight.quant_state)
    return weight


def wrap_engine(engine: Engine, *, merges: bool) -> Engine:
    """Wrap ``engine`` for PEFT models: merge the adapters, or pass the base with adapters in its layers."""

    def sample(model: Any, *arguments: Any, **named: Any) -> Completions:
        if not merges:
            return engine(model.get_base_model(), *arguments, **named)
        with merge_adapters(model) as merged:
            return engine(merged, *arguments, **named)

    return sample


class AdapterFolder:
    """The files of an adapter checkpoint: PEFT's two files, the base's name and config.

    Has the interface of a model that a trainer saves: ``config`` and ``save_pretrained``.
    """

    def __init__(self, model: Any, base: AdapterBase) -> None:
        self.config, self.peft, self.base = model.get_base_model().config, model.peft_config[NAME], base

    def save_pretrained(self, folder: Path, state_dict: dict[str, Tensor]) -> None:
        """Write the adapters' weights ``state_dict`` (names of :func:`trained_tensors`) to ``folder``."""
        weights = {name: weight.detach().cpu().contiguous() for name, weight in state_dict.items()}
        save_file(weights, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
        peft = copy.copy(self.peft)
        peft.base_model_name_or_path, peft.revision, peft.inference_mode = self.base.name, self.base.revision, True
        peft.exclude_modules = None  # the value head, which is not saved here
        for name, value in vars(peft).items():
            if isinstance(value, set):
                setattr(peft, name, sorted(value))  # otherwise equal runs write it in different orders
        peft.save_pretrained(str(folder))
        (folder / ADAPTER_BASE).write_text(json.dumps(asdict(self.base), indent=2) + "\n", encoding="utf-8")
        config = copy.deepcopy(self.config)
        if hasattr(config, "quantization_config"):
            del config.quantization_config
        config.save_pretrained(folder)


def attach_adapter(model: Any, folder: Path, base: AdapterBase) -> Any:
    """Attach the frozen adapter in ``folder`` to ``model``. Raises UserError for another model than ``base``."""
    if base.fingerprint is not None and fingerprint(model) != base.fingerprint:
        raise UserError(
            f"model: {folder} is an adapter on {base.name}, whose weights have changed since the adapter was trained. "
            "Restore the original weights, or set the path of a copy in base.json."
        )
    try:
        config = LoraConfig.from_pretrained(str(folder))
        config.base_model_name_or_path = model.config._name_or_path  # otherwise PEFT warns about the model's name
        adapted = _add_adapter(model, config)
        _check_mergeable(adapted)
        # As PEFT does, which reads adapters from before transformers fused the experts of a layer.
        report = set_peft_model_state_dict(adapted, load_file(folder / ADAPTER_WEIGHTS))
        other = {*report.unexpected_keys, *(name for name in report.missing_keys if ".lora_" in name)}
        if other:
            raise ValueError(f"the adapter has other layers than the model: {sorted(other)[:3]}")
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise UserError(f"model: the adapter in {folder} does not fit {base.name}: {error}") from error
    return adapted.eval()


def _add_adapter(model: Any, config: LoraConfig | None, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # transformers warns of PEFT's calls
        warnings.filterwarnings("ignore", PATTERNS_OF_PARAMETERS)
        return get_peft_model(model, config, **options)


def _check_mergeable(model: Any) -> None:
    """Raise ValueError if merging is more than adding B A to the weights, or would change tied weights."""
    base = model.get_base_model()
    ends = [base.get_input_embeddings(), base.get_output_embeddings()]
    tied = ends[1] is not None and ends[0].weight is ends[1].weight
    for name, layer in base.named_modules():
        if not isinstance(layer, LoraLayer):
            continue
        if layer.lora_variant or any(layer.lora_bias.values()):
            variants = [type(variant).__name__ for variant in layer.lora_variant.values()] or ["lora_bias"]
            raise ValueError(f"it is not a plain LoRA adapter ({', '.join(variants)}); merge it with PEFT first")
        adapted = getattr(layer.get_base_layer(), _adapted_weight(layer))
        if tied and any(end.weight is adapted for end in ends):
            raise ValueError(f"it adapts {name}, whose weights are tied; merge it with PEFT first")
