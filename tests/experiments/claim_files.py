"""A small folder of claims for tests: two arms of two short rollouts, four claims."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

from benchmarks.sweep_kills import SETTINGS
from experiments.claims.claims import ClaimSet, read_claims
from rlvr_cli.core.yaml import dump

WORDS = {"place": "Figure 1", "statement": "It is so.", "paper_value": "more"}
# Whatever two seeds come to.
LENGTH = {
    "id": "landscape/length",
    **WORDS,
    "measure": {"analysis": "landscape", "number": "length_end"},
    "arm": "tiny-grpo",
    "rule": {"above": -1e6},
    "seeds": 2,
}
CONTRAST = {
    "id": "landscape/updates",
    **WORDS,
    "measure": {"analysis": "landscape", "number": "updates"},
    "contrast": {"of": "tiny-pl", "against": "tiny-grpo", "as": "ratio"},
    "rule": {"within": [1, 1]},
    "seeds": 2,
}
NO_NUMBER = {**LENGTH, "id": "landscape/no-number", "measure": {"analysis": "landscape", "number": "lenght_end"}}
EXACT = {
    "id": "ar_lopti/cost",
    **WORDS,
    "measure": {"exact": "updates_ratio", "options": {"of": "lopti", "against": "grpo"}},
    "rule": {"within": [2, 2]},
}
ARMS = {"set": SETTINGS, "list": [{"name": "tiny-grpo", "method": "grpo"}, {"name": "tiny-pl", "method": "pl"}]}
RECIPE = """
model: {hidden: 16, layers: 1, heads: 2, feed_forward: 32}
puzzles: 40
phases: [{name: clean, steps: 3, lr: 1.0e-3, batch: 4, people: {3: 1.0}}]
"""


def write_claims(folder: Path, *claims: dict[str, Any], arms: Any = ARMS) -> Path:
    """Write the claims, each into the file of the paper that its id names, with arms and recipe."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "arms.yaml").write_text(dump(deepcopy(arms)))
    (folder / "strategy-mix.yaml").write_text(RECIPE)
    for paper in {claim["id"].partition("/")[0] for claim in claims}:
        rows = [deepcopy(claim) for claim in claims if claim["id"].startswith(f"{paper}/")]
        (folder / f"{paper}.yaml").write_text(dump(rows))
    return folder


def claim_set(folder: Path, *claims: dict[str, Any], arms: Any = ARMS) -> ClaimSet:
    """Return the same, read."""
    return read_claims(write_claims(folder, *claims, arms=arms))
