"""From a subject to what samples it, by the engine that is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import local_path
from rlvr_cli.evaluation.plan import Sampler
from rlvr_cli.evaluation.targets import EvaluatedModel
from rlvr_cli.models.source import PRESETS, resolve_model

if TYPE_CHECKING:
    from rlvr_cli.models.tokenizer import ModelFacts


@dataclass(frozen=True)
class LoadedModel:
    """A model that is ready to be sampled, and the prompt style that it was made for.

    ``label`` and ``stem`` name it in place of the subject's own; None = the subject's. ``facts`` and ``longest``, the
    most tokens of a prompt with its completion, are of a server that takes the prompts written here and says its limit.
    ``tokenizer`` is None where a server has the only one.
    """

    sampler: Sampler
    style: str
    label: str | None = None
    stem: str | None = None
    facts: ModelFacts | None = None
    longest: int | None = None
    tokenizer: Any = None


def load_subject(subject: EvaluatedModel, config: Config, engine: str, say: Callable[[str], None]) -> LoadedModel:
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


def _in_process(subject: EvaluatedModel, config: Config, engine: str) -> LoadedModel:
    from rlvr_cli.models.libraries import quiet_hub, set_threads
    from rlvr_cli.models.load import load_model
    from rlvr_cli.models.source import prompt_style

    quiet_hub()
    set_threads(config.run.threads)
    import torch

    from rlvr_cli.evaluation.sampling import LocalSampler, weights_hash
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
    sampler = LocalSampler(model, tokenizer, weights_hash(model), engine)
    return LoadedModel(sampler, prompt_style(model.config), tokenizer=tokenizer)


def _in_vllm(subject: EvaluatedModel, config: Config) -> LoadedModel:
    from rlvr_cli.evaluation.sampling import VllmSampler
    from rlvr_cli.models.sampling.vllm import load_vllm, model_folder
    from rlvr_cli.models.tokenizer import load_facts

    folder = model_folder(subject.model, revision_of(subject, config))
    facts = load_facts(str(folder), False, revision=None)
    return LoadedModel(
        VllmSampler(load_vllm(folder, dtype=config.model.dtype), facts, folder), facts.style, tokenizer=facts.tokenizer
    )


def _served(subject: EvaluatedModel, config: Config, say: Callable[[str], None]) -> LoadedModel:
    from rlvr_cli.evaluation.served.options import ServerOptions
    from rlvr_cli.evaluation.served.sampler import ServedSampler
    from rlvr_cli.evaluation.served.server import open_server
    from rlvr_cli.evaluation.targets import slug
    from rlvr_cli.models.tokenizer import load_facts

    options = ServerOptions.from_config(config)
    facts: ModelFacts | None = None
    if subject.known:
        try:
            facts = load_facts(*tokenizer_location(subject.model), revision=revision_of(subject, config))
        except UserError as error:
            if options.endpoint != "chat":
                raise UserError(
                    f"{error}. Without it only the server can format the prompts: set eval.endpoint=chat."
                ) from error
    server = asyncio.run(open_server(options, facts, say))
    name = Path(server.model).name.removesuffix("@main") or server.model
    style = facts.style if facts else (subject.style or "logic_rl")
    label = f"{name} ({server.kind.name} server)"
    known = facts if server.endpoint == "completions" else None
    tokenizer = facts.tokenizer if facts is not None else None
    return LoadedModel(ServedSampler(server, facts, say), style, label, slug(name), known, server.longest, tokenizer)


def tokenizer_location(name: str) -> tuple[str, bool]:
    """The folder or hub id of a model's tokenizer, and whether it is a hub id; the folder need hold no weights."""
    if name in PRESETS:
        return str(PRESETS[name]), False
    path = local_path(name)
    if path.is_dir():
        return str(path), False
    return resolve_model(name).location, True


def revision_of(subject: EvaluatedModel, config: Config) -> str | None:
    return config.model.revision if subject.model == config.model.name else None
