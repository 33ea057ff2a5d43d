"""vLLM in the training processes, on the same GPUs, with a second copy of the weights.

As in TRL (trl/generation/vllm_generation.py, 1.16): an engine in each process, or with tensor parallelism a shard of
one; `external_launcher`, so that vLLM joins the existing processes; sleep mode of level 2. Unlike in TRL, weights are
updated by `reload_weights`, which repeats vLLM's post-processing, and every row has its seed.
"""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion

from rlvr_cli.config.rollout import COLOCATE_MEMORY
from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import RunError
from rlvr_cli.launch.world import World
from rlvr_cli.models.libraries import remote_code_allowed
from rlvr_cli.models.sampling.engine import Completions, Engine, OnDone, SamplingParams
from rlvr_cli.models.sampling.vllm import generate_with_vllm, load_vllm
from rlvr_cli.training.value_head import split_value_head


class VllmEngine(Engine):
    """Samples a policy with `vllm.LLM` in this process, ignoring the model of a call.

    Args:
        model: the trained model, unsharded. longest: tokens of the longest prompt and completion together.
    Raises:
        UserError: vLLM is not installed, or the model does not fit into the memory left by the trainer.

    Attributes:
        step: the optimizer step of vLLM's weights; None = not the run's.
    """

    reason = "vLLM in the training processes"

    def __init__(self, config: Config, model: Any, tokenizer: Any, longest: int, world: World) -> None:
        self.step: int | None = None
        chosen = config.rollout.vllm
        self.parallel, self.sleeps, self.world = chosen.tensor_parallel, chosen.sleep, world
        self._untie = not torch.cuda.is_available()
        # In this process, so that tensors can be passed to it.
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        # On CPUs vLLM would bind the trainer's threads to cores.
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        threads = torch.get_num_threads()
        with tempfile.TemporaryDirectory(prefix="rlvr-vllm-") as name:
            vllm_policy_config(model, untie=self._untie).save_pretrained(name)
            tokenizer.save_pretrained(name)
            self.vllm = load_vllm(
                Path(name),
                dtype=chosen.dtype,
                option="rollout.engine=vllm_colocate",
                settings={
                    # The first rollout loads the weights.
                    "load_format": "dummy",
                    "max_model_len": longest,
                    "gpu_memory_utilization": chosen.gpu_memory or COLOCATE_MEMORY,
                    "tensor_parallel_size": self.parallel,
                    "distributed_executor_backend": "external_launcher" if world.processes > 1 else "uni",
                    "enforce_eager": chosen.eager,
                    "enable_sleep_mode": self.sleeps,
                    "logprobs_mode": log_prob_mode(config),
                    "trust_remote_code": remote_code_allowed(),
                },
            )
        torch.set_num_threads(threads)
        if self.sleeps:
            self.vllm.sleep(level=2)

    def update_weights(self, model: Any, step: int) -> None:
        """Load the weights of ``model``, unsharded and without adapters, in every process. Raises RunError."""
        if self.sleeps:
            torch.cuda.empty_cache()
            self.vllm.wake_up(tags=["weights"])
        weights = policy_tensors(model, untie=self._untie)
        try:
            self.vllm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(weights.items())})
        except (ValueError, KeyError, RuntimeError, AssertionError) as error:
            raise RunError(f"vLLM rejected the weights: {' '.join(str(error).split())[:400]}") from error
        self._check_update(weights)
        if self.sleeps:
            self.vllm.wake_up(tags=["kv_cache"])
        self.vllm.reset_prefix_cache()  # of the old weights
        self.step = step

    def _check_update(self, weights: dict[str, Tensor]) -> None:
        """Raise RunError if vLLM's tensors differ from ``weights``, in vLLM's number format."""
        for checksums in self.vllm.apply_model(partial(compute_checksums, weights=weights)):
            if stale := [name for name, (expected, actual) in checksums.items() if expected != actual]:
                raise RunError(
                    f"vLLM did not update its weights: {len(stale)} of {len(checksums)} compared tensors differ from "
                    f"the trainer's ({', '.join(stale[:2])}{', ...' if stale[2:] else ''}). It would sample with stale "
                    "weights. Set rollout.engine=local to sample with the trainer's."
                )

    def __call__(
        self,
        model: Any,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        *,
        keys: Sequence[int],
        on_progress: Callable[[int], None] | None = None,
        on_done: OnDone | None = None,
    ) -> Completions:
        requests = [list(zip(prompts, keys, strict=True))]
        if self.parallel > 1:
            requests = self._gather_requests(requests[0])
        rows = [row for request in requests for row in request]
        completions = generate_with_vllm(
            self.vllm, [prompt for prompt, _ in rows], params, keys=[key for _, key in rows], on_progress=on_progress
        )
        if self.sleeps:
            self.vllm.sleep(level=2)
            self.step = None  # sleeping discards the weights
        position = self.world.rank % self.parallel if self.parallel > 1 else 0
        first = sum(map(len, requests[:position]))
        return completions.select(range(first, first + len(prompts)))

    def _gather_requests(self, rows: list[tuple[Sequence[int], int]]) -> list[list[tuple[Sequence[int], int]]]:
        """Return the rows of each process of the tensor-parallel group, all of which sample all rows."""
        from accelerate.utils import gather_object

        requests: list[list[tuple[Sequence[int], int]]] = gather_object([rows])
        first = self.world.rank // self.parallel * self.parallel
        return requests[first : first + self.parallel]


