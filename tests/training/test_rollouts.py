"""Rollouts: noisy and entropy rewards, dynamic sampling, truncated completions, rewards that are no numbers."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from rlvr_cli.collapse.alerts import AlertMonitor
from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import RunError
from rlvr_cli.models.load import load_model
from rlvr_cli.models.sampling import local as sampler
from rlvr_cli.models.sampling.engine import Completions
from rlvr_cli.models.sampling.transformers import choose_engine
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.tasks import Problem, Task, Verdict
from rlvr_cli.tasks.gsm8k import GSM8K
from rlvr_cli.tasks.kk import KnightsAndKnaves
from rlvr_cli.training import run as running
from rlvr_cli.training.rollouts import RolloutBatch, RolloutSource

SETTINGS = ("train.rollouts=1", "rollout.prompts=8", "rollout.max_new_tokens=60", "task.train_size=64", "run.threads=1")


def trained(folder: Path, name: str, method: str = "grpo", *overrides: str) -> tuple[list[Any], list[Any]]:
    """Metrics and the first rollout's rows of a short run on the lab."""
    config = load_config(method=method, overrides=[*SETTINGS, f"run.dir={folder}", f"run.name={name}", *overrides])
    run = running.start_training(config, overwrite=False, console=Console(quiet=True)).run
    rows = (run.rollouts_dir / "rollout-000000.jsonl").read_text().splitlines()
    return [json.loads(line) for line in run.metrics_path.read_text().splitlines()], [json.loads(row) for row in rows]


def test_noise_mirrors_the_reward_and_leaves_the_accuracy_clean(tmp_path: Path) -> None:
    clean_metrics, clean = trained(tmp_path, "clean")
    some_metrics, some = trained(tmp_path, "some", "grpo+noise")
    assert [row["completion"] for row in some] == [row["completion"] for row in clean]
    assert [row["clean_reward"] for row in some] == [row["reward"] for row in clean]
    assert {abs(row["reward"] / row["clean_reward"]) for row in some} == {1.0}  # Logic-RL's range is -3 to 3
    assert some_metrics[0]["accuracy"] == clean_metrics[0]["accuracy"]
    assert some_metrics[0]["clean_reward"] == clean_metrics[0]["reward"] and "clean_reward" not in clean_metrics[0]
    share = statistics.fmean(row["reward"] != row["clean_reward"] for row in some)
    assert 0.1 < share < 0.4, "a quarter of 64 rows, give or take"


def test_entropy_takes_the_place_of_the_verifier(tmp_path: Path) -> None:
    metrics, rows = trained(tmp_path, "entropy", "grpo+entropy-min")
    assert all(row["reward"] < 0 for row in rows)
    tokens = sum(row["tokens"] for row in rows)
    mean = -sum(row["reward"] * row["tokens"] for row in rows) / tokens
    assert mean == pytest.approx(metrics[0]["entropy"], rel=1e-5)
    assert metrics[0]["clean_reward"] == pytest.approx(statistics.fmean(row["clean_reward"] for row in rows))


def test_dynamic_sampling_leaves_no_group_of_equal_rewards(tmp_path: Path) -> None:
    _, plain = trained(tmp_path, "plain", "dapo", "rollout.group_size=4")
    _, sampled = trained(tmp_path, "dynamic", "dapo", "rollout.group_size=4", "rollout.dynamic_sampling=20")
    groups = [(plain[i : i + 4], sampled[i : i + 4]) for i in range(0, 32, 4)]
    equal = [len({row["reward"] for row in before}) == 1 for before, _ in groups]
    assert 0 < sum(equal) < len(groups), "otherwise this shows nothing"
    for (before, after), replaced in zip(groups, equal, strict=True):
        assert len({row["reward"] for row in after}) > 1
        assert len({row["problem"] for row in after}) == 1
        assert (before != after) == replaced


def test_dynamic_sampling_compares_verdicts_where_the_advantage_does(tmp_path: Path) -> None:
    """Wrong answers of different rewards teach maxrl nothing."""
    _, rows = trained(tmp_path, "maxrl", "maxrl", "rollout.group_size=4", "rollout.dynamic_sampling=20")
    assert all(len({row["correct"] for row in rows[first : first + 4]}) == 2 for first in range(0, 32, 4))
    assert all(row["advantage"] for row in rows)


