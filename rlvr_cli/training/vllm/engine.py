"""What both ways of sampling with vLLM share: it holds a copy of the weights, which must be renewed."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion
from transformers.utils import SAFE_WEIGHTS_NAME

from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import RunError
from rlvr_cli.models.sampling.engine import Engine
from rlvr_cli.training.value_head import split_off


class VllmEngine(Engine, ABC):
    """Samples a policy with vLLM, which has weights of its own: the model of a call is not used.

    Used in every training process.

    Attributes:
        step: the optimizer step whose weights vLLM has; None = not yet the run's.
        reason: what samples, for the person and the manifest.
    """

    reason: str

    def __init__(self) -> None:
        self.step: int | None = None

    @contextmanager
    def running(self, run: Path, model: Any, say: Callable[[str], None]) -> Iterator[None]:
        """Around the training: whatever it needs is started before and ended after.

        Args:
            run: the run's folder. model: what is trained, whole, with adapters if there are any.
        """
        del model
        yield

    @abstractmethod
    def take(self, model: Any, step: int) -> None:
        """Give vLLM the weights of ``model``, a plain one that is whole. Called in every process; no sampling goes on.

        Raises RunError where vLLM does not take them.
        """


def log_prob_mode(config: Config) -> str:
    """vLLM's name for log-probabilities at the sampling temperature over the whole vocabulary.

    Raw ones are before the temperature, processed ones after it and after top_p and top_k.
    """
    return "raw_logprobs" if config.rollout.temperature == 1 else "processed_logprobs"


def policy_tensors(model: Any, *, untie: bool) -> dict[str, Tensor]:
    """The weights of a plain model by their names in files, without a value head.

    Args:
        untie: name tied weights too; see :func:`vllm_policy_config`.
    """
    tensors = {name: weight.detach() for name, weight in model.named_parameters()}
    for prefix, module in model.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            if name not in module._non_persistent_buffers_set:
                tensors[f"{prefix}.{name}" if prefix else name] = buffer
    if untie:
        ties = getattr(model, "all_tied_weights_keys", None) or {}
        tensors |= {tied: tensors[source] for tied, source in ties.items()}
    # transformers joins some layers (experts) in memory.
    named: dict[str, Tensor] = revert_weight_conversion(model, split_off(tensors)[0])
    return named


def vllm_policy_config(model: Any, *, untie: bool) -> Any:
    """The configuration of the model as vLLM is to have it.

    Args:
        untie: with a head of its own. Without a GPU vLLM (0.31) computes a tied head from a packed copy, which it does
            not make again when the embedding's weights are loaded again: it would sample with the old head.
    """
    config = copy.deepcopy(model.config)
    if untie:
        config.tie_word_embeddings = False
    return config


def save_policy(model: Any, folder: Path, dtype: torch.dtype, *, untie: bool, tokenizer: Any = None) -> None:
    """Write a plain model so that vLLM reads it like any other; nothing half-written is ever seen in ``folder``.

    Raises RunError where there is no room.
    """
    aside = folder.with_name(f".{folder.name}")
    tensors = policy_tensors(model, untie=untie)
    # Tied ones are one tensor, which a file must not hold twice.
    weights = {name: weight.to("cpu", dtype, copy=True).contiguous() for name, weight in tensors.items()}
    try:
        aside.mkdir()
        save_file(weights, aside / SAFE_WEIGHTS_NAME, metadata={"format": "pt"})
        (aside / SAFE_WEIGHTS_NAME).chmod(0o644)  # safetensors makes files that nobody else may read
        vllm_policy_config(model, untie=untie).save_pretrained(aside)
        if tokenizer is not None:
            tokenizer.save_pretrained(aside)
        aside.rename(folder)
    except (OSError, SafetensorError) as error:
        raise RunError(
            f"{folder}: the weights for the vLLM server cannot be written ({error}). Make room, or name another folder "
            "with rollout.vllm.weights_dir."
        ) from error
