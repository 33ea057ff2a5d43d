"""The page for users of TRL: its script and its file are the same training, and its table has names of both sides."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import trl
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from rlvr_cli.config.keys import KEYS, OTHER_NAMES
from rlvr_cli.config.load import load_config
from rlvr_cli.core.yaml import parse
from tests.commands import ROOT, run_in

PAGE = (ROOT / "docs" / "from-trl.md").read_text(encoding="utf-8")
LAB = ROOT / "rlvr_cli" / "models" / "lab" / "kk"
ROWS = [tuple(cell.strip() for cell in line.split("|")[1:-1]) for line in re.findall(r"^\| `.*$", PAGE, re.MULTILINE)]
UPDATES = 2


def block(language: str) -> str:
    match = re.search(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert match is not None
    return match[1]


def names(cell: str) -> list[str]:
    return re.findall(r"`([\w.]+)`", cell)


def test_the_table_has_names_and_defaults_of_both_sides() -> None:
    fields = {field.name: field.default for field in dataclasses.fields(GRPOConfig)}
    arguments = set(inspect.signature(GRPOTrainer).parameters)
    config: Any = load_config(model="Qwen/Qwen2.5-0.5B-Instruct")
    compared = 0
    for theirs, ours, default_there, default_here in ROWS:
        assert set(names(theirs)) <= {*fields, *arguments} and names(theirs), theirs
        for key in names(ours):
            assert KEYS.is_known(tuple(key.split("."))), key
        known = {OTHER_NAMES[name] for name in names(theirs) if name in OTHER_NAMES}
        assert known <= set(names(ours)), theirs
        if len(names(theirs)) == len(names(ours)) == 1 and re.fullmatch(r"\S+", default_there):
            value: Any = config
            for part in names(ours)[0].split("."):
                value = getattr(value, part)
            value = list(value) if isinstance(value, tuple) else value
            assert parse(default_here).data == value, ours
            assert parse(default_there).data == fields[names(theirs)[0]], theirs
            compared += 1
    assert len(ROWS) >= 30 and compared >= 15


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a reader has made the page's files, and trained with rlvr."""
    folder = tmp_path_factory.mktemp("from_trl")
    (folder / "mine.yaml").write_text(re.sub(r"Qwen/\S+", "lab", block("yaml")), encoding="utf-8")
    for line in (
        ("new", "reward", "rewards"),
        ("train", "-c", "mine.yaml", f"train.rollouts={UPDATES}"),
    ):
        (done,) = run_in(folder, line)
        assert done.code == 0, done
    return folder


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_both_have_the_same_updates(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TRL's script, with the completions of our run: rewards, lengths and gradient norms of its updates."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    rollouts = [read(path) for path in sorted((folder / "runs/mine/rollouts").iterdir())]
    answers = {row["prompt"]: row["answer"] for row in read(folder / "rewards.jsonl")}
    # In the order of our rollouts, which the script does not shuffle.
    prompts = [prompt for rollout in rollouts for prompt in dict.fromkeys(row["prompt"] for row in rollout)]
    remaining = iter(rollouts)

    def completions(texts: list[str], trainer: Any) -> dict[str, Any]:
        rollout = next(remaining)
        assert texts == [row["prompt"] for row in rollout]
        ids = [trainer.processing_class(text)["input_ids"] for text in texts]
        return {"prompt_ids": ids, "completion_ids": [row["token_ids"] for row in rollout], "logprobs": None}

    class Scripted(GRPOTrainer):
        def __init__(self, **arguments: Any) -> None:
            rows = Dataset.from_list([{"prompt": prompt, "answer": answers[prompt]} for prompt in prompts])
            super().__init__(**{**arguments, "train_dataset": rows, "rollout_func": completions})

    script = re.sub(r'"Qwen/\S+"', repr(str(LAB)), block("python"))
    here = 'output_dir="out", use_cpu=True, bf16=False, disable_tqdm=True, shuffle_dataset=False, '
    script = script.replace('output_dir="out",', here).replace("max_steps=100", f"max_steps={UPDATES}")
    monkeypatch.setattr(trl, "GRPOTrainer", Scripted)
    monkeypatch.syspath_prepend(str(folder))
    made: dict[str, Any] = {}
    with contextlib.chdir(folder):
        exec(compile(script, "train.py", "exec"), made)  # noqa: S102 - the page's own script
    sys.modules.pop("rewards", None)
    theirs = [row for row in made["trainer"].state.log_history if "grad_norm" in row]
    ours = read(folder / "runs/mine/metrics.jsonl")
    assert len(theirs) == len(ours) == UPDATES
    for mine, other in zip(ours, theirs, strict=True):
        assert mine["reward"] == other["reward"] and 0 < mine["reward"] < 1
        assert mine["length"] == other["completions/mean_length"]
        assert mine["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-3) and mine["grad_norm"] > 0.05
    # TRL's schedule is of its 100 updates, ours here of two.
    assert ours[0]["learning_rate"] == pytest.approx(theirs[0]["learning_rate"]) == 1e-5


def test_names_of_trl_get_the_names_here(folder: Path) -> None:
    keys = {name: key for name, key in OTHER_NAMES.items() if name in dir(GRPOConfig)}
    (done,) = run_in(folder, ("train", *(f"{name}=8" for name in keys)))
    assert len(keys) > 20 and all(f"{name}=8" in done.err for name in keys)
