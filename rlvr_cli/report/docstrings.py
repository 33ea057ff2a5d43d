"""The docstring of a method's module, taken apart without importing the module (which would import torch)."""

from __future__ import annotations

import ast
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

METHODS = Path(__file__).parents[1] / "methods"


@dataclass(frozen=True)
class MethodText:
    """What a module of `rlvr_cli.methods` says of itself.

    Attributes:
        headline: the first paragraph, one sentence.
        definition: the paragraphs in between as written: equations (indented), paper, settings.
        equation: the indented blocks of the definition alone.
        differences: the paragraphs that begin with "How we differ", each on one line but for its list items.
    """

    headline: str
    definition: str
    equation: str
    differences: tuple[str, ...]


def module_path(module: str) -> str:
    """Where the module of `rlvr_cli.methods` lies in the repository."""
    return f"rlvr_cli/methods/{module}.py"


def method_text(module: str) -> MethodText:
    """The docstring of `rlvr_cli/methods/<module>.py`.

    Raises:
        ValueError: the module has no docstring.
    """
    source = (METHODS / f"{module}.py").read_text(encoding="utf-8")
    docstring = ast.get_docstring(ast.parse(source))
    if not docstring:
        raise ValueError(f"{module_path(module)} has no docstring")
    headline, *rest = re.split(r"\n\s*\n", docstring)
    differences: list[str] = []
    definition: list[str] = []
    for paragraph in rest:
        if paragraph.startswith("How we differ"):
            differences.append(paragraph)
        elif differences and paragraph.lstrip().startswith("- "):
            differences[-1] += f"\n{paragraph}"
        else:
            definition.append(paragraph)
    equations = [textwrap.dedent(block) for paragraph in definition for block in _indented(paragraph)]
    return MethodText(
        headline=joined(headline),
        definition="\n\n".join(definition),
        equation="\n\n".join(equations),
        differences=tuple(joined(paragraph) for paragraph in differences),
    )


def _indented(paragraph: str) -> list[str]:
    """The runs of indented lines."""
    blocks: list[list[str]] = [[]]
    for line in paragraph.splitlines():
        if line.startswith("    "):
            blocks[-1].append(line)
        elif blocks[-1]:
            blocks.append([])
    return ["\n".join(block) for block in blocks if block]


def joined(paragraph: str) -> str:
    """Hard line breaks taken out, but for those in front of a list item."""
    items = re.split(r"\n(?=\s*- )", paragraph)
    return "\n".join(" ".join(item.split()) for item in items)
