"""What advantages read besides the reward: ReMax's greedy completions, and the parts of the reward for GDPO."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from trl import GRPOConfig, GRPOTrainer

from experiments.lab.model import make_tokenizer
from rlvr_cli.analyses.saved_rollout import find_saved_rollout
from rlvr_cli.analyses.scoring import score_rollout
from rlvr_cli.config.load import load_config
from rlvr_cli.methods.method import Method
from rlvr_cli.models.load import load_model
from rlvr_cli.models.sampling.local import sample
from rlvr_cli.planning.plan import plan_training
from rlvr_cli.runs.checkpoints import valid_checkpoints
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.runs.seal import file_digest
from rlvr_cli.store.training import cumulative_costs, read_steps
from rlvr_cli.tasks import kk_compact as compact
from rlvr_cli.tasks.kk import KnightsAndKnaves
from rlvr_cli.tasks.problem import Verdict
from rlvr_cli.training import run as running
from rlvr_cli.training.rollouts import RolloutBatch, RolloutSource
from rlvr_cli.training.trainer import PolicyTrainer
from tests.training.harness import ScriptedRollouts, arguments, dataset, load_base, method_of
from tests.training.processes import interrupted_after
from tests.training.test_gradient import _Gradients, relative_error

SMALL = (
    "train.rollouts=2", "rollout.prompts=4", "rollout.group_size=4", "rollout.max_new_tokens=40",
    "task.train_size=16", "run.threads=1", "train.on_no_signal=off",
)  # fmt: skip


# So many that the lab's first answers differ within groups.
LARGER = ("train.rollouts=1", "rollout.prompts=8", "rollout.group_size=8", "rollout.max_new_tokens=60")


def start(folder: Path, name: str, method: str, *overrides: str) -> RunDir:
    config = load_config(method=method, overrides=[*SMALL, f"run.dir={folder}", f"run.name={name}", *overrides])
    return running.start_training(config, overwrite=False, console=Console(quiet=True)).run


def records(run: RunDir, rollout: int = 0) -> list[dict[str, Any]]:
    path = run.rollouts_dir / f"rollout-{rollout:06d}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def metrics(run: RunDir) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run.metrics_path.read_text().splitlines()]


class CountingEngine:
    """The local sampler; keeps each call's temperature and the number of its prompts, distinct or not."""

    def __init__(self) -> None:
        self.calls: list[tuple[float, int, int]] = []

    def __call__(self, model: Any, prompts: Sequence[Sequence[int]], params: Any, **named: Any) -> Any:
        self.calls.append((params.temperature, len(prompts), len(set(map(tuple, prompts)))))
        return sample(model, prompts, params, **named)


class Together:
    """A gather among threads, as accelerate's among processes: concatenated in their order."""

    def __init__(self, count: int) -> None:
        self.barrier, self.rows = threading.Barrier(count, timeout=60), [[] for _ in range(count)]  # type: ignore[var-annotated]

    def of(self, rank: int) -> Any:
        def gather(rows: list[Any]) -> list[Any]:
            self.rows[rank] = list(rows)
            self.barrier.wait()
            everything = [row for part in self.rows for row in part]
            self.barrier.wait()
            return everything

        return gather


def collect(folder: Path, processes: int, *overrides: str) -> tuple[list[RolloutBatch], list[CountingEngine], Any]:
    """A rollout of three groups of four, shared by ``processes``; of two, the second group is split."""
    config = load_config(method="remax", overrides=[*SMALL, *overrides])
    task, together = config.task.for_model("compact"), Together(processes)
    problems, (model, tokenizer) = task.problems("train", 16, 0), load_model("lab", dtype="float32", device="cpu")
    engines = [CountingEngine() for _ in range(processes)]
    chosen = [3, 3, 3, 3, 5, 5, 5, 5, 3, 3, 3, 3]

    def run(rank: int) -> RolloutBatch:
        source = RolloutSource(
            config, task, problems, tokenizer, engines[rank], folder,
            gather=together.of(rank), main=rank == 0, on_tokens=lambda count: None,
        )  # fmt: skip
        source.model = model
        share = len(chosen) // processes
        batch = source.collect(0, chosen[rank * share : (rank + 1) * share], rank * share)
        source.store(batch.rewards, [0.0] * share)
        summaries.append(source.summary)
        return batch

    summaries: list[Any] = []
    with ThreadPoolExecutor(processes) as threads:
        return list(threads.map(run, range(processes))), engines, summaries


