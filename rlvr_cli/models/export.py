"""A checkpoint of a run as a plain Hugging Face folder: adapters merged, checked by what it answers."""

from __future__ import annotations

import gc
import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from rlvr_cli.config.load import load_config
from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.models.card import model_card
from rlvr_cli.models.source import base_of, holds_adapter
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.runs.records import read_record
from rlvr_cli.runs.trained_on import training_problems, write_training_problems

RECORD = "rlvr_export.json"
NOT_OF_THE_MODEL = ("MANIFEST.json", "trainer_state.json", "trainer")
REPOSITORY = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
PROBLEMS, NEW_TOKENS = 8, 128
# How far apart (nats) two tokens may be for rounding to turn the one into the other, by the format of the weights.
TIE = {"float32": 1e-3, "bfloat16": 0.25}


@dataclass(frozen=True)
class Exported:
    """What was written.

    Attributes:
        answers: greedy answers that were compared with the checkpoint's own. same: how many were the same tokens; the
            others part at a tie.
    """

    folder: Path
    checkpoint: Path
    dtype: str
    answers: int
    same: int
    pushed: str | None = None


def check_output(output: Path, run: RunDir, *, overwrite: bool) -> None:
    """Raise UserError where ``output`` cannot become the exported folder."""
    whole, own = output.resolve(), run.path.resolve()
    if whole == own or own in whole.parents or whole in own.parents:
        raise UserError(f"--output {output}: is inside the run {run.path}, or holds it. Choose another folder.")
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return
    if not overwrite:
        raise UserError(f"--output {output}: exists. Choose another folder, or give --overwrite.")
    if not (output / RECORD).is_file():
        raise UserError(
            f"--output {output}: was not written by `rlvr export` (no {RECORD}); --overwrite will not delete it."
        )


