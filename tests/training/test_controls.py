"""Controls and length rewards in a training: what is rewarded, recorded, compared by dynamic sampling, and resumed."""

from __future__ import annotations

import itertools
import json
import random
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rlvr_cli.config.load import load_config
from rlvr_cli.core.streams import stream_seed
from rlvr_cli.methods.controls import majority_rewards, random_reward
from rlvr_cli.models.load import load_model
from rlvr_cli.models.sampling.transformers import choose_engine
from rlvr_cli.tasks.math import MathTask
from rlvr_cli.training.rollouts import RolloutSource
from tests.training.test_rollouts import trained
from tests.training.test_trainers import trainer

SETTINGS = ("rollout.prompts=8", "rollout.group_size=4", "rollout.max_new_tokens=60", "task.train_size=64")
# Of the lab's prompts and random streams, 8 problems of 4 completions.
ROWS = [index for index in range(8) for _ in range(4)]


def sources(folder: Path, method: str, *overrides: str, processes: int = 1) -> list[RolloutSource]:
    """The source of each process, whose parts of a rollout are collected one after the other."""
    config = load_config(method=method, overrides=[*SETTINGS, *overrides])
    model, tokenizer = load_model("lab", dtype="float32", device="cpu")
    task = config.task.for_model("compact")
    made = []
    for _ in range(processes):
        source = RolloutSource(
            config,
            task,
            task.problems("train", 64, 0),
            tokenizer,
            choose_engine("auto", model, "rollout.engine")[0],
            folder,
            gather=list,
            main=True,
            on_tokens=lambda count: None,
        )
        source.model = model
        made.append(source)
    return made


def test_a_majority_of_equal_answers_the_first_of_a_tie() -> None:
    assert majority_rewards(["a", "b", "b", None], {}) == [0.0, 1.0, 1.0, 0.0]
    assert majority_rewards(["b", "a", "a", "b"], {}) == [1.0, 0.0, 0.0, 1.0]
    assert majority_rewards(["1/2", "b", "0.5", "b", "50%"], {"0.5": "1/2", "50%": "1/2"}) == [1, 0, 1, 0, 1]
    assert majority_rewards([None, None], {}) == [0.0, 0.0]
    # The task's own rule of maj@k.
    answers = ["0.5", "3", r"\frac{1}{2}", "3", "1/2"]
    assert majority_rewards(answers, MathTask().group_answers([answers])[0]) == [1.0, 0.0, 1.0, 0.0, 1.0]


def test_a_random_reward_is_a_bernoulli_draw_of_its_row_whatever_the_processes(tmp_path: Path) -> None:
    draws = [random_reward(stream_seed(7, "random-reward", 3, 0, row), 0.3) for row in range(4000)]
    assert statistics.fmean(draws) == pytest.approx(0.3, abs=4 * (0.21 / 4000) ** 0.5)
    [whole] = sources(tmp_path, "grpo+random-reward")
    batch = whole.collect(5, ROWS, 0)
    seeds = [stream_seed(0, "random-reward", 5, 0, row) for row in range(32)]
    assert batch.rewards == [float(random.Random(seed).random() < 0.5) for seed in seeds]
    assert batch.correct == [reward == 1 for reward in batch.rewards]
    shares = sources(tmp_path, "grpo+random-reward", processes=2)
    halves = [source.collect(5, ROWS[at : at + 16], at) for at, source in zip((0, 16), shares, strict=True)]
    assert halves[0].rewards + halves[1].rewards == batch.rewards


def test_each_control_rewards_what_it_says_and_the_verdict_stays(tmp_path: Path) -> None:
    """On K&K, whose rewards have a part for the format, and on rewards of 0 and 1, which have none."""
    short = "rollout.max_new_tokens=32"  # so that some answers are cut off
    _, plain = trained(tmp_path, "plain", "grpo", short)
    completions = [row["completion"] for row in plain]
    for control in ("format", "incorrect", "majority", "random"):
        metrics, rows = trained(tmp_path, control, f"grpo+{control}-reward", short)
        assert [row["completion"] for row in rows] == completions
        assert [row["correct"] for row in rows] == [row["correct"] for row in plain]
        assert [row["clean_reward"] for row in rows] == [row["reward"] for row in plain]
        assert metrics[0]["accuracy"] == statistics.fmean(row["correct"] for row in plain)
        assert metrics[0]["reward"] == statistics.fmean(row["reward"] for row in rows)
        assert metrics[0]["clean_reward"] == pytest.approx(statistics.fmean(row["reward"] for row in plain))
        for first in range(0, len(rows), 8):
            group = rows[first : first + 8]
            votes = Counter(row["answer"] for row in group if row["answer"] is not None).most_common(1)
            for row in group:
                expected = {
                    "format": row["parts"]["format"] == 1.0,
                    "incorrect": row["parts"]["format"] == 1.0 and row["answer"] is not None and not row["correct"],
                    "majority": bool(votes) and row["answer"] == votes[0][0],
                    "random": row["reward"],
                }
                assert row["reward"] == float(expected[control])
        assert 0 < metrics[0]["reward"] < 1
    _, rows = trained(tmp_path, "zero", "grpo+format-reward", "task.reward=zero_one", short)
    assert [row["reward"] for row in rows] == [float(row["answer"] is not None) for row in rows]