@pytest.mark.parametrize("overrides", [(), ("rollout.dynamic_sampling=2",), ("method.reward.noise=0.5",)])
def test_each_distinct_prompt_has_one_greedy_completion_however_many_processes(
    tmp_path: Path, overrides: tuple[str, ...]
) -> None:
    [whole], [engine], [summary] = collect(tmp_path, 1, *overrides)
    parts, engines, summaries = collect(tmp_path, 2, *overrides)
    for name in ("completion_ids", "rewards", "greedy_rewards"):
        assert getattr(whole, name) == [value for part in parts for value in getattr(part, name)], name
    assert summaries == [pytest.approx(summary, rel=1e-5)] * 2

    def greedy_prompts(*of: CountingEngine) -> int:
        calls = [call for each in of for call in each.calls if call[0] == 0]
        assert all(count == distinct for _, count, distinct in calls)
        return sum(count for _, count, _ in calls)

    if not any("dynamic" in override for override in overrides):
        assert greedy_prompts(engine) == 2, "the first and the third group have one prompt"
    assert greedy_prompts(engine) == greedy_prompts(*engines)
    assert len(set(whole.greedy_rewards[:4])) == 1


def test_dynamic_sampling_keeps_a_group_whose_baseline_is_another_reward(tmp_path: Path) -> None:
    """Four equal rewards teach something if the greedy completion has another one, and nothing if it has the same."""
    [batch], _, _ = collect(tmp_path, 1, "rollout.dynamic_sampling=20")
    for first in range(0, 12, 4):
        assert len({*batch.rewards[first : first + 4], *batch.greedy_rewards[first : first + 4]}) > 1


def test_the_greedy_completions_are_recorded_counted_and_not_trained_on(tmp_path: Path) -> None:
    run, plain = start(tmp_path, "remax", "remax"), start(tmp_path, "plain", "grpo")
    rows, first = records(run), metrics(run)[0]
    assert [row["completion"] for row in rows] == [row["completion"] for row in records(plain)]
    assert all(row["advantage"] == pytest.approx(row["reward"] - row["greedy"]["reward"]) for row in rows)
    distinct = {row["problem"]: row["greedy"] for row in rows}
    assert first["extra_tokens"] == sum(greedy["tokens"] for greedy in distinct.values()) > 0
    assert first["greedy_reward"] == pytest.approx(sum(each["reward"] for each in distinct.values()) / len(distinct))
    assert first["update_tokens"] == sum(row["tokens"] for row in rows), "the greedy ones are not among them"
    costs = {
        each.path.name: cumulative_costs(each, read_steps(each), load_config([each.config_path]).rollout, finished=True)
        for each in (run, plain)
    }
    extra = sum(row["extra_tokens"] for row in metrics(run))
    assert costs["remax"]["tokens"][-1] == pytest.approx(sum(row["length"] * 16 for row in metrics(run)) + extra)
    assert costs["plain"]["tokens"][-1] == pytest.approx(sum(row["length"] * 16 for row in metrics(plain)))
    planned = {
        name: plan_training(load_config(method=name, overrides=SMALL))["rollout_tokens_at_most"]
        for name in ("remax", "grpo")
    }
    assert planned == {"remax": 20 * 40, "grpo": 16 * 40}


def test_groups_that_dynamic_sampling_replaced_are_counted(tmp_path: Path) -> None:
    run = start(tmp_path, "dapo", "dapo", "rollout.dynamic_sampling=3", "rollout.max_new_tokens=60")
    assert all(row["extra_tokens"] >= 0 for row in metrics(run))
    assert sum(row["extra_tokens"] for row in metrics(run)) > 0


def test_a_prompt_whose_greedy_completion_cannot_be_judged_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge, seen = KnightsAndKnaves.judge, Counter[str]()

    def some(self: Any, problem: Any, response: str, **named: Any) -> Verdict:
        verdict = judge(self, problem, response, **named)
        seen[problem.id] += 1
        # The greedy completion is judged after the four others.
        return dataclasses.replace(verdict, scorable=False, correct=False) if seen[problem.id] == 5 else verdict

    monkeypatch.setattr(KnightsAndKnaves, "judge", some)
    run = start(tmp_path, "unscored", "remax", "train.rollouts=1", "train.max_skips=0")
    rows = records(run)
    assert {row["greedy"]["reward"] for row in rows} == {None}
    assert all(row["advantage"] == 0 and row["reward"] is None and row["clean_reward"] is not None for row in rows)
    assert metrics(run)[0]["update_tokens"] == 0 and metrics(run)[0]["greedy_reward"] is None