def export(run: RunDir, checkpoint: Path, output: Path, *, dtype: str = "auto") -> Exported:
    """Write the model of ``checkpoint`` to ``output``, whole or not at all; what is there is replaced.

    Args:
        dtype: number format of the weights: float32, bfloat16, or auto = as they were trained.
    Raises:
        UserError: the base of an adapter cannot be had, or is another one.
        RunError: what was written does not answer as the checkpoint does.
    """
    config = load_config([run.config_path], run_code=False, from_start=True)
    adapter = holds_adapter(checkpoint)
    output.parent.mkdir(parents=True, exist_ok=True)
    with _aside(output.resolve()) as folder:
        texts, prompts, stops = _prompts(run, config, checkpoint)
        expected = _answers_of_checkpoint(config, checkpoint, prompts, stops, adapter=adapter)
        if adapter or dtype != "auto":
            trained_in = base_of(checkpoint).dtype if adapter else dtype
            _write_merged(config, checkpoint, folder, trained_in if dtype == "auto" else dtype)
        else:
            _copy(checkpoint, folder)
        _write_tokenizer_and_stops(checkpoint, folder, stops)
        found, written = _answers_of_folder(folder, prompts, stops)
        same = _compare(expected, found, folder, prompts, written)
        record = {"run": run.name, "checkpoint": checkpoint.name, "dtype": written, "adapter": adapter}
        if (hashes := training_problems(run.path)) is not None:
            write_training_problems(folder, hashes)
        (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        (folder / "README.md").write_text(model_card(run, config, checkpoint, written, texts[0]), encoding="utf-8")
        for path in [folder, *folder.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
    return Exported(output, checkpoint, written, len(prompts), same)


def push(exported: Exported, repository: str, *, private: bool) -> str:
    """Upload the folder to the hub and return its address. Raises RunError where the hub refuses."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    api = HfApi()
    try:
        # None leaves it to the organisation, whose new repositories may all be private.
        address = api.create_repo(repository, private=private or None, exist_ok=True, repo_type="model")
        api.upload_folder(
            repo_id=repository,
            folder_path=str(exported.folder),
            commit_message=f"rlvr export of {exported.checkpoint.name}",
        )
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise RunError(
            f"the folder {exported.folder} was written, and the push to {repository} failed: "
            f"{' '.join(str(error).split())[:300]}"
        ) from error
    return str(address)


def check_push(repository: str, *, private: bool) -> None:
    """Raise UserError where nobody is logged in to the hub, it cannot be reached, or a repository that was asked to be
    private is there and public: before the work is done."""
    if not REPOSITORY.fullmatch(repository):
        raise UserError(f"--push-to-hub {repository}: not a name such as user/model.")
    from huggingface_hub import HfApi
    from huggingface_hub.errors import (
        HfHubHTTPError,
        LocalTokenNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    try:
        name = HfApi().whoami()["name"]
        if private:
            whole = repository if "/" in repository else f"{name}/{repository}"
            with suppress(RepositoryNotFoundError):
                if not HfApi().repo_info(whole).private:
                    raise UserError(
                        f"--push-to-hub {repository} --private: this repository exists and is public. Make it private "
                        "on the hub, or choose another name."
                    )
    except LocalTokenNotFoundError as error:
        raise UserError(
            f"--push-to-hub {repository}: nobody is logged in to the hub. Run `hf auth login`, or set HF_TOKEN for "
            "this command; rlvr stores no token."
        ) from error
    except (HfHubHTTPError, OfflineModeIsEnabled, OSError) as error:
        text = " ".join(str(error).split())[:300]
        raise UserError(f"--push-to-hub {repository}: the hub refused access: {text}") from error


@contextmanager
def _aside(output: Path) -> Iterator[Path]:
    """A folder next to ``output`` that takes its place in the end, or goes without a trace; what was there stays then.

    Raises RunError where the disk refuses what safetensors writes, which says so in an error of its own.
    """
    folder = Path(tempfile.mkdtemp(prefix=f".{output.name}-", dir=output.parent))
    before = folder.with_name(f"{folder.name}-before")
    try:
        yield folder
        if output.exists():
            output.rename(before)
        try:
            folder.rename(output)
        except OSError:
            if before.exists():
                before.rename(output)
            raise
    except SafetensorError as error:
        raise RunError(f"--output {output}: cannot be written: {error}. Nothing was written.") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(before, ignore_errors=True)


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _prompts(run: RunDir, config: Config, checkpoint: Path) -> tuple[list[str], list[list[int]], tuple[int, ...]]:
    """Held-out prompts of the run's task, their token ids, and what ends an answer.

    Of a task of the user's own: the prompts of the run's rollouts, for which none of its code is run.
    """
    from rlvr_cli.models.load import load_model_config, load_tokenizer
    from rlvr_cli.models.source import prompt_style
    from rlvr_cli.tasks.base import HELD_OUT_SEED, prompt_ids
    from rlvr_cli.tasks.sets import data_sets, generated_name, is_generated

    tokenizer, described = load_tokenizer(str(checkpoint)), load_model_config(str(checkpoint))
    if config.task.runs_own_code:
        rollouts = sorted(run.rollouts_dir.glob("rollout-*.jsonl"))
        texts = dict.fromkeys(row["prompt"] for path in rollouts[:1] for row in read_record(run, path))
        if texts:
            chosen = list(texts)[:PROBLEMS]
            found = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in chosen]
            return chosen, found, _stops(checkpoint, described, tokenizer)
        # Worked solutions were imitated.
        config = load_config([run.config_path], from_start=True)
    style = prompt_style(described)
    task = config.task.for_model(style)
    split = "dev" if is_generated(config.task.data) else "test"
    if split == "test" and config.task.data in data_sets() and "test" not in data_sets()[config.task.data].files:
        split = "train"
    try:
        problems = task.problems(split, PROBLEMS, HELD_OUT_SEED)  # type: ignore[arg-type]
    except UserError:
        # The data of the run are not on this machine: generated problems serve as well to compare answers.
        if not is_generated(generated_name(config.task.name)):
            raise
        generated = config.task.model_copy(update={"data": generated_name(config.task.name), "data_dir": None})
        problems = generated.for_model(style).problems("dev", PROBLEMS, HELD_OUT_SEED)
    ids = [prompt_ids(task, problem, tokenizer) for problem in problems]
    return [task.prompt(problem, tokenizer) for problem in problems], ids, _stops(checkpoint, described, tokenizer)


def _stops(checkpoint: Path, described: Any, tokenizer: Any) -> tuple[int, ...]:
    from transformers import GenerationConfig

    from rlvr_cli.models.load import stop_ids

    source, revision = str(checkpoint), None
    if holds_adapter(checkpoint):
        from rlvr_cli.models.source import resolve_model

        base = base_of(checkpoint)
        source, revision = resolve_model(base.name, revision=base.revision).location, base.revision
    try:
        configured = GenerationConfig.from_pretrained(source, revision=revision or "main").eos_token_id
    except OSError:
        configured = getattr(described, "eos_token_id", None)
    return stop_ids(configured, tokenizer)


def _answers_of_checkpoint(
    config: Config, checkpoint: Path, prompts: Sequence[list[int]], stops: Sequence[int], *, adapter: bool
) -> list[list[int]]:
    """The greedy answers of the base with the adapter in its layers, or of the checkpoint's model as it is."""
    from rlvr_cli.models.load import load_adapted, load_model

    attention = config.model.attention
    if adapter:
        model = load_adapted(str(checkpoint), device=_device(), attention=attention).get_base_model()
    else:
        dtype = "float32" if config.model.dtype == "auto" else config.model.dtype
        model, _ = load_model(str(checkpoint), dtype=dtype, device=_device(), attention=attention)
    answers = _greedy(model, prompts, stops)
    del model
    gc.collect()
    return answers


def _greedy(model: Any, prompts: Sequence[list[int]], stops: Sequence[int]) -> list[list[int]]:
    from rlvr_cli.models.sampling.engine import SamplingParams
    from rlvr_cli.models.sampling.transformers import generate_with_transformers

    limit = getattr(model.config, "max_position_embeddings", None)
    room = NEW_TOKENS if limit is None else max(1, min(NEW_TOKENS, limit - max(map(len, prompts))))
    keys = range(len(prompts))
    params = SamplingParams(max_new_tokens=room, eos_token_ids=stops, temperature=0.0, max_rows=1)
    return generate_with_transformers(model, prompts, params, keys=keys).ids


def _write_merged(config: Config, checkpoint: Path, folder: Path, dtype: str) -> None:
    from rlvr_cli.models.load import load_model

    model, _ = load_model(str(checkpoint), dtype=dtype, device="cpu", attention=config.model.attention)
    model.config.use_cache = True
    model.save_pretrained(folder)
    del model
    gc.collect()


def _copy(checkpoint: Path, folder: Path) -> None:
    """The files of a checkpoint that belong to the model; what training needs stays behind."""
    for path in checkpoint.iterdir():
        if path.name in NOT_OF_THE_MODEL:
            continue
        if path.is_dir():
            shutil.copytree(path, folder / path.name)
        else:
            shutil.copy2(path, folder / path.name)


def _write_tokenizer_and_stops(checkpoint: Path, folder: Path, stops: tuple[int, ...]) -> None:
    from rlvr_cli.models.generation import KeptGenerationConfig
    from rlvr_cli.models.load import load_tokenizer

    tokenizer = load_tokenizer(str(checkpoint))
    tokenizer.save_pretrained(folder)
    path = folder / "generation_config.json"
    generation = KeptGenerationConfig.from_pretrained(str(folder)) if path.is_file() else KeptGenerationConfig()
    generation.eos_token_id = list(stops) if len(stops) > 1 else next(iter(stops), None)
    if generation.pad_token_id is None:
        generation.pad_token_id = tokenizer.pad_token_id
    generation.save_pretrained(str(folder))


def _answers_of_folder(folder: Path, prompts: Sequence[list[int]], stops: Sequence[int]) -> tuple[list[list[int]], str]:
    """The greedy answers of the written folder, loaded as anyone would, and the format of its weights."""
    from transformers import AutoModelForCausalLM

    from rlvr_cli.models.libraries import remote_code_allowed

    model = AutoModelForCausalLM.from_pretrained(
        str(folder), dtype="auto", use_safetensors=True, trust_remote_code=remote_code_allowed()
    )
    dtype = str(model.dtype).removeprefix("torch.")
    answers = _greedy(model.to(_device()).eval(), prompts, stops)
    return answers, dtype


def _compare(
    expected: list[list[int]], found: list[list[int]], folder: Path, prompts: Sequence[list[int]], dtype: str
) -> int:
    """How many answers are the same. Raises RunError where one differs by more than rounding does."""
    different = [index for index in range(len(expected)) if expected[index] != found[index]]
    if different:
        gaps = _gaps(folder, [(prompts[index], expected[index], found[index]) for index in different])
        worst = max(gaps)
        if not worst <= TIE.get(dtype, TIE["bfloat16"]):
            raise RunError(
                f"the exported model answers {len(different)} of {len(expected)} prompts differently from the "
                f"checkpoint, by up to {worst:.3g} nats at the first token that differs: nothing was written. Please "
                "report it."
            )
    return len(expected) - len(different)


def _gaps(folder: Path, cases: list[tuple[list[int], list[int], list[int]]]) -> list[float]:
    """At the first token where two answers part, by how much the written model prefers its own."""
    import torch
    from transformers import AutoModelForCausalLM

    from rlvr_cli.models.libraries import remote_code_allowed

    model = AutoModelForCausalLM.from_pretrained(str(folder), dtype="auto", trust_remote_code=remote_code_allowed())
    model = model.to(_device()).eval()
    gaps = []
    for prompt, expected, found in cases:
        pairs = list(zip(expected, found, strict=False))
        at = next((place for place, (one, other) in enumerate(pairs) if one != other), None)
        if at is None:
            gaps.append(float("inf"))
            continue
        with torch.no_grad():
            ids = torch.tensor([[*prompt, *expected[:at]]], device=model.device)
            scores = model(ids).logits[0, -1].float().log_softmax(-1)
        gaps.append(float((scores[found[at]] - scores[expected[at]]).abs()))
    return gaps
