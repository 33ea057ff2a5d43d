"""Load a model's tokenizer and prompt settings without its weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr_cli.core.errors import UserError
from rlvr_cli.models.libraries import quiet_hub, remote_code_allowed
from rlvr_cli.models.load import combine_eos_token_ids
from rlvr_cli.models.source import (
    find_connection_problem,
    holds_adapter,
    is_cached,
    is_offline,
    prompt_style,
    read_base,
    resolve_model,
)


@dataclass(frozen=True)
class ModelFacts:
    """A model's tokenizer, prompt style, the token ids that end a completion, and the longest sequence."""

    tokenizer: Any
    stops: tuple[int, ...]
    style: str
    positions: int | None = None


def load_facts(location: str, on_hub: bool, *, revision: str | None) -> ModelFacts:
    """Load the tokenizer and configs of a model, a folder or a hub id. Raises UserError without a usable one."""
    quiet_hub()
    options: dict[str, Any] = {"trust_remote_code": remote_code_allowed()}
    if on_hub:
        options["revision"] = revision or "main"
        if is_cached(location) and (is_offline() or find_connection_problem()):
            options["local_files_only"] = True
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    base, base_options = location, options
    if not on_hub and holds_adapter(Path(location)):
        adapter_base = read_base(Path(location))
        source = resolve_model(adapter_base.name, revision=adapter_base.revision)
        base, base_options = source.location, {"trust_remote_code": remote_code_allowed()}
        if source.kind == "hub" and adapter_base.revision:
            base_options["revision"] = adapter_base.revision
    try:
        tokenizer = AutoTokenizer.from_pretrained(location, **options)
        config = AutoConfig.from_pretrained(base, **base_options)
    except (OSError, ValueError, KeyError) as error:
        text = " ".join(str(error).split())
        raise UserError(
            f"model: the tokenizer of {location} cannot be loaded ({text if len(text) < 300 else text[:297] + '...'})"
        ) from error
    del base_options["trust_remote_code"]
    try:
        configured = GenerationConfig.from_pretrained(base, **base_options).eos_token_id
    except (OSError, ValueError):
        configured = None
    positions = getattr(config, "max_position_embeddings", None)
    return ModelFacts(tokenizer, combine_eos_token_ids(configured, tokenizer), prompt_style(config), positions)
