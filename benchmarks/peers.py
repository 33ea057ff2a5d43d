"""TRL's GRPOTrainer and ours on the same scripted rows and models, each telling what its updates took.

What is timed is an optimizer step as `trainer.train()` makes it, from its first forward pass to the end of the
optimizer's step, old log-probs and advantages included; sampling and judging, which are scripted, and the start of a
trainer are not. The learning rate is 0, so that a rollout can be trained on again and again; the optimizer computes
all the same.

Both use the constant normaliser (`constant_length`, TRL's `dr_grpo`), whose gradients add up over any split into
steps, and advantages that are not divided by the standard deviation (the two have other epsilons): this is what makes
the two gradients comparable, and costs neither anything.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM, PrinterCallback, TrainerCallback
from trl import GRPOTrainer

from benchmarks.scripted import Rollout, Script
from experiments.lab.model import make_tokenizer
from rlvr_cli.config.load import load_config
from rlvr_cli.methods.lopti import ByProbability
from rlvr_cli.methods.method import Method
from rlvr_cli.tasks import kk_compact as compact
from rlvr_cli.training.metrics import StepMeter
from rlvr_cli.training.trainer import PolicyTrainer
from rlvr_cli.training.trl_arguments import trl_config

# TRL's trainer says that custom rollouts are experimental.
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
# Else DeepSpeed, which TRL imports, says into a table that it found no accelerator.
if not torch.cuda.is_available():
    os.environ.setdefault("DS_ACCELERATOR", "cpu")

AGREEMENT = 1e-4
AGREEMENT_BF16 = 5e-2
COMPARABLE = ("aggregation=constant_length", "advantage.scale=none")
# Of a trained policy's own tokens, about so many have a probability below Lopti's threshold of 0.5.
LOW_SHARE = 0.2


def shape(kind: str, vocabulary: int, hidden: int, layers: int, heads: int, kv_heads: int, feed_forward: int) -> Any:
    """The configuration of a model with embeddings tied."""
    return AutoConfig.for_model(
        kind,
        vocab_size=vocabulary,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=hidden // heads,
        intermediate_size=feed_forward,
        max_position_embeddings=32_768,
        tie_word_embeddings=True,
        pad_token_id=0,
        eos_token_id=1,
    )


SHAPES: dict[str, Callable[[], Any]] = {
    "tiny": lambda: shape("qwen3", 64, 16, 1, 2, 2, 32),
    "lab": lambda: shape("qwen3", len(make_tokenizer(compact.vocabulary())), 96, 4, 4, 4, 256),
    "10M": lambda: shape("qwen3", 32_000, 192, 8, 6, 2, 640),
    # Next to nothing but a head.
    "head, V=32,000": lambda: shape("qwen3", 32_000, 256, 1, 4, 4, 64),
    "head, V=150,000": lambda: shape("qwen3", 150_000, 256, 1, 4, 4, 64),
    "100M": lambda: shape("qwen3", 32_000, 704, 13, 11, 11, 2048),
}


@dataclass(frozen=True)
class Place:
    """Where and in what precision both sides compute.

    Attributes:
        bf16: by autocast, on float32 weights; ``checkpointing``: of gradients. TRL's defaults, bad ones on a CPU.
        optimizer: as transformers names it.
    """

    gpu: bool = False
    bf16: bool = False
    checkpointing: bool = False
    optimizer: str = "adamw_torch"

    def model(self, config: Any) -> Any:
        """A model with random weights from a seed, the same at every call."""
        torch.manual_seed(0)
        with torch.device("cuda" if self.gpu else "cpu"):
            return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


class _Boundaries(TrainerCallback):
    """Starts and stops the clock of a trainer at the boundaries of its optimizer steps."""

    def __init__(self, trainer: Clocked) -> None:
        self.trainer = trainer

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self.trainer.start_clock()

    def on_pre_optimizer_step(self, *args: Any, model: Any = None, **kwargs: Any) -> None:
        if self.trainer.keeps_gradients:
            self.trainer.add_gradient(flat_gradient(model))

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.trainer.stop_clock()


class Clocked(GRPOTrainer):
    """Knows what its updates took. Mixed in before either trainer.

    Attributes:
        seconds: of the optimizer steps since it was set to 0, sampling and judging taken out.
        gradient: sum of the gradients of these steps, where ``keeps_gradients``.
    """

    keeps_gradients = False

    def __init__(self, **arguments: Any) -> None:
        self.seconds, self._started = 0.0, 0.0
        self.gradient: Tensor | None = None
        super().__init__(**arguments)
        self.remove_callback(PrinterCallback)
        self.add_callback(_Boundaries(self))

    def _now(self) -> float:
        if self.args.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def start_clock(self) -> None:
        self._started = self._now()

    def stop_clock(self) -> None:
        self.seconds += self._now() - self._started

    def add_gradient(self, gradient: Tensor) -> None:
        self.gradient = gradient if self.gradient is None else self.gradient + gradient

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        self.stop_clock()
        try:
            return super()._generate(*args, **kwargs)
        finally:
            self.start_clock()

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Any:
        self.stop_clock()
        try:
            return super()._calculate_rewards(*args, **kwargs)
        finally:
            self.start_clock()

    def update(self) -> float:
        """Train on the rollout once, all its optimizer steps; the seconds it took."""
        self.seconds = 0.0
        self.train()
        return self.seconds

    def update_flops(self) -> int:
        """Train on the rollout once; the FLOPs of the matrix products that it took, backward passes among them."""
        with FlopCounterMode(display=False) as counter:
            self.update()
        return int(counter.get_total_flops())

    def rollout_gradient(self) -> Tensor:
        """Train on the rollout once; the sum of its steps' gradients."""
        self.gradient, self.keeps_gradients = None, True
        self.update()
        self.keeps_gradients = False
        assert self.gradient is not None
        return self.gradient


