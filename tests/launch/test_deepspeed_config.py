"""What `launch.deepspeed` names: presets, files, and what a file may not decide, before anything starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlvr_cli.config.load import load_config
from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import UserError
from rlvr_cli.launch.deepspeed_config import PRESETS, check_deepspeed, deepspeed_settings

CONFIGS = Path(__file__).parents[2] / "configs" / "deepspeed"


def with_file(folder: Path, content: Any) -> Config:
    file = folder / "deepspeed.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return load_config([], overrides=["launch.processes=2", f"launch.deepspeed={file}"])


def problems(config: Config) -> tuple[str, ...]:
    with pytest.raises(UserError) as error:
        check_deepspeed(config)
    return error.value.problems


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_the_presets_are_the_files_in_configs(name: str) -> None:
    config = load_config([], overrides=["launch.processes=2", f"launch.deepspeed={name}"])
    check_deepspeed(config)
    file = load_config([], overrides=["launch.processes=2", f"launch.deepspeed={CONFIGS / name}.json"])
    check_deepspeed(file)
    assert json.loads((CONFIGS / f"{name}.json").read_text()) == PRESETS[name]
    assert deepspeed_settings(config.launch) == deepspeed_settings(file.launch) == PRESETS[name]


def test_what_a_file_leaves_out_is_the_runs(tmp_path: Path) -> None:
    """DeepSpeed's own default would be not to clip, for one."""
    off = {"fp16": {"enabled": "auto"}, "elasticity": {"enabled": False}}
    config = with_file(tmp_path, {"zero_optimization": {"stage": 3}, **off})
    check_deepspeed(config)
    sizes = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping")
    assert deepspeed_settings(config.launch) == {
        **dict.fromkeys(sizes, "auto"),
        **off,
        "bf16": {"enabled": "auto"},
        "zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": True},
    }


def test_what_the_run_decides_is_refused_in_one_line_each(tmp_path: Path) -> None:
    content = {
        "train_batch_size": 64,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True, "check_grad_overflow": False},
        "fp16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
        "scheduler": {"type": "WarmupLR", "params": {}},
        "tensor_parallel": {"autotp_size": 2},
        "zero_optimization": {
            "stage": 0,
            "zenflow": {"topk_ratio": 0.1},
            "compute_grad_norm": False,
            "offload_optimizer": {"device": "nvme", "super_offload": True},
        },
    }
    config = with_file(tmp_path, content)
    for problem, (key, advice) in zip(
        problems(config),
        [
            ('train_batch_size must be "auto"', "got 64."),
            ('gradient_clipping must be "auto"', "got 1.0."),
            ('bf16 must be {"enabled": "auto"}', 'got {"enabled": true, "check_grad_overflow": false}.'),
            ("optimizer: ", "Remove it"),
            ("scheduler: ", "Remove it"),
            ("fp16: ", "Remove it"),
            ("tensor_parallel: ", "Remove it"),
            ("zero_optimization.stage must be 1, 2 or 3", "got 0."),
            ("zero_optimization.zenflow makes steps", "Remove it"),
            ("zero_optimization.compute_grad_norm must be true", "got false. Remove it"),
            ("zero_optimization.offload_optimizer.super_offload", "Remove it"),
            ('zero_optimization.offload_optimizer.device must be "none" or "cpu"', 'got "nvme".'),
        ],
        strict=True,
    ):
        assert problem.startswith(f"launch.deepspeed={tmp_path}/deepspeed.json: {key}") and advice in problem


@pytest.mark.parametrize("content", ["[" * 100_000, "[]", "\udc80"])
def test_a_file_that_is_no_configuration(tmp_path: Path, content: str) -> None:
    config = with_file(tmp_path, "")
    (tmp_path / "deepspeed.json").write_bytes(content.encode(errors="surrogateescape"))
    (problem,) = problems(config)
    assert "not a DeepSpeed configuration" in problem


def test_names_that_are_not_there() -> None:
    with pytest.raises(UserError, match=r"no such file or preset .*Did you mean `zero3`"):
        deepspeed_settings(load_config([], overrides=["launch.deepspeed=zero-3"]).launch)


@pytest.mark.parametrize(
    ("setting", "reason"),
    [("model.adapter.kind=qlora", "keeps the weights in 4 bits"), ("method=ppo", "trains a value head")],
)
def test_what_is_not_divided(setting: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        load_config([], overrides=["launch.deepspeed=zero3", setting])
