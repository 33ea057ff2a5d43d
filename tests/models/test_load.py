"""Loading a model: what works, and one plain message for everything that does not."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from rlvr_cli.core.errors import UserError
from rlvr_cli.models.load import eos_token_ids, load_model
from rlvr_cli.models.source import connection_problem, prompt_style, resolve_model
from tests.models.tiny import VOCABULARY, make


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    make("qwen3", eos_token_id=7).save_pretrained(folder)
    words = Tokenizer(WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w3").save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "tiny"))


def edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_saved_model_loads_in_float32_and_eval_mode_with_a_padding_token(folder: Path) -> None:
    model, tokenizer = load_model(str(folder))
    assert next(model.parameters()).dtype == torch.float32
    assert not model.training
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == 3
    assert eos_token_ids(model, tokenizer) == (3, 7)
    expected = make("qwen3", eos_token_id=7)
    assert torch.equal(model.lm_head.weight, expected.lm_head.weight)


def test_dtype_can_be_asked_for(folder: Path) -> None:
    assert next(load_model(str(folder), dtype="bfloat16")[0].parameters()).dtype == torch.bfloat16


@pytest.mark.parametrize(
    "unused",
    [
        {"do_sample": False, "temperature": 0.9, "top_p": 0.6},
        {"length_penalty": 2.0, "early_stopping": True},
        {"output_scores": True},
    ],
)
def test_values_that_generation_does_not_use_are_saved_as_they_were(
    folder: Path, tmp_path: Path, unused: dict[str, object]
) -> None:
    """transformers refuses to save them once a trainer has changed the padding token."""
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 4], **unused}))
    model, tokenizer = load_model(str(folder))
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(tmp_path / "again")
    written = json.loads((tmp_path / "again" / "generation_config.json").read_text())
    written.pop("transformers_version")
    assert written == {"eos_token_id": [3, 4], "pad_token_id": tokenizer.pad_token_id, **unused}


def test_prompt_style_is_what_the_model_says_it_was_made_for(folder: Path) -> None:
    assert prompt_style(load_model(str(folder))[0].config) == "logic_rl"
    edit_config(folder, rlvr_prompt_style="compact")
    assert prompt_style(load_model(str(folder))[0].config) == "compact"
    assert prompt_style(json.loads((folder / "config.json").read_text())) == "compact"
    with pytest.raises(UserError, match="rlvr_prompt_style: 'odd'"):
        prompt_style({"rlvr_prompt_style": "odd"})


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def cut_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def scramble_header(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(b"\xff" * 64 + path.read_bytes()[64:])


def empty_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")


def only_pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def no_tokenizer(folder: Path) -> None:
    for path in folder.glob("tokenizer*"):
        path.unlink()


def missing_shard(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"lm_head.weight": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (remove("config.json"), "no config.json"),
        (lambda folder: (folder / "config.json").write_text("{"), "not valid JSON"),
        (lambda folder: (folder / "config.json").write_text("{}"), "model_type"),
        (remove("model.safetensors"), "no weights"),
        (cut_weights, "damaged"),
        (scramble_header, "damaged"),
        (empty_weights, "damaged"),
        (only_pickled, "can run code"),
        (missing_shard, "00001-of-00002.safetensors is missing"),
        (no_tokenizer, "no tokenizer"),
    ],
)
def test_a_bad_folder_is_found_before_anything_is_loaded(
    folder: Path, damage: Callable[[Path], object], message: str
) -> None:
    damage(folder)
    with pytest.raises(UserError, match=message) as caught:
        resolve_model(str(folder))
    assert str(folder) in str(caught.value)


def test_all_problems_of_a_folder_are_told_together(folder: Path) -> None:
    no_tokenizer(folder)
    remove("model.safetensors")(folder)
    with pytest.raises(UserError) as caught:
        resolve_model(str(folder))
    assert len(caught.value.problems) == 2


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: edit_config(folder, num_hidden_layers=3), "cannot be loaded"),
        (lambda folder: edit_config(folder, attention_bias=True), r"lack model\.layers\.0.* and 5 more"),
        (lambda folder: edit_config(folder, hidden_size=64), "cannot be loaded"),
        (lambda folder: edit_config(folder, model_type="unheard_of"), "cannot be loaded"),
        (lambda folder: (folder / "tokenizer.json").write_text("{"), "cannot be loaded"),
        (
            lambda folder: edit_config(folder, model_type="mine", auto_map={"AutoConfig": "code.Config"}),
            "give --trust-remote-code",
        ),
    ],
)
def test_what_only_loading_shows_is_one_message_too(
    folder: Path, damage: Callable[[Path], object], message: str
) -> None:
    damage(folder)
    with pytest.raises(UserError, match=message) as caught:
        load_model(str(folder))
    assert len(caught.value.problems) == 1
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["./nowhere", "/no/such/model", "a/b/c", "~/nowhere", "two words"])
def test_a_missing_path_is_named(name: str) -> None:
    with pytest.raises(UserError, match="no folder"):
        resolve_model(name)


def test_a_file_is_not_a_model(folder: Path) -> None:
    with pytest.raises(UserError, match="is a file"):
        resolve_model(str(folder / "config.json"))


def test_a_run_folder_points_to_its_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(UserError, match="is a run, not a model"):
        resolve_model(str(tmp_path))


def test_a_hub_id_that_is_not_cached_is_refused_when_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match=r"org/model \(revision v2\).*offline|HF_HUB_OFFLINE"):
        resolve_model("org/model", revision="v2")
    cached = tmp_path / "models--org--model" / "snapshots" / "abc"
    cached.mkdir(parents=True)
    (cached / "config.json").write_text("{}")
    assert resolve_model("org/model").kind == "hub"


def test_a_hub_that_cannot_be_reached_is_one_message(tmp_path: Path) -> None:
    """In a fresh process, because the hub's library reads its environment once."""
    code = (
        "from rlvr_cli.models import load\n"
        "from rlvr_cli.core.errors import UserError\n"
        "try: load.load_model('org/no-such-model')\n"
        "except UserError as error: print(len(error.problems), error)\n"
    )
    environment = {
        "HF_ENDPOINT": "http://127.0.0.1:9",
        "HF_HOME": str(tmp_path),
        "PATH": "",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 model: cannot get org/no-such-model")
    assert done.stdout.count("\n") == 1


def test_a_process_tries_the_hub_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    def refuse(*_: object, **__: object) -> None:
        tries.append(1)
        raise OSError("no network")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    connection_problem.cache_clear()
    assert {connection_problem() for _ in range(3)} == {"no connection to https://huggingface.co (no network)"}
    assert len(tries) == 1
    connection_problem.cache_clear()


def test_resolving_a_model_imports_no_torch(folder: Path) -> None:
    code = (
        f"import sys; from rlvr_cli.models.source import resolve_model; resolve_model({str(folder)!r})\n"
        "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    path = {"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", code], env=path, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_a_folder_has_no_revisions(folder: Path) -> None:
    for name in (str(folder), "lab"):
        with pytest.raises(UserError, match=r"model.revision=abc: .* has no revisions"):
            resolve_model(name, revision="abc")
