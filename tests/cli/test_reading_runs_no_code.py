"""Commands that only read import no file of the user's, whatever a run was made with or a configuration names."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer
import yaml

from rlvr_cli.cli.app import app
from rlvr_cli.cli.templates import files_of
from tests.commands import ROOT, run_all, run_in

PAGE = (ROOT / "docs" / "methods" / "own.md").read_text(encoding="utf-8")
SURPRISE = (
    "from typing import Annotated, ClassVar\nfrom pydantic import Field\nfrom rlvr_cli.core.lazy import Tensor\n"
    "from rlvr_cli.methods.base import Tokens, TokenShaping\nfrom rlvr_cli.methods.preset import Modifier, Paper\n"
    + PAGE.split("```python\n")[2].split("```")[0]
)
# In two passes, as what a method says of itself decides the number of steps.
HALVES = """
from typing import Literal
from pydantic import Field
from rlvr_cli.methods.lopti import Passes

class Halves(Passes):
    kind: Literal["halves"] = Field("halves", description="halves = likely tokens, then unlikely ones.")

    @property
    def names(self):
        return ("likely", "unlikely")

    def selected(self, tokens, which):
        return tokens.mask.bool() & ((tokens.old_probs > 0.5) == (which == "likely"))
"""
SMALL = {
    "rollout": {"prompts": 2, "group_size": 2, "max_new_tokens": 8},
    "train": {"rollouts": 1, "on_no_signal": "off"},
    "validation": {"problems": 4, "samples": 2, "pass_at": [1, 2], "every": 1},
    "eval": {"problems": 4, "samples": 2, "pass_at": [1, 2]},
}
RUNS = ("grpo", "mine/power", "three", "halves", "rewarded")
# What reads: its command lines, in a folder with the sweep `mine`, and with the run `rewarded` that is none of it.
READS = {
    "compare": [("mine/power", "halves", "--format", "json")],
    "report": [("runs/mine", "-o", "r.html")],
    "export": [("mine/power", "-o", "exported")],
    "analyze": [
        ("words", "--run", "mine/power"),
        ("landscape", "--run", "halves", "--run", "mine/power"),
        ("weights", "--run", "mine/power"),
    ],
    "runs list": [()],
    "runs show": [("mine/power",), ("three",), ("rewarded",)],
    "runs samples": [("mine/power",)],
    "runs watch": [("--once", "--all")],
    "sweep status": [("runs/mine",)],
    "sweep stop": [("runs/mine",)],
    "plan": [("--speed", "runs/halves")],
    "methods list": [()],
    "tasks list": [()],
    "tasks sets": [()],
    "tasks benchmarks": [()],
    "config keys": [()],
    "config recipes": [()],
    "config show": [
        ("-c", "base.yaml", "--method", "power.py+lopti", "method.policy_loss.power=0.3"),
        ("-c", "rewarded.yaml"),
        ("-c", "runs/mine/power/config.yaml"),
        ("-c", "sweep.yaml:power"),
    ],
    "doctor": [()],
}
# What trains, evaluates, judges, or shows a file that its command line names.
RUNS_CODE = {
    *("train", "eval", "score", "sweep run", "sweep retry", "methods show", "methods plot"),
    *("tasks show", "tasks generate", "tasks filter"),
}
# What knows neither files of the user's own nor the runs made with them.
NEITHER = {"new", "tasks fetch"}


def commands(group: typer.core.TyperGroup, *names: str) -> set[str]:
    found: set[str] = set()
    for name, one in group.commands.items():
        found |= commands(one, *names, name) if hasattr(one, "commands") else {" ".join((*names, name))}
    return found


def test_a_configuration_with_code_is_refused(tmp_path: Path) -> None:
    """Whatever reads it: nothing in a YAML file is ever run."""
    code = "open('ran', 'w').close()\n"
    blocks = [{"of": "method", "file": "power.py", "text": code}, {"of": "task", "file": "t.py", "text": code}]
    (tmp_path / "colleague.yaml").write_text(yaml.safe_dump({"method": {"name": "power"}, "code": blocks}))
    commands = (("config", "show"), ("plan",), ("train",), ("train", "--method", "grpo"))
    for done in run_in(tmp_path, *((*words, "-c", "colleague.yaml") for words in commands)):
        assert done.code == 2 and "code is not allowed in a configuration" in done.err, done
        assert "method: my.py" in done.err, done
    assert not (tmp_path / "ran").exists()


def test_every_command_is_in_one_class() -> None:
    classes = [set(READS), RUNS_CODE, NEITHER]
    assert commands(typer.main.get_command(app)) == set.union(*classes)  # type: ignore[arg-type]
    assert sum(map(len, classes)) == len(set.union(*classes))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of a sweep over methods of files on a task of a file, and one with a reward: each file tells that it ran."""
    folder = tmp_path_factory.mktemp("own")
    tell = f"\nopen({str(folder / 'imported')!r}, 'a').write(__file__ + chr(10))\n"
    files = {
        **{name: files_of(of, name[:-3])[name] for of, name in (("method", "power.py"), ("task", "riddle.py"))},
        "surprise.py": SURPRISE,
        "halves.py": HALVES,
        "reward.py": "def half(completions, **kwargs):\n    return [len(one) % 2 for one in completions]\n",
    }
    for name, text in files.items():
        (folder / name).write_text(text + tell)
    (folder / "rows.jsonl").write_text("".join(f'{{"prompt": "Say {number}."}}\n' for number in range(40)))
    (folder / "base.yaml").write_text(yaml.safe_dump({"task": {"name": "riddle.py", "train_size": 64}, **SMALL}))
    own = {"name": "own", "data": "rows.jsonl", "reward": "reward.py:half"}
    (folder / "rewarded.yaml").write_text(yaml.safe_dump({"task": own, **SMALL}))
    sweep = {"name": "mine", "base": "base.yaml", "methods": ["power.py"], "seeds": 1}
    (folder / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    done = run_in(
        folder,
        ("train", "-c", "base.yaml", "--method", "grpo", "run.name=grpo"),
        ("train", "-c", "rewarded.yaml", "run.name=rewarded"),
        ("train", "-c", "base.yaml", "--method", "halves.py", "run.name=halves"),
        ("eval", "halves"),
        ("train", "-c", "base.yaml", "--method", "power.py+surprise.py+lopti", "run.name=three"),
        ("sweep", "sweep.yaml", "--workers", "1"),
        ("eval", "mine/power"),
    )
    assert [one for one in done if one.code] == []
    told = (folder / "imported").read_text()
    assert {Path(line).name for line in told.splitlines()} == set(files)
    return folder


def test_commands_that_read_execute_no_file(folder: Path) -> None:
    (folder / "imported").unlink(missing_ok=True)
    lines = [(*name.split(), *words) for name, several in READS.items() for words in several]
    for line, done in zip(lines, run_all(folder, *lines), strict=True):
        # Nothing is running that could be stopped, and a package may be missing.
        assert done.code == (2 if line[:2] == ("sweep", "stop") else 0) or line[0] == "doctor", (line, done)
    assert not (folder / "imported").exists(), (folder / "imported").read_text()


def test_what_is_read_is_as_it_was(folder: Path) -> None:
    """Configurations are read to the same text and values; a method that is not imported equals only itself."""
    code = """
import json, sys
from pathlib import Path
from rlvr_cli import store
from rlvr_cli.config.load import dump_yaml, leaves, load_config
from rlvr_cli.methods.equivalence import find_same_gradients
found = store.runs()
made = store.evaluations(found)
assert len(found) == 5 and len(store.steps(found)) and len(store.problems(made)) and len(store.samples(made))
for code in (False, True):
    assert not Path("imported").exists()
    methods, steps = {}, []
    for place in map(Path, sys.argv[1:]):
        read = load_config([place / "config.yaml"], import_files=code)
        assert code or dump_yaml(read) == (place / "config.yaml").read_text(), place
        methods[place.name] = read.method
        steps.append(sorted((".".join(path), str(value)) for path, value in leaves(read)))
    print(json.dumps([steps, [[one.names, one.when] for one in find_same_gradients(methods, 1)]]))
"""
    (folder / "imported").unlink(missing_ok=True)
    places = [str(folder / "runs" / name) for name in RUNS]
    command = [sys.executable, "-c", code, *places]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    found = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=folder, check=False)
    assert found.returncode == 0, found.stderr
    read, executed = map(json.loads, found.stdout.splitlines())
    assert read[0] == executed[0], found.stdout
    assert ["grpo", "rewarded"] in [names for names, _ in read[1]], found.stdout
    assert ["grpo", "power", "rewarded"] in [names for names, _ in executed[1]], found.stdout
    assert (folder / "imported").exists()
