"""TRL's GRPOTrainer with the gradient of a method.

The only file that depends on TRL's internals. Pinned to trl 1.16; tests/contract fails when a release changes them.
The overridden methods, and the behaviour of TRL that each relies on:

- ``training_step``: with ``gradient_accumulation_steps`` 1, one call runs all forward and backward passes of an
  optimizer step, and transformers' other work of a step. DDP averages gradients in the last backward pass
  (``accelerator.no_sync``; ``gradient_state._set_sync_gradients``, as in transformers). Its batch is the whole rollout
  (TRL's data loader), each prompt repeated by the size of its group.
- ``_calculate_rewards(inputs, prompts, completions, completion_ids_list)`` returns (N, functions) rewards gathered over
  all processes in the order of the rows; ``eos_token_ids`` are the ids that end a completion. Without another source
  of rollouts it is called by ``_generate_and_score_completions``, which samples rows for this process's prompts and
  with ``beta`` 0 evaluates no reference.
- ``_get_per_token_logps_and_entropies``: TRL's forward pass, used for models that ours (log_probs.py) does not
  support, and disabled while TRL scores a rollout. The reference policy is ``ref_model``, or the disabled adapter.
- ``_metrics["train"]`` has lists of numbers by name, whose means are logged.
- ``_logs["advantages"]`` ends with TRL's group advantages of the rows just sampled, of all processes.
- ``prediction_step``, ``create_optimizer``, ``log``; ``_clip_grad_norm`` clips all parameters by one norm; ``_save``
  and ``_load_from_checkpoint`` write and read the model's weights.
- ``args.steps_per_generation``, ``num_iterations``, ``num_generations``, ``beta``.
- ``entropy_coef`` and ``_last_world_entropy``, the state of an adaptive entropy bonus, which ``_save_checkpoint`` and
  ``_load_optimizer_and_scheduler`` save and restore with ``use_adaptive_entropy``.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, ClassVar

import torch
from accelerate.utils import DistributedType
from accelerate.utils.memory import clear_device_cache
from safetensors.torch import save_file
from torch import Tensor
from transformers.training_args import OptimizerNames
from trl import GRPOConfig, GRPOTrainer
from trl.models import prepare_deepspeed, prepare_fsdp
from trl.trainer.utils import use_adapter

from rlvr_cli.config.schema import Config
from rlvr_cli.core.text import did_you_mean
from rlvr_cli.methods.base import Rollout, Tokens
from rlvr_cli.methods.correction import Correction
from rlvr_cli.methods.method import Method
from rlvr_cli.methods.opd import check_teacher
from rlvr_cli.models.card import card_metadata
from rlvr_cli.models.generation import keep_generation_config
from rlvr_cli.models.gpu import disable_cudnn_attention
from rlvr_cli.tasks.base import response_text
from rlvr_cli.training.dropout import disable_dropouts, find_dropouts
from rlvr_cli.training.forward import INPUTS, Outputs, PolicyForward
from rlvr_cli.training.metrics import StepMeter
from rlvr_cli.training.objective import Step, build_tokens, loss
from rlvr_cli.training.packing import TensorRows, gather_rows, pad_rows, policy_mask, split_into_steps
from rlvr_cli.training.rollouts import RolloutBatch, RolloutSource
from rlvr_cli.training.scoring import Scoring, eval_mode
from rlvr_cli.training.teacher import load_teacher, resolve_teacher
from rlvr_cli.training.trl_arguments import MethodComponent, apply_method, resolve_method
from rlvr_cli.training.value_head import HEAD_FILE, attach_value_head, split_value_head
from rlvr_cli.workers.reward import LARGEST_REWARD, NUMBER

USED_COLUMNS = (*INPUTS, "tool_mask", "importance_sampling_ratio")
IGNORED_COLUMNS = ("advantages", "num_items_in_batch", "old_per_token_logps", "sampling_per_token_logps")


class PolicyTrainer(GRPOTrainer):
    """TRL's GRPOTrainer with the gradient of any method.

    Args:
        model, reward_funcs, train_dataset, eval_dataset, processing_class, reward_processing_classes, callbacks,
            optimizers: as in ``trl.GRPOTrainer``. An evaluation samples ``eval_dataset`` and logs the rewards
            (``eval_reward``), no loss.
        args: TRL's arguments; ``num_iterations`` counts whole epochs (two passes each for Lopti), ``max_steps``
            optimizer steps. None = TRL's defaults, and an output folder named after model and method.
        method: a name (``"dgpo+lopti"``), a whole method, or a component (``DGPO(n=2.0)``), which replaces that of the
            method of its name.
        overrides: changes to a named method as on the command line, without ``method.``: ``policy_loss.n=2``. If they
            add a KL term (``kl.beta=0.04``), ``kl.bias_correction`` defaults to ``args.use_bias_correction_kl``.
        correct, correct_above: name of a reward function (None = the first) and its threshold, above which a completion
            is correct; for methods that train by correctness (PL, NL, CL, RAFT++). ``rollouts`` have verdicts.
        rollouts: source of completions and rewards in place of TRL's generation and ``reward_funcs``; the data set then
            has the problems' indices (column ``problem``).
        meter: collects statistics of every forward pass of an update.
        group_size: completions of each prompt; None = ``args.num_generations``, at least 2 in TRL.
        correction: weights for a sampler that differs from the policy (methods/correction.py); None = no weights.
        micro_tokens: tokens of one forward pass; None = those of ``micro_rows`` of the step's longest row.
        micro_rows: with ``micro_tokens`` None, the number of longest rows in one forward pass; None =
            ``args.per_device_train_batch_size``.
        dropout: update with the model's dropout. TRL's ``disable_dropout`` disables that of adapters too.
        sampler_exact: whether the log-probs and entropies of ``rollouts`` equal the policy's up to rounding.
        teacher: the model of a method with a teacher; None = loaded by the name in its ``advantage.teacher``.
        others: further arguments of ``trl.GRPOTrainer``.

    Raises:
        UserError: an unknown policy-gradient method, or an override of a key that it lacks.
        ValueError: ``args`` sets an option that the method decides, a rollout is not a multiple of the group size, or
            this trainer lacks an input of the method.
    """

    default_method: ClassVar[str] = "grpo"
    method: Method

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: GRPOConfig | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        reward_processing_classes: Any = None,
        callbacks: Any = None,
        optimizers: tuple[Any, Any] = (None, None),
        *,
        method: str | Method | MethodComponent | None = None,
        overrides: Sequence[str] = (),
        correct: str | None = None,
        correct_above: float = 0.0,
        rollouts: RolloutSource | None = None,
        meter: StepMeter | None = None,
        group_size: int | None = None,
        correction: Correction | None = None,
        micro_tokens: int | None = None,
        micro_rows: int | None = None,
        dropout: bool = False,
        sampler_exact: bool = False,
        teacher: Any = None,
        **others: Any,
    ) -> None:
        named = resolve_method(
            self.default_method if method is None else method,
            overrides,
            bias_correction=args is None or args.use_bias_correction_kl,
        )
        if args is None:
            name = model if isinstance(model, str) else model.config.name_or_path
            args = GRPOConfig(f"{name.rstrip('/').rpartition('/')[2]}-{named.name}")
        if dropout and args.disable_dropout:
            raise ValueError("dropout=True and disable_dropout=True in args cannot be combined. Remove one.")
        self.method = named.with_max_length(args.max_completion_length)
        self.rollouts, self.correction = rollouts, correction
        self.correct, self.correct_above = correct, correct_above
        self._check_arguments(args)
        if teacher is None:
            check_teacher(named.name, self.method.advantage)
        elif not self.method.advantage.needs_teacher:
            raise ValueError(f"teacher has no effect: {named.name} has no teacher. Remove it.")
        if rollouts is None:
            _check_data(args, train_dataset, eval_dataset)
        self.meter = meter or StepMeter(self.method, entropies=rollouts is None)
        self._trl_rewards: Tensor | None = None
        self._trl_judged: Tensor | None = None
        self._trl_parts = torch.empty(0)
        self._generating = False
        self._step_rows: list[TensorRows] | None = None
        arguments = apply_method(args, self.method)
        rewarded = reward_funcs is not None or self.method.advantage.needs_rewards
        self.group_size = group_size or arguments.num_generations
        if arguments.generation_batch_size % self.group_size:
            raise ValueError(
                f"the completions of a rollout must split into groups of {self.group_size}; got "
                f"{arguments.generation_batch_size}"
            )
        least, key = self.method.advantage.least_group
        if self.group_size < least:
            raise ValueError(
                f"method {named.name} needs groups of at least {least} completions ({key}); num_generations is "
                f"{self.group_size}."
            )
        self.value_head, others = attach_value_head(self.method, model, arguments, others)
        super().__init__(
            model,
            reward_funcs if rewarded and rollouts is None else _no_reward,
            arguments,
            train_dataset,
            eval_dataset,
            processing_class,
            reward_processing_classes,
            callbacks,
            optimizers,
            **others,
        )
        keep_generation_config(self.model)
        self.pad_token_id = int(self._tokenizer.pad_token_id)
        if correct is not None and correct not in self.reward_func_names:
            names = self.reward_func_names
            hint = f"{did_you_mean(correct, names)} Allowed: {', '.join(names)}."
            raise ValueError(f"correct={correct!r}: unknown reward function.{hint}")
        # TRL's model card would name GRPO.
        self._name, self._tag_names, self._paper = card_metadata(named.name)
        # TRL loads the reference of the KL term; the penalty is part of the method.
        self.beta = 0.0
        bonus = self.method.entropy_bonus
        self.use_adaptive_entropy, self.entropy_coef = bonus.adaptive, bonus.coef
        self.num_generations = self.group_size
        if self.args.device.type == "cuda":
            disable_cudnn_attention()
        if self.value_head is not None:
            self.value_head.layer.requires_grad_()  # PEFT freezes it with the rest of the model
        self.forward = PolicyForward(
            self.accelerator,
            self.temperature,
            super()._get_per_token_logps_and_entropies,
            micro_tokens,
            micro_rows or args.per_device_train_batch_size,
            self.args.gradient_checkpointing_kwargs,
            self.value_head,
            self.aux_loss_enabled,
        )
        self.forward.detect_capabilities(
            self.model, checkpointing=self.args.gradient_checkpointing, float32_head=self.args.cast_lm_head_to_fp32
        )
        self.dropouts = [] if dropout else find_dropouts(self.model)
        self.rollout_metrics: dict[str, float] = {}
        if self.method.advantage.needs_teacher:
            self._prepare_teacher(teacher)
        self.scoring = Scoring(
            self,
            compare_sampler=correction is not None or self.meter.mismatch,
            # With weights for the sampler, the old log-probs must be the trainer's.
            trust_sampler_log_probs=sampler_exact and correction is None,
        )
        if rollouts is None and args.save_strategy == "steps" and args.save_steps % self.steps_per_rollout:
            warnings.warn(
                f"save_steps must be a multiple of the {self.steps_per_rollout} optimizer steps of a rollout; got "
                f"{args.save_steps:g}: a checkpoint in the middle of a rollout cannot be resumed.",
                stacklevel=2,
            )

    def _check_arguments(self, args: GRPOConfig) -> None:
        method = self.method
        if args.mask_truncated_completions and method.reward.length.kind != "none":
            raise ValueError(
                f"mask_truncated_completions=True leaves out the completions that method {method.name} punishes for "
                f"their length (reward.length={method.reward.length.kind}). Remove one."
            )
        settings = [f"correct_above={self.correct_above:g}"] * bool(self.correct_above)
        settings += [f"correct={self.correct!r}"] * (self.correct is not None)
        if self.rollouts is not None:
            if settings:
                raise ValueError(f"{settings[0]} has no effect: rollouts have verdicts. Remove it.")
            return
        if settings and not method.needs_correct:
            raise ValueError(f"{settings[0]} has no effect: {method.name} does not train by correctness. Remove it.")
        reward, samples = method.reward, method.initial_entropy_samples
        of_runs = {
            "a greedy completion of every prompt": method.advantage.needs_greedy,
            f"a task's verdicts, which it flips (reward.noise={reward.noise:g})": reward.noise > 0,
            f"a task's verdicts, which it replaces (reward.source={reward.source})": reward.is_control,
            f"samples before training (shaping.entropy_filter.samples={samples})": samples is not None,
        }
        if requirements := [text for text, is_needed in of_runs.items() if is_needed]:
            raise ValueError(
                f"method {method.name} needs {requirements[0]}, and TRL's generation and reward functions have none. "
                f"Use `rlvr train --method {method.name}`, or another method."
            )
        if self.correction is not None:
            raise ValueError(
                "correction needs the sampler's log-probs, which TRL's generation does not return. Remove it: with "
                "use_vllm=True, vllm_importance_sampling_mode in args is TRL's own."
            )

    # --- hooks of a run ----------------------------------------------------------------------------------------

    def on_updates_begin(self, rollout: int) -> None:
        """Called before the updates on ``rollout``."""

    def on_rollout_collected(self, batch: RolloutBatch, rows: TensorRows) -> None:
        """Called with the sampled and judged rows of this process, before the updates."""

    def on_initial_entropy_measured(self, nats: float) -> None:
        """Called with the untrained model's entropy, before the first rollout."""

    def row_order(self, rollout: int, rows: int) -> Tensor:
        generator = torch.Generator().manual_seed(self.args.seed + rollout)
        return torch.randperm(rows, generator=generator)

    # --- position in the training ------------------------------------------------------------------------------

    @property
    def steps_per_rollout(self) -> int:
        """Optimizer steps of each rollout, over all passes."""
        return int(self.args.steps_per_generation * self.num_iterations)

    @property
    def rollout_index(self) -> int:
        """The rollout of the next (or current) step, from 0."""
        return int(self.state.global_step // self.steps_per_rollout)

    @property
    def step_in_rollout(self) -> int:
        """The index of the next (or current) step in its rollout, from 0."""
        return int(self.state.global_step % self.steps_per_rollout)

    @property
    def current_pass(self) -> str:
        """The method's pass of the next (or current) step."""
        return self.pass_of(self.state.global_step)

    def pass_of(self, step: int) -> str:
        passes = self.method.passes.names
        return str(passes[step // self.args.steps_per_generation % self.num_iterations % len(passes)])

    # --- rollout -----------------------------------------------------------------------------------------------

    def _get_step_rows(self, inputs: list[dict[str, Any]]) -> TensorRows:
        """Return this process's rows of the current step, collecting the rollout in its first step."""
        if self._step_rows is None and self.step_in_rollout:
            raise ValueError(
                f"the checkpoint was saved in the middle of a rollout (step {self.state.global_step}, "
                f"{self.steps_per_rollout} steps each), and TRL does not save rollouts. Resume from a multiple of "
                f"{self.steps_per_rollout} steps."
            )
        if self._step_rows is None or self.step_in_rollout == 0:
            rollout = self.rollout_index
            rows = self._collect_rollout(inputs)
            self._step_rows = split_into_steps(
                rows,
                self.row_order(rollout, len(rows["completion_ids"])),
                steps=self.args.steps_per_generation,
                process=self.accelerator.process_index,
                processes=self.accelerator.num_processes,
            )
            # The first step computes its old log-probs itself; those of later steps must precede its update.
            for later in self._step_rows[1:]:
                if "old_log_probs" not in later:
                    outputs = self.forward.infer(self.model, later, self._grad_mask(later))
                    later["old_log_probs"] = outputs.log_probs
            self.on_updates_begin(rollout)
        rows_of_step: TensorRows = self._step_rows[self.state.global_step % self.args.steps_per_generation]
        return rows_of_step

    def _collect_rollout(self, inputs: list[dict[str, Any]]) -> TensorRows:
        """Collect and score the rollout; return its rows from all processes, with advantages."""
        samples = self.method.initial_entropy_samples
        if self.rollouts is None:
            batch = None
            local_rows, rewards = self._sample_with_trl(inputs)
        else:
            if samples is not None and self.scoring.initial_entropy is None:
                self.on_initial_entropy_measured(self.scoring.measure_initial_entropy(samples))
            problems = [row["problem"] for row in inputs]
            batch = self.rollouts.collect(self.rollout_index, problems, self.accelerator.process_index * len(problems))
            local_rows = self._pad_batch(batch)
            rewards = self._gather_numbers(batch.rewards)
        local_rows |= self.scoring.compute_columns(local_rows, batch)
        if batch is not None:
            self.on_rollout_collected(batch, local_rows)
        rows = gather_rows(local_rows, self.accelerator.gather, self.accelerator.num_processes, self.pad_token_id)
        rollout, rows = self.scoring.score(rows, rewards, self._trl_judged, **self._advantage_inputs(batch))
        self.rollout_metrics = self.method.advantage.metrics(rollout)
        self.meter.executed.update(self.method.rollout_terms())
        policy_rollout = dataclasses.replace(rollout, mask=policy_mask(rows))
        means = policy_rollout.row_mean(rows["advantages"].expand_as(rollout.mask))
        if self.rollouts is not None:
            self._store_rollout(rollout, means)
        else:
            self._log_advantages(means.tolist())
            if rollout.length_terms is not None:
                self._metrics["train"]["length_reward"].append(float(rollout.length_terms.mean()))
        return rows

    def _advantage_inputs(self, batch: RolloutBatch | None) -> dict[str, Tensor]:
        """Return what the advantage reads besides the rewards, from all processes; ``batch`` None: from TRL."""
        device, advantage = self.args.device, self.method.advantage
        if advantage.needs_greedy and batch is not None:
            return {"greedy_rewards": self._gather_numbers(batch.greedy_rewards)}
        if not advantage.needs_parts:
            return {}
        if batch is None:
            return {"parts": self._trl_parts, "part_weights": self.reward_weights.to(device)}
        weights = torch.tensor(batch.part_weights, device=device)
        return {"parts": self._gather_numbers(batch.parts), "part_weights": weights}

    def _gather_numbers(self, values: Sequence[Any]) -> Tensor:
        """Return the float32 numbers of the rows of all processes; a collective operation."""
        numbers: Tensor = self.accelerator.gather(torch.tensor(values, dtype=torch.float32, device=self.args.device))
        return numbers

    def _pad_batch(self, batch: RolloutBatch) -> TensorRows:
        """Return the padded rows of a batch on the device; with drop_truncated, truncated rows have no tokens."""
        rows = pad_rows(batch.prompt_ids, batch.completion_ids, self.pad_token_id)
        rows = {key: value.to(self.args.device) for key, value in rows.items()}
        tokens = torch.tensor(sum(map(len, (*batch.prompt_ids, *batch.completion_ids))), device=self.args.device)
        self.state.num_input_tokens_seen += int(self.accelerator.reduce(tokens, reduction="sum"))
        if self.mask_truncated_completions:
            rows["completion_mask"][torch.tensor(batch.truncated, device=self.args.device)] = 0
        return rows

    def _sample_with_trl(self, inputs: list[dict[str, Any]]) -> tuple[TensorRows, Tensor]:
        """Return this process's rows from TRL's generation, and the rewards (N,) of all processes."""
        resumed = self._step_rows is None and self.rollout_index > 0
        if resumed and self.method.needs_initial_entropy:
            raise ValueError(
                f"method {self.method.name} needs the entropy of the untrained model, which TRL's checkpoints "
                "lack, so it cannot be resumed from them. Train from the start."
            )
        output = self._generate_with_trl(inputs)
        unknown = set(output) - {*USED_COLUMNS, *IGNORED_COLUMNS}
        if unknown:
            raise ValueError(f"TRL's rollouts have unsupported columns: {', '.join(sorted(unknown))}")
        assert self._trl_rewards is not None
        return {key: output[key] for key in USED_COLUMNS if key in output}, self._trl_rewards

    def _generate_with_trl(self, inputs: list[dict[str, Any]]) -> TensorRows:
        self._generating = True
        try:
            return dict(self._generate_and_score_completions(inputs))
        finally:
            self._generating = False

    def _log_advantages(self, advantages: Sequence[float]) -> None:
        """Replace TRL's advantages of the rows just sampled in the table of ``log_completions``."""
        logged = self._logs["advantages"]
        for _ in range(min(len(advantages), len(logged))):
            logged.pop()
        logged.extend(advantages)

    def _calculate_rewards(
        self, inputs: Any, prompts: Any, completions: list[Any], completion_ids_list: list[list[int]]
    ) -> Tensor:
        completions = self._decode_for_rewards(completions, completion_ids_list)
        rewards: Tensor = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        unscored = rewards.isnan().all(dim=1)
        weighted = rewards * self.reward_weights.to(rewards.device)
        total = weighted.nansum(dim=1)
        for name, values in (*zip(self.reward_func_names, weighted.T, strict=True), ("the sum of all", total)):
            if (too_large := values[values.abs() > LARGEST_REWARD]).numel():
                raise ValueError(
                    f"reward function {name}: a reward must be {NUMBER}, or None if not applicable; got "
                    f"{float(too_large[0]):g} (float32, times its weight)"
                )
        self._trl_rewards, self._trl_parts = total.masked_fill(unscored, torch.nan), rewards
        self._trl_judged = rewards[:, 0 if self.correct is None else self.reward_func_names.index(self.correct)]
        return rewards

    def _decode_for_rewards(self, completions: list[Any], completion_ids: list[list[int]]) -> list[Any]:
        """Return the completions decoded as in a run, since TRL drops special tokens, also ``<think>``."""
        tokenizer = self._tokenizer
        parsed = any(getattr(tokenizer, name, None) is not None for name in ("response_template", "response_schema"))
        if parsed or self.tools or self.rollout_func is not None:
            return completions
        texts = [response_text(tokenizer, ids, self.eos_token_ids) for ids in completion_ids]
        return [
            text if isinstance(completion, str) else [{"role": "assistant", "content": text}]
            for completion, text in zip(completions, texts, strict=True)
        ]

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Tensor, attention_mask: Tensor, logits_to_keep: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        # While scoring a rollout TRL computes old log-probs of every row. We compute them later, only for rows of later
        # steps; vLLM's correction needs them at once.
        if self._generating and not self.use_vllm:
            return torch.zeros_like(input_ids[:, -logits_to_keep:], dtype=torch.float32), None, None
        outputs: tuple[Tensor, Tensor | None, Tensor | None] = super()._get_per_token_logps_and_entropies(
            model, input_ids, attention_mask, logits_to_keep, *args, **kwargs
        )
        return outputs

    def prediction_step(self, model: Any, inputs: Any, *args: Any, **named: Any) -> tuple[None, None, None]:
        """Sample and score held-out prompts as TRL does, and log their rewards, no loss."""
        with torch.no_grad():
            self._generate_with_trl(inputs)
        assert self._trl_rewards is not None
        # Held-out rows have no advantages.
        self._log_advantages([math.nan] * len(self._trl_rewards))
        return None, None, None

    def reference_log_probs(self, rows: TensorRows) -> Tensor:
        forward = dataclasses.replace(self.forward, value_head=None)
        if self.ref_model is not None:
            return forward.infer(self.ref_model, rows).log_probs
        policy = self.accelerator.unwrap_model(self.model)
        adapter = "ref" if "ref" in policy.peft_config else None
        with eval_mode(self.model), use_adapter(policy, adapter_name=adapter):
            return forward.infer(self.model, rows).log_probs

    def _prepare_teacher(self, teacher: Any) -> None:
        """Make the teacher ready as TRL does the reference; its architecture may be another than the policy's."""
        if teacher is None:
            source = resolve_teacher(str(self.method.teacher), Path(Config().run.dir))
            dtype = "bfloat16" if self.model.dtype == torch.bfloat16 else "float32"
            teacher = load_teacher(source, self.model, self._tokenizer, dtype=dtype).model
        self.teacher_forward = dataclasses.replace(self.forward, value_head=None, aux_loss=False)
        teacher.eval().requires_grad_(False)
        self.teacher_forward.detect_capabilities(teacher, checkpointing=False, float32_head=False)
        if self.is_deepspeed_enabled:
            self.teacher = prepare_deepspeed(teacher, self.accelerator)
        elif self.is_fsdp_enabled:
            self.teacher = prepare_fsdp(teacher, self.accelerator)
        else:
            self.teacher = self.accelerator.prepare_model(teacher, evaluation_mode=True)

    def teacher_log_probs(self, rows: TensorRows) -> Tensor:
        return self.teacher_forward.infer(self.teacher, rows).log_probs

    def _store_rollout(self, rollout: Rollout, advantages: Tensor) -> None:
        """Record this process's rows; ``advantages`` (N,) are means over tokens."""
        assert self.rollouts is not None
        count, process = len(advantages) // self.accelerator.num_processes, self.accelerator.process_index
        local = slice(process * count, (process + 1) * count)
        others = {}
        if rollout.values is not None:
            # A row without tokens has no prediction.
            others["value"] = torch.where(rollout.mask.any(dim=1), rollout.row_mean(rollout.values), torch.nan)
        if rollout.length_terms is not None:
            others["length_reward"] = rollout.length_terms
        columns = {name: column[local].tolist() for name, column in others.items()}
        self.rollouts.store(rollout.rewards[local].tolist(), advantages[local].tolist(), **columns)

    # --- update ------------------------------------------------------------------------------------------------

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Run all forward and backward passes of one optimizer step; return its loss."""
        model.train()
        if callable(getattr(self.optimizer, "train", None)):
            self.optimizer.train()  # schedule-free optimizers swap the weights for evaluation
        with disable_dropouts(self.dropouts):
            return self._accumulate_gradients(model, inputs)

    def _accumulate_gradients(self, model: Any, inputs: Any) -> Tensor:
        rows = self._get_step_rows(inputs)
        step = self._begin_step(rows)
        grad_mask = self._grad_mask(rows)
        micro_batches = self.forward.pack(rows, grad_mask)
        old_log_probs: Tensor | None = None
        total = torch.zeros((), device=self.args.device)
        bonus, policy_loss = self.method.entropy_bonus, self.method.policy_loss
        self._step_entropy = torch.zeros(2, dtype=torch.float64, device=self.args.device)
        for number, indices in enumerate(micro_batches.rows):
            micro_batch, batch_mask = {key: value[indices] for key, value in rows.items()}, grad_mask[indices]
            if number < micro_batches.dummies:
                micro_batch["completion_mask"] = torch.zeros_like(micro_batch["completion_mask"])
                batch_mask = torch.zeros_like(batch_mask)
            with self._sync_gradients(model, last=number + 1 == len(micro_batches.rows)):
                # With TRL's generation the entropy is measured only here.
                outputs = self.forward(
                    model,
                    micro_batch,
                    batch_mask,
                    entropies=bonus.is_on or policy_loss.needs_entropies or self.rollouts is None,
                    share_prompts=micro_batches.share_prompts,
                )
                if "old_log_probs" not in rows and self.steps_per_rollout > 1:
                    # The rollout's later steps need the log-probs of the sampling policy.
                    if old_log_probs is None:
                        old_log_probs = outputs.log_probs.new_zeros(grad_mask.shape)
                    old_log_probs[indices] = outputs.log_probs.detach()
                batch_loss = self._loss(step, micro_batch, batch_mask, outputs, rows=len(grad_mask))
                self._empty_cache()
                self.accelerator.backward(batch_loss, **self._backward_options())
            total = total + batch_loss.detach()
        if old_log_probs is not None:
            rows["old_log_probs"] = old_log_probs
        self._adapt_entropy_bonus()
        return total

    def _adapt_entropy_bonus(self) -> None:
        """Move an adaptive coefficient by the entropy of the step's tokens in all processes."""
        if self.use_adaptive_entropy:
            nats, tokens = self.accelerator.reduce(self._step_entropy, reduction="sum").tolist()
            if tokens and math.isfinite(nats):
                self._last_world_entropy = nats / tokens
                self.entropy_coef = self.method.entropy_bonus.adapt(self.entropy_coef, self._last_world_entropy)

    def _begin_step(self, rows: TensorRows) -> Step:
        """Return the counts and statistics of the current step, over its rows in all processes."""
        mask = policy_mask(rows)
        counts = torch.stack([self.method.aggregation.count(mask, rows["estimated"]), mask.sum(dtype=torch.float64)])
        count, total = self.accelerator.reduce(counts, reduction="sum")
        self.meter.begin_step(mask)
        statistics, policy_loss = None, self.method.policy_loss
        if policy_loss.needs_statistics:
            old, entropies = rows.get("old_log_probs"), None
            # Most built-in losses read only the ratio, which is 1 in a rollout's first step.
            by_ratio = policy_loss.unit_on_policy and not policy_loss.is_user_defined
            if self.step_in_rollout > 0 or policy_loss.needs_entropies or (old is None and not by_ratio):
                outputs = self.forward.infer(self.model, rows, entropies=policy_loss.needs_entropies)
                log_probs, entropies = outputs.log_probs, outputs.entropies
            else:
                log_probs = torch.zeros_like(policy_mask(rows), dtype=torch.float32) if old is None else old
            tokens = vars(build_tokens(rows, log_probs, entropies))
            local = {key: value for key, value in tokens.items() if value is not None}
            gathered = gather_rows(local, self.accelerator.gather, self.accelerator.num_processes, 0)
            statistics = policy_loss.statistics(self.method.shape_tokens(Tokens(**gathered), self.current_pass))
        coef = self.method.entropy_bonus.applied(self.entropy_coef, self._last_world_entropy)
        self.meter.entropy_coef = coef
        return Step(self.current_pass, count, total, statistics, coef)

    def _grad_mask(self, rows: TensorRows) -> Tensor:
        """Return (n, T) the tokens whose log-probs affect this step's gradient, or a later one through the ratio."""
        old_known = "old_log_probs" in rows
        if not old_known and self.method.policy_loss.needs_statistics and self.steps_per_rollout > 1:
            # A later step's statistics compare every token with its old log-prob, trained or not.
            return policy_mask(rows).bool()
        tokens = build_tokens(rows, torch.zeros_like(rows["completion_ids"], dtype=torch.float32))
        mask = self.method.grad_mask(tokens, self.current_pass, old_known=old_known)
        correction = self.correction
        if correction is not None and correction.reads_rows and (correction.reads_policy or not old_known):
            mask = policy_mask(rows).bool() & mask.any(dim=1, keepdim=True)
        return mask

    @contextmanager
    def _sync_gradients(self, model: Any, *, last: bool) -> Iterator[None]:
        """Average gradients over the processes only in the step's last backward pass; a sharded model in each pass."""
        self.accelerator.gradient_state._set_sync_gradients(last)
        local = not last and not self.forward.is_sharded
        with self.accelerator.no_sync(model) if local else nullcontext():
            yield

    def _empty_cache(self) -> None:
        every = self.args.torch_empty_cache_steps
        if every is not None and self.state.global_step % every == 0:
            clear_device_cache()

    def _backward_options(self) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if self.accelerator.distributed_type == DistributedType.DEEPSPEED:
            options["scale_wrt_gas"] = False  # it would divide by its number of micro-batches
        if self.args.optim in (OptimizerNames.LOMO, OptimizerNames.ADALOMO):
            options["learning_rate"] = self._get_learning_rate()  # these update weights in the backward pass
        return options

    def _loss(self, step: Step, micro_batch: TensorRows, grad_mask: Tensor, outputs: Outputs, *, rows: int) -> Tensor:
        """Return the loss of a micro-batch for the backward pass; ``rows``: the step's number in this process."""
        terms = loss(self.method, step, micro_batch, grad_mask, outputs, self.correction)
        if terms.mismatch is not None:
            self.meter.add_mismatch(terms.mismatch)
        if terms.entropy is not None:
            self._step_entropy += terms.entropy
        self.meter.add(terms.tokens, step.pass_name, step.statistics, terms.value_loss)
        # Gradients are averaged over the processes, and each loss is a share of the step over all of them.
        total: Tensor = terms.total * self.accelerator.num_processes
        if outputs.aux_loss is not None:
            trained = micro_batch["completion_mask"].any(dim=1).sum()
            total = total + self.router_aux_loss_coef * outputs.aux_loss * trained / rows
            self.meter.add_aux_loss(outputs.aux_loss, trained / rows)
        return total

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        """Create the optimizer, with a separate learning rate for the value head."""
        optimizer = super().create_optimizer(*args, **kwargs)
        if self.value_head is not None:
            rate = self.args.learning_rate * self.method.critic.lr_ratio
            self.value_head.move_to_own_group(optimizer, rate)
        return optimizer

    def _clip_grad_norm(self, model: Any) -> Any:
        if self.value_head is None:
            return super()._clip_grad_norm(model)
        # Separately: the value loss scales with squared rewards and would use up the policy's norm.
        with self.value_head.clip_separately(self.args.max_grad_norm):
            return super()._clip_grad_norm(model)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        # The meter covers training steps only.
        if self.model.training:
            sums = self.accelerator.reduce(self.meter.take_sums().to(self.args.device), reduction="sum").tolist()
            if sums[0]:
                logs |= {name: value for name, value in self.meter.summary(sums).items() if value is not None}
                logs |= self.rollout_metrics
            # TRL's metric names keep their meaning (docs/python.md), and this is not TRL's loss.
            if "loss" in logs:
                logs["pseudo_loss"] = logs.pop("loss")
            if self.method.kl.beta and "kl_reference" in logs:
                logs["kl"] = logs["kl_reference"]
        super().log(logs, start_time)

    # --- checkpoints -------------------------------------------------------------------------------------------

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        if self.value_head is None:
            super()._save(output_dir, state_dict)
            return
        weights, head = split_value_head(self.model.state_dict() if state_dict is None else state_dict)
        super()._save(output_dir, weights)
        save_file(head, Path(output_dir or self.args.output_dir) / HEAD_FILE)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        if self.value_head is not None:
            self.value_head.load(Path(resume_from_checkpoint))

    def rollout_state(self) -> tuple[list[TensorRows], float | None]:
        """Return this process's rows of the unfinished rollout (empty between rollouts) and the initial entropy."""
        finished = self.step_in_rollout == 0 or self._step_rows is None
        return [] if finished else [dict(rows) for rows in self._step_rows or []], self.scoring.initial_entropy

    def restore_rollout(self, steps: Sequence[Mapping[str, Tensor]], initial_entropy: float | None) -> None:
        self.scoring.initial_entropy = initial_entropy
        device = self.args.device
        self._step_rows = [{key: value.to(device) for key, value in rows.items()} for rows in steps] or None


def _check_data(args: GRPOConfig, train_dataset: Any, eval_dataset: Any) -> None:
    """Raise ValueError for data with images, and for a best model chosen by the evaluation loss, which is missing."""
    evaluated = eval_dataset if isinstance(eval_dataset, Mapping) else {"": eval_dataset}
    data_sets = {"train_dataset": train_dataset}
    data_sets |= {f"eval_dataset[{name!r}]" if name else "eval_dataset": data for name, data in evaluated.items()}
    for name, data in data_sets.items():
        for column in ("image", "images"):
            if column in (getattr(data, "column_names", None) or ()):
                raise ValueError(
                    f"{name} has the column {column}: images are not supported. Remove it to train on text only."
                )
    metric = (args.metric_for_best_model or "").removeprefix("eval_")
    if args.eval_strategy != "no" and metric in {f"{name}_loss" if name else "loss" for name in ("", *evaluated)}:
        raise ValueError(
            f"metric_for_best_model={args.metric_for_best_model!r} (the default of load_best_model_at_end and of "
            "schedules that follow a metric): evaluations have no loss. Set args.metric_for_best_model='eval_reward'."
        )


def _no_reward(completions: list[Any], **columns: Any) -> list[float]:
    """Stand for TRL's required reward function if the method reads no reward, or collected rollouts have theirs."""
    return [0.0] * len(completions)
