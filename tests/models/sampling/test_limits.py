"""min_p, the repetition penalty and stop strings: transformers' distribution, and where completions end."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel
from tokenizers.models import BPE
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    PreTrainedTokenizerFast,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from rlvr_cli.core.errors import UserError
from rlvr_cli.models.sampling.engine import SamplingParams, StopStrings
from rlvr_cli.models.sampling.local import _sample_tokens, sample
from rlvr_cli.models.sampling.rng import keep_likely, penalize
from rlvr_cli.models.sampling.transformers import check_generation_config, generate_with_transformers
from rlvr_cli.models.sampling.vllm import request_arguments
from tests.models.tiny import VOCABULARY, full_entropies, full_log_probs, make, rounding

PROMPTS = [[1, 2], [1, 2], [5, 6, 7, 8, 9], [3]]
KEYS = [1, 2, 3, 4]
PARAMS = SamplingParams(seed=5, max_new_tokens=40, eos_token_ids=(3,))
LIMITS = [
    {"min_p": 0.2},
    {"min_p": 1.0},
    {"repetition_penalty": 1.7},
    {"repetition_penalty": 0.6, "temperature": 0.7},
    {"top_k": 12, "top_p": 0.8, "min_p": 0.1, "repetition_penalty": 1.3, "temperature": 1.4},
]
ENGINES = [sample, generate_with_transformers]


def warped(logits: torch.Tensor, ids: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """The distribution of transformers' processors, in the order of its `generate`."""
    processors: list[Any] = [RepetitionPenaltyLogitsProcessor(params.repetition_penalty)]
    processors += [TemperatureLogitsWarper(params.temperature)] if params.temperature != 1 else []
    processors += [TopKLogitsWarper(params.top_k)] if params.top_k else []
    processors += [TopPLogitsWarper(params.top_p)] if params.top_p < 1 else []
    processors += [MinPLogitsWarper(params.min_p)] if params.min_p else []
    return LogitsProcessorList(processors)(ids, logits.clone()).softmax(-1)


@pytest.mark.parametrize("limits", LIMITS)
def test_the_local_sampler_draws_from_the_distribution_of_transformers(limits: Any) -> None:
    params = replace(PARAMS, **limits)
    generator = torch.Generator().manual_seed(1)
    logits = 2 * torch.randn(1, VOCABULARY, generator=generator)
    ids = torch.randint(0, VOCABULARY, (1, 20), generator=generator)
    seen = torch.zeros(1, VOCABULARY, dtype=torch.bool).scatter_(1, ids, value=True)
    draws = 50_000
    u = (torch.arange(draws, dtype=torch.float64) + 0.5) / draws
    tokens, probabilities, entropies = _sample_tokens(
        logits.repeat(draws, 1), u, params, seen.expand(draws, -1) if params.repetition_penalty != 1 else None
    )
    shares = torch.bincount(tokens, minlength=VOCABULARY).double() / draws
    expected = warped(logits, ids, params)[0].double()
    # Evenly spaced numbers hit an interval of a token within one draw of its length.
    assert float((shares - expected).abs().max()) < 2 / draws + 1e-6
    assert not bool(shares[expected == 0].any())
    # The log-probs are of the model's distribution at the temperature.
    model = (logits[0] / params.temperature).softmax(-1)
    torch.testing.assert_close(probabilities, model[tokens])
    torch.testing.assert_close(entropies, -(model * model.log()).sum().expand(draws), rtol=1e-4, atol=1e-5)


