"""The model card of an exported model: metadata that the hub takes, numbers that were measured, a snippet that runs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard

from rlvr_cli.config.load import dump_yaml, load_config
from rlvr_cli.evaluation.evaluate import write_results
from rlvr_cli.models.card import load_licence, model_card
from rlvr_cli.models.source import PRESETS
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.store.evaluation import FORMAT, Evaluation, ProblemValues


def estimate(value: float, within: float = 0.05) -> dict[str, Any]:
    return {"value": value, "low": value - within, "high": value + within}


def evaluate(run: RunDir, step: int, value: float) -> None:
    folder = run.eval_dir / f"{step}"
    folder.mkdir()
    result = {
        "format": FORMAT,
        "model": "lab",
        "steps": [step],
        "label": f"first step {step}",
        "benchmark": "kk-gen",
        "split": "test",
        "problems": 1,
        "samples": 8,
        "sampling": {"temperature": 1.0},
        "task": {"name": "kk"},
        "fingerprint": "",
        "metrics": {"avg@8": estimate(value), "pass@8": estimate(value + 0.1)},
    }
    write_results(Evaluation(folder, result, (ProblemValues("a", "all", {"avg@8": value}),)))


@pytest.fixture
def of_run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "runs" / "first")
    run.path.mkdir(parents=True)
    run.make_folders()
    (run.checkpoints_dir / "step-20").mkdir()
    run.update_manifest(name="first", steps_total=40, versions={"rlvr": "0.1.0", "trl": "1.16.0"})
    (run.metrics_path).write_text(json.dumps({"step": 20, "reward": 0.5, "accuracy": 0.25}) + "\n")
    return run


def card_of(run: RunDir, *overrides: str, method: str = "dgpo+lopti") -> str:
    small = ("task.train_size=32", f"run.dir={run.path.parent}", *overrides)
    config = load_config([], method=method, overrides=list(small))
    run.config_path.write_text(dump_yaml(config))
    return model_card(run, config, run.checkpoints_dir / "step-20", "float32")


def test_the_configuration_in_the_card_loads_and_means_the_same(of_run: RunDir, tmp_path: Path) -> None:
    text = card_of(of_run, "optimizer.lr=3e-5", "run.seed=4")
    found = re.search(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert found is not None
    (tmp_path / "config.yaml").write_text(found[1])
    again, before = load_config([tmp_path / "config.yaml"]), load_config([of_run.config_path])
    for section in ("model", "task", "method", "rollout", "update", "optimizer", "train"):
        assert getattr(again, section) == getattr(before, section)
    assert again.run.seed == 4


def test_results_are_those_of_this_checkpoint(of_run: RunDir) -> None:
    evaluate(of_run, 20, 0.6)
    evaluate(of_run, 40, 0.9)
    text = card_of(of_run)
    assert "| avg@8 | 0.600 [0.550, 0.650] |" in text
    assert "0.900" not in text, "that is another checkpoint"
    results = {one.metric_name: one for one in ModelCard(text).data.eval_results or ()}
    assert results["avg@8"].metric_value == 0.6 and results["avg@8"].dataset_split == "test"
    assert results["pass@8"].metric_type == "pass" and results["pass@8"].dataset_name == "kk-gen"


def test_the_snippet_gives_the_answer_of_the_model(
    of_run: RunDir, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from rlvr_cli.tasks.base import prompt_ids

    config = load_config([])
    tokenizer = AutoTokenizer.from_pretrained(PRESETS["lab"])
    task = config.task.for_model("compact")
    (problem,) = task.problems("test", 1, 0)
    of_run.config_path.write_text(dump_yaml(config))
    prompt = task.prompt(problem, tokenizer)
    (of_run.rollouts_dir / "rollout-000000.jsonl").write_text(json.dumps({"prompt": prompt}) + "\n")
    text = model_card(of_run, config, of_run.checkpoints_dir / "step-20", "float32")
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert code is not None
    monkeypatch.chdir(PRESETS["lab"])
    exec(compile(code[1], "card", "exec"), {})  # noqa: S102
    model = AutoModelForCausalLM.from_pretrained(PRESETS["lab"])
    import torch

    ids = prompt_ids(task, problem, tokenizer)
    out = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=config.rollout.max_new_tokens)
    assert capsys.readouterr().out == tokenizer.decode(out[0, len(ids) :], skip_special_tokens=True) + "\n"


def test_the_licence_is_what_the_base_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert load_licence("lab") == load_licence("lab-math") == {"license": "apache-2.0"}
    assert load_licence(str(tmp_path)) == {}, "no card"
    (tmp_path / "README.md").write_text("no metadata")
    assert load_licence(str(tmp_path)) == {}
    link = "https://example.org/licence"
    front = yaml.safe_dump({"license": "other", "license_name": "qwen-research", "license_link": link})
    (tmp_path / "README.md").write_text(f"---\n{front}---\n# A model\n")
    assert load_licence(str(tmp_path)) == {"license": "other", "license_name": "qwen-research", "license_link": link}
    (tmp_path / "README.md").write_text("---\nlicense: [unclosed\n---\n")
    assert load_licence(str(tmp_path)) == {}
    assert load_licence("nobody/has-this-model") == {}


def test_a_prompt_of_the_users_own_data_is_not_quoted(of_run: RunDir, tmp_path: Path) -> None:
    rows = tmp_path / "mine.train.jsonl"
    rows.write_text(json.dumps({"question": "secret", "answer": "1"}) + "\n")
    (of_run.rollouts_dir / "rollout-000000.jsonl").write_text(json.dumps({"prompt": "secret 1 + 1?"}) + "\n")
    assert "secret" not in card_of(of_run, "task.name=math", f"task.data={rows}", method="grpo")
    assert "prompt = 'secret 1 + 1?'" in card_of(of_run, "task.name=gsm8k", "task.data=gsm8k", method="grpo")