class TheirTrainer(Clocked):
    """TRL's, as it is."""


class OurTrainer(Clocked, PolicyTrainer):
    """Ours, with the meter that every run has."""


def flat_gradient(model: Any) -> Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])


def method_named(name: str, rollout: Rollout, *overrides: str) -> Method:
    """A method by its name on the command line, with dotted overrides of its choices."""
    config = load_config(method=name, overrides=[f"method.{override}" for override in overrides])
    assert isinstance(config.method, Method)
    return config.method.with_max_length(rollout.longest)


@torch.no_grad()
def sampler_numbers(model: Any, script: Script) -> tuple[list[list[float]], list[list[float]]]:
    """The log-probs and entropies of ``model`` at the scripted completions, as a sampler would tell them."""
    log_probs, entropies = [], []
    for prompt, completion in zip(script.prompts, script.completions, strict=True):
        ids = torch.tensor([prompt + completion], device=model.device)
        logits = model(ids, logits_to_keep=len(completion) + 1).logits[0, :-1].float()
        distribution = logits.log_softmax(-1)
        log_probs.append(distribution.gather(1, ids[0, len(prompt) :, None]).squeeze(1).tolist())
        entropies.append((-distribution.exp() * distribution).sum(-1).tolist())
    return log_probs, entropies


def divided(method: Method, model: Any, script: Script) -> Method:
    """``method`` whose passes, where they divide tokens by a probability, find ``LOW_SHARE`` of them below it.

    Random models give every token a probability of about 1/V, far below the thresholds that are meant for trained ones.
    """
    if not isinstance(method.passes, ByProbability):
        return method
    values = torch.tensor([value for row in sampler_numbers(model, script)[0] for value in row], dtype=torch.float64)
    return method.model_copy(update={"passes": method.passes.replace(eta=float(values.exp().quantile(LOW_SHARE)))})


def comparable(name: str, rollout: Rollout, model: Any, script: Script) -> Method:
    """A method on the clipped ratio, by its name, whose gradient TRL's trainer makes too (in all its passes)."""
    return divided(method_named(name, rollout, *COMPARABLE), model, script)


