"""The entropy bonus: its gradient, its tokens, and the state of an adaptive coefficient."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from torch.autograd import gradcheck
from transformers import AutoModelForCausalLM
from trl import GRPOTrainer

from benchmarks.trl_gradients import base_model
from experiments.lab.model import make_tokenizer
from rlvr_cli.core.errors import UserError
from rlvr_cli.methods.entropy_bonus import EntropyBonus
from rlvr_cli.methods.equivalence import find_same_gradients
from rlvr_cli.tasks import kk_compact as compact
from rlvr_cli.training import log_probs
from rlvr_cli.training.forward import PolicyForward
from rlvr_cli.training.log_probs import _LogProbs, token_log_probs
from rlvr_cli.training.trainer import PolicyTrainer
from tests.matrix import resume
from tests.training.harness import (
    GradientTrainer,
    ScriptedRollouts,
    arguments,
    completion_distributions,
    divided,
    flat_gradient,
    load_base,
    method_of,
    train,
)
from tests.training.processes import interrupted_after, run_as_two
from tests.training.sft_runs import start
from tests.training.test_gradient import GROUP, GRPO, ROWS, SPLIT_TOLERANCE, by_rollout_func, relative_error

COEF = 0.3
BONUS = f"entropy_bonus.coef={COEF}"


@pytest.mark.parametrize("rows", [1, 5, 40])
def test_both_gradients_are_those_of_finite_differences(rows: int) -> None:
    """Forty rows are several slices."""
    torch.manual_seed(0)
    logits = (3 * torch.randn(rows, 7, dtype=torch.float64)).requires_grad_()
    targets = torch.randint(0, 7, (rows,))
    assert gradcheck(lambda values: _LogProbs.apply(values, targets, True), logits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("parts", [1, 4])
def test_equals_autograd_through_the_softmax(dtype: Any, parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a temperature, whole and in parts that the backward pass computes again; a token of probability 1 too."""
    torch.manual_seed(0)
    states = torch.randn(24, 8).to(dtype)
    states[3] *= 40
    head, targets = torch.randn(8, 50).to(dtype), torch.randint(0, 50, (24,))
    weights = torch.randn(2, 24)
    monkeypatch.setattr(log_probs, "MAX_LOGITS", 24 * 50 // parts)

    def ours(states: torch.Tensor) -> torch.Tensor:
        taken, entropies = token_log_probs(
            lambda x: x @ head, states, targets, vocabulary=50, temperature=0.7, entropies=True
        )
        assert entropies is not None
        return (weights[0] * taken).sum() + (weights[1] * entropies).sum()

    def plain(states: torch.Tensor) -> torch.Tensor:
        every = ((states @ head).float() / 0.7).log_softmax(-1)
        taken = every.gather(1, targets.unsqueeze(1)).squeeze(1)
        return (weights[0] * taken).sum() - (weights[1] * (every.exp() * every).sum(-1)).sum()

    gradients = []
    for loss in (ours, plain):
        leaf = states.clone().requires_grad_()
        loss(leaf).backward()
        assert leaf.grad is not None and leaf.grad.isfinite().all()
        gradients.append(leaf.grad.float())
    assert relative_error(*gradients) < (1e-5 if dtype == torch.float32 else 1e-2)


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "constant_length"])
def test_adds_the_entropy_over_the_methods_divisor(tmp_path: Path, aggregation: str) -> None:
    """The gradient with it less the gradient without it, against autograd through the model, row by row."""
    method = method_of("grpo", f"aggregation={aggregation}")
    with_it = method.replace(entropy_bonus=EntropyBonus(coef=COEF)).with_max_length(12)
    model = load_base(tmp_path)
    ours, without = (train(tmp_path, which, load_base(tmp_path), micro_batch=4) for which in (with_it, method))
    prompts, completions, _ = ScriptedRollouts(ROWS).script(0)
    lengths = [len(completion) for completion in completions]
    divisors = {
        "token_mean": [sum(lengths)] * ROWS,
        "sequence_mean": [ROWS * length for length in lengths],
        "constant_length": [ROWS * 12] * ROWS,
    }[aggregation]
    bonus = torch.zeros((), dtype=torch.float64)
    for prompt, completion, divisor in zip(prompts, completions, divisors, strict=True):
        every = completion_distributions(model, prompt, completion)
        bonus = bonus + (every.exp() * every).sum() / divisor
    (COEF * bonus).backward()
    assert relative_error(ours.gradients[0] - without.gradients[0], flat_gradient(model)) < 1e-8


