"""The prompts of the papers for mathematics.

Sources: AR-Lopti (Yang et al. 2025, appendix C.1.2) for ``boxed``, GTPO (box 8.2) for ``reasoning_answer``.
"""

from __future__ import annotations

from typing import Any, Literal

from rlvr_cli.core.errors import UserError
from rlvr_cli.tasks.chat import TemplateFailure, by_chat_template, leading_bos

Style = Literal["boxed", "reasoning_answer"]
Template = Literal["auto", "none"]

BOXED = r"Let's think step by step and output the final answer within \boxed{}."

REASONING_ANSWER = (
    "You are a helpful assistant for solving math problems.\n\n"
    "Given a question, first think step by step between `<reasoning>` and `</reasoning>`.\n\n"
    "Then, give the final answer between `<answer>` and `</answer>`."
)


def math_prompt(question: str, style: Style, template: Template, tokenizer: Any) -> str:
    """The full prompt.

    Args:
        template: ``auto`` writes turns through the tokenizer's chat template where it has one; ``none`` never does, as
            AR-Lopti prompts a base model whose tokenizer brings a template all the same.
    Raises:
        UserError: the chat template writes neither a system turn nor a user turn.
    """
    if template == "none" or not getattr(tokenizer, "chat_template", None):
        bos = leading_bos(tokenizer)
        return f"{bos}{question} {BOXED}" if style == "boxed" else f"{bos}{REASONING_ANSWER}\n\n{question}\n"
    if style == "boxed":
        return _render(tokenizer, [{"role": "user", "content": f"{question} {BOXED}"}])
    system, user = {"role": "system", "content": REASONING_ANSWER}, {"role": "user", "content": question}
    try:
        return _render(tokenizer, [system, user])
    except UserError:
        return _render(tokenizer, [{"role": "user", "content": f"{REASONING_ANSWER}\n\n{question}"}])


def _render(tokenizer: Any, messages: list[dict[str, str]]) -> str:
    try:
        return by_chat_template(tokenizer, messages)
    except TemplateFailure as error:
        raise UserError(
            f"model: its chat template cannot write a user turn ({error}). Use a model whose tokenizer has a working "
            "chat template, or set task.template=none."
        ) from error
