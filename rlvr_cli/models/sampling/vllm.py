"""Sample with vLLM in this process, a batch at a time. Needs the package `vllm`.

Tested with vLLM 0.31 on CPUs (`make test-vllm`); not run on a GPU.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.models.libraries import check_vllm
from rlvr_cli.models.sampling.engine import Completions, OnDone, SamplingParams, check_rows
from rlvr_cli.models.sampling.rng import stream_start
from rlvr_cli.models.source import resolve_model

# vLLM's seeds have 63 bits.
_SEEDS = 1 << 63


def fetch_model_folder(name: str, revision: str | None) -> Path:
    """Return the folder of a model's files, downloading a hub model. Raises UserError, also for an adapter."""
    source = resolve_model(name, revision=revision)
    if source.kind != "hub":
        folder = Path(source.location)
    else:
        from huggingface_hub import snapshot_download

        try:
            folder = Path(
                snapshot_download(
                    source.location, revision=revision, allow_patterns=["*.json", "*.safetensors", "*.model", "*.txt"]
                )
            )
        except (OSError, ValueError) as error:
            text = " ".join(str(error).split())
            raise UserError(f"model: {name} cannot be downloaded ({text[:300]})") from error
    if (folder / "adapter_config.json").exists():
        raise UserError(
            f"--engine vllm: {name} is an adapter. Merge it into its base first (`rlvr export`), or use --engine local."
        )
    return folder


def files_digest(folder: Path) -> str:
    """Return the SHA-256 of the names and bytes of the folder's safetensors files."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        digest.update(f"{path.name}:{path.stat().st_size};".encode())
        with path.open("rb") as stream:
            while piece := stream.read(1 << 24):
                digest.update(piece)
    return digest.hexdigest()


def load_vllm(
    folder: Path, *, dtype: str, option: str = "--engine vllm", settings: Mapping[str, Any] | None = None
) -> Any:
    """Return vLLM's engine (`vllm.LLM`) for the model in ``folder``; ``option``: what selected vLLM, for messages.

    Raises UserError if vllm is not installed, needs a GPU, or cannot load the model.
    """
    # Its log lines would break the display. Read when vllm is imported.
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    check_vllm(option)
    try:
        vllm = import_module("vllm")
    except ImportError as error:
        raise UserError(f"{option}: the package vllm cannot be imported: {error}") from error
    import torch

    gpu = torch.cuda.is_available()
    if not gpu and not import_module("vllm.platforms").current_platform.is_cpu():
        raise UserError(f"{option}: there is no GPU here, and this vllm is not the CPU version. Use a vLLM server.")
    chosen: dict[str, Any] = {
        "trust_remote_code": False,
        "seed": 0,
        # Otherwise the checkpoint's generation_config.json would limit new tokens.
        "generation_config": "vllm",
        # Under the model's distribution, for any request.
        "logprobs_mode": "raw_logprobs",
        "disable_log_stats": True,
        # Compiling for a CPU takes longer than sampling on it.
        "enforce_eager": not gpu,
        **(settings or {}),
    }
    if dtype == "auto":
        dtype = "bfloat16" if gpu else "float32"
    try:
        return vllm.LLM(model=str(folder), dtype=dtype, **chosen)
    except (ValueError, RuntimeError, OSError, ImportError, NotImplementedError, AssertionError) as error:
        text = " ".join(str(error).split())
        raise UserError(
            f"{option}: vLLM cannot load {folder} ({text[:400]}). If the GPU is full, stop other programs on it."
        ) from error


def request_arguments(params: SamplingParams, key: int) -> dict[str, Any]:
    """Return the arguments of a row's `vllm.SamplingParams`: its seed, and no filter but those of ``params``."""
    # A stop string stays in the text and its tokens in the completion; special tokens can be part of it.
    strings = {"include_stop_str_in_output": True, "detokenize": True, "skip_special_tokens": False}
    return {
        "n": 1,
        "seed": stream_start(params.seed, key) % _SEEDS,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k or -1,
        "min_p": params.min_p,
        "repetition_penalty": params.repetition_penalty,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "max_tokens": params.max_new_tokens,
        "stop_token_ids": sorted(params.eos_token_ids),
        # Only the sampled token's.
        "logprobs": 0,
        "detokenize": False,
        **({} if params.stop is None else {"stop": list(params.stop.strings), **strings}),
        **params.extra,
    }


def generate_with_vllm(
    model: Any,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    *,
    keys: Sequence[int],
    on_progress: Callable[[int], None] | None = None,
    on_done: OnDone | None = None,
) -> Completions:
    """Sample a completion for every prompt with ``model``, a `vllm.LLM`, as :class:`Engine`; all rows return at once.

    Each row has its seed, so its completion does not depend on other rows, up to rounding. ``max_rows`` has no effect:
    vLLM schedules rows. The log-probs depend on ``model``'s mode: at temperature 1 (raw_logprobs), or of the sampling
    distribution (processed_logprobs). Raises RunError if vLLM aborts a completion.
    """
    check_rows(prompts, keys)
    if not prompts:
        return Completions([], [], [])
    vllm = import_module("vllm")
    try:
        requests = [vllm.SamplingParams(**request_arguments(params, key)) for key in keys]
    except (TypeError, ValueError) as error:
        text = " ".join(str(error).split())[:400]
        raise UserError(f"rollout.generation_kwargs: vLLM refuses them ({text})") from error
    try:
        outputs = model.generate(
            [{"prompt_token_ids": list(prompt)} for prompt in prompts], sampling_params=requests, use_tqdm=False
        )
    except (ValueError, RuntimeError) as error:
        raise RunError(f"vLLM: {' '.join(str(error).split())[:400]}") from error
    result = Completions([], [], [])
    for output in outputs:
        completion = output.outputs[0]
        if completion.finish_reason not in ("stop", "length"):
            raise RunError(f"vLLM aborted a completion ({completion.finish_reason}). Repeat the command to continue.")
        ids = list(completion.token_ids)
        result.ids.append(ids)
        result.log_probs.append([at[token].logprob for at, token in zip(completion.logprobs, ids, strict=True)])
        result.truncated.append(completion.finish_reason == "length")
    if on_progress is not None:
        on_progress(sum(map(len, result.ids)))
    return result
