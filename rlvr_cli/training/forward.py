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

# Columns that a forward pass reads.
INPUTS = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")


@dataclass(frozen=True)
class Outputs:
    """Outputs of a forward pass at the tokens of n completions.

    Attributes:
        log_probs: (n, T), 0 for tokens that were not chosen. entropies: likewise in nats, with gradient, or None if not
            requested.
        values: (n, T) of the value head, or None.
        aux_loss: () the router's auxiliary loss of a mixture of experts, or None.
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
        applies_head: whether the head is applied here, to the chosen tokens only, instead of by the model.
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
        """Detect the optimizations that ``model`` supports; it must be unsharded and on its device."""
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
        """Run one forward pass over ``rows`` for the ``chosen`` tokens (n, T).

        Columns of padding, and those after the last chosen token, are cut. ``values_only`` may skip the head, which
        leaves the log-probs 0.
        """
        width = max(1, int(row_ends(self._required_tokens(rows["completion_mask"].bool(), chosen)).max()))
        first = min(int(rows["prompt_mask"].any(dim=0).int().argmax()), rows["prompt_mask"].shape[1] - 1)
        prompt_ids, prompt_mask = rows["prompt_ids"][:, first:], rows["prompt_mask"][:, first:]
        ids, mask, chosen = rows["completion_ids"][:, :width], rows["completion_mask"][:, :width], chosen[:, :width]
        values, aux_loss = None, None
        if self.applies_head:
            unwrapped = self.accelerator.unwrap_model(model)
            prompts = None
            if share_prompts:
                numbers = number_prompts(prompt_ids, prompt_mask)
                distinct = sorted(set(numbers))
                prompts = torch.tensor([distinct.index(number) for number in numbers], device=ids.device)
                prompt_ids, prompt_mask = prompt_ids[distinct], prompt_mask[distinct]
            head_tokens = chosen & (not values_only)
            function = partial(chosen_log_probs, unwrapped, temperature=self.temperature, entropies=entropies)
            with self.accelerator.autocast():
                log_probs, chosen_entropies, states = run_in_forward(
                    model, unwrapped, function, prompt_ids, prompt_mask, ids, mask, head_tokens, prompts
                )
            if self.value_head is not None:
                values = self.value_head.values(states)
        else:
            log_probs, chosen_entropies, aux_loss = self.trl_pass(
                model,
                torch.cat([prompt_ids, ids], dim=1),
                torch.cat([prompt_mask, mask], dim=1),
                width,
                compute_entropy=entropies,
                compute_aux_loss=self.aux_loss,
            )
            if self.value_head is not None:
                values = self.value_head.values(self.value_head.latest_states(width))
        cut = rows["completion_ids"].shape[1] - width

        def restore_width(columns: Tensor, valid: Tensor) -> Tensor:
            return pad(torch.where(valid, columns, 0.0), (0, cut))

        return Outputs(
            restore_width(log_probs, chosen),
            None if chosen_entropies is None else restore_width(chosen_entropies, chosen),
            None if values is None else restore_width(values, mask.bool()),
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
        """Run passes without gradient over any number of rows, for ``chosen`` tokens (n, T); None = the policy's."""
        chosen = policy_mask(rows).bool() if chosen is None else chosen
        micro_batches = self.pack(rows, chosen)
        collected: dict[str, Tensor] = {}
        with disable_gradient_checkpointing(model, self.checkpointing):
            for indices in micro_batches.rows:
                outputs = self(
                    model,
                    {key: rows[key][indices] for key in INPUTS},
                    chosen[indices],
                    entropies=entropies,
                    share_prompts=micro_batches.share_prompts,
                    values_only=values_only,
                )
                for name in ("log_probs", "entropies", "values"):
                    values = getattr(outputs, name)
                    if values is not None:
                        collected.setdefault(name, values.new_zeros(chosen.shape))[indices] = values
        return Outputs(collected["log_probs"], collected.get("entropies"), collected.get("values"), None)

    def pack(self, rows: TensorRows, chosen: Tensor) -> MicroBatches:
        """Pack ``rows`` into forward passes for the ``chosen`` tokens (n, T)."""
        mask = rows["completion_mask"].bool()
        ends = row_ends(self._required_tokens(mask, chosen)).tolist()
        lengths = rows["prompt_mask"].sum(dim=1).tolist()
        prompts = number_prompts(rows["prompt_ids"], rows["prompt_mask"])
        all_rows = [TokenRow(*numbers) for numbers in zip(range(len(prompts)), lengths, ends, prompts, strict=True)]
        # At least one row: a step without a backward pass would have no gradient instead of 0.
        packed = [row for row in all_rows if row.completion] or [min(all_rows, key=lambda row: (row.prompt, row.index))]
        longest = max(row.prompt + int(length) for row, length in zip(all_rows, mask.sum(dim=1).tolist(), strict=True))
        max_tokens = self.micro_tokens or self.micro_rows * longest
        pass_tokens = GPU_PASS_TOKENS if rows["prompt_ids"].is_cuda else PASS_TOKENS
        micro_batches = pack(packed, max_tokens=max_tokens, share_prompts=self.share_prompts, pass_tokens=pass_tokens)
        if self.is_sharded:
            # Passes are collective operations: add dummies up to the largest number of any process.
            passes = torch.tensor([len(micro_batches.rows)], device=self.accelerator.device)
            dummies = int(self.accelerator.gather(passes).max()) - len(micro_batches.rows)
            shortest = min(all_rows, key=lambda row: (row.prompt + row.completion, row.index)).index
            row_lists = [*[[shortest]] * dummies, *micro_batches.rows]
            micro_batches = dataclasses.replace(micro_batches, rows=row_lists, dummies=dummies)
        return micro_batches

    def _required_tokens(self, mask: Tensor, chosen: Tensor) -> Tensor:
        """Return (n, T) tokens; the last one of each row is where the layers may stop."""
        if self.applies_head:
            return chosen
        required = mask | chosen
        # The auxiliary loss of a mixture of experts needs all rows.
        return required if self.aux_loss else required & chosen.any(dim=1, keepdim=True)


def row_ends(chosen: Tensor) -> Tensor:
    """Return (n,) the end of each row's chosen columns (n, T): one after the last; 0 for a row without any."""
    columns = torch.arange(1, chosen.shape[1] + 1, device=chosen.device)
    return (chosen * columns).amax(dim=1)
