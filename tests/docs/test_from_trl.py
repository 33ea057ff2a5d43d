"""The page for users of TRL: its script and its file are the same training, and its table has names of both sides."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
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
from trl.trainer import grpo_trainer

from rlvr_cli.config.keys import KEYS, OTHER_NAMES
from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.yaml import parse
from rlvr_cli.methods.names import METHODS, MODIFIERS
from rlvr_cli.training.trl_arguments import METHOD_ARGUMENTS, apply_method, resolve_method
from tests.commands import ROOT, run_in

PAGE = (ROOT / "docs" / "from-trl.md").read_text(encoding="utf-8")
LAB = ROOT / "rlvr_cli" / "models" / "lab" / "kk"


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def rows(title: str) -> list[tuple[str, ...]]:
    lines = re.findall(r"^\| `.*$", section(title), re.MULTILINE)
    return [tuple(cell.strip() for cell in line.split("|")[1:-1]) for line in lines]


ROWS, VALUES, FROM_HERE = rows("What is what"), rows("Values"), rows("From here to TRL")
UPDATES = 2


def block(language: str) -> str:
    match = re.search(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert match is not None
    return match[1]


def names(cell: str) -> list[str]:
    return re.findall(r"`([\w.]+)`", cell)


FIELDS = [field.name for field in dataclasses.fields(GRPOConfig)]


def test_every_option_of_trl_is_in_the_table_or_in_the_list() -> None:
    tables = [name for theirs, *_ in ROWS for name in names(theirs)]
    listed = names(section("What is what").partition("In `PolicyTrainer` alone")[2])
    listed.remove("PolicyTrainer")
    everything = [*tables, *listed]
    assert len(everything) == len(set(everything))
    assert set(FIELDS) - set(everything) == set()
    assert set(everything) - set(FIELDS) <= set(inspect.signature(GRPOTrainer).parameters) - {"args"}


@pytest.mark.parametrize(("theirs", "keys"), [(name, names(row[1])) for row in ROWS for name in names(row[0])])
def test_the_command_line_names_the_key_of_the_table(theirs: str, keys: list[str]) -> None:
    """`model` and `temperature` are names here too, so that they are followed by another message or by none."""
    if theirs in ("model", "temperature", "top_p", "top_k"):
        return
    with pytest.raises(UserError) as caught:
        load_config(overrides=[f"{theirs}=0.5"])
    (problem,) = caught.value.problems
    assert any(key in problem for key in (*keys, "rlvr train --resume RUN")) and theirs in problem


def allowed(option: str) -> set[str]:
    """The values that TRL's own code compares the option with."""
    source = inspect.getsource(grpo_trainer)
    lists = re.findall(rf"\b{option} (?:==|in|not in) (\[[^\]]*\]|\"\w+\")", source)
    return {value for found in lists for value in re.findall(r'"(\w+)"', found)}


@pytest.mark.parametrize(
    ("option", "least"),
    [
        ("loss_type", 8),
        ("scale_rewards", 2),
        ("multi_objective_aggregation", 2),
        ("importance_sampling_level", 2),
        ("vllm_importance_sampling_mode", 4),
    ],
)
def test_every_value_has_a_row(option: str, least: int) -> None:
    named = {theirs.strip("`").partition("=")[2] for theirs, *_ in VALUES if theirs.startswith(f"`{option}=")}
    assert allowed(option) <= named and len(named) >= least <= len(allowed(option)) + 1


@pytest.mark.parametrize(("theirs", "ours"), [(row[0].strip("`"), row[1].strip("`")) for row in VALUES])
def test_a_value_has_the_hint_of_its_row_which_loads(theirs: str, ours: str) -> None:
    with pytest.raises(UserError, match=re.escape(f"Did you mean `{ours}`?")):
        load_config(overrides=[theirs])
    server = ["rollout.vllm.server=http://localhost:8000"] if ours.endswith("vllm_server") else []
    load_config(overrides=[*ours.split(), *server])