def test_many_rows_lose_the_tokens_that_transformers_takes_from_them() -> None:
    logits = 2 * torch.randn(300, 40, generator=torch.Generator().manual_seed(3))
    for top_p, top_k, min_p in ((1.0, 0, 0.3), (0.7, 0, 0.05), (0.9, 10, 0.2), (1.0, 3, 1.0)):
        params = replace(PARAMS, top_p=top_p, top_k=top_k, min_p=min_p)
        expected = warped(logits, torch.zeros(300, 0, dtype=torch.int64), params)
        kept = keep_likely(logits.softmax(-1), top_p, top_k, min_p)
        assert torch.equal(kept > 0, expected > 0)
        torch.testing.assert_close(kept / kept.sum(-1, keepdim=True), expected)
    probabilities = logits.softmax(-1)
    assert keep_likely(probabilities, 1.0, 0, 0.0) is probabilities


def test_the_penalty_is_that_of_transformers() -> None:
    generator = torch.Generator().manual_seed(4)
    logits, ids = torch.randn(50, 30, generator=generator), torch.randint(0, 30, (50, 12), generator=generator)
    seen = torch.zeros(50, 30, dtype=torch.bool).scatter_(1, ids, value=True)
    for penalty in (1.3, 0.5, 100.0):
        expected = RepetitionPenaltyLogitsProcessor(penalty)(ids, logits.clone())
        torch.testing.assert_close(penalize(logits, seen, penalty), expected)


@pytest.mark.parametrize("rows", [None, 1, 3])
def test_both_engines_penalize_prompt_and_completion_whatever_the_batch(rows: int | None) -> None:
    """The padding of shorter prompts is no token of theirs."""
    model, params = make("qwen3"), replace(PARAMS, temperature=0.0, repetition_penalty=1.5, max_rows=rows)
    ours, theirs = (engine(model, PROMPTS, params, keys=KEYS) for engine in ENGINES)
    assert ours.ids == theirs.ids == sample(model, PROMPTS, replace(params, max_rows=2), keys=KEYS).ids
    assert ours.ids != sample(model, PROMPTS, replace(params, repetition_penalty=1.0), keys=KEYS).ids


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("limits", LIMITS)
def test_log_probs_and_entropies_know_no_limit(engine: Any, limits: Any) -> None:
    model, params = make("qwen3"), replace(PARAMS, eos_token_ids=range(3, 40, 4), **limits)
    out = engine(model, PROMPTS, params, keys=KEYS)
    assert len({len(ids) for ids in out.ids}) > 1 or params.min_p == 1, "rows must leave the batch at different times"
    assert engine is sample or out.ids != engine(model, PROMPTS, PARAMS, keys=KEYS).ids
    for prompt, ids, log_probs, entropies in zip(PROMPTS, out.ids, out.log_probs, out.entropies, strict=True):
        every = full_log_probs(model, prompt, ids, params.temperature)
        torch.testing.assert_close(torch.tensor(log_probs), every[range(len(ids)), ids], **rounding(every))
        full = full_entropies(model, prompt, ids, params.temperature)
        torch.testing.assert_close(torch.tensor(entropies, dtype=torch.float64), full, **rounding(every))


def test_a_row_does_not_depend_on_the_others() -> None:
    model, params = make("qwen3"), replace(PARAMS, repetition_penalty=1.4, min_p=0.05, top_p=0.95)
    whole = sample(model, PROMPTS, params, keys=KEYS)
    for row, (prompt, key) in enumerate(zip(PROMPTS, KEYS, strict=True)):
        assert sample(model, [prompt], params, keys=[key]).ids[0] == whole.ids[row]


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """50 tokens: of one to three letters, of half a character (é, €), and of nothing."""
    letters = [*"abcdefghijklmnop", "ab", "bc", "abc", "Ġ", "Ġa", "Ã", "©", "â", "Ĥ", "¬"]
    tokens = [f"<{i}>" for i in range(4)] + letters
    tokens += [first + second for first in "ghij" for second in "klmn"] + list("qrstuvwxyz")
    tokenizer = Tokenizer(BPE({token: i for i, token in enumerate(tokens[:VOCABULARY])}, []))
    tokenizer.decoder = ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


TOKENIZER = byte_tokenizer()