def test_resume_is_exact(tmp_path: Path) -> None:
    """Stopped between the two updates on a rollout, whose advantages are in the checkpoint then, and between two."""
    updates = (
        "update.mini_batches=2", "train.rollouts=3", "checkpoint.every=1", "optimizer.lr=1e-3",
        "rollout.dynamic_sampling=1",
    )  # fmt: skip
    whole = start(tmp_path, "whole", "remax", *updates)
    for steps in (2, 3):
        with interrupted_after(steps):
            broken = start(tmp_path, f"broken-{steps}", "remax", *updates)
        assert running.resume_training(broken, console=Console(quiet=True)).status == "finished"
        assert metrics(broken) == metrics(whole)
        assert [records(broken, rollout) for rollout in range(3)] == [records(whole, rollout) for rollout in range(3)]
        digests = {
            file_digest(valid_checkpoints(run.checkpoints_dir)[0].path / "model.safetensors") for run in (whole, broken)
        }
        assert len(digests) == 1


def test_an_analysis_has_the_advantages_of_the_training(tmp_path: Path) -> None:
    for name in ("remax", "gdpo"):
        run = start(tmp_path, name, name, *LARGER)
        saved = find_saved_rollout(str(run.path), tmp_path, rollout=0)
        method = saved.config.method
        assert isinstance(method, Method)
        scored = score_rollout(saved, [method]).scored
        ours = method.advantage.advantages(scored.rollout).squeeze(1)
        expected = torch.tensor([row["advantage"] for row in saved.rows], dtype=torch.float64)
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-6)
        assert expected.any()


def test_gdpo_on_the_lab_reads_format_and_answer(tmp_path: Path) -> None:
    rows = records(start(tmp_path, "gdpo", "gdpo", *LARGER))
    names = ("answer", "format")
    parts = torch.tensor([[row["parts"][name] for name in names] for row in rows], dtype=torch.float64).view(8, 8, 2)
    scores = (parts - parts.mean(dim=1, keepdim=True)) / (parts.std(dim=1, keepdim=True) + 1e-6)
    total = scores.sum(dim=2).view(-1)
    expected = total / (total.std() + 1e-6)
    torch.testing.assert_close(
        torch.tensor([row["advantage"] for row in rows]).double(), expected, rtol=1e-5, atol=1e-6
    )
    assert expected.any()


def test_trl_generation_has_no_greedy_completions(tmp_path: Path) -> None:
    config = GRPOConfig(str(tmp_path), use_cpu=True, bf16=False)
    with pytest.raises(ValueError, match=r"remax needs a greedy completion of every prompt.*`rlvr train"):
        PolicyTrainer(load_base(tmp_path), [len], config, method="remax")
    config.num_generations = 2
    with pytest.raises(ValueError, match=r"pass-at-k needs groups of at least 5 .*advantage\.k.*num_generations is 2"):
        PolicyTrainer(load_base(tmp_path), [len], config, method="pass-at-k")


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("gdpo", {"multi_objective_aggregation": "normalize_then_sum"}),
        ("grpo", {"scale_rewards": "batch"}),
    ],
)
def test_several_rewards_have_the_gradient_of_trl(
    tmp_path: Path, method: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two weighted reward functions, one of which does not apply to a fifth of the rows; TRL's epsilons are 1e-4."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    rows, group = 16, 4

    def gradients(trainer: type[GRPOTrainer], folder: str, of: Method, **more: Any) -> list[torch.Tensor]:
        script, calls, numbers = ScriptedRollouts(rows), iter(range(10)), list[float]()

        def rollout_func(prompts: list[str], trainer: Any) -> dict[str, Any]:
            batch = script.collect(next(calls), range(len(prompts)), 0)
            numbers[:] = batch.rewards
            return {"prompt_ids": batch.prompt_ids, "completion_ids": batch.completion_ids, "logprobs": None}

        def high(prompts: Any, **named: Any) -> list[float]:
            return [float(value >= 2) for value in numbers]

        def odd(prompts: Any, **named: Any) -> list[float | None]:
            return [None if row % 5 == 0 else 3.0 * (value % 2) for row, value in enumerate(numbers)]

        config = arguments(tmp_path / folder, of, rows=rows, group=group, micro_batch=4)
        config.reward_weights = [1.0, 0.25]
        if trainer is GRPOTrainer:
            config.epsilon, config.epsilon_high, config.beta = 0.2, 0.2, 0.0
            for name, value in options.items():
                setattr(config, name, value)
        seen = _Gradients()
        trainer(
            model=load_base(tmp_path),
            processing_class=make_tokenizer(compact.vocabulary()),
            reward_funcs=[high, odd],
            rollout_func=rollout_func,
            args=config,
            train_dataset=dataset(rows, group).map(lambda row: {"prompt": ""}),
            callbacks=[seen],
            **more,
        ).train()
        return seen.seen

    of = method_of(method, *(["advantage.scale=batch"] if method == "grpo" else []))
    ours, native = gradients(PolicyTrainer, "ours", of, method=of), gradients(GRPOTrainer, "trl", of)
    assert len(ours) == len(native) == 2
    for mine, other in zip(ours, native, strict=True):
        assert relative_error(mine, other) < 5e-4
