"""What `launch.deepspeed` names: presets, files, and every contradiction with the run before anything starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from rlvr_cli.config.load import load_config
from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import UserError
from rlvr_cli.launch.deepspeed_config import (
    PRESETS,
    check_deepspeed,
    deepspeed_settings,
    filled,
)

CONFIGS = Path(__file__).parents[2] / "configs" / "deepspeed"
# 4 completions in a forward pass of each of 2 processes, 2 of them in a step of 16.
RUN = (
    "launch.processes=2",
    "rollout.prompts=4",
    "rollout.group_size=4",
    "update.micro_batch=4",
    "update.max_grad_norm=0.5",
)


def with_file(folder: Path, content: Any, *overrides: str) -> Config:
    file = folder / "deepspeed.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return load_config([], overrides=[*RUN, f"launch.deepspeed={file}", *overrides])


def problems(config: Config, **known: Any) -> tuple[str, ...]:
    with pytest.raises(UserError) as error:
        check_deepspeed(config, **known)
    return error.value.problems


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_presets(name: str) -> None:
    """The files in configs/deepspeed are the presets; what is the run's is filled in."""
    assert json.loads((CONFIGS / f"{name}.json").read_text()) == PRESETS[name]
    settings = filled(load_config([], overrides=[*RUN, f"launch.deepspeed={name}"]), bf16=True)
    batch = {"train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 1, "train_batch_size": 16}
    assert settings.items() >= {**batch, "gradient_clipping": 0.5, "bf16": {"enabled": True}}.items()
    zero = settings["zero_optimization"]
    assert zero["stage"] == (2 if name == "zero2" else 3)
    assert ("offload_optimizer" in zero) == ("offload_param" in zero) == (name == "zero3-offload")
    assert PRESETS[name]["train_batch_size"] == "auto"
    # A sum of many passes in bfloat16 would lose the small ones.
    from deepspeed.runtime.config import DtypeEnum

    assert DtypeEnum(settings["data_types"]["grad_accum_dtype"]).value == torch.float32


def test_what_a_file_leaves_out_is_the_run_s(tmp_path: Path) -> None:
    """DeepSpeed's own default would be not to clip, for one."""
    settings = filled(with_file(tmp_path, {"zero_optimization": {"stage": 3}}), bf16=False)
    assert settings["gradient_clipping"] == 0.5 and settings["bf16"] == {"enabled": False}
    assert settings["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] is True


def test_a_file_that_agrees(tmp_path: Path) -> None:
    """Equal values are accepted, 'auto' everywhere; the optimizer is then the run's own."""
    content = {
        "train_batch_size": 16,
        "train_micro_batch_size_per_gpu": None,
        "gradient_clipping": "auto",
        "elasticity": {"enabled": False},
        "bf16": {"enabled": "auto"},
        "fp16": {"enabled": "auto"},
        "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": [0.9, 0.999], "eps": 1e-8}},
        "zero_optimization": {"stage": 2},
    }
    settings = filled(with_file(tmp_path, content, "optimizer.betas=[0.9,0.999]", "optimizer.eps=1e-8"), bf16=True)
    assert "optimizer" not in settings and "fp16" not in settings


def test_a_scaled_learning_rate_is_compared_as_the_rate_that_it_gives(tmp_path: Path) -> None:
    def run(rate: float, this_model: str = "") -> Config:
        content = {
            "optimizer": {"type": "AdamW", "params": {"lr": rate}},
            "zero_optimization": {"stage": 2},
        }
        rule = f"{{scale_from: {{lr: 1.0e-6, parameters: 1.5e+9{this_model}}}}}"
        return with_file(tmp_path, content, f"optimizer.lr={rule}")

    # 1e-6 sqrt(1.5 / 7) = 4.629e-7, which the paper gives as 4.63e-7.
    check_deepspeed(run(4.63e-7, ", this_model: 7.0e+9"))
    (problem,) = problems(run(1e-6, ", this_model: 7.0e+9"))
    assert "optimizer.params.lr is 1e-06 there" in problem
    assert "optimizer.lr=4.629" in problem and "ScaledRate" not in problem
    # Without the model's size the rate is not known before the model is loaded.
    check_deepspeed(run(4.63e-7))
    filled(run(4.63e-7), bf16=True, lr=4.629e-7)
    with pytest.raises(UserError, match=r"optimizer\.params\.lr is 1e-06 there"):
        filled(run(1e-6), bf16=True, lr=4.629e-7)


