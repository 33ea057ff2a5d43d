"""Trainings that sample from a server that is there already: weights, checks, and plain messages for what cannot be."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.models.source import resolve_model
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.training import run as running
from tests.vllm.standin import Standin, serving

LAB = Path(resolve_model("lab", revision=None).location)
SHORT = ("train.rollouts=2", "rollout.prompts=4", "rollout.max_new_tokens=40", "task.train_size=32", "run.threads=1")


def trained(folder: Path, url: str, *overrides: str) -> RunDir:
    """A short run on the lab that samples at ``url``."""
    engine = ("rollout.engine=vllm_server", f"rollout.vllm.server_url={url}", "optimizer.lr=1e-4")
    settings = [*SHORT, *engine, f"run.dir={folder}", "run.name=run", *overrides]
    return running.start_training(load_config(method="grpo", overrides=settings), overwrite=False, console=QUIET).run


QUIET = Console(quiet=True)


@pytest.mark.parametrize("adapter", ["none", "lora"])
def test_it_is_given_the_weights_before_each_rollout(tmp_path: Path, adapter: str) -> None:
    standin = Standin(LAB)
    with serving(standin) as url:
        run = trained(tmp_path, url, f"model.adapter={adapter}")
    manifest, log = run.read_manifest(), run.log_path.read_text()
    assert manifest["sampler"] == f"the vLLM server at {url} (vLLM 0.0)"
    for name in ("sampler_check", "sampler_check_after_update"):
        assert manifest[name]["matches"] and manifest[name]["max_difference"] < 1e-4
    assert "WARNING" not in log
    assert standin.version == f"{run.path} step 1"
    # Once a rollout, through the run's folder, where nothing is left.
    assert [Path(folder).name for folder in standin.loaded] == ["step-0", "step-1"]
    assert Path(standin.loaded[0]).parents[1] == run.path and not list(run.path.glob("rlvr-weights-*"))
    # A seed of its own for each completion, and none of the server's own settings.
    assert len({body["seed"] for body in standin.requests}) == len(standin.requests) == 2 * 4 * 8
    assert {(body["top_k"], body["repetition_penalty"], body["min_p"]) for body in standin.requests} == {(-1, 1.0, 0.0)}


def test_a_server_that_takes_no_weights_is_noticed(tmp_path: Path) -> None:
    with serving(Standin(LAB, deaf=True)) as url:
        run = trained(tmp_path, url)
    # One update moves log-probs by less than the limit of a single check.
    assert "WARNING: the sampler has not all of the weights that the update made" in run.log_path.read_text()


def test_a_server_that_was_started_again_is_noticed(tmp_path: Path) -> None:
    standin = Standin(LAB)
    post = standin.post

    def forgets(path: str, body: dict[str, Any]) -> Any:
        # From the first completion that the second rollout asks for.
        if path == "/v1/completions" and len(standin.loaded) == 2:
            standin.version = "default"
        return post(path, body)

    standin.post = forgets  # type: ignore[method-assign]
    with serving(standin) as url, pytest.raises(RunError, match=r"restarted, or another run uses it.*--resume"):
        trained(tmp_path, url)
    assert not list((tmp_path / "run").glob("rlvr-weights-*"))


def test_one_that_samples_for_others_is_refused(tmp_path: Path) -> None:
    with serving(Standin(LAB, busy=True)) as url, pytest.raises(RunError, match="its own server"):
        trained(tmp_path, url)


def test_a_completion_that_is_broken_off_is_asked_for_again(tmp_path: Path) -> None:
    standin = Standin(LAB, break_off=5)
    with serving(standin) as url:
        trained(tmp_path, url, "train.rollouts=1")
    assert len(standin.requests) == 4 * 8 + 1


def refusal(folder: Path, url: str, *overrides: str) -> str:
    with pytest.raises(UserError) as error:
        trained(folder, url, *overrides)
    assert not (folder / "run").exists()
    return "\n".join(error.value.problems)


def test_what_cannot_be_is_said_before_anything_starts(tmp_path: Path) -> None:
    said = refusal(tmp_path, "http://127.0.0.1:9")
    assert "cannot be reached" in said and "VLLM_SERVER_DEV_MODE=1 vllm serve lab" in said
    for how, words in (
        ({"bare": True}, "VLLM_SERVER_DEV_MODE=1 in its environment"),
        ({"owner": "sglang"}, "not a vLLM server, but one of sglang"),
        ({"longest": 50}, "takes 50 tokens of prompt and completion"),
        ({"device": "cpu"}, "rlvr then starts a server with a head of its own"),
    ):
        with serving(Standin(LAB, **how)) as url:  # type: ignore[arg-type]
            assert words in refusal(tmp_path, url)
    with serving(Standin(LAB)) as url:
        assert "--logprobs-mode processed_logprobs" in refusal(tmp_path, url, "rollout.temperature=0.7")


def test_another_model_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(LAB, other)
    standin = Standin(other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "hidden_size": 64}))
    tokenizer = standin.tokenizer
    standin.tokenizer = lambda text, **named: {"input_ids": tokenizer(text, **named)["input_ids"][::-1]}
    with serving(standin) as url:
        said = refusal(tmp_path, url)
    assert "hidden_size 64 for 96" in said and "another tokenizer than lab" in said
