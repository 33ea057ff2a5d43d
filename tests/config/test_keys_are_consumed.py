"""Every configuration key is read by something that acts on it: a key that nothing reads would lie to its user.

The scan is of the source: `<...>config.section.key`, a variable that holds a section (assigned from `.section`, or a
parameter annotated with the section's class), and an attribute of `self` that holds one.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import rlvr_cli
from rlvr_cli.config.keys import all_keys, sections
from rlvr_cli.config.schema import Config

PACKAGE = Path(rlvr_cli.__file__).parent
# Showing a key is not acting on it. Of the configuration's own files, only the arithmetic acts.
ONLY_SHOW = {"cli/plan.py", "cli/config.py"}
ACTS = {"config/batch.py"}

SECTION_OF_CLASS = {
    name: section for section, variants in sections().items() for name in (variant.__name__ for variant in variants)
} | {"TaskConfig": "task", "MethodConfig": "method"}


class Reader(ast.NodeVisitor):
    """Collects the keys that a file reads, as `section.key`."""

    def __init__(self) -> None:
        self.read: set[str] = set()
        self.scopes: list[dict[str, str]] = [{}]
        self.attributes: dict[str, str] = {}

    def section(self, node: ast.expr) -> str | None:
        """The section that an expression holds, if it holds one."""
        if isinstance(node, ast.Name):
            return next((scope[node.id] for scope in reversed(self.scopes) if node.id in scope), None)
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id == "self" and node.attr in self.attributes:
                return self.attributes[node.attr]
            if node.attr in Config.model_fields and _name(node.value).endswith("config"):
                return node.attr
        return None

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.attributes = {
            item.target.id: SECTION_OF_CLASS[item.annotation.id]
            for item in node.body
            if isinstance(item, ast.AnnAssign)
            and isinstance(item.target, ast.Name)
            and isinstance(item.annotation, ast.Name)
            and item.annotation.id in SECTION_OF_CLASS
        }
        # Attributes may be set after, or in another method than, their first use.
        for _ in range(2):
            self.generic_visit(node)
        self.attributes = {}

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        parameters = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        scope = {
            parameter.arg: SECTION_OF_CLASS[parameter.annotation.id]
            for parameter in parameters
            if isinstance(parameter.annotation, ast.Name) and parameter.annotation.id in SECTION_OF_CLASS
        }
        self.scopes.append(scope)
        self.generic_visit(node)
        self.scopes.pop()

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        for target in node.targets:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=False))
            for name, value in pairs:
                section = self.section(value)
                if section and isinstance(name, ast.Name):
                    self.scopes[-1][name.id] = section
                elif section and isinstance(name, ast.Attribute) and _name(name.value) == "self":
                    self.attributes[name.attr] = section

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.generic_visit(node)
        section = self.section(node.value)
        if section and isinstance(node.ctx, ast.Load):
            self.read.add(f"{section}.{node.attr}")


def _name(node: ast.expr) -> str:
    """The last name of an expression: `config` of `self.config`."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def keys_read(source: str) -> set[str]:
    reader = Reader()
    reader.visit(ast.parse(source))
    return reader.read


def test_every_key_is_read() -> None:
    read: set[str] = set()
    for file in PACKAGE.rglob("*.py"):
        path = file.relative_to(PACKAGE).as_posix()
        if path in ACTS or not (path in ONLY_SHOW or path.startswith("config/")):
            read |= keys_read(file.read_text(encoding="utf-8"))
    unread = [key.name for key in all_keys() if key.name not in read]
    assert not unread, f"nothing reads {', '.join(unread)}"


@pytest.mark.parametrize(
    ("source", "read"),
    [
        ("x = config.rollout.prompts", {"rollout.prompts"}),
        ("x = self.config.rollout.prompts", {"rollout.prompts"}),
        ("def f(c: OptimizerConfig): return c.lr", {"optimizer.lr"}),
        ("o = config.optimizer\nprint(o.lr)", {"optimizer.lr"}),
        ("a, b = config.rollout, config.eval\nprint(a.top_p, b.top_p)", {"rollout.top_p", "eval.top_p"}),
        (
            "class T:\n def __init__(self, c: KKTaskConfig):\n  self.c = c\n def f(self):\n  return self.c.depth",
            {"task.depth"},
        ),
        ("@dataclass\nclass T:\n c: KKTaskConfig\n def f(self):\n  return self.c.depth", {"task.depth"}),
        # Not reads of a key:
        ("x = model.rollout.prompts", set()),
        ("o = other.optimizer\nprint(o.lr)", set()),
        ("# config.rollout.prompts\n'config.rollout.prompts'", set()),
    ],
)
def test_the_scan_knows_a_read(source: str, read: set[str]) -> None:
    assert keys_read(source) == read
