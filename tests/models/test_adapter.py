"""Adapters on the disk: PEFT reads them, a plain model comes of them, and the wrong base is noticed."""

from __future__ import annotations

import importlib.util
import json
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

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
from rlvr_cli.models.adapter import AdapterFolder, check_targets, fingerprint, merged, peft_config, trained_tensors
from rlvr_cli.models.load import load_adapted, load_model
from rlvr_cli.models.source import AdapterBase, base_of, resolve_model
from tests.models.tiny import VOCABULARY, make

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


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, Any]:
    """A folder with an adapter as a checkpoint has it, and the model in memory."""
    base = save_base(tmp_path / "base")
    model, _ = load_model(str(base))
    described = AdapterBase(str(base), dtype="float32", fingerprint=fingerprint(model))
    adapted = train_a_little(model)
    folder = tmp_path / "adapter"
    folder.mkdir()
    AdapterFolder(adapted, described).save_pretrained(folder, trained_tensors(adapted))
    save_tokenizer(folder)
    return folder, adapted


def test_loading_gives_the_plain_model_that_was_sampled(saved: tuple[Path, Any]) -> None:
    folder, adapted = saved
    model, _ = load_model(str(folder))
    with torch.no_grad(), merged(adapted) as plain:
        assert weights_hash(model) == weights_hash(plain)
        assert torch.equal(model(IDS).logits, plain(IDS).logits)
    assert not any("lora" in name or "base_layer" in name for name in model.state_dict())
    assert type(model).__name__ == "Qwen3ForCausalLM"


def test_the_adapter_in_the_layers_is_the_one_trained(saved: tuple[Path, Any]) -> None:
    folder, adapted = saved
    again = load_adapted(str(folder))
    with torch.no_grad():
        assert torch.equal(again(IDS).logits, adapted(IDS).logits)


def test_peft_reads_the_folder(saved: tuple[Path, Any]) -> None:
    folder, adapted = saved
    base = AutoModelForCausalLM.from_pretrained(base_of(folder).name)
    read = PeftModel.from_pretrained(base, folder)
    with torch.no_grad():
        assert torch.equal(read(IDS).logits, adapted(IDS).logits)
    assert all("default" not in name for name in load_file(folder / "adapter_model.safetensors"))


def test_an_adapter_of_peft_alone_is_read(saved: tuple[Path, Any], tmp_path: Path) -> None:
    _, adapted = saved
    folder = tmp_path / "foreign"
    adapted.save_pretrained(folder)
    save_tokenizer(folder)
    assert not (folder / "base.json").exists()
    with torch.no_grad(), merged(adapted) as plain:
        assert weights_hash(load_model(str(folder))[0]) == weights_hash(plain)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"use_dora": True}, r"not a plain LoRA adapter \(Dora"),
        ({"lora_bias": True}, r"not a plain LoRA adapter \(lora_bias"),
    ],
)
def test_a_kind_of_adapter_that_merging_would_change_is_refused(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    base = save_base(tmp_path / "base", "llama3-rope-gqa-biases")
    model, _ = load_model(str(base))
    folder = tmp_path / "foreign"
    get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"], **options)).save_pretrained(folder)
    save_tokenizer(folder)
    with pytest.raises(UserError, match=message):
        load_model(str(folder))


def test_an_adapter_on_a_tied_head_is_refused(tmp_path: Path) -> None:
    base = save_base(tmp_path / "base", "llama")
    model, _ = load_model(str(base))
    model.tie_weights()
    model.config.tie_word_embeddings = True
    model.lm_head.weight = model.model.embed_tokens.weight
    model.save_pretrained(base)
    folder = tmp_path / "foreign"
    get_peft_model(model, LoraConfig(r=2, target_modules=["lm_head"])).save_pretrained(folder)
    save_tokenizer(folder)
    with pytest.raises(UserError, match="shares its weights"):
        load_model(str(folder))


def test_a_model_beside_an_adapter_is_not_another_model_in_its_place(saved: tuple[Path, Any], tmp_path: Path) -> None:
    """transformers would load the base that the adapter names, and leave its layers in the model."""
    folder, _ = saved
    both = save_base(tmp_path / "both")
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copy(folder / name, both)
    with pytest.raises(UserError, match=r"has an adapter_config.json"):
        load_model(str(both))


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


def test_a_base_in_bfloat16_is_merged_with_one_rounding(saved: tuple[Path, Any]) -> None:
    folder, _ = saved
    exact, _ = load_model(str(folder), dtype="float32")
    base = json.loads((folder / "base.json").read_text())
    (folder / "base.json").write_text(json.dumps({**base, "dtype": "bfloat16", "fingerprint": None}))
    rounded, _ = load_model(str(folder), dtype="auto")
    assert rounded.dtype == torch.float32  # a CPU's
    layer = rounded.model.layers[0].self_attn.q_proj.weight
    expected = exact.model.layers[0].self_attn.q_proj.weight
    torch.testing.assert_close(layer, expected, rtol=2**-7, atol=1e-3)


def test_another_base_is_refused(saved: tuple[Path, Any]) -> None:
    folder, _ = saved
    path = Path(base_of(folder).name) / "model.safetensors"
    weights = load_file(path)
    weights["model.norm.weight"] = weights["model.norm.weight"] + 0.5
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(UserError, match="have changed since the adapter was trained"):
        load_model(str(folder))


def test_a_base_that_is_gone_is_named(saved: tuple[Path, Any]) -> None:
    folder, _ = saved
    base = Path(base_of(folder).name)
    base.rename(base.with_name("elsewhere"))
    with pytest.raises(UserError, match=r"is an adapter on .*base"):
        resolve_model(str(folder))


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda folder: (folder / "adapter_model.safetensors").write_bytes(b"x"), "is damaged"),
        (lambda folder: (folder / "adapter_model.safetensors").unlink(), "no adapter_model.safetensors"),
        (lambda folder: (folder / "base.json").write_text("[]"), "does not say which model"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "has no tokenizer"),
    ],
)
def test_a_damaged_folder_is_one_message(saved: tuple[Path, Any], break_it: Any, message: str) -> None:
    folder, _ = saved
    break_it(folder)
    with pytest.raises(UserError, match=message):
        load_model(str(folder))


