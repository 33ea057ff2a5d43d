"""One worst-case batch before a training: the longest prompt with the longest completion, in every row of a step.

It runs in a process of its own, which leaves nothing behind: no file, no random number drawn, no memory taken. Two
optimizer steps are made, since the optimizer's states are there from the second on, of one or two micro-batches each.
Completions are not sampled but random tokens of the full length, so a rollout's keys and values are no part of it.

    python -m rlvr_cli.training.probe CONFIG REPORT     one process's part; `probe` starts it
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rlvr_cli.config.load import dump_yaml, load_config
from rlvr_cli.config.rollout import VllmConfig
from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.launch.command import needs_launcher
from rlvr_cli.launch.deepspeed_config import for_other_batches
from rlvr_cli.launch.world import ALONE, World
from rlvr_cli.models.libraries import allow_remote_code, remote_code_allowed
from rlvr_cli.models.sampling.engine import SamplingParams
from rlvr_cli.models.sampling.memory import NO_MEMORY, gib

Tell = Callable[[str], None]

# Optimizer steps: the first makes the optimizer's states, the second has them from its beginning.
STEPS = 2
LAST_LINES = 2
TRUST = "--trust-remote-code"


@dataclass(frozen=True)
class ProbeResult:
    """What the worst-case batch took in one process.

    Attributes:
        prompt_tokens, completion_tokens: of the longest rows. micro_batch: rows of a forward pass, where
            ``micro_tokens`` does not say how many tokens it has.
        device: cpu or the GPU's name.
        before, peak: bytes when the model was loaded, and the most at once: tensors on a GPU, the process's resident
            memory on a CPU.
        reserved, available: bytes that the GPU's allocator had taken at most, and the GPU's size; None on a CPU.
    """

    prompt_tokens: int
    completion_tokens: int
    micro_batch: int
    device: str
    before: int
    peak: int
    reserved: int | None
    available: int | None
    seconds: float
    micro_tokens: int | None = None

    def sentence(self, processes: int = 1) -> str:
        """For people: the batch, and its memory; ``processes``, of which this is the one that took the most."""
        which = f", the most of {processes} processes" if processes > 1 else ""
        if self.available is None:
            took = f"{gib(self.peak)} of resident memory, of which {gib(self.before)} when the model was loaded"
        else:
            took = (
                f"{gib(self.peak)} of tensors ({gib(self.reserved or 0)} reserved) of the {gib(self.available)} of "
                f"{self.device}"
            )
        passes = f"micro-batches of {self.micro_batch} rows"
        if self.micro_tokens is not None:
            passes = f"micro-batches of at most {self.micro_tokens} tokens, in rows"
        return (
            f"Probe: {STEPS} optimizer steps of {passes} of {self.prompt_tokens} + "
            f"{self.completion_tokens} tokens took {took}{which}. Sampling is no part of it."
        )


def probe(config: Config) -> list[ProbeResult]:
    """Run the worst-case batch of ``config`` in child processes, as many as the training has on this machine.

    Raises UserError for what the training itself would refuse, RunError when memory does not suffice (with the stage
    that was reached) or a child fails.
    """
    if needs_launcher(config.launch):
        return _in_processes(config)
    with tempfile.TemporaryDirectory(prefix="rlvr-probe-") as folder:
        settings, report = Path(folder) / "config.yaml", Path(folder) / "report.jsonl"
        settings.write_text(dump_yaml(config), encoding="utf-8")
        command = [sys.executable, "-m", "rlvr_cli.training.probe", str(settings), str(report)]
        command += [TRUST] if remote_code_allowed() else []
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        return [probe_result(_told(report), done.returncode, done.stdout, config)]


def as_rank(config: Config, world: World, folder: Path) -> None:
    """One of several processes' part of a probe: its report goes into ``folder``."""
    report = folder / f"report-{world.rank}.jsonl"
    _write(
        report,
        {"measured": asdict(measure_worst_case(config, lambda stage: _write(report, {"stage": stage}), world=world))},
    )


def _in_processes(config: Config) -> list[ProbeResult]:
    from rich.console import Console

    from rlvr_cli.launch import supervise

    with tempfile.TemporaryDirectory(prefix="rlvr-probe-") as name, Path(os.devnull).open("w") as nowhere:
        folder = Path(name)
        try:
            sized = for_other_batches(config, folder / "deepspeed.json")
            supervise.probe_launched(sized, folder, console=Console(file=nowhere))
        except RunError as error:
            stages = "; ".join(_reached(report) for report in sorted(folder.glob("report-*.jsonl"))) or "none had begun"
            raise RunError(f"The probe failed: {error}\n{stages}.\n{advice(config)}") from error
        return [ProbeResult(**_told(report)[-1]["measured"]) for report in sorted(folder.glob("report-*.jsonl"))]


def _reached(report: Path) -> str:
    rank, told = report.stem.removeprefix("report-"), _told(report)
    stage = next((line["stage"] for line in reversed(told) if "stage" in line), "starting")
    return f"rank {rank} had finished" if any("measured" in line for line in told) else f"rank {rank} was {stage}"


def _told(report: Path) -> list[dict[str, Any]]:
    """The lines of a report; the last may be half written by a process that was killed."""
    lines = report.read_text(encoding="utf-8").split("\n")[:-1] if report.exists() else []
    return [json.loads(line) for line in lines]


