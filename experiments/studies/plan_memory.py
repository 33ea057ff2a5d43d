"""The memory that `rlvr plan` estimates, next to what training really takes: models of random weights on a CPU.

    python -m experiments.studies.plan_memory [--only NAME] [--json] | --papers

Each case is a process: two optimizer steps of two micro-batches with AdamW in float32, every row the longest prompt
with random tokens of the longest completion (the optimizer has its states from the second step on). Two figures are
taken: the most bytes of tensors that lived at once (torch's profiler sees every allocation and release), and the growth
of the process's resident memory from when the weights were mapped from their file, which also has the allocator's waste
and the libraries' own buffers in it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.random_model import SHAPES, random_model
from rlvr_cli.config.rollout import VllmConfig
from rlvr_cli.config.schema import Config
from rlvr_cli.models.architecture import Architecture, from_config
from rlvr_cli.models.sampling.engine import SamplingParams
from rlvr_cli.planning.memory import GIB, MemoryEstimate, Sampling, Training, estimate_memory

MIB = 2**20
# Optimizer steps: the first makes the optimizer's states, the second has them from its beginning.
STEPS = 2


@dataclass(frozen=True)
class Case:
    """One measurement: a shape, rows of a micro-batch, completion tokens, gradient checkpointing."""

    shape: str
    micro_batch: int
    completion: int
    checkpointing: bool

    @property
    def name(self) -> str:
        """Short, for tables."""
        return (
            f"{self.shape}, {self.micro_batch} x {self.completion}, {'' if self.checkpointing else 'no '}checkpointing"
        )


CASES = (
    Case("qwen2-29M", 1, 128, False),
    Case("qwen3-125M", 2, 128, False),
    Case("llama-315M", 1, 64, False),
    Case("qwen2-29M", 8, 128, False),
    Case("qwen2-29M", 8, 128, True),
    Case("qwen3-125M", 8, 64, False),
    Case("qwen3-125M", 8, 64, True),
    Case("llama-315M", 2, 128, False),
    Case("llama-315M", 2, 128, True),
    # More logits than are made at once.
    Case("qwen2-29M", 4, 600, False),
    Case("qwen2-29M", 4, 600, True),
)


def architecture(shape: str) -> Architecture:
    """The shape as `rlvr plan` reads it."""
    return from_config(SHAPES[shape])


def estimated(case: Case, prompt_tokens: int) -> MemoryEstimate:
    """What `rlvr plan` would say of the case."""
    training = Training(
        micro_batch=case.micro_batch,
        prompt_tokens=prompt_tokens,
        completion_tokens=case.completion,
        autocast=False,
        gpu=False,
        checkpointing=case.checkpointing,
    )
    return estimate_memory(architecture(case.shape), training, Sampling("none", 0))


def child(case: Case, folder: Path) -> dict[str, Any]:
    """Measure one case in this process."""
    import torch

    from benchmarks.memory import most_bytes, profiled
    from rlvr_cli.config.load import load_config

    config = load_config(
        model=str(folder),
        overrides=[
            "rollout={prompts: 8, group_size: 16}",
            f"rollout.max_new_tokens={case.completion}",
            f"update.micro_batch={case.micro_batch}",
            "task={name: kk, style: compact, train_size: 64}",
            "run.threads=1",
        ],
    )
    torch.set_num_threads(1)
    found: dict[str, Any] = {}

    def under_a_profiler(trainer: Any) -> None:
        train, model = trainer.train, trainer.model
        if case.checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        held = sum(weight.numel() * weight.element_size() for weight in model.parameters())

        def watched() -> Any:
            with profiled() as profiler:
                result = train()
            found["tensors"] = held + most_bytes(profiler)
            return result

        trainer.train = watched

    prompt, before = train_worst_case(config, under_a_profiler)
    # Weights are mapped from their file when the model is loaded, and come into memory when they are first read.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"tensors": found["tensors"], "resident": peak - before, "prompt": prompt}


def worst_case(config: Config) -> Config:
    """Return ``config`` cut to two optimizer steps, with its own rows, micro-batches and method."""
    batch = config.batch
    accumulated, rows = min(2, batch.micro_batches), batch.micro_batch
    prompts = STEPS * accumulated * batch.processes
    if rows == 1:
        prompts, rows = prompts // 2, 2  # a group of one has nothing to be compared with
    rollout = {
        "prompts": prompts,
        "group_size": rows,
        "dynamic_sampling": 0,
        "drop_truncated": False,
        "engine": "transformers",
        "vllm": VllmConfig(),
    }
    update = {"mini_batches": STEPS, "epochs": 1, "micro_batch": batch.micro_batch}
    return config.model_copy(
        update={
            "rollout": config.rollout.model_copy(update=rollout),
            "update": config.update.model_copy(update=update),
            "train": config.train.model_copy(
                update={"rollouts": 1, "on_nonfinite": "skip", "max_skips": 1000, "on_collapse": "off"}
            ),
            "optimizer": config.optimizer.model_copy(update={"warmup_rollouts": 0}),
            "validation": config.validation.model_copy(update={"every": 0}),
            "track": config.track.model_copy(update={"to": ()}),
        }
    )


def train_worst_case(config: Config, prepare_trainer: Callable[[Any], None]) -> tuple[int, int]:
    """Train on the worst-case batch; the tokens of the longest prompt, and the resident bytes before the training."""
    from rich.console import Console

    from rlvr_cli.launch.stopping import StopRequest
    from rlvr_cli.launch.world import ALONE
    from rlvr_cli.runs.folder import create_run
    from rlvr_cli.tasks.base import prompt_ids
    from rlvr_cli.training.build import build_trainer
    from rlvr_cli.training.packing import policy_mask
    from rlvr_cli.training.prepare import RunParts, prepare_run
    from rlvr_cli.training.progress import Reporter

    smaller = worst_case(config)
    prepared: Any = prepare_run(smaller, ALONE)
    tokens = [len(prompt_ids(prepared.task, problem, prepared.tokenizer)) for problem in prepared.problems]
    longest = prepared.problems[tokens.index(max(tokens))]
    engine = _FullLength(len(prepared.tokenizer))
    prepared = replace(prepared, problems=[longest] * len(tokens), engine=engine)
    before = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()
    with tempfile.TemporaryDirectory(prefix="rlvr-memory-") as folder, Path(os.devnull).open("w") as nowhere:
        run = create_run(Path(folder), "worst", overwrite=False)
        steps = smaller.batch.steps_total
        with Reporter(run.log_path, console=Console(file=nowhere), rollouts=1, steps=steps) as reporter:
            trainer: Any = build_trainer(RunParts(prepared, run, reporter, StopRequest()))
            trainer._pending_checks = []  # nothing was sampled
            # The largest update: each token has a gradient, each row a prompt of its own.
            trainer._grad_mask = lambda rows: policy_mask(rows).bool()
            trainer.forward.share_prompts = False
            trainer.remove_callback(trainer.checkpointer)
            prepare_trainer(trainer)
            trainer.train()
    return max(tokens), before


class _FullLength:
    """In place of a sampler: random tokens up to the limit, in some rows a few less.

    So some rows have padding: without any, attention would need no mask and less memory.
    """

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary

    def __call__(self, model: Any, prompts: Any, params: SamplingParams, **others: Any) -> Any:
        import random

        from rlvr_cli.models.sampling.engine import Completions

        draw = random.Random(0)
        longest = params.max_new_tokens
        words = [word for word in range(self.vocabulary) if word not in params.eos_token_ids]
        # Rows of like length share a micro-batch, so that two lengths would each get micro-batches of their own.
        different = max(2, min(len(prompts), longest // 20))
        lengths = [max(1, longest - row % different) for row in range(len(prompts))]
        ids = [draw.choices(words, k=length) for length in lengths]
        return Completions(ids, [[0.0] * length for length in lengths], [True] * len(ids))


def run(case: Case, folder: Path) -> dict[str, Any]:
    """One case as a row of the table: MiB, and relative errors of the estimate."""
    # Large blocks go back to the system when they are freed, so that resident memory follows what is in use.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
    module = "experiments.studies.plan_memory"
    command = [sys.executable, "-m", module, "--child", json.dumps(asdict(case)), str(folder)]
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    measured = json.loads(done.stdout.splitlines()[-1])
    plan = estimated(case, measured["prompt"])
    return {
        **asdict(case),
        "parameters": architecture(case.shape).parameters,
        "tokens": measured["prompt"] + case.completion,
        "estimate": plan.peak / MIB,
        "phase": plan.peak_phase,
        "terms": {term.name: round(term.bytes / MIB, 1) for term in plan.terms},
        "tensors": measured["tensors"] / MIB,
        "resident": measured["resident"] / MIB,
        "error": plan.peak / measured["tensors"] - 1,
        "error_resident": plan.peak / measured["resident"] - 1,
        "seconds": time.perf_counter() - started,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown."""
    lines = [
        "| model | rows x tokens | checkpointing | estimate | tensors | error | resident | error |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        lines.append(
            f"| {row['shape']} | {row['micro_batch']} x {row['tokens']} | {'yes' if row['checkpointing'] else 'no'} "
            f"| {row['estimate']:,.0f} | {row['tensors']:,.0f} | {row['error']:+.1%} "
            f"| {row['resident']:,.0f} | {row['error_resident']:+.1%} |"
        )
    return "\n".join(lines)


