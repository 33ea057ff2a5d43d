"""The local sampler computes what the model computes, and draws what it says it draws."""

from __future__ import annotations

import itertools
import threading
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from rlvr_cli.core.errors import RunError
from rlvr_cli.models.sampling.decoder import Decoder, row_memory
from rlvr_cli.models.sampling.engine import Completions, SamplingParams, concatenate
from rlvr_cli.models.sampling.local import (
    _free_memory,
    _sample_tokens,
    rows_that_fit,
    sample,
    unsupported_reason,
)
from rlvr_cli.models.sampling.memory import USABLE_SHARE
from tests.models.tiny import MODELS, VOCABULARY, full_entropies, full_log_probs, make, rounding

# Prompts of different lengths, each in a group of three rows.
PROMPTS = [[1 + (5 * i + 3 * j) % (VOCABULARY - 1) for j in range(2 + 3 * i)] for i in range(5) for _ in range(3)]
PROMPT = max(map(len, PROMPTS))
KEYS = list(range(100, 100 + len(PROMPTS)))
EOS = (3, 11)


def free_for(model: Any, rows: float, *, sorts: bool = False) -> int:
    """Free bytes that have room for so many rows of PROMPTS with 40 new tokens."""
    memory, tokens = row_memory(model), sum(map(len, PROMPTS[::3]))
    needed = rows * memory.row(PROMPT + 40, sorts=sorts) + memory.prompts(tokens, PROMPT)
    return round(needed * torch.get_num_threads() / USABLE_SHARE)


def run(model: Any, prompts: Any = PROMPTS, keys: Any = KEYS, **options: Any) -> Any:
    called = {name: options.pop(name) for name in ("on_progress", "on_done") if name in options}
    params = SamplingParams(**{"seed": 5, "max_new_tokens": 40, "eos_token_ids": EOS, **options})
    return sample(model, prompts, params, keys=keys, **called)


def assert_full_forward(model: Any, prompts: Any, out: Any, temperature: float = 1.0) -> None:
    """Log-probs and entropies are those of one forward pass over the whole text."""
    for prompt, ids, log_probs, entropies in zip(prompts, out.ids, out.log_probs, out.entropies, strict=True):
        every = full_log_probs(model, prompt, ids, temperature)
        torch.testing.assert_close(torch.tensor(log_probs), every[range(len(ids)), ids], **rounding(every))
        full = full_entropies(model, prompt, ids, temperature)
        torch.testing.assert_close(torch.tensor(entropies, dtype=torch.float64), full, **rounding(every))


@pytest.mark.parametrize("name", MODELS)
def test_log_probs_and_entropies_equal_the_full_forward(name: str) -> None:
    model = make(name)
    out = run(model)
    assert len({len(ids) for ids in out.ids}) > 3, "rows must end at different times to test dropping them"
    assert_full_forward(model, PROMPTS, out)
    assert out.truncated == [ids[-1] not in EOS for ids in out.ids]


@pytest.mark.parametrize("options", [{"temperature": 0.6, "max_rows": 4}, {"temperature": 0.0}, {"top_p": 0.7}])
def test_they_are_of_the_whole_distribution_at_the_temperature_also_with_top_p(options: dict[str, Any]) -> None:
    """Greedy, of that at temperature 1."""
    model = make("qwen3-gqa-wide-heads-tied")
    assert_full_forward(model, PROMPTS, run(model, **options), options.get("temperature") or 1.0)


def test_they_stay_equal_over_a_long_generation_and_without_copies_of_the_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, prompts = make("llama3-rope-gqa-biases"), PROMPTS[::7]
    long = run(model, prompts, [1, 2, 3], max_new_tokens=200, eos_token_ids=())
    assert_full_forward(model, prompts, long)
    monkeypatch.setattr("rlvr_cli.models.sampling.decoder._FUSE_BELOW", 0)
    assert_full_forward(model, PROMPTS, run(model))


