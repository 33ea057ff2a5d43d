"""Load a causal language model and its tokenizer; list its stop tokens, decode single tokens."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import local_path
from rlvr_cli.models.libraries import import_library, quiet_hub, remote_code_allowed
from rlvr_cli.models.source import (
    PRESETS,
    ModelSource,
    find_connection_problem,
    holds_adapter,
    is_cached,
    is_offline,
    prompt_style,
    read_base,
    resolve_model,
    unreachable_message,
)

# Decoders' replacement of incomplete or invalid bytes.
_REPLACEMENT = "\ufffd"
# Maximum tokens of a character, which has up to four bytes; a token may span two characters.
_MAX_CHARACTER_TOKENS = 8


def load_model(
    name: str,
    *,
    revision: str | None = None,
    dtype: str = "auto",
    device: Any = "cpu",
    attention: str | None = None,
    in_4_bits: bool = False,
) -> tuple[Any, Any]:
    """Load the model, in eval mode on `device`, and its tokenizer, which always has a padding token.

    An adapter is merged into its base. Only safetensors are read, and code of the model's repository runs only if
    allowed on the command line. ``dtype`` auto: bfloat16 on a GPU that supports it, else float32. ``in_4_bits``:
    quantize the linear layers (nf4). Raises UserError if the model cannot be found, read or used.
    """
    if in_4_bits:
        check_bitsandbytes()
    source = resolve_model(name, revision=revision)
    # First: it is small, and most problems show here.
    tokenizer = load_tokenizer(name, revision=revision)
    import_library("transformers.modeling_utils")
    import_library("transformers.generation")
    import torch

    from rlvr_cli.models.gpu import disable_cudnn_attention

    if not torch.cuda.is_available():
        # Otherwise DeepSpeed, which PEFT and saving a model import, probes for an accelerator and warns.
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    target = torch.device(device)
    if target.type == "cuda":
        disable_cudnn_attention()
    folder = Path(source.location)
    if source.kind != "hub" and holds_adapter(folder):
        if in_4_bits:
            raise UserError(f"model: {name} is an adapter. Merge it with `rlvr export` to train on it in 4 bits.")
        adapted = load_with_adapter(name, device=device, attention=attention)
        from rlvr_cli.models.adapter import merge_and_unload

        model, target_dtype = merge_and_unload(adapted), _resolve_dtype(dtype, target)
        if model.dtype != target_dtype:
            # Not the buffers: the frequencies of rotary positions stay in float32, as transformers loads them.
            for parameter in model.parameters():
                parameter.data = parameter.data.to(target_dtype)
        model = model.to(target)
        model.config.dtype = model.dtype
    else:
        model = _load_weights(source, revision, dtype, target, attention, in_4_bits)
    if len(tokenizer) > (embeddings := model.get_input_embeddings().num_embeddings):
        raise UserError(
            f"model: the tokenizer of {name} has {len(tokenizer)} tokens, the model only {embeddings}; they must match"
        )
    return model.eval(), tokenizer


def load_with_adapter(name: str, *, device: Any = "cpu", attention: str | None = None) -> Any:
    """Load the base of the adapter folder ``name`` with the adapter in its layers. Raises as :func:`load_model`."""
    folder = Path(resolve_model(name).location)
    base = read_base(folder)
    try:
        model, _ = load_model(
            base.name,
            revision=base.revision,
            dtype=base.dtype,
            device=device,
            attention=attention,
            in_4_bits=base.kind == "qlora",
        )
    except UserError as error:
        raise UserError([f"{folder} is an adapter on {base.name}. {problem}" for problem in error.problems]) from error
    from rlvr_cli.models.adapter import attach_adapter

    return attach_adapter(model, folder, base)


def load_tokenizer(name: str, *, revision: str | None = None) -> Any:
    """Load a model's tokenizer, which always has a padding token. Raises UserError as :func:`load_model`."""
    return _load_tokenizer(resolve_model(name, revision=revision), revision)