def text(ids: list[int]) -> str:
    return str(TOKENIZER.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("strings", [("a",), ("bc", "hk"), ("é", "€", " "), ("fedcba" * 5,)])
def test_a_completion_ends_with_the_token_in_which_the_first_stop_string_ends(engine: Any, strings: Any) -> None:
    model = make("qwen3")
    prompts = [[4, 5, 6 + row % 3] for row in range(48)]
    params = replace(PARAMS, max_rows=48, temperature=1.5)
    free = engine(model, prompts, params, keys=range(48))
    out = engine(model, prompts, replace(params, stop=StopStrings(strings, TOKENIZER)), keys=range(48))
    ends = []
    for ids, log_probs, cut in zip(out.ids, out.log_probs, out.truncated, strict=True):
        assert not any(string in text(ids[:-1]) for string in strings)
        by_string = any(string in text(ids) for string in strings)
        assert cut == (not by_string and ids[-1] != 3) and (not cut or len(ids) == 40) and len(log_probs) == len(ids)
        ends.append(by_string)
    assert any(ends) != (strings[0] == "fedcba" * 5)
    # The draws are those without a stop string, up to its end.
    assert [row[: len(ids)] for row, ids in zip(free.ids, out.ids, strict=True)] == out.ids


def test_the_window_is_as_good_as_the_whole_text() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(4, VOCABULARY, (400, 60), generator=generator).tolist()
    for strings in (("abc",), ("é",), ("ghk",), ("a a",), ("kab",)):
        stop = StopStrings(strings, TOKENIZER)
        windows = [next((n for n in range(1, 61) if stop.end([ids[:n]])[0]), None) for ids in rows]
        texts = [next((n for n in range(1, 61) if any(s in text(ids[:n]) for s in strings)), None) for ids in rows]
        assert windows == texts and any(end is not None for end in texts)


def test_vllm_gets_them_in_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from rlvr_cli.models.sampling.vllm import generate_with_vllm

    plain = request_arguments(PARAMS, 1)
    assert (plain["min_p"], plain["repetition_penalty"], plain["detokenize"]) == (0.0, 1.0, False)
    assert "stop" not in plain
    stop = StopStrings(("</answer>",), None)
    asked = request_arguments(replace(PARAMS, min_p=0.1, repetition_penalty=1.2, stop=stop, extra={"min_tokens": 3}), 1)
    assert (asked["min_p"], asked["repetition_penalty"], asked["min_tokens"]) == (0.1, 1.2, 3)
    assert asked["stop"] == ["</answer>"] and asked["include_stop_str_in_output"] is asked["detokenize"] is True
    assert asked["skip_special_tokens"] is False

    def refuse(**arguments: Any) -> None:
        raise TypeError("Unexpected keyword argument 'min_token'")

    module = ModuleType("vllm")
    module.SamplingParams = refuse  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", module)
    with pytest.raises(UserError, match=r"rollout\.generation_kwargs: vLLM refuses them.*min_token"):
        generate_with_vllm(None, [[1]], PARAMS, keys=[1])


def test_generation_kwargs_reach_generate_and_wrong_ones_are_named() -> None:
    model, params = make("qwen3"), replace(PARAMS, eos_token_ids=())
    out = generate_with_transformers(model, PROMPTS, replace(params, extra={"suppress_tokens": [7, 8]}), keys=KEYS)
    free = generate_with_transformers(model, PROMPTS, params, keys=KEYS)
    assert {7, 8} & {token for ids in free.ids for token in ids}
    assert not {7, 8} & {token for ids in out.ids for token in ids}
    check_generation_config({"suppress_tokens": [7], "no_repeat_ngram_size": 3})
    with pytest.raises(UserError, match=r"no no_repeat_ngram_sise\. Did you mean `?no_repeat_ngram_size"):
        check_generation_config({"no_repeat_ngram_sise": 3})
    with pytest.raises(UserError, match=r"rollout\.generation_kwargs: .*cache_implementation"):
        check_generation_config({"cache_implementation": "none such"})
