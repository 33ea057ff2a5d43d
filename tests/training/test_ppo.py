"""PPO with its value head against the algorithm written out in plain PyTorch: parameters after several steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tests.training.harness import ScriptedRollouts, load_base, method_of, train

ROWS, GROUP, UPDATES, ROLLOUTS = 16, 4, 2, 2
RATE, VALUE_RATIO, VALUE_COEF, VALUE_CLIP, MAX_NORM, LAM, EPS = 0.1, 0.5, 0.7, 0.01, 1.0, 0.9, 0.2


def log_probs_and_values(model: Any, head: Any, prompts: Any, completions: Any) -> tuple[Tensor, Tensor]:
    """(B, T) each, row by row: the value of a token is read off the state before it."""
    width = max(map(len, completions))
    rows = []
    for prompt, completion in zip(prompts, completions, strict=True):
        output = model(torch.tensor([prompt + completion]), output_hidden_states=True)
        before = slice(len(prompt) - 1, -1)
        chosen = output.logits[0, before].log_softmax(-1).gather(1, torch.tensor(completion).unsqueeze(1)).squeeze(1)
        values = head(output.hidden_states[-1][0, before].detach()).squeeze(-1)
        rows.append([nn.functional.pad(column, (0, width - len(completion))) for column in (chosen, values)])
    log_probs, values = zip(*rows, strict=True)
    return torch.stack(log_probs), torch.stack(values)


def advantages_and_returns(values: Tensor, rewards: list[int], lengths: list[int]) -> tuple[Tensor, Tensor]:
    """GAE with gamma 1 token by token, whitened over all tokens; returns are not."""
    raw = torch.zeros_like(values)
    for row, length in enumerate(lengths):
        running = 0.0
        for position in reversed(range(length)):
            last = position == length - 1
            following = 0.0 if last else float(values[row, position + 1])
            running = (rewards[row] if last else 0.0) + following - float(values[row, position]) + LAM * running
            raw[row, position] = running
    mask = torch.arange(values.shape[1]) < torch.tensor(lengths).unsqueeze(1)
    whitened = (raw - raw[mask].mean()) / (raw[mask].var() + 1e-8).sqrt()
    return whitened * mask, (raw + values) * mask


def ppo(model: Any, orders: list[Tensor]) -> nn.Linear:
    """Clipped policy loss and clipped value loss, each normalised by the step's tokens, each gradient clipped alone."""
    head = nn.Linear(model.config.hidden_size, 1).double()
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    policy = list(model.parameters())
    optimizer = torch.optim.SGD([{"params": policy}, {"params": head.parameters(), "lr": RATE * VALUE_RATIO}], lr=RATE)
    for rollout, order in enumerate(orders):
        prompts, completions, rewards = ScriptedRollouts(ROWS).script(rollout)
        lengths = [len(completion) for completion in completions]
        with torch.no_grad():
            old, old_values = log_probs_and_values(model, head, prompts, completions)
        advantages, returns = advantages_and_returns(old_values, rewards, lengths)
        for rows in order.chunk(UPDATES):
            chosen = rows.tolist()
            new, values = log_probs_and_values(
                model, head, [prompts[i] for i in chosen], [completions[i] for i in chosen]
            )
            width = new.shape[1]
            mask = torch.arange(width) < torch.tensor([lengths[i] for i in chosen]).unsqueeze(1)
            advantage, target, before = (of[rows, :width] for of in (advantages, returns, old_values))
            ratio = torch.exp(new - old[rows, :width])
            loss = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(1 - EPS, 1 + EPS))
            near = before + (values - before).clamp(-VALUE_CLIP, VALUE_CLIP)
            value_loss = 0.5 * torch.maximum((values - target) ** 2, (near - target) ** 2)
            optimizer.zero_grad()
            ((loss + VALUE_COEF * value_loss) * mask).sum().div(mask.sum()).backward()
            nn.utils.clip_grad_norm_(policy, MAX_NORM)
            nn.utils.clip_grad_norm_(head.parameters(), MAX_NORM)
            optimizer.step()
    return head


def flat(parameters: Any) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in parameters])


def test_equals_ppo_in_plain_pytorch(tmp_path: Path) -> None:
    method = method_of(
        "ppo",
        f"advantage.lam={LAM}",
        f"critic.lr_ratio={VALUE_RATIO}",
        f"critic.coef={VALUE_COEF}",
        f"critic.clip={VALUE_CLIP}",
    )
    model, start = load_base(tmp_path), flat(load_base(tmp_path).parameters())
    trainer = train(tmp_path, method, model, micro_batch=4, updates=UPDATES, learning_rate=RATE, max_grad_norm=MAX_NORM)
    assert trainer.value_head is not None
    policy = [parameter for name, parameter in model.named_parameters() if not name.startswith("value_head")]

    other = load_base(tmp_path)
    head = ppo(other, [trainer.row_order(rollout, ROWS) for rollout in range(ROLLOUTS)])

    moved = flat(other.parameters()) - start
    assert float(moved.norm()) > 0.01
    assert float((flat(policy) - flat(other.parameters())).norm() / moved.norm()) < 1e-6
    ours, theirs = flat(trainer.value_head.layer.parameters()), flat(head.parameters())
    assert float(theirs.norm()) > 0.01 and float((ours - theirs).norm() / theirs.norm()) < 1e-6
