"""The check of the sampler against the trainer at a run's first rollout: what matches, what does not, what is said."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from rlvr_cli.config.load import load_config
from rlvr_cli.models.sampling.engine import Completions, SamplingParams
from rlvr_cli.models.sampling.local import sample
from rlvr_cli.training import run as running
from rlvr_cli.training.prepare import PreparedRun
from rlvr_cli.training.sampler_check import SamplerCheck, aggregate_check, log_prob_differences, stale_weights_warning

SETTINGS = ("train.rollouts=2", "rollout.prompts=2", "rollout.max_new_tokens=32", "task.train_size=32", "run.threads=1")
Engine = Callable[..., Completions]


def checked(folder: Path, *overrides: str) -> tuple[dict[str, Any], str]:
    """The manifest's entry and the log of a short run on the lab."""
    config = load_config(method="grpo", overrides=[*SETTINGS, f"run.dir={folder}", "run.name=run", *overrides])
    run = running.start_training(config, overwrite=False, console=Console(quiet=True)).run
    return run.read_manifest()["sampler_check"], run.log_path.read_text()


def sampled_by(monkeypatch: pytest.MonkeyPatch, engine: Engine) -> None:
    prepare = running.prepare_run

    def with_engine(*arguments: Any) -> PreparedRun:
        return dataclasses.replace(prepare(*arguments), engine=engine)

    monkeypatch.setattr(running, "prepare_run", with_engine)


@pytest.mark.parametrize(("engine", "temperature"), [("local", 0.7), ("transformers", 1.0)])
def test_the_real_samplers_match(tmp_path: Path, engine: str, temperature: float) -> None:
    found, log = checked(tmp_path, f"rollout.engine={engine}", f"rollout.temperature={temperature}")
    assert found["matches"] and found["precision"] == "float32" and found["limit"] == {"max_difference": 1e-3}
    assert 0 <= found["mean_difference"] <= found["max_difference"] < 1e-4 and abs(found["kl"]) < 1e-6
    assert found["tokens"] > 32
    assert log.count("sampler check: ") == 1 and "WARNING" not in log


def another_temperature(model: Any, prompts: Any, params: SamplingParams, **named: Any) -> Completions:
    return sample(model, prompts, replace(params, temperature=0.9), **named)


def not_a_number(model: Any, *rest: Any, **named: Any) -> Completions:
    made = sample(model, *rest, **named)
    return dataclasses.replace(made, log_probs=[[math.nan, *row[1:]] for row in made.log_probs])


@pytest.mark.parametrize("engine", [another_temperature, not_a_number])
def test_a_wrong_sampler_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: Engine) -> None:
    sampled_by(monkeypatch, engine)
    found, log = checked(tmp_path)
    assert not found["matches"]
    assert log.count("WARNING: the sampler does not compute the trained policy") == 1
    assert "rollout.correction=token" in log and "rollout.engine=transformers" in log
    json.dumps(found, allow_nan=False)


def test_the_numbers_are_those_of_the_definition() -> None:
    sampler = torch.tensor([[-1.0, -2.0, 7.0], [-0.5, 7.0, 7.0]])
    trainer = torch.tensor([[-1.5, -1.0, 0.0], [-0.5, 0.0, 0.0]])
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    whole = aggregate_check(log_prob_differences(sampler, trainer, mask), "float32")
    kl = sum(math.exp(d) - d - 1 for d in (-0.5, 1.0, 0.0)) / 3
    assert whole == SamplerCheck(3, pytest.approx(0.5), 1.0, pytest.approx(3.5 / 3), pytest.approx(kl), "float32")  # type: ignore[arg-type]
    parts = torch.cat(
        [log_prob_differences(sampler[row : row + 1], trainer[row : row + 1], mask[row : row + 1]) for row in (0, 1)]
    )
    assert aggregate_check(parts, "float32") == whole
    nothing = aggregate_check(log_prob_differences(sampler, trainer, torch.zeros_like(mask)), "float32")
    assert nothing.tokens == 0 and nothing.matches


@pytest.mark.parametrize(
    ("precision", "mean", "largest", "surprise", "matches"),
    [
        ("float32", 1e-6, 9e-4, 0.5, True),
        ("float32", 1e-6, 2e-3, 0.5, False),
        ("bfloat16", 0.02, 0.9, 0.3, True),
        ("bfloat16", 0.004, 0.9, 1e-4, True),
        ("bfloat16", 0.04, 0.9, 0.3, False),
        ("bfloat16", 0.02, math.inf, 0.3, False),
        ("float32", math.nan, math.nan, 0.5, False),
    ],
)
def test_the_limits(precision: Any, mean: float, largest: float, surprise: float, matches: bool) -> None:
    assert SamplerCheck(10, mean, largest, surprise, 0.0, precision).matches == matches


@pytest.mark.parametrize(
    ("before", "after", "precision", "said"),
    [
        (1e-7, 9e-7, "float32", False),
        (1e-7, 1.1e-6, "float32", True),
        # Less than rounding before is no measure.
        (1e-12, 9e-7, "float32", False),
        (1e-3, 5e-2, "bfloat16", False),
    ],
)
def test_weights_that_were_not_taken_show_beside_the_check_before(
    before: float, after: float, precision: Any, said: bool
) -> None:
    first, second = (SamplerCheck(10, mean, mean, 0.2, 0.0, precision) for mean in (before, after))
    assert (stale_weights_warning(first, second) is not None) is said
