"""Golden cases: which files there are, how a case is read, and a ledger of what of it was compared."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor

from rlvr_cli.methods.base import Tokens

# Every file of a golden folder, and the test that compares it.
FILES = {
    **dict.fromkeys(("grpo", "dapo", "dr_grpo", "gspo"), "test_clipped.py"),
    **dict.fromkeys(("cispo", "gppo", "ce_gppo", "aspo", "dgpo"), "test_soft_clip.py"),
    **dict.fromkeys(("ar", "lopti", "ar_lopti"), "test_low_probability.py"),
    "acpo": "test_acpo.py",
    "reinforce_pp": "test_reinforce_pp.py",
    "likelihood_family": "test_likelihood.py",
    "high_entropy_mask": "test_high_entropy.py",
    "ppo_value": "test_ppo.py",
    "gtpo": "test_gtpo.py",
    **dict.fromkeys(("advantages", "entropy_min_reward", "noisy_rewards"), "test_advantages.py"),
    "kk_reward": "tests/tasks/test_kk_verdict.py",
}

Test = TypeVar("Test", bound=Callable[..., None])


def golden(*files: str) -> Callable[[Test], Test]:
    """Run the test once for every case of these files: the case is its argument ``case``."""

    def mark(test: Test) -> Test:
        test.golden_files = files  # type: ignore[attr-defined]
        return test

    return mark


@dataclass
class Case:
    """One case of a golden file; what is left in ``pending`` was not compared yet.

    Attributes:
        file, name: where it stands.
        params, inputs: settings and arrays.
        pending: expected values, by name.
    """

    file: str
    name: str
    params: dict[str, Any]
    inputs: dict[str, Any]
    pending: dict[str, Any] = field(default_factory=dict)

    def tensor(self, name: str) -> Tensor:
        """An input as float64."""
        return torch.tensor(self.inputs[name], dtype=torch.float64)

    def optional(self, name: str) -> Tensor | None:
        return self.tensor(name) if name in self.inputs else None

    def tokens(self, log_probs: str = "log_probs", advantages: Tensor | None = None) -> Tokens:
        """The case's tokens, ``log_probs`` with gradient."""
        return Tokens(
            log_probs=self.tensor(log_probs).requires_grad_(),
            old_log_probs=self.tensor("old_log_probs"),
            advantages=self.tensor("advantages") if advantages is None else advantages,
            mask=self.tensor("mask"),
            entropies=self.optional("entropies"),
            ref_log_probs=self.optional("ref_log_probs"),
        )

    def take(self, name: str) -> Any:
        """An expected value, which the caller compares."""
        return self.pending.pop(name)

    def compare(self, name: str, ours: Tensor | float) -> None:
        """Compare with the expected value ``name``, if the case has one; null is an undefined fraction, NaN."""
        if name not in self.pending:
            return
        expected = self.take(name)
        theirs = torch.tensor(float("nan") if expected is None else expected, dtype=torch.float64)
        ours = torch.as_tensor(ours).detach().double()
        message = f"{self.file}: {self.name}: {name}"
        torch.testing.assert_close(
            ours, theirs, rtol=1e-6, atol=1e-6, equal_nan=True, msg=lambda text: f"{message}\n{text}"
        )

    def ignore(self, name: str, reason: str) -> None:
        """Leave an expected value out of the comparison, knowingly."""
        assert reason
        self.pending.pop(name, None)

    def finish(self) -> None:
        """Fail if anything that the file expects was not compared."""
        assert not self.pending, f"{self.file}: {self.name}: not compared: {', '.join(self.pending)}"


def read(folder: Path, file: str) -> list[Case]:
    """The cases of one file."""
    document = json.loads((folder / f"{file}.json").read_text(encoding="utf-8"))
    inputs = {case["name"]: case["inputs"] for case in document["cases"]}
    return [
        Case(
            file,
            case["name"],
            case["params"],
            inputs[case["inputs"]["same_as"]] if "same_as" in case["inputs"] else case["inputs"],
            dict(case["expected"]),
        )
        for case in document["cases"]
    ]


def why_not_compared(case: Case) -> str | None:
    """The one ground on which a whole case is left out: it shows a clamp of the log ratio, which we do not have."""
    clamp = case.params.get("log_ratio_clamp")
    if clamp is None or "old_log_probs" not in case.inputs:
        return None
    log_ratio = (case.tensor("log_probs") - case.tensor("old_log_probs"))[case.tensor("mask").bool()]
    return f"clamps log ratios at {clamp}, we do not" if bool((log_ratio.abs() > clamp).any()) else None


def parameters(folder: Path, files: tuple[str, ...]) -> list[Any]:
    """What a test over ``files`` is run with: every case, those that are left out with their reason."""
    result = []
    for file in files:
        if not (folder / f"{file}.json").is_file():
            result.append(
                pytest.param(None, id=f"{folder.name}-{file}", marks=pytest.mark.skip(f"no {file}.json in {folder}"))
            )
            continue
        for case in read(folder, file):
            reason = why_not_compared(case)
            marks = [pytest.mark.skip(reason)] if reason else []
            result.append(pytest.param(case, id=f"{folder.name}-{file}:{case.name}", marks=marks))
    return result
