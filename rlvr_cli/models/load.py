"""Load a causal language model and its tokenizer; every way this can go wrong is one plain message."""

from __future__ import annotations

import os
from typing import Any

from rlvr_cli.config.errors import UserError
from rlvr_cli.models.source import (
    ModelSource,
    connection_problem,
    is_cached,
    is_offline,
    prompt_style,
    resolve_model,
    unreachable,
)

__all__ = ["ModelSource", "eos_token_ids", "load_model", "prompt_style", "quiet_hub", "resolve_model"]


def quiet_hub() -> None:
    """Turn off the telemetry and progress bars of the Hugging Face libraries.

    Call it before they are imported: they read these variables once.
    """
    for variable in ("HF_HUB_DISABLE_TELEMETRY", "HF_HUB_DISABLE_PROGRESS_BARS"):
        os.environ.setdefault(variable, "1")
    for variable in ("TRANSFORMERS_VERBOSITY", "HF_HUB_VERBOSITY"):
        os.environ.setdefault(variable, "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def load_model(name: str, *, revision: str | None = None, dtype: str = "auto", device: Any = "cpu") -> tuple[Any, Any]:
    """The model, in eval mode on `device`, and its tokenizer (which always has a padding token).

    dtype: "float32", "bfloat16", or "auto" (float32 on a CPU; bfloat16 on a GPU that has it, else float32).
    Only safetensors weights are read and no code from the model's repository is run.
    Raises UserError when the model cannot be found, read or used.
    """
    source = resolve_model(name, revision=revision)
    options: dict[str, Any] = {"trust_remote_code": False}
    if source.kind == "hub":
        options |= _hub_options(source, revision)
    quiet_hub()
    import torch
    from huggingface_hub.errors import StrictDataclassError
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    target = torch.device(device)
    try:
        tokenizer = AutoTokenizer.from_pretrained(source.location, **options)
        model, report = AutoModelForCausalLM.from_pretrained(
            source.location,
            dtype=_dtype(dtype, target),
            use_safetensors=True,
            output_loading_info=True,
            **options,
        )
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError, StrictDataclassError) as error:
        raise UserError(_explain(source, revision, error)) from error
    if report["missing_keys"]:
        missing = sorted(report["missing_keys"])
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise UserError(
            f"model: the weights of {name} lack {', '.join(missing[:3])}{more}; they do not fit its config.json"
        )
    if len(tokenizer) > model.get_input_embeddings().num_embeddings:
        raise UserError(
            f"model: the tokenizer of {name} has {len(tokenizer)} tokens, the model only "
            f"{model.get_input_embeddings().num_embeddings}; they do not belong together"
        )
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token_id is None:
            raise UserError(f"model: the tokenizer of {name} has no end-of-sequence token, so nothing would ever end")
        tokenizer.pad_token = tokenizer.eos_token
    return model.to(target).eval(), tokenizer


def eos_token_ids(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Every token that ends a completion: the tokenizer's, and those of the model's generation config."""
    configured = getattr(model.generation_config, "eos_token_id", None)
    ids = configured if isinstance(configured, list) else [configured]
    return tuple(sorted({i for i in [*ids, tokenizer.eos_token_id] if i is not None}))


def _dtype(name: str, device: Any) -> Any:
    import torch

    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" and torch.cuda.is_bf16_supported() else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]


def _hub_options(source: ModelSource, revision: str | None) -> dict[str, Any]:
    """Arguments for a hub model; without a connection, whatever has been downloaded before is used."""
    options: dict[str, Any] = {"revision": revision or "main"}
    if not is_offline() and (problem := connection_problem()):
        if not is_cached(source.location):
            raise UserError(unreachable(source.location, revision, problem))
        options["local_files_only"] = True
    return options


def _explain(source: ModelSource, revision: str | None, error: Exception) -> str:
    """The message for an error of transformers, which says many things in many lines."""
    text = " ".join(str(error).split()) or type(error).__name__
    if "trust_remote_code" in text:
        return f"model: {source.name} needs Python code from its own repository, which rlvr never runs"
    if len(text) > 300:
        text = text[:297] + "..."
    if source.kind == "hub":
        return unreachable(source.location, revision, text.rstrip("."))
    return f"model: {source.location} cannot be loaded: {text}"
