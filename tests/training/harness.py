"""A trainer on scripted rollouts, whose gradients can be looked at before every optimizer step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from torch.nn.functional import pad
from transformers import Qwen3Config, Qwen3ForCausalLM, TrainerCallback
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from experiments.lab.model import make_tokenizer
from rlvr_cli.config.load import load_config
from rlvr_cli.methods.base import Tokens
from rlvr_cli.methods.correction import Correction
from rlvr_cli.methods.grpo import group_advantage
from rlvr_cli.methods.kl import k3
from rlvr_cli.methods.lopti import ByProbability
from rlvr_cli.methods.method import Method
from rlvr_cli.methods.names import METHODS
from rlvr_cli.tasks import kk_compact as compact
from rlvr_cli.training.forward import Outputs, PolicyForward
from rlvr_cli.training.metrics import StepMeter
from rlvr_cli.training.packing import MicroBatches, TensorRows
from rlvr_cli.training.rollouts import RolloutBatch
from rlvr_cli.training.trainer import PolicyTrainer
from rlvr_cli.training.trl_arguments import trl_config
from tests.methods.surrogates import aggregated, surrogate

MAX_NEW_TOKENS = 12
LEARNING_RATE = 0.2
UPDATES = 2
MEDIAN_PROBABILITY = 0.007
# The seed of the tiny model that teaches.
TEACHER = 1

METHODS = sorted(preset.name for preset in METHODS.values() if preset.name != "sft")
COMPOSITIONS = [
    "dgpo+lopti",
    "reweight+lopti",
    "reinforce-pp+reweight+lopti",
    "acpo+lopti",
    "gspo+low-only",
    "gmpo+low-only",
    "kl-cov+lopti",
    "dapo+high-entropy",
    "grpo+conflict",
    "grpo+entropy-filter+entropy-penalty",
    "cispo+high-only",
    "rloo+entropy-min",
    "opd+lopti",
]


def tiny_model(seed: int = 0) -> Any:
    """A random model whose log-probs spread enough for ratios to leave the trust region."""
    config = Qwen3Config(
        vocab_size=len(make_tokenizer(compact.vocabulary())),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        tie_word_embeddings=True,
        initializer_range=0.3,
        pad_token_id=0,
        eos_token_id=1,
    )
    torch.manual_seed(seed)
    return in_float64(Qwen3ForCausalLM(config).double())


class _Float64Norm(Qwen3RMSNorm):
    """The library's norm rounds to float32 inside."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        variance = hidden_states.square().mean(-1, keepdim=True)
        return self.weight * hidden_states * torch.rsqrt(variance + self.variance_epsilon)


def in_float64(model: Any) -> Any:
    """``model`` without the places where the library rounds to float32, so that equal means equal."""
    for module in model.modules():
        if isinstance(module, Qwen3RMSNorm):
            module.__class__ = _Float64Norm
    return model


def load_base(folder: Path) -> Any:
    """The tiny model from a folder, where a reference policy can be loaded from too."""
    if not (folder / "base").exists():
        tiny_model().save_pretrained(folder / "base")
    return in_float64(Qwen3ForCausalLM.from_pretrained(folder / "base"))


# Rows that share a prompt; every third such group has equal rewards.
SHARING = 4