def compute_checksums(model: torch.nn.Module, *, weights: Mapping[str, Tensor]) -> dict[str, tuple[int, int]]:
    """Return the checksums of tensors in ``weights`` and in vLLM's ``model``, by name.

    Only of tensors that vLLM stores as in files (the vocabulary's possibly padded): it fuses q, k and v, and shards
    others over GPUs. On CPUs it packs every layer's matrices, which leaves embedding, head and norms. Adapters change
    none of these, so with them only the sampler check after the first update detects stale weights.
    """
    comparable = {}
    for name, tensor in model.named_parameters():
        rows = tensor[: len(weights[name])] if name in weights and tensor.dim() and weights[name].dim() else None
        if rows is not None and rows.shape == weights[name].shape:
            comparable[name] = rows
    return {
        name: (checksum(weights[name], rows.dtype), checksum(rows, rows.dtype)) for name, rows in comparable.items()
    }


def checksum(tensor: Tensor, dtype: torch.dtype) -> int:
    """Return the sum of the numbers of ``tensor`` in ``dtype``, read as integers, which is exact in any order."""
    integers = {2: torch.int16, 4: torch.int32}[dtype.itemsize]
    return int(tensor.detach().to(dtype).contiguous().view(integers).sum(dtype=torch.int64))


def log_prob_mode(config: Config) -> str:
    """Return vLLM's mode for log-probs at the sampling temperature: raw ones precede it."""
    return "raw_logprobs" if config.rollout.temperature == 1 else "processed_logprobs"


def policy_tensors(model: Any, *, untie: bool) -> dict[str, Tensor]:
    """Return the weights of a model without adapters by their names in files, without the value head.

    ``untie``: include tied weights; see :func:`vllm_policy_config`.
    """
    tensors = {name: weight.detach() for name, weight in model.named_parameters()}
    for prefix, module in model.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            if name not in module._non_persistent_buffers_set:
                tensors[f"{prefix}.{name}" if prefix else name] = buffer
    if untie:
        ties = getattr(model, "all_tied_weights_keys", None) or {}
        tensors |= {tied: tensors[source] for tied, source in ties.items()}
    # transformers fuses some layers (experts) in memory.
    weights: dict[str, Tensor] = revert_weight_conversion(model, split_value_head(tensors)[0])
    return weights


def vllm_policy_config(model: Any, *, untie: bool) -> Any:
    """Return the model's configuration for vLLM.

    ``untie``: store the head separately. Without a GPU vLLM (0.31) computes a tied head from a packed copy, which stays
    stale when the embedding is reloaded.
    """
    config = copy.deepcopy(model.config)
    if untie:
        config.tie_word_embeddings = False
    return config
