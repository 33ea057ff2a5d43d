"""The update on a GPU, ours against TRL's: Qwen2.5's shapes with random weights, bfloat16, rows of up to 4,096 tokens.

    python -m benchmarks.gpu_updates [--models 0.5B 1.5B 7B] [--repeats 5]

8 prompts of 8 completions, log-normal lengths, gradient checkpointing as TRL has it by default, and plain SGD: two
trainers share one set of weights and keep no state, so that 7B fits on a GPU of 80 GiB. *tokens* are those of the
prompts and completions, padding not counted; *share of peak* is the arithmetic that they need (6 FLOPs a weight and
token, and the causal half of the attention; no recomputation), over the seconds and the GPU's dense bfloat16 rate. What
is timed and how it is checked is as in updates.py and peers.py. Without a GPU it says so and ends.

A run takes another path: `rlvr train` keeps float32 weights and computes in bfloat16 by autocast, with AdamW, and its
residual stream is float32. So these numbers compare two trainers in one setting; they are not the speed of a run.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.memory import MIB, peak_bytes
from benchmarks.peers import Place, checked, comparable, our_trainer, their_trainer, trainers_folder
from benchmarks.scripted import Rollout, Script
from benchmarks.turns import Compared, compared, heading, line

GPU = Place(gpu=True, bf16=True, checkpointing=True, optimizer="sgd")
ROLLOUT = Rollout(rows=64, group=8, prompt=256, mean=1024, longest=4096, part=4)
# hidden, layers, heads, heads of keys, feed-forward, vocabulary, embeddings tied: config.json of Qwen/Qwen2.5-*.
SHAPES = {
    "0.5B": (896, 24, 14, 2, 4864, 151_936, True),
    "1.5B": (1536, 28, 12, 2, 8960, 151_936, True),
    "7B": (3584, 28, 28, 4, 18_944, 152_064, False),
}
# Dense bfloat16 FLOPs a second, from the vendor's data sheets, by a part of the device's name.
PEAK = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "L4": 121e12, "RTX 4090": 165e12}


def shape(name: str) -> Any:
    """The configuration of the Qwen2.5 model of that size."""
    hidden, layers, heads, kv_heads, feed_forward, vocabulary, tied = SHAPES[name]
    return AutoConfig.for_model(
        "qwen2",
        vocab_size=vocabulary,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=feed_forward,
        max_position_embeddings=32_768,
        tie_word_embeddings=tied,
        pad_token_id=0,
        eos_token_id=1,
    )


def parameters(config: Any) -> int:
    """Weights of the model, tied embeddings counted once; none is allocated."""
    with torch.device("meta"):
        return sum(weight.numel() for weight in AutoModelForCausalLM.from_config(config).parameters())


def needed_flops(config: Any, script: Script) -> float:
    """FLOPs of a forward and a backward pass over the rows, without padding and without computing anything twice."""
    weights = parameters(config)
    if not config.tie_word_embeddings:
        weights -= config.vocab_size * config.hidden_size  # looked up, not multiplied
    lengths = [len(prompt) + len(row) for prompt, row in zip(script.prompts, script.completions, strict=True)]
    attention = 6 * config.num_hidden_layers * config.hidden_size * sum(length**2 for length in lengths)
    return float(6 * weights * sum(lengths) + attention)


def peak_rate() -> float | None:
    """The GPU's FLOPs a second, where we know them."""
    name = torch.cuda.get_device_name()
    return next((rate for part, rate in PEAK.items() if part in name), None)


@dataclass(frozen=True)
class Measured:
    """Seconds of both sides, their peak bytes beyond what is held between updates, tokens and FLOPs of the rollout."""

    seconds: Compared
    their_bytes: int
    our_bytes: int
    tokens: int
    flops: float


def measure(config: Any, rollout: Rollout, place: Place, repeats: int) -> Measured:
    """Both trainers on the same rows and the same weights."""
    script = Script(rollout, config.vocab_size)
    with trainers_folder() as folder:
        model = place.model(config)
        method = comparable("grpo", rollout, model, script)
        theirs = their_trainer(folder / "theirs", model, rollout, script, place)
        ours = our_trainer(folder / "ours", model, rollout, script, place, method)
        checked(theirs, ours, place)
        seconds = compared(theirs.update, ours.update, repeats)
        return Measured(seconds, peak_bytes(theirs), peak_bytes(ours), script.tokens, needed_flops(config, script))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("Not measured: this machine has no GPU that torch can use.")
        return
    rate = peak_rate()
    print(f"{torch.cuda.get_device_name()}; median of {options.repeats} turns.\n")
    titles = ("tokens / s", "share of peak", "MiB")
    print(heading("model", *(f"TRL, {t}" for t in titles), *(f"ours, {t}" for t in titles), "seconds, ours / TRL"))
    for name in options.models:
        found = measure(shape(name), ROLLOUT, GPU, options.repeats)
        cells = [name]
        for seconds, peak in ((found.seconds.theirs, found.their_bytes), (found.seconds.ours, found.our_bytes)):
            median = statistics.median(seconds)
            share = "unknown" if rate is None else f"{found.flops / median / rate:.0%}"
            cells += [f"{found.tokens / median:,.0f}", share, f"{peak / MIB:,.0f}"]
        print(line([*cells, found.seconds.ratio]), flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
