"""The one file that knows TRL's insides. Pinned to trl 1.16; tests/contract fails when a release moves one of them.

What is overridden, and what each override relies on:

- ``_generate_and_score_completions``: called once a rollout with the raw data rows of this process; returns a dict
  of tensors whose first dimension is rows. It calls ``_get_per_token_logps_and_entropies`` for old log-probs where
  there are several updates, and ``_calculate_rewards``, which returns (N, functions) rewards gathered over all
  processes in the order of the rows. With ``beta`` 0 it leaves the reference alone.
- ``_prepare_inputs``: fills the buffer once a rollout, with the rows of each optimizer step. TRL shuffles the rows
  within each process; here the split into optimizer steps is the same for any number of processes.
- ``training_step``: TRL accumulates nothing (``gradient_accumulation_steps`` is 1): one call makes all forward and
  backward passes of an optimizer step, as many as its rows need. Under DDP gradients are averaged over processes in the
  last backward pass (``accelerator.no_sync``; ``gradient_state._set_sync_gradients``, as transformers does it).
- ``compute_loss``: the loss of the rows of one forward pass. It is ``-sum(coefficient * log pi)`` with every choice of
  the method, the KL term and the normaliser inside the coefficient, so none of TRL's losses takes part.
- ``_get_per_token_logps_and_entropies``: TRL's forward pass, used for models that ours (forward.py) does not fit;
  ``ref_model``, or an adapter that is switched off, for the reference policy.
- ``_clip_grad_norm`` clips all parameters by one norm; ``_save`` writes all of the model's weights.
- ``_get_train_sampler``: which prompts make a rollout, each repeated by the size of its group.
- ``_step`` and ``_buffered_inputs``: the counter of steps and the rollout buffer, which TRL does not save.
- ``args.steps_per_generation``, ``num_iterations``, ``beta``, ``_metrics``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import DistributedType
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import pad
from transformers import TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from trl import GRPOConfig, GRPOTrainer
from trl.models.utils import disable_gradient_checkpointing
from trl.trainer.utils import RepeatSampler, use_adapter
from trl.trainer.utils import pad as pad_rows

from rlvr_cli.methods.base import Rollout, Tokens
from rlvr_cli.methods.method import Method
from rlvr_cli.methods.ppo import GAEAdvantage, value_loss
from rlvr_cli.models.gpu import cudnn_attention_off
from rlvr_cli.training.buffer import Rows, gather_rows, split_into_steps
from rlvr_cli.training.forward import head_is_linear, inside, prompts_can_be_shared, read_tokens
from rlvr_cli.training.parts import Parts, Row, deal, numbered_prompts
from rlvr_cli.training.protocols import Meter, Outputs, Rollouts
from rlvr_cli.training.tis import importance_ratios, in_rows
from rlvr_cli.training.trl_arguments import with_method
from rlvr_cli.training.value_head import HEAD_FILE, split_off, value_head_for

READ = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
KEPT = (*READ, "importance_sampling_ratio")
UNUSED = ("advantages", "num_items_in_batch", "old_per_token_logps", "sampling_per_token_logps")


class Position:
    """The counters of a trainer that makes several optimizer steps from each rollout.

    Mixed in before TRL's trainer, whose ``_step`` counts optimizer steps and whose ``num_iterations`` counts passes.
    """

    method: Method
    args: Any
    num_iterations: int
    _step: int

    @property
    def steps_per_rollout(self) -> int:
        """Optimizer steps made from each rollout, all passes counted."""
        return int(self.args.steps_per_generation * self.num_iterations)

    @property
    def rollout_index(self) -> int:
        """The rollout that the next (or current) step belongs to, from 0."""
        return int(self._step // self.steps_per_rollout)

    @property
    def step_in_rollout(self) -> int:
        """The next (or current) step among those of its rollout, from 0."""
        return int(self._step % self.steps_per_rollout)

    @property
    def current_pass(self) -> str:
        """Which tokens the next (or current) step is trained on: a pass of the method."""
        return self._pass_of(self._step)

    @property
    def finished_pass(self) -> str:
        """The pass that the step before the next one belonged to."""
        return self._pass_of(self._step - 1)

    def _pass_of(self, step: int) -> str:
        passes = self.method.passes.names
        return str(passes[step // self.args.steps_per_generation % self.num_iterations % len(passes)])


class MethodTrainer(Position, GRPOTrainer):
    """TRL's GRPOTrainer with the gradient of a method.

    Args:
        method: the method; it decides everything that TRL's loss options would.
        rollouts: where completions and rewards come from; None = TRL's own generation and ``reward_funcs``.
        meter: watches every forward pass of an update.
        group_size: completions of each prompt; None = ``args.num_generations``, which TRL wants to be 2 at least.
        tis_cap: largest weight of a token where trainer and sampler differ (tis.py); None = no weights.
        micro_tokens: tokens of one forward pass; None = as many as ``micro_rows`` of the step's longest row have.
        micro_rows: rows of one forward pass, where ``micro_tokens`` or the packing of short rows does not decide;
            None = ``args.per_device_train_batch_size``.
        compute_everything: leave nothing out of the forward passes, whether it changes a gradient or not.
        correct_above: with reward functions of your own, a completion is correct where its reward is above this; for
            methods that train by correctness (PL, NL, CL, RAFT++). ``rollouts`` have verdicts.
        sampler_exact: whether the log-probs and entropies that ``rollouts`` tells are the policy's up to rounding.
        trl_arguments: as for ``trl.GRPOTrainer``. ``args.num_iterations`` counts whole epochs: a method with two
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
        tis_cap: float | None = None,
        micro_tokens: int | None = None,
        micro_rows: int | None = None,
        compute_everything: bool = False,
        sampler_exact: bool = False,
        correct_above: float = 0.0,
        **trl_arguments: Any,
    ) -> None:
        self.method, self.rollouts, self.meter = method, rollouts, meter
        self.correct_above = correct_above
        self.tis_cap = tis_cap
        self.micro_tokens = micro_tokens
        self.compute_everything = compute_everything
        if tis_cap is not None and rollouts is None:
            raise ValueError("tis_cap weighs by the sampler's log-probs, which TRL's own generation does not give")
        if correct_above and (rollouts is not None or not method.advantage.needs_correct):
            raise ValueError(
                f"correct_above={correct_above:g} has no effect: {method.name} reads no verdict from rewards"
            )
        # With weights for a sampler that differs, the old log-probs must be the trainer's own.
        self._sampler_told = sampler_exact and not compute_everything and tis_cap is None
        self._gathered_rewards: Tensor | None = None
        self._generating = False
        self._initial_entropy: float | None = None
        self._step_count: Tensor | None = None
        self._step_tokens: Tensor | None = None
        self._statistics: Tensor | None = None
        self._step_rows = 0
        self._current: Tensor | None = None
        if rollouts is not None:
            trl_arguments |= {"reward_funcs": [self._rewards], "rollout_func": self._sample}
        given = trl_arguments.pop("args", None) or GRPOConfig()
        self.micro_rows = micro_rows or given.per_device_train_batch_size
        arguments = with_method(given, method)
        self.group_size = group_size or arguments.num_generations
        if arguments.generation_batch_size % self.group_size:
            raise ValueError(
                f"a rollout of {arguments.generation_batch_size} completions does not split into groups of "
                f"{self.group_size}"
            )
        if method.reward.noise > 0 and rollouts is None:
            raise ValueError(
                f"method {method.name} flips the verdicts of a task's verifier "
                f"(reward.noise={method.reward.noise:g}); with reward functions of your own, flip rewards there."
            )
        if method.initial_entropy_samples is not None and rollouts is None:
            raise ValueError(
                f"shaping.entropy_filter.samples={method.initial_entropy_samples} samples before training, which TRL's "
                "own generation does not: leave it out, so that the first rollout is measured."
            )
        self.value_head = value_head_for(method, arguments, trl_arguments)
        super().__init__(args=arguments, **trl_arguments)
        if self.args.device.type == "cuda":
            cudnn_attention_off()
        self.beta = 0.0
        if self.value_head is not None:
            self.value_head.train()
        as_trl_has_it = self.aux_loss_enabled or self.args.cast_lm_head_to_fp32
        self._own_forward = not as_trl_has_it and head_is_linear(self.model)
        # Neither does gradient checkpointing keep keys and values, nor may a divided layer be called twice.
        self._prompts_shared = (
            self._own_forward
            and not self.args.gradient_checkpointing
            and not any(getattr(module, "gradient_checkpointing", False) for module in self.model.modules())
            and not self._divided
            and prompts_can_be_shared(self.model)
        )

    @property
    def _divided(self) -> bool:
        """Whether the processes hold the model in parts: then each must call it as often as the others."""
        return self.accelerator.distributed_type in (DistributedType.DEEPSPEED, DistributedType.FSDP)

    # --- what a run adds ---------------------------------------------------------------------------------------

    def begin_updates(self, rollout: int) -> None:
        """``rollout`` is sampled and scored: seed what is drawn while updating on it (dropout)."""

    def rollout_sampled(self, rows: Rows) -> None:
        """The rows of this process were sampled and judged; nothing was trained on them yet."""

    def initial_entropy_measured(self, nats: float) -> None:
        """The untrained model's entropy was measured on problems, before the first rollout."""

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
        if self.method.initial_entropy_samples is not None and self._initial_entropy is None:
            self._initial_entropy = self._entropy_before_training(self.method.initial_entropy_samples)
            self.initial_entropy_measured(self._initial_entropy)
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
        if self.rollouts is not None and self.method.advantage.needs_correct:
            verdicts = [int(verdict) for verdict in self.rollouts.correct()]
            own["correct"] = torch.tensor(verdicts, device=own["completion_mask"].device)
        self.rollout_sampled(own)
        rows = gather_rows(
            own, self.accelerator.gather, self.accelerator.num_processes, int(self._tokenizer.pad_token_id)
        )
        rollout = self._rollout(rows)
        rows["completion_mask"] = rollout.mask
        estimated, advantages = self.method.rollout_advantages(rollout)
        if self.meter is not None:
            self.meter.add_rollout()
        threshold = self.method.passes.threshold(rollout)
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
        for read in ("entropies", "correct"):
            rows.pop(read, None)
        return {**rows, "advantages": advantages, "estimated": estimated}

    def prediction_step(self, model: Any, inputs: Any, *args: Any, **named: Any) -> tuple[None, None, None]:
        """Samples and scores held-out prompts, TRL's way: their rewards are logged, and there is no loss."""
        self._generating = True
        try:
            with torch.no_grad():
                super()._generate_and_score_completions(inputs)
        finally:
            self._generating = False
        return None, None, None

    def _measured(self, own: Rows) -> Rows:
        """What the method must know before the first update: of the sampler, or from a forward pass."""
        method = self.method
        measured = {"ref_log_probs": self._reference_log_probs(own)} if method.needs_reference else {}
        if self.tis_cap is not None:
            measured["sampler_log_probs"] = self._sampler_log_probs(own)
        first_entropy = method.needs_initial_entropy and self._initial_entropy is None
        entropies_needed = method.needs_rollout_entropies or first_entropy
        old_needed = method.needs_rollout_log_probs
        if self._sampler_told:
            # Lopti's first pass can leave out what it does not train on only if it knows the old log-probs before it.
            if old_needed or method.passes.chooses_by_old_log_probs or self.steps_per_rollout > 1:
                measured["old_log_probs"], old_needed = self._sampler_log_probs(own), False
            entropies = self._sampler_entropies(own) if entropies_needed else None
            if entropies is not None:
                measured["entropies"], entropies_needed = entropies, False
        if entropies_needed or old_needed or self.value_head is not None:
            # The first step's log-probs are its own.
            known = "old_log_probs" in measured or (self.steps_per_rollout == 1 and not old_needed)
            values_only = known and not entropies_needed
            outputs = self._without_gradient(own, entropies=entropies_needed, values_only=values_only)
            if not known:
                measured["old_log_probs"] = outputs.log_probs
            if outputs.entropies is not None:
                measured["entropies"] = outputs.entropies
            if outputs.values is not None:
                measured["values"] = outputs.values
        return measured

    def _entropy_before_training(self, samples: int) -> float:
        """Token mean over one completion of each of the first ``samples`` training problems, of all processes."""
        assert self.rollouts is not None
        share = range(self.accelerator.process_index, samples, self.accelerator.num_processes)
        # Every process samples and goes forward as often, one without a share for nothing.
        prompts, completions, told = self.rollouts.before_training(list(share) or [0])
        if told is not None and self._sampler_told:
            sums = [math.fsum(of_row) for of_row in told]
        else:
            rows = self._padded(prompts, completions)
            training = self.model.training
            self.model.eval()
            try:
                entropies = self._without_gradient(rows, entropies=True).entropies
            finally:
                self.model.train(training)
            assert entropies is not None
            sums = (entropies * rows["completion_mask"]).double().sum(dim=1).tolist()
        own = [math.fsum(sums), sum(map(len, completions))] if share else [0.0, 0]
        totals = torch.tensor(own, dtype=torch.float64, device=self.args.device)
        entropy, tokens = self.accelerator.reduce(totals, reduction="sum").tolist()
        return float(entropy / max(tokens, 1.0))

    def _padded(self, prompts: list[list[int]], completions: list[list[int]]) -> Rows:
        """Rows as TRL's: prompts end where completions begin."""
        filler = int(self._tokenizer.pad_token_id)

        def padded(rows: list[list[int]], fill: int, side: str) -> Tensor:
            tensors = [torch.tensor(row, dtype=torch.int64) for row in rows]
            whole: Tensor = pad_rows(tensors, padding_value=fill, padding_side=side)
            return whole.to(self.args.device)

        def ones(rows: list[list[int]]) -> list[list[int]]:
            return [[1] * len(row) for row in rows]

        return {
            "prompt_ids": padded(prompts, filler, "left"),
            "prompt_mask": padded(ones(prompts), 0, "left"),
            "completion_ids": padded(completions, filler, "right"),
            "completion_mask": padded(ones(completions), 0, "right"),
        }

    def _sampler_entropies(self, own: Rows) -> Tensor | None:
        assert self.rollouts is not None
        entropies = self.rollouts.sampler_entropies()
        return None if entropies is None else in_rows(entropies, own["completion_mask"])

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
            correct=rows["correct"].bool() if "correct" in rows else rewards > self.correct_above,
        )
        if self.method.needs_initial_entropy and self._initial_entropy is None and mask.any():
            assert rollout.entropies is not None
            self._initial_entropy = float(rollout.entropies[mask.bool()].double().mean())
        # Still unknown only where there is no token that it could decide about.
        initial = 0.0 if self._initial_entropy is None else self._initial_entropy
        rollout = dataclasses.replace(rollout, initial_entropy=initial)
        return dataclasses.replace(rollout, rewards=self.method.reward.rewards(rollout))

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        if self.step_in_rollout == 0 or self._buffered_inputs is None:
            rollout = self.rollout_index
            rows = self._generate_and_score_completions(generation_batch)
            self._buffered_inputs = split_into_steps(
                rows,
                self.row_order(rollout, len(rows["completion_ids"])),
                steps=self.args.steps_per_generation,
                process=self.accelerator.process_index,
                processes=self.accelerator.num_processes,
            )
            # The first step's old log-probs are its own; those of later steps must be taken before the policy moves.
            for later in self._buffered_inputs[1:]:
                if "old_log_probs" not in later:
                    later["old_log_probs"] = self._without_gradient(later, read=self._read(later)).log_probs
            self.begin_updates(rollout)
        return self._buffered_inputs[self._step % self.args.steps_per_generation]

    # --- update ------------------------------------------------------------------------------------------------

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """All forward and backward passes of one optimizer step; returns its loss."""
        model.train()
        rows = self._prepare_inputs(inputs)
        self._begin_step(rows)
        read = self._read(rows)
        parts = self._dealt(rows, read)
        # DeepSpeed would divide by its number of micro-batches.
        undivided = {"scale_wrt_gas": False} if self._with_deepspeed else {}
        loss = torch.zeros((), device=self.args.device)
        for number, chosen in enumerate(parts.rows):
            with self._gradients_synchronised(model, last=number + 1 == len(parts.rows)):
                part = {key: value[chosen] for key, value in rows.items()}
                part |= {"read": read[chosen], "index": torch.tensor(chosen, device=read.device)}
                if number < parts.idle:
                    part |= {key: torch.zeros_like(part[key]) for key in ("completion_mask", "read")}
                found = self.compute_loss(model, part, share_prompts=parts.share_prompts)
                self.accelerator.backward(found, **undivided)
                loss = loss + found.detach()
        if self._current is not None:
            rows["old_log_probs"], self._current = self._current, None
        self._step += 1
        return loss

    @contextmanager
    def _gradients_synchronised(self, model: Any, *, last: bool) -> Iterator[None]:
        """Processes that hold the whole model average their gradients in the step's last backward pass, in no other.

        Where they hold it in parts, each pass leaves a process the gradients of its own part: FSDP2 would else keep
        those of the whole model until the last pass, in float32.
        """
        self.accelerator.gradient_state._set_sync_gradients(last)
        apart = not last and not self._divided
        with self.accelerator.no_sync(model) if apart else nullcontext():
            yield

    @property
    def _with_deepspeed(self) -> bool:
        return bool(self.accelerator.distributed_type == DistributedType.DEEPSPEED)

    def _read(self, rows: Rows) -> Tensor:
        """(n, T) the tokens whose log-probs this step's gradient, or a later one by way of the ratio, depends on."""
        known = "old_log_probs" in rows
        if not known and self.method.policy_loss.needs_statistics and self.steps_per_rollout > 1:
            # A later step's statistics compare every token with its old log-prob, trained or not.
            return rows["completion_mask"].bool()
        tokens = self._tokens(rows, torch.zeros_like(rows["completion_ids"], dtype=torch.float32), None)
        return self.method.grad_mask(tokens, self.current_pass, old_known=known)

    def _dealt(self, rows: Rows, read: Tensor) -> Parts:
        """The forward passes over ``rows`` in which the log-probs of the tokens ``read`` are computed."""
        mask = rows["completion_mask"].bool()
        ends = _ends(self._gone_through(mask, read)).tolist()
        lengths = rows["prompt_mask"].sum(dim=1).tolist()
        same = numbered_prompts(rows["prompt_ids"], rows["prompt_mask"])
        every = [Row(*numbers) for numbers in zip(range(len(same)), lengths, ends, same, strict=True)]
        # Somebody must go backward even if nothing is trained: a gradient of 0 is not no gradient.
        dealt = [row for row in every if row.completion] or [min(every, key=lambda row: (row.prompt, row.index))]
        longest = max(row.prompt + int(length) for row, length in zip(every, mask.sum(dim=1).tolist(), strict=True))
        by_tokens = self.micro_tokens or (None if self.compute_everything else self.micro_rows * longest)
        parts = deal(
            dealt,
            most_tokens=by_tokens or 2**62,
            most_rows=None if by_tokens else self.micro_rows,
            share_prompts=self._prompts_shared and not self.compute_everything,
        )
        if self._divided:
            # Each forward and backward pass gathers what all processes hold.
            passes = torch.tensor([len(parts.rows)], device=self.args.device)
            most = int(self.accelerator.gather(passes).max())
            short = min(every, key=lambda row: (row.prompt + row.completion, row.index)).index
            idle = most - len(parts.rows)
            parts = dataclasses.replace(parts, rows=[*[[short]] * idle, *parts.rows], idle=idle)
        return parts

    def _gone_through(self, mask: Tensor, read: Tensor) -> Tensor:
        """(n, T) to the last of which, in each row, the layers compute; (n, T) the completions and the tokens read."""
        whole, taken = mask | read, read.any(dim=1, keepdim=True)
        # The auxiliary loss of a mixture of experts is one of all rows.
        if self.compute_everything or self.aux_loss_enabled:
            read, taken = torch.where(taken, read, whole), torch.ones_like(taken)
        return read if self._own_forward and not self.compute_everything else whole & taken

    def compute_loss(
        self,
        model: Any,
        inputs: Rows,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
        *,
        share_prompts: bool = False,
    ) -> Tensor:
        """-sum(coefficient * log pi) over some rows; its gradient is this part of the step's gradient."""
        read = inputs["read"]
        # With TRL's own generation nobody else tells how certain the policy is.
        entropies = self.method.policy_loss.needs_entropies or self.rollouts is None
        outputs = self._forward(model, inputs, read, entropies=entropies, share_prompts=share_prompts)
        if "old_log_probs" not in inputs and self.steps_per_rollout > 1:
            self._keep(inputs["index"], outputs.log_probs.detach())
        tokens = self._tokens(inputs, outputs.log_probs.detach(), outputs.entropies, read)
        correction = inputs.get("importance_sampling_ratio")
        if self.tis_cap is not None:
            ratios = importance_ratios(tokens.old_log_probs, inputs["sampler_log_probs"])
            correction = ratios.clamp(max=self.tis_cap)
            if self.meter is not None:
                self.meter.add_importance(correction, ratios > self.tis_cap, read)
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
        if outputs.values is not None:
            value_part = self._value_loss(inputs, tokens, outputs.values)
            loss = loss + self.method.critic.coef * value_part
            assert self._step_tokens is not None
            value_part = value_part.detach() * self._step_tokens
        if self.meter is not None:
            self.meter.add(tokens, self.current_pass, self._statistics, value_part)
        # Gradients are averaged over the processes, and every part is a share of the step of all of them.
        loss = loss * self.accelerator.num_processes
        if outputs.aux_loss is not None:
            trained = inputs["completion_mask"].any(dim=1).sum()
            loss = loss + self.router_aux_loss_coef * outputs.aux_loss * trained / self._step_rows
        return loss

    def _keep(self, index: Tensor, log_probs: Tensor) -> None:
        """What the policy that sampled says of some rows of the step: old log-probs of the rollout's later steps."""
        if self._current is None:
            self._current = log_probs.new_zeros(self._step_rows, log_probs.shape[1])
        self._current[index] = log_probs

    def _value_loss(self, rows: Rows, tokens: Tokens, predictions: Tensor) -> Tensor:
        """This micro-batch's share of the step's value loss; each pass trains on its own tokens."""
        assert self._step_tokens is not None
        selected = self.method.passes.selected(tokens, self.current_pass)
        return value_loss(
            predictions, rows["values"], rows["returns"], selected, self._step_tokens, self.method.critic.clip
        )

    def _tokens(self, rows: Rows, log_probs: Tensor, entropies: Tensor | None, read: Tensor | None = None) -> Tokens:
        """The completions of some rows; a token that was not ``read`` is as the policy that sampled it has it."""
        old = rows.get("old_log_probs", log_probs)
        return Tokens(
            log_probs=log_probs if read is None else torch.where(read, log_probs, old),
            old_log_probs=old,
            advantages=rows["advantages"].to(log_probs.dtype),
            mask=rows["completion_mask"],
            entropies=entropies,
            ref_log_probs=rows.get("ref_log_probs"),
            low_threshold=rows.get("low_threshold"),
        )

    def _begin_step(self, rows: Rows) -> None:
        """Count and measure the optimizer step that begins, over all of its rows and all processes."""
        mask = rows["completion_mask"]
        counts = torch.stack([self.method.aggregation.count(mask, rows["estimated"]), mask.sum(dtype=torch.float64)])
        self._step_count, self._step_tokens = self.accelerator.reduce(counts, reduction="sum")
        self._step_rows = len(mask)
        if self.meter is not None:
            self.meter.begin_step(mask)
        self._statistics = None
        if self.method.policy_loss.needs_statistics:
            own = self._every_token(rows)
            parts = {field.name: getattr(own, field.name) for field in dataclasses.fields(own)}
            parts = {key: value for key, value in parts.items() if value is not None}
            whole = Tokens(**gather_rows(parts, self.accelerator.gather, self.accelerator.num_processes, 0))
            self._statistics = self.method.policy_loss.statistics(self.method.shaped(whole, self.current_pass))

    def _every_token(self, rows: Rows) -> Tokens:
        """All tokens of the step that begins, from a forward pass where the policy has moved."""
        if self.step_in_rollout > 0:
            return self._tokens(rows, self._without_gradient(rows).log_probs, None)
        log_probs = rows.get("old_log_probs", torch.zeros_like(rows["completion_ids"], dtype=torch.float32))
        return self._tokens(rows, log_probs, None)

    def _forward(
        self,
        model: Any,
        rows: Rows,
        read: Tensor,
        *,
        entropies: bool,
        share_prompts: bool = False,
        values_only: bool = False,
    ) -> Outputs:
        """One forward pass over some rows, with gradient unless it is switched off.

        Columns that are padding in every row are cut away, and those behind the last token that is read. With
        ``values_only`` the log-probs are 0, where that saves the head.
        """
        wide = max(1, int(_ends(self._gone_through(rows["completion_mask"].bool(), read)).max()))
        first = min(int(rows["prompt_mask"].any(dim=0).int().argmax()), rows["prompt_mask"].shape[1] - 1)
        prompt_ids, prompt_mask = rows["prompt_ids"][:, first:], rows["prompt_mask"][:, first:]
        ids, mask, read = rows["completion_ids"][:, :wide], rows["completion_mask"][:, :wide], read[:, :wide]
        aux_loss = None
        if self._own_forward:
            plain = self.accelerator.unwrap_model(model)
            prompts = None
            if share_prompts:
                numbers = numbered_prompts(prompt_ids, prompt_mask)
                distinct = sorted(set(numbers))
                prompts = torch.tensor([distinct.index(number) for number in numbers], device=ids.device)
                prompt_ids, prompt_mask = prompt_ids[distinct], prompt_mask[distinct]
            at = torch.ones_like(read) if self.compute_everything else read & (not values_only)
            function = partial(read_tokens, plain, temperature=self.temperature, entropies=entropies)
            with self.accelerator.autocast():
                log_probs, found, states = inside(
                    model, plain, function, prompt_ids, prompt_mask, ids, mask, at, prompts
                )
            values = None if self.value_head is None or model is self.ref_model else self.value_head.values(states)
        else:
            log_probs, found, aux_loss = super()._get_per_token_logps_and_entropies(
                model,
                torch.cat([prompt_ids, ids], dim=1),
                torch.cat([prompt_mask, mask], dim=1),
                wide,
                # TRL's head gives the policy's entropies alone.
                compute_entropy=entropies and model is not self.ref_model,
                compute_aux_loss=self.aux_loss_enabled,
            )
            values = None
            if self.value_head is not None and model is not self.ref_model:
                values = self.value_head.values(self.value_head.latest_states(wide))
        missing = rows["completion_ids"].shape[1] - wide

        def placed(columns: Tensor | None, where: Tensor) -> Tensor | None:
            return None if columns is None else pad(torch.where(where, columns, 0.0), (0, missing))

        found_log_probs = placed(log_probs, read)
        assert found_log_probs is not None
        return Outputs(found_log_probs, placed(found, read), placed(values, mask.bool()), aux_loss)

    @torch.no_grad()
    def _without_gradient(
        self,
        rows: Rows,
        model: Any = None,
        *,
        read: Tensor | None = None,
        entropies: bool = False,
        values_only: bool = False,
    ) -> Outputs:
        """Forward passes over any number of rows, for all tokens or those that are ``read`` (n, T)."""
        read = rows["completion_mask"].bool() if read is None else read
        parts = self._dealt(rows, read)
        whole: dict[str, Tensor] = {}
        with disable_gradient_checkpointing(self.model, self.args.gradient_checkpointing_kwargs):
            for chosen in parts.rows:
                outputs = self._forward(
                    model or self.model,
                    {key: rows[key][chosen] for key in READ},
                    read[chosen],
                    entropies=entropies,
                    share_prompts=parts.share_prompts,
                    values_only=values_only,
                )
                for name in ("log_probs", "entropies", "values"):
                    found = getattr(outputs, name)
                    if found is not None:
                        whole.setdefault(name, found.new_zeros(read.shape))[chosen] = found
        return Outputs(whole["log_probs"], whole.get("entropies"), whole.get("values"), None)

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
        if self.value_head is not None:
            rate = self.args.learning_rate * self.method.critic.lr_ratio
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
            self._step = step

    def export_position(self) -> tuple[int, list[Rows], float | None]:
        """The counter of steps, this process's rollout buffer (none between two rollouts), the initial entropy."""
        between = self.step_in_rollout == 0 or self._buffered_inputs is None
        buffer = [] if between else [dict(rows) for rows in self._buffered_inputs or []]
        return self._step, buffer, self._initial_entropy

    def import_position(
        self, steps: int, buffer: Sequence[Mapping[str, Tensor]], initial_entropy: float | None
    ) -> None:
        """Continue where :meth:`export_position` was called."""
        self._step, self._initial_entropy = steps, initial_entropy
        device = self.args.device
        self._buffered_inputs = [{key: value.to(device) for key, value in rows.items()} for rows in buffer] or None


def _ends(chosen: Tensor) -> Tensor:
    """(n,) for each row of (n, T) one more than the last column that is chosen; 0 where none is."""
    columns = torch.arange(1, chosen.shape[1] + 1, device=chosen.device)
    return (chosen * columns).amax(dim=1)