@pytest.mark.parametrize("name", MODELS)
def test_greedy_equals_generate(name: str) -> None:
    model, prompts = make(name), PROMPTS[::7]
    out = run(model, prompts, [1, 2, 3], temperature=0.0, max_new_tokens=12)
    for prompt, ids, truncated in zip(prompts, out.ids, out.truncated, strict=True):
        options = {"do_sample": False, "max_new_tokens": 12, "eos_token_id": list(EOS), "pad_token_id": 0}
        tokens = torch.tensor([prompt])
        expected = model.generate(tokens, attention_mask=torch.ones_like(tokens), **options)[0, len(prompt) :]
        assert ids == expected.tolist()
        assert truncated == (ids[-1] not in EOS)


@pytest.mark.parametrize("vocabulary", [7, 2000])
def test_entropies_of_wide_flat_certain_and_impossible_distributions(vocabulary: int) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(8, vocabulary, generator=generator) * torch.tensor([0.0, 0.1, 1, 3, 6, 30, 300, 3e4])[:, None]
    logits += 40
    logits[:, 1:3] = -torch.inf  # words that a model can never say
    exact = torch.special.entr(logits.double().softmax(-1)).sum(-1)
    for draw in (1e-6, 0.5, 1 - 1e-6):
        _, _, entropies = _sample_tokens(
            logits.clone(), torch.full((8,), draw, dtype=torch.float64), SamplingParams(max_new_tokens=1)
        )
        torch.testing.assert_close(entropies.double(), exact, **rounding(exact))


def with_large_scores(dtype: torch.dtype) -> Any:
    """A model whose keys have biases as large as Qwen2.5's, in the slow rotary frequencies; weights as in bfloat16."""
    model = make("qwen2-gqa-untied", hidden_size=64, num_hidden_layers=4)
    with torch.no_grad():
        for layer in model.model.layers:
            keys, queries = (x.bias.view(-1, 16) for x in (layer.self_attn.k_proj, layer.self_attn.q_proj))
            keys[:, 6:8] += 150
            keys[:, 14:] += 150
            queries[:, 6:8] += 5
    return model.to(torch.bfloat16).to(dtype)


def sampler_and_sdpa_errors(device: str) -> tuple[float, float]:
    """Of log-probs in bfloat16 against float32: the sampler's, and those of a forward pass with sdpa."""
    prompts = [[5 + i % 4, 6, 7, 8][: 2 + i % 3] for i in range(64)]
    half, full = with_large_scores(torch.bfloat16).to(device), with_large_scores(torch.float32)
    out = run(half, prompts, range(64), max_new_tokens=60, eos_token_ids=())
    ours, theirs = [], []
    for prompt, ids, log_probs in zip(prompts, out.ids, out.log_probs, strict=True):
        expected = full_log_probs(full, prompt, ids, 1.0)[range(60), ids]
        # On some CPUs the other kernels need instructions that ATEN_CPU_CAPABILITY may have switched off.
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH) if device == "cpu" else nullcontext():
            logits = half(torch.tensor([[*prompt, *ids]], device=device)).logits[0, len(prompt) - 1 : -1].float().cpu()
        ours.append((torch.tensor(log_probs) - expected).abs())
        theirs.append((logits.log_softmax(-1)[range(60), ids] - expected).abs())
    return float(torch.cat(ours).mean()), float(torch.cat(theirs).mean())


def test_large_attention_scores_are_not_rounded_to_bfloat16() -> None:
    ours, theirs = sampler_and_sdpa_errors("cpu")
    assert theirs > 0.1, "the scores are not large enough to show anything"
    assert ours < 1.1 * theirs


@pytest.mark.gpu
def test_large_attention_scores_on_a_gpu(gpu: str) -> None:
    ours, theirs = sampler_and_sdpa_errors(gpu)
    assert ours < 1.1 * theirs