def _arguments(folder: Path, rollout: Rollout, place: Place, batch: int, passes: int) -> dict[str, Any]:
    """Of either trainer; ``batch`` rows are what TRL calls one device's batch."""
    accumulation = rollout.rows // rollout.updates // batch
    return {
        "output_dir": str(folder),
        "use_cpu": not place.gpu,
        "bf16": place.bf16,
        "gradient_checkpointing": place.checkpointing,
        "optim": place.optimizer,
        "learning_rate": 0.0,
        "lr_scheduler_type": "constant",
        # Measured as always, and never reached: both gradients stay what they are.
        "max_grad_norm": 1e9,
        "per_device_train_batch_size": batch,
        "gradient_accumulation_steps": accumulation,
        "steps_per_generation": accumulation * rollout.updates,
        "num_generations": rollout.group,
        "max_completion_length": rollout.longest,
        "max_steps": rollout.updates * passes,
        "save_steps": 10**6,
    }


def _of_every_trainer(rollout: Rollout) -> dict[str, Any]:
    prompts = rollout.rows // rollout.group
    return {
        "processing_class": make_tokenizer(compact.vocabulary()),
        "train_dataset": Dataset.from_dict({"prompt": [""] * prompts, "problem": list(range(prompts))}),
    }


def their_trainer(
    folder: Path, model: Any, rollout: Rollout, script: Script, place: Place, passes: int = 1
) -> TheirTrainer:
    """TRL's trainer with ``passes`` over each rollout, on all tokens each."""

    def rollout_func(prompts: list[str], trainer: Any) -> dict[str, Any]:
        return {"prompt_ids": script.prompts, "completion_ids": script.completions, "logprobs": None}

    return TheirTrainer(
        model=model,
        reward_funcs=[lambda prompts, **columns: script.rewards],
        rollout_func=rollout_func,
        args=trl_config(
            **_arguments(folder, rollout, place, rollout.part, passes),
            num_iterations=passes,
            loss_type="dr_grpo",
            scale_rewards="none",
        ),
        **_of_every_trainer(rollout),
    )


def our_trainer(
    folder: Path, model: Any, rollout: Rollout, script: Script, place: Place, method: Method, **options: Any
) -> OurTrainer:
    """Our trainer, as a run makes it; ``options`` are further arguments of it.

    In float32 it takes the old log-probs of what sampled the rows, as in a run with the local sampler.
    """
    if not place.bf16:
        script.told = sampler_numbers(model, script)
    if method.needs_reference:
        # TRL loads the reference policy by the policy's name.
        model.save_pretrained(folder / "base")
        model.config._name_or_path = str(folder / "base")
    step = rollout.rows // rollout.updates
    return OurTrainer(
        method=method,
        rollouts=script,
        meter=StepMeter(method),
        model=model,
        micro_rows=rollout.part,
        sampler_exact=not place.bf16,
        args=trl_config(**_arguments(folder, rollout, place, step, len(method.passes.names))),
        **_of_every_trainer(rollout),
        **options,
    )


def disagreement(theirs: TheirTrainer, ours: OurTrainer) -> float:
    """|ours - theirs| / |theirs| of the gradients of one rollout, theirs divided by its number of passes."""
    native = theirs.rollout_gradient() / theirs.num_iterations
    return float((ours.rollout_gradient() - native).norm() / native.norm())


def checked(theirs: TheirTrainer, ours: OurTrainer, place: Place) -> None:
    """Stop the benchmark unless both trainers make the same gradient: their times would say nothing."""
    found, limit = disagreement(theirs, ours), AGREEMENT_BF16 if place.bf16 else AGREEMENT
    if not found <= limit:
        raise SystemExit(
            f"The gradients of TRL and of rlvr differ by {found:.1e} of their norm, and {limit:g} is allowed: "
            "nothing is measured."
        )


@contextmanager
def trainers_folder() -> Iterator[Path]:
    """A folder for what trainers write, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="rlvr-benchmark-") as folder:
        yield Path(folder)