def _load_tokenizer(source: ModelSource, revision: str | None) -> Any:
    tokenizer = _from_pretrained("AutoTokenizer", source, revision)
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token_id is None:
            name = source.name
            raise UserError(f"model: the tokenizer of {name} has no end-of-sequence token, so no completion would end")
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


@dataclass(frozen=True)
class ModelFacts:
    """A model's tokenizer, prompt style, the token ids that end a completion, and the longest sequence."""

    tokenizer: Any
    stops: tuple[int, ...]
    style: str
    positions: int | None = None


def load_facts(name: str, *, revision: str | None = None) -> ModelFacts:
    """Load a model's tokenizer and configs; a folder needs no weights. Raises UserError as :func:`load_model`."""
    folder = PRESETS.get(name) or local_path(name)
    source = ModelSource(name, "folder", str(folder)) if folder.is_dir() else resolve_model(name, revision=revision)
    tokenizer = _load_tokenizer(source, revision)
    if source.kind == "folder" and holds_adapter(folder):
        base = read_base(folder)
        source, revision = resolve_model(base.name, revision=base.revision), base.revision
    config, configured = _from_pretrained("AutoConfig", source, revision), None
    with suppress(UserError):  # a model may have no generation config
        configured = _from_pretrained("GenerationConfig", source, revision).eos_token_id
    positions = getattr(config, "max_position_embeddings", None)
    return ModelFacts(tokenizer, combine_eos_token_ids(configured, tokenizer), prompt_style(config), positions)


def _from_pretrained(loader: str, source: ModelSource, revision: str | None) -> Any:
    """Load a tokenizer or a config by ``loader``, a class of transformers. Raises UserError as :func:`load_model`."""
    options = _loader_options(source, revision)
    quiet_hub()
    import transformers

    try:
        return getattr(transformers, loader).from_pretrained(source.location, **options)
    except _load_errors() as error:
        raise UserError(_explain_load_error(source, revision, error)) from error


def check_bitsandbytes() -> None:
    if find_spec("bitsandbytes") is None:
        raise UserError(
            "model.adapter=qlora quantizes the model to 4 bits, which needs bitsandbytes: pip install 'rlvr[qlora]'. "
            "Without it, set model.adapter=lora."
        )


def _load_weights(
    source: ModelSource, revision: str | None, dtype: str, target: Any, attention: str | None, in_4_bits: bool
) -> Any:
    options = _loader_options(source, revision)
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    from rlvr_cli.models.generation import keep_generation_config

    logging.disable_progress_bar()
    if attention is not None:
        options["attn_implementation"] = attention
    if in_4_bits:
        options |= _quantization_options(_resolve_dtype(dtype, target), target)
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            source.location,
            dtype=_resolve_dtype(dtype, target),
            use_safetensors=True,
            output_loading_info=True,
            **options,
        )
    except _load_errors() as error:
        raise UserError(_explain_load_error(source, revision, error, attention)) from error
    if getattr(model, "_hf_peft_config_loaded", False):
        # transformers has loaded the model that adapter_config.json names, with the adapter in its layers.
        raise UserError(
            f"model: {source.name} has an adapter_config.json. If it is an adapter, download it (`hf download`) and "
            "set model.name to its folder; if it is a whole model, remove that file."
        )
    if report["missing_keys"]:
        missing = sorted(report["missing_keys"])
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise UserError(
            f"model: the weights of {source.name} lack {', '.join(missing[:3])}{more}; they do not fit its config.json"
        )
    keep_generation_config(model)
    if not in_4_bits:
        return model.to(target)
    for layer in model.modules():
        if type(layer).__name__ == "Linear4bit":
            # In eval mode on a CPU with AVX-512 it would compute in bfloat16, unlike in training.
            layer.support_avx512bf16_for_cpu = False
    return model