def papers() -> str:
    """The estimates of the papers' recipes on 1, 4 and 8 GPUs of 80 GiB, in Markdown."""

    from rlvr_cli.config.load import load_config
    from rlvr_cli.models.architecture import find_architecture
    from rlvr_cli.planning.advice import classify_peak
    from rlvr_cli.planning.plan import Device, sampling_settings, training_settings
    from rlvr_cli.sweeps.rows import trial_rows
    from rlvr_cli.sweeps.spec import read_sweep

    gpu = Device(True, 80 * GIB, "80 GiB")
    lines = [
        "| recipe | model | GPUs | divided by | micro-batch | update | rollout | largest terms of the update | fits |",
        "| --- | --- | ---: | --- | ---: | ---: | ---: | --- | --- |",
    ]
    folder = Path(__file__).parents[2] / "configs" / "papers"
    # Rows of one table differ in the method, which seldom changes the memory: each estimate is printed once.
    recipes: dict[str, list[str]] = {}
    files = sorted(folder.glob("*/[!_]*.yaml"))
    written_rows = [(file, *row) for file in files for row in trial_rows(read_sweep(file)).items()]
    for file, name, row in written_rows:
        written = load_config([row])
        batch = written.batch.step_batch
        for gpus in (1, 4, 8):
            overrides = [f"launch.processes={gpus}"]
            if gpus == 1:
                overrides += ["launch.deepspeed=null"]
            if batch % gpus:
                continue
            if batch // gpus % (written.update.micro_batch or 1):
                overrides += ["update.micro_batch=null"]
            config = load_config([row], overrides=overrides)
            model = find_architecture(config.model.name).architecture
            assert model is not None
            training = training_settings(config, gpu)
            found = estimate_memory(model, training, sampling_settings(config, model), gpu.bytes)
            phases = [phase for phase in found.phases if phase != "sampling"]
            update = max(phases, key=found.total)
            terms = sorted((*found.states, *found.phases[update]), key=lambda term: -term.bytes)[:3]
            said = ", ".join(f"{term.name} {term.bytes / GIB:.0f}" for term in terms)
            numbers = (
                f"{config.model.name} | {gpus} | {training.strategy} | {training.micro_batch} "
                f"| {found.total(update) / GIB:.1f} | {found.total('sampling') / GIB:.1f} | {said} "
                f"| {classify_peak(found.total(update), gpu.bytes)} / "
                f"{classify_peak(found.total('sampling'), gpu.bytes)}"
            )
            recipes.setdefault(numbers, []).append(f"{file.parent.name}/{file.name}:{name}")
    for numbers, names in recipes.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        lines.append(f"| {names[0]}{more} | {numbers} |")
    return "\n".join(lines)


def main() -> None:
    """Measure every case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="measure the cases whose name has this in it")
    parser.add_argument("--json", action="store_true", help="print JSON in place of a table")
    parser.add_argument("--papers", action="store_true", help="print the estimates of configs/papers; measures nothing")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.papers:
        print(papers())
        return
    if arguments.child:
        print(json.dumps(child(Case(**json.loads(arguments.child[0])), Path(arguments.child[1]))))
        return
    # Else DeepSpeed, which TRL imports, looks for an accelerator and prints that there is none.
    os.environ["DS_ACCELERATOR"] = "cpu"
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        for case in CASES:
            if arguments.only and arguments.only not in case.name:
                continue
            folder = Path(temporary) / case.shape
            if not folder.exists():
                random_model(case.shape, folder)
            rows.append(run(case, folder))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    print(json.dumps(rows, indent=2) if arguments.json else table(rows))


if __name__ == "__main__":
    main()