class ScriptedRollouts:
    """Completions and rewards drawn from a seed and the row's number: the same for any split over processes."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def script(self, rollout: int) -> tuple[list[list[int]], list[list[int]], list[float]]:
        generator = torch.Generator().manual_seed(rollout)

        def ids(longest: int) -> list[int]:
            length = int(torch.randint(1, longest + 1, (), generator=generator))
            return torch.randint(3, 20, (length,), generator=generator).tolist()

        groups = [ids(6) for _ in range(-(-self.rows // SHARING))]
        prompts = [groups[row // SHARING] for row in range(self.rows)]
        completions = [[*ids(MAX_NEW_TOKENS - 1), 1] for _ in range(self.rows)]
        rewards = torch.randint(0, 4, (self.rows,), generator=generator).tolist()
        return prompts, completions, [1 if row // SHARING % 3 == 2 else reward for row, reward in enumerate(rewards)]

    def collect(self, rollout: int, problems: Sequence[int], first_row: int) -> RolloutBatch:
        rows = slice(first_row, first_row + len(problems))
        prompts, completions, rewards = self.script(rollout)
        own = [float(reward) for reward in rewards[rows]]
        return RolloutBatch(
            prompts[rows],
            completions[rows],
            rewards=own,
            correct=[reward > 0 for reward in own],
            parts=[[reward // 2, reward % 2] for reward in own],
            part_weights=[2.0, 1.0],
            greedy_rewards=[float(row // SHARING % 3) for row in range(self.rows)[rows]],
        )

    def store(self, rewards: Sequence[float], advantages: Sequence[float], **others: Sequence[float]) -> None:
        self.advantages = list(advantages)


class TellingRollouts(ScriptedRollouts):
    """With what the policy itself says of the completions, as a sampler in the same process does."""

    def __init__(self, rows: int, model: Any) -> None:
        super().__init__(rows)
        self.model = model

    @torch.no_grad()
    def collect(self, rollout: int, problems: Sequence[int], first_row: int) -> RolloutBatch:
        batch = super().collect(rollout, problems, first_row)
        log_probs, entropies = [], []
        for prompt, completion in zip(batch.prompt_ids, batch.completion_ids, strict=True):
            distributions = completion_distributions(self.model, prompt, completion)
            log_probs.append(distributions.gather(1, torch.tensor(completion).unsqueeze(1)).squeeze(1).tolist())
            entropies.append((-distributions.exp() * distributions).sum(-1).tolist())
        return replace(batch, log_probs=log_probs, entropies=entropies)


class NoisyRollouts(TellingRollouts):
    """With log-probs that differ from the policy's by noise, kept in ``recorded`` by rollout, of all rows."""

    def __init__(self, rows: int, model: Any, spread: float = 0.3) -> None:
        super().__init__(rows, model)
        self.spread = spread
        self.recorded: dict[int, list[list[float]]] = {}

    def collect(self, rollout: int, problems: Sequence[int], first_row: int) -> RolloutBatch:
        generator = torch.Generator().manual_seed(1000 + rollout)
        noise = (
            self.spread * torch.randn(self.rows, MAX_NEW_TOKENS, generator=generator, dtype=torch.float64)
        ).tolist()
        batch = super().collect(rollout, problems, first_row)
        log_probs = [
            [value + noise[first_row + row][token] for token, value in enumerate(values)]
            for row, values in enumerate(batch.log_probs)
        ]
        self.recorded[rollout] = log_probs
        return replace(batch, log_probs=log_probs, entropies=None)


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
    trainer.forward = PlainForward(**vars(trainer.forward))
    if trainer.method.advantage.needs_teacher:
        trainer.teacher_forward = PlainForward(**vars(trainer.teacher_forward))


class BeforeEachStep(TrainerCallback):
    """Calls ``see`` where a step's gradient is whole and clipped, and the weights are as before."""

    def __init__(self, see: Callable[[], None]) -> None:
        self.see = see

    def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        self.see()


class GradientTrainer(PolicyTrainer):
    """Keeps the gradient of every optimizer step in ``gradients``, and its pass in ``passes``."""

    def __init__(self, **arguments: Any) -> None:
        self.gradients: list[Tensor] = []
        self.passes: list[str] = []
        super().__init__(**arguments)
        self.add_callback(BeforeEachStep(self.see_gradient))

    def on_updates_begin(self, rollout: int) -> None:
        torch.manual_seed(rollout)

    def see_gradient(self) -> None:
        self.gradients.append(flat_gradient(self.model))
        self.passes.append(self.current_pass)


def flat_gradient(model: Any) -> Tensor:
    return torch.cat([parameter.grad.flatten().clone() for parameter in model.parameters()])


def method_of(name: str, *overrides: str) -> Method:
    """A method by its name on the command line, with dotted overrides of its choices."""
    small = ["method.advantage.k=2"] if name == "pass-at-k" else []  # below the tests' groups of four
    config = load_config(method=name, overrides=[*small, *(f"method.{override}" for override in overrides)])
    return config.method.with_max_length(MAX_NEW_TOKENS)


def divided(method: Method) -> Method:
    """``method`` with a threshold among the small probabilities of the random model: both passes have tokens."""
    if not isinstance(method.passes, ByProbability):
        return method
    return method.replace(passes=method.passes.replace(eta=MEDIAN_PROBABILITY))


def arguments(
    folder: Path,
    method: Method,
    *,
    rows: int,
    group: int,
    micro_batch: int,
    processes: int = 1,
    updates: int = 1,
    epochs: int = 1,
    rollouts: int = 2,
    temperature: float = 1.0,
    learning_rate: float = LEARNING_RATE,
    max_grad_norm: float = 1e9,
    bf16: bool = False,
) -> Any:
    """TRL's arguments for ``rollouts`` rollouts of ``rows`` completions; plain SGD, no gradient clipping."""
    accumulation = rows // updates // micro_batch // processes
    return trl_config(
        output_dir=str(folder),
        use_cpu=True,
        bf16=bf16,
        gradient_checkpointing=False,
        seed=0,
        optim="sgd",
        learning_rate=learning_rate,
        lr_scheduler_type="constant",
        max_grad_norm=max_grad_norm,
        temperature=temperature,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=accumulation,
        steps_per_generation=accumulation * updates,
        num_iterations=epochs,
        num_generations=group,
        max_completion_length=MAX_NEW_TOKENS,
        max_steps=rollouts * updates * epochs * len(method.passes.names),
        save_steps=10**6,
    )