def test_every_contradiction_at_once(tmp_path: Path) -> None:
    content = {
        "train_batch_size": 64,
        "train_micro_batch_size_per_gpu": 8,
        "gradient_accumulation_steps": 4,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": False},
        "fp16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 0.1, "weight_decay": 0.5}},
        "scheduler": {"type": "WarmupLR", "params": {}},
        "zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": False},
        "tensor_parallel": {"autotp_size": 2},
    }
    found = problems(with_file(tmp_path, content, "optimizer.lr=1e-5", "optimizer.weight_decay=0.0"), bf16=True)
    assert all(problem.startswith(f"launch.deepspeed={tmp_path}/deepspeed.json: ") for problem in found)
    for expected in (
        "train_micro_batch_size_per_gpu is 8 there, and the run has 4",
        "gradient_accumulation_steps is 4 there, and the run has 2",
        "train_batch_size is 64 there, and the run has 16",
        "gradient_clipping is 1.0 there, and the run has 0.5 (update.max_grad_norm)",
        "fp16.enabled is True there",
        "bf16.enabled is False there, and the run has True",
        "optimizer.params.lr is 0.1 there, and the run has optimizer.lr=1e-05",
        "optimizer.params.weight_decay is 0.5 there",
        "scheduler is 'WarmupLR' there, and the run has optimizer.lr_schedule=",
        "stage3_gather_16bit_weights_on_model_save is False there",
        "tensor_parallel: ",
    ):
        (problem,) = [problem for problem in found if expected in problem]
        assert any(word in problem for word in ('"auto"', "Leave", "set ")), problem
    assert len(found) == 11


def test_precision_is_compared_where_it_is_known(tmp_path: Path) -> None:
    config = with_file(tmp_path, {"bf16": {"enabled": True}, "zero_optimization": {"stage": 2}})
    check_deepspeed(config)
    (problem,) = problems(config, bf16=False)
    assert "bf16.enabled is True there, and the run has False" in problem


def test_files_that_cannot_be(tmp_path: Path) -> None:
    for content, expected in [
        ({}, "zero_optimization.stage is 0 there, which divides nothing"),
        ({"zero_optimization": {"stage": 0}}, "zero_optimization.stage is 0 there"),
        ({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme"}}}, "offload_optimizer.device is"),
        ({"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}, "offload_param needs stage 3"),
        ({"zero_optimization": {"stage": 2, "compute_grad_norm": False}}, "records and checks each step's norm"),
        ({"zero_optimization": {"stage": 2, "zenflow": {"topk_ratio": 0.1}}}, "makes steps that the run does not see"),
        ({"zero_optimization": {"stage": 2}, "optimizer": {"type": "Lamb"}}, "optimizer.type is 'Lamb' there"),
        ({"zero_optimization": {"stage": 2}, "elasticity": {"enabled": True}}, "elasticity: the sizes of the batch"),
        ({"zero_optimization": {"stage": 2}, "torch_autocast": {"enabled": True}}, "torch_autocast: the precision is"),
        (
            {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "super_offload": True}}},
            "offload_optimizer.super_offload makes steps",
        ),
        ({"zero_optimization": {"stage": 1}, "data_types": {"grad_accum_dtype": "fp32"}}, "another optimizer"),
        ("[" * 100_000, "which is JSON: "),
        ("[]", "which is a JSON object"),
        ("{", "which is JSON: "),
        ('{"a": 1, "a": 2}', "'a' stands there twice"),
    ]:
        (problem,) = problems(with_file(tmp_path, content))
        assert expected in problem, (content, expected)


def test_names_that_are_not_there() -> None:
    with pytest.raises(UserError, match=r"no such file, and no preset of that name.*Did you mean `zero3`"):
        deepspeed_settings(load_config([], overrides=["launch.deepspeed=zero-3"]).launch)


def test_weights_in_4_bits_are_not_divided() -> None:
    with pytest.raises(UserError, match="keeps the weights in 4 bits"):
        load_config([], overrides=["launch.deepspeed=zero3", "model.adapter.kind=qlora"])
