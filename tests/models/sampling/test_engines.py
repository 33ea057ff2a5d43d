"""The engine that wraps `generate`, and the choice between it and the local sampler."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from rlvr_cli.core.errors import UserError
from rlvr_cli.models.sampling.engine import SamplingParams
from rlvr_cli.models.sampling.local import sample
from rlvr_cli.models.sampling.transformers import choose_engine, generate_with_transformers
from tests.models.tiny import full_entropies, full_log_probs, make, rounding

PROMPTS = [[1, 2], [1, 2], [5, 6, 7, 8, 9], [3]]
PARAMS = SamplingParams(seed=5, max_new_tokens=30, eos_token_ids=(3, 11))
KEYS = [1, 2, 3, 4]


def gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=50, n_positions=64, n_embd=32, n_layer=2, n_head=2, initializer_range=0.3)
    return GPT2LMHeadModel(config).eval()


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_and_entropies_equal_the_full_forward(temperature: float) -> None:
    model = gpt2()
    # What a model's own generation config asks for must not leak into what is sampled.
    model.generation_config.repetition_penalty = 5.0
    model.generation_config.top_k = 1
    out = generate_with_transformers(model, PROMPTS, replace(PARAMS, temperature=temperature), keys=KEYS)
    assert len({len(ids) for ids in out.ids}) > 1
    assert out.ids[0] != out.ids[1]
    rows = zip(PROMPTS, out.ids, out.log_probs, out.entropies or [], out.truncated, strict=True)
    for prompt, ids, log_probs, entropies, truncated in rows:
        every = full_log_probs(model, prompt, ids, temperature)
        torch.testing.assert_close(torch.tensor(log_probs), every[range(len(ids)), ids], **rounding(every))
        full = full_entropies(model, prompt, ids, temperature)
        torch.testing.assert_close(torch.tensor(entropies, dtype=torch.float64), full, **rounding(every))
        assert truncated == (ids[-1] not in (3, 11))
        assert not set(ids[:-1]) & {3, 11}
    assert model.generation_config.repetition_penalty == 5.0


def test_it_is_seeded_by_the_call_and_leaves_the_global_stream_alone() -> None:
    model = gpt2().train()
    torch.manual_seed(1)
    first = generate_with_transformers(model, PROMPTS, PARAMS, keys=KEYS)
    following = torch.rand(3)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(3), following)
    assert generate_with_transformers(model, PROMPTS, PARAMS, keys=KEYS) == first
    assert generate_with_transformers(model, PROMPTS, replace(PARAMS, seed=6), keys=KEYS) != first
    assert model.training


def test_arguments_that_generate_refuses_are_the_user_s() -> None:
    params = replace(PARAMS, extra={"no_repeat_ngram_size": "x"})
    with pytest.raises(UserError, match=r"^rollout\.generation_kwargs=\{'no_repeat_ngram_size': 'x'\}: "):
        generate_with_transformers(gpt2(), PROMPTS, params, keys=KEYS)


def test_greedy_agrees_with_the_local_sampler() -> None:
    model = make("qwen3")
    theirs = generate_with_transformers(model, PROMPTS, replace(PARAMS, temperature=0.0, max_rows=3), keys=KEYS)
    ours = sample(model, PROMPTS, replace(PARAMS, temperature=0.0), keys=KEYS)
    assert theirs.ids == ours.ids
    both = zip([*theirs.log_probs, *(theirs.entropies or [])], [*ours.log_probs, *(ours.entropies or [])], strict=True)
    every = [full_log_probs(model, *row, 1.0) for row in zip(PROMPTS, ours.ids, strict=True)]
    for a, b in both:
        torch.testing.assert_close(torch.tensor(a), torch.tensor(b), **rounding(*every))


def test_auto_takes_the_local_sampler_where_it_can_and_says_why_not() -> None:
    assert choose_engine("auto", make("llama"), "rollout.engine")[0] is sample
    engine, reason = choose_engine("auto", gpt2(), "rollout.engine")
    assert engine is generate_with_transformers
    assert "GPT2LMHeadModel" in reason
    assert choose_engine("transformers", make("llama"), "rollout.engine")[0] is generate_with_transformers
    with pytest.raises(UserError, match=r"rollout\.engine.*GPT2LMHeadModel"):
        choose_engine("local", gpt2(), "rollout.engine")


@pytest.mark.parametrize("engine", [sample, generate_with_transformers])
def test_top_k_keeps_the_likeliest_and_their_whole_probability(engine: Any) -> None:
    model = make("qwen3")
    out = engine(model, PROMPTS, replace(PARAMS, top_k=2), keys=KEYS)
    assert out.ids != engine(model, PROMPTS, PARAMS, keys=KEYS).ids
    for prompt, ids, log_probs in zip(PROMPTS, out.ids, out.log_probs, strict=True):
        every = full_log_probs(model, prompt, ids, 1.0)
        chosen = every[range(len(ids)), ids]
        torch.testing.assert_close(torch.tensor(log_probs), chosen, **rounding(every))
        assert int((every > chosen.unsqueeze(1)).sum(1).max()) == 1
