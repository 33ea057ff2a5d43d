"""A policy of a run with its weights in memory, and its log-probs of the rows of a saved rollout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from rlvr_cli.analysis.saved_rollout import Policy, SavedRollout
from rlvr_cli.models.libraries import quiet_hub
from rlvr_cli.models.load import load_model
from rlvr_cli.training.head import MOST_LOGITS

Rows = Sequence[dict[str, Any]]


class LoadedPolicy:
    """A model in eval mode; rows are records of a rollout file, all distributions those that were sampled from.

    Args:
        model: a causal language model. tokenizer: its own.
        temperature: of the sampling (``rollout.temperature``).
    """

    def __init__(self, model: Any, tokenizer: Any, temperature: float) -> None:
        self.model, self.tokenizer, self.temperature = model, tokenizer, temperature
        self.device: torch.device = next(model.parameters()).device

    def batches(self, rows: Rows) -> Iterator[list[int]]:
        """Indices of rows of one prompt, as many as their logits allow; completions then begin in the same column.

        A row without tokens is in none.
        """
        vocabulary = self.model.config.vocab_size
        by_prompt: dict[str, list[int]] = {}
        for index, row in enumerate(rows):
            if row["token_ids"]:
                by_prompt.setdefault(row["prompt"], []).append(index)
        for indices in by_prompt.values():
            longest = max(len(rows[index]["token_ids"]) for index in indices)
            size = max(1, MOST_LOGITS // ((longest + 1) * vocabulary))
            yield from (indices[start : start + size] for start in range(0, len(indices), size))

    def forward(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """(n, T) log-probs, with gradient, and entropies (nats) of the tokens of rows of one prompt."""
        distributions = self.distributions(rows)
        tokens, _ = padded([row["token_ids"] for row in rows])
        log_probs = distributions.gather(-1, tokens.to(self.device).unsqueeze(-1)).squeeze(-1)
        with torch.no_grad():
            entropies = -(distributions.exp() * distributions).sum(dim=-1)
        return log_probs, entropies

    def distributions(self, rows: Rows) -> Tensor:
        """(n, T, V) log-probs of the whole vocabulary at the tokens of rows of one prompt."""
        prompt = list(self.tokenizer(rows[0]["prompt"], add_special_tokens=False)["input_ids"])
        ids, mask = (of.to(self.device) for of in padded([[*prompt, *row["token_ids"]] for row in rows]))
        length = ids.shape[1] - len(prompt)
        logits = self.model(input_ids=ids, attention_mask=mask, logits_to_keep=length + 1).logits[:, -length - 1 : -1]
        # As in the trainer: which of the two is used must not decide the precision.
        logits = logits if logits.dtype == torch.float64 else logits.float()
        log_softmax: Tensor = (logits / self.temperature).log_softmax(dim=-1)
        return log_softmax

    @torch.no_grad()
    def score(self, rows: Rows, width: int | None = None) -> tuple[Tensor, Tensor]:
        """(N, T) log-probs and entropies (nats) of the rows' tokens, float64, 0 on padding.

        Args:
            width: T; None = the length of the longest row.
        """
        width = max(len(row["token_ids"]) for row in rows) if width is None else width
        log_probs, entropies = torch.zeros(2, len(rows), width, dtype=torch.float64)
        for indices in self.batches(rows):
            chosen = [rows[index] for index in indices]
            scores, spreads = (of.double().cpu() for of in self.forward(chosen))
            for place, (index, row) in enumerate(zip(indices, chosen, strict=True)):
                length = len(row["token_ids"])
                log_probs[index, :length] = scores[place, :length]
                entropies[index, :length] = spreads[place, :length]
        return log_probs, entropies


def load_policy(saved: SavedRollout, policy: Policy, *, dtype: torch.dtype | None = None) -> LoadedPolicy:
    """``policy`` of the run, on a GPU where there is one.

    Args:
        dtype: of the weights; None for the run's own (``model.dtype``; auto: float32, in which training keeps them).

    Raises:
        UserError: it cannot be loaded.
    """
    quiet_hub()
    settings = saved.config.model
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    # Only the model before training has a revision.
    revision = settings.revision if policy.step == 0 else None
    own = "float32" if settings.dtype == "auto" else settings.dtype
    model, tokenizer = load_model(policy.model, revision=revision, dtype=own, device=device)
    if dtype is not None:
        model = model.to(dtype)
    # The weights that an adapter was merged into were frozen beside it; gradients are of the whole model.
    model.requires_grad_(True)
    return LoadedPolicy(model, tokenizer, saved.config.rollout.temperature)


def padded(rows: Sequence[Sequence[float]], dtype: torch.dtype = torch.int64) -> tuple[Tensor, Tensor]:
    """(N, T) the rows, right-padded with 0, and the (N, T) mask of what is not padding."""
    width = max((len(row) for row in rows), default=0)
    values = torch.zeros(len(rows), width, dtype=dtype)
    mask = torch.zeros(len(rows), width, dtype=torch.int64)
    for index, row in enumerate(rows):
        values[index, : len(row)] = torch.tensor(list(row), dtype=dtype)
        mask[index, : len(row)] = 1
    return values, mask