@pytest.mark.parametrize("micro_batch", [4, 16])
def test_equals_trl(tmp_path: Path, micro_batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one forward pass. TRL's mean is that of each pass, so with several there is a difference with a name."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    method = method_of("grpo", "aggregation=token_mean", BONUS, *GRPO)
    ours = train(tmp_path, method, load_base(tmp_path), micro_batch=micro_batch, epochs=2).gradients
    config = arguments(tmp_path, method, rows=ROWS, group=GROUP, micro_batch=micro_batch, epochs=2)
    config.epsilon_high, config.scale_rewards, config.entropy_coef = 0.28, "none", COEF
    native = by_rollout_func(GRPOTrainer, tmp_path, config, tools=False)
    for mine, other in zip(ours, native, strict=True):
        difference = relative_error(mine, other)
        assert difference < 1e-5 if micro_batch == ROWS else 1e-4 < difference < 0.3


def test_what_makes_two_methods_the_same() -> None:
    methods = {
        "off": method_of("grpo"),
        "zero": method_of("grpo+entropy-bonus", "entropy_bonus.coef=0"),
        "fixed": method_of("grpo", BONUS),
        "adaptive": method_of("grpo", BONUS, "entropy_bonus.target=0.2"),
    }
    assert [group.names for group in find_same_gradients(methods, 1)] == [("off", "zero")]
    hashes = {name: method.fingerprint()["choices_sha256"] for name, method in methods.items()}
    assert len(set(hashes.values())) == 4
    assert "entropy_bonus" not in methods["off"].fingerprint()["choices"]
    assert methods["fixed"].token_terms()[-1] == "EntropyBonus" != methods["zero"].token_terms()[-1]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["entropy_bonus.target=0.2", "entropy_bonus.min=0.5", "entropy_bonus.max=0.1"], "must be at most"),
        (["entropy_bonus.step=0.1"], "Set method.entropy_bonus.target"),
    ],
)
def test_keys_that_contradict_or_do_nothing_are_refused(overrides: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        method_of("grpo", *overrides)
    with pytest.raises(UserError, match="entropy-bonus and adaptive-entropy cannot be combined"):
        method_of("grpo+entropy-bonus+adaptive-entropy")


class _Coefs(GradientTrainer):
    """Keeps the weight of every step, and the state after it."""

    def see_gradient(self) -> None:
        super().see_gradient()
        self.seen = [*getattr(self, "seen", []), (self.meter.entropy_coef, self.entropy_coef, self._last_world_entropy)]


def adaptive(target: float) -> tuple[str, ...]:
    bonus = {"coef": 0.1, "target": target, "step": 0.2, "max": 0.4, "min": -0.1}
    return tuple(f"entropy_bonus.{name}={value}" for name, value in bonus.items())


def test_an_adaptive_coefficient_is_that_of_trl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four steps of which the entropy crosses the target: gate, steps, bounds, and the gradients."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    monkeypatch.setattr("tests.training.harness.GradientTrainer", _Coefs)
    fixed = method_of("grpo", "aggregation=token_mean", *GRPO)
    settings = {"micro_batch": 16, "epochs": 2, "rollouts": 2}
    first = train(tmp_path, method_of("grpo", *adaptive(9.0), *GRPO), load_base(tmp_path), **settings)
    entropies = [entropy for _, _, entropy in first.seen]
    # Between them, so that both branches run.
    target = sum(sorted(entropies)[1:3]) / 2
    method = method_of("grpo", "aggregation=token_mean", *adaptive(target), *GRPO)
    ours = train(tmp_path, method, load_base(tmp_path), **settings)
    config = arguments(tmp_path, fixed, rows=ROWS, group=GROUP, **settings)
    config.epsilon_high, config.scale_rewards = 0.28, "none"
    config.entropy_coef, config.use_adaptive_entropy, config.entropy_target = 0.1, True, target
    config.entropy_coef_delta, config.entropy_coef_max, config.entropy_coef_min = 0.2, 0.4, -0.1
    theirs: list[Any] = []

    class Native(GRPOTrainer):
        def _compute_loss(self, model: Any, inputs: Any) -> Any:
            loss = super()._compute_loss(model, inputs)
            theirs.append((self.entropy_coef, self._last_world_entropy))
            return loss

    native = by_rollout_func(Native, tmp_path, config, tools=False)
    assert ours.seen[0][0] == 0 and len({entropy <= target for entropy in entropies}) == 2
    for (_, coef, entropy), (their_coef, their_entropy) in zip(ours.seen, theirs, strict=True):
        assert coef == pytest.approx(their_coef) and entropy == pytest.approx(their_entropy, rel=1e-4)
    for mine, other in zip(ours.gradients, native, strict=True):
        assert relative_error(mine, other) < 1e-4


def test_is_bounded_and_not_moved_by_what_is_not_a_number() -> None:
    bonus = EntropyBonus(coef=0.1, target=1.0, min=0.05, max=0.12, step=0.04)
    assert bonus.adapt(0.1, 0.9) == 0.12 and bonus.adapt(0.1, 1.0) == 0.12
    assert bonus.adapt(0.1, 1.1) == pytest.approx(0.06) and bonus.adapt(0.06, 1.1) == 0.05
    assert bonus.adapt(0.1, float("nan")) == bonus.adapt(0.1, float("inf")) == 0.1
    assert bonus.applied(0.1, float("inf")) == 0 and bonus.applied(0.1, 1.0) == 0.1
    assert EntropyBonus(coef=0.1).applied(0.1, float("inf")) == 0.1


@pytest.mark.parametrize("name", ["lopti+entropy-bonus", "gspo+low-only+entropy-bonus", "grpo+entropy-bonus"])
def test_does_not_depend_on_what_is_left_out(tmp_path: Path, name: str) -> None:
    """Also tokens without advantage have a bonus, and only those of the pass."""
    method = divided(method_of(name, BONUS))
    for updates, sizes in ((1, {"micro_batch": 4}), (4, {"micro_batch": 2, "micro_tokens": 40})):
        plain = train(tmp_path, method, load_base(tmp_path), updates=updates, plain=True, **sizes)
        quick = train(tmp_path, method, load_base(tmp_path), updates=updates, **sizes)
        off = train(tmp_path, divided(method_of(name, "entropy_bonus.coef=0")), load_base(tmp_path), **sizes)
        assert relative_error(quick.gradients[0], off.gradients[0]) > 1e-3
        for mine, other in zip(quick.gradients, plain.gradients, strict=True):
            assert relative_error(mine, other) < 1e-8, updates


def test_models_that_only_trl_can_run_have_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    method = method_of("grpo", BONUS)
    ours = train(tmp_path, method, load_base(tmp_path), micro_batch=4).gradients
    detect = PolicyForward.detect_capabilities

    def none(self: PolicyForward, *given: Any, **named: Any) -> None:
        detect(self, *given, **named)
        self.applies_head = self.share_prompts = False

    monkeypatch.setattr(PolicyForward, "detect_capabilities", none)
    other = train(tmp_path, method, load_base(tmp_path), micro_batch=4).gradients
    assert all(relative_error(mine, their) < 1e-5 for mine, their in zip(ours, other, strict=True))


def test_two_processes_make_the_gradient_of_one(tmp_path: Path) -> None:
    """The adaptive coefficient too: with another one in a process, gradients would differ from the second step on."""
    load_base(tmp_path)
    name = "grpo+adaptive-entropy"
    # Any entropy is below the target.
    (tmp_path / "overrides.json").write_text(json.dumps(["entropy_bonus.target=9", "entropy_bonus.step=0.5"]))
    run_as_two(Path(__file__).with_name("gradient_of_processes.py"), str(tmp_path), name)
    together = torch.load(tmp_path / f"{name}.pt", weights_only=True)
    overrides = json.loads((tmp_path / "overrides.json").read_text())
    alone = train(tmp_path, method_of(name, *overrides), load_base(tmp_path), micro_batch=4, updates=2)
    off = train(tmp_path, method_of("grpo"), load_base(tmp_path), micro_batch=4, updates=2)
    assert relative_error(together[1], off.gradients[1]) > 1e-3
    for ours, single in zip(together, alone.gradients, strict=True):
        assert relative_error(ours, single) < SPLIT_TOLERANCE


def test_trls_checkpoints_keep_the_state(tmp_path: Path) -> None:
    """Half, and the other half from its checkpoint: as without a break."""

    def run(folder: Path, steps: int, resume: bool = False) -> Any:
        config = arguments(tmp_path, method_of("grpo"), rows=ROWS, group=GROUP, micro_batch=16, rollouts=4)
        config.output_dir, config.max_steps, config.save_strategy, config.save_steps = str(folder), steps, "steps", 2
        trainer = _trainer(tmp_path, config)
        trainer.train(resume_from_checkpoint=str(folder / "checkpoint-2") if resume else None)
        return trainer

    whole, _ = run(tmp_path / "whole", 4), run(tmp_path / "half", 2)
    resumed = run(tmp_path / "half", 4, resume=True)
    assert (resumed.entropy_coef, resumed._last_world_entropy) == (whole.entropy_coef, whole._last_world_entropy)
    assert whole.entropy_coef == pytest.approx(0.1 + 4 * 0.01)
    # The weight in the last step's loss: the coefficient before its own change.
    assert whole.state.log_history[-1]["entropy_coef"] == pytest.approx(0.1 + 3 * 0.01)


def test_a_run_goes_on_exactly(tmp_path: Path) -> None:
    """Interrupted within a rollout, while the coefficient moves; its weights and numbers are those of a run without."""
    settings = {"train__rollouts": 2, "update__epochs": 1, "update__mini_batches": 2, "rollout__max_new_tokens": 16}
    settings |= {"validation__every": 0, "checkpoint__every": 1}
    settings |= {f"method__entropy_bonus__{name}": value for name, value in {"target": 9, "step": 0.2}.items()}
    whole = start(tmp_path, "whole", "grpo+adaptive-entropy", **settings).run
    with interrupted_after(2):
        half = start(tmp_path, "half", "grpo+adaptive-entropy", **settings).run
    assert resume(half).status == "finished"
    lines = [[json.loads(line) for line in run.metrics_path.read_text().splitlines()] for run in (whole, half)]
    coefs = [[(row["entropy_coef"], row["grad_norm"]) for row in rows] for rows in lines]
    assert coefs[0] == coefs[1] and len(coefs[0]) == 4
    assert [coef for coef, _ in coefs[0]] == pytest.approx([0, 0.2, 0.4, 0.6])


def _trainer(folder: Path, config: Any) -> PolicyTrainer:
    return PolicyTrainer(
        model=AutoModelForCausalLM.from_pretrained(base_model(folder)),
        processing_class=make_tokenizer(compact.vocabulary()),
        reward_funcs=lambda completions, **columns: [float(len(text)) for text in completions],
        args=config,
        train_dataset=Dataset.from_dict({"prompt": ["knight"] * 16}),
        method="grpo",
        overrides=["entropy_bonus.coef=0.1", "entropy_bonus.target=9", "entropy_bonus.step=0.01"],
    )
