"""Bad configurations: exit code 2, no traceback, and every message names the file, the line, the key and the remedy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rlvr_cli.cli.app import run

# Each row: what the file says, then what the one message must contain. `:3` is the line in the file.
BAD: dict[str, tuple[str, tuple[str, ...]]] = {
    # Unknown keys and names, with the nearest valid one.
    "unknown key": ("rollout:\n  promts: 8\n", (":2", "rollout.promts", "Did you mean `rollout.prompts`")),
    "unknown key, nothing near": ("update:\n  zzz: 8\n", (":2", "update.zzz", "Keys of update: mini_batches")),
    "key of another section": ("rollout:\n  lr: 1e-6\n", (":2", "rollout.lr", "`optimizer.lr`")),
    "unknown section": ("\noptimiser:\n  lr: 1e-6\n", (":2", "optimiser", "Did you mean `optimizer.lr`")),
    "key without its section": ("group_size: 8\n", (":1", "group_size", "`rollout.group_size`")),
    "key that is a number": ("rollout:\n  3: 8\n", (":2", "rollout.3", "Keys of rollout")),
    "unknown method": ("method: grop\n", (":1", "method.name", '"grop"', "Did you mean `grpo`", "Allowed: ppo, grpo")),
    "unknown method, long form": ("method:\n  name: dpo\n", (":2", "method.name", "Allowed: ppo, grpo")),
    "unknown task": ("task:\n  name: gsm\n", (":2", "task.name", "Did you mean `gsm8k`", "Allowed: countdown, gsm8k")),
    "unknown task, nothing near": ("task: chess\n", (":1", "task.name", "Allowed: countdown, gsm8k")),
    "key of another task": (
        "task:\n  name: countdown\n  people: {2: 1.0}\n",
        (":3", "task.people", "task countdown has no people; kk has"),
    ),
    "key of a task that is not chosen": (
        "task:\n  numbers: {3: 1.0}\n",
        (":2", "task.numbers", "task kk has no numbers", "Did you mean task=countdown"),
    ),
    "unknown choice": (
        "method:\n  advantage:\n    scale: on\n",
        (":3", "method.advantage.scale", "one of std, none", '"on"'),
    ),
    "key that is a fraction": ("rollout:\n  1.5: 8\n", (":2", "rollout.1.5", "Keys of rollout")),
    "key that is true": ("rollout:\n  true: 8\n", (":2", "rollout.true", "Keys of rollout")),
    "key that is null": ("~: 8\n", (":1", "null: unknown section")),
    "empty key": ('rollout: {"": 8}\n', (":1", 'rollout.""', "Keys of rollout")),
    "key of two lines": ('rollout: {"a\\nb": 8}\n', (":1", 'rollout."a\\nb"', "Keys of rollout")),
    "key named like a method": ("method:\n  grpo: 8\n", (":2", "method.grpo", "Keys of method")),
    "merge key": ("rollout:\n  <<: {prompts: 8}\n", (":2", "rollout.<<")),
    # Engines, and settings of vLLM that nothing reads.
    "unknown engine": (
        "rollout:\n  engine: vllm\n",
        (":2", "rollout.engine", "auto, local, transformers, vllm_colocate"),
    ),
    "vLLM's key without vLLM": (
        "rollout:\n  vllm:\n    gpu_memory: 0.4\n",
        (":3", "rollout.vllm.gpu_memory=0.4 has no effect", "Set rollout.engine=vllm_colocate"),
    ),
    "temperature and a cut in vLLM": (
        "rollout:\n  engine: vllm_colocate\n  temperature: 0.8\n  top_k: 20\n",
        (
            ":2,3,4",
            "rollout.temperature=0.8 with rollout.top_k",
            "Set rollout.temperature=1, leave top_k out, or take rollout.engine=local",
        ),
    ),
    "tensor parallelism over too few": (
        "rollout:\n  engine: vllm_colocate\n  vllm:\n    tensor_parallel: 2\n",
        (":2,4", "rollout.vllm.tensor_parallel=2 does not divide launch.processes=1"),
    ),
    "an engine that samples nothing": (
        "method: sft\nrollout:\n  engine: vllm_colocate\n",
        (":1,3", "rollout.engine=vllm_colocate samples completions", "Leave the engine out"),
    ),
    # Wrong types.
    "text for a number": ("optimizer:\n  lr: fast\n", (":2", "optimizer.lr", "a number", '"fast"')),
    "quoted number": ('rollout:\n  prompts: "16"\n', (":2", "rollout.prompts", "remove the quotes")),
    "fraction for a count": ("rollout:\n  prompts: 1.5\n", (":2", "rollout.prompts", "whole number", "1.5")),
    "exponent for a count": ("train:\n  rollouts: 1e3\n", (":2", "train.rollouts", "write 1000")),
    "true for a number": ("rollout:\n  prompts: true\n", (":2", "rollout.prompts", "whole number", "true")),
    "number for text": ("run:\n  dir: 7\n", (":2", "run.dir", "text")),
    "yes for true": ("eval:\n  greedy: yes\n", (":2", "eval.greedy", "true or false", '"yes"')),
    "null for a number": ("rollout:\n  prompts:\n", (":2", "rollout.prompts", "whole number", "null")),
    "number for a list": ("eval:\n  pass_at: 8\n", (":2", "eval.pass_at", "a list")),
    "short list": ("optimizer:\n  betas: [0.9]\n", (":2", "optimizer.betas", "a list of 2 values")),
    "list for a section": ("rollout: [1]\n", (":1", "rollout", "a mapping with the keys prompts")),
    "text for a section": ("rollout:\n  prompts 3\n", (":1", "rollout", "a mapping with the keys prompts")),
    "list for the model": ("model: [lab]\n", (":1", "model", "a mapping with the keys name")),
    "hexadecimal": ("rollout:\n  prompts: 0x10\n", (":2", "rollout.prompts", '"0x10"')),
    # Out of bounds.
    "zero prompts": ("rollout:\n  prompts: 0\n", (":2", "rollout.prompts", "at least 1", "got 0")),
    "group of one": ("rollout:\n  group_size: 1\n", (":2", "rollout.group_size=1", "2 or more", "kind=group")),
    "negative learning rate": ("optimizer:\n  lr: -1e-6\n", (":2", "optimizer.lr", "above 0", "-1e-06")),
    "learning rate nan": ("optimizer:\n  lr: .nan\n", (":2", "optimizer.lr", "NaN")),
    "learning rate overflows": ("optimizer:\n  lr: 1e999\n", (":2", "optimizer.lr", "Infinity")),
    "temperature zero": ("rollout:\n  temperature: 0\n", (":2", "rollout.temperature", "above 0")),
    "top_p above one": ("rollout:\n  top_p: 1.01\n", (":2", "rollout.top_p", "at most 1")),
    "top_p zero": ("eval:\n  top_p: 0.0\n", (":2", "eval.top_p", "above 0")),
    "beta of one": ("optimizer:\n  betas: [0.9, 1.0]\n", (":2", "optimizer.betas", "below 1")),
    "clip of one": ("method:\n  policy_loss: {eps_low: 1.1}\n", (":2", "method.policy_loss.eps_low", "at most 1")),
    "nine people": ("task:\n  people: {9: 1.0}\n", (":2", "task.people", "at least 2 and at most 8")),
    "negative share": ("task:\n  people:\n    2: -1\n    3: 2\n", (":3", "task.people", "above 0")),
    "no people": ("task:\n  people: {}\n", (":2", "task.people")),
    "negative seed": ("run:\n  seed: -1\n", (":2", "run.seed", "at least 0")),
    "no threads": ("run:\n  threads: 0\n", (":2", "run.threads", "at least 1")),
    "endless number": ("run:\n  seed: " + "9" * 5000 + "\n", (":2", "5000 digits")),
    "empty model": ('model: ""\n', (":1", "model.name", "not empty")),
    # Names of runs are single folders.
    "run name with a path": ("run:\n  name: a/b\n", (":2", "run.name", '"a/b"')),
    "run name upwards": ("run:\n  name: ..\n", (":2", "run.name", '".."')),
    "hidden run name": ("run:\n  name: .x\n", (":2", "run.name", '".x"')),
    "run name like an option": ("run:\n  name: -x\n", (":2", "run.name", '"-x"')),
    "empty run name": ('run:\n  name: ""\n', (":2", "run.name")),
    "endless run name": ("run:\n  name: " + "a" * 101 + "\n", (":2", "run.name", "at most 100 long")),
    # Contradictions between keys: every line involved, and the nearest valid values.
    "updates do not split": (
        "rollout:\n  prompts: 15\n  group_size: 7\nupdate:\n  mini_batches: 4\n",
        (":2,3,5", "rollout.prompts=15", "105 completions", "prompts 12 or 16", "mini_batches 3 or 5"),
    ),
    "passes that do not split": (
        "method: lopti\nrollout: {prompts: 15}\nupdate: {mini_batches: 16}\n",
        (":2,3", "120 completions do not split", "prompts 14 or 16"),
    ),
    "more updates than completions": (
        "update:\n  mini_batches: 1000\n",
        (":2", "update.mini_batches=1000", "mini_batches 128"),
    ),
    "micro-batch does not divide": (
        "update:\n  micro_batch: 48\n",
        (":2", "update.micro_batch=48", "128 completions", "32 or 64"),
    ),
    "k above samples": (
        "eval:\n  samples: 16\n  pass_at: [1, 32, 64]\n",
        (":2,3", "eval.pass_at", "32, 64", "eval.samples=16", "eval.samples=64"),
    ),
    "k twice": ("eval:\n  pass_at: [1, 1]\n", (":2", "eval.pass_at", "twice")),
    "shares": (
        "task:\n  people: {2: 0.5, 3: 1.0}\n",
        (":2", "task.people", "sum to 1.5", "2: 0.3333"),
    ),
    "shares of Countdown": (
        "task:\n  name: countdown\n  numbers: {3: 0.5, 4: 1.0}\n",
        (":3", "task.numbers", "sum to 1.5", "3: 0.3333"),
    ),
    "warm-up longer than training": (
        "train: {rollouts: 5}\noptimizer: {warmup_rollouts: 5}\n",
        (":1,2", "optimizer.warmup_rollouts=5", "train.rollouts=5", "4"),
    ),
    # Methods: names.
    "two base methods": ("method: dgpo+acpo\n", (":1", "method.name", "two base methods, dgpo and acpo")),
    "modifier twice": ("method: dgpo+lopti+lopti\n", (":1", "method.name", "lopti twice")),
    "modifier twice by an alias": ("method: dgpo+reweight+ar-lopti\n", (":1", "method.name", "reweight twice")),
    "modifier alone": ("method: +lopti\n", (":1", "method.name", "grpo+lopti")),
    "modifier for a method": ("method: high-entropy\n", (":1", "method.name", "`grpo+high-entropy`")),
    "unknown modifier": ("method: dgpo+lopi\n", (":1", "method.name", '"lopi"', "Did you mean `lopti`", "Modifiers:")),
    "empty modifier": ("method: dgpo+\n", (":1", "method.name", "empty part")),
    "one plus too few": ("method: reinforce++lopti\n", (":1", "method.name", "reinforce+++", "reinforce-pp+")),
    "modifiers that fight": ("method: dgpo+lopti+low-only\n", (":1", "lopti and low-only", "method.passes")),
    "modifier of its own method": ("method: gtpo+conflict\n", (":1", "gtpo sets method.shaping.conflict", "grpo+con")),
    "sft modified": ("method: SFT+lopti\n", (":1", "method.name", "no rollouts", "`grpo+lopti`")),
    "number for a method": ("method: 3\n", (":1", "method.name", "the name of a method", "got 3")),
    # Methods: choices and their parameters.
    "unknown kind": (
        "method:\n  policy_loss: dgop\n",
        (":2", "method.policy_loss.kind", '"dgop"', "`dgpo`", "Allowed: ppo_clip, "),
    ),
    "unknown kind, long form": (
        "method:\n  policy_loss:\n    eps_low: 0.1\n    kind: ppo_clpi\n",
        (":4", "unknown policy_loss kind", "Did you mean `ppo_clip`"),
    ),
    "kind that is null": (
        "method:\n  policy_loss:\n    kind:\n",
        (":3", "method.policy_loss.kind", "null", "Allowed: ppo_clip"),
    ),
    "list for a choice": (
        "method:\n  policy_loss: [ppo_clip]\n",
        (":2", "method.policy_loss", "one of ppo_clip, acpo", "the key kind"),
    ),
    "parameter of another kind": (
        "method:\n  policy_loss:\n    n: 2\n",
        (
            ":3",
            "method.policy_loss.n: policy_loss kind ppo_clip has no n; dgpo has",
            "Did you mean method.policy_loss.kind=dgpo?",
        ),
    ),
    "parameter of several other kinds": (
        "method:\n  name: dgpo\n  policy_loss:\n    dual_clip: 3\n",
        (":4", "policy_loss kind dgpo has no dual_clip; ppo_clip and gppo have."),
    ),
    "PPO parameter on GRPO": (
        "method:\n  advantage:\n    lam: 0.9\n",
        (":3", "advantage kind group has no lam; gae has", "method.advantage.kind=gae"),
    ),
    "parameter of sft": ("method:\n  demonstrations: 8\n", (":2", "grpo has no demonstrations; sft has", "method=sft")),
    "choice of a policy for sft": (
        "method:\n  name: sft\n  policy_loss: dgpo\n",
        (":3", "sft has no policy_loss; other methods"),
    ),
    "nested typo": (
        "method:\n  name: lopti\n  passes: {etta: 0.4}\n",
        (":3", "method.passes.etta", "Did you mean `method.passes.eta`"),
    ),
    "nested out of bounds": (
        "method:\n  name: dgpo\n  policy_loss:\n    m: 0.5\n",
        (":4", "method.policy_loss.m", "at least 1", "got 0.5"),
    ),
    "kind of a method": ("method:\n  kind: dgpo\n", (":2", "method.kind: unknown key", "method.policy_loss.kind")),
    "key moved": ("update:\n  kl_beta: 0.1\n", (":2", "update.kl_beta", "`method.kl.beta`")),
    "key moved deeper": ("method:\n  eps_low: 0.1\n", (":2", "method.eps_low", "`method.policy_loss.eps_low`")),
    "key in the wrong choice": (
        "method:\n  kl:\n    eps_low: 0.1\n",
        (":3", "method.kl.eps_low", "`method.policy_loss.eps_low`"),
    ),
    "key that is a number, nested": (
        "method:\n  policy_loss:\n    3: 1\n",
        (":3", "method.policy_loss.3", "Keys of method.policy_loss: kind"),
    ),
    # Methods: choices that have no meaning together.
    "leave-one-out of one": (
        "method: rloo\nrollout:\n  group_size: 1\n",
        (":1,3", "method.advantage.kind=rloo", "group_size to 2 or more"),
    ),
    "group baseline of one": (
        "method:\n  name: reinforce-pp\n  advantage: {baseline: group}\nrollout: {group_size: 1}\n",
        (":3,4", "method.advantage.baseline=group"),
    ),
    "conflicts in a group of one": (
        "method:\n  name: cl\n  shaping: {conflict: both}\nrollout: {group_size: 1}\n",
        (":3,4", "method.shaping.conflict=both", "nothing to compare"),
    ),
    "dynamic sampling of one": (
        "method: pl\nrollout: {group_size: 1, dynamic_sampling: 3}\n",
        (":2", "rollout.dynamic_sampling=3"),
    ),
    "conflicts of single tokens": (
        "method: reinforce-pp+conflict\n",
        (":1", "conflict=both", "different advantages"),
    ),
    "negative rows of single tokens": (
        "method:\n  name: ppo+entropy-filter\n  shaping:\n    entropy_filter: {sequences: negative}\n",
        (":2,4", "entropy_filter.sequences=negative", "kind=gae", "entropy_filter.sequences=all"),
    ),
    "entropy penalty on the side left out": (
        "method: pl+entropy-penalty\n",
        (":1", "entropy_penalty=0.1", "side=positive leaves out", "side=both"),
    ),
    "entropy penalty on the side left out, by a key": (
        "method:\n  name: raft-pp\n  advantage: {side: negative}\n  shaping: {entropy_penalty: 0.2}\n",
        (":2,3,4", "entropy_penalty=0.2", "side=negative leaves out"),
    ),
    "conflicts with one side": ("method: pl+conflict\n", (":1", "method.advantage.side=positive", "side=both")),
    "filter of a side that is not there": (
        "method:\n  name: pl+entropy-filter\n  shaping:\n    entropy_filter: {sequences: negative}\n",
        (":2,4", "entropy_filter.sequences=negative", "entropy_filter.sequences=all"),
    ),
    "noise without verdicts": ("method: grpo+entropy-min+noise\n", (":1", "method.reward.noise=0.25", "entropy_min")),
    "replaced by other rewards": (
        "method: grpo+entropy-min\nrollout:\n  dynamic_sampling: 3\n",
        (":1,3", "rollout.dynamic_sampling=3", "entropy_min"),
    ),
    "a rollout of one": (
        "method: reinforce-pp\nrollout:\n  prompts: 1\n  group_size: 1\n",
        (":3,4", "at least two completions"),
    ),
    "correct by an entropy": ("method: cl+entropy-min\n", (":1", "entropy_min", "verdict", "advantage=group")),
    "correct by a coin": ("method: pl\ntask:\n  reward: random\n", (":1,3", "task.reward=random", "verdict")),
    "no low token": (
        "method:\n  name: grpo+low-only\n  passes: {eta: 0}\n",
        (":2,3", "method.passes.eta=0", "low_only", "none"),
    ),
    "no high token": (
        "method:\n  name: grpo+high-only\n  passes: {eta: 1, rule: quantile}\n",
        (":2,3", "method.passes.eta=1", "quantile of 1 alone: next to none"),
    ),
    # Methods: keys that change nothing.
    "clamp of no penalty": (
        "method:\n  kl:\n    value_clamp: 10\n",
        (":3", "method.kl.value_clamp=10 has no effect", "beta"),
    ),
    "rows of a token mean": (
        "method:\n  aggregation:\n    sequences: all\n",
        (":3", "sequences=all has no effect", "sequence_mean"),
    ),
    "factor without conflicts": (
        "method:\n  shaping:\n    conflict: {positive: 3}\n",
        (":3", "conflict.positive=3 has no effect", "conflict=both"),
    ),
    "rows of no filter": (
        "method:\n  shaping:\n    entropy_filter: {sequences: negative}\n",
        (":3", "entropy_filter.sequences=negative has no effect", "entropy_filter"),
    ),
    "quantile of no bound": (
        "method:\n  name: aspo\n  policy_loss:\n    entropy_quantile: 0.9\n",
        (":4", "entropy_quantile=0.9 has no effect", "eps_high_entropy"),
    ),
    "edges of one bin": (
        "method:\n  name: acpo\n  policy_loss:\n    bins: 1\n    edges: quantile\n",
        (":4,5", "edges=quantile has no effect", "bins"),
    ),
    "bound of one bin": (
        "method:\n  name: acpo\n  policy_loss:\n    bins: 1\n    bound: mean\n",
        (":4,5", "bound=mean has no effect", "bins"),
    ),
    "adapters of no kind": (
        "model:\n  adapter:\n    rank: 8\n",
        (":3", "adapter kind none has no rank; lora and qlora have"),
    ),
    "two sources of solutions": (
        "method:\n  name: sft\n  data: x.jsonl\n  demonstrations: 8\n",
        (":3,4", "demonstrations=8 has no effect", "method.data"),
    ),
    # YAML that is not a configuration.
    "repeated key": ("rollout:\n  prompts: 8\n  prompts: 4\n", (":3", "rollout.prompts", "duplicate key", "line 2")),
    "repeated section": ("eval: {}\nrollout: {}\neval: {}\n", (":3", "eval", "line 1")),
    "tab": ("rollout:\n\tprompts: 8\n", (":2", "tab", "spaces")),
    "open bracket": ("eval:\n  pass_at: [1,\n", ("not valid YAML",)),
    "alias": ("a: &x 1\nb: *x\n", (":2", "alias `*x`")),
    "alias bomb": ("a: &a [x,x]\nb: &b [*a,*a]\nc: [*b,*b]\n", (":2", "alias")),
    "tag": ("rollout: !!python/object/apply:os.getcwd []\n", (":1", "tag")),
    "deep": ("a: " + "[" * 100_000, (":1", "nested deeper")),
    "wide": ("a: [" + "1," * 90_000 + "]", (":1", "more than 5,000 values")),
    "huge": ("#" * 200_001, ("larger than 200,000 bytes",)),
    "two documents": ("rollout: {}\n---\neval: {}\n", (":2", "second YAML document")),
    "list at the root": ("- rollout\n", (":1", "must be a mapping of sections")),
    "text at the root": ("rollout\n", (":1", "must be a mapping of sections")),
    "empty": ("", ("is empty",)),
    "only comments": ("# prompts: 8\n", ("is empty",)),
    "control character": ("rollout:\n  \x07prompts: 8\n", (":2", "control character", "U+0007")),
    "bare word with @": ("run:\n  name: @me\n", (":2", "not valid YAML")),
}


def test_names_file_line_key_and_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for case in BAD:
        text, wanted = BAD[case]
        file = tmp_path / "bad.yaml"
        file.write_text(text, encoding="utf-8")
        assert run(["plan", "-c", str(file)]) == 2, case
        printed = capsys.readouterr()
        message = printed.err.splitlines()[0]
        assert message.startswith(str(file)), case
        for part in wanted:
            assert part in message, case
        assert "Traceback" not in printed.err, case
        assert printed.err.splitlines()[1:] == ["1 problem."], case
        assert printed.out == "", case


def test_a_file_that_is_not_utf8_names_the_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bad.yaml"
    file.write_bytes(b"rollout:\n  prompts: 8 # \xff\n")
    assert run(["plan", "-c", str(file)]) == 2
    assert f"{file}:2  is not UTF-8" in capsys.readouterr().err


def test_a_bad_override_is_quoted(capsys: pytest.CaptureFixture[str]) -> None:
    for override, wanted in [
        ("optimizer.lrr=1e-6", ("optimizer.lrr: unknown key", "`optimizer.lr`")),
        ("lr=1e-6", ("lr: unknown key", "`optimizer.lr`")),
        ("optimizer.lr", ("expected `section.key=value`",)),
        ("=3", ("expected `section.key=value`",)),
        ("optimizer..lr=3", ("empty part",)),
        ("optimizer.lr=[1", ("not valid YAML",)),
        ("optimizer.lr=fast", ("optimizer.lr: must be a number", '"fast"')),
        ("optimizer=3", ("optimizer: must be a mapping",)),
        ("task.people.2=0.5", ("`task.people` is one value",)),
        ("method.policy_loss.n.x=0.5", ("`method.policy_loss.n` is one value",)),
        ("method=grop", ("method.name: unknown method", "`grpo`")),
        (
            "method.policy_loss.n=2",
            ("method.policy_loss.n: policy_loss kind ppo_clip has no n", "method.policy_loss.kind=dgpo"),
        ),
        ("method.policy_loss=", ("method.policy_loss.kind", "null")),
        ("method.policy_loss=dgop", ("method.policy_loss.kind: unknown policy_loss kind", "`dgpo`")),
        ("method.pases.eta=1", ("method.pases: unknown key", "`method.passes.eta`")),
        ("update.kl.beta=1", ("update.kl: unknown key", "`method.kl.beta`")),
        ("method.eps_low=0.1", ("method.eps_low: unknown key", "`method.policy_loss.eps_low`")),
        ("model=", ("model.name", "null")),
        ("run.name=a/b", ("run.name", '"a/b"')),
    ]:
        assert run(["plan", override]) == 2, (override, wanted)
        message = capsys.readouterr().err.splitlines()[0]
        assert message.startswith(f"override {override}  "), (override, wanted)
        for part in wanted:
            assert part in message, (override, wanted)


def test_a_bad_option_is_quoted(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--method", "grop"]) == 2
    assert capsys.readouterr().err.startswith('--method grop  method.name: unknown method "grop". Did you mean `grpo`?')


@pytest.mark.parametrize(("name", "reason"), [("missing.yaml", "no such file"), ("", "is a folder")])
def test_a_file_that_cannot_be_read(name: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "-c", str(tmp_path / name)]) == 2
    assert f"{tmp_path / name}  {reason}" in capsys.readouterr().err


def test_all_problems_come_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Syntax in one file, types in another, an override and a contradiction: four problems in one go."""
    broken, wrong = tmp_path / "broken.yaml", tmp_path / "wrong.yaml"
    broken.write_text("rollout: [\n")
    wrong.write_text("eval:\n  greedy: 3\nupdate:\n  micro_batch: 48\n")
    assert run(["plan", "-c", str(broken), "-c", str(wrong), "optimizer.lrr=1"]) == 2
    *problems, summary = capsys.readouterr().err.splitlines()
    assert summary == "4 problems."
    text = "\n".join(problems)
    for wanted in (f"{broken}:", f"{wrong}:2 ", "override optimizer.lrr=1", f"{wrong}:4 "):
        assert wanted in text