def test_the_entropy_is_that_of_the_policy_that_sampled(tmp_path: Path) -> None:
    """On-policy the update's own is the same; an engine without entropies has an estimate from the same tokens."""
    config = load_config(overrides=[*SETTINGS, "rollout.temperature=0.8"])
    model, tokenizer = load_model("lab", dtype="float32", device="cpu")
    task = config.task.for_model("compact")
    problems = task.problems("train", 64, 0)

    def without(*arguments: Any, **named: Any) -> Completions:
        return dataclasses.replace(sampler.sample(*arguments, **named), entropies=None)

    def rolled(name: str, engine: Any) -> tuple[RolloutSource, RolloutBatch]:
        (tmp_path / name).mkdir()
        source = RolloutSource(
            config, task, problems, tokenizer, engine, tmp_path / name, gather=list, main=True, on_tokens=lambda _: None
        )
        source.model = model
        batch = source.collect(0, [index for index in range(8) for _ in range(64)], 0)
        source.store(batch.rewards, [0.0] * 512)
        return source, batch

    known, told = rolled("known", sampler.sample)
    estimated, silent = rolled("estimated", without)
    entropies = told.entropies
    assert entropies is not None and silent.entropies is None
    assert list(map(len, entropies)) == list(map(len, told.log_probs))
    assert known.summary["entropy"] == pytest.approx(statistics.fmean(itertools.chain(*entropies)))
    # 512 completions' sums of -log p differ from those of the entropies by noise of mean 0.
    differences = [sum(of_row) + sum(log_probs) for of_row, log_probs in zip(entropies, told.log_probs, strict=True)]
    assert abs(statistics.fmean(differences)) < 4 * statistics.stdev(differences) / math.sqrt(len(differences))
    tokens = sum(map(len, entropies))
    assert estimated.summary["entropy"] == pytest.approx(known.summary["entropy"] - sum(differences) / tokens)


def test_truncated_completions_are_not_learned_from_when_dropped(tmp_path: Path) -> None:
    short = "rollout.max_new_tokens=24"
    kept, rows = trained(tmp_path, "kept", "dapo", short)
    dropped, same = trained(tmp_path, "dropped", "dapo", short, "rollout.drop_truncated=true")
    assert [row["completion"] for row in rows] == [row["completion"] for row in same]
    whole = sum(row["tokens"] for row in rows if not row["truncated"])
    assert 0 < whole < kept[0]["update_tokens"] == sum(row["tokens"] for row in rows)
    assert dropped[0]["update_tokens"] == whole
    # They still count in their groups: what is best of a group is not learned as if it were average.
    assert [row["advantage"] for row in rows if not row["truncated"]] == [
        row["advantage"] for row in same if not row["truncated"]
    ]


def test_a_rollout_of_truncated_rows_alone_teaches_nothing_and_breaks_nothing(tmp_path: Path) -> None:
    """Every kind of statistic over no token: means, spreads, quantiles, the initial entropy, values."""
    cut = ("rollout.max_new_tokens=3", "rollout.drop_truncated=true")
    for name in ("gtpo", "ppo", "dapo+high-entropy"):
        metrics, rows = trained(tmp_path, name, name, *cut)
        assert all(row["truncated"] for row in rows)
        assert [row["grad_norm"] for row in metrics] == [0.0] and metrics[0]["update_tokens"] == 0
        assert not any("value/correct" in row or "value/incorrect" in row for row in metrics)


class Rewards:
    """The lab's task, except that every completion has these."""

    def __init__(self, task: Task, **verdict: Any) -> None:
        self.task, self.verdict = task, verdict

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)

    def judge_many(
        self, problems: Sequence[Problem], responses: Sequence[str], truncated: Sequence[bool], token_ids: Any = None
    ) -> list[Verdict]:
        verdicts = [self.task.judge(*pair) for pair in zip(problems, responses, strict=True)]
        return [dataclasses.replace(verdict, **self.verdict) for verdict in verdicts]


def source_of(folder: Path, task: Any, *overrides: str) -> RolloutSource:
    config = load_config(overrides=[*SETTINGS, "rollout.group_size=4", *overrides])
    model, tokenizer = load_model("lab", dtype="float32", device="cpu")
    source = RolloutSource(
        config,
        cast(Task, task(config.task.for_model("compact"))),
        config.task.for_model("compact").problems("train", 64, 0),
        tokenizer,
        choose_engine("auto", model, "rollout.engine")[0],
        folder,
        gather=list,
        main=True,
        on_tokens=lambda count: None,
    )
    source.model = model
    return source


def test_a_reward_beyond_float32_is_as_one_that_is_not_finite(tmp_path: Path) -> None:
    reward = -3.5e38
    source = source_of(tmp_path, lambda task: Rewards(task, reward=reward, parts={"f": reward, "g": 0.0}))
    said = re.escape(f"must be a number from -1e+30 to 1e+30; got {reward:g} (f {reward:g}, g 0)")
    with pytest.raises(RunError, match=said):
        source.collect(0, [0] * 4, 0)
    kept = source_of(
        tmp_path, lambda task: Rewards(task, reward=reward, parts={"f": reward}), "train.on_nonfinite=skip"
    )
    rewards = kept.collect(0, [0] * 4, 0).rewards
    assert all(map(math.isnan, rewards))
    kept.store(rewards, [0.0] * 4)
    assert kept.unscored == 4 and kept.summary["reward"] is None and kept.summary["reward/f"] is None


