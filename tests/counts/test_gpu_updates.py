"""The GPU's benchmark on a CPU: its shapes are Qwen2.5's, and shrunk ones go through the same code."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks import gpu_updates
from benchmarks.peers import Place
from benchmarks.scripted import Script

pytestmark = pytest.mark.counts


@pytest.mark.parametrize(("name", "billions"), [("0.5B", 0.494), ("1.5B", 1.544), ("7B", 7.616)])
def test_shapes_have_the_models_parameters(name: str, billions: float) -> None:
    """As their model cards say: 0.49, 1.54 and 7.61 billion."""
    assert gpu_updates.parameters(gpu_updates.shape(name)) / 1e9 == pytest.approx(billions, abs=1e-3)


@pytest.mark.parametrize("name", ["0.5B", pytest.param("7B", marks=pytest.mark.slow)])
def test_a_shrunk_shape_is_measured(name: str) -> None:
    config = gpu_updates.shape(name)
    config.update({"hidden_size": 28, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 97})
    config.update({"num_attention_heads": 7, "num_key_value_heads": 1, "layer_types": ["full_attention"] * 2})
    rollout = replace(gpu_updates.ROLLOUT, rows=8, group=4, prompt=8, mean=16, longest=48)
    found = gpu_updates.measure(config, rollout, Place(optimizer="sgd"), repeats=1)
    script = Script(rollout, 97)
    assert found.tokens == script.tokens and max(map(len, script.completions)) <= 48
    assert found.flops > 6 * found.tokens * gpu_updates.parameters(config) * 0.8
    assert min(found.their_bytes, found.our_bytes, *found.seconds.theirs, *found.seconds.ours) > 0


def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["gpu_updates"])
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    gpu_updates.main()
    assert "no GPU" in capsys.readouterr().out
