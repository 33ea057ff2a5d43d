"""vLLM behind `vllm serve`, on other GPUs: rank 0 sends the weights by NCCL, every process requests its rows.

Uses TRL's client (trl/generation/vllm_client.py, 1.16) with one request per row, since a request has one seed. Tested
with recorded HTTP; not run on a GPU.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import torch

from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.launch.world import World
from rlvr_cli.models.sampling.engine import Completions, Engine, OnDone, SamplingParams, check_rows, concatenate
from rlvr_cli.models.sampling.vllm import request_arguments
from rlvr_cli.training.vllm_engine import log_prob_mode, policy_tensors

ENGINE = "rollout.engine=vllm_server"
# Concurrent requests of a process; timeout of the connection to a starting server in seconds.
MAX_REQUESTS, STARTUP_TIMEOUT = 64, 60.0


def serve_command(config: Config, longest: int) -> str:
    """Return the command that starts the server for ``config``; ``longest`` prompt and completion, in tokens."""
    return (
        f"VLLM_SERVER_DEV_MODE=1 vllm serve {shlex.quote(config.model.name)} --generation-config vllm "
        f"--logprobs-mode {log_prob_mode(config)} --max-model-len {longest} "
        """--weight-transfer-config '{"backend": "nccl"}'"""
    )


class VllmServer(Engine):
    """Samples a policy with a vLLM server, ignoring the model of a call.

    Args:
        longest: tokens of the longest prompt and completion together.
    Raises:
        UserError: vLLM is not installed, the server does not respond or cannot update weights, or no GPU is available.

    Attributes:
        step: the optimizer step of the server's weights; None = not the run's.
    """

    reason = "a vLLM server"

    def __init__(self, config: Config, longest: int, world: World) -> None:
        self.step: int | None = None
        self.main = world.main
        url = config.rollout.vllm.server
        if not torch.cuda.is_available():
            raise UserError(f"{ENGINE}: weights are sent by NCCL, which needs a GPU. Use rollout.engine=local.")
        try:
            from trl.generation.vllm_client import VLLMClient

            self.client = VLLMClient(base_url=url, connection_timeout=STARTUP_TIMEOUT)
            if self.main:
                self.client.init_communicator(world.local_rank)
        except ImportError as error:
            raise UserError(f"{ENGINE}: {error}. Install it: pip install 'rlvr[vllm]'.") from error
        except Exception as error:  # TRL's client raises no narrower type
            raise UserError(
                f"{ENGINE}: {' '.join(str(error).split())[:400]} Start the server: {serve_command(config, longest)}"
            ) from error

    def update_weights(self, model: Any, step: int) -> None:
        """Send the weights of ``model``, unsharded and without adapters, to the server. Raises RunError."""
        if self.main:
            weights = policy_tensors(model, untie=False)
            formats = [
                (name, str(value.dtype).removeprefix("torch."), list(value.shape)) for name, value in weights.items()
            ]
            try:
                self.client.update_named_params(formats, iter(weights.items()))
                self.client.reset_prefix_cache()  # of the old weights
            except Exception as error:
                text = " ".join(str(error).split())[:400]
                raise RunError(f"the vLLM server rejected the weights: {text}") from error
        self.step = step

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
        check_rows(prompts, keys)
        rows: dict[int, Completions] = {}
        with ThreadPoolExecutor(MAX_REQUESTS) as pool:
            futures = {
                pool.submit(self._sample, prompt, params, key): row
                for row, (prompt, key) in enumerate(zip(prompts, keys, strict=True))
            }
            for future in as_completed(futures):
                row = futures[future]
                rows[row] = future.result()
                if on_progress is not None:
                    on_progress(len(rows[row].ids[0]))
                if on_done is not None:
                    on_done([row], rows[row])
        return concatenate([rows[row] for row in range(len(prompts))])

    def _sample(self, prompt: Sequence[int], params: SamplingParams, key: int) -> Completions:
        arguments = request_arguments(params, key)
        del arguments["detokenize"]  # not a field of the API
        try:
            response = self.client.generate([list(prompt)], generation_kwargs=arguments)
        except Exception as error:
            raise RunError(f"vLLM server: {' '.join(str(error).split())[:400]}") from error
        ids = [int(token) for token in response["completion_ids"][0]]
        # The client does not return the finish reason.
        by_string = params.stop is not None and params.stop.end([ids])[0]
        stopped = by_string or (bool(ids) and ids[-1] in params.eos_token_ids)
        if not stopped and len(ids) < params.max_new_tokens:
            raise RunError("the vLLM server aborted a completion. Repeat the command to continue.")
        log_probs = [float("nan") if values[0] is None else float(values[0]) for values in response["logprobs"][0]]
        return Completions([ids], [log_probs], [not stopped])
