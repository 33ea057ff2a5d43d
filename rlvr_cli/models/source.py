"""Resolve the names of models, adapters and their bases, and check their files, without importing torch."""

from __future__ import annotations

import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast, get_args

from safetensors import SafetensorError, safe_open

from rlvr_cli.config.load import preset_document, preset_names
from rlvr_cli.core.errors import UserError, collect_problems
from rlvr_cli.core.files import local_path
from rlvr_cli.core.text import did_you_mean, redact_secrets
from rlvr_cli.tasks.prompts import DEFAULT_STYLE

# The models that ship with the package, in folders of their labs' names.
LAB_BASES = Path(__file__).parent / "lab"
# Presets whose weights ship with the package; `hub_presets` has those on the hub. `lab` reads the default task, and
# means `lab-TASK` for another task with a lab.
PRESETS: Mapping[str, Path] = {
    name: LAB_BASES / (name.partition("-")[2] or "kk")
    for name in preset_names("model")
    if name == "lab" or name.startswith("lab-")
}
PromptStyle = Literal["logic_rl", "compact"]
PROMPT_STYLES: tuple[PromptStyle, ...] = get_args(PromptStyle)

ADAPTER_WEIGHTS = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_BASE = "base.json"

_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")


@cache
def hub_presets() -> Mapping[str, str]:
    presets = {name: preset_document("models", name).data for name in preset_names("model")}
    return {name: str(preset["hub"]) for name, preset in presets.items() if "hub" in preset}


@dataclass(frozen=True)
class ModelSource:
    """The source of a model; ``location``: a folder's absolute path, or the hub id."""

    name: str
    kind: Literal["preset", "folder", "hub"]
    location: str


def resolve_model(name: str, *, revision: str | None = None) -> ModelSource:
    """Resolve a preset, a model folder or a hub id, and check it without loading.

    A folder needs config.json, complete safetensors files and a tokenizer. A hub id needs an owner
    (`openai-community/gpt2`) or must be in the cache, so that misspelt runs and presets are not requested from the hub.
    With HF_HUB_OFFLINE it must be in the cache. Raises UserError with every problem.
    """
    if revision is not None and (name in PRESETS or (name not in hub_presets() and local_path(name).is_dir())):
        raise UserError(f"model.revision={revision}: {name} is a local folder, which has no revisions. Remove it.")
    if name in PRESETS:
        folder = PRESETS[name]
        if not folder.is_dir():
            raise UserError(f"model: the preset {name!r} has no weights at {folder}. Install rlvr again.")
        _check_folder(folder)
        return ModelSource(name, "preset", str(folder))
    if name in hub_presets():
        return _resolve_hub_model(name, hub_presets()[name], revision)
    path = local_path(name)
    if path.is_dir():
        _check_folder(path)
        return ModelSource(name, "folder", str(path.resolve()))
    if path.exists():
        raise UserError(f"model: {name} is a file. Give the folder with config.json and the weights.")
    if not is_hub_id(name):
        presets = [*PRESETS, *hub_presets()]
        raise UserError(f"model: no such folder: {name}.{did_you_mean(name, presets)} Give a model folder, a hub id "
                        f"with its owner (openai-community/gpt2) or a preset ({', '.join(presets)}).")  # fmt: skip
    return _resolve_hub_model(name, name, revision)


def is_hub_id(name: str) -> bool:
    return bool(_HUB_ID.fullmatch(name)) and not _is_path(name) and ("/" in name or is_cached(name))


def _resolve_hub_model(name: str, hub_id: str, revision: str | None) -> ModelSource:
    if is_offline() and not is_cached(hub_id):
        raise UserError(unreachable_message(hub_id, revision, "HF_HUB_OFFLINE is set and it is not in the local cache"))
    return ModelSource(name, "hub", hub_id)


def unreachable_message(name: str, revision: str | None, reason: str) -> str:
    model = f"{name} (revision {revision})" if revision else name
    return (
        f"model: cannot get {model} from the Hugging Face hub: {reason}. If it is a folder, it does not exist. "
        f"Check the spelling, connect to the network (for a gated model run `hf auth login`), or use a local "
        f"folder or the preset {' or '.join(PRESETS)}."
    )


def prompt_style(model_config: Any) -> PromptStyle:
    """Return the prompt style of a model: its config's `rlvr_prompt_style`, by default DEFAULT_STYLE.

    ``model_config``: a transformers config or the mapping in config.json. Raises UserError for an unknown style.
    """
    if isinstance(model_config, Mapping):
        style = model_config.get("rlvr_prompt_style")
    else:
        style = getattr(model_config, "rlvr_prompt_style", None)
    if style is None:
        return DEFAULT_STYLE
    if style not in PROMPT_STYLES:
        raise UserError(
            f"model: rlvr_prompt_style in config.json must be one of {', '.join(PROMPT_STYLES)}; got {style!r}"
        )
    return cast(PromptStyle, style)