def test_a_row_does_not_depend_on_the_batch_it_is_in() -> None:
    model = make("qwen3")
    together = run(model)
    order = torch.randperm(len(PROMPTS), generator=torch.Generator().manual_seed(0)).tolist()
    shuffled = run(model, [PROMPTS[i] for i in order], [KEYS[i] for i in order])
    assert [shuffled.ids[order.index(i)] for i in range(len(PROMPTS))] == together.ids
    for row, (prompt, key) in enumerate(zip(PROMPTS, KEYS, strict=True)):
        assert run(model, [prompt], [key]).ids == [together.ids[row]]
    assert run(model, max_rows=4).ids == together.ids


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("qwen2", {}),
        ("qwen3-gqa-wide-heads-tied", {"top_p": 0.9, "temperature": 0.8}),
        ("llama3-rope-gqa-biases", {"temperature": 0.0}),
    ],
)
def test_how_many_rows_are_decoded_together_changes_nothing(
    name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One by one, seven, all, as many as a memory holds, and with prompts that are read in parts."""
    model = make(name)
    together = run(model, **options)
    others = [run(model, max_rows=rows, **options) for rows in (1, 7)]
    with monkeypatch.context() as patch:
        free = free_for(model, 7.9, sorts="top_p" in options)
        patch.setattr("rlvr_cli.models.sampling.local._free_memory", lambda device: free)
        assert rows_that_fit(model, PROMPTS, SamplingParams(max_new_tokens=40, **options)) == 6
        others.append(run(model, **options))
    decoder = Decoder.__init__

    def in_parts(self: Decoder, model: Any) -> None:
        decoder(self, model)
        self.prefill_tokens = 20

    monkeypatch.setattr(Decoder, "__init__", in_parts)
    others.append(run(model, **options))
    every = [
        full_log_probs(model, *row, options.get("temperature") or 1.0)
        for row in zip(PROMPTS, together.ids, strict=True)
    ]
    for other in others:
        assert (other.ids, other.truncated) == (together.ids, together.truncated)
        both = zip([*together.log_probs, *together.entropies], [*other.log_probs, *other.entropies], strict=True)
        for first, second in both:
            torch.testing.assert_close(torch.tensor(first), torch.tensor(second), **rounding(*every))


def test_on_a_gpu_only_as_many_rows_as_its_free_memory_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the driver calls free, and what torch holds of it without using it."""
    for free, held, used in [(100, 0, 0), (2, 12, 5), (0, 0, 0)]:
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, 1000))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device, held=held: held)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device, used=used: used)
        assert _free_memory(torch.device("cuda")) == free + held - used
    assert _free_memory(torch.device("meta")) is None
    model = make("qwen3")
    for rows, expected in ((1000.0, 15), (15.1, 15), (14.9, 12), (8.5, 8), (2.3, 2), (0.1, 1), (-1.0, 1)):
        free = free_for(model, rows)
        monkeypatch.setattr("rlvr_cli.models.sampling.local._free_memory", lambda device, free=free: free)
        assert rows_that_fit(model, PROMPTS, SamplingParams(max_new_tokens=40)) == expected


def test_the_number_of_threads_changes_nothing() -> None:
    model = make("qwen3")
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            results.append(run(model, max_rows=4))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert results[0] == results[1]


def test_seed_and_key_choose_the_sample_and_the_weights_of_the_moment_are_used() -> None:
    model = make("qwen2", attention_dropout=0.5)
    prompts = [PROMPTS[0]] * 4
    first = run(model, prompts, [1, 2, 1, -1])
    assert first.ids[0] == first.ids[2]
    assert first.ids[0] != first.ids[1] != first.ids[3]
    assert run(model, prompts, [1, 2, 1, -1], seed=6).ids[0] != first.ids[0]
    assert run(model.train(), prompts, [1, 2, 1, -1]) == first and model.training, "dropout is off, the mode stays"
    assert run(model, [], []).ids == []
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.3)
    assert run(model, prompts, [1, 2, 1, -1]).ids != first.ids


