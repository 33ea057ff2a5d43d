"""The faces of tokenizers that tasks write prompts for: with a chat template, with one that refuses a role, without."""

from __future__ import annotations

from typing import Any

from jinja2 import TemplateError


class Chat:
    """A tokenizer with Qwen's chat form.

    Attributes:
        refused: the roles that the template does not know. ending: the text that opens the answer's turn.
    """

    chat_template = "qwen"

    def __init__(self, *refused: str, ending: str = "<|im_start|>assistant\n") -> None:
        self.refused, self.ending = refused, ending

    def apply_chat_template(
        self, messages: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool
    ) -> str:
        assert not tokenize and add_generation_prompt
        if messages[0]["role"] in self.refused:
            raise TemplateError(f"no {messages[0]['role']} turns here")
        turns = "".join(f"<|im_start|>{turn['role']}\n{turn['content']}<|im_end|>\n" for turn in messages)
        return turns + self.ending

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": []}


class Base:
    """A base model's tokenizer, which puts <s> before every text."""

    chat_template = None
    bos_token, bos_token_id = "<s>", 1

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, Any]:
        ids = [ord(letter) for letter in text.removeprefix("<s>")]
        return {"input_ids": [1, *ids] if text.startswith("<s>") or add_special_tokens else ids}
