"""TinyZero's prompts for Countdown, ending in an open ``<think>``.

Source: TinyZero's `examples/data_preprocess/countdown.py`, templates `base` and `qwen-instruct`. The wording, mistakes
included, is the public prompts' own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlvr_cli.core.errors import UserError
from rlvr_cli.tasks.chat import TemplateFailure, by_chat_template, leading_bos

SYSTEM = (
    "You are a helpful assistant. You first thinks about the reasoning process in the mind and then provides the user "
    "with the answer."
)
BASE_SYSTEM = (
    "A conversation between User and Assistant. The user asks a question, and the Assistant solves it. The assistant "
    "first thinks about the reasoning process in the mind and then provides the user with the answer."
)
ASSISTANT_PREFIX = "Let me solve this step by step.\n<think>"


def question(nums: Sequence[int], target: int) -> str:
    """What the user asks."""
    return (
        f"Using the numbers {list(nums)}, create an equation that equals {target}. You can use basic arithmetic "
        "operations (+, -, *, /) and each number can only be used once. Show your work in <think> </think> tags. And "
        "return the final answer in <answer> </answer> tags, for example <answer> (1 + 2) / 3 </answer>."
    )


def base_prompt(text: str, tokenizer: Any) -> str:
    """The prompt for base models, "User: ... Assistant: ...", after the model's first token if it uses one."""
    return f"{leading_bos(tokenizer)}{BASE_SYSTEM}\nUser: {text}\nAssistant: {ASSISTANT_PREFIX}"


def chat_prompt(text: str, tokenizer: Any) -> str:
    """The prompt for instruction models, through the tokenizer's chat template.

    A template without a system turn gets the system text in front of the question. Raises UserError when the template
    refuses these turns too.
    """
    turns = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f" {text}"}]
    alone = [{"role": "user", "content": f"{SYSTEM}\n{text}"}]
    errors = []
    for messages in (turns, alone):
        try:
            prompt = by_chat_template(tokenizer, messages)
        except TemplateFailure as error:
            errors.append(str(error))
            continue
        # Templates of reasoning models open the block themselves.
        return prompt if prompt.rstrip().endswith("<think>") else prompt + ASSISTANT_PREFIX
    raise UserError(
        f"model: its chat template cannot write a user turn ({errors[1]}; with a system turn: {errors[0]}). "
        "Use a model whose tokenizer has a working chat template, or task.style=tiny_zero_base."
    )
