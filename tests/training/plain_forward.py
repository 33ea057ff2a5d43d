"""Forward passes that leave nothing out: what a trainer's own must equal, and what a method costs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from rlvr_cli.training.forward import Outputs, PolicyForward
from rlvr_cli.training.packing import MicroBatches, TensorRows
from rlvr_cli.training.trainer import PolicyTrainer


class PlainForward(PolicyForward):
    """One call of the model for each row, with the head at every token, as the formulas read."""

    def pack(self, rows: TensorRows, chosen: Tensor) -> MicroBatches:
        tokens = int(rows["prompt_mask"].sum() + rows["completion_mask"].sum())
        return MicroBatches([[row] for row in range(len(chosen))], tokens, share_prompts=False)

    def __call__(self, model: Any, rows: TensorRows, chosen: Tensor, *, entropies: bool, **ignored: Any) -> Outputs:
        [prompt], [completion] = (
            rows[f"{part}_ids"][rows[f"{part}_mask"].bool()].unsqueeze(0) for part in ("prompt", "completion")
        )
        length, missing = len(completion), chosen.shape[1] - len(completion)
        logits = model(torch.cat([prompt, completion]).unsqueeze(0)).logits[:, -length - 1 : -1]
        log_probs = (logits / self.temperature).log_softmax(-1)
        taken = log_probs.gather(-1, completion.view(1, -1, 1)).squeeze(-1)
        values = None
        if self.value_head is not None:
            values = pad(self.value_head.values(self.value_head.latest_states(length)), (0, missing))
        return Outputs(
            torch.where(chosen, pad(taken, (0, missing)), 0.0),
            pad(-(log_probs.exp() * log_probs).sum(-1), (0, missing)) if entropies else None,
            values,
            None,
        )


def leave_nothing_out(trainer: PolicyTrainer) -> None:
    """Let ``trainer``, which has not begun, make its forward passes by :class:`PlainForward`."""
    trainer.forward = trainer.scoring.forward = PlainForward(**vars(trainer.forward))