@cache
def find_connection_problem() -> str | None:
    """Return why the hub cannot be reached within ten seconds, or None; its library would retry for a minute."""
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    try:
        urllib.request.urlopen(urllib.request.Request(endpoint, method="HEAD"), timeout=10).close()
    except urllib.error.HTTPError:
        return None  # a response
    except OSError as error:
        return f"no connection to {redact_secrets(endpoint)} ({getattr(error, 'reason', error)})"
    return None


def _check_folder(folder: Path) -> None:
    is_adapter, problems = holds_adapter(folder), list[str]()
    if not is_adapter:
        problems += _config_problems(folder)
    with collect_problems(problems):
        _tensor_shapes([folder / ADAPTER_WEIGHTS] if is_adapter else _weight_files(folder))
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        problems.append(
            f"model: {folder} has no tokenizer (such as tokenizer.json). Copy the tokenizer files of its base model "
            "into it."
        )
    if len(problems) > 1 and (folder / "checkpoints").is_dir():
        problems = [f"model: {folder} is a run, not a model. Give one of its checkpoints: {folder}/checkpoints/step-N"]
    if problems:
        raise UserError(problems)
    if is_adapter:
        base = read_base(folder)
        try:
            resolve_model(base.name, revision=base.revision)
        except UserError as error:
            prefix = f"model: {folder} is an adapter on {base.name}."
            raise UserError([f"{prefix} {problem}" for problem in error.problems]) from error


def _config_problems(folder: Path) -> list[str]:
    path = folder / "config.json"
    if not path.is_file():
        return [f"model: {folder} has no config.json, so it is not a model folder"]
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        return [f"model: {path} is not valid JSON: {error}"]
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        return [f"model: {path} has no model_type, so its architecture is unknown"]
    return []


def weight_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors in a folder's safetensors. Raises UserError for damaged or missing files."""
    return _tensor_shapes(_weight_files(folder))


def _weight_files(folder: Path) -> list[Path]:
    if (folder / _INDEX).is_file():
        try:
            index = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
            return [folder / str(name) for name in sorted(set(index["weight_map"].values()))]
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise UserError(
                f"model: {folder / _INDEX} cannot be read: {error!r}. Download or save the model again."
            ) from error
    if (folder / _WEIGHTS).is_file():
        return [folder / _WEIGHTS]
    if any(folder.glob("*.bin")):
        raise UserError(
            f"model: {folder} has weights only as .bin files, which can run code when they are loaded. Convert them to "
            "model.safetensors (`model.save_pretrained(folder)` in transformers)."
        )
    raise UserError(f"model: {folder} has no weights (model.safetensors). Is the download or the save complete?")


def _tensor_shapes(files: Sequence[Path]) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    problems: list[str] = []
    for path in files:
        try:
            with safe_open(path, "np") as tensors:
                shapes |= {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118
        except FileNotFoundError:
            problems.append(f"model: {path} is missing. Download or save the model again.")
        except (OSError, SafetensorError) as error:
            problems.append(f"model: {path} is damaged ({error}). Download or save the model again.")
    if problems:
        raise UserError(problems)
    return shapes


def _is_path(name: str) -> bool:
    return name.startswith((".", "~", os.sep, "runs/")) or name.count("/") > 1 or name.endswith("/") or "\\" in name


def is_offline() -> bool:
    flags = (os.environ.get(key, "") for key in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))
    return any(flag.upper() in {"1", "ON", "YES", "TRUE"} for flag in flags)


def is_cached(name: str) -> bool:
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface"))
    cache = Path(os.environ.get("HF_HUB_CACHE", home / "hub")).expanduser()
    return any((cache / f"models--{name.replace('/', '--')}" / "snapshots").glob("*/config.json"))


@dataclass(frozen=True)
class AdapterBase:
    """The model that an adapter was trained on, and how it was loaded.

    Attributes:
        name: a preset, a hub id or a folder. revision: of a hub model, the commit if known.
        kind: ``qlora`` if its linear layers were in 4 bits.
        dtype: number format of its weights; auto if unknown.
        fingerprint: of its weights, from ``rlvr_cli.models.adapter.fingerprint``; None if unknown.
    """

    name: str
    revision: str | None = None
    kind: Literal["lora", "qlora"] = "lora"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    fingerprint: str | None = None


def holds_adapter(folder: Path) -> bool:
    return (folder / ADAPTER_CONFIG).is_file() and not any(folder.glob("model*.safetensors"))


def read_base(folder: Path) -> AdapterBase:
    """Read the base of an adapter from base.json or PEFT's configuration. Raises UserError if neither is valid."""
    path = folder / ADAPTER_BASE if (folder / ADAPTER_BASE).is_file() else folder / ADAPTER_CONFIG
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if path.name == ADAPTER_BASE:
            return AdapterBase(**content)
        name = content["base_model_name_or_path"]
        if content.get("peft_type") != "LORA" or not name:
            raise ValueError("it is not a LoRA adapter with base_model_name_or_path")
        return AdapterBase(str(name), content.get("revision"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"model: {path} has no base model of the adapter ({error}).") from error