def test_dynamic_sampling_compares_the_control_s_rewards(tmp_path: Path) -> None:
    [source] = sources(tmp_path, "dapo+majority-reward", "rollout.dynamic_sampling=20")
    rewards = source.collect(0, ROWS, 0).rewards
    groups = [rewards[first : first + 4] for first in range(0, 32, 4)]
    assert all(len(set(group)) == 2 for group in groups), "neither all of one answer nor all unreadable"


def test_a_length_reward_is_trained_on_recorded_and_not_compared(tmp_path: Path) -> None:
    """Dynamic sampling compares what the verifier gives: with the lengths no group would be equal."""
    settings = ("rollout.group_size=4", "rollout.dynamic_sampling=2", "rollout.max_new_tokens=40")
    clean, plain = trained(tmp_path, "plain", "dapo", *settings)
    metrics, rows = trained(tmp_path, "overlong", "dapo+overlong", *settings, "method.reward.length.buffer=0.5")
    assert [row["completion"] for row in rows] == [row["completion"] for row in plain]
    for row, before in zip(rows, plain, strict=True):
        assert row["clean_reward"] == before["reward"] and row["correct"] == before["correct"]
        assert row["length_reward"] == pytest.approx(min(0.0, (20 - row["tokens"]) / 20))
        assert row["reward"] == pytest.approx(row["clean_reward"] + row["length_reward"], abs=1e-6)
    assert {row["length_reward"] for row in rows if row["truncated"]} == {-1.0}
    assert metrics[0]["length_reward"] == pytest.approx(statistics.fmean(row["length_reward"] for row in rows))
    assert metrics[0]["accuracy"] == clean[0]["accuracy"] and "length_reward" not in clean[0]


def test_brevity_reads_the_verdict_and_not_the_sign_of_the_reward(tmp_path: Path) -> None:
    """TinyZero pays 0.1 for a wrong answer in the right place, which is no right answer."""
    _, rows = trained(tmp_path, "brief", "grpo+brevity", "task=countdown", "rollout.max_new_tokens=144")
    terms = [(row["correct"], row["clean_reward"], row["length_reward"]) for row in rows]
    assert any(reward > 0 and not correct for correct, reward, _ in terms)
    assert all(term == 0 for correct, _, term in terms if not correct)
    assert any(term > 0 for *_, term in terms)


def test_a_random_reward_resumes_to_the_same_rewards(tmp_path: Path) -> None:
    from tests.matrix import resume
    from tests.training.processes import interrupted_after
    from tests.training.sft_runs import start

    tiny: dict[str, Any] = {"validation__every": 0, "train__rollouts": 3, "rollout__max_new_tokens": 24}
    whole = start(tmp_path, "whole", "grpo+random-reward+overlong", **tiny).run
    with interrupted_after(1):
        cut = start(tmp_path, "cut", "grpo+random-reward+overlong", **tiny).run
    assert resume(cut).status == "finished"
    for number in range(3):
        name = f"rollout-{number:06d}.jsonl"
        assert (whole.rollouts_dir / name).read_bytes() == (cut.rollouts_dir / name).read_bytes()
    rows = [json.loads(line) for line in (whole.rollouts_dir / "rollout-000002.jsonl").read_text().splitlines()]
    assert {row["reward"] - row["length_reward"] for row in rows} <= {0.0, 1.0}


def test_a_trainer_of_reward_functions_shapes_lengths_and_refuses_controls(tmp_path: Path) -> None:
    policy = trainer(tmp_path, "grpo+overlong", max_steps=2, steps_per_generation=1)
    seen: list[Any] = []
    advantages = policy.method.rollout_advantages
    object.__setattr__(policy.method, "rollout_advantages", lambda rollout: seen.append(rollout) or advantages(rollout))
    policy.train()
    for rollout in seen:
        lengths = rollout.mask.sum(1).double()
        expected = ((6 - 1.2 - lengths) / 1.2).clamp(-1, 0)
        assert rollout.length_terms.tolist() == pytest.approx(expected.tolist())
    logged = [row["length_reward"] for row in policy.state.log_history if "length_reward" in row]
    assert logged == pytest.approx([float(rollout.length_terms.mean()) for rollout in seen])
    for control in ("random", "format", "incorrect", "majority"):
        with pytest.raises(ValueError, match=rf"reward\.source={control}.*Use `rlvr train"):
            trainer(tmp_path, f"grpo+{control}-reward")
    with pytest.raises(ValueError, match="mask_truncated_completions"):
        trainer(tmp_path, "grpo+brevity", mask_truncated_completions=True)
    trainer(tmp_path, "grpo+brevity")


def test_the_groups_of_a_vote_may_lie_in_two_processes(tmp_path: Path) -> None:
    [whole] = sources(tmp_path, "grpo+majority-reward")
    expected = whole.collect(0, ROWS, 0).rewards
    first, second = sources(tmp_path, "grpo+majority-reward", processes=2)
    gathered: dict[int, list[dict[str, Any]]] = {}
    # Twice: the votes of the other process are known once it has sampled.
    for _ in range(2):
        for at, source in ((0, first), (18, second)):

            def gather(rows: list[dict[str, Any]], at: int = at) -> list[dict[str, Any]]:
                gathered[at] = rows
                return list(itertools.chain(*(gathered[key] for key in sorted(gathered))))

            source.gather = gather
            share = ROWS[:18] if at == 0 else ROWS[18:]
            rewards = source.collect(0, share, at).rewards
            if len(gathered) == 2:
                assert rewards == expected[at : at + len(share)]
