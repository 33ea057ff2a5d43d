"""What `rollout.engine` and its settings must agree with: vLLM's ways of sampling, and keys that one of them reads."""

from __future__ import annotations

from collections.abc import Iterable

from rlvr_cli.config.keys import KEYS
from rlvr_cli.config.schema import Config
from rlvr_cli.config.vllm_keys import VllmConfig
from rlvr_cli.core.layers import SetByUser
from rlvr_cli.core.section import Contradiction
from rlvr_cli.methods.sft import SFT

ENGINE = "rollout.engine"
URL = "rollout.vllm.server_url"
# Keys by who reads them, beside what both ways of sampling with vLLM do.
COLOCATE_ONLY = ("sleep",)
SERVER_ONLY = ("server_url", "python", "devices", "weights_dir", "startup_timeout", "request_timeout")
# What a server that somebody else started has decided already.
OF_THE_OWN_SERVER = ("python", "devices", "gpu_memory", "tensor_parallel", "dtype", "eager", "startup_timeout")


def uses_vllm(config: Config) -> bool:
    """Whether vLLM samples the training's completions."""
    return config.rollout.engine in ("vllm_colocate", "vllm_server")


def starts_server(config: Config) -> bool:
    """Whether `rlvr` has to start a vLLM server of its own."""
    return config.rollout.engine == "vllm_server" and config.rollout.vllm.server_url is None


def engine_problems(config: Config) -> Iterable[Contradiction]:
    """What vLLM cannot sample, or not in this launch."""
    rollout, processes = config.rollout, config.launch.processes
    if not uses_vllm(config):
        return
    if isinstance(config.method, SFT):
        yield Contradiction(
            (ENGINE, "method.name"),
            f"{ENGINE}={rollout.engine} samples completions, and method.name={config.method.name} trains on worked "
            "solutions. Leave the engine out",
        )
    if rollout.temperature != 1 and (rollout.top_p < 1 or rollout.top_k > 0):
        limits = [key for key, on in (("top_p", rollout.top_p < 1), ("top_k", rollout.top_k > 0)) if on]
        yield Contradiction(
            ("rollout.temperature", *(f"rollout.{key}" for key in limits), ENGINE),
            f"rollout.temperature={rollout.temperature:g} with rollout.{limits[0]}: vLLM gives log-probabilities "
            "before the temperature or after the cut, and the gradient needs them after the one and before the "
            f"other. Set rollout.temperature=1, leave {' and '.join(limits)} out, or take rollout.engine=local",
        )
    parallel = rollout.vllm.tensor_parallel
    if rollout.engine == "vllm_colocate" and processes % parallel:
        yield Contradiction(
            ("rollout.vllm.tensor_parallel", "launch.processes", ENGINE),
            f"rollout.vllm.tensor_parallel={parallel} does not divide launch.processes={processes}: with "
            "vllm_colocate the training processes share the model among them",
        )


def idle_engine_keys(config: Config, set_by_user: SetByUser) -> Iterable[Contradiction]:
    """Keys of `rollout.vllm` that a person set and that nothing reads."""
    engine, vllm = config.rollout.engine, config.rollout.vllm
    for name in VllmConfig.model_fields:
        value = getattr(vllm, name)
        path = ("rollout", "vllm", name)
        if not set_by_user(path) or value == KEYS.default(path):
            continue
        key, switch, reason = ".".join(path), ENGINE, ""
        if not uses_vllm(config):
            reason = f"{ENGINE}={engine} is not vLLM. Set {ENGINE}=vllm_colocate or vllm_server"
        elif engine == "vllm_colocate" and name in SERVER_ONLY:
            reason = f"{ENGINE}=vllm_colocate has no server. Set {ENGINE}=vllm_server"
        elif engine == "vllm_server" and name in COLOCATE_ONLY:
            reason = f"{ENGINE}=vllm_server samples outside the trainer. Set {ENGINE}=vllm_colocate"
        elif not starts_server(config) and name in OF_THE_OWN_SERVER and engine == "vllm_server":
            switch = URL
            reason = f"the server at {URL} was started by somebody else, who decides it. Leave one out"
        if reason:
            keys = (key, switch) if set_by_user(tuple(switch.split("."))) else (key,)
            said = str(value).lower() if isinstance(value, bool) else value
            yield Contradiction(keys, f"{key}={said} has no effect: {reason}")
