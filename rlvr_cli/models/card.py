"""The model card of an exported model: README.md with the metadata of the Hugging Face hub."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yaml import YAMLError

from rlvr_cli.config.load import as_plain
from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.hashes import digest
from rlvr_cli.core.yaml import dump
from rlvr_cli.methods.names import parse_method_name, presets_of
from rlvr_cli.methods.preset import Paper, Preset
from rlvr_cli.models.source import LAB_BASES, PRESETS, base_of, holds_adapter, hub_presets, is_offline
from rlvr_cli.results.evaluations import SETTINGS, read_result
from rlvr_cli.results.metrics import metric
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.runs.records import read_record
from rlvr_cli.tasks.hub import looks_like_hub_id
from rlvr_cli.tasks.sets import data_sets, problems_name

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

IN_TRAINING = ("reward", "accuracy", "loss", "token_accuracy")
# What decides the training; the rest says where it was kept and how fast it was.
_DECIDING = ("model", "task", "method", "rollout", "update", "optimizer", "train")
_OWN_LICENCE = "apache-2.0"  # of this project, and of the lab's models, which it made

_USE = """```python
from transformers import AutoModelForCausalLM, AutoTokenizer

name = "."  # this folder, or the name of its repository on the hub
tokenizer = AutoTokenizer.from_pretrained(name)
model = AutoModelForCausalLM.from_pretrained(name, dtype="auto")

prompt = {prompt}
inputs = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
output = model.generate(**inputs, max_new_tokens={tokens}, do_sample=False)
print(tokenizer.decode(output[0, inputs["input_ids"].shape[1]:], skip_special_tokens=True))
```"""


def model_card(run: RunDir, config: Config, checkpoint: Path, dtype: str, prompt: str) -> str:
    """The text of the card. Names no folder of this machine.

    Args:
        dtype: number format of the weights. prompt: a prompt of the run's task, as the model reads it.
    """
    from huggingface_hub import ModelCardData

    manifest, step = run.read_manifest(), int(checkpoint.name.removeprefix("step-"))
    base = base_of(checkpoint).name if holds_adapter(checkpoint) else config.model.name
    shown = public_name(base)
    licence: dict[str, Any] | None = licence_of(base)
    dataset = _hub_dataset(config)
    presets = _presets(config.method.name)
    evaluations = list(_evaluations(run, step))
    data = ModelCardData(
        library_name="transformers",
        pipeline_tag="text-generation",
        base_model=shown if "/" in shown else None,
        datasets=[dataset] if dataset else None,
        tags=["rlvr", "reinforcement-learning", config.method.name, config.task.name],
        model_name=run.name,
        eval_results=[one for result in evaluations for one in _eval_results(result)] or None,
        **(licence or {}),
    )
    names = " with ".join(preset.title for preset in presets) or config.method.name
    trained_on = problems_name(config.task.name, config.task.data)
    lines = [
        *(f"---\n{data.to_yaml()}\n---", "", f"# {run.name}", ""),
        f"[{shown}](https://huggingface.co/{shown})" if "/" in shown else f"`{shown}`",
    ]
    lines[-1] += f" trained on {trained_on} by {config.method.trained_by}, with {names}."
    lines += ["", "| | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in _facts(run, config, manifest, step, shown, dtype).items()]
    lines += [f"| licence | {_licence_in_words(licence, shown)} |"]
    lines += ["", "## Use", "", _USE.format(prompt=_literal(prompt), tokens=config.rollout.max_new_tokens)]
    lines += ["", "The prompt is written as in training, chat template included. Another question goes in its place."]
    lines += ["", "## Results", "", *_results(run, config, base, step, evaluations)]
    lines += ["", "## Training", "", *_training(config, manifest)]
    lines += ["", "## Citation", "", *_citations(presets)]
    return "\n".join(lines) + "\n"


def public_name(name: str) -> str:
    """A model's name without the folders of this machine."""
    if name in hub_presets():
        return hub_presets()[name]
    return Path(name).name if name.startswith((".", "/", "~")) or Path(name).is_dir() else name


