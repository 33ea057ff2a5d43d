"""The gradient of supervised fine-tuning: that of plain PyTorch, however a step is split."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rlvr_cli.training.sft import training_order
from tests.training.harness import flat_gradient, load_base
from tests.training.sft_harness import EPOCHS, LEARNING_RATE, ROLLOUTS, UPDATES, config_of, demonstrations, train

TOLERANCE = 1e-6
STEP_ROWS = 8


def relative_error(ours: torch.Tensor, other: torch.Tensor) -> float:
    return float((ours - other).norm() / other.norm())


def test_equals_the_formula_in_plain_pytorch(tmp_path: Path) -> None:
    """The mean over a step's completion tokens, the end of the sequence among them, the prompt not; row by row."""
    model, rows, config = load_base(tmp_path), demonstrations(), config_of()
    trainer = train(tmp_path, micro_batch=4)
    order = training_order([len(row.prompt) + len(row.completion) for row in rows], config, config.batch)
    assert len(trainer.gradients) == ROLLOUTS * UPDATES * EPOCHS
    for step, gradient in enumerate(trainer.gradients):
        total, right, count = torch.zeros((), dtype=torch.float64), 0, 0
        for index in order[step * STEP_ROWS : (step + 1) * STEP_ROWS]:
            row = rows[index]
            ids = torch.tensor([[*row.prompt, *row.completion]])
            logits = model(ids).logits[0, len(row.prompt) - 1 : -1]
            targets = torch.tensor(row.completion)
            total = total - logits.log_softmax(-1).gather(1, targets.unsqueeze(1)).sum()
            right += int((logits.argmax(-1) == targets).sum())
            count += len(targets)
        model.zero_grad()
        (total / count).backward()
        expected = float(total.detach()) / count
        assert relative_error(gradient, flat_gradient(model)) < TOLERANCE
        tokens, loss, entropy, correct = trainer.steps[step]
        assert (tokens, correct) == (count, right)
        assert loss / tokens == pytest.approx(expected, rel=1e-6)
        assert trainer.losses[step] == pytest.approx(expected, rel=1e-6)
        assert entropy > 0
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= LEARNING_RATE * parameter.grad


@pytest.mark.parametrize("rank", [None, 4], ids=["full", "lora"])
def test_does_not_depend_on_micro_batches(tmp_path: Path, rank: int | None) -> None:
    apart, whole = (train(tmp_path, micro_batch=size, rank=rank) for size in (1, 8))
    for ours, other in zip(apart.gradients, whole.gradients, strict=True):
        assert relative_error(ours, other) < TOLERANCE
    assert [pytest.approx(step, rel=1e-6) for step in whole.steps] == apart.steps


def test_the_order_uses_every_demonstration_before_any_again() -> None:
    lengths = [len(row.prompt) + len(row.completion) for row in demonstrations(40)]
    config = config_of(None, "train.rollouts=5")
    order = training_order(lengths, config, config.batch)
    assert len(order) == 5 * 16 * EPOCHS
    passes = [order[start : start + 16] for start in range(0, len(order), 16)]
    assert all(first == again for first, again in zip(passes[::2], passes[1::2], strict=True))
    seen = [index for one_pass in passes[::2] for index in one_pass]
    assert len(set(seen[:40])) == 40
    assert sorted(seen) == sorted([*range(40), *range(40)])
    for start in range(0, len(order), STEP_ROWS):
        of_step = [lengths[index] for index in order[start : start + STEP_ROWS]]
        assert of_step == sorted(of_step)
    shorter = config_of(None, "train.rollouts=2")
    assert training_order(lengths, shorter, shorter.batch) == order[: 2 * 16 * EPOCHS], "a longer run begins with it"
