"""The Logic-RL prompt for Knights & Knaves.

Source: AR-Lopti (Yang et al. 2025, appendix C.1.1) and Logic-RL's `examples/data_preprocess/kk.py`.
"""

from __future__ import annotations

from typing import Any

from rlvr_cli.core.errors import UserError
from rlvr_cli.tasks.chat import TemplateFailure, by_chat_template, leading_bos

# Wording, double space and missing spaces are the public prompt's own.
SYSTEM = (
    "You are a helpful assistant. The assistant first thinks about the reasoning process in the mind and then provides "
    "the user with the answer. The reasoning process and answer are enclosed within <think> </think> and<answer> "
    "</answer> tags, respectively, i.e., <think> reasoning process here </think><answer> answer here </answer>.  Now "
    "the user asks you to solve a logical reasoning problem. After thinking, when you finally reach a conclusion, "
    "clearly state the identity of each character within <answer> </answer> tags. i.e., <answer> (1) Zoey is a "
    "knight\n(2) ... </answer>.\n"
)

BASE_SYSTEM = (
    "The user asks a question, and the Assistant solves it.The assistant first thinks about the reasoning process in "
    "the mind and then provides the user with the final answer. The reasoning process and answer are enclosed within "
    "<think> </think> and <answer> </answer> tags, respectively, i.e., <think> reasoning process here </think>"
    "<answer> answer here </answer>. Now the user asks you to solve a logical reasoning problem. After thinking, when "
    "you finally reach a conclusion, clearly state the identity of each character within <answer> </answer> tags. List "
    "the identity of each person one by one, for example, <answer> (1) Zoey is a knight\n(2) Oliver is a knight\n"
    "(3)... </answer>.\n\n"
)

ASSISTANT_PREFIX = "<think>"


def logic_rl_prompt(question: str, tokenizer: Any) -> str:
    """The prompt up to and including the assistant's opening ``<think>``.

    A tokenizer with a chat template gets system and user turns through it; one without gets the base-model form
    "User:... Assistant: <think>". A template that has no system turn gets the system text in front of the question.
    Raises UserError when the template refuses these turns too.
    """
    if not getattr(tokenizer, "chat_template", None):
        return f"{leading_bos(tokenizer)}{BASE_SYSTEM}User:{question}\nAssistant: {ASSISTANT_PREFIX}"
    with_system = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"{question}\n"}]
    user_only = [{"role": "user", "content": f"{SYSTEM}\n{question}\n"}]
    text, system_error = _render(tokenizer, with_system)
    if text is None:
        text, error = _render(tokenizer, user_only)
        if text is None:
            raise UserError(
                f"model: its chat template cannot write a user turn ({error}; with a system turn: {system_error}). "
                "Use a model whose tokenizer has a working chat template, or none."
            )
    # Templates of reasoning models open the block themselves.
    return text if text.rstrip().endswith(ASSISTANT_PREFIX) else text + ASSISTANT_PREFIX


def _render(tokenizer: Any, messages: list[dict[str, str]]) -> tuple[str | None, str]:
    try:
        return by_chat_template(tokenizer, messages), ""
    except TemplateFailure as error:
        return None, str(error)
