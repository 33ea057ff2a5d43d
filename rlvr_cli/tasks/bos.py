"""The token with which a model's texts begin."""

from __future__ import annotations

from typing import Any


def leading_bos(tokenizer: Any) -> str:
    """What a prompt must begin with, "" for most models.

    Prompts are encoded without added special tokens, so a model that was trained with one needs it in the text.
    """
    ids = tokenizer("")["input_ids"]
    return str(tokenizer.bos_token) if ids and ids[0] == tokenizer.bos_token_id else ""
