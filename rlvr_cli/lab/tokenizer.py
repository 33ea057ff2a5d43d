"""The lab's tokenizer: one id for each word of the compact form, words separated by single spaces."""

from __future__ import annotations

from transformers import PreTrainedTokenizerFast

from rlvr_cli.tasks.kk import compact

PAD, END, UNKNOWN = "<pad>", "</s>", "<unk>"


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A fast tokenizer with ids 0 to 2 for padding, end and unknown words, then `compact.vocabulary()` in order.

    Decoding puts single spaces between words, so `decode(encode(text)) == text` for every text of the compact form.
    """
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit

    words = [PAD, END, UNKNOWN, *compact.vocabulary()]
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
