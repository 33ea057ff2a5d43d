"""What each method costs over GRPO, counted and not timed: forward passes and matrix FLOPs of one rollout's updates.

    python -m benchmarks.methods_cost [--updates 1 4] [METHOD ...] > docs/methods/cost.md

The lab's model samples one rollout; every method is trained on the same completions. Sampling is not counted. The FLOPs
of a forward pass with gradient include its backward pass.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from transformers import PrinterCallback

from rlvr_cli.config.load import load_config
from rlvr_cli.methods.method import Method
from rlvr_cli.methods.names import METHODS
from rlvr_cli.models.load import eos_token_ids, load_model
from rlvr_cli.models.sampling.engine import SamplingParams
from rlvr_cli.models.sampling.local import sample
from rlvr_cli.tasks.base import prompt_ids, response_text
from rlvr_cli.training.packing import TensorRows, policy_mask
from rlvr_cli.training.rollouts import RolloutBatch
from rlvr_cli.training.trainer import PolicyTrainer
from rlvr_cli.training.trl_arguments import trl_config

PROMPTS, GROUP, LENGTH = 8, 4, 144
OVERRIDES = {"pass-at-k": ("method.advantage.k=2",)}
# The first two without the KL term, which the papers' own settings of reweight and lopti have.
COMPOSITIONS = ["grpo+reweight", "grpo+lopti", "reweight+lopti", "dgpo+lopti", "acpo+lopti"]
COMPOSITIONS.append("reinforce-pp+reweight+lopti")
PAGE = f"""\
# What a method costs

A method changes the cost of training in four ways:

- **Forward and backward passes of an update.** A KL term adds a pass of the reference model, distillation one of
  the teacher, PPO's values and GTPO's entropies a pass without gradient.
