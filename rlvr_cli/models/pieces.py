"""The text of each token of a completion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# What decoders put for bytes that are no character, or not yet one.
REPLACEMENT = "\ufffd"
# Tokens that are waited for to make a character: of up to four bytes, and tokens may straddle two characters.
MOST_TOKENS = 8


def token_pieces(tokenizer: Any, ids: Sequence[int]) -> list[str] | None:
    """The text that each token adds: joined, they are the decoded completion, special tokens kept.

    A token that ends inside a character adds "", and the one that completes it the whole character. What becomes of
    bytes that never make one is the tokenizer's to say: decoded with other neighbours they may look otherwise. None for
    a tokenizer without a fast backend, which cannot tell.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None

    def text(first: int, end: int) -> str:
        return str(backend.decode(ids[first:end], skip_special_tokens=False))

    pieces = []
    # Tokens are decoded behind those of the piece before them, since at the start of a text some lose their space.
    # Not by tokenizers' DecodeStream: it fails where a byte makes the bytes before it none of a character.
    context = begun = 0
    for end in range(1, len(ids) + 1):
        before, after = text(context, begun), text(context, end)
        if after.endswith(REPLACEMENT) and end - begun < MOST_TOKENS:
            pieces.append("")
            continue
        piece = after[len(before) :] if after.startswith(before) else text(begun, end)
        pieces.append(piece)
        context, begun = (begun if piece else context), end
    return pieces
