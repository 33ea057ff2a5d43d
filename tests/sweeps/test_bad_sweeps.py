"""Bad sweep files: every problem at once, each with its line, before anything is started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.sweeps.files import problems

CASES = {
    "methods: [grpo]\nsedes: 3": ["s.yaml:2 sedes: unknown key. Did you mean `seeds`? Keys: name, base, set"],
    "retries: -1\nslots: {gpu: 1}": [
        "s.yaml:1 retries: must be a whole number, at least 0 and at most 100; got -1",
        "s.yaml:2 slots.gpu: unknown key. Did you mean `slots.gpus`? Keys of slots: cores, gpus",
    ],
    "seeds: three": ["s.yaml:1 seeds: must be a number of seeds, at least 1 and at most 1000, or a list of seeds; got"],
    "exclude: {a: 1}": ["s.yaml:1 exclude: must be a list whose items are each a mapping"],
    "1: x": ["s.yaml:1 1: unknown key. Keys: name, base"],
    "grid: {1: [2]}": ["s.yaml:1 grid: must be a mapping from keys to lists of values or ranges; got {1: [2]}"],
    "- grpo": ["s.yaml a sweep file must be a mapping with the keys name, base"],
    "name: a/b": ["s.yaml:1 name: must be null, or a name of letters"],
    "set: {optimizer.lr: 1e-3}": ["s.yaml nothing varies: give at least one of methods, seeds"],
    "grid:\n  optimizer.lrr: [1]": ["s.yaml:2 optimizer.lrr: no such key. Did you mean `optimizer.lr`?"],
    "grid:\n  optimiser.lr: [1]": ["s.yaml:2 optimiser.lr: no such key. Did you mean `optimizer.lr`?"],
    "grid:\n  update: [1]": ["s.yaml:2 update: is a section, not a key. Its keys: update.mini_batches"],
    "grid:\n  task.people.2: [1]": ["s.yaml:2 `task.people` is one value: set it whole"],
    "grid:\n  run.name: [a, b]": ["s.yaml:2 run.name: trials are named by what varies"],
    "seeds: 2\nset: {run.name: a}": ["s.yaml:2 set: run.name: trials are named by what varies"],
    "grid:\n  optimizer.lr: 1e-3": ["s.yaml:2 optimizer.lr: must be a list of values, or a range as"],
    "grid:\n  optimizer.lr: {log_range: [0, 1], count: 3}": [
        "s.yaml:2 optimizer.lr: log_range: its ends must be above 0"
    ],
    "grid:\n  optimizer.lr: {range: [1, 0], count: 3}": ["s.yaml:2 optimizer.lr: range: must go upwards"],
    "grid:\n  optimizer.lr: {range: [0.1, 0.2]}": ["s.yaml:2 optimizer.lr: range: needs a step above 0"],
    "methods: [grpo]\ngrid:\n  update.epochs: []": ["s.yaml:3 update.epochs: has no value, so that there is no trial"],
    "methods: []\nseeds: 2": ["s.yaml:1 method.name: has no value, so that there is no trial"],
    "methods: [grpo]\ngrid:\n  method: [dgpo]": [
        "s.yaml:3 method.name is set by another axis (s.yaml:1) already; one of them would have no effect"
    ],
    "seeds: 2\nlist:\n  - {run.seed: 3}": ["s.yaml:1 run.seed is set by another axis (s.yaml:2) already"],
    "set: {run.seed: 3}\nseeds: 2": ["s.yaml:2 run.seed is set by `set` (s.yaml:1) already"],
    "zip:\n  rollout.prompts: [8, 16]\n  optimizer.lr: [1e-3]": [
        "s.yaml:1 zip: its lists must have one length; rollout.prompts has 2, optimizer.lr has 1"
    ],
    "methods: [grpo, lopti]\nexclude:\n  - {methods: grpo}\n  - {method: dapo}": [
        "s.yaml:3 exclude: methods is no axis. Did you mean `method.name`? Axes: method.name",
        "s.yaml:4 exclude: {method: dapo} matches no trial",
    ],
    "methods: [grpo, lopti]\nexclude:\n  - {method: [lopti, grpo]}": ["s.yaml:2 exclude: leaves none of the 2 trials"],
    "methods: [grpo, lopti, GRPO]\nseeds: 2": [
        "s.yaml:1 method.name=grpo, run.seed=0 and method.name=GRPO, run.seed=0 are the same trial: their "
        "configurations agree in all that decides the numbers (and 1 more alike)"
    ],
    "methods: [grpo]\ngrid:\n  checkpoint.every: [1, 2]": ["s.yaml:3 method.name=grpo, checkpoint.every=1 and"],
    "seeds: 2\nbudget: 100\nset: {train.rollouts: 60}": [
        "s.yaml:2 budget: the 2 trials take 120 rollouts together, and 100"
    ],
    "seeds: 2\neval: {pass_at: [4], samples: 2, benchmark: gsm9k}": [
        "s.yaml:2 eval: --benchmark gsm9k: unknown. Did you mean `gsm8k`?",
        "s.yaml:2 eval: pass@4: only 2 samples a problem are asked for",
    ],
    "seeds: 2\neval:\n  pass_at: [2]\n  set: {eval.samples: 2, eval.greedy: maybe}": [
        "s.yaml:4 eval.set: eval.greedy: must be",
    ],
    "seeds: 2\neval:\n  problems: 8\n  set: {optimizer.lr: 0.1, eval.problems: 4}": [
        "s.yaml:4 eval.set: optimizer.lr: has no effect",
        "s.yaml:4 eval.set: eval.problems: is set by `problems` too",
    ],
    "seeds: 2\neval:\n  set: {eval.engine: openai, eval.base_url: http://host/v1}": [
        "s.yaml:3 eval.set: eval.base_url: a server has one model"
    ],
    "seeds: 2\neval: {pass_at: [4], set: {eval.samples: 2, eval.pass_at: [1]}}": [
        "s.yaml:2 eval.set: eval.pass_at has 4, above eval.samples=2",
        "s.yaml:2 eval.set: eval.pass_at: is set by `pass_at` too",
    ],
    "seeds: 2\ngrid:\n  task.data: [null, nope]": ["s.yaml:3 task.data='nope': no data set of that name"],
    "seeds: 1\nbase: missing.yaml": ["missing.yaml no such file"],
    # In one trial's configuration: by trial, and by the line of the axis.
    "methods:\n  - grpo\n  - loptii\nseeds: 4\ngrid:\n  optimizer.lr: [1e-3,\n    -1]": [
        "s.yaml:7 optimizer.lr: must be a number, above 0 and at most 1, or a mapping",
        's.yaml:3 method.name: unknown method "loptii". Did you mean `lopti`?',
    ],
    "set:\n  rollout.prompts: 15\ngrid:\n  update.mini_batches: [1, 16]": [
        "s.yaml:2, s.yaml:4 rollout.prompts=15 x group_size=8 = 120 completions do not split into"
    ],
}


def test_every_problem_with_its_line(tmp_path: Path) -> None:
    for text in CASES:
        found = problems(tmp_path, text)
        assert len(found) == len(CASES[text]), found
        for line, start in zip(found, CASES[text], strict=True):
            assert start in line and (line.startswith(start) or "missing" in start), line


def test_a_problem_of_some_trials_names_them(tmp_path: Path) -> None:
    text = "methods: [grpo, loptii]\nseeds: 4"
    (line,) = problems(tmp_path, text)
    assert line.endswith("(trials loptii-s0, loptii-s1, loptii-s2 and 1 more)")
    (line,) = problems(tmp_path, "methods: [grpo, lopti]\nset: {optimizer.lr: -1}")
    assert line.startswith("s.yaml:2 optimizer.lr: must be") and "trial" not in line


def test_overrides_of_the_command_line(tmp_path: Path) -> None:
    text = "methods: [grpo, lopti]"
    (line,) = problems(tmp_path, text, "method=dgpo")
    assert line == "override method=dgpo method.name is an axis (s.yaml:1), which would override it"
    (line,) = problems(tmp_path, text, "run.name=x")
    assert "trials are named by what varies" in line
    (line,) = problems(tmp_path, text, "optimizer.lr=-1")
    assert line.startswith("override optimizer.lr=-1 optimizer.lr: must be")


def test_bad_input_starts_nothing_and_loads_no_torch(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(f"methods: [grpo, loptii]\nset: {{run.dir: {tmp_path}/runs}}\n")
    code = (
        "import sys\nfrom rlvr_cli.cli.app import run\ncode = run(['sweep', sys.argv[1]])\n"
        "print(code, 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(file)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "2 False\n"
    assert f"{file}:1  method.name: unknown method" in done.stderr and "Nothing was started." in done.stderr
    assert not (tmp_path / "runs").exists()
