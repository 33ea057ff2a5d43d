"""Sampling from a vLLM server: one that rlvr starts on this machine, or one that is there already.

Weights go through files: rank 0 writes them into a folder that the server sees and asks it to load them. That works on
any device, and across machines with a shared file system. Every process sends its own rows.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from rlvr_cli.config.rollout import SERVER_MEMORY
from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.evaluation.served.client import Client, Refused, Unreachable
from rlvr_cli.launch.command import free_port, visible_gpus
from rlvr_cli.launch.world import World
from rlvr_cli.models.adapter import merged
from rlvr_cli.models.libraries import remote_code_allowed
from rlvr_cli.models.sampling.engine import Completions, OnDone, SamplingParams, check_rows
from rlvr_cli.models.sampling.vllm import request_arguments
from rlvr_cli.training.vllm import requests
from rlvr_cli.training.vllm.child import Child
from rlvr_cli.training.vllm.engine import VllmEngine, log_prob_mode, save_policy
from rlvr_cli.training.vllm.requests import Facts

OUTPUT = "vllm.log"
NAME = "policy"
_MEMORY = Path("/dev/shm")
# Room that must stay in memory next to two copies of the weights.
_SPARE = 1 << 30
# Variables of the launchers: the server is none of the processes that train.
_LAUNCHERS = re.compile(
    r"(GROUP_|LOCAL_|ROLE_)?(RANK|WORLD_SIZE|WORLD_NAME)$|MASTER_(ADDR|PORT)$|(TORCHELASTIC|ACCELERATE|FSDP|RLVR_LAUNCH)"
)
# Seconds that a server that broke off may take to be gone.
_TO_END = 3.0


class Served(VllmEngine):
    """A vLLM server.

    Args:
        longest: tokens of the longest prompt and completion together. sample: a text to compare tokenizers by.
    Raises:
        UserError: the server that is named cannot be reached, or cannot sample this training; the one that is to be
            started has no vLLM or no GPU.
    """

    def __init__(self, config: Config, model: Any, tokenizer: Any, longest: int, world: World, sample: str) -> None:
        super().__init__()
        self.config, self.chosen, self.world = config, config.rollout.vllm, world
        self.tokenizer, self.longest = tokenizer, longest
        self._child: Child | None = None
        self._run = Path()
        self._folder: Path | None = None
        self._dtype = torch.float32
        self._size = sum(weight.numel() * weight.element_size() for weight in model.parameters())
        if config.rollout.starts_server:
            self.reason = "a vLLM server of this run's own"
            if world.processes > world.local_processes:
                raise UserError(
                    "rollout.engine=vllm_server: rlvr starts servers for a single machine, and this training has "
                    "several. Start one that all of them can reach, and name it with rollout.vllm.server_url."
                )
            self._devices = world.from_main(lambda: _devices(config))
            return
        assert self.chosen.server_url is not None
        self.url = self.chosen.server_url.rstrip("/")
        self.facts = world.from_main(lambda: asyncio.run(self._checked(model, sample)))
        self.reason = f"the vLLM server at {self.url} (vLLM {self.facts.version})"
        self._dtype = torch.float32 if self.facts.dtype == "torch.float32" else torch.bfloat16

    # --- from start to end -------------------------------------------------------------------------------------

    @contextmanager
    def running(self, run: Path, model: Any, say: Callable[[str], None]) -> Iterator[None]:
        self._run, self._say = run, say
        try:
            self.url, self.facts = self.world.from_main(partial(self._begin, model))
            del model
            yield
        finally:
            if self._child is not None:
                self._child.end()
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)

    def _begin(self, model: Any) -> tuple[str, Facts]:
        self._folder = self._weights_folder()
        return self._start(model) if self.config.rollout.starts_server else (self.url, self.facts)

    def _weights_folder(self) -> Path:
        """A new folder for weights, which the server sees at the same path."""
        parent = self.chosen.weights_dir
        if parent is None:
            enough = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > 2 * self._size + _SPARE
            parent = str(_MEMORY if self.config.rollout.starts_server and enough else self._run)
        try:
            Path(parent).mkdir(parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(prefix="rlvr-weights-", dir=Path(parent).resolve()))
        except OSError as error:
            raise RunError(f"rollout.vllm.weights_dir: {parent} cannot be written to ({error.strerror})") from error
        folder.chmod(0o755)  # the server may be another user's
        return folder

    def _start(self, model: Any) -> tuple[str, Facts]:
        """Start the server, and wait for it. Raises RunError with what it said."""
        gpu = bool(self._devices)
        wanted = self.chosen.dtype
        name = wanted if wanted != "auto" else "bfloat16" if gpu else "float32"
        self._dtype = torch.float32 if name == "float32" else torch.bfloat16
        assert self._folder is not None
        folder = self._folder / "begin"
        with merged(model) as plain:
            save_policy(plain, folder, self._dtype, untie=not gpu, tokenizer=self.tokenizer)
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        output = self._run / OUTPUT
        environment = {name: value for name, value in os.environ.items() if not _LAUNCHERS.match(name)}
        environment["VLLM_SERVER_DEV_MODE"] = "1"
        if gpu:
            environment["CUDA_VISIBLE_DEVICES"] = self._devices
        self._say(f"vLLM server: starting; its output: {output}")
        self._child = Child(self._command(folder, port, name), output, self._folder, environment)
        quick = requests.options(self.url, 5.0)

        async def ready() -> bool:
            try:
                async with Client(quick) as client:
                    await client.get("/v1/models", retries=0)
            except RunError:
                return False
            return True

        try:
            self._child.wait_until(lambda: asyncio.run(ready()), self.chosen.startup_timeout, self._say)
        except RunError as error:
            raise RunError(f"{error}{_advice(str(error))}") from error
        found: Facts = self._ask(requests.facts)
        self._say(f"vLLM server: ready at {self.url} (vLLM {found.version})")
        return self.url, found

    def _command(self, folder: Path, port: int, dtype: str) -> list[str]:
        chosen = self.chosen
        return [
            *(chosen.python or sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", str(folder), "--served-model-name", NAME),
            *("--host", "127.0.0.1", "--port", str(port)),
            *("--dtype", dtype, "--max-model-len", str(self.longest), "--seed", "0"),
            # Else the checkpoint's generation_config.json would set top_k and the like.
            *("--generation-config", "vllm", "--logprobs-mode", log_prob_mode(self.config)),
            *("--gpu-memory-utilization", str(chosen.gpu_memory or SERVER_MEMORY)),
            *("--tensor-parallel-size", str(chosen.tensor_parallel)),
            *(["--enforce-eager"] if chosen.eager else []),
            *(["--trust-remote-code"] if remote_code_allowed() else []),
            # A line for each request would bury what matters.
            *("--uvicorn-log-level", "warning"),
        ]

    # --- in the course of training ---------------------------------------------------------------------------------

    def take(self, model: Any, step: int) -> None:
        if self._folder is not None:
            folder = self._folder / f"step-{step}"

            async def load(client: Client) -> None:
                self._alive()
                shutil.rmtree(folder, ignore_errors=True)
                save_policy(model, folder, self._dtype, untie=self.facts.device == "cpu")
                await requests.load_server_weights(client, folder, self._version(step))

            self._ask(load)
            for other in self._folder.iterdir():
                if other != folder:
                    shutil.rmtree(other)
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
        rows = [(prompt, request_arguments(params, key)) for prompt, key in zip(prompts, keys, strict=True)]

        async def sample(client: Client) -> Completions:
            assert self.step is not None
            found = await requests.complete_all(
                client,
                self.facts.model,
                rows,
                alive=self._alive,
                on_progress=on_progress or (lambda tokens: None),
                on_done=on_done or (lambda rows, completions: None),
            )
            # After them: a server that was started again in between has the weights that it was started with.
            await requests.check_version(client, self._version(self.step))
            return found

        completions: Completions = self._ask(sample)
        return completions

    def _version(self, step: int) -> str:
        return f"{self._run.resolve()} step {step}"

    def _alive(self) -> None:
        if self._child is not None:
            self._child.check()

    def _ask(self, question: Callable[[Client], Any]) -> Any:
        """What ``question`` gets from the server. Raises RunError that says how to continue."""

        async def asked() -> Any:
            how = requests.options(self.url, self.chosen.request_timeout)
            async with Client(how, self._say) as client:
                return await question(client)

        try:
            return asyncio.run(asked())
        except RunError as error:
            again = f" Continue with: rlvr train --resume {self._run}"
            if self._child is not None and (why := self._child.failure(wait=_TO_END)):
                raise RunError(f"{why}.{again}") from error
            raise RunError(f"{error}{again}") from error

    # --- a server that is there already ----------------------------------------------------------------------------

    async def _checked(self, model: Any, sample: str) -> Facts:
        """What the named server reports. Raises UserError with everything that does not fit."""
        async with Client(requests.options(self.url, 60.0)) as client:
            try:
                found = await requests.facts(client)
                ids = await requests.request_tokens(client, found.model, sample)
            except Unreachable as error:
                raise UserError(
                    f"rollout.vllm.server_url: {error} Start one with `{self._serve()}`, or leave the address out: "
                    "rlvr then starts a server itself."
                ) from error
            except Refused as error:
                raise UserError(
                    f"rollout.vllm.server_url: {error.answer} {requests.server_advice(error)} "
                    f"Start it with `{self._serve()}`."
                ) from error
            except RunError as error:
                raise UserError(f"rollout.vllm.server_url: {error}") from error
        problems = []
        if ids is not None and ids != self.tokenizer(sample, add_special_tokens=False)["input_ids"]:
            problems.append(
                f"serves {found.root}, which has another tokenizer than {self.config.model.name}. Start it with that "
                f"model: `{self._serve()}`."
            )
        problems += _other_shape(found.root, model)
        if found.longest is not None and found.longest < self.longest:
            problems.append(
                f"takes {found.longest} tokens of prompt and completion, and this run has up to {self.longest}. Start "
                f"it with --max-model-len {self.longest}, or set a smaller rollout.max_new_tokens."
            )
        if found.device == "cpu" and _is_tied(found.root):
            problems.append(
                f"runs {found.root} without a GPU, where vLLM goes on sampling with the old head when the weights of a "
                "model with tied embeddings are loaded again. Leave the address out: rlvr then starts a server with a "
                "head of its own."
            )
        mode = log_prob_mode(self.config)
        if found.log_probs not in (None, mode) and not self._same_log_probs():
            problems.append(
                f"gives log-probabilities of another distribution ({found.log_probs}) than rollout.temperature="
                f"{self.config.rollout.temperature:g} needs. Start it with --logprobs-mode {mode}."
            )
        if problems:
            raise UserError([f"rollout.vllm.server_url: {self.url} {problem}" for problem in problems])
        return found

    def _same_log_probs(self) -> bool:
        """Whether raw and processed log-probabilities are the same."""
        rollout = self.config.rollout
        return rollout.temperature == 1 and rollout.top_p == 1 and rollout.top_k == 0

    def _serve(self) -> str:
        return (
            f"{requests.DEV_MODE} vllm serve {self.config.model.name} --max-model-len {self.longest} "
            f"--generation-config vllm --logprobs-mode {log_prob_mode(self.config)}"
        )


def _devices(config: Config) -> str:
    """CUDA_VISIBLE_DEVICES of the server that rlvr starts; empty without GPUs.

    Raises UserError where no GPU is left for it, or its Python has no vLLM.
    """
    chosen, gpus = config.rollout.vllm, visible_gpus()
    _check_python(chosen.python)
    if chosen.devices is not None:
        return chosen.devices
    if not gpus:
        return ""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))
    left = visible.split(",")[config.launch.processes :]
    if len(left) < chosen.tensor_parallel:
        raise UserError(
            f"rollout.engine=vllm_server: launch.processes={config.launch.processes} of {gpus} visible GPUs train, and "
            f"the server needs {chosen.tensor_parallel}. Start fewer processes, name the server's GPUs with "
            "rollout.vllm.devices, or take rollout.engine=vllm_colocate."
        )
    return ",".join(left[: chosen.tensor_parallel])


def _check_python(python: str | None) -> None:
    """Raise UserError where the server's Python has no vLLM; nothing of it is imported."""
    asked = python or sys.executable
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
    try:
        there = subprocess.run([asked, "-c", code], capture_output=True, timeout=60, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"rollout.vllm.python={asked}: cannot be run ({error}).") from error
    if not there:
        raise UserError(
            f"rollout.engine=vllm_server: {asked} has no package vllm. It needs a different transformers version than "
            "rlvr: give it its own environment (`python -m venv $HOME/vllm && $HOME/vllm/bin/pip install vllm`), "
            "named by rollout.vllm.python=$HOME/vllm/bin/python, or name a running server with "
            "rollout.vllm.server_url. See docs/rollout-engines.md."
        )


def _config_of(root: str) -> dict[str, Any]:
    """The served model's configuration; empty where it cannot be read here."""
    try:
        served: dict[str, Any] = json.loads((Path(root) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return served


def _is_tied(root: str) -> bool:
    # Where the file does not say, transformers ties them.
    served = _config_of(root)
    return bool(served) and bool(served.get("tie_word_embeddings", True))


def _other_shape(root: str, model: Any) -> list[str]:
    """What differs between the served model and this one."""
    own, served = model.config.to_dict(), _config_of(root)
    keys = (
        *("model_type", "hidden_size", "intermediate_size", "num_hidden_layers"),
        *("num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size"),
    )
    apart = [f"{key} {served[key]} for {own[key]}" for key in keys if key in served and served[key] != own.get(key)]
    if not apart:
        return []
    return [f"serves {root}, which is another model than the one that is trained ({', '.join(apart)})."]


def _advice(said: str) -> str:
    low = said.lower()
    if "memory" in low:
        return ". Where the GPU is full: end what else uses it, set rollout.vllm.gpu_memory lower, or other devices"
    if "not supported" in low or "unsupported" in low:
        return ". Where vLLM does not know the model: rollout.engine=transformers samples every model"
    return ""