def test_a_contradiction_with_a_wrong_value_is_not_reported(capsys: pytest.CaptureFixture[str]) -> None:
    """The default that stands in for a wrong value must not be blamed."""
    assert run(["plan", "update.micro_batch=48", "rollout.prompts=many"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == "1 problem."


def test_bad_input_imports_nothing_heavy(tmp_path: Path) -> None:
    """All of the table through the command line in one fresh process, which then says what it has imported."""
    files = []
    for number, (text, _) in enumerate(BAD.values()):
        file = tmp_path / f"{number}.yaml"
        file.write_text(text, encoding="utf-8")
        files.append(str(file))
    code = (
        "import json, sys\n"
        "from rlvr_cli.cli.app import run\n"
        "codes = [run(['train', '-c', file]) for file in json.load(sys.stdin)]\n"
        "print(json.dumps([codes, sorted(sys.modules)]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(files), capture_output=True, text=True, timeout=120, check=True
    )
    codes, modules = json.loads(done.stdout)
    assert codes == [2] * len(BAD)
    assert len(BAD) >= 50
    assert "Traceback" not in done.stderr
    assert not {"torch", "transformers", "trl", "datasets", "numpy"} & set(modules)


@pytest.mark.parametrize("case", ["unknown key", "updates do not split", "tab"])
def test_train_as_a_process(case: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(BAD[case][0])
    command = [sys.executable, "-m", "rlvr_cli", "train", "-c", "bad.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("bad.yaml:")
    assert done.stderr.endswith("1 problem. Nothing was started.\n")
    assert [path.name for path in tmp_path.iterdir()] == ["bad.yaml"]


@pytest.mark.parametrize("address", ["http://user:hunter2@host/v1", "http://host/v1?key=hunter2", "//hunter2@host"])
def test_an_address_with_a_password_is_never_part_of_a_configuration(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run stores its configuration, and sends it to its trackers, whether or not it ever asks the server."""
    file = tmp_path / "a.yaml"
    file.write_text(f"eval: {{base_url: '{address}'}}\n", encoding="utf-8")
    assert run(["plan", "-c", str(file)]) == 2
    shown = capsys.readouterr().err
    assert "eval.base_url: holds a user name, a password or a query" in shown
    assert "hunter2" not in shown
    assert run(["plan", "eval.base_url=http://user:hunter2@host/v1"]) == 2
    assert "hunter2" not in capsys.readouterr().err
