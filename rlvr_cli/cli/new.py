"""`rlvr new`: the beginning of a task, a reward or a method of one's own, which runs as it is."""

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
# What to do with the files, in order; a run is called NAME.
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
    kind: Annotated[Kind, typer.Argument(metavar="task|reward|method", help="What the file is to hold.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name: NAME.py is written here.")],
) -> None:
    """Write the beginning of a task, a reward or a method of your own, which runs as it is, and say how."""
    from rlvr_cli.cli.templates import files_of

    name = name.removesuffix(".py")
    if not _NAME.fullmatch(name):
        raise UserError(f"{name}: a name has letters, digits, - and _, begins with a letter, and is at most 40 long.")
    files = files_of(kind, name)
    there = [file for file in files if Path(file).exists()]
    if there:
        raise UserError(f"{', '.join(there)}: there already. Choose another name, or move the file away.")
    _check_free(kind, name, next(iter(files.values())))
    for file, text in files.items():
        Path(file).write_text(text, encoding="utf-8")
    echo(f"{' and '.join(files)}: written. Next:\n")
    for command in _NEXT[kind]:
        echo(f"  {command.format(file=next(iter(files)), name=next(iter(files)).removesuffix('.py'))}", whole=True)


def _check_free(kind: Kind, name: str, text: str) -> None:
    """Refuse a name that something else has, in ``text``, which is the file, too. Raises UserError."""
    from importlib.util import find_spec

    plain = name.lower().replace("-", "_")
    if find_spec(plain) is not None:
        raise UserError(f"{name}: is the name of a Python module, which {plain}.py would hide. Choose another name.")
    if kind == "method":
        from rlvr_cli.methods.names import ALIASES, BASES, MODIFIERS

        taken = {*BASES, *MODIFIERS, *ALIASES}
        of_class = "".join(map(str.capitalize, plain.split("_")))
        if iskeyword(of_class) or re.search(rf"^from .* import .*\b{of_class}\b", text, flags=re.MULTILINE):
            raise UserError(f"{name}: its class would be {of_class}, which is a name in the file. Choose another one.")
    else:
        from rlvr_cli.tasks.sets import task_kinds

        taken = {*task_kinds()}
    if plain.replace("_", "-") in taken:
        raise UserError(f"{name}: is a built-in {'method' if kind == 'method' else 'task'}. Choose another name.")