def test_a_rollout_without_any_score_has_no_mean(tmp_path: Path) -> None:
    """0 would be a reward."""
    source = source_of(tmp_path, lambda task: Rewards(task, scorable=False, correct=False, reason="unscored"))
    rewards = source.collect(0, [0] * 4, 0).rewards
    source.store(rewards, [0.0] * 4)
    parts = [name for name in source.summary if name.startswith("reward/")]
    assert parts and {source.summary[name] for name in ("reward", "format", *parts)} == {None}
    AlertMonitor(1, rows=[{"rollout": index, **source.summary} for index in range(10)]).alerts()


def test_training_goes_on_past_what_cannot_be_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judge, count = KnightsAndKnaves.judge, iter(range(10**6))

    def some(self: KnightsAndKnaves, *arguments: Any, **named: Any) -> Verdict:
        verdict = judge(self, *arguments, **named)
        return verdict if next(count) % 5 else dataclasses.replace(verdict, scorable=False, correct=False)

    monkeypatch.setattr(KnightsAndKnaves, "judge", some)
    metrics, rows = trained(tmp_path, "unscorable", "dapo", "rollout.dynamic_sampling=1", "train.max_skips=0")
    assert 0.1 < metrics[0]["unscorable"] < 0.3
    assert all(row["advantage"] == 0 for row in rows if not row["scorable"])
    assert metrics[0]["update_tokens"] == sum(row["tokens"] for row in rows if row["scorable"])
    for first in range(0, len(rows), 8):
        advantages = [row["advantage"] for row in rows[first : first + 8] if row["scorable"]]
        assert sum(advantages) == pytest.approx(0.0, abs=1e-4)


def test_a_well_formed_wrong_answer_is_wrong_whatever_its_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the 10 for GTPO's tags: PL trains on right answers, NL on the others, noise on the opposite."""
    judge, count = GSM8K.judge, iter(range(10**6))

    def respond(self: Any, problem: Problem, response: str, **named: Any) -> Verdict:
        answer = problem.data["answer"] if next(count) % 3 == 0 else "-17.5"
        verdict: Verdict = judge(self, problem, f"<reasoning>So it is.</reasoning>\n<answer>{answer}</answer>")
        return verdict

    monkeypatch.setattr(GSM8K, "judge", respond)
    problems = [{"question": f"What is {a} + {a}?", "answer": str(a + a)} for a in range(200)]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(problem) + "\n" for problem in problems))
    settings = ("task.name=gsm8k", f"task.data={tmp_path / 'own.jsonl'}", "task.reward=gtpo")
    settings += ("rollout.max_new_tokens=8", "train.on_no_signal=off")

    def signs(name: str, method: str, *overrides: str) -> list[tuple[bool, float, float]]:
        _, rows = trained(tmp_path, name, method, *settings, *overrides)
        return [(row["correct"], row["reward"], row["advantage"]) for row in rows]

    pl, nl = signs("pl", "pl"), signs("nl", "nl")
    assert all(reward == pytest.approx(10.0) for correct, reward, _ in pl if not correct)
    assert 0 < sum(correct for correct, _, _ in pl) < len(pl)
    assert all(advantage == correct for correct, _, advantage in pl)
    assert all(advantage == correct - 1 for correct, _, advantage in nl)
    assert all(advantage == 1 - correct for correct, _, advantage in signs("all", "pl", "method.reward.noise=1.0"))


def test_the_entropy_before_training_is_that_of_problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One completion each, told by the sampler or by a forward pass; the rollouts are the same with and without."""
    samples = "method.shaping.entropy_filter.samples=24"
    plain, first = trained(tmp_path, "plain", "gtpo")
    _, same = trained(tmp_path, "told", "gtpo", samples)
    assert [row["completion"] for row in first] == [row["completion"] for row in same]
    measured = RunDir(tmp_path / "told").read_manifest()["initial_entropy"]
    assert measured == pytest.approx(plain[0]["entropy"], rel=0.2)
    with monkeypatch.context() as patched:
        patched.setattr("rlvr_cli.training.policy_run._sampler_exact", lambda *given, **named: False)
        trained(tmp_path, "forward", "gtpo", samples)
    assert RunDir(tmp_path / "forward").read_manifest()["initial_entropy"] == pytest.approx(measured, rel=1e-4)
    assert "initial_entropy" not in RunDir(tmp_path / "plain").read_manifest()
