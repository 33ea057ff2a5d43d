"""The weights that vLLM is given: those of the policy, by the names of files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from rlvr_cli.core.errors import RunError
from rlvr_cli.training.value_head import NAME
from rlvr_cli.training.vllm.engine import policy_tensors, save_policy
from tests.training.harness import tiny_model

IDS = torch.arange(2, 22).reshape(2, 10)


@pytest.mark.parametrize("untie", [False, True])
def test_what_is_written_is_the_policy(tmp_path: Path, untie: bool) -> None:
    model = tiny_model().float().eval()
    model.register_module(NAME, torch.nn.Linear(2, 1))
    save_policy(model, tmp_path / "weights", torch.float32, untie=untie)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "weights", dtype=torch.float32)
    with torch.no_grad():
        assert torch.equal(model(IDS).logits, again(IDS).logits)
    assert again.config.tie_word_embeddings is not untie
    assert [path.name for path in tmp_path.iterdir()] == ["weights"]
    readable = (tmp_path / "weights" / "model.safetensors").stat().st_mode & 0o044
    assert readable == 0o044  # by the server's user too


def test_the_head_has_a_name_where_it_is_untied(tmp_path: Path) -> None:
    model = tiny_model()
    tied, untied = (set(policy_tensors(model, untie=untie)) for untie in (False, True))
    assert untied - tied == {"lm_head.weight"}


def test_the_format_is_the_servers(tmp_path: Path) -> None:
    save_policy(tiny_model(), tmp_path / "weights", torch.bfloat16, untie=False)
    header = (tmp_path / "weights" / "model.safetensors").read_bytes()
    size = int.from_bytes(header[:8], "little")
    entries = json.loads(header[8 : 8 + size])
    assert {entry["dtype"] for name, entry in entries.items() if name != "__metadata__"} == {"BF16"}


def test_no_room_is_said_with_the_key(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"cannot be written .*rollout\.vllm\.weights_dir"):
        save_policy(tiny_model(), tmp_path / "file" / "weights", torch.float32, untie=False)
