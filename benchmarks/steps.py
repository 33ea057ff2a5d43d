"""A whole training step of the lab, `rlvr train` against stock TRL: sampling, judging, updating, recording.

    python -m benchmarks.steps [--blocks 3] [--steps 4] [--threads 1]

Both start from the lab's base with its preset (16 prompts x 8 completions of at most 144 tokens, AdamW) and take turns,
a block of steps each; a block's first step is not counted. TRL samples with its own `generate`, judges with the task's
verdict and updates with its own loss, with `bf16` and `gradient_checkpointing` switched off, which suits a CPU; it
keeps no records. A step of ours has a run's records in it, checkpoints not.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from typing import Any

import torch
from datasets import Dataset
from rich.console import Console
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOTrainer

from benchmarks.turns import compared, heading, line, load_said
from rlvr_cli.config.load import load_config
from rlvr_cli.config.schema import Config
from rlvr_cli.core.files import read_jsonl
from rlvr_cli.models.load import eos_token_ids, load_model
from rlvr_cli.models.source import prompt_style
from rlvr_cli.tasks.base import response_text
from rlvr_cli.training.run import start_training
from rlvr_cli.training.trl_arguments import trl_config


class _Times(TrainerCallback):
    """When each step ended."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.ends.append(time.perf_counter())


def settings(steps: int, threads: int) -> Config:
    return load_config(model="lab", overrides=[f"train.rollouts={steps + 1}", f"run.threads={threads}"])


def our_step(config: Config) -> float:
    """Mean seconds of our rollouts after the first, all passes of each, as the run has recorded them."""
    with tempfile.TemporaryDirectory(prefix="rlvr-benchmark-") as folder:
        run = config.run.model_copy(update={"dir": folder, "name": "step"})
        checkpoint = config.checkpoint.model_copy(update={"every": 10**6})
        config = config.model_copy(update={"run": run, "checkpoint": checkpoint})
        done = start_training(config, overwrite=False, console=Console(quiet=True))
        seconds = [float(row["seconds"]) for row in read_jsonl(done.run.timings_path)]
    passes = len(config.method.passes.names)
    return sum(seconds[passes:]) / (len(seconds) // passes - 1)


def their_step(config: Config, *, gpu: bool = False) -> float:
    """Mean seconds of TRL's rollouts after the first, with as many passes over each as the method makes.

    On a GPU TRL has its defaults, on a CPU not those that slow it there.
    """
    steps, threads = config.train.rollouts - 1, config.run.threads
    if isinstance(threads, int):
        torch.set_num_threads(threads)
    model, tokenizer = load_model(config.model.name, dtype="float32", device="cuda" if gpu else "cpu")
    task, stops = config.task.for_model(prompt_style(model.config)), eos_token_ids(model, tokenizer)
    wanted = (steps + 1) * config.rollout.prompts
    problems = list(task.problems("train", wanted, 0))
    problems = (problems * -(-wanted // len(problems)))[:wanted]
    texts = [task.prompt(problem, tokenizer) for problem in problems]

    def judged(prompts: list[str], completion_ids: list[list[int]], number: list[int], **columns: Any) -> list[float]:
        rows = zip(number, completion_ids, strict=True)
        return [task.judge(problems[place], response_text(tokenizer, ids, stops)).reward for place, ids in rows]

    rows = config.rollout.prompts * config.rollout.group_size
    part, passes = min(16, rows), len(config.method.passes.names)
    times = _Times()
    with tempfile.TemporaryDirectory(prefix="rlvr-benchmark-") as folder:
        trainer = GRPOTrainer(
            model=model,
            processing_class=tokenizer,
            reward_funcs=[judged],
            args=trl_config(
                output_dir=folder,
                use_cpu=not gpu,
                bf16=gpu,
                gradient_checkpointing=gpu,
                learning_rate=config.optimizer.lr,
                adam_beta1=config.optimizer.betas[0],
                adam_beta2=config.optimizer.betas[1],
                per_device_train_batch_size=part,
                gradient_accumulation_steps=rows // part,
                num_generations=config.rollout.group_size,
                max_completion_length=config.rollout.max_new_tokens,
                temperature=config.rollout.temperature,
                num_iterations=passes,
                max_steps=(steps + 1) * passes,
                save_steps=10**6,
            ),
            train_dataset=Dataset.from_dict({"prompt": texts, "number": list(range(len(texts)))}),
            callbacks=[times],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return (times.ends[-1] - times.ends[passes - 1]) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    print(f"Median of {options.blocks} blocks of {options.steps} steps; {load_said()}.\n")
    config = settings(options.steps, options.threads)
    found = compared(lambda: their_step(config), lambda: our_step(config), options.blocks)
    print(heading("a step of the lab", "TRL, s", "ours, s", "ours / TRL"))
    print(line([f"{options.threads} thread(s)", *found.cells()]))


if __name__ == "__main__":
    main()
