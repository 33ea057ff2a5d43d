"""The trainer's gradient: equal to plain PyTorch, to TRL's own, and to itself however a batch is split."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from transformers import TrainerCallback
from trl import GRPOTrainer

from benchmarks.trl_gradients import DEFINITIONS, KEPT, ROUNDING, SCHEDULES, SITUATIONS, errors, named_differences
from experiments.lab.model import make_tokenizer
from rlvr_cli.methods.method import Method
from rlvr_cli.tasks import kk_compact as compact
from rlvr_cli.training.forward import PolicyForward
from rlvr_cli.training.packing import policy_mask
from rlvr_cli.training.scoring import Scoring
from rlvr_cli.training.trainer import PolicyTrainer
from tests.training.harness import (
    COMPOSITIONS,
    LEARNING_RATE,
    METHODS,
    UPDATES,
    ScriptedRollouts,
    arguments,
    completion_log_probs,
    dataset,
    divided,
    flat_gradient,
    load_base,
    method_of,
    plain_gradient,
    train,
)
from tests.training.processes import run_as_two

GRPO = ("policy_loss.eps_high=0.28", "advantage.scale=none")
ROWS, GROUP = 16, 4
TOLERANCE = 1e-6
SPLIT_TOLERANCE = 1e-10  # the model is float64 throughout
PLAIN_TOLERANCE = 1e-8  # rows by themselves round otherwise, and four large steps multiply that: ratios reach 400


def relative_error(ours: torch.Tensor, other: torch.Tensor) -> float:
    """|ours - other| / |other|; how far ours is from 0 where the other is."""
    return float((ours - other).norm() / (other.norm() or 1.0))


@pytest.mark.parametrize(
    ("aggregation", "beta", "temperature"),
    [("token_mean", 0.0, 1.0), ("sequence_mean", 0.1, 1.0), ("constant_length", 0.1, 0.7)],
)
def test_equals_the_formula_in_plain_pytorch(tmp_path: Path, aggregation: str, beta: float, temperature: float) -> None:
    """Two rollouts, two updates on each: the second of each is off-policy, so clipping acts."""
    method = method_of("grpo", f"aggregation={aggregation}", f"kl.beta={beta}", "policy_loss.eps_high=0.28")
    model = load_base(tmp_path)
    trained, reference = load_base(tmp_path), copy.deepcopy(model)
    trainer = train(tmp_path, method, trained, micro_batch=4, epochs=2, temperature=temperature)
    assert len(trainer.gradients) == 4
    for step, gradient in enumerate(trainer.gradients):
        rollout, epoch = divmod(step, 2)
        if epoch == 0:
            prompts, completions, _ = ScriptedRollouts(ROWS).script(rollout)
            with torch.no_grad():
                old = completion_log_probs(model, prompts, completions, temperature)
        expected, clipped = plain_gradient(
            model, reference, old, rollout, method, rows=ROWS, group=GROUP, temperature=temperature
        )
        assert relative_error(gradient, expected) < TOLERANCE
        assert (clipped > 0) == (epoch > 0)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= LEARNING_RATE * parameter.grad


# One of each way to read tokens: by probability, whole rows, every row, with values.
READERS = ("lopti", "gspo", "gtpo", "ppo")


def every_method(*fast: str) -> list[Any]:
    """All of them, of which those are in the fast suite."""
    names = (*METHODS, *COMPOSITIONS)
    return [name if name in fast else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", every_method("lopti", "acpo", "ppo", "gtpo", "clip-cov"))
def test_does_not_depend_on_micro_batches(tmp_path: Path, name: str) -> None:
    """Two updates on each rollout, of 8 rows each, in forward passes of one long row's tokens and of all rows."""
    apart, whole = (
        train(tmp_path, divided(method_of(name)), load_base(tmp_path), micro_batch=size, updates=UPDATES)
        for size in (1, 8)
    )
    assert len(whole.gradients) == 2 * UPDATES * len(whole.method.passes.names)
    assert max(float(gradient.norm()) for gradient in whole.gradients) > 0
    for ours, other in zip(apart.gradients, whole.gradients, strict=True):
        assert relative_error(ours, other) < SPLIT_TOLERANCE


