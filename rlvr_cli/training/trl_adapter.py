"""The one file that knows TRL's insides. Pinned to trl 1.16; tests/contract fails when a release moves one of them.

What is overridden, and what each override relies on:

- ``_generate_and_score_completions``: called once a rollout with the raw data rows of this process; returns a dict
  of tensors whose first dimension is rows, which TRL then shuffles, splits and buffers.
- ``_calculate_rewards``: returns (N, 1) rewards gathered over all processes, in the order of the rows.
- ``_get_per_token_logps_and_entropies``: the only place a forward pass is made; columns that are padding in every
  row are cut away here, which changes no number but for rounding.
- ``_compute_loss``: reads ``advantages`` and ``old_per_token_logps`` *after* the log-probs are known. We hand it the
  current log-probs as the old ones, so its ratio is exactly 1 with gradient grad log pi and its own clipping never
  acts, and advantages ``F * A``. Its gradient is then ``-F A grad log pi`` for any method, and its aggregation, KL
  term and scaling for accumulation stay TRL's.
- ``_prepare_inputs``: fills the buffer once a rollout; the rows of each optimizer step are then sorted by length.
- ``_step`` and ``_buffered_inputs``: the micro-batch counter and the rollout buffer, which TRL does not save.
- ``current_gradient_accumulation_steps``, ``args.steps_per_generation``, ``num_iterations``, ``_metrics``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR
from trl import GRPOConfig, GRPOTrainer

from rlvr_cli.methods.advantage import group_advantage
from rlvr_cli.methods.method import Method
from rlvr_cli.methods.tokens import Tokens

LOSS_TYPE = {"token_mean": "dapo", "sequence_mean": "grpo", "constant_length": "dr_grpo"}


class Rollouts(Protocol):
    """Where completions and rewards come from."""

    def sample(self, rollout: int, problems: Sequence[int], first_row: int) -> tuple[list[list[int]], list[list[int]]]:
        """Prompt and completion token ids for the rows of this process; ``first_row`` is its first global row."""

    def judge(self) -> list[float]:
        """The rewards of the rows just sampled; NaN for a row that must not be learned from."""

    def finish(self, advantages: Sequence[float]) -> None:
        """Take the advantages of the rows just judged, and store everything."""


class Meter(Protocol):
    """What watches the update, micro-batch by micro-batch."""

    def add(self, tokens: Tokens, entropies: Tensor, ref_log_probs: Tensor | None) -> None:
        """The detached tokens of one micro-batch."""


class MethodTrainer(GRPOTrainer, ABC):
    """TRL's GRPOTrainer with the gradient of ``method``; what a run does beside is left to the abstract methods."""

    _buffered_inputs: list[dict[str, Tensor]] | None

    @abstractmethod
    def begin_updates(self, rollout: int) -> None:
        """``rollout`` is sampled and scored: seed what is drawn while updating on it (shuffle of its rows, dropout)."""

    @abstractmethod
    def accept_gradient(self, loss: float, grad_norm: float) -> bool:
        """Whether the optimizer may use the gradient it is about to use."""

    @abstractmethod
    def record_step(self, step: int, grad_norm: float, learning_rate: float) -> None:
        """An optimizer step was made; ``step`` counts from 1."""

    @abstractmethod
    def learning_rate_factor(self, step: int) -> float:
        """Learning rate of optimizer step ``step`` (from 0) as a share of the peak."""

    @abstractmethod
    def save_checkpoint(self, step: int) -> None:
        """Write a checkpoint; called in every process."""

    @abstractmethod
    def load_checkpoint(self, path: Path) -> None:
        """Restore optimizer, schedule and position; the weights are loaded already."""

    @abstractmethod
    def load_random_states(self, path: Path) -> None:
        """Restore the random generators of this process."""

    def __init__(self, *, method: Method, rollouts: Rollouts, meter: Meter, **trl_arguments: Any) -> None:
        self.method = method
        self.rollouts = rollouts
        self.meter = meter
        self._live: dict[str, Any] | None = None
        self._gathered_rewards: Tensor | None = None
        self._loss_sum = torch.zeros((), dtype=torch.float64)
        super().__init__(
            reward_funcs=[self._rewards],
            rollout_func=self._sample,
            **trl_arguments,
        )

    # --- rollout -----------------------------------------------------------------------------------------------

    @property
    def micro_batches_per_rollout(self) -> int:
        """Micro-batches that each rollout is trained on, all passes counted."""
        return int(self.args.steps_per_generation * self.num_iterations)

    @property
    def rollout_index(self) -> int:
        """The rollout that the next (or current) micro-batch belongs to, from 0."""
        return int(self._step // self.micro_batches_per_rollout)

    def _sample(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
        first_row = self.accelerator.process_index * len(self._problems)
        prompt_ids, completion_ids = self.rollouts.sample(self.rollout_index, self._problems, first_row)
        return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": None}

    def _rewards(self, prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
        return self.rollouts.judge()

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Tensor:
        rewards: Tensor = super()._calculate_rewards(*args, **kwargs)
        self._gathered_rewards = rewards[:, 0]
        return rewards

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        self._problems = [row["problem"] for row in inputs]
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        assert self._gathered_rewards is not None
        advantages = group_advantage(
            self._gathered_rewards, self.num_generations, divide_by_std=self.method.divide_by_std
        )
        first_row = self.accelerator.process_index * len(inputs)
        own = advantages[first_row : first_row + len(inputs)]
        self.rollouts.finish(own.tolist())
        self._metrics["train"].clear()
        self.begin_updates(self.rollout_index)
        return {**output, "advantages": own}

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        samples_now = self._step % self.micro_batches_per_rollout == 0 or self._buffered_inputs is None
        inputs = super()._prepare_inputs(generation_batch)
        if not samples_now:
            return inputs
        assert self._buffered_inputs is not None
        self._buffered_inputs = self._sorted_within_steps(self._buffered_inputs)
        return self._buffered_inputs[self._step % self.args.steps_per_generation]

    def _sorted_within_steps(self, buffer: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
        """The same rows in every optimizer step, the shortest first: micro-batches of like lengths need no padding."""
        accumulation = self.args.gradient_accumulation_steps
        ordered: list[dict[str, Tensor]] = []
        for first in range(0, len(buffer), accumulation):
            slices = buffer[first : first + accumulation]
            lengths = torch.cat([rows["completion_mask"].sum(dim=1) for rows in slices])
            order = torch.sort(lengths, stable=True).indices.chunk(accumulation)
            joined = {key: torch.cat([rows[key] for rows in slices]) for key in slices[0] if slices[0][key].dim()}
            shared = {key: value for key, value in slices[0].items() if not value.dim()}
            ordered += [{**shared, **{key: value[part] for key, value in joined.items()}} for part in order]
        return ordered

    # --- update ------------------------------------------------------------------------------------------------

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        parts = []
        for start in range(0, len(input_ids), batch_size or len(input_ids)):
            rows = slice(start, start + (batch_size or len(input_ids)))
            parts.append(self._trimmed_forward(model, input_ids[rows], attention_mask[rows], logits_to_keep, kwargs))
        log_probs = torch.cat([part[0] for part in parts])
        entropies = torch.cat([part[1] for part in parts]) if parts[0][1] is not None else None
        aux_loss = torch.stack([part[2] for part in parts]).mean() if parts[0][2] is not None else None
        if self._live is not None:
            assert entropies is not None
            self._apply_method(self._live, log_probs.detach(), entropies.detach())
        return log_probs, entropies, aux_loss

    def _trimmed_forward(
        self, model: Any, input_ids: Tensor, attention_mask: Tensor, completion_length: int, kwargs: Mapping[str, Any]
    ) -> tuple[Tensor, Any, Any]:
        used = attention_mask.any(dim=0).nonzero().squeeze(1)
        prompt_length = input_ids.shape[1] - completion_length
        first = min(int(used[0]), prompt_length - 1)
        last = max(int(used[-1]) + 1, prompt_length + 1)
        log_probs, entropies, aux_loss = super()._get_per_token_logps_and_entropies(
            model, input_ids[:, first:last], attention_mask[:, first:last], last - prompt_length, **kwargs
        )
        missing = input_ids.shape[1] - last
        pad = torch.nn.functional.pad
        return (
            pad(log_probs, (0, missing)),
            None if entropies is None else pad(entropies, (0, missing)),
            aux_loss,
        )

    def _compute_loss(self, model: Any, inputs: Mapping[str, Any]) -> Tensor:
        # A copy: the buffer's own dict is used again in the next pass over the rollout.
        self._live = {**inputs, "num_items_in_batch": self._normalizer_tokens()}
        try:
            loss: Tensor = super()._compute_loss(model, self._live)
            return loss
        finally:
            self._live = None

    def _apply_method(self, live: dict[str, Any], log_probs: Tensor, entropies: Tensor) -> None:
        old = live.get("old_per_token_logps")
        advantages = live["advantages"].unsqueeze(1)
        tokens = Tokens(log_probs, log_probs if old is None else old, advantages, live["completion_mask"])
        self.meter.add(tokens, entropies, live.get("ref_per_token_logps"))
        live["advantages"] = self.method.weight.weight(tokens) * advantages
        live["old_per_token_logps"] = log_probs

    def _normalizer_tokens(self) -> Tensor:
        """What TRL must be told for its token mean to divide by the tokens of this optimizer step.

        TRL divides by the tokens of the whole rollout, scaled to one step's share of it, so that steps with long
        rows weigh more; we undo the scaling around the count of the step's own tokens, over all processes.
        """
        accumulation, slices = self.current_gradient_accumulation_steps, self.args.steps_per_generation
        first = self._step % slices // accumulation * accumulation
        assert self._buffered_inputs is not None
        step_rows = self._buffered_inputs[first : first + accumulation]
        tokens = sum((rows["completion_mask"].sum() for rows in step_rows), torch.zeros((), device=self.args.device))
        total: Tensor = self.accelerator.reduce(tokens.float(), reduction="sum")
        scaled: Tensor = total * slices / accumulation
        return scaled

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        loss: Tensor = super().training_step(*args, **kwargs)
        self._loss_sum = self._loss_sum + loss.detach().double()
        return loss

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> float:
        # Called once a step, after accumulation and clipping and before the optimizer: the last moment at which a
        # NaN can be kept out of the weights.
        norm = float(super()._get_grad_norm(model, grad_norm))
        loss = float(self.accelerator.reduce(self._loss_sum, reduction="sum"))
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=self.args.device)
        if not self.accept_gradient(loss, norm):
            # Not zeros: an optimizer passes over a parameter without a gradient, momentum and decay included.
            for parameter in model.parameters():
                parameter.grad = None
        return norm

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        # The closing summary of transformers has no gradient norm, and nothing that we have not written already.
        if "grad_norm" in logs:
            self.record_step(self.state.global_step, logs["grad_norm"], logs["learning_rate"])

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        if self.lr_scheduler is None:  # type: ignore[has-type]
            self.lr_scheduler = LambdaLR(optimizer or self.optimizer, self.learning_rate_factor)
            self._created_lr_scheduler = True
        return self.lr_scheduler

    # --- checkpoints -------------------------------------------------------------------------------------------

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        self.save_checkpoint(self.state.global_step)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            self.load_checkpoint(Path(checkpoint))

    def _load_rng_state(self, checkpoint: str | None) -> None:
        # transformers calls this last, after it has moved the data loader to the position of the checkpoint.
        if checkpoint is not None:
            self.load_random_states(Path(checkpoint))

    def export_position(self) -> tuple[int, list[dict[str, Tensor]]]:
        """The micro-batch counter, and this process's rollout buffer; no buffer between two rollouts."""
        if self._step % self.micro_batches_per_rollout == 0 or self._buffered_inputs is None:
            return self._step, []
        return self._step, [dict(rows) for rows in self._buffered_inputs]

    def import_position(self, micro_batches: int, buffer: Sequence[Mapping[str, Tensor]]) -> None:
        """Continue where :meth:`export_position` was called."""
        self._step = micro_batches
        device = self.args.device
        self._buffered_inputs = [{key: value.to(device) for key, value in rows.items()} for rows in buffer] or None


def trl_config(**settings: Any) -> GRPOConfig:
    """TRL's arguments with every default that surprises set to what this project means.

    The KL term is the plain k3 of the GRPO paper (TRL multiplies it by the ratio unless told not to); the data come
    in the order we give; TRL saves, logs and reports nothing by itself.
    """
    return GRPOConfig(
        use_bias_correction_kl=False,
        shuffle_dataset=False,
        remove_unused_columns=False,
        logging_strategy="steps",
        logging_steps=1,
        logging_nan_inf_filter=False,
        report_to="none",
        disable_tqdm=True,
        log_completions=False,
        save_strategy="steps",
        restore_callback_states_from_checkpoint=False,
        num_train_epochs=1,
        **settings,
    )
