"""Replay the updates of a run on a saved rollout from the policy that sampled it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlvr_cli.analyses.gradients import gradient
from rlvr_cli.analyses.method_step import MethodStep
from rlvr_cli.analyses.saved_rollout import SavedRollout
from rlvr_cli.analyses.scoring import LoadedPolicy
from rlvr_cli.core.lazy import Tensor, torch
from rlvr_cli.models.architecture import count_parameters


class ReplayedUpdates:
    """Iterator over replayed updates; changes the weights of ``policy``.

    Rows are assigned to updates as in the run. With several passes (Lopti), each runs over all mini-batches before the
    next; after the last pass the first starts again.

    Args:
        policy: ``saved.old``. step: the whole rollout at that policy.
        optimizer: ``adamw`` as in training, with gradient clipping, or plain ``sgd``: theta + lr * grad J.
        lr: constant learning rate; None for the run's schedule.
        split: mini-batches of the rollout, one per update, used cyclically.
    """

    def __init__(
        self, policy: LoadedPolicy, saved: SavedRollout, step: MethodStep, optimizer: str, lr: float | None, split: int
    ) -> None:
        from rlvr_cli.training.packing import row_order

        self.policy, self.saved, self.step, self.lr = policy, saved, step, lr
        self._slices = row_order(saved.config.run.seed, saved.number, len(saved.rows)).tensor_split(split)
        self._peak = saved.config.learning_rate.peak(lambda: count_parameters(policy.model)) if lr is None else lr
        self.has_state = False
        self._adamw = self._make_adamw() if optimizer == "adamw" else None

    def __iter__(self) -> Iterator[int]:
        for update in itertools.count():
            self._update(update)
            yield update + 1

    def _update(self, update: int) -> None:
        rounds, index = divmod(update, len(self._slices))
        passes = self.step.method.passes.names
        indices = self._slices[index]
        rows = [self.saved.rows[int(index)] for index in indices]
        step = self.step.select(indices)
        step = step.at(*self.policy.score(rows, step.tokens.mask.shape[1]))
        direction = gradient(self.policy, rows, step.coefficients(passes[rounds % len(passes)]))
        rate = self._learning_rate(update)
        if self._adamw is None:
            with torch.no_grad():
                for name, parameter in self.policy.model.named_parameters():
                    parameter.add_(direction[name], alpha=rate)
            return
        for name, parameter in self.policy.model.named_parameters():
            parameter.grad = -direction[name]
        torch.nn.utils.clip_grad_norm_(self.policy.model.parameters(), self.saved.config.update.max_grad_norm)
        for group in self._adamw.param_groups:
            group["lr"] = rate
        self._adamw.step()
        self._adamw.zero_grad()

    def _learning_rate(self, update: int) -> float:
        if self.lr is not None:
            return self._peak
        return self._peak * self.saved.config.learning_rate.factor(self.saved.sampled_after + update)

    def _make_adamw(self) -> torch.optim.AdamW:
        settings = self.saved.config.optimizer
        parameters = list(self.policy.model.parameters())
        # As in transformers' Trainer: no decay on norms and biases, whose state follows that of the matrices.
        decayed = [parameter for parameter in parameters if parameter.dim() > 1]
        others = [parameter for parameter in parameters if parameter.dim() < 2]
        adamw = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}],
            lr=self._peak,
            betas=settings.betas,
            eps=settings.eps,
        )
        state = self._load_adamw_state([*decayed, *others])
        if state is not None:
            adamw.load_state_dict({"state": state, "param_groups": adamw.state_dict()["param_groups"]})
            self.has_state = True
        return adamw

    def _load_adamw_state(self, parameters: list[Tensor]) -> dict[int, Any] | None:
        """Return AdamW's state of the policy's checkpoint; None if missing or of other shapes."""
        from rlvr_cli.training.checkpoint_state import FOLDER, OPTIMIZER, load_optimizer

        if self.saved.old.step == 0:
            return None
        folder = Path(self.saved.old.model) / FOLDER
        if not (folder / f"{OPTIMIZER}.json").exists():
            return None
        state: dict[int, Any] = load_optimizer(folder)["state"]
        shapes = {index: values["exp_avg"].shape for index, values in state.items()}
        return state if shapes == {index: parameter.shape for index, parameter in enumerate(parameters)} else None
