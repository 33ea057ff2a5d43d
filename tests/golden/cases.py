"""Golden cases: which files there are, how a case is read, and a ledger of what of it was compared."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
    **dict.fromkeys(("dppo", "sapo", "gmpo", "vespo", "luspo", "clip_cov", "kl_cov"), "test_2026.py"),
    **dict.fromkeys(("maxrl", "opo", "remax", "pass_at_k", "gdpo", "batch_scale", "opd"), "test_2026.py"),
    **dict.fromkeys(("entropy_bonus", "lengths", "corrections", "controls"), "test_2026.py"),
}


def golden(*files: str) -> Callable[[Callable[[Case], None]], Callable[[Path], None]]:
    """Run the test for every case of these files, a file at a time; all cases that fail are named."""

    def of_files(test: Callable[[Case], None]) -> Callable[[Path], None]:
        def of_cases(golden_file: Path) -> None:
            wrong = []
            for case in read(golden_file.parent, golden_file.stem):
                if why_not_compared(case):
                    continue
                try:
                    test(case)
                except AssertionError as error:
                    wrong.append(f"{case.file}: {case.name}: {error}")
            assert not wrong, "\n\n".join(wrong)

        of_cases.__name__, of_cases.__doc__, of_cases.__module__ = test.__name__, test.__doc__, test.__module__
        of_cases.golden_files = files  # type: ignore[attr-defined]
        return of_cases

    return of_files


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
