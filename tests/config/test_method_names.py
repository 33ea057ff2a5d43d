"""Names of methods: spellings, aliases, compositions, and what is refused."""

from __future__ import annotations

import itertools

import pytest

from rlvr_cli.methods.names import (
    ALIASES,
    BASES,
    MODIFIERS,
    MethodName,
    canonical_name,
    nearest_method,
    parse_method_name,
    resolve_method_name,
)


def test_one_canonical_spelling() -> None:
    for written, canonical in [
        ("grpo", "grpo"),
        ("GRPO", "grpo"),
        ("Dr_GRPO", "dr-grpo"),
        ("CE-GPPO", "ce-gppo"),
        ("REINFORCE++", "reinforce-pp"),
        ("reinforce++", "reinforce-pp"),
        ("reinforce_pp", "reinforce-pp"),
        ("RAFT++", "raft-pp"),
        ("raft+++lopti", "raft-pp+lopti"),
        ("REINFORCE+++AR", "reinforce-pp+reweight"),
        ("REINFORCE++ + Lopti", "reinforce-pp+lopti"),
        ("ar", "reweight"),
        ("AR-Lopti", "reweight+lopti"),
        ("advantage_reweighting", "reweight"),
        ("dgpo+Advantage-Reweighting", "dgpo+reweight"),
        ("ACPO-Avg", "acpo-mean"),
        ("ar_lopti", "reweight+lopti"),
        ("dgpo+ar-lopti", "dgpo+reweight+lopti"),
        ("NSR", "nl"),
        ("psr", "pl"),
        ("dgpo+lopti+reweight", "dgpo+reweight+lopti"),
        ("lopti+ar", "lopti+reweight"),
        ("grpo+noise+HIGH_ENTROPY", "grpo+high-entropy+noise"),
        ("SFT", "sft"),
    ]:
        assert canonical_name(written) == canonical, (written, canonical)
        assert canonical_name(canonical) == canonical, (written, canonical)


def test_refused_with_the_reason() -> None:
    for written, reason in [
        ("grop", "Did you mean `grpo`"),
        ("dgpo+lopt", "Did you mean `lopti`"),
        ("dgpo+acpo", "two base methods"),
        ("dgpo+nsr", "two base methods"),
        ("dgpo+acpo-avg", "two base methods"),
        ("dgpo+advantage-reweightin", "Did you mean `advantage-reweighting`"),
        ("dgpo+lopti+lopti", "lopti twice"),
        ("ar-lopti+lopti", "lopti twice"),
        ("+lopti", "no base method"),
        ("lopti+", "empty part"),
        ("dgpo++lopti", "empty part"),
        ("", "empty part"),
        ("reinforce++lopti", "reinforce+++"),
        ("low-only", "grpo+low-only"),
        ("sft+lopti", "no rollouts"),
        ("grpo+ppo", "two base methods"),
        ("!", "unknown method"),
    ]:
        with pytest.raises(ValueError, match=reason.replace("+", r"\+")):
            parse_method_name(written)


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("lopti+low-only", "lopti sets method.passes itself"),
        ("lopti+lopti", "lopti sets method.passes itself"),
        ("ar+reweight", "reweight sets method.shaping.reweight itself"),
        ("gtpo+entropy-filter", "gtpo sets method.shaping.entropy_filter itself"),
        ("dgpo+lopti+high-only", "lopti and high-only both set method.passes"),
        ("dgpo+low-only+high-only", "low-only and high-only both set"),
    ],
)
def test_parts_that_set_the_same_key_are_refused(written: str, reason: str) -> None:
    parse_method_name(written)
    with pytest.raises(ValueError, match=reason):
        resolve_method_name(written)


def test_the_order_of_modifiers_does_not_make_another_name() -> None:
    for parts in itertools.permutations(("reweight", "lopti", "noise")):
        assert parse_method_name("+".join(("dgpo", *parts))) == MethodName("dgpo", ("reweight", "lopti", "noise"))


def test_aliases_stand_for_valid_names_and_hide_none() -> None:
    for alias, name in ALIASES.items():
        assert canonical_name(name) == name
        assert alias not in BASES | MODIFIERS


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("dgop", "dgpo"),
        ("dgop+lopti", "dgpo+lopti"),
        ("dgpo+loptii", "dgpo+lopti"),
        ("dgpo+acpo", "dgpo"),
        ("reinforce++lopti", "reinforce-pp+lopti"),
        ("zzz", None),
        ("", None),
    ],
)
def test_the_nearest_method(written: str, meant: str | None) -> None:
    assert nearest_method(written) == meant
