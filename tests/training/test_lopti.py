"""Lopti's two passes against Algorithm 1 of the paper, written out in plain PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rlvr_cli.methods.grpo import group_advantage
from tests.training.harness import (
    LEARNING_RATE,
    MEDIAN_PROBABILITY,
    ScriptedRollouts,
    completion_log_probs,
    load_base,
    method_of,
    train,
)

ROWS, GROUP, UPDATES, ROLLOUTS = 16, 4, 2, 2
EPS_LOW, EPS_HIGH = 0.2, 0.24


def algorithm_1(model: Any, orders: list[Tensor], passes: tuple[str, ...], optimizer: Any, share: float | None) -> None:
    """Two passes over all mini-batches of each rollout; old log-probs stay, every divisor counts all valid tokens."""
    for rollout, order in enumerate(orders):
        prompts, completions, rewards = ScriptedRollouts(ROWS).script(rollout)
        with torch.no_grad():
            old = completion_log_probs(model, prompts, completions)
        lengths = torch.tensor([len(completion) for completion in completions]).unsqueeze(1)
        mask = torch.arange(old.shape[1]) < lengths
        advantages = group_advantage(torch.tensor(rewards, dtype=torch.float32), GROUP, divide_by_std=True).unsqueeze(1)
        low = old.exp() < (MEDIAN_PROBABILITY if share is None else torch.quantile(old[mask].exp(), share))
        for which in passes:
            for rows in order.chunk(UPDATES):
                chosen = rows.tolist()
                new = completion_log_probs(model, [prompts[i] for i in chosen], [completions[i] for i in chosen])
                width = new.shape[1]
                ratio = torch.exp(new - old[rows, :width])
                part = low[rows, :width] if which == "low" else ~low[rows, :width]
                kept = advantages[rows] * (mask[rows, :width] & part)
                loss = torch.maximum(-kept * ratio, -kept * ratio.clamp(1 - EPS_LOW, 1 + EPS_HIGH))
                optimizer.zero_grad()
                (loss.sum() / mask[rows].sum()).backward()
                optimizer.step()


@pytest.mark.parametrize(
    ("order", "passes", "share"),
    [("low_first", ("low", "high"), None), ("high_first", ("high", "low"), 0.3), ("low_only", ("low",), None)],
)
def test_equals_algorithm_1(tmp_path: Path, order: str, passes: tuple[str, ...], share: float | None) -> None:
    """``share``: the tokens that are low are that share of the rollout's, in place of those below a probability."""
    rule = f"passes={{kind: lopti, order: {order}, eta: {share or MEDIAN_PROBABILITY}, rule: "
    method = method_of("lopti", rule + ("probability}" if share is None else "quantile}"), "kl.beta=0")
    trained = load_base(tmp_path)
    trainer = train(tmp_path, method, trained, micro_batch=4, updates=UPDATES)
    assert trainer.passes == [which for which in passes for _ in range(UPDATES)] * ROLLOUTS

    model = load_base(tmp_path)
    start = torch.cat([parameter.detach().flatten().clone() for parameter in model.parameters()])
    orders = [trainer.row_order(rollout, ROWS) for rollout in range(ROLLOUTS)]
    algorithm_1(model, orders, passes, torch.optim.SGD(model.parameters(), lr=LEARNING_RATE), share)

    ours = torch.cat([parameter.detach().flatten() for parameter in trained.parameters()])
    theirs = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    assert float((ours - start).norm()) > 0.01
    assert float((ours - theirs).norm() / (theirs - start).norm()) < 1e-6
