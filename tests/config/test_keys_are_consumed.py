"""Every configuration key is read by something that acts on it: a key that nothing reads would lie to its user.

The scan is of the source: `<...>config.section.key`, a variable that holds a section (assigned from `.section`, or a
parameter annotated with the section's class), and an attribute of `self` that holds one. The choices of a method are
handed to their classes whole: there, another value must make another method.
"""

from __future__ import annotations

import ast
from pathlib import Path

import rlvr_cli
from rlvr_cli.config.keys import KEYS
from rlvr_cli.config.schema import Config

PACKAGE = Path(rlvr_cli.__file__).parent
# Showing a key is not acting on it. Of the configuration's own files, only the arithmetic, the rate and the cap act.
ONLY_SHOW = {"planning/document.py", "cli/config.py"}
ACTS = {"config/batch.py", "config/optimizer.py", "config/rollout.py"}


SECTION_OF_CLASS = {
    variant.__name__: section for section in KEYS.section_names for variant in KEYS.variants(tuple(section.split(".")))
} | {"Task": "task", "AnswerTask": "task", "AnyMethod": "method"}

# Tasks and parts of methods are their own sections: they read their keys as attributes of themselves.
OWN = {
    name
    for name, section in SECTION_OF_CLASS.items()
    if section.partition(".")[0] in ("task", "method", "optimizer", "rollout")
}

# One of them is a valid value of any fraction that it does not have yet.
OTHER_NUMBERS = (0.25, 2.5)


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
            outer = self.section(node.value)
            if outer and KEYS.variants((*outer.split("."), node.attr)):
                return f"{outer}.{node.attr}"
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
        self.scopes.append({"self": SECTION_OF_CLASS[node.name]} if node.name in OWN else {})
        # Attributes may be set after, or in another method than, their first use.
        for _ in range(2):
            self.generic_visit(node)
        self.scopes.pop()
        self.attributes = {}

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        parameters = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        scope = {
            parameter.arg: section
            for parameter in parameters
            if (section := _section_annotated(parameter.annotation)) is not None
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
        if section and isinstance(node.ctx, ast.Load) and not KEYS.variants((*section.split("."), node.attr)):
            self.read.add(f"{section}.{node.attr}")


def _section_annotated(annotation: ast.expr | None) -> str | None:
    """The section of a class, or of classes of the same section joined with |."""
    if isinstance(annotation, ast.BinOp):
        left = _section_annotated(annotation.left)
        return left if left == _section_annotated(annotation.right) else None
    return SECTION_OF_CLASS.get(annotation.id) if isinstance(annotation, ast.Name) else None


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
    unread = {key.name for key in KEYS.keys} - read
    unread = {key for key in unread if not key.startswith("method.") or not key.endswith(".kind")}
    assert not unread, f"nothing reads {', '.join(sorted(unread))}"


def test_the_scan_knows_a_read() -> None:
    for source, read in [
        ("x = config.rollout.prompts", {"rollout.prompts"}),
        ("x = self.config.rollout.prompts", {"rollout.prompts"}),
        ("def f(c: OptimizerConfig): return c.lr", {"optimizer.lr"}),
        ("o = config.optimizer\nprint(o.lr)", {"optimizer.lr"}),
        ("a, b = config.rollout, config.eval\nprint(a.top_p, b.top_p)", {"rollout.top_p", "eval.top_p"}),
        (
            "class T:\n def __init__(self, c: KnightsAndKnaves):\n  self.c = c\n def f(self):\n  return self.c.depth",
            {"task.depth"},
        ),
        ("@dataclass\nclass T:\n c: KnightsAndKnaves\n def f(self):\n  return self.c.depth", {"task.depth"}),
        ("class HiTab:\n def f(self):\n  return self.sign", {"task.sign"}),
        ("x = config.method.reward.noise", {"method.reward.noise"}),
        ("def f(c: Method): return c.kl.beta", {"method.kl.beta"}),
        ("class Reweight:\n def f(self):\n  return self.alpha", {"method.shaping.reweight.alpha"}),
        ("k = config.method.kl\nprint(k.beta)", {"method.kl.beta"}),
        # Not reads of a key:
        ("x = model.rollout.prompts", set()),
        ("o = other.optimizer\nprint(o.lr)", set()),
        ("# config.rollout.prompts\n'config.rollout.prompts'", set()),
    ]:
        assert keys_read(source) == read, (source, read)
