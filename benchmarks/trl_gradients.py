"""The gradient of our trainer against stock TRL's, on the same rows and weights in float64.

    python -m benchmarks.trl_gradients

One scripted rollout of 16 completions for 4 prompts. Both trainers walk through the same weights, whatever their
gradients: every step compares one gradient, and no drift. The numbers are |ours - TRL's| / |TRL's|, the largest of the
rollout's steps. TRL's log-probs and both models' norms are float32 inside: 1e-6 is rounding.

Advantages are not divided by the standard deviation (TRL adds 1e-4 to it, we 1e-6), and CISPO has no lower bound, as in
TRL. What else remains has a name, and a sentence on the method's page:

- divisor: a token mean divides by the tokens of the step, TRL's by the mean of the rollout's steps;
- unscored: rows without a reward count as not sampled;
- KL ratio: the token's, where TRL takes the sequence's, and GMPOTrainer none;
- weights: for VESPO and GMPO the mean of a row's tokens. TRL puts them into VESPO's product, and into no part of GMPO.

``without`` is what is left when the first two are taken away: our divisor is TRL's, and TRL is told to train on none of
the unscored rows' tokens.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from transformers import AutoModelForCausalLM, PrinterCallback, TrainerCallback
from transformers.utils.logging import disable_progress_bar
from trl import GRPOTrainer
from trl.experimental.gmpo import GMPOTrainer

from benchmarks.peers import flat_gradient, shape
from experiments.lab.model import make_tokenizer
from rlvr_cli.tasks import kk_compact as compact
from rlvr_cli.training.objective import Step
from rlvr_cli.training.packing import TensorRows, policy_mask
from rlvr_cli.training.trainer import PolicyTrainer
from rlvr_cli.training.trl_arguments import trl_config

# TRL's trainer says that custom rollouts are experimental.
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

ROWS, GROUP, LONGEST, PART = 16, 4, 12, 4
UNSCORED = (1, 6, 7)
STEP = 0.03
ROUNDING = 3e-6


@dataclass(frozen=True)
class Definition:
    """A method in our words and in TRL's.

    Attributes:
        name, overrides: ours. options: of GRPOConfig. trainer: TRL's.
    """

    name: str
    overrides: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    trainer: type[GRPOTrainer] = GRPOTrainer


SEQUENCE = {"importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4}
LONGER = {"importance_sampling_level": "sequence", "epsilon": 2e-3, "epsilon_high": 2.5e-3}
DEFINITIONS = {
    "GRPO": Definition("grpo", ("aggregation=sequence_mean",), {"loss_type": "grpo"}),
    "DAPO": Definition("dapo", (), {"loss_type": "dapo", "epsilon_high": 0.28}),
    "Dr. GRPO": Definition("dr-grpo", (), {"loss_type": "dr_grpo"}),
    "GSPO": Definition("gspo", (), {"loss_type": "grpo", **SEQUENCE}),
    "CISPO": Definition("cispo", ("policy_loss.eps_low=null",), {"loss_type": "cispo", "epsilon_high": 1.2}),
    "SAPO": Definition("sapo", (), {"loss_type": "sapo"}),
    "VESPO": Definition("vespo", (), {"loss_type": "vespo"}),
    "LUSPO": Definition("luspo", (), {"loss_type": "luspo", **LONGER}),
    "GMPO": Definition("gmpo", (), {"loss_type": "grpo", "epsilon": 0.4, "epsilon_high": 0.4}, GMPOTrainer),
}


@dataclass(frozen=True)
class Situation:
    """How the rollout is trained on.

    Attributes:
        updates, epochs: optimizer steps of an epoch over the rollout, and epochs.
        unscored: rows for which the reward function returns None. masked: whether TRL is told to train on none of their
            tokens (``env_mask``).
        beta, bias_correction: of the KL term; the reference differs from the policy from the first step on.
        weights: ``vllm_importance_sampling_mode``; the sampler's log-probs are the policy's with noise. None = off.
    """

    updates: int = 1
    epochs: int = 1
    unscored: tuple[int, ...] = ()
    masked: bool = False
    beta: float = 0.0
    bias_correction: bool = True
    weights: str | None = None


SITUATIONS = {
    "plain": Situation(),
    "None rewards, 3 of 16": Situation(unscored=UNSCORED),
    "None rewards and KL 0.1": Situation(unscored=UNSCORED, beta=0.1),
    "KL 0.1, correction": Situation(beta=0.1),
    "KL 0.1, no correction": Situation(beta=0.1, bias_correction=False),
    "sampler weights, token": Situation(weights="token_truncate"),
    "sampler weights, sequence": Situation(weights="sequence_truncate"),
}
# Differences that remain in `without`.
KEPT = {"KL ratio", "weights"}
SCHEDULES = {"1 update": (1, 1), "2 updates": (2, 1), "2 iterations": (1, 2)}


class _Walk(TrainerCallback):
    """Keeps the gradient of every step, and goes to the next weights of a fixed walk after it."""

    def __init__(self) -> None:
        self.gradients: list[Tensor] = []

    def on_train_begin(self, *args: Any, model: Any = None, **named: Any) -> None:
        _move(model, 0)

    def on_pre_optimizer_step(self, *args: Any, model: Any = None, **named: Any) -> None:
        self.gradients.append(flat_gradient(model))

    def on_step_end(self, *args: Any, model: Any = None, **named: Any) -> None:
        _move(model, len(self.gradients))


@torch.no_grad()
def _move(model: Any, step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    for parameter in model.parameters():
        parameter += STEP * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)


def base_model(folder: Path) -> Path:
    """Where a random model lies, from which a reference policy can be loaded too."""
    path = folder / "base"
    if not path.exists():
        torch.manual_seed(0)
        config = shape("qwen3", len(make_tokenizer(compact.vocabulary())), 16, 2, 2, 2, 32)
        config.initializer_range = 0.3
        AutoModelForCausalLM.from_config(config, dtype=torch.float64).save_pretrained(path)
    return path


def script() -> tuple[list[list[int]], list[list[int]], list[float]]:
    """Prompts, completions and rewards."""
    generator = torch.Generator().manual_seed(1)

    def ids(longest: int) -> list[int]:
        length = int(torch.randint(1, longest + 1, (), generator=generator))
        return torch.randint(3, 20, (length,), generator=generator).tolist()

    groups = [ids(6) for _ in range(ROWS // GROUP)]
    completions = [[*ids(LONGEST - 1), 1] for _ in range(ROWS)]
    rewards = torch.randint(0, 4, (ROWS,), generator=generator).tolist()
    return [groups[row // GROUP] for row in range(ROWS)], completions, rewards


@torch.no_grad()
def sampler_log_probs(model: Any, prompts: list[list[int]], completions: list[list[int]]) -> Iterator[list[float]]:
    """The policy's log-probs of each completion's tokens, with noise."""
    generator = torch.Generator().manual_seed(2)
    for prompt, completion in zip(prompts, completions, strict=True):
        logits = model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
        chosen = logits.log_softmax(-1).gather(1, torch.tensor(completion).unsqueeze(1)).squeeze(1)
        yield (chosen + 0.5 * torch.randn(chosen.shape, generator=generator, dtype=chosen.dtype)).tolist()


def gradients(
    trainer: type[GRPOTrainer], folder: Path, situation: Situation, options: dict[str, Any], **more: Any
) -> list[Tensor]:
    """The gradient of every step of one rollout, by TRL's ``rollout_func``."""
    prompts, completions, rewards = script()
    steps = ROWS // PART
    config = trl_config(
        output_dir=str(folder),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        seed=0,
        optim="sgd",
        learning_rate=0.0,
        max_grad_norm=1e9,
        temperature=1.0,
        per_device_train_batch_size=PART,
        gradient_accumulation_steps=steps // situation.updates,
        steps_per_generation=steps,
        num_iterations=situation.epochs,
        num_generations=GROUP,
        max_completion_length=LONGEST,
        max_steps=situation.updates * situation.epochs,
        save_steps=10**6,
        **options,
    )

    def reward(prompts: list[str], **columns: Any) -> list[float | None]:
        # TRL deals rows to steps by the global generator, we by one of the seed.
        torch.manual_seed(config.seed)
        return [None if row in situation.unscored else rewards[row] for row in range(ROWS)]

    def rollout(texts: list[str], trainer: Any) -> dict[str, Any]:
        rows: dict[str, Any] = {"prompt_ids": prompts, "completion_ids": completions, "logprobs": None}
        if situation.weights is not None:
            rows["logprobs"] = list(sampler_log_probs(trainer.model, prompts, completions))
        if situation.masked:
            trained = [int(row not in situation.unscored) for row in range(ROWS)]
            rows["env_mask"] = [[trained[row]] * len(ids) for row, ids in enumerate(completions)]
        return rows

    model = AutoModelForCausalLM.from_pretrained(base_model(folder), dtype=torch.float64)
    walk = _Walk()
    made = trainer(
        model=model,
        processing_class=make_tokenizer(compact.vocabulary()),
        reward_funcs=[reward],
        rollout_func=rollout,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": [""] * (ROWS // GROUP)}),
        callbacks=[walk],
        **more,
    )
    made.remove_callback(PrinterCallback)
    if situation.weights is not None:
        # The weights are computed where vLLM samples; here the rollout function does.
        made.use_vllm, made.vllm_importance_sampling_mode = True, situation.weights
        made._last_loaded_step = 0
    made.train()
    return walk.gradients


