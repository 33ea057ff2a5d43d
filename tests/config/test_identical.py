"""The rule that says which methods have one gradient, against the gradients themselves."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from rlvr_cli.config.load import load_config
from rlvr_cli.methods.base import Rollout, Tokens
from rlvr_cli.methods.equivalence import SameGradient, find_same_gradients
from rlvr_cli.methods.method import AnyMethod, Method
from rlvr_cli.methods.names import BASES

POLICIES = [name for name in BASES if name != "sft"]
COMPOSITIONS = [
    "grpo+lopti",
    "dgpo+lopti",
    "cispo+low-only",
    "gppo+low-only",
    "grpo+high-only",
    "acpo+reweight",
    "grpo+reweight",
    "dapo+high-entropy",
    "aspo+high-entropy",
    "grpo+conflict",
    "dgpo+entropy-filter",
    "grpo+entropy-penalty",
    "dapo+entropy-min",
    "cl+low-only",
    "tncl+lopti",
]
ROWS, LENGTH = 40, 12


def configs(*names: str, overrides: tuple[str, ...] = ()) -> dict[str, AnyMethod]:
    return {name: load_config(method=name, overrides=overrides).method for name in names}


def rollout() -> tuple[Rollout, Tensor]:
    """Groups of four rows, some of them right, and log ratios around the bounds of the trust regions."""
    draw = torch.Generator().manual_seed(5)
    lengths = 4 + torch.arange(ROWS) * 7 % (LENGTH - 3)
    mask = (torch.arange(LENGTH) < lengths.unsqueeze(1)).double()
    old = torch.log(torch.rand(ROWS, LENGTH, generator=draw, dtype=torch.float64))
    old[::3, 2] = 0.0  # as a sure token's probability in float32: exactly 1
    ids = torch.randint(0, 3, (ROWS, LENGTH), generator=draw)
    scored = Rollout(
        rewards=torch.tensor([1.0, -1.0, -0.5, 1.0, -1.0, 1.0, -1.0, -1.0] * 5, dtype=torch.float64),
        group_size=4,
        token_ids=ids,
        mask=mask,
        old_log_probs=old * mask,
        entropies=torch.rand(ROWS, LENGTH, generator=draw, dtype=torch.float64) * 1.4,
        ref_log_probs=(old - 0.1) * mask,
        teacher_log_probs=old.roll(1, dims=1) * mask,
        values=torch.rand(ROWS, LENGTH, generator=draw, dtype=torch.float64),
        correct=torch.tensor([True, False, False, True, False, True, False, False] * 5),
        parts=torch.stack([ids[:, 0] % 2, ids[:, 1]], dim=1).double(),
        greedy_rewards=torch.tensor([1.0, -1.0] * 5, dtype=torch.float64).repeat_interleave(4),
        initial_entropy=0.3,
    )
    # Heavy tails, wider where the probability is low: some tokens lie beyond three standard deviations of their bin.
    noise = torch.randn(ROWS, LENGTH, generator=draw, dtype=torch.float64) ** 3
    return scored, 0.3 * noise * (1.2 - old.exp())


def gradients(config: AnyMethod, *, off_policy: bool) -> list[Tensor]:
    """d J / d log pi of every token, for each pass."""
    assert isinstance(config, Method)
    method = config.with_max_length(LENGTH)
    scored, shift = rollout()
    assert scored.old_log_probs is not None
    scored = method.reward.shape(scored)
    threshold = method.passes.threshold(scored)
    estimated, advantages = method.rollout_advantages(scored)
    tokens = Tokens(
        log_probs=(scored.old_log_probs + (shift if off_policy else 0)) * scored.mask,
        old_log_probs=scored.old_log_probs,
        advantages=advantages,
        mask=scored.mask,
        entropies=scored.entropies,
        ref_log_probs=scored.ref_log_probs,
        token_ids=scored.token_ids,
        low_threshold=None if threshold is None else torch.full((ROWS, 1), threshold, dtype=torch.float64),
    )
    count = method.aggregation.count(tokens.mask, estimated)
    return [
        method.coefficients(tokens, count, which, method.policy_loss.statistics(method.shape_tokens(tokens, which)))
        for which in method.passes.names
    ]


def alike(first: list[Tensor], second: list[Tensor]) -> bool:
    return len(first) == len(second) and all(torch.allclose(*pair, atol=1e-12) for pair in zip(first, second))  # noqa: B905


def in_one_group(groups: list[SameGradient], *names: str) -> bool:
    return any(set(names) <= set(group.names) for group in groups)


def test_one_step_on_the_policy_that_sampled() -> None:
    """Of methods with one pass: said to be the same exactly where they are."""
    names = [name for name in POLICIES + COMPOSITIONS if len(load_config(method=name).method.passes.names) == 1]
    groups = find_same_gradients(configs(*names), updates=1)
    assert {group.when for group in groups} <= {"always", "one_step"}
    found = {name: gradients(config, off_policy=False) for name, config in configs(*names).items()}
    for first, second in itertools.combinations(names, 2):
        assert in_one_group(groups, first, second) == alike(found[first], found[second]), (first, second)


def test_the_first_step_of_several() -> None:
    names = POLICIES + COMPOSITIONS
    groups = find_same_gradients(configs(*names), updates=4)
    assert {group.when for group in groups} == {"first_step"}
    found = {name: gradients(config, off_policy=False)[:1] for name, config in configs(*names).items()}
    for first, second in itertools.combinations(names, 2):
        same, said = alike(found[first], found[second]), in_one_group(groups, first, second)
        # The first pass of Lopti is low-only's; methods with other passes are not compared.
        assert said == same or (same and "lopti" in first + second), (first, second)


def test_off_policy_every_named_method_is_one_of_its_own() -> None:
    names = POLICIES + COMPOSITIONS
    groups = find_same_gradients(configs(*names), updates=4)
    assert not [group for group in groups if group.when == "always"]
    found = {name: gradients(config, off_policy=True) for name, config in configs(*names).items()}
    for first, second in itertools.combinations(names, 2):
        assert not alike(found[first], found[second]), (first, second)


def test_choices_that_come_to_the_same_thing() -> None:
    for first, second, same in [
        # name and overrides of each; whether the choices come to the same thing
        (("gppo",), ("ce-gppo", "method.policy_loss.beta1=1"), True),
        (("grpo",), ("gppo", "method.policy_loss={beta1: 0, beta2: 1}"), False),
        (("acpo", "method.policy_loss.bins=1"), ("acpo-mean", "method.policy_loss.bins=1"), True),
        (("acpo",), ("acpo-mean",), False),
        (
            ("grpo",),
            ("reweight", "method.shaping.reweight=0", "method.kl.beta=0", "method.policy_loss.eps_high=0.2"),
            True,
        ),
        (("grpo",), ("grpo+lopti", "method.passes.eta=1"), False),
        (("grpo",), ("grpo+lopti", "method.passes={eta: 1, rule: quantile}"), False),
        (("grpo",), ("grpo+low-only", "method.passes.eta=1"), False),
        (("grpo",), ("grpo+high-only",), False),
        (("aspo",), ("aspo", "method.policy_loss.eps_high_entropy=0.4"), False),
        (("raft-pp",), ("pl", "method.policy_loss=ppo_clip"), True),
        (("reweight+lopti",), ("lopti+reweight",), True),
        (("grpo",), ("dapo",), False),
    ]:
        methods = {
            label: load_config(method=name, overrides=overrides).method
            for label, (name, *overrides) in (("first", first), ("second", second))
        }
        groups = find_same_gradients(methods, updates=4)
        assert [group.names for group in groups if group.when == "always"] == ([("first", "second")] if same else [])
        found = [gradients(method, off_policy=True) for method in methods.values()]
        assert alike(*found) == same, (first, second, same)
