"""What is allowed but biases a training is said."""

from __future__ import annotations

from rlvr_cli.config.checks import config_warnings
from rlvr_cli.config.load import load_config


def test_a_nucleus_biases_the_ratio() -> None:
    assert config_warnings(load_config(method="grpo")) == []
    (said,) = config_warnings(load_config(method="grpo", overrides=["rollout.top_p=0.9"]))
    assert "rollout.top_p=0.9" in said and "rollout.top_p=1" in said
    (both,) = config_warnings(load_config(method="grpo", overrides=["rollout.top_p=0.9", "rollout.top_k=20"]))
    assert "rollout.top_p=0.9 and rollout.top_k=20 sample " in both
    assert config_warnings(load_config(method="sft", overrides=["rollout.top_k=20"])) == []


def test_weights_in_bfloat16_lose_small_steps() -> None:
    (said,) = config_warnings(load_config(overrides=["model.dtype=bfloat16"]))
    assert "model.dtype=bfloat16" in said and "model.dtype=auto" in said
    divided = ["model.dtype=bfloat16", "launch.processes=2"]
    # DeepSpeed has a float32 copy; adapters are float32.
    assert config_warnings(load_config(overrides=[*divided, "launch.deepspeed=zero2"])) == []
    assert config_warnings(load_config(overrides=["model.dtype=bfloat16", "model.adapter.kind=lora"])) == []
    assert config_warnings(load_config(overrides=["model.dtype=float32"])) == []
    assert len(config_warnings(load_config(method="sft", overrides=["model.dtype=bfloat16"]))) == 1
