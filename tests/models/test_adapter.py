"""Adapters on the disk: PEFT reads them, a plain model comes of them, and the wrong base is noticed."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from rlvr_cli.config.load import load_config
from rlvr_cli.config.model import LoRAConfig
from rlvr_cli.core.errors import UserError
from rlvr_cli.evaluation.sampling import weights_hash
from rlvr_cli.models.adapter import (
    AdapterFolder,
    check_targets,
    experts_without_adapter,
    fingerprint,
    merge_adapters,
    peft_config,
    trained_tensors,
)
from rlvr_cli.models.load import load_model, load_with_adapter
from rlvr_cli.models.source import AdapterBase, read_base
from tests.models.tiny import VOCABULARY, make, rounding

IDS = torch.randint(0, VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(0))


def save_base(folder: Path, name: str = "qwen3") -> Path:
    make(name).save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def save_tokenizer(folder: Path) -> None:
    words = Tokenizer(WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w3").save_pretrained(folder)


def train_a_little(model: Any) -> Any:
    adapted = get_peft_model(model, peft_config(LoRAConfig(rank=3, alpha=6.0)))
    for weight in adapted.parameters():
        if weight.requires_grad:
            torch.nn.init.normal_(weight, 0.0, 0.1)
    return adapted.eval()


def save_adapter(tmp_path: Path, name: str = "qwen3", dtype: Literal["float32", "bfloat16"] = "float32") -> Any:
    base = save_base(tmp_path / "base", name)
    model, _ = load_model(str(base), dtype=dtype)
    described = AdapterBase(str(base), dtype=dtype, fingerprint=fingerprint(model))
    adapted = train_a_little(model)
    folder = tmp_path / "adapter"
    folder.mkdir()
    AdapterFolder(adapted, described).save_pretrained(folder, trained_tensors(adapted))
    save_tokenizer(folder)
    return folder, adapted


@pytest.fixture
def saved(tmp_path: Path) -> Any:
    """A folder with an adapter as a checkpoint has it, and the model in memory."""
    return save_adapter(tmp_path)


def test_loading_gives_the_plain_model_that_was_sampled(saved: tuple[Path, Any]) -> None:
    folder, adapted = saved
    model, _ = load_model(str(folder))
    with torch.no_grad(), merge_adapters(adapted) as plain:
        assert weights_hash(model) == weights_hash(plain)
        assert torch.equal(model(IDS).logits, plain(IDS).logits)
    assert not any("lora" in name or "base_layer" in name for name in model.state_dict())
    assert type(model).__name__ == "Qwen3ForCausalLM"


def test_peft_reads_the_folder(saved: tuple[Path, Any]) -> None:
    folder, adapted = saved
    base = AutoModelForCausalLM.from_pretrained(read_base(folder).name)
    read = PeftModel.from_pretrained(base, folder)
    with torch.no_grad():
        assert torch.equal(read(IDS).logits, adapted(IDS).logits)
    assert all("default" not in name for name in load_file(folder / "adapter_model.safetensors"))


@pytest.mark.parametrize(
    ("method", "overrides", "refused"),
    [
        ("grpo", [], False),
        ("grpo", ["method.kl.beta=0.1"], True),
        ("reinforce-pp", [], True),  # its KL term is in the reward
        ("reinforce-pp", ["model.adapter=lora"], False),
    ],
)
def test_an_adapter_is_no_reference_of_all_weights(
    saved: tuple[Path, Any], method: str, overrides: list[str], refused: bool
) -> None:
    """TRL would load the reference by the name of the base, and so without the adapter."""
    from rlvr_cli.training.prepare import check_model

    config = load_config(method=method, model=str(saved[0]), overrides=overrides)
    with pytest.raises(UserError, match="rlvr export") if refused else nullcontext():
        check_model(config)


def test_a_model_in_bfloat16_is_the_one_that_its_saved_folder_gives(saved: tuple[Path, Any], tmp_path: Path) -> None:
    """The frequencies of rotary positions are no weights, and stay in float32."""
    model, _ = load_model(str(saved[0]), dtype="bfloat16")
    model.save_pretrained(tmp_path / "plain")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "plain", dtype=torch.bfloat16).eval()
    ids = torch.randint(0, VOCABULARY, (1, 400), generator=torch.Generator().manual_seed(1))
    assert model.model.rotary_emb.inv_freq.dtype == torch.float32
    with torch.no_grad():
        assert torch.equal(model(ids).logits, again(ids).logits)


@pytest.mark.parametrize("name", ["qwen3-moe", "qwen3-next"])
def test_the_experts_of_a_mixture_are_merged_too(tmp_path: Path, name: str) -> None:
    folder, adapted = save_adapter(tmp_path, name)
    written = json.loads((folder / "adapter_config.json").read_text())
    assert written["target_parameters"] == ["down_proj", "gate.weight", "gate_up_proj"]
    model, _ = load_model(str(folder))
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base").eval()
    changed = {key for key, weight in base.state_dict().items() if not torch.equal(weight, model.state_dict()[key])}
    assert {key.rsplit("experts.", 1)[1] for key in changed if ".experts." in key} == {"gate_up_proj", "down_proj"}
    with torch.no_grad():
        expected = adapted(IDS).logits
        with merge_adapters(adapted) as plain:
            assert weights_hash(model) == weights_hash(plain)
            torch.testing.assert_close(plain(IDS).logits, expected, **rounding(expected))
        assert torch.equal(adapted(IDS).logits, expected), "the layers are put back"
        assert torch.equal(load_with_adapter(str(folder))(IDS).logits, expected)
        assert torch.equal(PeftModel.from_pretrained(base, folder).eval()(IDS).logits, expected)
        model.save_pretrained(tmp_path / "plain")
        again = AutoModelForCausalLM.from_pretrained(tmp_path / "plain").eval()
        assert weights_hash(again) == weights_hash(model)


def test_experts_in_bfloat16_are_merged_with_one_rounding(tmp_path: Path) -> None:
    folder, adapted = save_adapter(tmp_path, "qwen3-moe", "bfloat16")
    name = "model.layers.0.mlp.experts.gate_up_proj"
    base = load_model(str(tmp_path / "base"), dtype="bfloat16")[0].get_parameter(name)
    layer = adapted.get_base_model().model.layers[0].mlp.experts
    while layer.parameter_name != "gate_up_proj":
        layer = layer.base_layer
    first, second = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    assert first.dtype == torch.float32 and layer.scaling["default"] == 2.0
    # PEFT holds the rows of A by expert, the columns of B by rank.
    of_experts = first.reshape(4, 6, 32), second.reshape(32, 6, 4).permute(2, 0, 1)
    expected = (base.float() + 2.0 * of_experts[1] @ of_experts[0]).to(torch.bfloat16)
    loaded = load_model(str(folder), dtype="bfloat16")[0].get_parameter(name)
    apart = (loaded != expected).float().mean()
    assert apart < 0.005, "up to the order of sums; a second rounding would change one weight in ten"


@pytest.mark.parametrize("name", ["mixtral"])
def test_an_adapter_from_before_experts_were_joined_is_read(tmp_path: Path, name: str) -> None:
    """As PEFT wrote it where each expert had linear layers of its own."""
    base, folder = save_base(tmp_path / "base", name), tmp_path / "foreign"
    folder.mkdir()
    save_tokenizer(folder)
    weights = load_file(base / "model.safetensors")
    targets = ["q_proj", "w1", "w2", "w3"] if name == "mixtral" else ["q_proj", "gate_proj", "up_proj", "down_proj"]
    drawn, tensors = torch.Generator().manual_seed(0), {}
    for key in [key for key in weights if key.split(".")[-2] in targets]:
        rows, columns = weights[key].shape
        first, second = (0.1 * torch.randn(shape, generator=drawn) for shape in ((3, columns), (rows, 3)))
        layer = f"base_model.model.{key.removesuffix('.weight')}"
        tensors |= {f"{layer}.lora_A.weight": first, f"{layer}.lora_B.weight": second}
        weights[key] = weights[key] + 2.0 * second @ first
    save_file(tensors, folder / "adapter_model.safetensors")
    described = LoraConfig(r=3, lora_alpha=6, target_modules=targets, base_model_name_or_path=str(base))
    described.save_pretrained(folder)
    shutil.copytree(base, tmp_path / "expected")
    save_file(weights, tmp_path / "expected" / "model.safetensors", metadata={"format": "pt"})
    expected = load_model(str(tmp_path / "expected"))[0].state_dict()
    torch.testing.assert_close(load_model(str(folder))[0].state_dict(), dict(expected), rtol=1e-5, atol=1e-6)


def test_the_adapter_stays_with_another_model(tmp_path: Path) -> None:
    """A paper's configuration with another model must not train all weights in silence."""
    file = tmp_path / "a.yaml"
    file.write_text("model: {name: some/model, revision: v1, adapter: {kind: lora, rank: 64}}\n")
    config = load_config([file], model="lab", overrides=["model.adapter.alpha=64"])
    assert config.model.adapter == LoRAConfig(rank=64, alpha=64.0)
    assert config.model.revision is None


