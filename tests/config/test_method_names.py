"""Names of methods: spellings, aliases, compositions, and what is refused."""

from __future__ import annotations

import itertools

from rlvr_cli.methods.names import (
    ALIASES,
    BASES,
    MODIFIERS,
    MethodName,
    canonical_name,
    parse_method_name,
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


def test_the_order_of_modifiers_does_not_make_another_name() -> None:
    for parts in itertools.permutations(("reweight", "lopti", "noise")):
        assert parse_method_name("+".join(("dgpo", *parts))) == MethodName("dgpo", ("reweight", "lopti", "noise"))


def test_aliases_stand_for_valid_names_and_hide_none() -> None:
    for alias, name in ALIASES.items():
        assert canonical_name(name) == name
        assert alias not in BASES | MODIFIERS