def test_an_adapter_of_other_layers_is_refused(saved: tuple[Path, Any]) -> None:
    folder, _ = saved
    path = folder / "adapter_model.safetensors"
    weights = load_file(path)
    weights.pop(min(weights))
    save_file(weights, path)
    with pytest.raises(UserError, match="does not fit"):
        load_model(str(folder))


def test_targets_are_layers_of_the_model() -> None:
    model = make("qwen3")
    check_targets(LoRAConfig(targets=("q_proj", "down_proj")), model)
    with pytest.raises(UserError, match=r"query, lm_head: not a linear layer.*q_proj"):
        check_targets(LoRAConfig(targets=("query", "lm_head")), model)
    adapted = get_peft_model(model, peft_config(LoRAConfig(targets=("q_proj",))))
    assert all("q_proj" in name for name in trained_tensors(adapted))


def test_the_fingerprint_tells_models_apart() -> None:
    first, again = make("qwen3"), make("qwen3")
    assert fingerprint(first) == fingerprint(again)
    with torch.no_grad():
        again.model.layers[0].mlp.up_proj.weight.add_(1e-3)
    assert fingerprint(first) != fingerprint(again)


@pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is not None, reason="bitsandbytes is installed")
def test_4_bits_without_the_library_say_what_to_install() -> None:
    with pytest.raises(UserError, match=r"pip install 'rlvr\[qlora\]'"):
        load_model("lab", in_4_bits=True)


@pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is None, reason="needs bitsandbytes")
def test_4_bits_become_a_plain_model(tmp_path: Path) -> None:
    base = save_base(tmp_path / "base")
    model, _ = load_model(str(base), in_4_bits=True)
    described = AdapterBase(str(base), kind="qlora", dtype="float32", fingerprint=fingerprint(model))
    adapted = train_a_little(model)
    folder = tmp_path / "adapter"
    folder.mkdir()
    AdapterFolder(adapted, described).save_pretrained(folder, trained_tensors(adapted))
    save_tokenizer(folder)
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    with torch.no_grad(), merged(adapted) as plain:
        assert not any(type(layer).__name__ == "Linear4bit" for layer in plain.modules())
        torch.testing.assert_close(plain(IDS).logits, adapted(IDS).logits, rtol=1e-3, atol=1e-3)
        read, _ = load_model(str(folder))
        assert weights_hash(read) == weights_hash(plain)
    assert any(type(layer).__name__ == "Linear4bit" for layer in adapted.modules())
    read.save_pretrained(tmp_path / "plain")
    assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path / "plain")(IDS).logits, read(IDS).logits)


def test_the_adapter_stays_with_another_model(tmp_path: Path) -> None:
    """A paper's configuration with another model must not train all weights in silence."""
    file = tmp_path / "a.yaml"
    file.write_text("model: {name: some/model, revision: v1, adapter: {kind: lora, rank: 64}}\n")
    config = load_config([file], model="lab", overrides=["model.adapter.alpha=64"])
    assert config.model.adapter == LoRAConfig(rank=64, alpha=64.0)
    assert config.model.revision is None
