"""The text of each token of a completion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers.decoders import DecodeStream


def token_pieces(tokenizer: Any, ids: Sequence[int]) -> list[str] | None:
    """The text that each token adds: joined, they are the decoded completion, special tokens kept.

    A token that ends inside a character adds "", and the one that completes it the whole character; bytes that never
    make one are left out. None for a tokenizer without a fast backend, which cannot tell.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    stream = DecodeStream(skip_special_tokens=False)
    return [stream.step(backend, token) or "" for token in ids]
