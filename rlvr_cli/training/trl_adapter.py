"""The one file that knows TRL's insides. Pinned to trl 1.16; tests/contract fails when a release moves one of them.

What is overridden, and what each override relies on:

- ``_generate_and_score_completions``: called once a rollout with the raw data rows of this process; returns a dict
  of tensors whose first dimension is rows. It calls ``_get_per_token_logps_and_entropies`` for old log-probs where
  there are several updates, and ``_calculate_rewards``, which returns (N, functions) rewards gathered over all
  processes in the order of the rows. With ``beta`` 0 it leaves the reference alone.
- ``_prepare_inputs``: called for every micro-batch; fills the buffer once a rollout. TRL shuffles the rows within each
  process; here the split into optimizer steps is the same for any number of processes.
- ``compute_loss``: the loss of a micro-batch, already scaled for accumulation (``loss_is_scaled_for_ga``); gradients
  are averaged over processes. It is ``-sum(coefficient * log pi)`` with every choice of the method, the KL term and
  the normaliser inside the coefficient, so none of TRL's losses takes part.
- ``_get_per_token_logps_and_entropies``: TRL's forward pass, used where ours (head.py) does not fit; ``ref_model``, or
  an adapter that is switched off, for the reference policy.
- ``_clip_grad_norm`` clips all parameters by one norm; ``_save`` writes all of the model's weights.
- ``_get_train_sampler``: which prompts make a rollout, each repeated by the size of its group.
- ``_step`` and ``_buffered_inputs``: the micro-batch counter and the rollout buffer, which TRL does not save.
- ``current_gradient_accumulation_steps``, ``args.steps_per_generation``, ``num_iterations``, ``beta``, ``_metrics``.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from trl import GRPOConfig, GRPOTrainer
from trl.models.utils import disable_gradient_checkpointing
from trl.trainer.utils import RepeatSampler, use_adapter

from rlvr_cli.methods.gae import GAEAdvantage, value_loss
from rlvr_cli.methods.method import Method
from rlvr_cli.methods.rollout import Rollout
from rlvr_cli.methods.tokens import Tokens
from rlvr_cli.training.buffer import Rows, gather_rows, split_into_steps
from rlvr_cli.training.head import log_probs_and_entropies, plain_head_fits
from rlvr_cli.training.importance import importance_ratios, in_rows
from rlvr_cli.training.position import Position
from rlvr_cli.training.protocols import Meter, Outputs, Rollouts
from rlvr_cli.training.trl_arguments import with_method
from rlvr_cli.training.value_head import HEAD_FILE, split_off, value_head_for

READ = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
KEPT = (*READ, "importance_sampling_ratio")
UNUSED = ("advantages", "num_items_in_batch", "old_per_token_logps", "sampling_per_token_logps")


class MethodTrainer(Position, GRPOTrainer):
    """TRL's GRPOTrainer with the gradient of a method.

    Args:
        method: the method; it decides everything that TRL's loss options would.
        rollouts: where completions and rewards come from; None = TRL's own generation and ``reward_funcs``.
        meter: watches every micro-batch.
        group_size: completions of each prompt; None = ``args.num_generations``, which TRL wants to be 2 at least.
        importance_cap: largest weight of a token where trainer and sampler differ (importance.py); None = no weights.
        trl_arguments: as for ``trl.GRPOTrainer``. ``args.num_iterations`` counts whole schedules: a method with two
            passes makes twice as many optimizer steps. ``args.max_steps`` counts optimizer steps.

    Raises:
        ValueError: ``args`` sets an option that the method decides, groups do not fill a rollout, or the method needs
            something that this trainer cannot give it.
    """

    _buffered_inputs: list[Rows] | None

    def __init__(
        self,
        *,
        method: Method,
        rollouts: Rollouts | None = None,
        meter: Meter | None = None,
        group_size: int | None = None,
        importance_cap: float | None = None,
        **trl_arguments: Any,
    ) -> None:
        self.method, self.rollouts, self.meter = method, rollouts, meter
        self.importance_cap = importance_cap
        if importance_cap is not None and rollouts is None:
            raise ValueError(
                "importance_cap weighs by the sampler's log-probs, which TRL's own generation does not give"
            )
        self._gathered_rewards: Tensor | None = None
        self._generating = False
        self._initial_entropy: float | None = None
        self._step_count: Tensor | None = None
        self._step_tokens: Tensor | None = None
        self._statistics: Tensor | None = None
        if rollouts is not None:
            trl_arguments |= {"reward_funcs": [self._rewards], "rollout_func": self._sample}
        arguments = with_method(trl_arguments.pop("args", None) or GRPOConfig(), method)
        self.group_size = group_size or arguments.num_generations
        if arguments.generation_batch_size % self.group_size:
            raise ValueError(
                f"a rollout of {arguments.generation_batch_size} completions does not split into groups of "
                f"{self.group_size}"
            )
        if method.noise > 0 and rollouts is None:
            raise ValueError(
                f"method {method.name} flips the verdicts of a task's verifier (reward.noise={method.noise:g}); with "
                "reward functions of your own, flip rewards there."
            )
        self.value_head = value_head_for(method, arguments, trl_arguments)
        super().__init__(args=arguments, **trl_arguments)
        self.beta = 0.0
        if self.value_head is not None:
            self.value_head.train()
        plain = self.model.get_base_model() if hasattr(self.model, "peft_config") else self.model
        reads = inspect.signature(type(plain).forward).parameters
        self._plain_head = {"logits_to_keep", "position_ids"} <= set(reads)

    # --- where we are ------------------------------------------------------------------------------------------

    def _window(self) -> list[Rows]:
        """The micro-batches of the current optimizer step, on this process."""
        accumulation = self.args.gradient_accumulation_steps
        first = self._step % self.args.steps_per_generation // accumulation * accumulation
        assert self._buffered_inputs is not None
        return self._buffered_inputs[first : first + accumulation]

    # --- what a run adds ---------------------------------------------------------------------------------------

    def begin_updates(self, rollout: int) -> None:
        """``rollout`` is sampled and scored: seed what is drawn while updating on it (dropout)."""

    def rollout_sampled(self, rows: Rows) -> None:
        """The rows of this process were sampled and judged; nothing was trained on them yet."""

    def row_order(self, rollout: int, rows: int) -> Tensor:
        """(rows,) permutation that deals the rows of ``rollout`` to optimizer steps; equal in all processes."""
        generator = torch.Generator().manual_seed(self.args.seed + rollout)
        return torch.randperm(rows, generator=generator)

    # --- rollout -----------------------------------------------------------------------------------------------

    def _get_train_sampler(self, dataset: Any = None) -> RepeatSampler:
        return RepeatSampler(
            data_source=self.train_dataset if dataset is None else dataset,
            mini_repeat_count=self.group_size,
            batch_size=self.args.generation_batch_size // self.group_size,
            repeat_count=self.num_iterations * self.args.steps_per_generation,
            shuffle=self.shuffle_dataset,
            seed=self.args.seed,
        )

    def _sample(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
        assert self.rollouts is not None
        first_row = self.accelerator.process_index * len(self._problems)
        prompt_ids, completion_ids = self.rollouts.sample(self.rollout_index, self._problems, first_row)
        return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": None}

    def _rewards(self, prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
        assert self.rollouts is not None
        return self.rollouts.judge()

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Tensor:
        rewards: Tensor = super()._calculate_rewards(*args, **kwargs)
        unscored = rewards.isnan().all(dim=1)
        total = (rewards * self.reward_weights.to(rewards.device)).nansum(dim=1)
        self._gathered_rewards = total.masked_fill(unscored, torch.nan)
        return rewards

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> Rows:
        """Every row of the rollout, of all processes, with what it is trained with."""
        self._problems = [row["problem"] for row in inputs] if self.rollouts is not None else []
        self._generating = True
        try:
            output = super()._generate_and_score_completions(inputs)
        finally:
            self._generating = False
        unknown = set(output) - {*KEPT, *UNUSED}
        if unknown:
            raise ValueError(f"rollouts with {', '.join(sorted(unknown))} are not supported")
        own: Rows = {key: output[key] for key in KEPT if key in output}
        own |= self._measured(own)
        self.rollout_sampled(own)
        rows = gather_rows(
            own, self.accelerator.gather, self.accelerator.num_processes, int(self._tokenizer.pad_token_id)
        )
        rollout = self._rollout(rows)
        rows["completion_mask"] = rollout.mask
        estimated, advantages = self.method.rollout_advantages(rollout)
        if self.meter is not None:
            self.meter.add_rollout()
        threshold = self.method.schedule.threshold(rollout)
        if threshold is not None:
            rows["low_threshold"] = torch.full((len(advantages), 1), threshold, device=advantages.device)
        if self.rollouts is not None:
            first = self.accelerator.process_index * len(inputs)
            part = slice(first, first + len(inputs))
            means = rollout.row_mean(advantages.expand_as(rollout.mask))[part].tolist()
            values = None
            if rollout.values is not None:
                # A row without tokens has no prediction.
                seen = rollout.mask.any(dim=1)
                values = torch.where(seen, rollout.row_mean(rollout.values), torch.nan)[part].tolist()
            self.rollouts.finish(rollout.rewards[part].tolist(), means, values)
        if isinstance(self.method.advantage, GAEAdvantage):
            rows["returns"] = self.method.advantage.returns(rollout)
        rows.pop("entropies", None)
        return {**rows, "advantages": advantages, "estimated": estimated}

    def _measured(self, own: Rows) -> Rows:
        """What the method must know before the first update, from a forward pass of the policy or its reference."""
        method = self.method
        measured = {"ref_log_probs": self._reference_log_probs(own)} if method.needs_reference else {}
        if self.importance_cap is not None:
            measured["sampler_log_probs"] = self._sampler_log_probs(own)
        first_entropy = method.needs_initial_entropy and self._initial_entropy is None
        entropies_needed = method.needs_rollout_entropies or first_entropy
        if entropies_needed or method.needs_rollout_log_probs or self.value_head is not None:
            outputs = self._without_gradient(own)
            measured["old_log_probs"] = outputs.log_probs
            if entropies_needed:
                measured["entropies"] = outputs.entropies
            if outputs.values is not None:
                measured["values"] = outputs.values
        return measured

    def _sampler_log_probs(self, own: Rows) -> Tensor:
        assert self.rollouts is not None
        return in_rows(self.rollouts.sampler_log_probs(), own["completion_mask"])

    def _rollout(self, rows: Rows) -> Rollout:
        rewards = self._gathered_rewards
        assert rewards is not None
        # A row that must not be learned from has no tokens: no KL, no share in any statistic or divisor.
        mask = rows["completion_mask"] * ~rewards.isnan().unsqueeze(1)
        rollout = Rollout(
            rewards=rewards,
            group_size=self.group_size,
            token_ids=rows["completion_ids"],
            mask=mask,
            old_log_probs=rows.get("old_log_probs"),
            entropies=rows.get("entropies"),
            ref_log_probs=rows.get("ref_log_probs"),
            values=rows.get("values"),
        )
        if self.method.needs_initial_entropy and self._initial_entropy is None and mask.any():
            assert rollout.entropies is not None
            self._initial_entropy = float(rollout.entropies[mask.bool()].double().mean())
        # Still unknown only where there is no token that it could decide about.
        initial = 0.0 if self._initial_entropy is None else self._initial_entropy
        rollout = dataclasses.replace(rollout, initial_entropy=initial)
        return dataclasses.replace(rollout, rewards=self.method.rewards(rollout))

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        if self._step % self.micro_batches_per_rollout == 0 or self._buffered_inputs is None:
            rollout = self.rollout_index
            rows = self._generate_and_score_completions(generation_batch)
            updates = self.args.steps_per_generation // self.args.gradient_accumulation_steps
            self._buffered_inputs = split_into_steps(
                rows,
                self.row_order(rollout, len(rows["completion_ids"])),
                steps=updates,
                micro_batches=self.args.gradient_accumulation_steps,
                process=self.accelerator.process_index,
                processes=self.accelerator.num_processes,
            )
            # The first step's old log-probs are its own; those of later steps must be taken before the policy moves.
            for later in self._buffered_inputs[self.args.gradient_accumulation_steps :]:
                if "old_log_probs" not in later:
                    later["old_log_probs"] = self._without_gradient(later).log_probs
            self.begin_updates(rollout)
        return self._buffered_inputs[self._step % self.args.steps_per_generation]

    # --- update ------------------------------------------------------------------------------------------------

    def compute_loss(
        self, model: Any, inputs: Rows, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor:
        """-sum(coefficient * log pi) over a micro-batch; its gradient is this part of the step's gradient."""
        if self._step % self.args.gradient_accumulation_steps == 0:
            self._begin_step()
        outputs = self._forward(model, inputs)
        current = outputs.log_probs.detach()
        if "old_log_probs" not in inputs and self.steps_per_rollout > 1:
            inputs["old_log_probs"] = current
        tokens = self._tokens(inputs, current, outputs.entropies.detach())
        correction = inputs.get("importance_sampling_ratio")
        if self.importance_cap is not None:
            ratios = importance_ratios(tokens.old_log_probs, inputs["sampler_log_probs"])
            correction = ratios.clamp(max=self.importance_cap)
            if self.meter is not None:
                self.meter.add_importance(correction, ratios > self.importance_cap, tokens.mask)
        assert self._step_count is not None
        coefficients = self.method.coefficients(
            tokens,
            self._step_count,
            self.current_pass,
            self._statistics,
            sampler_correction=correction,
        )
        loss: Tensor = -(coefficients * outputs.log_probs).sum()
        value_part = None
        if outputs.values is not None and isinstance(self.method.advantage, GAEAdvantage):
            value_part = self._value_loss(self.method.advantage, inputs, tokens, outputs.values)
            loss = loss + self.method.advantage.value_coef * value_part
            assert self._step_tokens is not None
            value_part = value_part.detach() * self._step_tokens
        if self.meter is not None:
            self.meter.add(tokens, self.current_pass, self._statistics, value_part)
        # Gradients are averaged over the processes, and every part is a share of the step of all of them.
        loss = loss * self.accelerator.num_processes
        if outputs.aux_loss is not None:
            loss = loss + self.router_aux_loss_coef * outputs.aux_loss / self.args.gradient_accumulation_steps
        return loss

    def _value_loss(self, advantage: GAEAdvantage, rows: Rows, tokens: Tokens, predictions: Tensor) -> Tensor:
        """This micro-batch's share of the step's value loss; each pass of the schedule trains on its own tokens."""
        assert self._step_tokens is not None
        selected = self.method.schedule.selected(tokens, self.current_pass)
        return value_loss(
            predictions, rows["values"], rows["returns"], selected, self._step_tokens, advantage.value_clip
        )

    def _tokens(self, rows: Rows, log_probs: Tensor, entropies: Tensor | None) -> Tokens:
        return Tokens(
            log_probs=log_probs,
            old_log_probs=rows.get("old_log_probs", log_probs),
            advantages=rows["advantages"].to(log_probs.dtype),
            mask=rows["completion_mask"],
            entropies=entropies,
            ref_log_probs=rows.get("ref_log_probs"),
            low_threshold=rows.get("low_threshold"),
        )

    def _begin_step(self) -> None:
        """Count and measure the optimizer step that begins, over all its micro-batches and processes."""
        window = self._window()
        counts = []
        for rows in window:
            mask = rows["completion_mask"]
            rows_or_tokens = self.method.aggregation.count(mask, rows["estimated"])
            counts.append(torch.stack([rows_or_tokens, mask.sum(dtype=torch.float64)]))
        self._step_count, self._step_tokens = self.accelerator.reduce(torch.stack(counts).sum(dim=0), reduction="sum")
        self._statistics = None
        if self.method.weight.needs_statistics:
            processes = self.accelerator.num_processes
            parts = [self._step_part(rows) for rows in window]
            joined = {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
            whole = Tokens(**gather_rows(joined, self.accelerator.gather, processes, 0))
            self._statistics = self.method.weight.statistics(self.method.shaped(whole, self.current_pass))

    def _step_part(self, rows: Rows) -> Rows:
        """The tokens of one micro-batch of the step that begins, from a forward pass where the policy has moved."""
        old = rows.get("old_log_probs")
        if self.step_in_rollout > 0:
            outputs = self._without_gradient(rows)
            log_probs, entropies = outputs.log_probs, outputs.entropies
        else:
            log_probs = torch.zeros_like(rows["completion_ids"], dtype=torch.float32) if old is None else old
            entropies = torch.zeros_like(log_probs)
        tokens = self._tokens(rows, log_probs, entropies)
        parts = {field.name: getattr(tokens, field.name) for field in dataclasses.fields(tokens)}
        return {key: value for key, value in parts.items() if value is not None}

    def _forward(self, model: Any, rows: Rows) -> Outputs:
        """One forward pass over some rows, with gradient unless it is switched off.

        Columns that are padding in every row are cut away, which changes no number but for rounding.
        """
        input_ids = torch.cat([rows["prompt_ids"], rows["completion_ids"]], dim=1)
        attention_mask = torch.cat([rows["prompt_mask"], rows["completion_mask"]], dim=1)
        used = attention_mask.any(dim=0).nonzero().squeeze(1)
        prompt_length = rows["prompt_ids"].shape[1]
        first = min(int(used[0]), prompt_length - 1)
        last = max(int(used[-1]) + 1, prompt_length + 1)
        ids, mask, kept = input_ids[:, first:last], attention_mask[:, first:last], last - prompt_length
        aux_loss = None
        if self._plain_head and not self.aux_loss_enabled and plain_head_fits(self.model, ids, kept):
            with self.accelerator.autocast():
                log_probs, entropies = log_probs_and_entropies(model, ids, mask, kept, self.temperature)
        else:
            # TRL's head gives the policy's entropies alone.
            measured = model is not self.ref_model
            log_probs, entropies, aux_loss = super()._get_per_token_logps_and_entropies(
                model, ids, mask, kept, compute_entropy=measured, compute_aux_loss=self.aux_loss_enabled
            )
            entropies = entropies if measured else torch.zeros_like(log_probs)
        values = None if self.value_head is None or model is self.ref_model else self.value_head.values(kept)
        width = rows["completion_ids"].shape[1]
        valid = _padded(mask[:, -kept:], width).bool()

        def placed(columns: Tensor) -> Tensor:
            return torch.where(valid, _padded(columns, width), 0.0)

        return Outputs(placed(log_probs), placed(entropies), None if values is None else placed(values), aux_loss)

    @torch.no_grad()
    def _without_gradient(self, rows: Rows, model: Any = None) -> Outputs:
        """A forward pass over any number of rows, in micro-batches of like lengths."""
        order = torch.sort(rows["completion_mask"].sum(dim=1), stable=True).indices
        parts = []
        with disable_gradient_checkpointing(self.model, self.args.gradient_checkpointing_kwargs):
            for chosen in order.split(self.args.per_device_train_batch_size):
                parts.append(self._forward(model or self.model, {key: rows[key][chosen] for key in READ}))
        back = torch.argsort(order)
        values = [part.values for part in parts if part.values is not None]
        return Outputs(
            log_probs=torch.cat([part.log_probs for part in parts])[back],
            entropies=torch.cat([part.entropies for part in parts])[back],
            values=torch.cat(values)[back] if values else None,
            aux_loss=None,
        )

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Tensor, attention_mask: Tensor, logits_to_keep: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        # TRL asks for old log-probs of every row while it scores a rollout. We take them later, and only of those
        # rows whose policy will have moved; vLLM's correction is computed from them at once.
        if self._generating and not self.use_vllm:
            return torch.zeros_like(input_ids[:, -logits_to_keep:], dtype=torch.float32), None, None
        outputs: tuple[Tensor, Tensor | None, Tensor | None] = super()._get_per_token_logps_and_entropies(
            model, input_ids, attention_mask, logits_to_keep, *args, **kwargs
        )
        return outputs

    def _reference_log_probs(self, rows: Rows) -> Tensor:
        if self.ref_model is not None:
            return self._without_gradient(rows, self.ref_model).log_probs
        policy = self.accelerator.unwrap_model(self.model)
        with use_adapter(policy, adapter_name="ref" if "ref" in policy.peft_config else None):
            return self._without_gradient(rows).log_probs

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        """The optimizer, with the value head's parameters in a group of their own rate."""
        optimizer = super().create_optimizer(*args, **kwargs)
        if self.value_head is not None and isinstance(self.method.advantage, GAEAdvantage):
            rate = self.args.learning_rate * self.method.advantage.value_lr_ratio
            self.value_head.move_to_own_group(optimizer, rate)
        return optimizer

    def _clip_grad_norm(self, model: Any) -> Any:
        if self.value_head is None:
            return super()._clip_grad_norm(model)
        # Each by itself: the value loss is of the size of squared rewards and would use up the policy's allowance.
        with self.value_head.gradients_apart(self.args.max_grad_norm):
            return super()._clip_grad_norm(model)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        if self.value_head is None:
            super()._save(output_dir, state_dict)
            return
        own, head = split_off(self.model.state_dict() if state_dict is None else state_dict)
        super()._save(output_dir, own)
        save_file(head, Path(output_dir or self.args.output_dir) / HEAD_FILE)

    # --- position ----------------------------------------------------------------------------------------------

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            if self.method.needs_initial_entropy:
                raise ValueError(
                    f"method {self.method.name} compares with the entropy of the untrained model, which TRL's "
                    "checkpoints do not hold: it cannot be resumed from one."
                )
            if self.value_head is not None:
                self.value_head.load(Path(checkpoint))
            step = TrainerState.load_from_json(str(Path(checkpoint) / TRAINER_STATE_NAME)).global_step
            if step % self.steps_per_rollout:
                raise ValueError(
                    f"{checkpoint} was saved in the middle of a rollout (step {step}, {self.steps_per_rollout} steps "
                    "each), and TRL does not save the rollout. Resume from a step between two rollouts."
                )
            self._step = step * self.args.gradient_accumulation_steps

    def export_position(self) -> tuple[int, list[Rows], float | None]:
        """The micro-batch counter, this process's rollout buffer (none between two rollouts), the initial entropy."""
        between = self._step % self.micro_batches_per_rollout == 0 or self._buffered_inputs is None
        buffer = [] if between else [dict(rows) for rows in self._buffered_inputs or []]
        return self._step, buffer, self._initial_entropy

    def import_position(
        self, micro_batches: int, buffer: Sequence[Mapping[str, Tensor]], initial_entropy: float | None
    ) -> None:
        """Continue where :meth:`export_position` was called."""
        self._step, self._initial_entropy = micro_batches, initial_entropy
        device = self.args.device
        self._buffered_inputs = [{key: value.to(device) for key, value in rows.items()} for rows in buffer] or None


def _padded(values: Tensor, width: int) -> Tensor:
    """(n, T) values with zeros to the right up to ``width``."""
    return torch.nn.functional.pad(values, (0, width - values.shape[1]))