- **Optimizer steps of a rollout.** Lopti takes two where GRPO takes one, each on its own tokens.
- **Completions without a gradient.** GRPO skips groups of equal rewards; a KL term, a value head or advantages
  without a group mean train on them too. Lopti's update takes 2.3 times GRPO's time if no group has equal rewards,
  4.5 times if half have ([every method, measured](../performance.md#every-method-over-our-grpo)).
- **Length.** Longer completions cost more to sample; only a run shows it.

In memory, a KL term needs a frozen copy of the weights, except with an adapter, whose base model is the reference.

    rlvr plan --method lopti              # before: tokens, optimizer steps, memory, time
    rlvr compare my-sweep                 # after: updates, tokens and update time over the baseline's
    rlvr compare my-sweep --match tokens  # accuracy at equal cost; or updates, seconds

## Passes, counted

The lab's model samples one rollout ({PROMPTS} prompts x {GROUP} completions of at most {LENGTH} tokens), and every
preset trains on it. The columns give forward passes per completion: *with gradient* (and a backward pass), *without*
(old log-probs, entropies, values), and of the *reference* model or the teacher. *FLOPs* are those of the matrix
products, padding included, relative to `grpo` with as many updates. Sampling and verification are not counted; tokens
and prompts that [training skips](../speed.md) are. `reweight` and `lopti` have their paper's KL term, `grpo+reweight`
and `grpo+lopti` don't. Regenerate with `make docs`."""


@dataclass(frozen=True)
class Cost:
    """Of one rollout's updates: rows through forward passes by kind, and FLOPs of matrix products."""

    with_gradient: int
    without_gradient: int
    reference: int
    flops: int


class Recorded:
    """Completions sampled once, handed to every trainer alike."""

    def __init__(self) -> None:
        model, tokenizer = load_model("lab", revision=None, dtype="float32", device="cpu")
        config = load_config(model="lab")
        task = config.task.for_model("compact")
        problems = [problem for problem in task.problems("train", PROMPTS, 0) for _ in range(GROUP)]
        self.prompts = [prompt_ids(task, problem, tokenizer) for problem in problems]
        stops = eos_token_ids(model, tokenizer)
        params = SamplingParams(max_new_tokens=LENGTH, eos_token_ids=stops)
        self.completions = sample(model, self.prompts, params, keys=range(len(problems))).ids
        texts = [response_text(tokenizer, ids, stops) for ids in self.completions]
        self.verdicts = [task.judge(problem, text) for problem, text in zip(problems, texts, strict=True)]

    def collect(self, rollout: int, problems: Sequence[int], first_row: int) -> RolloutBatch:
        rewards, correct = zip(*((verdict.reward, verdict.correct) for verdict in self.verdicts), strict=True)
        return RolloutBatch(
            self.prompts,
            self.completions,
            rewards=list(rewards),
            correct=list(correct),
            parts=[[*verdict.parts.values()] for verdict in self.verdicts],
            part_weights=[1.0] * len(self.verdicts[0].parts),
            greedy_rewards=[0.0] * len(rewards),
        )

    def store(self, *columns: Any, **others: Any) -> None:
        pass


class CountingTrainer(PolicyTrainer):
    """Counts the rows of its forward passes, with every token in each, as an algorithm asks for."""

    def __init__(self, **arguments: Any) -> None:
        self.rows = {"with_gradient": 0, "without_gradient": 0, "reference": 0}
        super().__init__(**arguments)
        self.model.register_forward_pre_hook(self._count)
        teacher = self.teacher if self.method.advantage.needs_teacher else None
        self.frozen = [model for model in (self.ref_model, teacher) if model is not None]
        for model in self.frozen:
            model.register_forward_pre_hook(self._count)

    def _grad_mask(self, rows: TensorRows) -> Tensor:
        return policy_mask(rows).bool()

    def _count(self, model: Any, inputs: tuple[Any, ...]) -> None:
        kind = "with_gradient" if torch.is_grad_enabled() else "without_gradient"
        # Of prompts and completions, whose rows are the third argument; what wraps the model is given the same.
        self.rows["reference" if any(model is frozen for frozen in self.frozen) else kind] += len(inputs[2])


def cost(name: str, updates: int, rollouts: Recorded, *overrides: str) -> Cost:
    """The cost of training on one rollout with the method ``name``."""
    config = load_config(method=name, overrides=(*OVERRIDES.get(name, ()), *overrides))
    assert isinstance(config.method, Method)
    method = config.method.with_max_length(LENGTH)
    model, tokenizer = load_model("lab", revision=None, dtype="float32", device="cpu")
    teacher = None
    if method.advantage.needs_teacher:
        teacher, _ = load_model("lab", revision=None, dtype="float32", device="cpu")
    rows = PROMPTS * GROUP
    with tempfile.TemporaryDirectory() as folder:
        arguments = trl_config(
            output_dir=folder,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            learning_rate=5e-4,
            per_device_train_batch_size=rows // updates,
            gradient_accumulation_steps=1,
            steps_per_generation=updates,
            num_generations=GROUP,
            max_completion_length=LENGTH,
            max_steps=updates * len(method.passes.names),
            save_steps=10**6,
        )
        trainer = CountingTrainer(
            method=method,
            rollouts=rollouts,
            model=model,
            processing_class=tokenizer,
            args=arguments,
            train_dataset=Dataset.from_dict({"problem": list(range(PROMPTS))}),
            teacher=teacher,
        )
        trainer.forward.share_prompts = False
        trainer.remove_callback(PrinterCallback)
        with FlopCounterMode(display=False) as counter:
            trainer.train()
    return Cost(flops=counter.get_total_flops(), **trainer.rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*")
    parser.add_argument("--updates", type=int, nargs="+", default=[1, 4])
    options = parser.parse_args()
    torch.set_num_threads(1)
    # Else DeepSpeed, which TRL imports, says into the page that it found no accelerator.
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    known = [preset.name for preset in METHODS.values() if preset.name != "sft"]
    rollouts = Recorded()
    print(PAGE)
    for updates in options.updates:
        base = cost("grpo", updates, rollouts)
        rows = PROMPTS * GROUP
        print(f"\n## {updates} update{'' if updates == 1 else 's'} a rollout\n")
        print("| methods | with gradient | without | reference | FLOPs |\n|---|---|---|---|---|", flush=True)
        alike: dict[str, list[str]] = {}
        for name in options.methods or ["grpo", *[name for name in known if name != "grpo"], *COMPOSITIONS]:
            found = cost(name, updates, rollouts)
            passes = (found.with_gradient, found.without_gradient, found.reference)
            cells = [f"{count / rows:.2f}" for count in passes]
            alike.setdefault(f"{' | '.join(cells)} | {found.flops / base.flops:.3f}", []).append(name)
        for numbers, names in alike.items():
            print(f"| {', '.join(names)} | {numbers} |")


if __name__ == "__main__":
    main()
