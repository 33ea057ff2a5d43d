"""Which tasks a model can read, before anything is loaded: its words, and its positions."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rlvr_cli.cli.app import run as rlvr
from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import UserError
from rlvr_cli.models.load import load_tokenizer
from rlvr_cli.models.reading import FileTokenizer, check_readable
from rlvr_cli.models.source import PRESETS

ENGLISH = "task.style=logic_rl"


@pytest.mark.parametrize("name", PRESETS)
def test_the_tokenizer_of_the_files_is_that_of_transformers(name: str) -> None:
    written = json.loads((PRESETS[name] / "tokenizer_config.json").read_text())
    ours, theirs = FileTokenizer(PRESETS[name] / "tokenizer.json", written), load_tokenizer(name)
    for text in ("A: BN or AK B: BN ? <think>", "What is 3 + 4?", ""):
        assert ours(text) == {"input_ids": theirs(text)["input_ids"]}
    assert (ours.unk_token_id, ours.bos_token_id) == (theirs.unk_token_id, theirs.bos_token_id)


@pytest.mark.parametrize("name", PRESETS)
def test_a_lab_reads_its_task(name: str) -> None:
    check_readable(load_config(task=PRESETS[name].name, model=name))


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ([ENGLISH], r"^task\.name=kk: .*\d\d% of the prompts' tokens.*other keys left out.*on_no_signal=off"),
        (["task=math", "task.style=boxed"], "unknown to the tokenizer of lab-math"),
        (["rollout.max_new_tokens=510"], "512 positions. Allowed: up to "),
        ([ENGLISH, "train.on_no_signal=off", "rollout.max_new_tokens=510"], "positions"),
        (["task.people={8: 1.0}"], "task.people: the compact style supports at most"),
    ],
)
def test_what_cannot_be_read_is_refused_with_what_would_work(overrides: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        check_readable(load_config(model="lab", overrides=overrides))


def test_prompts_longer_than_the_model_leave_no_room(tmp_path: Path) -> None:
    folder = tmp_path / "short"
    shutil.copytree(PRESETS["lab"], folder)
    about = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**about, "max_position_embeddings": 10}))
    with pytest.raises(UserError, match=r"longest prompt has .* no completion fits"):
        check_readable(load_config(model=str(folder)))
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    check_readable(load_config(model=str(folder)))  # a template is a program: seen where the model is loaded


def test_a_plan_says_that_a_training_would_be_refused_and_a_sweep_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rlvr(["plan", ENGLISH]) == 0
    assert "`rlvr train` refuses this: task.name=kk" in capsys.readouterr().out
    (tmp_path / "s.yaml").write_text(f"set: {{run.dir: {tmp_path}}}\ngrid:\n  task.style: [compact, logic_rl]\n")
    assert rlvr(["sweep", "run", str(tmp_path / "s.yaml")]) == 2
    assert "cannot learn from these prompts" in (said := capsys.readouterr().err) and "trial stylelogic_rl" in said
    assert [path.name for path in tmp_path.iterdir()] == ["s.yaml"]