@pytest.mark.parametrize("name", every_method(*READERS))
def test_does_not_depend_on_what_is_left_out(tmp_path: Path, name: str) -> None:
    """Everything that saves forward passes, tokens or prompts against a plain pass of each row, one update and four.

    A group in three has no advantage in GRPO, prompts are shared by four rows, and a pass holds 40 tokens.
    """
    method = divided(method_of(name))
    for updates, sizes in ((1, {"micro_batch": 4}), (4, {"micro_batch": 2, "micro_tokens": 40})):
        base = load_base(tmp_path)
        plain = train(tmp_path, method, base, updates=updates, plain=True, **sizes)
        quick = train(tmp_path, method, load_base(tmp_path), updates=updates, **sizes)
        for mine, other in zip(quick.gradients, plain.gradients, strict=True):
            # A step may leave a policy so certain that its gradient vanishes (1e-11); its error is of the steps before.
            assert relative_error(mine, other) < PLAIN_TOLERANCE or float((mine - other).norm()) < 1e-12, updates


@pytest.mark.parametrize("name", every_method("lopti", "gtpo"))
def test_does_not_depend_on_who_says_how_probable_the_tokens_were(tmp_path: Path, name: str) -> None:
    """Old log-probs and entropies of the sampler, in float32 as it tells them, and of the trainer's own passes."""
    method = divided(method_of(name))
    # A smaller rate than elsewhere: large steps take the weights, and with them the rounding, far apart.
    told, computed = (
        train(tmp_path, method, load_base(tmp_path), micro_batch=4, updates=4, told=told, learning_rate=0.02)
        for told in (True, False)
    )
    # Its advantages are differences of entropies that are nearly equal.
    tolerance = 1e-4 if name == "rloo+entropy-min" else TOLERANCE
    assert max(float(gradient.norm()) for gradient in computed.gradients) > 0
    for mine, other in zip(told.gradients, computed.gradients, strict=True):
        assert relative_error(mine, other) < tolerance


