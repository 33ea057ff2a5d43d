"""Judges texts made of runs of each regular expression's own characters: python hostile_runs.py, all tasks and rules.

Run as a process of its own by test_hostile_runs.py. A text that takes more than LIMIT seconds of this process's own
time ends it with a message that says which text it was.
"""

import importlib
import itertools
import pkgutil
import re
import signal
import sys
from concurrent.futures import Future
from re import _constants as codes
from re import _parser as parser

import rlvr_cli.tasks
import rlvr_cli.verify
from rlvr_cli.config.load import choose_task
from rlvr_cli.verify.pool import MathPool

# Seconds of processor time for one text. What is linear takes milliseconds, what is cubic half a minute.
LIMIT = 2.5
SIZES = (1_000,)
ROWS = {
    "kk": {"question": "Who?", "names": ["Zoey", "Mia"], "solution": [True, False]},
    "countdown": {"nums": [3, 5, 7], "target": 22},
    "math": {"question": "?", "answer": "77"},
    "gsm8k": {"question": "?", "answer": "77"},
    "hitab": {"question": "?", "answer": ["women", 5.5], "table": "| a |"},
}
# Each task and each form of its answers, by one rule at least.
JUDGES = (
    *(("kk", "strict", "logic_rl"), ("kk", "paper", "compact"), ("countdown", "paper", "tiny_zero")),
    *(("countdown", "strict", "tiny_zero"), ("math", "strict", "boxed"), ("math", "paper", "reasoning_answer")),
    *(("gsm8k", "strict", "boxed"), ("hitab", "strict", "answer_tag")),
)
WRAPPED = {
    "compact": "</think><answer>{}</answer>",
    "logic_rl": "</think><answer>Zoey{}knight</answer>",
    "tiny_zero": "Assistant: </think><answer>3{}</answer>",
    "boxed": r"\boxed{{[{}]}}",
    "reasoning_answer": "<reasoning></reasoning><answer>4{}</answer>",
    "answer_tag": "<answer>[{}]</answer>",
}
CATEGORIES = {
    codes.CATEGORY_SPACE: " ",
    codes.CATEGORY_DIGIT: "1",
    codes.CATEGORY_WORD: "a",
    codes.CATEGORY_NOT_SPACE: "x",
    codes.CATEGORY_NOT_DIGIT: "x",
    codes.CATEGORY_NOT_WORD: "-",
}


def expressions():
    """Every compiled expression at the top of a module of the tasks and of the verifiers."""
    for package in (rlvr_cli.tasks, rlvr_cli.verify):
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            found = vars(importlib.import_module(module.name)).values()
            for value in found:
                for one in value if isinstance(value, tuple) else (value,):
                    if isinstance(one, re.Pattern):
                        yield one.pattern


def alphabet(pattern):
    """One character for each that the expression names: of a range or a category one, of letters in all two."""
    seen = {}

    def walk(node):
        if isinstance(node, parser.SubPattern):
            node = node.data
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
    letters = [c for c in seen if c.isalpha()][:1]
    return [c for c in seen if not c.isalpha()][:7] + letters


def texts():
    """A run of one or two characters between two others, each text once."""
    done = {}
    for pattern in expressions():
        if not re.search(r"[*+]|,\}", pattern):
            continue
        signs = alphabet(pattern)
        for run, after in itertools.product(signs, ["", *signs]):
            done["", run, after] = SIZES
        for first, second in itertools.permutations(signs, 2):
            done["", first + second, "!"] = SIZES
            done[first, second, first] = SIZES
    for (before, run, after), sizes in done.items():
        for size in sizes:
            yield before, run, after, size


def judge_all(name, rule, style):
    """Judge every text and return how many there were."""
    task = choose_task(name, rule=rule, generated=True).for_model(style)
    problem = task.problem_from(ROWS[name], "here")
    count = 0
    for before, run, after, size in TEXTS:
        label = f"{name}, {rule}: {before!r} + {run!r} x {size // len(run)} + {after!r}"
        signal.signal(signal.SIGVTALRM, lambda number, frame, label=label: sys.exit(f"more than {LIMIT} s: {label}"))
        signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT)
        verdict = task.judge(problem, WRAPPED[style].format(before + run * (size // len(run)) + after))
        if verdict.reason not in task.reasons:
            sys.exit(f"{verdict.reason}: {label}")
        count += 1
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return count


if __name__ == "__main__":
    # What the pool's processes compute has a deadline of its own; here only what the judge itself reads counts.
    done = Future()
    done.set_result([False, "unparsed"])
    MathPool.submit = lambda pool, job: done
    TEXTS = list(texts())
    for judge in JUDGES:
        print(judge_all(*judge))