def _write(report: Path, line: dict[str, Any]) -> None:
    with report.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def probe_result(told: list[dict[str, Any]], code: int, output: str, config: Config) -> ProbeResult:
    """What a child's report means; raises as :func:`probe_launched`.

    Args:
        told: the lines of the report, each a stage, a failure or the result.
        code, output: the child's exit status (negative: a signal) and what it printed.
    """
    last = told[-1] if told else {}
    if "measured" in last:
        return ProbeResult(**last["measured"])
    if "problems" in last:
        raise UserError(last["problems"])
    stage = next((line["stage"] for line in reversed(told) if "stage" in line), "starting")
    text = last.get("error") or "\n".join(output.strip().splitlines()[-LAST_LINES:])
    if code == -signal.SIGKILL or any(words in text for words in NO_MEMORY) or "MemoryError" in text:
        how = "was killed by the system, as it does when memory runs out" if code == -signal.SIGKILL else text
        raise RunError(f"The probe failed: out of memory while {stage} ({how}).\n{advice(config)}")
    raise RunError(f"The probe failed while {stage} (exit status {code}):\n{text}")


def advice(config: Config) -> str:
    """What to make smaller, the keys with their values of now."""
    rows, tokens = config.batch.micro_batch, config.update.micro_tokens
    smaller = f"update.micro_batch={max(1, rows // 2)} (now {rows})" if rows > 1 else ""
    if tokens is not None:
        smaller = f"update.micro_tokens={max(1, tokens // 2)} (now {tokens})"
    shorter = f"a smaller rollout.max_new_tokens (now {config.rollout.max_new_tokens})"
    first = f"{smaller}, then {shorter}" if smaller else shorter
    return f"Try {first}. `rlvr plan` shows the largest terms and what else would help."


def worst_case(config: Config) -> Config:
    """The configuration of the probe: rows, micro-batches and method as in the training, and two steps of them."""
    batch = config.batch
    accumulated, rows = min(2, batch.micro_batches), batch.micro_batch
    if config.update.micro_tokens is not None:
        # How many of the longest rows fill a pass, the trainer finds when it deals a whole step.
        accumulated, rows = 1, batch.share
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
            "eval": config.eval.model_copy(update={"every": 0}),
            "track": config.track.model_copy(update={"to": ()}),
        }
    )


def measure_worst_case(
    config: Config, tell: Tell, prepare_trainer: Callable[[Any], None] | None = None, world: World = ALONE
) -> ProbeResult:
    """Run the worst-case batch of ``config`` in this process, which is spoilt for anything else afterwards.

    Args:
        tell: called with each stage that is entered.
        prepare_trainer: a last change to the trainer.
    """
    tell("loading the libraries")
    smaller = worst_case(config)
    from rich.console import Console

    from rlvr_cli.launch.stopping import StopRequest
    from rlvr_cli.runs.folder import create_run
    from rlvr_cli.training.build import build_trainer
    from rlvr_cli.training.prepare import prepare_run
    from rlvr_cli.training.progress import Reporter

    tell("loading the model")
    prepared = prepare_run(smaller, world)
    prepared, prompt, completion = prepared.longest()
    if prepared.engine is not None:
        prepared = replace(prepared, engine=_FullLength(len(prepared.tokenizer)))
    batch = smaller.batch
    before = _memory()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="rlvr-probe-") as folder, Path(os.devnull).open("w") as nowhere:
        run = create_run(Path(folder), "probe", overwrite=False)
        quiet = Console(file=nowhere)
        with Reporter(run.log_path, console=quiet, rollouts=1, steps=batch.steps_total) as reporter:
            tell("building the trainer")
            trainer = build_trainer(smaller, batch, run, prepared, Counter(), reporter, StopRequest())
            trainer.assume_worst_case()
            trainer.remove_callback(trainer.checkpointer)
            _tell_stages(trainer, tell)
            if prepare_trainer is not None:
                prepare_trainer(trainer)
            trainer.train()
    device, reserved, available = _device()
    return ProbeResult(
        prompt_tokens=prompt,
        completion_tokens=completion,
        micro_batch=batch.micro_batch,
        device=device,
        before=before,
        peak=_peak(),
        reserved=reserved,
        available=available,
        seconds=time.perf_counter() - started,
        micro_tokens=config.update.micro_tokens,
    )


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


def _tell_stages(trainer: Any, tell: Tell) -> None:
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    backward = trainer.accelerator.backward

    def told(*arguments: Any, **named: Any) -> None:
        tell("in the backward pass")
        backward(*arguments, **named)

    tell("preparing the batch (forward passes without gradient)")
    trainer.model.register_forward_pre_hook(lambda *_: tell("in the forward pass") if torch.is_grad_enabled() else None)
    trainer.accelerator.backward = told
    register_optimizer_step_pre_hook(lambda *_: tell("in the optimizer's step"))
    register_optimizer_step_post_hook(lambda *_: tell("after the optimizer's step"))


def _memory() -> int:
    """Bytes in use now."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        return int(torch.cuda.memory_allocated())
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()


def _peak() -> int:
    import torch

    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _device() -> tuple[str, int | None, int | None]:
    import torch

    if not torch.cuda.is_available():
        return "cpu", None, None
    size = int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)
    return torch.cuda.get_device_name(), int(torch.cuda.max_memory_reserved()), size


def main(arguments: list[str]) -> int:
    """The child: measures, and writes what happens to the report as it happens."""
    settings, report = map(Path, arguments[:2])
    allow_remote_code(TRUST in arguments[2:])
    try:
        measured = measure_worst_case(load_config([settings]), lambda stage: _write(report, {"stage": stage}))
    except UserError as error:
        _write(report, {"problems": list(error.problems)})
        return 2
    except Exception as error:
        _write(report, {"error": f"{type(error).__name__}: {str(error)[:500]}"})
        raise
    _write(report, {"measured": asdict(measured)})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
