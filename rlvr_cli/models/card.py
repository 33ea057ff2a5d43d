"""The model card of an exported model: README.md with the metadata of the Hugging Face hub."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yaml import YAMLError

from rlvr_cli.config.load import as_plain
from rlvr_cli.config.schema import Config
from rlvr_cli.core.yaml import dump
from rlvr_cli.methods.names import parse_method_name, presets_of
from rlvr_cli.methods.preset import Paper, Preset
from rlvr_cli.models.source import LAB_BASES, PRESETS, hub_presets
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.runs.records import read_record
from rlvr_cli.store.evaluation import final_evaluations
from rlvr_cli.store.metrics import metric
from rlvr_cli.tasks.hub import looks_like_hub_id
from rlvr_cli.tasks.sets import data_sets, problems_name

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

IN_TRAINING = ("reward", "accuracy", "loss", "token_accuracy")
# The sections that affect the weights, not those for storage and speed.
_CONFIG_SECTIONS = ("model", "task", "method", "rollout", "update", "optimizer", "train")
_LAB_LICENCE = "apache-2.0"  # of this project, which trained the lab's models

_TEMPLATE = """---
{{ card_data }}
---

# {{ name }}

{% if '/' in base %}[{{ base }}](https://huggingface.co/{{ base }}){% else %}`{{ base }}`{% endif %} trained on \
{{ problems }} by {{ config.method.trained_by }}, with {{ method }}.

| | |
|---|---|
| base model | {{ base }} |
| method | {{ config.method.name }} |
| task | {{ problems }} |
| data | {{ data }}, split train{% if config.task.is_generated %}, made with seed {{ config.run.seed }}{% endif %} |
| trained | {{ trained }} |
| seed | {{ config.run.seed }} |
| optimizer steps | {{ step }} of {{ steps_total }} |
| number format | {{ dtype }} |
| versions | {{ versions }} |
| licence | {{ licence_name or "not stated by the card of the base model" }} |

## Use

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

name = "."  # this folder, or the name of its repository on the hub
tokenizer = AutoTokenizer.from_pretrained(name)
model = AutoModelForCausalLM.from_pretrained(name, dtype="auto")

prompt = {{ prompt }}
inputs = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
output = model.generate(**inputs, max_new_tokens={{ config.rollout.max_new_tokens }}, do_sample=False)
print(tokenizer.decode(output[0, inputs["input_ids"].shape[1]:], skip_special_tokens=True))
```

The prompt must be written as in training, chat template included; `rlvr tasks show` prints such prompts.

## Results

{% for evaluation in evaluations -%}
On {{ evaluation.benchmark }}, split {{ evaluation.split }}, {{ evaluation.problems }} problems, with 95% intervals:

| metric | value |
|---|---|
{% for name, value in evaluation.metrics.items() -%}
| {{ name }} | {{ value }} |
{% endfor %}
{% else -%}
No evaluation of this checkpoint: `rlvr eval {{ name }}` makes one, and another export shows it.

{% endfor -%}
{% if in_training -%}
In training, at this step:

| | |
|---|---|
{% for name, value in in_training.items() -%}
| {{ name }} | {{ value }} |
{% endfor %}
{% endif -%}
## Training

The configuration that decided it, for `rlvr train -c config.yaml`:

<details><summary>config.yaml</summary>

```yaml
{{ config_yaml }}
```

</details>
{% if user_files %}
It needs these files of its author, which are not part of it: {{ user_files | join(", ") }}.
{% endif %}
## Citation

{% for paper in papers -%}
- {{ paper.authors }}: {{ paper.title }}.
{%- if paper.arxiv %} [arXiv:{{ paper.arxiv }}](https://arxiv.org/abs/{{ paper.arxiv }}){% endif %}
{% endfor -%}
- Trained with rlvr, which compares methods of reinforcement learning with verifiable rewards.
{% if entries %}
```bibtex
{% for entry in entries -%}
{{ entry }}
{% endfor -%}
```
{% endif %}"""


def _training_prompt(run: RunDir, config: Config) -> str:
    """Return a prompt of the training, or "..." where the data is private: a push would publish it."""
    public = config.task.data in data_sets() and not config.task.runs_user_code
    files = sorted(run.rollouts_dir.glob("*.jsonl"))[:1] if public else []
    return next((row["prompt"] for path in files for row in read_record(run, path)), "...")


def model_card(run: RunDir, config: Config, checkpoint: Path, dtype: str) -> str:
    """Return the text of the card, without paths of this machine; ``dtype``: number format of the exported weights."""
    from huggingface_hub import ModelCard, ModelCardData

    manifest, step = run.read_manifest(), int(checkpoint.name.removeprefix("step-"))
    base, dataset = public_name(config.model.name), _hub_dataset(config)
    licence: dict[str, Any] = load_licence(config.model.name)
    presets = _presets(config.method.name)
    papers = list(dict.fromkeys(preset.paper for preset in presets))
    evaluations = [stored.result for stored in final_evaluations(run) if stored.steps == (step,)]
    config_values = {name: as_plain(config)[name] for name in _CONFIG_SECTIONS} | {"run": {"seed": config.run.seed}}
    data = ModelCardData(
        library_name="transformers",
        pipeline_tag="text-generation",
        base_model=base if "/" in base else None,
        datasets=[dataset] if dataset else None,
        tags=["rlvr", "reinforcement-learning", config.method.name, config.task.name],
        model_name=run.name,
        eval_results=[score for evaluation in evaluations for score in _eval_results(evaluation)] or None,
        **licence,
    )
    adapter = config.model.adapter
    card = ModelCard.from_template(
        data,
        template_str=_TEMPLATE,
        name=run.name,
        base=base,
        problems=problems_name(config.task.name, config.task.data),
        method=" with ".join(preset.title for preset in presets) or config.method.name,
        config=config,
        steps_total=manifest.get("steps_total"),
        versions=", ".join(f"{name} {version}" for name, version in (manifest.get("versions") or {}).items()),
        data=dataset or Path(config.task.data).name,
        step=step,
        dtype=dtype,
        trained="all weights"
        if adapter.kind == "none"
        else f"{adapter.kind}, rank {adapter.rank}, alpha {adapter.alpha:g}, merged into the base",
        licence_name=licence.get("license_name", licence.get("license")),
        prompt=repr(_training_prompt(run, config)),
        evaluations=[
            {
                **evaluation,
                "benchmark": Path(evaluation["benchmark"]).name,
                "metrics": {name: _format_interval(value, name) for name, value in evaluation["metrics"].items()},
            }
            for evaluation in evaluations
        ],
        in_training=_training_metrics(run, step),
        config_yaml=dump(_strip_folders(config_values)).rstrip(),
        user_files=sorted({Path(str(entry["file"])).name for entry in manifest.get("user_files") or ()}),
        papers=papers,
        entries=[bibtex(paper) for paper in papers if paper.arxiv],
    )
    return f"{card}\n"


def public_name(name: str) -> str:
    """Return a model's name without paths of this machine."""
    if name in hub_presets():
        return hub_presets()[name]
    return Path(name).name if name.startswith((".", "/", "~")) or Path(name).is_dir() else name


def load_licence(base: str) -> dict[str, str]:
    """Return `license`, `license_name` and `license_link` of a model's card; {} without a card."""
    from huggingface_hub import ModelCard

    folder = PRESETS.get(base, Path(base).expanduser())
    if folder.is_relative_to(LAB_BASES):
        return {"license": _LAB_LICENCE}
    source = folder / "README.md" if folder.is_dir() else hub_presets().get(base, base)
    try:
        data = ModelCard.load(source, ignore_metadata_errors=True).data.to_dict()
    except (OSError, ValueError, YAMLError):
        return {}
    return {key: str(data[key]) for key in ("license", "license_name", "license_link") if data.get(key)}


def _presets(method: str) -> tuple[Preset, ...]:
    """Return the presets of base method and modifiers; () for a method unknown to this installation."""
    try:
        return presets_of(parse_method_name(method))
    except (ValueError, KeyError):
        return ()


def _hub_dataset(config: Config) -> str | None:
    data = config.task.data
    if data in data_sets():
        return data_sets()[data].hub
    return data if looks_like_hub_id(data) and not Path(data).exists() else None


def _eval_results(evaluation: Mapping[str, Any]) -> Iterator[EvalResult]:
    from huggingface_hub import EvalResult

    benchmark = Path(evaluation["benchmark"]).name
    data_set = data_sets().get(evaluation["benchmark"])
    for name, value in evaluation["metrics"].items():
        yield EvalResult(
            task_type="text-generation",
            dataset_type=(data_set.hub if data_set is not None else None) or benchmark,
            dataset_name=benchmark,
            dataset_split=evaluation["split"],
            metric_type=name.partition("@")[0],
            metric_name=name,
            metric_value=round(value["value"], 4),
            metric_args={"low": value["low"], "high": value["high"]} if value["low"] is not None else None,
        )


def _format_interval(value: Mapping[str, Any], name: str) -> str:
    digits = metric(name).decimals
    interval = "" if value["low"] is None else f" [{value['low']:.{digits}f}, {value['high']:.{digits}f}]"
    return f"{value['value']:.{digits}f}{interval}"


def _training_metrics(run: RunDir, step: int) -> dict[str, str]:
    """Return the metrics of ``step`` in metrics.jsonl, including its held-out evaluation."""
    row = next((row for row in read_record(run, run.metrics_path) if row.get("step") == step), {})
    values = {name: row.get(name) for name in IN_TRAINING}
    values |= {f"held-out {name}": value for name, value in (row.get("eval") or {}).items()}
    return {name: f"{value:.4g}" for name, value in values.items() if isinstance(value, int | float)}


def _strip_folders(value: Any) -> Any:
    """Replace absolute paths in a configuration's values by their file names."""
    if isinstance(value, dict):
        return {key: _strip_folders(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_strip_folders(entry) for entry in value]
    return Path(value).name if isinstance(value, str) and value.startswith(("/", "~")) else value


def bibtex(paper: Paper) -> str:
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
    lines = "".join(f"  {name} = {{{value}}},\n" for name, value in fields.items())
    return f"@misc{{{key}-{number},\n{lines}}}"


def card_metadata(method: str) -> tuple[str, list[str], dict[str, str]]:
    """Return a method's name, tags, and paper (title, id, citation) for TRL's model card."""
    presets: Sequence[Preset] = _presets(method)
    if not presets:
        return method, ["trl", "rlvr"], {}
    # TRL's card has one paper: cite that of the last component of the name.
    paper = presets[-1].paper
    citation = {"title": paper.title, "id": paper.arxiv, "citation": bibtex(paper)} if paper.arxiv else {}
    return " with ".join(preset.title for preset in presets), ["trl", "rlvr", method], citation
