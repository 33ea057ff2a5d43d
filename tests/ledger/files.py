"""A small ledger for tests: arms of two short rollouts, claims about them."""

from __future__ import annotations

import os
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import pytest

from benchmarks.sweep_kills import SETTINGS
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.yaml import dump
from rlvr_cli.ledger.claims import ClaimSet, read_claims

ARMS = {"tiny-grpo": {"set": {**SETTINGS, "method": "grpo"}}, "tiny-pl": {"set": {**SETTINGS, "method": "pl"}}}
del ARMS["tiny-grpo"]["set"]["run.threads"], ARMS["tiny-pl"]["set"]["run.threads"]
WORDS = {"place": "Figure 1", "statement": "It is so.", "paper_value": "more"}
LENGTH = {
    "id": "landscape/length",
    **WORDS,
    "measure": {"analysis": "landscape", "number": "length_end"},
    "arm": "tiny-grpo",
    # Whatever two seeds come to.
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


def write_book(folder: Path, claims: list[object], arms: object = ARMS) -> Path:
    """The data of a ledger with these arms and claims, the claims in the file of the paper that they name."""
    (folder / "claims").mkdir(parents=True, exist_ok=True)
    (folder / "arms.yaml").write_text(dump(arms))
    by_paper: dict[str, list[object]] = {}
    for claim in claims:
        paper = str(claim["id"]).partition("/")[0] if isinstance(claim, dict) else "landscape"
        by_paper.setdefault(paper, []).append(deepcopy(claim))
    for paper, own in by_paper.items():
        (folder / "claims" / f"{paper}.yaml").write_text(dump(own))
    return folder


def claim_set(folder: Path, claims: list[object], arms: object = ARMS) -> ClaimSet:
    """The same, read."""
    return read_claims(write_book(folder, claims, arms))


def problems(folder: Path, claims: list[object], arms: object = ARMS) -> list[str]:
    """What is wrong with it, places reduced to the file's name and alignment to one blank."""
    with pytest.raises(UserError) as caught:
        claim_set(folder, claims, arms)
    return [" ".join(line.replace(f"{folder}/", "").split()) for line in caught.value.problems]


def begin(*arguments: str) -> subprocess.Popen[str]:
    """`rlvr reproduce` in a process of its own, on one worker."""
    return subprocess.Popen(
        [sys.executable, "-m", "rlvr_cli", "reproduce", *arguments, "--workers", "1"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen[str], code: int = 0) -> str:
    """All that it printed."""
    said, _ = process.communicate(timeout=280)
    assert process.returncode == code, said
    return said
