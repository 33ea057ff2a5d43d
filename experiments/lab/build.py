"""Build a lab base from a recipe and a seed: problems, warm start, measurement, a Hugging Face model folder."""

from __future__ import annotations

import json
import math
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from experiments.lab.form import Lab, P, Phase, Recipe, stream
from experiments.lab.model import make_model, make_tokenizer
from rlvr_cli.config.load import preset_of_task, preset_path, preset_task
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import replace_folder
from rlvr_cli.core.hashes import text_digest
from rlvr_cli.core.streams import stream_seed
from rlvr_cli.evaluation.evaluate import evaluate_with
from rlvr_cli.evaluation.sampling import LocalSampler
from rlvr_cli.evaluation.settings import EvalSettings
from rlvr_cli.runs.seal import file_digest
from rlvr_cli.tasks import Task

Progress = Callable[[str, int, int, float], None]
"""Called with the phase's name, the step done, the phase's steps and the loss."""

_BUCKET = 16  # batches that are drawn together and cut by length, so that little of a batch is padding


@dataclass(frozen=True)
class Example:
    """Token ids of a prompt with its trace and the end token; the first `prompt` ids are not trained on."""

    ids: list[int]
    prompt: int


def draw_example(
    lab: Lab[P],
    pools: Mapping[int, list[P]],
    phase: Phase,
    tokenizer: PreTrainedTokenizerFast,
    max_tokens: int,
    rng: random.Random,
) -> Example:
    """A random problem of the phase with a random trace, of at most `max_tokens` ids in all."""
    sizes = lab.sizes(phase)
    (size,) = rng.choices(list(sizes), weights=list(sizes.values()))
    problem = rng.choice(pools[size])
    vocabulary = tokenizer.vocab
    prompt = [vocabulary[word] for word in lab.prompt(problem).split()]
    traces = ([vocabulary[word] for word in text.split()] for text in lab.traces(problem, phase, rng))
    trace = next(trace for trace in traces if len(prompt) + len(trace) < max_tokens)
    return Example([*prompt, *trace, tokenizer.eos_token_id], len(prompt))


def batches(draw: Callable[[], Example], size: int, count: int, rng: random.Random) -> Iterator[list[Example]]:
    """`count` batches of `size` examples of similar length, in random order."""
    waiting: list[list[Example]] = []
    for _ in range(count):
        if not waiting:
            drawn = sorted((draw() for _ in range(size * _BUCKET)), key=lambda example: len(example.ids))
            waiting = [drawn[start : start + size] for start in range(0, len(drawn), size)]
            rng.shuffle(waiting)
        yield waiting.pop()


def trace_loss(model: Qwen3ForCausalLM, batch: list[Example], pad: int) -> torch.Tensor:
    """Mean cross-entropy over the trace tokens of a right-padded batch (causal attention never sees the padding)."""
    length = max(len(example.ids) for example in batch)
    ids = torch.full((len(batch), length), pad)
    trained = torch.zeros(len(batch), length, dtype=torch.bool)
    for row, example in enumerate(batch):
        ids[row, : len(example.ids)] = torch.tensor(example.ids)
        trained[row, example.prompt : len(example.ids)] = True
    hidden = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
    logits = model.lm_head(hidden[trained[:, 1:]])
    return F.cross_entropy(logits, ids[:, 1:][trained[:, 1:]])


def learning_rate(phase: Phase, step: int) -> float:
    """Linear warm-up over `phase.warmup` steps, then a cosine from `phase.lr` to `phase.lr * phase.final_lr_ratio`."""
    if step < phase.warmup:
        return phase.lr * (step + 1) / phase.warmup
    done = (step - phase.warmup) / max(1, phase.steps - phase.warmup)
    return phase.lr * (phase.final_lr_ratio + (1 - phase.final_lr_ratio) * 0.5 * (1 + math.cos(math.pi * done)))


