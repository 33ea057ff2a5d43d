"""No text of a judge's own characters takes more than linear time: every task, by one rule at least."""

from __future__ import annotations

import importlib
import itertools
import pkgutil
import re
import time
from collections.abc import Iterator
from concurrent.futures import Future
from re import _constants as codes
from re import _parser as parser
from typing import Any

import pytest

import rlvr_cli.tasks
import rlvr_cli.verify
from rlvr_cli.config.load import choose_task
from rlvr_cli.verify.pool import MathPool

# Seconds of processor time for one text of so many characters. What is linear takes milliseconds, what is cubic half a
# minute.
LIMIT, SIZE = 2.5, 1_000
# Each form of the tasks' answers: task, rule, style, a row, and a response around the text.
JUDGES = (
    (
        "kk",
        "strict",
        "logic_rl",
        {"names": ["Zoey", "Mia"], "solution": [True, False]},
        "<answer>Zoey{}knight</answer>",
    ),
    ("kk", "paper", "compact", {"names": ["Zoey", "Mia"], "solution": [True, False]}, "<answer>{}</answer>"),
    ("countdown", "paper", "tiny_zero", {"nums": [3, 5, 7], "target": 22}, "Assistant: <answer>3{}</answer>"),
    ("countdown", "strict", "tiny_zero", {"nums": [3, 5, 7], "target": 22}, "<answer>3{}</answer>"),
    ("math", "strict", "boxed", {"answer": "77"}, r"\boxed{{[{}]}}"),
    ("math", "paper", "reasoning_answer", {"answer": "77"}, "<reasoning></reasoning><answer>4{}</answer>"),
    ("gsm8k", "strict", "boxed", {"answer": "77"}, r"\boxed{{[{}]}}"),
    ("hitab", "strict", "answer_tag", {"answer": ["women", 5.5], "table": "| a |"}, "<answer>[{}]</answer>"),
)
CATEGORIES = {
    codes.CATEGORY_SPACE: " ",
    codes.CATEGORY_DIGIT: "1",
    codes.CATEGORY_WORD: "a",
    codes.CATEGORY_NOT_SPACE: "x",
    codes.CATEGORY_NOT_DIGIT: "x",
    codes.CATEGORY_NOT_WORD: "-",
}


def expressions() -> Iterator[str]:
    """Every compiled expression at the top of a module of the tasks and of the verifiers that repeats anything."""
    for package in (rlvr_cli.tasks, rlvr_cli.verify):
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            for value in vars(importlib.import_module(module.name)).values():
                for one in value if isinstance(value, tuple) else (value,):
                    if isinstance(one, re.Pattern) and re.search(r"[*+]|,\}", one.pattern):
                        yield one.pattern


def alphabet(pattern: str) -> list[str]:
    """One character for each that the expression names: of a range or a category one, of letters in all one."""
    seen: dict[str, None] = {}

    def walk(node: Any) -> None:
        node = node.data if isinstance(node, parser.SubPattern) else node
        if isinstance(node, tuple) and node and node[0] in (codes.LITERAL, codes.NOT_LITERAL):
            seen[chr(node[1])] = None
        elif isinstance(node, tuple) and node and node[0] is codes.RANGE:
            seen[chr(node[1][0])] = None
        elif isinstance(node, tuple) and node and node[0] is codes.CATEGORY:
            seen[CATEGORIES[node[1]]] = None
        elif isinstance(node, list | tuple):
            for part in node:
                walk(part)

    walk(parser.parse(pattern))
    return [c for c in seen if not c.isalpha()][:5] + [c for c in seen if c.isalpha()][:1]


def texts() -> list[str]:
    """Runs of one or two characters of an expression before or between others of it, each text once."""
    found: dict[str, None] = {}
    for pattern in expressions():
        signs = alphabet(pattern)
        for run, after in itertools.product(signs, ["", *signs]):
            found[run * SIZE + after] = None
        for first, second in itertools.permutations(signs, 2):
            found[(first + second) * (SIZE // 2) + "!"] = None
    return list(found)


def test_runs_of_every_expressions_own_characters_are_judged_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # What the pool's processes compute has a deadline of its own; here only what the judge itself reads counts.
    done: Future[Any] = Future()
    done.set_result([False, "unparsed"])
    monkeypatch.setattr(MathPool, "submit", lambda pool, job: done)
    every = texts()
    assert len(every) > 400
    for name, rule, style, row, response in JUDGES:
        task = choose_task(name, rule=rule, generated=True).for_model(style)
        problem = task.problem_from({"question": "Who?", **row}, "here")
        for text in every:
            started = time.process_time()
            verdict = task.judge(problem, f"</think>{response.format(text)}")
            assert time.process_time() - started < LIMIT, (name, rule, text[:4], text[-4:])
            assert verdict.reason in task.reasons, (name, rule, text[:4], text[-4:])
