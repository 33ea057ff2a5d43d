"""From configuration to method: every kind, every parameter, the order of shapings, and the fingerprint."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from rlvr_cli.methods.acpo import ACPO
from rlvr_cli.methods.base import Advantage, PolicyLoss
from rlvr_cli.methods.gtpo import ConflictMask, EntropyFilter, EntropyPenalty
from rlvr_cli.methods.high_entropy import HighEntropy
from rlvr_cli.methods.kl import KLPenalty
from rlvr_cli.methods.lopti import Passes
from rlvr_cli.methods.method import Method
from rlvr_cli.methods.reweight import Reweight

KINDS = [
    (choice, kind)
    for choice, family in (("advantage", Advantage), ("policy_loss", PolicyLoss), ("passes", Passes))
    for kind in family.kinds.values()
]


def build(**sections: Any) -> Any:
    return Method(**sections).with_max_length(64)


def test_shapings_come_in_gtpo_order_and_only_where_they_are_on() -> None:
    assert build().shapings == ()
    every = {
        "reweight": Reweight(alpha=0.3),
        "high_entropy": HighEntropy(share=0.2),
        "conflict": ConflictMask(ends="prefix", positive=3.0, negative=0.5),
        "entropy_filter": EntropyFilter(threshold=1.05, sequences="negative", when="always"),
        "entropy_penalty": EntropyPenalty(gamma=0.1),
    }
    made = build(shaping=every)
    assert made.token_shapings == (every["reweight"],)
    order = ("entropy_penalty", "entropy_filter", "conflict", "high_entropy")
    assert made.rollout_shapings == tuple(every[key] for key in order)
    assert made.needs_rollout_entropies and not made.needs_initial_entropy
    assert build(shaping={"entropy_filter": EntropyFilter(threshold=0.7)}).needs_initial_entropy


def test_a_fingerprint_tells_methods_apart_and_stays() -> None:
    prints = [build(**{choice: section()}).fingerprint() for choice, section in KINDS]
    hashes = [each["choices_sha256"] for each in prints]
    # The defaults of three kinds are those of the method without any choice.
    assert len(set(hashes)) == len(KINDS) - 2
    assert build().fingerprint() == build().fingerprint()
    assert build(kl=KLPenalty(beta=0.1)).fingerprint()["choices_sha256"] != build().fingerprint()["choices_sha256"]


@pytest.mark.parametrize(
    ("module", "part"),
    [("acpo", True), ("grpo", True), ("base", True), ("method", True), ("dgpo", False)],
)
def test_a_fingerprint_covers_the_code_that_a_choice_uses(
    module: str, part: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = build(policy_loss=ACPO()).fingerprint()["code_sha256"]
    read = inspect.getsource
    changed = f"rlvr_cli.methods.{module}"
    monkeypatch.setattr(inspect, "getsource", lambda of: read(of) + ("# changed" if of.__name__ == changed else ""))
    assert (build(policy_loss=ACPO()).fingerprint()["code_sha256"] != before) == part