NUMBERS = {"delta": 5.0, "epsilon": 0.1, "top_entropy_quantile": 0.3, "use_adaptive_entropy": True}
OPTIONS = [(option, NUMBERS.get(option, 0.25)) for option in METHOD_ARGUMENTS if not allowed(option)]
OPTIONS += [(option, value) for option in METHOD_ARGUMENTS for value in sorted(allowed(option))]
DEFAULTS = {field.name: field.default for field in dataclasses.fields(GRPOConfig)}
OPTIONS = [(option, value) for option, value in [*OPTIONS, ("scale_rewards", "none")] if value != DEFAULTS[option]]


@pytest.mark.parametrize(("option", "value"), OPTIONS)
def test_a_trainer_names_arguments_that_it_takes(tmp_path: Path, option: str, value: Any) -> None:
    config = GRPOConfig(str(tmp_path), use_cpu=True, bf16=False, **{option: value})
    with pytest.raises(ValueError, match=rf"Remove: {option} \(") as caught:
        apply_method(config, resolve_method("grpo"))
    message = str(caught.value)
    method = re.search(r'method="([\w-]+)"', message)
    overrides = re.findall(r'"([\w.]+=[^"]*)"', message.partition("overrides=[")[2])
    run = re.search(r"`rlvr train (.*)`", message)
    assert method or overrides or run
    if run:
        load_config(overrides=run[1].split())
    else:
        resolve_method(method[1] if method else "grpo", overrides)


def test_every_method_and_modifier_has_a_row() -> None:
    first = [name for row in FROM_HERE for name in re.findall(r"`([\w.-]+)`", row[0])]
    assert len(first) == len(set(first))
    ours = {name for name in first if "." not in name}
    assert ours == {*METHODS, *MODIFIERS}
    for key in set(first) - ours:
        assert KEYS.is_known(tuple(key.split("."))), key


def test_what_the_rows_name_of_trl_is_there() -> None:
    for row in FROM_HERE:
        for name in re.findall(r"`([\w.]+)(?:=\w+)?`", row[1]):
            if name.startswith("trl."):
                package, _, attribute = name.rpartition(".")
                assert hasattr(importlib.import_module(package), attribute) or importlib.util.find_spec(name), name
            elif name not in KEYS.key_names and name not in MODIFIERS:
                assert name in FIELDS or hasattr(trl, name) or name == "overlong", name


COMPARED = [row for row in ROWS if len(names(row[0])) == len(names(row[1])) == 1 and re.fullmatch(r"\S+", row[2])]


@pytest.mark.parametrize(("theirs", "ours"), [row[:2] for row in ROWS])
def test_the_table_has_names_of_both_sides(theirs: str, ours: str) -> None:
    for key in names(ours):
        assert KEYS.is_known(tuple(key.split("."))), key
    assert {OTHER_NAMES[name] for name in names(theirs) if name in OTHER_NAMES} <= set(names(ours))


@pytest.mark.parametrize("row", COMPARED)
def test_the_table_has_the_defaults_of_both_sides(row: tuple[str, ...]) -> None:
    theirs, ours, default_there, default_here = row
    value: Any = load_config(model="Qwen/Qwen2.5-0.5B-Instruct")
    for part in names(ours)[0].split("."):
        value = getattr(value, part)
    assert parse(default_here).data == (list(value) if isinstance(value, tuple) else value)
    assert parse(default_there).data == (DEFAULTS | {"gradient_checkpointing": True})[names(theirs)[0]]
    assert len(COMPARED) >= 30


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
    keys = {name: key for name, key in OTHER_NAMES.items() if name in FIELDS}
    (done,) = run_in(folder, ("train", *(f"{name}=8" for name in keys)))
    assert len(keys) > 20 and all(f"{name}=8" in done.err for name in keys)