def dataset(rows: int, group: int, rollouts: int = 2) -> Dataset:
    count = rows // group * rollouts
    return Dataset.from_dict({"problem": list(range(count))})


def train(
    folder: Path,
    method: Method,
    model: Any,
    *,
    rows: int = 16,
    group: int = 4,
    plain: bool = False,
    micro_tokens: int | None = None,
    told: bool = False,
    dropout: bool = False,
    **settings: Any,
) -> GradientTrainer:
    """Run the trainer on scripted rollouts to its end.

    Args:
        plain: make one forward pass of the bare model for each row.
        told: the sampler says how probable its tokens were.
    """
    config = arguments(folder, method, rows=rows, group=group, **settings)
    trainer = GradientTrainer(
        method=method,
        rollouts=TellingRollouts(rows, model) if told else ScriptedRollouts(rows),
        sampler_exact=told,
        micro_tokens=micro_tokens,
        dropout=dropout,
        model=model,
        processing_class=make_tokenizer(compact.vocabulary()),
        args=config,
        train_dataset=dataset(rows, group, settings.get("rollouts", 2)),
        teacher=tiny_model(TEACHER) if method.advantage.needs_teacher else None,
    )
    if plain:
        leave_nothing_out(trainer)
    trainer.train()
    return trainer


class CorrectedTrainer(GradientTrainer):
    """Keeps the metrics of every step in ``meter_rows``."""

    def __init__(self, **arguments: Any) -> None:
        self.meter_rows: list[dict[str, float | None]] = []
        super().__init__(**arguments)

    def see_gradient(self) -> None:
        super().see_gradient()
        sums = self.accelerator.reduce(self.meter.take_sums().to(self.args.device), reduction="sum")
        self.meter_rows.append(self.meter.summary(sums.tolist()))


def train_corrected(
    folder: Path,
    method: Method,
    model: Any,
    correction: Correction | None,
    *,
    rows: int = 16,
    group: int = 4,
    rollouts: ScriptedRollouts | None = None,
    plain: bool = False,
    **settings: Any,
) -> CorrectedTrainer:
    """Run the trainer on rollouts of a noisy sampler to its end, with ``correction``."""
    on = correction is not None
    trainer = CorrectedTrainer(
        method=method,
        rollouts=rollouts or NoisyRollouts(rows, model),
        meter=StepMeter(method, importance=on, mismatch=on),
        model=model,
        processing_class=make_tokenizer(compact.vocabulary()),
        args=arguments(folder, method, rows=rows, group=group, **settings),
        train_dataset=dataset(rows, group),
        correction=correction,
    )
    if plain:
        leave_nothing_out(trainer)
    trainer.train()
    return trainer


def completion_distributions(model: Any, prompt: list[int], completion: list[int], temperature: float = 1.0) -> Tensor:
    """(T, V) log-probs of every token of the vocabulary in place of the completion's, of one row without padding."""
    logits = model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
    return (logits / temperature).log_softmax(-1)


def completion_log_probs(
    model: Any, prompts: list[list[int]], completions: list[list[int]], temperature: float = 1.0
) -> Tensor:
    """(B, T) log-probs of the completions, row by row and without any padding inside the model."""
    width = max(map(len, completions))
    rows = []
    for prompt, completion in zip(prompts, completions, strict=True):
        distributions = completion_distributions(model, prompt, completion, temperature)
        chosen = distributions.gather(1, torch.tensor(completion).unsqueeze(1)).squeeze(1)
        rows.append(torch.nn.functional.pad(chosen, (0, width - len(completion))))
    return torch.stack(rows)


def plain_gradient(
    model: Any, reference: Any, old: Tensor, rollout: int, method: Method, *, rows: int, group: int, temperature: float
) -> tuple[Tensor, int]:
    """The gradient of one update on a whole rollout, by autograd through the loss's value, and how many were clipped.

    For methods with group advantages whose loss has a value, in one pass without shaping.
    """
    prompts, completions, rewards = ScriptedRollouts(rows).script(rollout)
    log_probs = completion_log_probs(model, prompts, completions, temperature)
    lengths = torch.tensor([len(completion) for completion in completions]).unsqueeze(1)
    advantages = group_advantage(
        torch.tensor(rewards, dtype=torch.float32), group, divide_by_std=method.advantage.scale == "std"
    ).unsqueeze(1)
    tokens = Tokens(log_probs, old, advantages, (torch.arange(log_probs.shape[1]) < lengths).float())
    loss = surrogate(method.policy_loss, tokens)
    if method.kl.beta:
        with torch.no_grad():
            other = completion_log_probs(reference, prompts, completions, temperature)
        loss = loss + method.kl.beta * k3(log_probs, other)
    clipped = int((method.policy_loss.weight(tokens) == 0).sum())
    model.zero_grad()
    aggregated(method.aggregation, loss, tokens.mask, advantages).backward()
    return flat_gradient(model), clipped