def train_phase(
    model: Qwen3ForCausalLM,
    draw: Callable[[], Example],
    phase: Phase,
    *,
    pad: int,
    rng: random.Random,
    progress: Progress | None = None,
) -> None:
    """Train `model` in place: AdamW (0.9, 0.98), weight decay 0.01, gradient norm clipped at 1."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=phase.lr, betas=(0.9, 0.98), weight_decay=0.01)
    model.train()
    for step, batch in enumerate(batches(draw, phase.batch, phase.steps, rng)):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(phase, step)
        loss = trace_loss(model, batch, pad)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if progress is not None:
            progress(phase.name, step + 1, phase.steps, loss.item())


def measure(model: Any, tokenizer: Any, task: Task, *, count: int, samples: int, max_new_tokens: int) -> dict[str, Any]:
    """Greedy and sampled accuracy (temperature 1) with its 95% interval, pass@k, format rate, tokens a response.

    ``count`` dev problems of ``task``, ``samples`` completions of each.
    """
    settings = EvalSettings(
        problems=count,
        samples=samples,
        pass_at=tuple(k for k in (1, 8, 32) if k <= samples),
        max_new_tokens=max_new_tokens,
        split="dev",
    )
    with tempfile.TemporaryDirectory() as folder:
        problems = task.problems("dev", count, settings.problems_seed)
        result = evaluate_with(LocalSampler(model, tokenizer), task, problems, settings, Path(folder)).result
    metrics, sampled = result["metrics"], f"avg@{samples}"
    paid = task.format_range
    return {
        "problems": result["problems"],
        "samples": samples,
        "greedy": round(metrics["greedy"]["value"], 4),
        "sampled": round(metrics[sampled]["value"], 4),
        "sampled_interval": [round(metrics[sampled][end], 4) for end in ("low", "high")],
        **{f"pass@{k}": round(metrics[f"pass@{k}"]["value"], 4) for k in settings.pass_at if k > 1},
        **(
            {}
            if paid is None
            else {"format": round((metrics["reward/format"]["value"] - paid[0]) / (paid[1] - paid[0]), 4)}
        ),
        "tokens": round(metrics["length"]["value"], 1),
        "sampled_by_subgroup": {
            name: round(group[sampled]["value"], 4) for name, group in result["by_subgroup"].items()
        },
    }


MANIFEST = "lab_manifest.json"
# The settings of training of the lab's preset, which a model that is named by its folder does not get.
SETTINGS = "train.yaml"


def model_config_hash(folder: Path) -> str:
    """SHA-256 of a model folder's `config.json`, without the version of transformers that wrote it."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config.pop("transformers_version", None)
    return text_digest(json.dumps(config, sort_keys=True))


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a built base."""
    manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    return manifest


@contextmanager
def _one_thread() -> Iterator[None]:
    """Sums depend on the number of threads; one thread makes a build repeatable on a machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def build(
    folder: Path,
    *,
    lab: Lab[Any],
    recipe: Recipe,
    seed: int,
    progress: Progress | None = None,
    dev_count: int = 420,
    samples: int = 32,
) -> dict[str, Any]:
    """Train a base, measure it on `dev_count` dev problems (0: not), write it to `folder`, which must be new or empty.

    The folder appears complete or not at all. Returns the manifest. Raises UserError when the folder is taken.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"--output {folder}: is not an empty folder. Choose another name or remove it first.")
    start = time.perf_counter()
    with _one_thread():
        pools = lab.pools(recipe, seed)
        tokenizer = make_tokenizer(lab.vocabulary())
        model = make_model(recipe.model, tokenizer, stream_seed(seed, "lab", "weights") % 2**32)
        for phase in recipe.phases:
            rng = stream(seed, f"phase/{phase.name}")
            draw = partial(draw_example, lab, pools, phase, tokenizer, recipe.max_tokens, rng)
            train_phase(model, draw, phase, pad=tokenizer.pad_token_id, rng=rng, progress=progress)
        trained = time.perf_counter()
        model.eval()
        task = lab.held_out(recipe)
        about = {"samples": samples, "max_new_tokens": recipe.max_tokens}
        dev = measure(model, tokenizer, task, count=dev_count, **about) if dev_count else None
    folder.parent.mkdir(parents=True, exist_ok=True)
    with replace_folder(folder) as aside:
        model.save_pretrained(aside)
        tokenizer.save_pretrained(aside)
        manifest = {
            "lab": lab.name,
            "seed": seed,
            "recipe": recipe.model_dump(mode="json"),
            "recipe_sha256": recipe.fingerprint(),
            "data_sha256": lab.data_hash(pools),
            "config_sha256": model_config_hash(aside),
            "tokenizer_sha256": file_digest(aside / "tokenizer.json"),
            "weights_sha256": file_digest(aside / "model.safetensors"),
            "parameters": model.num_parameters(),
            "dev": dev,
            "seconds": {"training": round(trained - start, 1), "measuring": round(time.perf_counter() - trained, 1)},
            "threads": 1,
            "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        }
        (aside / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        preset = preset_of_task("lab", lab.name)
        if preset_task(preset) == lab.name:
            shutil.copyfile(preset_path("models", preset), aside / SETTINGS)
        for path in aside.iterdir():
            path.chmod(0o644)  # safetensors makes files that only their owner can read
    return manifest


def compare_builds(manifest: dict[str, Any], shipped: dict[str, Any]) -> list[tuple[str, bool, str]]:
    """A rebuild against the shipped base: (what, whether it agrees, detail) for hashes and dev accuracy.

    Weights may differ in the last bits between machines; data and configuration may not. Accuracy agrees within
    the two 95% intervals added, plus 0.05 for what another order of sums does to training.
    """
    lines = [
        (name, manifest[key] == shipped[key], manifest[key][:12])
        for name, key in (("recipe", "recipe_sha256"), ("data", "data_sha256"), ("config", "config_sha256"))
    ]
    ours, theirs = manifest["dev"], shipped["dev"]
    allowed = sum(dev["sampled_interval"][1] - dev["sampled_interval"][0] for dev in (ours, theirs)) / 2 + 0.05
    detail = f"{ours['sampled']:.3f}, shipped {theirs['sampled']:.3f}, allowed difference {allowed:.3f}"
    return [*lines, ("dev accuracy", abs(ours["sampled"] - theirs["sampled"]) <= allowed, detail)]