def foreign(tmp_path: Path, name: str, **options: Any) -> Path:
    """A folder of PEFT's own with an adapter that we do not write."""
    base, folder = save_base(tmp_path / f"base of {name}", "llama3-rope-gqa-biases"), tmp_path / name
    get_peft_model(load_model(str(base))[0], LoraConfig(r=2, **options)).save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def test_an_adapter_of_peft_alone_is_read_where_it_can_be_merged(saved: tuple[Path, Any], tmp_path: Path) -> None:
    folder, adapted = saved
    adapted.save_pretrained(tmp_path / "peft")
    save_tokenizer(tmp_path / "peft")
    with torch.no_grad(), merge_adapters(adapted) as plain:
        assert weights_hash(load_model(str(tmp_path / "peft"))[0]) == weights_hash(plain)
    with torch.no_grad():
        assert torch.equal(load_with_adapter(str(folder))(IDS).logits, adapted(IDS).logits)
    for name, options in (("dora", {"use_dora": True}), ("bias", {"lora_bias": True})):
        with pytest.raises(UserError, match="not a plain LoRA adapter"):
            load_model(str(foreign(tmp_path, name, target_modules=["q_proj"], **options)))
    # transformers would load the base that the adapter names, and leave the layers of the folder's own model.
    both = save_base(tmp_path / "both")
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copy(folder / file, both)
    with pytest.raises(UserError, match=r"has an adapter_config.json"):
        load_model(str(both))


