"""Refusals of the command line as text files: what a user writes, and the message that comes back.

A case is a title, files, command lines and what each of them prints::

    === a key that there is not
    --- a.yaml
    rollout: {promts: 8}
    $ plan -c a.yaml
    a.yaml:1  rollout.promts: unknown key. Did you mean `rollout.prompts`?

Each is run in a folder of its own with its files in it; it must exit with 2, print nothing else and leave the folder as
it was. The line `1 problem.` at the end is left out, and of a list of names all but two.
`REWRITE=1 pytest FILE` writes the messages of now into the files: read the difference.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from tests.commands import run_in

# Four names or more: whoever adds a method or a key has no message to change.
NAMES = re.compile(r"((?:[\w.+@-]+, ){2})(?:[\w.+@-]+, )+[\w.+@-]*\w")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def check(snapshot: Path, folder: Path) -> None:
    """Run every case of ``snapshot`` below ``folder`` and compare all that is printed."""
    written = snapshot.read_text(encoding="utf-8")
    printed = "".join(
        outcome(case, folder / str(number)) for number, case in enumerate(written.split("=== ")[1:], start=1)
    )
    if os.environ.get("REWRITE"):
        snapshot.write_text(printed, encoding="utf-8")
    assert printed == written


def outcome(case: str, folder: Path) -> str:
    """Return a case with the messages of now."""
    head, *commands = re.split(r"^\$ (.*)\n", case, flags=re.MULTILINE)
    _, *files = re.split(r"^--- (.*)\n", head, flags=re.MULTILINE)
    folder.mkdir()
    for name, text in zip(files[::2], files[1::2], strict=True):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    before, shown = contents(folder), f"=== {head}"
    for line in commands[::2]:
        (done,) = run_in(folder, tuple(shlex.split(line)))
        assert (done.code, done.out) == (2, ""), (line, done)
        message = NAMES.sub(r"\1...", done.err.replace(f"{folder}/", ""))
        shown += f"$ {line}\n" + message.removesuffix("1 problem.\n")
    assert contents(folder) == before, f"{commands[::2]} wrote into the folder"
    return shown
