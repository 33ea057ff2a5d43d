"""Export a checkpoint of a run as a Hugging Face folder with a model card, and push it to the hub."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError

from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.files import replace_folder
from rlvr_cli.models.card import model_card
from rlvr_cli.models.source import holds_adapter
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.runs.trained_on import read_training_problems, write_training_problems

RECORD = "rlvr_export.json"
REPOSITORY = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")


def check_output(output: Path, run: RunDir, *, overwrite: bool) -> None:
    """Raise UserError if the model cannot be exported to ``output``."""
    target, run_folder = output.resolve(), run.path.resolve()
    if target == run_folder or run_folder in target.parents or target in run_folder.parents:
        raise UserError(f"--output {output}: is inside the run {run.path}, or contains it. Choose another folder.")
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return
    if not overwrite:
        raise UserError(f"--output {output}: exists. Choose another folder, or use --overwrite.")
    if not (output / RECORD).is_file():
        raise UserError(
            f"--output {output}: was not written by `rlvr export` (no {RECORD}); --overwrite will not delete it."
        )


def export(run: RunDir, checkpoint: Path, output: Path, *, dtype: str = "auto") -> str:
    """Write the model of ``checkpoint`` to ``output`` atomically; return its number format.

    Raises UserError if the base of an adapter cannot be loaded or has changed, RunError if a record of the run was
    altered or the weights cannot be written.
    """
    from rlvr_cli.models.load import eos_token_ids, load_model

    config = load_config([run.config_path], from_start=True)
    if dtype == "auto":
        dtype = "float32" if config.model.dtype == "auto" else config.model.dtype
    output.parent.mkdir(parents=True, exist_ok=True)
    try:
        with replace_folder(output.resolve()) as folder:
            model, tokenizer = load_model(str(checkpoint), dtype=dtype)
            stops, generation = eos_token_ids(model, tokenizer), model.generation_config
            generation.eos_token_id = list(stops) if len(stops) > 1 else next(iter(stops), None)
            if generation.pad_token_id is None:
                generation.pad_token_id = tokenizer.pad_token_id
            model.config.use_cache = True
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            if (hashes := read_training_problems(run.path)) is not None:
                write_training_problems(folder, hashes)
            record = {
                "run": run.name,
                "checkpoint": checkpoint.name,
                "dtype": dtype,
                "adapter": holds_adapter(checkpoint),
            }
            (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
            (folder / "README.md").write_text(model_card(run, config, checkpoint, dtype), encoding="utf-8")
            for path in [folder, *folder.rglob("*")]:
                path.chmod(0o755 if path.is_dir() else 0o644)
    except SafetensorError as error:
        raise RunError(f"--output {output}: cannot be written: {error}. Nothing was written.") from error
    return dtype


def push(folder: Path, repository: str, message: str, *, private: bool) -> str:
    """Upload the folder to the hub and return its URL. Raises RunError if the upload fails."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    api = HfApi()
    try:
        # None: the organisation's default, which may be private.
        url = api.create_repo(repository, private=private or None, exist_ok=True, repo_type="model")
        api.upload_folder(repo_id=repository, folder_path=str(folder), commit_message=message)
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise RunError(
            f"the folder {folder} was written, and the push to {repository} failed: "
            f"{' '.join(str(error).split())[:300]}"
        ) from error
    return str(url)


def check_push(repository: str, *, private: bool) -> None:
    """Raise UserError, before the export, if the push would fail or publish a private model."""
    if not REPOSITORY.fullmatch(repository):
        raise UserError(f"--push-to-hub must be a repository name such as user/model; got {repository}.")
    from huggingface_hub import HfApi
    from huggingface_hub.errors import (
        HfHubHTTPError,
        LocalTokenNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    try:
        user = HfApi().whoami()["name"]
        if private:
            name = repository if "/" in repository else f"{user}/{repository}"
            with suppress(RepositoryNotFoundError):
                if not HfApi().repo_info(name).private:
                    raise UserError(
                        f"--push-to-hub {repository} --private: this repository exists and is public. Make it private "
                        "on the hub, or choose another name."
                    )
    except LocalTokenNotFoundError as error:
        raise UserError(
            f"--push-to-hub {repository}: not logged in to the hub. Run `hf auth login`, or set HF_TOKEN for "
            "this command; rlvr stores no token."
        ) from error
    except (HfHubHTTPError, OfflineModeIsEnabled, OSError) as error:
        text = " ".join(str(error).split())[:300]
        raise UserError(f"--push-to-hub {repository}: the hub refused access: {text}") from error
