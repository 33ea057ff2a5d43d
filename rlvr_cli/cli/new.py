"""`rlvr new`: write a template of a task, a reward or a method, ready to run."""

from __future__ import annotations

import re
from keyword import iskeyword
from pathlib import Path
from typing import Annotated, Literal

import typer

from rlvr_cli.cli.output import echo
from rlvr_cli.core.errors import UserError

Kind = Literal["task", "reward", "method"]
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")
# Next commands by kind; the run is named NAME.
_NEXT = {
    "task": (
        "rlvr tasks show {file}",
        "rlvr score --task {file} --input {name}.jsonl --output verdicts.jsonl",
        "rlvr train --task {file} train.rollouts=30 run.name={name}",
        "rlvr eval {name} eval.problems=100 --pass-at 8",
    ),
    "reward": (
        "rlvr tasks show own --data {name}.jsonl --reward {file}:accuracy",
        "rlvr train --data {name}.jsonl --reward {file}:accuracy train.rollouts=30 run.name={name}",
        "rlvr train --data {name}.jsonl --reward {file}:accuracy --reward {file}:brief"
        " 'task.reward_weights=[1,0.2]' train.rollouts=30 run.name={name}-brief",
        "rlvr eval {name} --pass-at 8",
    ),
    "method": (
        "rlvr methods show {file}",
        "rlvr methods plot {file} grpo",
        "rlvr plan --method {file}",
        "rlvr train --method {file} train.rollouts=30 run.name={name}",
        "rlvr train --method {file}+lopti train.rollouts=30 run.name={name}-lopti",
        "rlvr eval {name} --pass-at 8",
    ),
}


def new(
    kind: Annotated[Kind, typer.Argument(metavar="task|reward|method", help="Kind of template.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the file NAME.py, in this folder.")],
) -> None:
    """Write a template of a task, a reward or a method, ready to run, and show the next commands."""
    from rlvr_cli.cli.templates import files_of

    name = name.removesuffix(".py")
    if not _NAME.fullmatch(name):
        raise UserError(f"{name}: must be letters, digits, - and _, starting with a letter, at most 40 long.")
    files = files_of(kind, name)
    existing = [file for file in files if Path(file).exists()]
    if existing:
        raise UserError(f"{', '.join(existing)}: exists. Choose another name, or move the file away.")
    _check_free(kind, name, next(iter(files.values())))
    for file, text in files.items():
        Path(file).write_text(text, encoding="utf-8")
    echo(f"{' and '.join(files)}: written. Next:\n")
    for command in _NEXT[kind]:
        echo(f"  {command.format(file=next(iter(files)), name=next(iter(files)).removesuffix('.py'))}", unwrapped=True)


def _check_free(kind: Kind, name: str, text: str) -> None:
    """Raise UserError if the name is that of a module, a built-in or an import of the file's ``text``."""
    from importlib.util import find_spec

    plain = name.lower().replace("-", "_")
    if find_spec(plain) is not None:
        raise UserError(f"{name}: is the name of a Python module, which {plain}.py would hide. Choose another name.")
    if kind == "method":
        from rlvr_cli.methods.names import ALIASES, BASES, MODIFIERS

        taken = {*BASES, *MODIFIERS, *ALIASES}
        class_name = "".join(map(str.capitalize, plain.split("_")))
        if iskeyword(class_name) or re.search(rf"^from .* import .*\b{class_name}\b", text, flags=re.MULTILINE):
            raise UserError(f"{name}: its class would be {class_name}, a name in the file. Choose another name.")
    else:
        from rlvr_cli.tasks.sets import task_kinds

        taken = {*task_kinds()}
    if plain.replace("_", "-") in taken:
        raise UserError(f"{name}: is a built-in {'method' if kind == 'method' else 'task'}. Choose another name.")
