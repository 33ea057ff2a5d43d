"""The text of each token is the completion's own, in whatever pieces it was cut."""

from __future__ import annotations

import random

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from rlvr_cli.models.load import token_pieces

TEXTS = ("plain words", "ünïcödé", "a 👩‍👩‍👧 family", "汉字 and 漢字", "", " leading", "two\n\nlines\t")


def byte_level() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(["words words"], trainers.BpeTrainer(vocab_size=270, initial_alphabet=alphabet))
    return PreTrainedTokenizerFast(tokenizer_object=backend)


@pytest.mark.parametrize("text", TEXTS)
def test_the_pieces_joined_are_the_text(text: str) -> None:
    tokenizer = byte_level()
    ids = tokenizer(text)["input_ids"]
    pieces = token_pieces(tokenizer, ids)
    assert pieces is not None and len(pieces) == len(ids)
    assert "".join(pieces) == text == tokenizer.decode(ids, clean_up_tokenization_spaces=False)


def test_a_character_over_several_tokens_belongs_to_its_last() -> None:
    tokenizer = byte_level()
    ids = tokenizer("x汉")["input_ids"]
    assert token_pieces(tokenizer, ids) == ["x", "", "", "汉"]
    assert token_pieces(tokenizer, ids[:-1]) == ["x", "", ""]


def byte_fallback() -> PreTrainedTokenizerFast:
    """As SentencePiece's: bytes are tokens of their own, and one that fits none makes the whole row of them none."""
    names = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a"]
    vocabulary = {name: number for number, name in enumerate(names)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[("▁", "a")], byte_fallback=True, unk_token="<unk>"))
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(parts)
    return PreTrainedTokenizerFast(tokenizer_object=backend)


@pytest.mark.parametrize("tokenizer", [byte_level(), byte_fallback()])
def test_a_policy_that_writes_any_bytes_stops_nothing(tokenizer: PreTrainedTokenizerFast) -> None:
    """A collapsed policy samples what is no text, and numbers that no token has."""
    generator = random.Random(0)
    for _ in range(300):
        ids = [generator.randrange(len(tokenizer) + 3) for _ in range(generator.randrange(60))]
        pieces = token_pieces(tokenizer, ids)
        assert pieces is not None and len(pieces) == len(ids)
        text = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        assert "\ufffd" in text or "".join(pieces) == text
