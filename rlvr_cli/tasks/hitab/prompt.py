"""Prompts for questions on tables.

ACPO (2025) trains on HiTab and prints no prompt for it. These are the project's own: table, question, the form of the
answer, and the data's conventions for numbers, which a model cannot guess (docs/tasks/hitab.md).
"""

from __future__ import annotations

from typing import Any

from rlvr_cli.core.errors import UserError
from rlvr_cli.tasks.chat import TemplateFailure, by_chat_template, leading_bos

_INTRODUCTION = (
    "Answer a question about a table. Column and row headers are written as paths from the outermost to the innermost "
    "level, such as `total / 2019 / women`."
)
_CONVENTIONS = (
    "Give the answer alone: a number, or a word or phrase as the table has it. Write numbers as the table has them, "
    "without units. A share, ratio or relative change that you compute is a ratio to six decimal places (0.25, not "
    "25%). Separate several answers with semicolons."
)
_FORMS = {
    "answer_tag": "First think inside <think> and </think>, then write the answer between <answer> and </answer>.",
    "boxed": "Think step by step, then write the answer within \\boxed{}.",
}


def user_text(question: str, table: str, style: str) -> str:
    """Table, question and instructions; without a table, for rows that have none, question and instructions."""
    shown = f"{_INTRODUCTION}\n\n## Table\n{table}\n\n" if table else ""
    return f"{shown}## Question\n{question}\n\n{_CONVENTIONS} {_FORMS[style]}"


def chat_prompt(text: str, tokenizer: Any) -> str:
    """The text as the user's turn, up to where the assistant begins.

    A tokenizer without a chat template gets ``User: ...``, ``Assistant:`` after its beginning-of-sequence token if it
    uses one. Raises UserError when a template refuses a user turn.
    """
    if not getattr(tokenizer, "chat_template", None):
        return f"{leading_bos(tokenizer)}User: {text}\nAssistant:"
    try:
        return by_chat_template(tokenizer, [{"role": "user", "content": text}])
    except TemplateFailure as error:
        raise UserError(
            f"model: its chat template cannot write a user turn ({error}). Use a model whose tokenizer has a working "
            "chat template, or none."
        ) from error