def test_an_adapter_that_does_not_fit_or_is_damaged_is_one_message(saved: tuple[Path, Any], tmp_path: Path) -> None:
    def without_a_layer(folder: Path) -> None:
        weights = load_file(folder / "adapter_model.safetensors")
        save_file({name: weights[name] for name in sorted(weights)[1:]}, folder / "adapter_model.safetensors")

    def on_another_base(folder: Path) -> None:
        path = Path(read_base(folder).name) / "model.safetensors"
        weights = load_file(path)
        save_file({**weights, "model.norm.weight": weights["model.norm.weight"] + 0.5}, path, metadata={"format": "pt"})

    for number, (damage, message) in enumerate(
        (
            (lambda folder: (folder / "adapter_model.safetensors").write_bytes(b"x"), "is damaged"),
            (lambda folder: (folder / "adapter_model.safetensors").unlink(), "adapter_model.safetensors is missing"),
            (lambda folder: (folder / "base.json").write_text("[]"), "has no base model"),
            (lambda folder: (folder / "tokenizer.json").unlink(), "has no tokenizer"),
            (without_a_layer, "does not fit"),
            (on_another_base, "have changed since the adapter was trained"),
            (lambda folder: Path(read_base(folder).name).rename(tmp_path / "elsewhere"), r"is an adapter on .*base"),
        )
    ):
        folder = Path(shutil.copytree(saved[0], tmp_path / str(number)))
        damage(folder)
        with pytest.raises(UserError, match=message):
            load_model(str(folder))


def test_layers_that_no_adapter_fits_are_refused_and_experts_without_one_are_named() -> None:
    for name, config, message in (
        ("qwen3", LoRAConfig(targets=("query", "lm_head")), r"query, lm_head: not a linear layer.*q_proj"),
        ("phi-moe", LoRAConfig(), r"router.*targets=\[q_proj, k_proj, v_proj, o_proj\]"),
        ("phi-moe", LoRAConfig(targets=("router",)), r"router: not a linear layer"),
    ):
        with pytest.raises(UserError, match=message):
            check_targets(config, make(name))
    adapted = get_peft_model(make("qwen3"), peft_config(LoRAConfig(targets=("q_proj",))))
    assert all("q_proj" in name for name in trained_tensors(adapted))
    both = ("experts.down_proj", "experts.gate_up_proj")
    assert experts_without_adapter(LoRAConfig(), make("qwen3-moe")) == ()
    assert experts_without_adapter(LoRAConfig(targets=("q_proj",)), make("qwen3-moe")) == both
    with pytest.raises(UserError, match=r"adapter\.dropout=0\.1: adapters on the experts.*Set it to 0"):
        experts_without_adapter(LoRAConfig(dropout=0.1), make("mixtral"))
