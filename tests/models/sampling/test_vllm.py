"""The vLLM engine at its boundary: what vLLM is given, what becomes of its outputs, and plain messages.

vLLM itself is not run here: a module of that name stands in for it. tests/vllm/test_real_vllm.py runs it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.files import read_jsonl
from rlvr_cli.evaluation.evaluate import evaluate_with
from rlvr_cli.evaluation.sampling import VllmSampler
from rlvr_cli.evaluation.settings import EvalSettings
from rlvr_cli.models import libraries
from rlvr_cli.models.load import load_facts
from rlvr_cli.models.sampling.engine import SamplingParams
from rlvr_cli.models.sampling.vllm import fetch_model_folder, generate_with_vllm, load_vllm
from rlvr_cli.tasks.kk import KnightsAndKnaves


class VllmSamplingParams:
    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments


@dataclass
class FakeLLM:
    """Answers each prompt with its own tokens reversed, and one token that ends it."""

    finish: str = "stop"
    arguments: Any = None
    calls: Any = None

    def generate(self, prompts: Any, sampling_params: Any, use_tqdm: bool) -> list[Any]:
        assert not use_tqdm
        self.calls = (prompts, sampling_params)
        outputs = []
        for prompt in prompts:
            ids = [*reversed(prompt["prompt_token_ids"]), 1]
            log_probs = [{token: SimpleNamespace(logprob=-0.5), 999: SimpleNamespace(logprob=-0.1)} for token in ids]
            completion = SimpleNamespace(token_ids=ids, logprobs=log_probs, finish_reason=self.finish)
            outputs.append(SimpleNamespace(outputs=[completion]))
        return outputs


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("vllm")
    module.SamplingParams = VllmSamplingParams  # type: ignore[attr-defined]
    module.LLM = lambda **arguments: FakeLLM(arguments=arguments)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.setattr(libraries, "find_spec", lambda name: object())
    return module


PARAMS = SamplingParams(seed=3, max_new_tokens=7, eos_token_ids={2, 1}, temperature=0.8, top_p=0.9)


def test_every_row_has_its_own_seed_whatever_it_shares_a_call_with(vllm: ModuleType) -> None:
    model = FakeLLM()
    result = generate_with_vllm(model, [[5, 6], [7]], PARAMS, keys=[10, 11])
    assert result.ids == [[6, 5, 1], [7, 1]]
    assert result.log_probs == [[-0.5] * 3, [-0.5] * 2]
    assert result.truncated == [False, False]
    prompts, parameters = model.calls
    assert prompts == [{"prompt_token_ids": [5, 6]}, {"prompt_token_ids": [7]}]
    first, second = (one.arguments for one in parameters)
    assert first["seed"] != second["seed"]
    assert 0 <= first["seed"] < 2**63
    assert {key: first[key] for key in ("n", "temperature", "top_p", "top_k", "max_tokens", "stop_token_ids")} == {
        "n": 1,
        "temperature": 0.8,
        "top_p": 0.9,
        "top_k": -1,
        "max_tokens": 7,
        "stop_token_ids": [1, 2],
    }
    generate_with_vllm(model, [[7]], PARAMS, keys=[11])
    assert model.calls[1][0].arguments == second


def test_the_length_limit_and_broken_completions(vllm: ModuleType) -> None:
    assert generate_with_vllm(FakeLLM("length"), [[5]], PARAMS, keys=[0]).truncated == [True]
    assert generate_with_vllm(FakeLLM(), [], PARAMS, keys=[]).ids == []
    with pytest.raises(RunError, match="aborted a completion"):
        generate_with_vllm(FakeLLM("abort"), [[5]], PARAMS, keys=[0])


def test_without_the_package_or_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import torch

    monkeypatch.setattr(libraries, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"not installed.*pip install 'rlvr\[vllm\]'"):
        load_vllm(tmp_path, dtype="auto")
    monkeypatch.setattr(libraries, "find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    platforms = ModuleType("vllm.platforms")
    platforms.current_platform = SimpleNamespace(is_cpu=lambda: False)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="there is no GPU here"):
        load_vllm(tmp_path, dtype="auto")


def test_an_evaluation_by_vllm_is_stored_and_continued(vllm: ModuleType, tmp_path: Path) -> None:
    folder = fetch_model_folder("lab", None)
    facts = load_facts(str(folder))
    task = KnightsAndKnaves().for_model(facts.style)
    settings = EvalSettings(problems=3, samples=2, pass_at=(1, 2), temperature=0.5, max_new_tokens=9, engine="vllm")
    sampler = VllmSampler(FakeLLM(), facts, folder)
    result = evaluate_with(sampler, task, task.problems("test", 3, 0), settings, tmp_path)
    rows = read_jsonl(tmp_path / "samples.jsonl")
    assert result.result["samples"] == 2
    # At temperature 0.5 vLLM's log-probabilities are of another distribution.
    assert [row["log_prob"] is None for row in rows] == [row["sample"] != "greedy" for row in rows]
    again = VllmSampler(FakeLLM(finish="abort"), facts, folder)
    assert evaluate_with(again, task, task.problems("test", 3, 0), settings, tmp_path) == result