def licence_of(base: str) -> dict[str, str] | None:
    """The licence of a model as its own card has it (`license`, `license_name`, `license_link`); None: it is unknown.

    A model of the hub: its card in the cache, else on the hub where it can be reached.
    """
    from huggingface_hub import ModelCard, hf_hub_download, try_to_load_from_cache

    folder = PRESETS.get(base, Path(base).expanduser())
    if folder.is_relative_to(LAB_BASES):
        return {"license": _OWN_LICENCE}
    path = folder / "README.md"
    name = hub_presets().get(base, base)
    if not folder.is_dir():
        cached = None
        with suppress(ValueError):  # no name of the hub
            cached = try_to_load_from_cache(name, "README.md")
        if cached is None and not is_offline():
            with suppress(Exception):  # of many kinds; the export does not depend on it
                cached = hf_hub_download(name, "README.md", etag_timeout=5)
        if not isinstance(cached, str):
            return None
        path = Path(cached)
    try:
        found = ModelCard.load(path, ignore_metadata_errors=True).data.to_dict()
    except (OSError, ValueError, YAMLError):
        return None
    licence = {key: str(found[key]) for key in ("license", "license_name", "license_link") if found.get(key)}
    return licence if "license" in licence else None


def _licence_in_words(licence: Mapping[str, str] | None, base: str) -> str:
    if licence is None:
        return f"that of {base}, which its card does not state"
    name = licence.get("license_name", licence["license"])
    link = licence.get("license_link")
    return f"{f'[{name}]({link})' if link and link.startswith('http') else name}, as {base}"


def _presets(method: str) -> tuple[Preset, ...]:
    """The base method and the modifiers; none where the method is not a named one of this installation."""
    try:
        return presets_of(parse_method_name(method))
    except (ValueError, KeyError):
        return ()


def _facts(
    run: RunDir, config: Config, manifest: Mapping[str, Any], step: int, base: str, dtype: str
) -> dict[str, object]:
    adapter = config.model.adapter
    trained = "all weights"
    if adapter.kind != "none":
        trained = f"{adapter.kind}, rank {adapter.rank}, alpha {adapter.alpha:g}, merged into the base"
    versions = manifest.get("versions") or {}
    return {
        "base model": base,
        "method": config.method.name,
        "task": problems_name(config.task.name, config.task.data),
        "data": _data(run, config),
        "trained": trained,
        "seed": config.run.seed,
        "optimizer steps": f"{step} of {manifest.get('steps_total')}",
        "number format": dtype,
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }


def _hub_dataset(config: Config) -> str | None:
    """The data set of the hub that was trained on; None where there is none."""
    data = config.task.data
    known = data_sets().get(data)
    if known is not None:
        return known.hub
    return data if looks_like_hub_id(data) and not Path(data).exists() else None


def _data(run: RunDir, config: Config) -> str:
    """Which problems, of which split, with a hash that another export of the same data repeats."""
    task = config.task
    what = f"{Path(task.data).name if '/' in task.data and not _hub_dataset(config) else task.data}, split train"
    if task.is_generated:
        what += f", made with seed {config.run.seed}"
    known = data_sets().get(task.data)
    licence = f", licence: {known.licence}" if known is not None and known.hub is not None else ""
    kept = run.path / "problems-train.jsonl"
    content: Any = None
    if kept.exists():
        content = [json.loads(line) for line in kept.read_text(encoding="utf-8").splitlines()]
    elif not task.runs_own_code:
        with suppress(UserError):  # the data are not on this machine
            content = [vars(one) for one in task.problems("train", task.train_size, config.run.seed)]
    if content is None:
        return what + licence
    number = json.loads(json.dumps(content))
    return f"{what}, {len(number):,} problems, sha256 {digest(number)[:16]}{licence}"


