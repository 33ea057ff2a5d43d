"""The checks of ``python -m benchmarks.gpu``: each is called in a process of its own and prints its numbers last."""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.memory import MIB, peak_bytes
from benchmarks.peers import (
    AGREEMENT_BF16,
    Place,
    comparable,
    disagreement,
    divided,
    method_named,
    our_trainer,
    their_trainer,
)
from benchmarks.scripted import Rollout, Script
from rlvr_cli.config.load import load_config
from rlvr_cli.core.files import read_jsonl
from rlvr_cli.models.gpu import find_attention_problem, prepare_attention
from rlvr_cli.models.source import PRESETS

# Completions about as long as a trained model's on GSM8K.
ROLLOUT = Rollout(rows=128, group=8, prompt=100, mean=200, longest=512)
TINY = Rollout(rows=8, group=4, prompt=8, mean=12, longest=24, part=4)
# config.json of Qwen/Qwen2.5-0.5B.
QWEN = {
    "vocab_size": 151_936,
    "hidden_size": 896,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "intermediate_size": 4864,
    "max_position_embeddings": 32_768,
    "tie_word_embeddings": True,
    "pad_token_id": 0,
    "eos_token_id": 1,
}
# What differs in config.json of Qwen/Qwen2.5-1.5B.
LARGE = {"hidden_size": 1536, "num_hidden_layers": 28, "num_attention_heads": 12, "intermediate_size": 8960}
SMALL = {"vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 96}
SMALL |= {"num_attention_heads": 2, "num_key_value_heads": 1}
# |ours - float64's| / |float64's| of a gradient. A broken kernel is off by its whole size.
LIMITS = {"float32": 1e-4, "autocast": AGREEMENT_BF16}


class Skipped(Exception):
    """The check cannot be made here, and why."""


@dataclass(frozen=True)
class Bench:
    """What a check runs on, and a folder of its own."""

    folder: Path
    gpu: bool
    tiny: bool
    model: str | None

    @property
    def device(self) -> str:
        return "cuda" if self.gpu else "cpu"

    @property
    def place(self) -> Place:
        return Place(gpu=self.gpu, bf16=self.gpu, checkpointing=self.gpu, optimizer="adamw_torch")

    def config(self, **sizes: Any) -> Any:
        """Return the configuration of the random model, or of the one that was named."""
        from transformers import AutoConfig

        if self.model and not sizes:
            return AutoConfig.from_pretrained(self.model)
        return AutoConfig.for_model("qwen2", **{**QWEN, **(SMALL if self.tiny else {}), **sizes})

    def weights(self, **sizes: Any) -> str:
        """Return the model of `rlvr train`: the one that was named, or random weights with the lab's tokenizer."""
        if self.model:
            return self.model
        folder = self.folder / "model"
        if not folder.exists():
            replace(self.place, gpu=False).model(self.config(**sizes)).save_pretrained(folder)
            for name in ("tokenizer.json", "tokenizer_config.json"):
                shutil.copy(PRESETS["lab-countdown"] / name, folder)
        return str(folder)

    def settings(self) -> list[str]:
        """Return the options of a training on rows like GSM8K's, whose reward is the parity of the answer's length."""
        rows, draw = self.folder / "rows.train.jsonl", random.Random(0)
        with rows.open("w", encoding="utf-8") as file:
            for _ in range(64):
                boxes, each, eaten = draw.randint(2, 9), draw.randint(12, 40), draw.randint(1, 20)
                question = f"Ann has {boxes} boxes with {each} apples each and eats {eaten} of them. How many are left?"
                solution = f"{boxes} * {each} = {boxes * each}. {boxes * each} - {eaten} = {boxes * each - eaten}."
                row = {"prompt": question, "answer": f"{solution}\n#### {boxes * each - eaten}"}
                file.write(json.dumps(row) + "\n")
        # Random weights solve nothing, and rows of equal rewards are not trained on.
        reward = self.folder / "parity.py"
        reward.write_text(
            "def parity(completions, **columns):\n    return [float(len(text) % 2) for text in completions]\n",
            encoding="utf-8",
        )
        shape = (2, 4, 16) if self.tiny else (16, 8, 512)
        keys = ("rollout.prompts", "rollout.group_size", "rollout.max_new_tokens")
        sizes = [f"{key}={value}" for key, value in zip(keys, shape, strict=True)]
        return [f"task.data={rows}", f"task.reward={reward}:parity", f"run.dir={self.folder}", *sizes]

    def rlvr(self, *words: str, codes: tuple[int, ...] = (0,), stop_at: str = "") -> str:
        """Run a command and return its output; interrupt it after the first line that begins with ``stop_at``."""
        lines = []
        command = [sys.executable, "-m", "rlvr_cli", *words]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                if stop_at and line.startswith(stop_at):
                    process.send_signal(signal.SIGINT)
        if process.returncode not in codes:
            raise SystemExit(f"rlvr {' '.join(words)} ended with {process.returncode}:\n{''.join(lines[-30:])}")
        return "".join(lines)


def update(bench: Bench, name: str) -> dict[str, Any]:
    """The update on scripted rows, stock TRL's and ours; Lopti against two passes of TRL over all tokens."""
    rollout, place = (TINY if bench.tiny else ROLLOUT), bench.place
    config = bench.config()
    script = Script(rollout, config.vocab_size)
    model = place.model(config)
    # TRL has no KL term by default.
    method = comparable(name, rollout, model, script)
    method = method.replace(kl=method.kl.replace(beta=0.0))
    passes = len(method.passes.names)
    theirs = their_trainer(bench.folder / "theirs", model, rollout, script, place, passes)
    numbers: dict[str, Any] = {"tokens": script.tokens}
    ours = our_trainer(bench.folder / "ours", place.model(config), rollout, script, place, method)
    numbers["gradients_apart"] = f"{disagreement(theirs, ours):.1e}"
    for side, trainer in (("trl", theirs), ("ours", ours)):
        seconds = statistics.median(trainer.update() for _ in range(1 if bench.tiny else 3))
        numbers |= {f"{side}_s": round(seconds, 3), f"{side}_tokens_per_s": round(script.tokens / seconds)}
        numbers[f"{side}_peak_mib"] = round(peak_bytes(trainer) / MIB)
    return numbers


def step(bench: Bench, name: str) -> dict[str, Any]:
    """A whole rollout of `rlvr train`, and of stock TRL with its `generate` and as many passes over all tokens."""
    from benchmarks.steps import our_step, their_step

    overrides = [*bench.settings(), f"train.rollouts={2 if bench.tiny else 4}", "method.kl.beta=0"]
    config = load_config(task="own", method=name, model=bench.weights(), overrides=overrides)
    numbers: dict[str, Any] = {}
    for side, measure in (("ours", our_step), ("trl", lambda of: their_step(of, gpu=bench.gpu))):
        if bench.gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        numbers[f"{side}_s"] = round(measure(config), 3)
        tokens = config.rollout.prompts * config.rollout.group_size * config.rollout.max_new_tokens
        # Random weights end no completion early; those of a model are shorter.
        numbers[f"{side}_tokens_per_s"] = None if bench.model else round(tokens / numbers[f"{side}_s"])
        numbers[f"{side}_peak_mib"] = round(torch.cuda.max_memory_allocated() / MIB) if bench.gpu else None
    return numbers


MEMORY = {"full": {}, "lora": {}, "large": LARGE}


def memory(bench: Bench, kind: str) -> dict[str, Any]:
    """The peak of two rollouts of training against the plan's estimate, without the CUDA context in both."""
    from benchmarks.steps import our_step
    from rlvr_cli.planning.memory import CUDA_CONTEXT
    from rlvr_cli.planning.plan import plan_resources

    model = bench.weights(**({} if bench.tiny else MEMORY[kind]))
    adapter = ["model.adapter=lora"] if kind == "lora" else []
    overrides = [*bench.settings(), "train.rollouts=2", *adapter]
    config = load_config(task="own", method="grpo", model=model, overrides=overrides)
    size = torch.cuda.get_device_properties(0).total_memory if bench.gpu else 80 * 2**30
    plan = plan_resources(config, gpu_memory=f"{size / 2**30}GiB", prompt_tokens=ROLLOUT.prompt)["memory"]
    numbers: dict[str, Any] = {"plan_mib": round((plan["peak"] - CUDA_CONTEXT) / MIB), "plan_phase": plan["peak_phase"]}
    numbers["seconds"] = round(our_step(config), 2)
    if bench.gpu:
        free, total = torch.cuda.mem_get_info()
        reserved = torch.cuda.max_memory_reserved()
        numbers["allocated_mib"] = round(torch.cuda.max_memory_allocated() / MIB)
        numbers["reserved_mib"] = round(reserved / MIB)
        numbers["context_mib"] = round((total - free - torch.cuda.memory_reserved()) / MIB)
    return numbers


def versions(bench: Bench) -> dict[str, Any]:
    """What is installed, and what `rlvr doctor` says of it."""
    from rlvr_cli.runs.environment import versions as installed

    said = bench.rlvr("doctor", codes=(0, 1))
    numbers: dict[str, Any] = {"doctor": " ".join(said.split())[-300:], **installed()}
    if bench.gpu:
        query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        numbers["gpu"] = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
        numbers["cuda"], numbers["cudnn"] = torch.version.cuda, torch.backends.cudnn.version()
        numbers["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return numbers


def tests(bench: Bench) -> dict[str, Any]:
    """The tests that need a GPU; without one they are collected."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-m",
        "gpu",
        *([] if bench.gpu else ["--collect-only", "tests/models"]),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stdout[-3000:] + done.stderr[-1000:])
    return {"pytest": done.stdout.strip().splitlines()[-1]}


def attention(bench: Bench) -> dict[str, Any]:
    """Each kernel of attention by width with left padding: ok, or what is wrong with its output and gradients."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    numbers = {}
    device, dtype = torch.device(bench.device), torch.bfloat16 if bench.gpu else torch.float32
    backends = ("MATH", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION") if bench.gpu else ("MATH",)
    for name in backends:

        def attend(*tensors: Any, _name: str = name, **options: Any) -> Any:
            with sdpa_kernel(getattr(SDPBackend, _name)):
                return F.scaled_dot_product_attention(*tensors, **options)

        for width in (704, 768):
            try:
                said = find_attention_problem(device, dtype, attend=attend, width=width)
            except RuntimeError as error:  # a kernel that this GPU has not
                said = str(error).splitlines()[0]
            numbers[f"{name.lower()}_{width}"] = said or "ok"
    prepare_attention(device, gradients=True)
    return numbers


def gradient(bench: Bench) -> dict[str, Any]:
    """Our gradient here in float32 and by autocast against float64 on the CPU, of a small model with large biases."""
    config = bench.config(**{**SMALL, "num_hidden_layers": 4, "hidden_size": 128})
    rollout, numbers = replace(TINY, rows=16, longest=48, mean=24), {}
    model = Place().model(config)
    with torch.no_grad():
        for name, bias in model.named_parameters():
            if name.endswith(("k_proj.bias", "q_proj.bias")):
                bias.normal_(std=8.0 if name.endswith("k_proj.bias") else 1.0)
    script = Script(rollout, config.vocab_size)
    for name in ("grpo", "lopti", "ppo", "gtpo"):
        method = divided(method_named(name, rollout, "kl.beta=0.0"), model, script)

        def made(dtype: torch.dtype, place: Place, _method: Any = method, _name: str = name) -> Any:
            torch.manual_seed(0)
            copy = deepcopy(model).to("cuda" if place.gpu else "cpu", dtype)
            folder = bench.folder / f"{_name}-{dtype}-{place.bf16}"
            return our_trainer(folder, copy, rollout, script, place, _method).rollout_gradient().double().cpu()

        exact = made(torch.float64, Place())
        for kind, limit in LIMITS.items():
            found = made(torch.float32, Place(gpu=bench.gpu, bf16=kind == "autocast"))
            error, cosine = (
                float((found - exact).norm() / exact.norm()),
                float(F.cosine_similarity(found, exact, dim=0)),
            )
            numbers[f"{name}_{kind}"] = f"{error:.1e} (cos {cosine:.6f})"
            if not error <= limit:
                numbers["beyond"] = f"{numbers.get('beyond', '')} {name}_{kind}".strip()
    return numbers


def lab(bench: Bench) -> dict[str, Any]:
    """The lab: GRPO and Lopti, stopped and resumed against unbroken, and evaluated."""
    sizes = ["rollout.prompts=4", "rollout.group_size=4"] if bench.tiny else []
    common = [f"run.dir={bench.folder}", *sizes]
    numbers = {}
    for name in ("grpo", "lopti"):
        words = ["train", "--method", name, "train.rollouts=6", *common]
        bench.rlvr(*words, f"run.name={name}")
        bench.rlvr(*words, f"run.name={name}-stopped", codes=(0, 130), stop_at="step 2/")
        if metrics(bench.folder / f"{name}-stopped")[-1]["rollout"] < 5:
            bench.rlvr("train", "--resume", str(bench.folder / f"{name}-stopped"))
        whole, resumed = (metrics(bench.folder / run) for run in (name, f"{name}-stopped"))
        numbers[f"{name}_accuracy"] = round(whole[-1]["accuracy"], 3)
        apart = [abs(a["reward"] - b["reward"]) for a, b in zip(whole, resumed, strict=True)]
        numbers[f"{name}_resumed_apart"] = round(max(apart), 4)
    problems = ["--problems", "4"] if bench.tiny else ["--problems", "100"]
    numbers["eval"] = " ".join(bench.rlvr("eval", str(bench.folder / "grpo"), *problems).split())[:200]
    return numbers


def metrics(run: Path) -> list[dict[str, Any]]:
    return list(read_jsonl(run / "metrics.jsonl"))


TRAININGS: dict[str, list[str]] = {
    "default": [],
    "lora": ["model.adapter=lora"],
    "qlora": ["model.adapter=qlora"],
    "kl": ["method.kl.beta=0.01"],
    "sft": [],
}


def training(bench: Bench, kind: str) -> dict[str, Any]:
    """Two rollouts of `rlvr train`; the sampler must compute what is trained, within the run's own limits."""
    if kind == "qlora" and importlib.util.find_spec("bitsandbytes") is None:
        raise Skipped("bitsandbytes is not installed")
    sft = kind == "sft"
    if sft:  # worked solutions need a tokenizer that can write them
        words = ["--task", "kk", "--method", "sft", "--model", "lab", f"run.dir={bench.folder}"]
    else:
        words = ["--task", "own", "--model", bench.weights(), *bench.settings()]
    bench.rlvr("train", *words, "run.name=run", "train.rollouts=2", *TRAININGS[kind])
    run = bench.folder / "run"
    manifest = json.loads((run / "manifest.json").read_text(encoding="utf-8"))
    timed = list(read_jsonl(run / "timings.jsonl"))[-1]
    numbers = {"weights": manifest["weights_dtype"], "step_s": round(timed["seconds"], 2)}
    if not sft:
        check = manifest["sampler_check"]
        numbers |= {"sampler_matches": check["matches"], "mean_difference": check["mean_difference"]}
        if not check["matches"]:
            raise SystemExit(f"the sampler does not compute what is trained: {check}")
    return numbers


def zero(bench: Bench, stage: str) -> dict[str, Any]:
    """One step of the lab in one process under DeepSpeed, against one without."""
    if not bench.gpu:
        raise Skipped("DeepSpeed divides a model over GPUs; tests/launch has it on CPUs")
    words = ["train", "train.rollouts=1", f"run.dir={bench.folder}", "model.dtype=bfloat16"]
    bench.rlvr(*words, "run.name=single")
    bench.rlvr(*words, "run.name=zero", f"launch.deepspeed={stage}", "launch.processes=1")
    single, other = (metrics(bench.folder / run)[0]["grad_norm"] for run in ("single", "zero"))
    return {"single_grad_norm": single, f"{stage}_grad_norm": other, "apart": f"{abs(other - single) / single:.1e}"}


CALLS: dict[str, Callable[[Bench, str], dict[str, Any]]] = {
    "update": update,
    "step": step,
    "train": training,
    "memory": memory,
}
OTHERS = {"versions": versions, "pytest": tests, "attention": attention, "gradient": gradient, "lab": lab}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("check")
    parser.add_argument("--model")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rlvr-gpu-") as folder:
        if not options.cpu and not torch.cuda.is_available():
            raise SystemExit("torch sees no GPU here; --cpu --tiny tests the checks themselves.")
        bench = Bench(Path(folder), not options.cpu, options.tiny, options.model)
        kind, _, of = options.check.partition("-")
        try:
            if options.check.startswith("zero"):
                numbers = zero(bench, options.check)
            else:
                numbers = CALLS[kind](bench, of) if of else OTHERS[kind](bench)
            line: dict[str, Any] = {"status": "failed" if "beyond" in numbers else "ok", "numbers": numbers}
        except Skipped as reason:
            line = {"status": "skipped", "why": f"{'skipped on a CPU: ' if not bench.gpu else ''}{reason}"}
        print(f"\n{json.dumps(line)}", flush=True)


if __name__ == "__main__":
    main()
