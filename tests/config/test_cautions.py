"""What is allowed but biases a training is said."""

from __future__ import annotations

from rlvr_cli.config.cautions import cautions
from rlvr_cli.config.load import load_config


def test_a_nucleus_biases_the_ratio() -> None:
    assert cautions(load_config(method="grpo")) == []
    (said,) = cautions(load_config(method="grpo", overrides=["rollout.top_p=0.9"]))
    assert "rollout.top_p=0.9" in said and "rollout.top_p=1" in said
    (both,) = cautions(load_config(method="grpo", overrides=["rollout.top_p=0.9", "rollout.top_k=20"]))
    assert "rollout.top_p=0.9 and rollout.top_k=20 sample " in both
    assert cautions(load_config(method="sft", overrides=["rollout.top_k=20"])) == []
