"""The lab's model and its tokenizer: a tiny Qwen3, one id for each word of the compact form."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from experiments.lab.form import ModelSize

PAD, END, UNKNOWN = "<pad>", "</s>", "<unk>"


def make_tokenizer(vocabulary: Sequence[str]) -> PreTrainedTokenizerFast:
    """A fast tokenizer with ids 0 to 2 for padding, end and unknown words, then the ``vocabulary`` in order.

    Decoding puts single spaces between words, so `decode(encode(text)) == text` for every text of the compact form.
    """
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit

    words = [PAD, END, UNKNOWN, *vocabulary]
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        clean_up_tokenization_spaces=False,
        model_max_length=256,
    )


def make_model(size: ModelSize, tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    """A freshly initialised float32 model whose vocabulary is the tokenizer's; `seed` decides the weights."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=size.hidden,
        intermediate_size=size.feed_forward,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.heads,
        head_dim=size.hidden // size.heads,
        max_position_embeddings=512,
        initializer_range=size.init_std,
        tie_word_embeddings=True,
        attention_bias=False,
        use_cache=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        dtype="float32",
        rlvr_prompt_style="compact",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(config)
