"""The lab's models for vLLM, whose attention on CPUs knows heads of 32 but not of the lab's 24."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from rlvr_cli.models.source import resolve_model

NARROW, WIDE = 24, 32


def wide_lab(folder: Path, *, name: str = "lab", tied: bool = True) -> Path:
    """Write the lab's model ``name`` with wider heads to ``folder``: the same function, and the same gradients.

    The numbers that are added are zeros and stay zeros in training. Rotary angles depend on a dimension's place and on
    the width, so theta is changed along; a norm over a head divides by the root of its width, so its weights are too,
    and those of queries once more for attention's scale.

    Args:
        tied: False gives the head a copy of the embedding, as a server without a GPU needs it.
    """
    lab = Path(resolve_model(name, revision=None).location)
    folder.mkdir(parents=True)
    for file in lab.iterdir():
        if file.is_file():
            shutil.copy(file, folder)
    config = json.loads((lab / "config.json").read_text(encoding="utf-8"))
    config["head_dim"] = WIDE
    config["rope_parameters"]["rope_theta"] **= WIDE / NARROW
    config["tie_word_embeddings"] = tied
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    weights = {name: _widened(name, weight) for name, weight in load_file(lab / "model.safetensors").items()}
    if not tied:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _widened(name: str, weight: Tensor) -> Tensor:
    if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
        return _spread(weight)
    if name.endswith("o_proj.weight"):
        return _spread(weight.T).T.contiguous()
    if name.endswith(("q_norm.weight", "k_norm.weight")):
        scale = (NARROW / WIDE) ** 0.5 * ((WIDE / NARROW) ** 0.5 if "q_norm" in name else 1.0)
        return _spread(weight * scale)
    return weight


def _spread(rows: Tensor) -> Tensor:
    """Each head's rows [heads * NARROW, ...] with zeros after each of its halves: the two that rotation pairs."""
    halves = rows.reshape(-1, 2, NARROW // 2, *rows.shape[1:])
    wide = rows.new_zeros(halves.shape[0], 2, WIDE // 2, *rows.shape[1:])
    wide[:, :, : NARROW // 2] = halves
    return wide.reshape(-1, *rows.shape[1:]).contiguous()


def same_function(folder: Path, name: str = "lab") -> float:
    """The largest difference of log-probs between the model in ``folder`` and the lab's ``name``, on some tokens."""
    from transformers import AutoModelForCausalLM

    ids = torch.arange(60).reshape(2, 30) + 3
    lab = resolve_model(name, revision=None).location
    with torch.no_grad():
        first, second = (
            AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32)(ids).logits.log_softmax(-1)
            for where in (lab, folder)
        )
    return float((first - second).abs().max())
