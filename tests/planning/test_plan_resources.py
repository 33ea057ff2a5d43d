"""`rlvr plan`: parameters, memory and time, for people and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlvr_cli.cli.app import run
from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import append_jsonl
from rlvr_cli.models.architecture import find_architecture
from rlvr_cli.planning.memory import GIB
from rlvr_cli.planning.plan import (
    choose_device,
    estimate_duration,
    launch_strategy,
    measure_speed,
    offload_settings,
    training_settings,
)
from rlvr_cli.runs.folder import open_run

BIG = ["--model", "qwen2.5-7b", "--task", "math", "update.micro_batch=4", "rollout.max_new_tokens=3072"]


def plan(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run(["plan", "--format=json", *arguments]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_a_large_model_is_planned_for_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    numbers = plan(capsys, *BIG)
    assert numbers["parameters"]["total"] == 7_615_616_512
    memory = numbers["memory"]
    assert (memory["device"], memory["available"], memory["fits"]) == ("gpu", 80 * GIB, "no")
    assert sum(term["bytes"] for term in memory["terms"]) == memory["peak"]
    assert memory["prompt_tokens_assumed"] is True
    assert numbers["learning_rate"] == 1e-6
    assert numbers["time"] is None


def test_gpus_and_their_memory(capsys: pytest.CaptureFixture[str]) -> None:
    one = plan(capsys, *BIG, "--gpu-memory", "141GB")["memory"]
    eight = plan(
        capsys, *BIG, "--processes", "8", "--gpu-memory", "80GiB", "launch.deepspeed=zero3", "--prompt-tokens", "600"
    )["memory"]
    assert one["available"] == 141 * GIB
    assert (eight["setting"]["processes"], eight["setting"]["strategy"]) == (8, "zero3")
    assert (eight["setting"]["prompt_tokens"], eight["prompt_tokens_assumed"]) == (600, False)
    assert eight["fits"] == "yes"
    assert eight["changes"] == []


def test_a_model_that_is_not_at_hand_leaves_the_rest(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    numbers = plan(capsys, "--model", "nobody/nothing-7b", "optimizer.lr={scale_from: {lr: 1e-6, parameters: 1e9}}")
    assert numbers["memory"] is None
    assert numbers["learning_rate"] is None
    assert numbers["steps_total"] == 100
    assert run(["plan", "--model", "nobody/nothing-7b"]) == 0
    assert "Parameters and memory are unknown: nobody/nothing-7b is not in the" in capsys.readouterr().out


def test_a_folder_and_another_family(tmp_path: Path) -> None:
    shape = {
        "model_type": "mistral",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 50,
        "architectures": ["MistralForCausalLM"],
    }
    (tmp_path / "config.json").write_text(json.dumps(shape), encoding="utf-8")
    found = find_architecture(str(tmp_path))
    assert found.architecture is not None
    assert "counted on the meta device" in found.source
    # embedding and head, then blocks of q, k, v, o and three of the network, norms
    block = 32 * 32 * 2 + 2 * 32 * 16 + 3 * 32 * 64 + 2 * 32
    assert found.architecture.parameters == 2 * 50 * 32 + 2 * block + 32
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    assert find_architecture(str(tmp_path)).architecture is None


def test_a_models_own_code_is_neither_run_nor_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = {"model_type": "own", "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}}
    (tmp_path / "config.json").write_text(json.dumps(shape), encoding="utf-8")
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n", encoding="utf-8")
    monkeypatch.setattr("builtins.input", lambda prompt="": "y")
    found = find_architecture(str(tmp_path))
    assert found.architecture is None
    assert not (tmp_path / "ran").exists()


def test_an_adapter_of_peft_alone_has_the_shape_of_its_base(tmp_path: Path) -> None:
    config = {"peft_type": "LORA", "base_model_name_or_path": "Qwen/Qwen2.5-3B"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    found = find_architecture(str(tmp_path))
    assert found.architecture is not None
    assert found.architecture.parameters == 3_085_938_688


@pytest.mark.parametrize(
    ("zero", "strategy", "offloads"),
    [
        ({"stage": 1}, "zero1", (False, False)),
        ({"stage": 2, "offload_optimizer": {"device": "cpu"}}, "zero2", (True, False)),
        ({"stage": 3, "offload_optimizer": {"device": "none"}}, "zero3", (False, False)),
        ({"stage": 3, "offload_optimizer": {"device": "cpu"}}, "zero3", (True, False)),
        ({"stage": 3, "offload_param": {"device": "cpu"}}, "zero3", (False, True)),
    ],
)
def test_strategies_of_a_deepspeed_file(
    tmp_path: Path, zero: dict[str, Any], strategy: str, offloads: tuple[bool, bool]
) -> None:
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": zero}), encoding="utf-8")
    config = load_config(overrides=["launch.processes=2", f"launch.deepspeed={tmp_path / 'ds.json'}"])
    assert (launch_strategy(config), offload_settings(config)) == (strategy, offloads)


def test_in_which_format_deepspeed_sums_gradients(tmp_path: Path) -> None:
    device = choose_device("80GiB", None)
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": 2}}), encoding="utf-8")
    for way, summed in (("zero2", 4), ("zero3", 4), ("zero3-offload", 4), (str(tmp_path / "ds.json"), 2)):
        config = load_config(overrides=["launch.processes=2", f"launch.deepspeed={way}"])
        assert training_settings(config, device).summed == summed


def test_speed_of_a_run(tmp_path: Path) -> None:
    from rlvr_cli.config.load import dump_yaml

    config = load_config(overrides=["rollout={prompts: 2, group_size: 4}", "update.mini_batches=2"])
    (tmp_path / "config.yaml").write_text(dump_yaml(config), encoding="utf-8")
    (tmp_path / "manifest.json").write_text("{}", encoding="utf-8")
    found = open_run(tmp_path)
    with pytest.raises(UserError, match="no finished rollout"):
        measure_speed(found)
    for rollout, (length, seconds) in enumerate([(10.0, 100.0), (20.0, 4.0), (40.0, 6.0)]):
        for update in range(2):
            step = 2 * rollout + update + 1
            append_jsonl(found.metrics_path, [{"step": step, "rollout": rollout, "length": length}])
            append_jsonl(found.timings_path, [{"step": step, "seconds": seconds / 2}])
    speed = measure_speed(found)
    # The first rollout warms up. The others: 8 completions of 20 and of 40 tokens in 4 + 6 seconds.
    assert speed.tokens_per_second == pytest.approx((8 * 20 + 8 * 40) / 10)
    assert speed.tokens_per_completion == 30
    assert estimate_duration(1000, 100, speed) == pytest.approx((1000 * 100 / 48, 1000 * 30 / 48))


def test_a_share_for_vllm_that_cannot_hold_the_weights_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    """vLLM refuses to start there, whatever the sum of all parts is."""
    line = ["--model", "qwen2.5-7b", "--gpu-memory", "40GB", "rollout.engine=vllm_colocate", "model.adapter=lora"]
    memory = plan(capsys, *line)["memory"]
    short = memory["vllm_shortage"]
    assert memory["fits"] == "no" and short["share"] == 12 * GIB and short["weights"] == 2 * 7_615_616_512
    wider = plan(capsys, *line, f"rollout.vllm.gpu_memory={short['least']}")["memory"]
    assert wider["vllm_shortage"] is None
    assert run(["plan", *line]) == 0
    assert f"Set rollout.vllm.gpu_memory={short['least']:g} or more." in " ".join(capsys.readouterr().out.split())


def test_the_frozen_base_of_an_adapter_is_bfloat16_on_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    """So that 24 GB hold what a full training of the same model does not."""
    peaks = {}
    for model in ("qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-3b"):
        for adapter in ("none", "lora"):
            line = ["--model", model, "--gpu-memory", "24GB", f"model.adapter={adapter}"]
            peaks[model, adapter] = plan(capsys, *line)["memory"]
    assert peaks["qwen2.5-1.5b", "lora"]["setting"]["weights"] == 2
    assert peaks["qwen2.5-1.5b", "none"]["setting"]["weights"] == 4
    assert [peaks["qwen2.5-3b", adapter]["fits"] for adapter in ("none", "lora")] == ["no", "yes"]
    on_cpu = plan(capsys, "model.adapter=lora")["memory"]["setting"]
    assert on_cpu["weights"] == 4
