"""The text of each token is the completion's own, in whatever pieces it was cut."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from rlvr_cli.models.pieces import token_pieces

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


def test_a_tokenizer_without_a_fast_backend_cannot_tell() -> None:
    assert token_pieces(object(), [1, 2]) is None
