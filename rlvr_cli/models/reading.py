"""Check that a model can read a task: its tokenizer covers the prompts, and prompt and completion fit its positions.

For the lab's models, and folders without a chat template, the check needs no torch and precedes loading.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import UserError
from rlvr_cli.models.source import PRESETS, holds_adapter, prompt_style, resolve_model
from rlvr_cli.tasks.base import HARDLY_READABLE, UNREADABLE, Task, prompt_ids, unknown_token_share
from rlvr_cli.tasks.problem import Problem

# Problems to check before loading; the training checks more.
SAMPLE_PROBLEMS = 32


def length_error(key: str, new_tokens: int, longest: int, positions: int) -> str:
    if longest >= positions:
        return (
            f"the longest prompt has {longest} tokens and the model {positions} positions, so that no completion fits. "
            "Choose shorter problems, or a model with more positions (--model)."
        )
    return (
        f"{key}={new_tokens}: with prompts of {longest} tokens this exceeds the model's {positions} positions. "
        f"Allowed: up to {positions - longest}."
    )


def unknown_tokens_error(task: str, model: str, share: float) -> str:
    labs = {path.name: name for name, path in PRESETS.items()}  # task -> its lab model
    lab_task = next((other for other, name in labs.items() if name == model), None)
    if lab_task == task:
        remedy = f"{model} reads generated problems of task={task}, with the task's other keys left out"
    elif task in labs:
        remedy = "--model lab reads this task"
    else:
        remedy = "A model that was trained on plain text reads it (--model FOLDER, a hub id or a preset)"
        if lab_task is not None:
            remedy = f"The labs read task={' and task='.join(labs)}. {remedy}"
    return f"{share:.0%} of the prompts' tokens are unknown to the tokenizer of {model}. {remedy}."


def check_prompts(
    config: Config, task: Task, problems: Sequence[Problem], tokenizer: Any, positions: int | None
) -> tuple[str, ...]:
    """Return warnings for prompts with some unknown tokens; ``task``: that of ``config``, adapted to the model.

    Raises UserError if most tokens are unknown, or no completion of rollout.max_new_tokens fits.
    """
    prompts = [prompt_ids(task, problem, tokenizer) for problem in problems]
    longest, new_tokens = max(map(len, prompts)), config.rollout.max_new_tokens
    share = 0.0 if config.train.on_no_signal == "off" else unknown_token_share(prompts, tokenizer)
    unread = unknown_tokens_error(config.task.name, config.model.name, share)
    if share >= UNREADABLE:
        raise UserError(
            f"task.name={config.task.name}: the model cannot learn from these prompts: "
            f"{unread} Set train.on_no_signal=off to train anyway."
        )
    if positions is not None and longest + new_tokens > positions:
        raise UserError(length_error("rollout.max_new_tokens", new_tokens, longest, positions))
    return (f"WARNING: {unread}",) if share >= HARDLY_READABLE else ()


def check_readable(config: Config) -> None:
    """Run :func:`check_prompts` before loading if that is cheap: for generated problems and a model's local files.

    Skips chat templates, hub models and other problems. Raises UserError.
    """
    task = config.task
    costly = type(task).check_requirements is not Task.check_requirements
    if not config.method.samples or not task.is_generated or costly:
        return
    try:
        source = resolve_model(config.model.name, revision=config.model.revision)
    except UserError:
        return  # reported when the model is loaded
    if source.kind != "hub" and (loaded := _read_tokenizer(Path(source.location))) is not None:
        tokenizer, model_config = loaded
        task = task.for_model(prompt_style(model_config))
        positions = model_config.get("max_position_embeddings")
        problems = _sample_problems(type(task), task.model_dump_json())
        check_prompts(config, task, problems, tokenizer, positions if isinstance(positions, int) else None)


@lru_cache(maxsize=32)
def _sample_problems(task: type[Task], values: str) -> list[Problem]:
    return task.model_validate_json(values).problems("train", SAMPLE_PROBLEMS, 0)


class FileTokenizer:
    """A tokenizer from tokenizer.json, without chat template, since importing transformers takes five seconds.

    Raises Exception for an invalid file, since `tokenizers` has no exception class.
    """

    chat_template = None

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(path))
        tokens = {name: config.get(name) for name in ("bos_token", "unk_token")}
        texts = {name: token.get("content") if isinstance(token, dict) else token for name, token in tokens.items()}
        self.bos_token: str | None = texts["bos_token"]
        ids = {name: None if text is None else self._tokenizer.token_to_id(text) for name, text in texts.items()}
        self.bos_token_id, self.unk_token_id = ids["bos_token"], ids["unk_token"]

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids}


def _read_tokenizer(folder: Path) -> tuple[FileTokenizer, dict[str, Any]] | None:
    """Return the tokenizer and config.json of a model folder; None if they need transformers."""
    files = [folder / name for name in ("tokenizer.json", "tokenizer_config.json", "config.json")]
    if not all(map(Path.is_file, files)) or holds_adapter(folder) or (folder / "chat_template.jinja").exists():
        return None
    try:
        config, model_config = (json.loads(path.read_text(encoding="utf-8")) for path in files[1:])
    except (OSError, ValueError):
        return None
    if not isinstance(config, dict) or not isinstance(model_config, dict) or config.get("chat_template"):
        return None
    try:
        return FileTokenizer(files[0], config), model_config
    except Exception:
        return None  # reported when the model is loaded
