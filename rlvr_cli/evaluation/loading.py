"""Load a model with its sampling engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import UserError
from rlvr_cli.evaluation.sample_store import Sampler
from rlvr_cli.evaluation.targets import EvaluatedModel, slug
from rlvr_cli.tasks.prompts import DEFAULT_STYLE


def load_subject(subject: EvaluatedModel, config: Config, engine: str, say: Callable[[str], None]) -> Sampler:
    """Load a model into this process or vLLM, or connect to its server. Raises UserError."""
    try:
        if engine == "openai":
            return _connect(subject, config, say)
        if engine == "vllm":
            return _load_into_vllm(subject, config)
        return _load_into_process(subject, config, engine)
    except UserError as error:
        if subject.step is None or Path(subject.model).is_dir():
            raise
        raise UserError(
            f"{subject.model}: this checkpoint was deleted after the evaluation began: by its training, which keeps "
            f"the newest only (checkpoint.keep={config.checkpoint.keep}), or with the run. Evaluate the newest "
            "checkpoint, or wait for the end of the training."
        ) from error


def _load_into_process(subject: EvaluatedModel, config: Config, engine: str) -> Sampler:
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


def _load_into_vllm(subject: EvaluatedModel, config: Config) -> Sampler:
    from rlvr_cli.evaluation.sampling import VllmSampler
    from rlvr_cli.models.load import load_facts
    from rlvr_cli.models.sampling.vllm import fetch_model_folder, load_vllm

    folder = fetch_model_folder(subject.model, revision_of(subject, config))
    facts = load_facts(str(folder))
    return VllmSampler(load_vllm(folder, dtype=config.model.dtype), facts, folder)


def _connect(subject: EvaluatedModel, config: Config, say: Callable[[str], None]) -> Sampler:
    from rlvr_cli.evaluation.served.sampler import ServedSampler
    from rlvr_cli.evaluation.served.server import open_server
    from rlvr_cli.models.load import load_facts

    facts = None
    if subject.local:
        try:
            facts = load_facts(subject.model, revision=revision_of(subject, config))
        except UserError as error:
            if config.eval.endpoint != "chat":
                raise UserError(
                    f"{error}. Without it only the server can format the prompts. Set eval.endpoint=chat."
                ) from error
    server = asyncio.run(open_server(config.eval, facts, say))
    return ServedSampler(server, facts, subject.style or DEFAULT_STYLE, say)


def label_and_stem(subject: EvaluatedModel, sampler: Sampler) -> tuple[str, str]:
    if sampler.served_as is None:
        return subject.label, subject.stem
    name, server = sampler.served_as
    return f"{name} ({server})", slug(name)


def revision_of(subject: EvaluatedModel, config: Config) -> str | None:
    return config.model.revision if subject.model == config.model.name else None