def _quantization_options(dtype: Any, target: Any) -> dict[str, Any]:
    """Return transformers' arguments for 4-bit linear layers (nf4, double quantization; QLoRA, arXiv:2305.14314)."""
    import torch
    from transformers import BitsAndBytesConfig

    from rlvr_cli.models.gpu import has_bfloat16

    bfloat16 = target.type == "cuda" and has_bfloat16()
    quantization = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16 if bfloat16 else dtype,
    )
    return {"quantization_config": quantization, "device_map": {"": target}}


def eos_token_ids(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Return the ids that end a completion: the tokenizer's, and those of the model's generation config."""
    return combine_eos_token_ids(getattr(model.generation_config, "eos_token_id", None), tokenizer)


def combine_eos_token_ids(configured: int | list[int] | None, tokenizer: Any) -> tuple[int, ...]:
    """Return the ids that end a completion: a generation config's ``configured`` ones, and the tokenizer's."""
    ids = configured if isinstance(configured, list) else [configured]
    return tuple(sorted({i for i in [*ids, tokenizer.eos_token_id] if i is not None}))


def _resolve_dtype(name: str, device: Any) -> Any:
    import torch

    from rlvr_cli.models.gpu import has_bfloat16

    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" and has_bfloat16() else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]


def _loader_options(source: ModelSource, revision: str | None) -> dict[str, Any]:
    """Return the arguments of transformers' loaders, which use the cache without a connection."""
    options: dict[str, Any] = {"trust_remote_code": remote_code_allowed()}
    if source.kind != "hub":
        return options
    options["revision"] = revision or "main"
    if not is_offline() and (problem := find_connection_problem()):
        if not is_cached(source.location):
            raise UserError(unreachable_message(source.location, revision, problem))
        options["local_files_only"] = True
    return options


def _load_errors() -> tuple[type[Exception], ...]:
    from huggingface_hub.errors import StrictDataclassError
    from safetensors import SafetensorError

    return (OSError, ValueError, TypeError, RuntimeError, KeyError, ImportError, SafetensorError, StrictDataclassError)


def _explain_load_error(
    source: ModelSource, revision: str | None, error: Exception, attention: str | None = None
) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    if "trust_remote_code" in text:
        return (
            f"model: {source.name} needs Python code from its own repository, which runs on this machine with your "
            "rights. If you trust it, use --trust-remote-code (with every command: it is not stored)."
        )
    if attention is not None and (
        "attn_implementation" in text or "attention" in text.lower() or "flash" in text.lower()
    ):
        return f"model.attention={attention}: cannot be used with {source.name}: {text[:300].rstrip('.')}."
    if len(text) > 300:
        text = text[:297] + "..."
    if source.kind == "hub":
        return unreachable_message(source.location, revision, text.rstrip("."))
    return f"model: {source.location} cannot be loaded: {text}"


def token_pieces(tokenizer: Any, ids: Sequence[int]) -> list[str] | None:
    """Return the text of each token; joined, they are the decoded completion with special tokens.

    A token that ends inside a character is "", and the token that completes the character has all of it. The decoding
    of invalid bytes depends on the tokenizer and their neighbours. None for a tokenizer without a fast backend.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None

    def decode(first: int, end: int) -> str:
        return str(backend.decode(ids[first:end], skip_special_tokens=False))

    pieces = []
    # Tokens are decoded after those of the previous piece, since some lose their space at the start of a text.
    # Not by tokenizers' DecodeStream: it fails on invalid byte sequences.
    context = start = 0
    for end in range(1, len(ids) + 1):
        before, after = decode(context, start), decode(context, end)
        if after.endswith(_REPLACEMENT) and end - start < _MAX_CHARACTER_TOKENS:
            pieces.append("")
            continue
        piece = after[len(before) :] if after.startswith(before) else decode(start, end)
        pieces.append(piece)
        context, start = (start if piece else context), end
    return pieces
