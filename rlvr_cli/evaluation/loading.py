"""Load a model with the engine that samples it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import local_path
from rlvr_cli.evaluation.store import Sampler
from rlvr_cli.evaluation.targets import EvaluatedModel, slug
from rlvr_cli.models.source import PRESETS, resolve_model
from rlvr_cli.tasks.prompts import DEFAULT_STYLE


def load_subject(subject: EvaluatedModel, config: Config, engine: str, say: Callable[[str], None]) -> Sampler:
    """Load a model into this process or into vLLM, or open the server that has it.

    Args:
        engine: auto, local, transformers, vllm or openai.
    Raises:
        UserError: the model or the server cannot be used, or a checkpoint is gone.
    """
    try:
        if engine == "openai":
            return _served(subject, config, say)
        if engine == "vllm":
            return _in_vllm(subject, config)
        return _in_process(subject, config, engine)
    except UserError as error:
        if subject.step is None or Path(subject.model).is_dir():
            raise
        raise UserError(
            f"{subject.model}: this checkpoint was there when the evaluation began and is gone. Its training went on, "
            f"which keeps the newest only (checkpoint.keep={config.checkpoint.keep}), or the run was deleted. Evaluate "
            "the newest one, or wait for the end of the training."
        ) from error


def _in_process(subject: EvaluatedModel, config: Config, engine: str) -> Sampler:
    from rlvr_cli.models.libraries import quiet_hub, set_threads
    from rlvr_cli.models.load import load_model

    quiet_hub()
    set_threads(config.run.threads)
    import torch

    from rlvr_cli.evaluation.sampling import LocalSampler
    from rlvr_cli.models.gpu import prepare_attention

    device = "cuda" if torch.cuda.is_available() else "cpu"
    prepare_attention(torch.device(device), gradients=False)
    model, tokenizer = load_model(
        subject.model,
        revision=revision_of(subject, config),
        dtype=config.model.dtype,
        device=device,
        attention=config.model.attention,
    )
    return LocalSampler(model, tokenizer, engine)


def _in_vllm(subject: EvaluatedModel, config: Config) -> Sampler:
    from rlvr_cli.evaluation.sampling import VllmSampler
    from rlvr_cli.models.sampling.vllm import load_vllm, model_folder
    from rlvr_cli.models.tokenizer import load_facts

    folder = model_folder(subject.model, revision_of(subject, config))
    facts = load_facts(str(folder), False, revision=None)
    return VllmSampler(load_vllm(folder, dtype=config.model.dtype), facts, folder)


def _served(subject: EvaluatedModel, config: Config, say: Callable[[str], None]) -> Sampler:
    from rlvr_cli.evaluation.served.sampler import ServedSampler
    from rlvr_cli.evaluation.served.server import open_server
    from rlvr_cli.models.tokenizer import load_facts

    facts = None
    if subject.known:
        try:
            facts = load_facts(*tokenizer_location(subject.model), revision=revision_of(subject, config))
        except UserError as error:
            if config.eval.endpoint != "chat":
                raise UserError(
                    f"{error}. Without it only the server can format the prompts: set eval.endpoint=chat."
                ) from error
    server = asyncio.run(open_server(config.eval, facts, say))
    return ServedSampler(server, facts, subject.style or DEFAULT_STYLE, say)


def names_of(subject: EvaluatedModel, sampler: Sampler) -> tuple[str, str]:
    """Return the label of a model and its section of a folder's name."""
    if sampler.served_as is None:
        return subject.label, subject.stem
    name, server = sampler.served_as
    return f"{name} ({server})", slug(name)


def tokenizer_location(name: str) -> tuple[str, bool]:
    """Return the folder or hub id of a model's tokenizer, and whether it is a hub id; a folder needs no weights."""
    if name in PRESETS:
        return str(PRESETS[name]), False
    path = local_path(name)
    if path.is_dir():
        return str(path), False
    return resolve_model(name).location, True


def revision_of(subject: EvaluatedModel, config: Config) -> str | None:
    return config.model.revision if subject.model == config.model.name else None
