"""The lab's base model in float64 and a few rows for it, for tests of gradients."""

from __future__ import annotations

from typing import Any

import torch

from rlvr_cli.analyses.scoring import LoadedPolicy
from rlvr_cli.models.load import load_model

PROMPTS = ("A: DN and BK B: DK ? <think>", "A: BN B: AK ? <think>")
LENGTHS = (7, 4, 6, 3, 5, 6)


def lab_policy(temperature: float = 0.7) -> LoadedPolicy:
    model, tokenizer = load_model("lab")
    return LoadedPolicy(model.to(torch.float64), tokenizer, temperature)


def lab_rows(policy: LoadedPolicy) -> list[dict[str, Any]]:
    """Two prompts with three rows each, of different lengths; tokens drawn from the model, so that many are likely."""
    generator = torch.Generator().manual_seed(3)
    rows = []
    for index, length in enumerate(LENGTHS):
        prompt = PROMPTS[index * len(PROMPTS) // len(LENGTHS)]
        ids = list(policy.tokenizer(prompt, add_special_tokens=False)["input_ids"])
        start = len(ids)
        for _ in range(length):
            with torch.no_grad():
                logits = policy.model(torch.tensor([ids])).logits[0, -1]
            ids.append(int(torch.multinomial(logits.softmax(dim=-1), 1, generator=generator)))
        rows.append({"prompt": prompt, "token_ids": ids[start:]})
    return rows


def log_prob(policy: LoadedPolicy, row: dict[str, Any], position: int) -> torch.Tensor:
    """log pi of one token, by a plain call of the model on what comes before it."""
    prompt = list(policy.tokenizer(row["prompt"], add_special_tokens=False)["input_ids"])
    before = torch.tensor([[*prompt, *row["token_ids"][:position]]])
    logits = policy.model(before).logits[0, -1] / policy.temperature
    return logits.log_softmax(dim=-1)[row["token_ids"][position]]
