"""Forward passes of a policy over the rows of a rollout, packed into micro-batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from accelerate.utils import DistributedType
from torch import Tensor
from torch.nn.functional import pad
from trl.models.utils import disable_gradient_checkpointing

from rlvr_cli.training.log_probs import can_share_prompts, chosen_log_probs, has_linear_head, run_in_forward
from rlvr_cli.training.packing import (
    GPU_PASS_TOKENS,
    PASS_TOKENS,
    MicroBatches,
    TensorRows,
    TokenRow,
    number_prompts,
    pack,
    policy_mask,
)
from rlvr_cli.training.value_head import ValueHead

# The columns that a forward pass reads.
INPUTS = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")


@dataclass(frozen=True)
class Outputs:
    """Results of a forward pass for the completions of some rows.

    Attributes:
        log_probs: (n, T), 0 for tokens that were not chosen. entropies: the same, if requested.
        values: (n, T) of the value head, or None.
        aux_loss: () the router's auxiliary loss, for a mixture of experts.
    """

    log_probs: Tensor
    entropies: Tensor | None
    values: Tensor | None
    aux_loss: Tensor | None


@dataclass
class PolicyForward:
    """Forward passes of one model.

    Args:
        temperature: divides the logits.
        trl_pass: TRL's forward pass, for models whose logits are not a linear head of the last states.
        micro_tokens: tokens of one pass; None = those of ``micro_rows`` of the longest row.
        micro_rows: with ``micro_tokens`` None, the number of longest rows in one pass.
        checkpointing: transformers' ``gradient_checkpointing_kwargs``.
        value_head: predicts values from the same states, or None.
        aux_loss: whether the model is a mixture of experts with an auxiliary loss.
        applies_head: whether this project's code applies the head, to the chosen tokens only.
        share_prompts: whether a prompt may be computed once for all of its completions.
    """

    accelerator: Any
    temperature: float
    trl_pass: Callable[..., tuple[Tensor, Tensor | None, Tensor | None]]
    micro_tokens: int | None
    micro_rows: int
    checkpointing: dict[str, Any] | None
    value_head: ValueHead | None = None
    aux_loss: bool = False
    applies_head: bool = False
    share_prompts: bool = False

    def detect_capabilities(self, model: Any, *, checkpointing: bool, float32_head: bool) -> None:
        """Decide which optimizations ``model`` supports; it is unsharded and on its device."""
        self.applies_head = not self.aux_loss and not float32_head and has_linear_head(model)
        # Gradient checkpointing keeps no keys and values, and a sharded layer must not be called twice.
        self.share_prompts = (
            self.applies_head
            and not checkpointing
            and not any(getattr(module, "gradient_checkpointing", False) for module in model.modules())
            and not self.is_sharded
            and can_share_prompts(model)
        )

    @property
    def is_sharded(self) -> bool:
        """True for a sharded model, which all processes must call equally often."""
        return bool(self.accelerator.distributed_type == DistributedType.DEEPSPEED)

    def without_value_head(self) -> PolicyForward:
        """Return these forward passes for a model without a value head."""
        return dataclasses.replace(self, value_head=None)

    def __call__(
        self,
        model: Any,
        rows: TensorRows,
        chosen: Tensor,
        *,
        entropies: bool,
        share_prompts: bool = False,
        values_only: bool = False,
    ) -> Outputs:
        """Run one pass over some rows for the ``chosen`` tokens (n, T), with gradient unless disabled.

        Columns of padding only and those after the last chosen token are cut. With ``values_only`` the log-probs are 0
        where that saves the head.
        """
        width = max(1, int(row_ends(self._computed(rows["completion_mask"].bool(), chosen)).max()))
        first = min(int(rows["prompt_mask"].any(dim=0).int().argmax()), rows["prompt_mask"].shape[1] - 1)
        prompt_ids, prompt_mask = rows["prompt_ids"][:, first:], rows["prompt_mask"][:, first:]
        ids, mask, chosen = rows["completion_ids"][:, :width], rows["completion_mask"][:, :width], chosen[:, :width]
        values, aux_loss = None, None
        if self.applies_head:
            plain = self.accelerator.unwrap_model(model)
            prompts = None
            if share_prompts:
                numbers = number_prompts(prompt_ids, prompt_mask)
                distinct = sorted(set(numbers))
                prompts = torch.tensor([distinct.index(number) for number in numbers], device=ids.device)
                prompt_ids, prompt_mask = prompt_ids[distinct], prompt_mask[distinct]
            at = chosen & (not values_only)
            function = partial(chosen_log_probs, plain, temperature=self.temperature, entropies=entropies)
            with self.accelerator.autocast():
                log_probs, entropies_chosen, states = run_in_forward(
                    model, plain, function, prompt_ids, prompt_mask, ids, mask, at, prompts
                )
            if self.value_head is not None:
                values = self.value_head.values(states)
        else:
            log_probs, entropies_chosen, aux_loss = self.trl_pass(
                model,
                torch.cat([prompt_ids, ids], dim=1),
                torch.cat([prompt_mask, mask], dim=1),
                width,
                compute_entropy=entropies,
                compute_aux_loss=self.aux_loss,
            )
            if self.value_head is not None:
                values = self.value_head.values(self.value_head.latest_states(width))
        missing = rows["completion_ids"].shape[1] - width

        def placed(columns: Tensor, where: Tensor) -> Tensor:
            return pad(torch.where(where, columns, 0.0), (0, missing))

        return Outputs(
            placed(log_probs, chosen),
            None if entropies_chosen is None else placed(entropies_chosen, chosen),
            None if values is None else placed(values, mask.bool()),
            aux_loss,
        )

    @torch.no_grad()
    def infer(
        self,
        model: Any,
        rows: TensorRows,
        chosen: Tensor | None = None,
        *,
        entropies: bool = False,
        values_only: bool = False,
    ) -> Outputs:
        """Run passes over any number of rows, for all tokens of the policy or the ``chosen`` ones (n, T)."""
        chosen = policy_mask(rows).bool() if chosen is None else chosen
        micro_batches = self.pack(rows, chosen)
        collected: dict[str, Tensor] = {}
        with disable_gradient_checkpointing(model, self.checkpointing):
            for some in micro_batches.rows:
                outputs = self(
                    model,
                    {key: rows[key][some] for key in INPUTS},
                    chosen[some],
                    entropies=entropies,
                    share_prompts=micro_batches.share_prompts,
                    values_only=values_only,
                )
                for name in ("log_probs", "entropies", "values"):
                    values = getattr(outputs, name)
                    if values is not None:
                        collected.setdefault(name, values.new_zeros(chosen.shape))[some] = values
        return Outputs(collected["log_probs"], collected.get("entropies"), collected.get("values"), None)

    def pack(self, rows: TensorRows, chosen: Tensor) -> MicroBatches:
        """Pack ``rows`` into the passes that compute the log-probs of the ``chosen`` tokens."""
        mask = rows["completion_mask"].bool()
        ends = row_ends(self._computed(mask, chosen)).tolist()
        lengths = rows["prompt_mask"].sum(dim=1).tolist()
        same = number_prompts(rows["prompt_ids"], rows["prompt_mask"])
        every = [TokenRow(*numbers) for numbers in zip(range(len(same)), lengths, ends, same, strict=True)]
        # At least one row: a step without a backward pass would have no gradient instead of 0.
        taken = [row for row in every if row.completion] or [min(every, key=lambda row: (row.prompt, row.index))]
        longest = max(row.prompt + int(length) for row, length in zip(every, mask.sum(dim=1).tolist(), strict=True))
        max_tokens = self.micro_tokens or self.micro_rows * longest
        pass_tokens = GPU_PASS_TOKENS if rows["prompt_ids"].is_cuda else PASS_TOKENS
        micro_batches = pack(taken, max_tokens=max_tokens, share_prompts=self.share_prompts, pass_tokens=pass_tokens)
        if self.is_sharded:
            # Passes are collective operations.
            passes = torch.tensor([len(micro_batches.rows)], device=self.accelerator.device)
            most = int(self.accelerator.gather(passes).max())
            short = min(every, key=lambda row: (row.prompt + row.completion, row.index)).index
            idle = most - len(micro_batches.rows)
            micro_batches = dataclasses.replace(micro_batches, rows=[*[[short]] * idle, *micro_batches.rows], idle=idle)
        return micro_batches

    def _computed(self, mask: Tensor, chosen: Tensor) -> Tensor:
        """Return the tokens (n, T) up to the last of which, in each row, the layers compute."""
        if self.applies_head:
            return chosen
        needed = mask | chosen
        # The auxiliary loss of a mixture of experts needs all rows.
        return needed if self.aux_loss else needed & chosen.any(dim=1, keepdim=True)


def row_ends(chosen: Tensor) -> Tensor:
    """Return (n,) for each row of (n, T) one more than its last chosen column; 0 without any."""
    columns = torch.arange(1, chosen.shape[1] + 1, device=chosen.device)
    return (chosen * columns).amax(dim=1)