def _evaluations(run: RunDir, step: int) -> Iterator[dict[str, Any]]:
    """The evaluations of this checkpoint alone, with their folders."""
    for path in sorted(run.eval_dir.glob(f"*-step-{step}-*/metrics.json")):
        yield {**read_result(path), "folder": path.parent}


def _eval_results(result: Mapping[str, Any]) -> Iterator[EvalResult]:
    from huggingface_hub import EvalResult

    benchmark = Path(result["benchmark"]).name
    known = data_sets().get(result["benchmark"])
    for name, value in result["metrics"].items():
        if not isinstance(value.get("value"), int | float):
            continue
        yield EvalResult(
            task_type="text-generation",
            dataset_type=(known.hub if known is not None else None) or benchmark,
            dataset_name=benchmark,
            dataset_split=result["split"],
            metric_type=name.partition("@")[0],
            metric_name=name,
            metric_value=round(value["value"], 4),
            metric_args={"low": value["low"], "high": value["high"]} if value.get("low") is not None else None,
        )


def _results(
    run: RunDir, config: Config, base: str, step: int, evaluations: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """Each evaluation, next to the same evaluation of the base where there is one; else what training measured."""
    for result in evaluations:
        before, differences = _before(run, base, result)
        yield f"On {Path(result['benchmark']).name}, split {result['split']}, {result['problems']} problems:"
        yield from ("", "| metric | before | after | difference |", "|---|---|---|---|")
        for name, value in result["metrics"].items():
            cells = [_interval(before.get(name), name), _interval(value, name), _interval(differences.get(name), name)]
            yield f"| {name} | {' | '.join(cells)} |"
        yield ""
    if evaluations:
        yield "Shares, with 95% intervals. Before is the base model, on the same problems."
        if not any(_before(run, base, result)[0] for result in evaluations):
            yield f"The base was not evaluated: `rlvr eval {run.name} --against {public_name(base)}` does that."
    else:
        yield f"No evaluation of this checkpoint: `rlvr eval {run.name}` makes one, and another export shows it."
    last = [row for row in read_record(run, run.metrics_path) if row.get("step") == step]
    shown = {name: row[name] for row in last for name in IN_TRAINING if row.get(name) is not None}
    shown |= {f"held-out {name}": value for row in last for name, value in (row.get("eval") or {}).items()}
    if shown:
        yield from ("", "In training, at this step:", "", "| | |", "|---|---|")
        yield from (f"| {name} | {value:.4g} |" for name, value in shown.items() if isinstance(value, int | float))


def _before(run: RunDir, base: str, result: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The base's values of an evaluation's metrics, and the paired differences, as far as there are any.

    They come from `rlvr eval RUN --against BASE`, or from `rlvr eval BASE` with the same settings in the same folder.
    """
    names = {base, public_name(base), *(["lab"] if base in PRESETS else [])}
    for path in sorted(Path(result["folder"]).glob("against-*.json")):
        with suppress(OSError, ValueError, KeyError, TypeError):
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["before"] in names:
                metrics = content["metrics"].items()
                return {name: one["before"] for name, one in metrics}, {
                    name: one["difference"] for name, one in metrics
                }
    for path in sorted((run.path.parent / "evals").glob("*/metrics.json")):
        with suppress(OSError, ValueError, RunError):
            other = read_result(path)
            same = all(other.get(key) == result.get(key) for key in (*SETTINGS, "problems", "samples"))
            if same and other.get("label") in names:
                return other["metrics"], {}
    return {}, {}


def _interval(value: Mapping[str, Any] | None, name: str) -> str:
    """`0.512 [0.480, 0.544]`; empty where there is no value."""
    if value is None or not isinstance(value.get("value"), int | float):
        return ""
    digits, low, high = metric(name).decimals, value.get("low"), value.get("high")
    between = f" [{low:.{digits}f}, {high:.{digits}f}]" if low is not None and high is not None else ""
    return f"{value['value']:.{digits}f}{between}"


def _training(config: Config, manifest: Mapping[str, Any]) -> Iterator[str]:
    """The command as it was typed, and the configuration that it came to."""
    content = as_plain(config)
    deciding = {name: content[name] for name in _DECIDING} | {"run": {"seed": config.run.seed}}
    deciding["rollout"].pop("vllm", None)  # addresses and folders of this machine
    command = _public_command(str(manifest.get("command", "rlvr train")))
    yield from ("As it was started:", "", "```sh", command, "```", "")
    yield "The whole configuration that decided it, for `rlvr train -c config.yaml`:"
    yield from ("", "<details><summary>config.yaml</summary>", "", "```yaml")
    yield dump(_public(deciding)).rstrip()
    yield from ("```", "", "</details>")
    own = sorted({Path(str(one["file"])).name for one in manifest.get("user_files") or ()})
    if own:
        yield from ("", f"It needs these files of its author, which are not part of it: {', '.join(own)}.")


def _public(value: Any) -> Any:
    """A configuration's values without the folders of this machine."""
    if isinstance(value, dict):
        return {key: _public(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_public(one) for one in value]
    return Path(value).name if isinstance(value, str) and value.startswith(("/", "~")) else value


def _public_command(command: str) -> str:
    try:
        words = shlex.split(command)
    except ValueError:
        return "rlvr train"
    return shlex.join(re.sub(r"(^|[=,\[ ])[~/][^,\] ]*/([^/,\] ]+)", r"\1\2", word) for word in words)


def _citations(presets: Sequence[Preset]) -> Iterator[str]:
    papers = list(dict.fromkeys(preset.paper for preset in presets))
    for paper in papers:
        link = f" [arXiv:{paper.arxiv}](https://arxiv.org/abs/{paper.arxiv})" if paper.arxiv else ""
        yield f"- {paper.authors}: {paper.title}.{link}"
    yield "- Trained with rlvr, which compares methods of reinforcement learning with verifiable rewards."
    cited = [paper for paper in papers if paper.arxiv]
    if cited:
        yield from ("", "```bibtex", "\n".join(map(bibtex, cited)), "```")


def bibtex(paper: Paper) -> str:
    """The entry of a paper on arXiv, whose number has the year."""
    number = paper.arxiv or ""
    first = paper.authors.split(",")[0].removesuffix(" et al.")
    authors = f"{first} and others" if "et al." in paper.authors else paper.authors
    key = re.sub(r"[^a-z0-9]", "", f"{first.split()[-1]}20{number[:2]}".lower())
    fields = {
        "title": f"{{{paper.title}}}",
        "author": authors,
        "year": f"20{number[:2]}",
        "eprint": number,
        "archivePrefix": "arXiv",
    }
    inside = "".join(f"  {name} = {{{value}}},\n" for name, value in fields.items())
    return f"@misc{{{key}-{number},\n{inside}}}"


def _literal(text: str) -> str:
    """A Python literal of a prompt, over several lines where that reads better."""
    readable = "\\" not in text and '"""' not in text and not text.endswith('"')
    if readable and all(letter.isprintable() or letter == "\n" for letter in text):
        return f'"""{text}"""'
    return json.dumps(text)


def card_parts(method: str) -> tuple[str, list[str], dict[str, str]]:
    """What TRL's own model card says of a method: its name, tags and paper (title, id, citation), as far as known."""
    presets = _presets(method)
    if not presets:
        return method, ["trl", "rlvr"], {}
    # TRL's card has room for one paper: the one that the name ends in.
    paper = presets[-1].paper
    about = {"title": paper.title, "id": paper.arxiv, "citation": bibtex(paper)} if paper.arxiv else {}
    return " with ".join(preset.title for preset in presets), ["trl", "rlvr", method], about
