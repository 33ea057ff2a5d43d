"""What is allowed but biases a training is said."""

from __future__ import annotations

import pytest

from rlvr_cli.config.checks import config_warnings
from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import UserError
from rlvr_cli.evaluation.settings import EvalSettings


def test_a_nucleus_biases_the_ratio() -> None:
    assert config_warnings(load_config(method="grpo")) == []
    (said,) = config_warnings(load_config(method="grpo", overrides=["rollout.top_p=0.9"]))
    assert "rollout.top_p=0.9" in said and said.endswith("Samples without it are unbiased.")
    (both,) = config_warnings(load_config(method="grpo", overrides=["rollout.top_p=0.9", "rollout.top_k=20"]))
    assert "rollout.top_p=0.9 and rollout.top_k=20 sample " in both
    assert config_warnings(load_config(method="sft", overrides=["rollout.top_k=20"])) == []
    (said,) = config_warnings(load_config(overrides=["rollout.min_p=0.1"]))
    assert "rollout.min_p=0.1 samples from the likeliest tokens alone" in said
    (said,) = config_warnings(load_config(overrides=["rollout.repetition_penalty=1.2"]))
    assert "rollout.repetition_penalty=1.2 samples from another distribution than the model's" in said
    assert config_warnings(load_config(overrides=["rollout.stop=</answer>"])) == []


def test_generation_kwargs_are_for_the_engines_that_have_them() -> None:
    kwargs = "rollout.generation_kwargs={no_repeat_ngram_size: 3}"
    for engine in ("transformers", "vllm_colocate"):
        config = load_config(overrides=[f"rollout.engine={engine}", kwargs])
        assert config.rollout.generation_kwargs == {"no_repeat_ngram_size": 3}
    for engine in ("auto", "local"):
        with pytest.raises(UserError, match=r"is the local sampler\. Set rollout\.engine=transformers"):
            load_config(overrides=[f"rollout.engine={engine}", kwargs])
    for key, remedy in (("max_tokens", "Set rollout.max_new_tokens"), ("num_beams", "Remove it")):
        with pytest.raises(UserError, match=rf"generation_kwargs has {key}\. {remedy}"):
            load_config(overrides=["rollout.engine=transformers", f"rollout.generation_kwargs={{{key}: 2}}"])
    hot = ["rollout.engine=vllm_colocate", "rollout.temperature=0.8"]
    with pytest.raises(UserError, match="remove min_p and repetition_penalty"):
        load_config(overrides=[*hot, "rollout.min_p=0.1", "rollout.repetition_penalty=1.1"])
    assert load_config(overrides=[*hot, "rollout.stop=[A, B]"]).rollout.stop == ("A", "B")
    for name in ("min_p=0.1", "repetition_penalty=1.1", "generation_kwargs={}"):
        with pytest.raises(UserError, match=rf"Did you mean `rollout\.{name.partition('=')[0]}`"):
            load_config(overrides=[name])


def test_an_evaluation_stops_where_the_training_did() -> None:
    def settings(*overrides: str) -> EvalSettings:
        return EvalSettings.from_config(load_config(overrides=list(overrides)))

    assert settings().sampling().keys() == {"temperature", "top_p", "max_new_tokens", "seed"}
    assert settings("rollout.stop=</a>", "rollout.min_p=0.2").sampling()["stop"] == ["</a>"]
    assert "stop" not in settings("rollout.stop=</a>", "eval.stop=[]").sampling()
    assert settings("rollout.stop=</a>", "eval.stop=x").sampling()["stop"] == ["x"]


def test_weights_in_bfloat16_lose_small_steps() -> None:
    (said,) = config_warnings(load_config(overrides=["model.dtype=bfloat16"]))
    assert "model.dtype=bfloat16" in said and "model.dtype=auto" in said
    divided = ["model.dtype=bfloat16", "launch.processes=2"]
    # DeepSpeed has a float32 copy; adapters are float32.
    assert config_warnings(load_config(overrides=[*divided, "launch.deepspeed=zero2"])) == []
    assert config_warnings(load_config(overrides=["model.dtype=bfloat16", "model.adapter.kind=lora"])) == []
    assert config_warnings(load_config(overrides=["model.dtype=float32"])) == []
    assert len(config_warnings(load_config(method="sft", overrides=["model.dtype=bfloat16"]))) == 1
