"""The rule that says which methods have one gradient, against the gradients themselves."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from rlvr_cli.config.load import load_config
from rlvr_cli.methods.base import Rollout, Tokens
from rlvr_cli.methods.correction import MaskedSequence, TokenCorrection
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
        assert in_one_group(groups, first, second) == alike(found[first], found[second]), (first, second)


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
        (("grpo",), ("gppo", "method.policy_loss={beta1: 0, beta2: 0}"), True),
        (("grpo",), ("gppo", "method.policy_loss={beta1: 0, beta2: 1}"), False),
        (("grpo",), ("acpo", "method.policy_loss={alpha: 0, eps_b: 0.2}", "method.aggregation=token_mean"), True),
        (
            ("grpo", "method.policy_loss.eps_high=0.1"),
            ("acpo-max", "method.policy_loss.alpha=0", "method.aggregation=token_mean"),
            True,
        ),
        (
            ("grpo", "method.policy_loss={eps_low: 0.1, eps_high: 0.1}"),
            ("acpo-max", "method.policy_loss.alpha=0", "method.aggregation=token_mean"),
            False,
        ),
        (("acpo", "method.policy_loss.bins=1"), ("acpo-mean", "method.policy_loss.bins=1"), True),
        (("acpo",), ("acpo-mean",), False),
        (
            ("grpo",),
            ("reweight", "method.shaping.reweight=0", "method.kl.beta=0", "method.policy_loss.eps_high=0.2"),
            True,
        ),
        (("grpo",), ("grpo+lopti", "method.passes.eta=0"), True),
        (("grpo",), ("grpo+lopti", "method.passes.eta=1"), False),
        (("grpo",), ("grpo+lopti", "method.passes={eta: 1, rule: quantile}"), False),
        (("grpo",), ("grpo+lopti", "method.passes={eta: 0, rule: quantile}"), True),
        (("grpo",), ("grpo+low-only", "method.passes.eta=1"), False),
        (("grpo",), ("grpo+high-only", "method.passes.eta=0"), True),
        (("grpo",), ("grpo+high-only",), False),
        (("cispo", "method.policy_loss.eps_low=1"), ("cispo", "method.policy_loss.eps_low=null"), True),
        (("aspo",), ("aspo", "method.policy_loss.eps_high_entropy=0.2"), True),
        (("aspo",), ("aspo", "method.policy_loss.eps_high_entropy=0.4"), False),
        (("grpo",), ("grpo+high-entropy", "method.shaping.high_entropy=1"), True),
        (("grpo",), ("grpo+conflict", "method.shaping.conflict={positive: 1, negative: 1}"), True),
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
        if same:
            # An empty pass next to a full one adds nothing.
            assert torch.allclose(torch.stack(found[0]).sum(0), torch.stack(found[1]).sum(0), atol=1e-12)
        else:
            assert not alike(*found), (first, second, same)


def test_token_weights_of_a_correction_are_averaged_over_rows_by_some_losses_alone() -> None:
    methods = configs("grpo", "gspo", "sapo", overrides=("method.aggregation=sequence_mean",))
    for correction, same in ((None, True), (TokenCorrection(), False), (MaskedSequence(), True)):
        (group,) = find_same_gradients(methods, updates=1, correction=correction)
        assert group.names == (("grpo", "gspo", "sapo") if same else ("grpo", "sapo")), correction


def test_the_first_step_of_an_empty_pass_is_the_step_of_no_other_method() -> None:
    methods = configs("grpo", "dapo") | {
        "empty first": load_config(method="grpo+lopti", overrides=["method.passes.eta=0"]).method
    }
    groups = find_same_gradients(methods, updates=1)
    assert [(group.names, group.when) for group in groups] == [
        (("grpo", "empty first"), "always"),
        (("grpo", "dapo"), "one_step"),
    ]
    assert "pass without tokens" in groups[0].sentence()


@pytest.mark.parametrize(("name", "when"), [("grpo+low-only", "one_step"), ("grpo+lopti", "first_step")])
def test_with_eta_1_a_sure_token_is_left_out_which_matters_once_the_policy_moved(name: str, when: str) -> None:
    methods = configs("grpo") | {"eta 1": load_config(method=name, overrides=["method.passes.eta=1"]).method}
    (group,) = find_same_gradients(methods, updates=1)
    assert group.when == when
    scored, _ = rollout()
    assert scored.old_log_probs is not None
    slope = 1 - scored.old_log_probs.exp()  # of log pi by the token's own logit, while the policy has not moved
    plain, ours = (gradients(method, off_policy=False)[0] for method in methods.values())
    torch.testing.assert_close(plain * slope, ours * slope)
    plain, ours = (gradients(method, off_policy=True)[0] for method in methods.values())
    assert set((plain != ours).nonzero()[:, 1].tolist()) == {2}