class _DivisorOfTRL(PolicyTrainer):
    """A token mean divides by the mean number of tokens of the rollout's steps."""

    def _begin_step(self, rows: TensorRows) -> Step:
        step = super()._begin_step(rows)
        steps = self._step_rows or []
        tokens = sum(policy_mask(of_step).sum(dtype=torch.float64) for of_step in steps)
        return replace(step, count=torch.as_tensor(tokens) / len(steps))


def named_differences(of: Definition, situation: Situation) -> list[str]:
    """Those of this module's docstring that act."""
    names = {
        "divisor": situation.updates > 1 and of.options["loss_type"] in ("dapo", "cispo", "vespo"),
        "unscored": bool(situation.unscored) and (of.name != "dr-grpo" or situation.beta > 0),
        "KL ratio": of.name in ("gspo", "luspo", "gmpo") and situation.beta > 0 and situation.bias_correction,
        "weights": of.name in ("vespo", "gmpo") and situation.weights is not None,
    }
    return [name for name, acts in names.items() if acts]


def errors(folder: Path, of: Definition, situation: Situation, *, without: bool = False) -> list[float]:
    """|ours - TRL's| / |TRL's| of each step; ``without`` divisor and unscored rows, where these differ."""
    names = named_differences(of, situation) if without else []
    overrides = ["advantage.scale=none", *of.overrides, *([f"kl.beta={situation.beta}"] if situation.beta else [])]
    if "unscored" in names and of.options["loss_type"] in ("grpo", "sapo", "luspo"):
        overrides.append("aggregation.sequences=all")
    correction = {"use_bias_correction_kl": situation.bias_correction}
    ours = gradients(
        _DivisorOfTRL if "divisor" in names else PolicyTrainer,
        folder,
        situation,
        correction,
        method=of.name,
        overrides=overrides,
    )
    options = {"scale_rewards": "none", "beta": situation.beta, **of.options, **correction}
    theirs = gradients(of.trainer, folder, replace(situation, masked="unscored" in names), options)
    return [float((mine - other).norm() / other.norm()) for mine, other in zip(ours, theirs, strict=True)]


def main() -> int:
    """Print the table; returns 1 if a difference has no name."""
    disable_progress_bar()
    print(f"{'method':10}{'situation':27}{'schedule':14}{'difference':>10}{'without':>10}  named")
    unnamed = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for method, of in DEFINITIONS.items():
            for title, plain in SITUATIONS.items():
                for schedule, (updates, epochs) in SCHEDULES.items():
                    situation = replace(plain, updates=updates, epochs=epochs)
                    names = named_differences(of, situation)
                    difference = max(errors(folder, of, situation))
                    removable = names and not KEPT & {*names}
                    left = max(errors(folder, of, situation, without=True)) if removable else difference
                    unnamed += left > ROUNDING and not KEPT & {*names}
                    shown = f"{left:10.1e}" if removable else f"{'':10}"
                    row = f"{method:10}{title:27}{schedule:14}{difference:10.1e}{shown}  {', '.join(names)}"
                    print(row, flush=True)
    print(f"{unnamed} differences above {ROUNDING:.0e} without a name")
    return int(unnamed > 0)


if __name__ == "__main__":
    sys.exit(main())
