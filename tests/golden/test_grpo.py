"""The clipped surrogate, its token weight and its aggregation against reference numbers, in float64."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from rlvr_cli.methods.advantage import group_advantage
from rlvr_cli.methods.aggregation import aggregate
from rlvr_cli.methods.grpo import ClippedRatio
from rlvr_cli.methods.kl import k3
from rlvr_cli.methods.tokens import Tokens

AGGREGATIONS = {
    "token-mean": "token_mean",
    "seq-mean-token-mean": "sequence_mean",
    "sum over tokens / (rows * max_len)": "constant_length",
}


def cases(folder: Path, name: str) -> list[dict[str, Any]]:
    return json.loads((folder / f"{name}.json").read_text())["cases"]


def tensor(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def inapplicable(case: dict[str, Any]) -> str | None:
    params = case["params"]
    if case["name"].startswith("clamp_zone") and params.get("log_ratio_clamp"):
        return "clamps the log ratio, which we do not"
    if params.get("masked_rows_in_seq_mean") == "excluded" and case["name"].startswith("masked_row/seq"):
        return "leaves empty rows out of the sequence mean, where we count them as 0"
    return None


@pytest.mark.parametrize("name", ["grpo", "dapo", "dr_grpo"])
def test_loss_gradient_and_regions(golden_dir: Path, name: str) -> None:
    compared = 0
    for case in cases(golden_dir, name):
        if inapplicable(case):
            continue
        params, inputs, expected = case["params"], case["inputs"], case["expected"]
        log_probs = tensor(inputs["log_probs"]).requires_grad_()
        tokens = Tokens(
            log_probs, tensor(inputs["old_log_probs"]), tensor(inputs["advantages"]), tensor(inputs["mask"])
        )
        weight = ClippedRatio(params["eps_low"], params["eps_high"], params["dual_clip_c"])

        def total(values: torch.Tensor, tokens: Tokens = tokens, params: dict[str, Any] = params) -> torch.Tensor:
            aggregation = AGGREGATIONS[params["aggregation"]]
            return aggregate(values, tokens.mask, aggregation, max_length=params.get("max_len"))  # type: ignore[arg-type]

        penalty = torch.zeros(())
        if "kl_coef" in params:
            penalty = params["kl_coef"] * k3(log_probs, tensor(inputs["ref_log_probs"]))
        loss = total(weight.surrogate(tokens) + penalty)
        assert loss.item() == pytest.approx(expected["loss"], rel=1e-6, abs=1e-6), case["name"]

        # The gradient that training uses: -F A grad log pi, F under stop-gradient.
        (gradient,) = torch.autograd.grad(
            total(-weight.weight(tokens) * tokens.advantages * log_probs + penalty), log_probs
        )
        torch.testing.assert_close(gradient, tensor(expected["grad_log_probs"]), rtol=1e-6, atol=1e-6)

        where = weight.regions(tokens)
        counts = {region: int(getattr(where, region).sum()) for region in ("LN", "HP", "LP", "HN", "M")}
        counts["valid"] = int(tokens.mask.sum())
        assert counts == expected["region_counts"], case["name"]
        compared += 1
    assert compared >= 5


def test_group_advantages(golden_dir: Path) -> None:
    for case in cases(golden_dir, "advantages"):
        groups, rewards = case["inputs"]["group_ids"], case["inputs"]["rewards"]
        mask = tensor(case["inputs"]["mask"])
        for key, divide_by_std in (("grpo", True), ("dr_grpo", False)):
            ours = torch.zeros(len(rewards), dtype=torch.float64)
            for group in set(groups):
                rows = [row for row, value in enumerate(groups) if value == group]
                ours[rows] = group_advantage(tensor(rewards)[rows], len(rows), divide_by_std=divide_by_std)
            expected = tensor(case["expected"][key])
            torch.testing.assert_close(ours.unsqueeze(1) * mask, expected, rtol=1e-6, atol=1e-6)