@pytest.mark.parametrize("name", ["acpo-max", "lopti"])
def test_does_not_depend_on_which_tokens_are_read(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three epochs: what the first step does not read must be missed by none of the later ones."""
    method = divided(method_of(name))
    chosen = train(tmp_path, method, load_base(tmp_path), micro_batch=4, epochs=3)
    monkeypatch.setattr(Method, "grad_mask", lambda self, tokens, *given, **named: tokens.mask.bool())
    every = train(tmp_path, method, load_base(tmp_path), micro_batch=4, epochs=3)
    for mine, other in zip(chosen.gradients, every.gradients, strict=True):
        assert relative_error(mine, other) < SPLIT_TOLERANCE


def test_passes_that_only_wait_for_another_process_have_no_gradient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A divided model is called as often in each process; here another one says that it makes two passes more."""
    method = method_of("ppo", "kl.beta=0.1")
    alone = train(tmp_path, method, load_base(tmp_path), micro_batch=4)
    gather = Accelerator.gather
    monkeypatch.setattr(PolicyForward, "is_sharded", property(lambda self: True))
    monkeypatch.setattr(Accelerator, "gather", lambda self, x: x + 2 if x.shape == (1,) else gather(self, x))
    calls = []
    compute = PolicyTrainer._loss
    monkeypatch.setattr(PolicyTrainer, "_loss", lambda *given, **named: calls.append(1) or compute(*given, **named))
    divided_model = train(tmp_path, method, load_base(tmp_path), micro_batch=4)
    assert len(calls) > 2 * len(alone.gradients)
    for mine, other in zip(divided_model.gradients, alone.gradients, strict=True):
        assert relative_error(mine, other) < SPLIT_TOLERANCE


class EqualRewards(ScriptedRollouts):
    """Every completion is as good as every other."""

    def script(self, rollout: int) -> Any:
        prompts, completions, rewards = super().script(rollout)
        return prompts, completions, [1.0] * len(rewards)


def test_a_step_without_any_gradient_is_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its gradient is 0 everywhere, and not absent: momentum decays, and processes meet in the backward pass."""
    monkeypatch.setattr("tests.training.harness.ScriptedRollouts", EqualRewards)
    trainer = train(tmp_path, method_of("grpo"), load_base(tmp_path), micro_batch=4, updates=2)
    assert len(trainer.gradients) == 4
    assert all(torch.equal(gradient, torch.zeros_like(gradient)) for gradient in trainer.gradients)


class _Gradients(TrainerCallback):
    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []

    def on_pre_optimizer_step(self, *args: Any, model: Any = None, **kwargs: Any) -> None:
        self.seen.append(flat_gradient(model))


def by_rollout_func(trainer: type[GRPOTrainer], folder: Path, config: Any, *, tools: bool, **more: Any) -> list[Any]:
    """The gradients of a training by TRL's `rollout_func`; with ``tools`` two tokens in five are theirs."""
    script, calls = ScriptedRollouts(ROWS), iter(range(10))
    rewards: list[float] = []

    def rollout_func(prompts: list[str], trainer: Any) -> dict[str, Any]:
        torch.manual_seed(0)
        batch = script.collect(next(calls), range(len(prompts)), 0)
        rewards[:] = batch.rewards
        masks = [[int(place % 5 not in (1, 2)) for place in range(len(row))] for row in batch.completion_ids]
        told = {"prompt_ids": batch.prompt_ids, "completion_ids": batch.completion_ids, "logprobs": None}
        return {**told, "env_mask": masks} if tools else told

    gradients = _Gradients()
    trainer(
        model=load_base(folder),
        processing_class=make_tokenizer(compact.vocabulary()),
        reward_funcs=[lambda prompts, **kwargs: rewards],
        rollout_func=rollout_func,
        args=config,
        train_dataset=dataset(ROWS, GROUP).map(lambda row: {"prompt": ""}),
        callbacks=[gradients],
        **more,
    ).train()
    return gradients.seen


@pytest.mark.parametrize(
    ("aggregation", "loss_type", "beta", "tools"),
    [
        ("token_mean", "dapo", 0.1, False),
        ("token_mean", "dapo", 0.0, True),
        ("sequence_mean", "grpo", 0.0, False),
        ("constant_length", "dr_grpo", 0.1, True),
    ],
)
def test_equals_trl(
    tmp_path: Path, aggregation: str, loss_type: str, beta: float, tools: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TRL's own clipped loss on the same rollouts, written by other people."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    method = method_of("grpo", f"aggregation={aggregation}", f"kl.beta={beta}", *GRPO)
    if tools:
        config = arguments(tmp_path, method, rows=ROWS, group=GROUP, micro_batch=4, epochs=2)
        ours = by_rollout_func(PolicyTrainer, tmp_path, config, tools=True, method=method)
    else:
        ours = train(tmp_path, method, load_base(tmp_path), micro_batch=4, epochs=2).gradients

    config = arguments(tmp_path, method, rows=ROWS, group=GROUP, micro_batch=4, epochs=2)
    config.epsilon, config.epsilon_high, config.scale_rewards = 0.2, 0.28, "none"
    config.loss_type, config.beta, config.use_bias_correction_kl = loss_type, beta, False
    native = by_rollout_func(GRPOTrainer, tmp_path, config, tools=tools)
    assert len(native) == len(ours) == 4
    for step, (mine, other) in enumerate(zip(ours, native, strict=True)):
        # TRL computes the head in float32; the drift between the two runs adds up over the steps.
        assert relative_error(mine, other) < 1e-5, step


# One of each kind of mistake; the script makes the whole table, which takes minutes.
@pytest.mark.parametrize(
    ("method", "situation", "schedule"),
    [
        ("GSPO", "plain", "2 updates"),
        ("DAPO", "None rewards, 3 of 16", "1 update"),
        ("GRPO", "None rewards and KL 0.1", "2 iterations"),
        ("DAPO", "KL 0.1, no correction", "2 iterations"),
        ("GSPO", "sampler weights, token", "2 iterations"),
        ("SAPO", "plain", "2 iterations"),
        ("VESPO", "plain", "2 iterations"),
        ("LUSPO", "None rewards, 3 of 16", "2 updates"),
        ("GMPO", "plain", "2 iterations"),
    ],
)
def test_equals_trl_but_for_differences_with_a_name(tmp_path: Path, method: str, situation: str, schedule: str) -> None:
    updates, epochs = SCHEDULES[schedule]
    of, told = DEFINITIONS[method], replace(SITUATIONS[situation], updates=updates, epochs=epochs)
    names = named_differences(of, told)
    if names:
        assert max(errors(tmp_path, of, told)) > 0.01
    if not KEPT & {*names}:
        found = errors(tmp_path, of, told, without=True)
        assert len(found) == updates * epochs and max(found) < ROUNDING


@pytest.mark.parametrize("name", ["grpo", "gtpo", "ppo", "reinforce-pp", "acpo", "lopti"])
def test_tokens_of_tools_between_the_turns_change_no_advantage(tmp_path: Path, name: str) -> None:
    """As the method sees it, a rollout with tokens of tools in it is the one without them, moved apart."""
    generator = torch.Generator().manual_seed(3)
    method = method_of(name, *(["advantage.gamma=0.9"] if name == "reinforce-pp" else []))
    trainer = SimpleNamespace(method=method, group_size=GROUP, correct_above=0.0)
    scoring = Scoring(trainer, compare_sampler=False, trust_sampler_log_probs=False)
    lengths, width = torch.randint(1, 9, (ROWS, 1), generator=generator), 8
    mask = (torch.arange(width) < lengths).long()
    plain = {"completion_ids": torch.randint(3, 6, (ROWS, width), generator=generator), "completion_mask": mask}
    for column in ("old_log_probs", "ref_log_probs", "entropies", "values"):
        plain[column] = -torch.rand((ROWS, width), generator=generator, dtype=torch.float64) * mask
    rewards = torch.randint(0, 2, (ROWS,), generator=generator).double()
    scoring.initial_entropy = 0.4
    # Each token keeps its order and moves to a place of its own among twice as many.
    places = torch.stack([torch.randperm(2 * width, generator=generator)[:width].sort().values for _ in range(ROWS)])
    apart = {key: value.new_full((ROWS, 2 * width), 7).scatter(1, places, value) for key, value in plain.items()}
    apart["tool_mask"] = torch.zeros((ROWS, 2 * width), dtype=torch.long).scatter(1, places, mask)
    apart["completion_mask"] = torch.ones((ROWS, 2 * width), dtype=torch.long)
    _, expected = scoring.score(plain, rewards)
    _, found = scoring.score(apart, rewards)
    for column in ("advantages", "estimated", "returns"):
        if column in expected and expected[column].shape[1] > 1:
            assert torch.equal(found[column].gather(1, places) * mask, expected[column] * mask), column
        elif column in expected:
            assert torch.equal(found[column], expected[column]), column
    assert torch.equal(policy_mask(found).gather(1, places), mask)


# Sums over the whole step and rollout, values, and two passes. The others take minutes.
STATEFUL = ["ppo", "acpo+lopti", "clip-cov", "kl-cov"]
OTHERS = [name for name in (*METHODS, *COMPOSITIONS) if name not in STATEFUL]


@pytest.mark.parametrize(
    "names", [pytest.param(STATEFUL, id="stateful"), pytest.param(OTHERS, id="others", marks=pytest.mark.slow)]
)
def test_two_processes_make_the_gradient_of_one(tmp_path: Path, names: list[str]) -> None:
    """Real gloo processes, started as torchrun starts them."""
    load_base(tmp_path)
    run_as_two(Path(__file__).with_name("gradient_of_processes.py"), str(tmp_path), *names)
    for name in names:
        together = torch.load(tmp_path / f"{name}.pt", weights_only=True)
        alone = train(tmp_path, divided(method_of(name)), load_base(tmp_path), micro_batch=4, updates=UPDATES)
        assert len(together) == len(alone.gradients)
        for ours, single in zip(together, alone.gradients, strict=True):
            assert relative_error(ours, single) < SPLIT_TOLERANCE, name