def test_samples_follow_the_models_distribution() -> None:
    """Chi-square of 6,000 first and second tokens against the exact distribution of a six-word model."""
    model = make("qwen2", vocab_size=6)
    rows = 6000
    out = run(model, [[1, 2]] * rows, range(rows), max_new_tokens=2, eos_token_ids=(), temperature=0.8)
    first = full_log_probs(model, [1, 2], [0], 0.8)[0].exp().double()
    pairs = list(itertools.product(range(6), repeat=2))
    expected = [first[a] * full_log_probs(model, [1, 2], [a, 0], 0.8)[1, b].exp().double() for a, b in pairs]
    expected = rows * torch.stack(expected)
    observed = torch.tensor([sum(ids == [a, b] for ids in out.ids) for a, b in pairs])
    assert expected.min() > 5
    statistic = ((observed - expected) ** 2 / expected).sum()
    assert statistic < 57.3, "the 1% point of chi-square with 35 degrees of freedom"


def test_top_p_draws_from_the_nucleus_but_reports_the_full_distribution() -> None:
    model = make("llama")
    prompt = [4, 9, 2]
    log_probs = full_log_probs(model, prompt, [0], 1.0)[0]
    ordered = log_probs.exp().sort(descending=True)
    size = int((ordered.values.cumsum(0) < 0.5).sum()) + 1
    nucleus = set(ordered.indices[:size].tolist())
    assert 2 <= size <= VOCABULARY // 2
    out = run(model, [prompt] * 2000, range(2000), max_new_tokens=1, eos_token_ids=(), top_p=0.5)
    assert {ids[0] for ids in out.ids} == nucleus
    for ids, values in zip(out.ids, out.log_probs, strict=True):
        assert values[0] == pytest.approx(log_probs[ids[0]].item(), abs=rounding(log_probs)["atol"])


@pytest.mark.parametrize(("max_rows", "threads"), [(None, 1), (4, 3)])
def test_rows_are_handed_over_as_they_end_and_whoever_refuses_them_ends_the_sampling(
    max_rows: int | None, threads: int
) -> None:
    before, alive, sampled, early = torch.get_num_threads(), threading.active_count(), 0, 0
    given: dict[int, Any] = {}

    def progress(tokens: int) -> None:
        nonlocal sampled
        sampled += tokens

    def done(rows: Any, completions: Completions) -> None:
        nonlocal early
        assert not given.keys() & set(rows)
        given.update((row, completions.select([index])) for index, row in enumerate(rows))
        early += len(rows) if sampled < 0.9 * total else 0

    def refuse(rows: Any, completions: Completions) -> None:
        raise KeyError("not these")

    torch.set_num_threads(threads)
    try:
        model = make("qwen3")
        plain = run(model, max_rows=max_rows)
        total = sum(map(len, plain.ids))
        assert run(model, max_rows=max_rows, on_progress=progress, on_done=done) == plain
        assert sampled == total
        with pytest.raises(KeyError, match="not these"):
            run(model, max_rows=max_rows, on_done=refuse)
        assert torch.get_num_threads() == threads and threading.active_count() == alive
    finally:
        torch.set_num_threads(before)
    assert concatenate([given[row] for row in range(len(PROMPTS))]) == plain
    assert early >= 5, "several of the 15 rows are short"


def test_what_cannot_be_sampled_is_refused() -> None:
    model = make("qwen3")
    for options, message in (
        ({"keys": [1]}, "keys"),
        ({"prompts": [[]], "keys": [1]}, "without tokens"),
    ):
        with pytest.raises(ValueError, match=message):
            run(model, **options)
    model.model.norm.weight.data[0] = torch.nan
    with pytest.raises(RunError, match="not finite"):
        run(model)
    assert all(unsupported_reason(make(name)) is None for name in MODELS)
    dynamic = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    for other, reason in (
        (make("qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=1), "sliding"),
        (make("llama", rope_parameters=dynamic), "rotary"),
        (make("llama", hidden_act="gelu"), "activation"),
    ):
        assert reason in str(unsupported_reason(other))
    model.model.layers[0].self_attn.q_proj = torch.nn.Sequential(torch.nn.Linear(32, 32))
    assert "q_proj" in str(unsupported_reason(model))
