"""The package may not grow, nor its names and docstrings get worse: counts against tests/contract/house.json.

Whoever makes a count smaller lowers it there (`python -m tests.contract.test_house`); a larger one is a failure.
"""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from pathlib import Path

FILE = Path(__file__).with_name("house.json")
PACKAGE = Path(__file__).parents[2] / "rlvr_cli"
# As the name of a value these say nothing: the field has a term for each.
EMPTY_NAMES = re.compile(
    "found|one|parts?|said|place|told|asked|known|begun|wide|laid|meant|given|kept|made|left|what|who|whole|shown|dealt"
    "|judged_one|there|own_one|things?"
)
# A docstring begins with a verb: what the function does.
NO_VERB = re.compile("What|Whether|Where|Who|Whoever|Which|Whatever|Of|Have|That|How|Those|In")
PHRASES = [
    re.compile(phrase)
    for phrase in (
        *(r"of the user's own", r"of (?:your|its|their) own\b", r"where there (?:is|are) (?:none|no|a|one)"),
        *(r"\bis told\b", r"\bare told\b", r"\bis said\b", r"\bare said\b", r"\bnobody\b", r"\bwhoever\b", r"\banew\b"),
        *(r"for want of", r"\bbeside\b", r"what is not", r"those that are", r"as many as", r"what (?:of|is left)"),
        *(r"\bis (?:no|none of) \w+\b(?: and|,|\.)", r"\bstands? (?:in|behind|for itself|by itself)\b", r"\bgoes on\b"),
        *(r"\bcome out\b", r"\bgave? (?:no|up its)\b"),
    )
]


def counts() -> dict[str, int]:
    """Count lines, values with an empty name, docstrings without a verb and lines with a turn of phrase."""
    total: Counter[str] = Counter()
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        total["lines"] += text.count("\n")
        total["phrases"] += sum(bool(phrase.search(line)) for line in text.splitlines() for phrase in PHRASES)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                total["empty names"] += sum(bool(EMPTY_NAMES.fullmatch(argument.arg)) for argument in arguments)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                total["empty names"] += bool(EMPTY_NAMES.fullmatch(node.id))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
                words = (ast.get_docstring(node) or "").split()
                total["docstrings without a verb"] += bool(words) and bool(NO_VERB.fullmatch(words[0].strip(",.:")))
    return dict(total)


def test_no_count_rises() -> None:
    ceiling, now = json.loads(FILE.read_text()), counts()
    risen = {name: (most, now[name]) for name, most in ceiling.items() if now[name] > most}
    assert not risen, f"(ceiling, now): {risen}. Cut elsewhere, or rename; the ceiling is only ever lowered"


if __name__ == "__main__":
    FILE.write_text(json.dumps(counts(), indent=2) + "\n")
