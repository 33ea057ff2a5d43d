"""Broken files of the user's: one line each that names the file, the right exit code, nothing left running."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from rlvr_cli.cli.templates import files_of
from tests.commands import run_all

SMALL = (
    *("rollout.prompts=2", "rollout.group_size=2", "rollout.max_new_tokens=8", "train.rollouts=1"),
    *("train.on_no_signal=off", "task.train_size=8", "run.seed=3"),
)
OWN = ("task.data=rows.jsonl", "task.reward_timeout=2", "task.reward_memory=512")
# What any file may do when it is imported: the method that does it (none), the code, and the line that is said.
IMPORT = [
    ("", "import sys; sys.exit(0)", "{file}:1: the file raised SystemExit: 0"),
    ("", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "its process was ended by SIGSEGV"),
    ("", "x = bytearray(10**12)", "{file}:1: the file raised MemoryError"),
    ("", "DAEMON; import os; os._exit(0)", "ended its process with exit code 0"),
]
# A process in a session of its own, whose parent has ended.
DAEMON = (
    "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
    "        time.sleep(600)\n    os._exit(0)\n"
)
REWARDS = [
    ("f", "return [1.0]", "must return 3 values, one per completion; got 1"),
    ("f", "import sys; sys.exit(0)", "{file}:2: SystemExit: 0"),
    ("f", "import os; os._exit(0)", "it ended its process with exit code 0"),
    ("f", "while True: pass", "f took more than"),
    ("f", "import numpy; return numpy.full(len(completions), numpy.nan)", "f returned nan (float) for a completion"),
    ("f", "x = bytearray(10**12)", "{file}:2: MemoryError"),
    ("f", "return [c.nothing for c in completions]", "{file}:2: AttributeError"),
]
TASKS = [
    ("problems", "return None", "{file}:22: problems returned no train problem"),
    ("problems", "yield {'question': b'x'}", "{file}:22: problems must return JSON values"),
    (
        "prompt",
        "return None",
        "{file}:31: prompt must return text",
    ),
    ("judge", "return 'good'", "{file}:34: judge must return a number"),
    ("judge", "import os; os._exit(0)", "it ended its process with exit code 0"),
    ("judge", "import sys; sys.exit(0)", "judge raised SystemExit: 0"),
]
METHODS = [
    *IMPORT,
    ("weight", "import numpy; return numpy.ones((2, 3))", "{file}:29: weight of Mine must return"),
    ("weight", "import os; os._exit(0)", "ended its process with exit code 0 during its trial"),
    ("weight", "import sys; sys.exit(0)", "{file}:31: weight of Mine raised SystemExit: 0"),
    (
        "weight",
        "import torch; torch.set_grad_enabled(False); return tokens.ratio.detach()",
        "{file}:29: weight of Mine switches",
    ),
    ("weight", "return tokens.ratio", "{file}:29: Mine.weight has a gradient"),
    # Only in the training, whose steps have four rows.
    (
        "weight",
        "return None if len(tokens.mask) == 4 else tokens.ratio.detach()",
        "{file}:29: weight of Mine must return",
    ),
    (
        "weight",
        "return 1 / 0 if len(tokens.mask) == 4 else tokens.ratio.detach()",
        "{file}:31: weight of Mine raised ZeroDivision",
    ),
]


def write(path: Path, text: str) -> None:
    path.write_bytes(text.replace("DAEMON; ", DAEMON).encode("utf-8", "surrogateescape"))


def processes(folder: Path) -> list[psutil.Process]:
    """Processes that were started in the folder and still live."""
    found = []
    for process in psutil.process_iter():
        try:
            if Path(process.cwd()) == folder and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


@pytest.mark.parametrize("kind", ["reward", "task", "method"])
def test_broken_files(kind: str, tmp_path: Path) -> None:
    cases, commands = {"reward": REWARDS, "task": TASKS, "method": METHODS}[kind], []
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"prompt": "A: CN {number} ?"}}\n' for number in range(40)))
    template = files_of(kind, "mine")["mine.py"]
    for number, (method, code, _) in enumerate(cases):
        file, text = f"bad_{number}.py", code
        if method and kind == "reward":
            text = f"def f(completions, **k):\n    {code}"
        elif method and kind == "task":
            before, after = template.split(f"    def {method}(", 1)
            signature, _, rest = after.partition(":\n")
            text = f"{before}    def {method}({signature}:\n        {code}\n{rest}"
        elif method:
            text = template.replace("return tokens.ratio.detach() ** self.power", code)
        write(tmp_path / file, text)
        named = {
            "reward": ("--reward", f"{file}:f", *OWN),
            "task": ("--task", file, *OWN[1:]),
            "method": ("--method", file, "method.reward.source=entropy_min"),
        }
        commands.append(("train", *named[kind], *SMALL, f"run.name=r{number}"))
    for number, ((_, _, line), done) in enumerate(zip(cases, run_all(tmp_path, *commands), strict=True)):
        file = f"bad_{number}.py"
        training_only = "== 4" in cases[number][1]
        assert done.code == (1 if training_only else 2), (file, done)
        said = [one for one in done.err.splitlines() if file in one]
        assert any(line.format(file=file) in one for one in said), (line, done)
        assert "Traceback" not in done.err and "bug in rlvr" not in done.err, done
    assert processes(tmp_path) == []
