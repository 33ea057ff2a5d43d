"""`rlvr export`: a folder that anyone can load and that answers as the run does; nothing where it cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlvr_cli.cli.app import run
from rlvr_cli.evaluation.sampling import weights_hash
from rlvr_cli.models.load import load_model
from rlvr_cli.models.source import PRESETS
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.runs.trained_on import read_training_problems
from rlvr_cli.tasks.base import prompt_ids
from tests.matrix import newest
from tests.training.sft_runs import configure, start

SHORT: dict[str, Any] = {
    "train__rollouts": 2,
    "update__epochs": 1,
    "validation__every": 2,
    "checkpoint__every": 2,
    "task__train_size": 64,
    "rollout__max_new_tokens": 48,
    "optimizer__lr": 5e-3,
}
KINDS: dict[str, dict[str, Any]] = {
    "lora": {"method": "grpo", "model__adapter": "{kind: lora, rank: 4}"},
    # All weights: the rate that moves adapters would undo the model, and no answer would end.
    "ppo": {"method": "ppo", "optimizer__lr": 5e-4},
}


@pytest.fixture(scope="module", params=["lora", pytest.param("ppo", marks=pytest.mark.slow)])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, RunDir]:
    folder = tmp_path_factory.mktemp("runs")
    return request.param, start(folder, "run", **{**SHORT, **KINDS[request.param]}).run


def files_in(folder: str) -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir())


def greedy(model: Any, prompts: list[list[int]]) -> list[list[int]]:
    """Answers of `generate` alone."""
    answers = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=48)
        answers.append(out[0, len(prompt) :].tolist())
    return answers


def test_the_exported_model_answers_as_the_run(trained: tuple[str, RunDir], tmp_path: Path) -> None:
    kind, of_run = trained
    output = tmp_path / "model"
    assert run(["export", str(of_run.path), "--output", str(output)]) == 0
    exported = AutoModelForCausalLM.from_pretrained(output).eval()
    tokenizer = AutoTokenizer.from_pretrained(output)
    config = configure(tmp_path, "x", "grpo")
    task = config.task.for_model("compact")
    prompts = [prompt_ids(task, problem, tokenizer) for problem in task.problems("test", 12, 0)]
    if kind == "lora":
        own = PeftModel.from_pretrained(load_model("lab", dtype="float32")[0], newest(of_run)).eval()
    else:
        own = AutoModelForCausalLM.from_pretrained(newest(of_run)).eval()
    own.generation_config = exported.generation_config
    assert greedy(exported, prompts) == greedy(own, prompts)
    assert any(prompt_answer[-1] == tokenizer.eos_token_id for prompt_answer in greedy(exported, prompts))
    assert weights_hash(exported) == weights_hash(load_model(str(newest(of_run)), dtype="float32")[0])
    weights = load_file(output / "model.safetensors")
    assert weights.keys() == load_file(PRESETS["lab"] / "model.safetensors").keys()
    assert read_training_problems(output) == read_training_problems(of_run.path)
    names = {path.name for path in output.rglob("*")}
    assert {"README.md", "config.json", "generation_config.json", "tokenizer.json"} <= names
    assert not names & {"trainer", "MANIFEST.json", "trainer_state.json", "value_head.safetensors", "base.json"}
    assert oct(output.stat().st_mode)[-3:] == "755"
    card = (output / "README.md").read_text()
    method = f"| method | {KINDS[kind]['method']} |"
    for part in ("| base model | lab |", method, "| task | kk-gen |", "| seed | 0 |", "trl "):
        assert part in card
    assert str(tmp_path) not in card and str(Path.home()) not in card
    assert "held-out avg@2" in card
    data = ModelCard(card).data
    assert data.license == "apache-2.0" and data.model_name == "run" and "rlvr" in data.tags
    assert list(tmp_path.iterdir()) == [output], "nothing is left next to it"


def test_the_folder_is_a_model_to_every_command(trained: tuple[str, RunDir], tmp_path: Path) -> None:
    _, of_run = trained
    output = tmp_path / "model"
    assert run(["export", str(newest(of_run)), "--output", str(output), "--dtype", "bfloat16", "--format=json"]) == 0
    assert json.loads((output / "rlvr_export.json").read_text())["dtype"] == "bfloat16"
    assert AutoModelForCausalLM.from_pretrained(output, dtype="auto").dtype == torch.bfloat16
    assert run(["tasks", "show", "kk", "--model", str(output)]) == 0
    options = ["--problems", "4", "--samples", "0", "--output", str(tmp_path / "eval")]
    assert run(["eval", str(output), *options]) == 0


@pytest.mark.slow
def test_what_is_there_is_kept(trained: tuple[str, RunDir], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, of_run = trained
    output = tmp_path / "model"
    output.mkdir()
    (output / "mine.txt").write_text("mine")
    command = ["export", str(of_run.path), "--output", str(output)]
    assert run(command) == 2
    assert "exists" in capsys.readouterr().err
    assert run([*command, "--overwrite"]) == 2
    assert "was not written by `rlvr export`" in capsys.readouterr().err
    assert (output / "mine.txt").read_text() == "mine"
    (output / "mine.txt").unlink()
    assert run(command) == 0
    assert run(command) == 2
    older = of_run.checkpoints_dir / "step-2"
    assert run(["export", str(older), "--output", str(output), "--overwrite"]) == 0
    assert json.loads((output / "rlvr_export.json").read_text())["checkpoint"] == "step-2"


def test_not_into_the_run_and_not_of_a_model(
    trained: tuple[str, RunDir], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, of_run = trained
    assert run(["export", str(of_run.path), "--output", str(of_run.path / "model")]) == 2
    assert "is inside the run" in capsys.readouterr().err
    assert run(["export", "lab", "--output", str(tmp_path / "model")]) == 2
    assert "no such run in" in capsys.readouterr().err


def test_a_push_without_a_login_is_refused_first(
    trained: tuple[str, RunDir], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub
    from huggingface_hub.errors import LocalTokenNotFoundError

    def whoami(self: Any) -> Any:
        raise LocalTokenNotFoundError("no token")

    monkeypatch.setattr(huggingface_hub.HfApi, "whoami", whoami)
    _, of_run = trained
    command = ["export", str(of_run.path), "--output", str(tmp_path / "model"), "--push-to-hub", "me/model"]
    assert run(command) == 2
    assert "hf auth login" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def not_found(self: Any, name: str) -> Any:
    from httpx2 import Request, Response
    from huggingface_hub.errors import RepositoryNotFoundError

    raise RepositoryNotFoundError(name, response=Response(404, request=Request("GET", "https://huggingface.co")))


def test_a_push_uploads_the_folder_and_stores_no_token(
    trained: tuple[str, RunDir], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub's client is a fake: what it is asked for is what matters."""
    import huggingface_hub

    calls: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setattr(huggingface_hub.HfApi, "whoami", lambda self: {"name": "me"})
    monkeypatch.setattr(huggingface_hub.HfApi, "repo_info", not_found)
    monkeypatch.setattr(
        huggingface_hub.HfApi,
        "create_repo",
        lambda self, name, **named: calls.append((name, named)) or f"https://huggingface.co/{name}",
    )
    monkeypatch.setattr(
        huggingface_hub.HfApi,
        "upload_folder",
        lambda self, **named: calls.append(("files", {**named, "there": files_in(named["folder_path"])})),
    )
    _, of_run = trained
    output = tmp_path / "model"
    command = ["export", str(of_run.path), "--output", str(output), "--push-to-hub", "me/model", "--private"]
    assert run(command) == 0
    assert "pushed: https://huggingface.co/me/model" in capsys.readouterr().out
    (name, created), (_, uploaded) = calls
    assert name == "me/model" and created["private"] is True
    assert uploaded["repo_id"] == "me/model" and "model.safetensors" in uploaded["there"]
    written = b"".join(path.read_bytes() for path in [*output.rglob("*"), *of_run.path.rglob("*")] if path.is_file())
    assert b"hf_secret" not in written
