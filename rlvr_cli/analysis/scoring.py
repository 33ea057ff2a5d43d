"""Score a saved rollout: log-probs and entropies of its tokens under any policy of its run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlvr_cli.analysis.method_difference import Scored
from rlvr_cli.analysis.saved_rollout import Policy, SavedRollout, read_rollout
from rlvr_cli.config.errors import UserError
from rlvr_cli.config.schema import Config
from rlvr_cli.methods.method import Method
from rlvr_cli.methods.rollout import Rollout
from rlvr_cli.models.load import load_model, quiet_hub
from rlvr_cli.training.head import MOST_LOGITS, log_probs_and_entropies


@dataclass(frozen=True)
class ScoredRun:
    """A rollout of a run, ready to be compared on.

    Attributes:
        scored: the rollout under the old and the current policy.
        tokenizer: of the model.
        sampling_gap: mean over tokens of |log-prob under ``old`` - log-prob at sampling|, from the rows' sums: how
            far the old policy is from the one that sampled.
    """

    scored: Scored
    tokenizer: Any
    sampling_gap: float


def score(saved: SavedRollout, methods: Sequence[Method]) -> ScoredRun:
    """Run the policies that ``methods`` need over the rollout.

    Raises:
        UserError: a method needs what no saved rollout holds, or a policy cannot be loaded.
    """
    _check(saved, methods)
    quiet_hub()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    scorer = _Scorer(saved, device)
    rows = saved.rows
    old_log_probs, old_entropies = scorer.score(saved.old, rows)
    if saved.current == saved.old:
        log_probs, entropies = old_log_probs, old_entropies
    else:
        log_probs, entropies = scorer.score(saved.current, rows)
    reference = scorer.score(saved.base, rows)[0] if any(method.needs_reference for method in methods) else None
    ids, mask = padded([row["token_ids"] for row in rows])
    initial = _initial_entropy(saved, scorer) if any(method.needs_initial_entropy for method in methods) else None
    rollout = Rollout(
        rewards=_rewards(saved),
        group_size=saved.config.rollout.group_size,
        token_ids=ids,
        mask=mask * learned_from(rows, saved.config),
        old_log_probs=old_log_probs,
        entropies=old_entropies,
        ref_log_probs=reference,
        initial_entropy=initial,
    )
    sums = torch.tensor([row["log_prob"] for row in rows], dtype=torch.float64)
    gap = float(((old_log_probs * mask).sum(dim=1) - sums).abs().sum() / mask.sum().clamp(min=1))
    return ScoredRun(Scored(rollout, old_log_probs, log_probs, entropies), scorer.tokenizer, gap)


def padded(rows: Sequence[Sequence[float]], dtype: torch.dtype = torch.int64) -> tuple[Tensor, Tensor]:
    """(N, T) the rows, right-padded with 0, and the (N, T) mask of what is not padding."""
    width = max((len(row) for row in rows), default=0)
    values = torch.zeros(len(rows), width, dtype=dtype)
    mask = torch.zeros(len(rows), width, dtype=torch.int64)
    for index, row in enumerate(rows):
        values[index, : len(row)] = torch.tensor(list(row), dtype=dtype)
        mask[index, : len(row)] = 1
    return values, mask


class _Scorer:
    """Loads each policy once it is needed; one is in memory at a time."""

    def __init__(self, saved: SavedRollout, device: torch.device) -> None:
        self.config, self.device = saved.config, device
        self.tokenizer: Any = None

    def score(self, policy: Policy, rows: Sequence[dict[str, Any]]) -> tuple[Tensor, Tensor]:
        """(N, T) log-probs and entropies (nats) of the rows' tokens under ``policy``, float64, 0 on padding."""
        settings = self.config.model
        # Only the model before training has a revision; training keeps its weights in float32.
        revision = settings.revision if policy.step == 0 else None
        dtype = "float32" if settings.dtype == "auto" else settings.dtype
        model, self.tokenizer = load_model(policy.model, revision=revision, dtype=dtype, device=self.device)
        width = max(len(row["token_ids"]) for row in rows)
        log_probs, entropies = torch.zeros(2, len(rows), width, dtype=torch.float64)
        for indices in self._batches(rows, model.config.vocab_size):
            chosen = [rows[index] for index in indices]
            scores, spreads = self._forward(model, chosen)
            for place, (index, row) in enumerate(zip(indices, chosen, strict=True)):
                length = len(row["token_ids"])
                log_probs[index, :length] = scores[place, :length]
                entropies[index, :length] = spreads[place, :length]
        return log_probs, entropies

    def _batches(self, rows: Sequence[dict[str, Any]], vocabulary: int) -> Iterator[list[int]]:
        """Rows of one prompt, as many as their logits allow; completions then begin in the same column."""
        by_prompt: dict[str, list[int]] = {}
        for index, row in enumerate(rows):
            if row["token_ids"]:
                by_prompt.setdefault(row["prompt"], []).append(index)
        for indices in by_prompt.values():
            longest = max(len(rows[index]["token_ids"]) for index in indices)
            size = max(1, MOST_LOGITS // ((longest + 1) * vocabulary))
            yield from (indices[start : start + size] for start in range(0, len(indices), size))

    @torch.no_grad()
    def _forward(self, model: Any, rows: Sequence[dict[str, Any]]) -> tuple[Tensor, Tensor]:
        prompt = list(self.tokenizer(rows[0]["prompt"], add_special_tokens=False)["input_ids"])
        ids, mask = padded([[*prompt, *row["token_ids"]] for row in rows])
        log_probs, entropies = log_probs_and_entropies(
            model,
            ids.to(self.device),
            mask.to(self.device),
            ids.shape[1] - len(prompt),
            self.config.rollout.temperature,
        )
        return log_probs.double().cpu(), entropies.double().cpu()


def _check(saved: SavedRollout, methods: Sequence[Method]) -> None:
    problems = [
        f"{method.name}: its advantages come from a value head, whose predictions of each token no rollout file holds; "
        "compare its weight with `rlvr methods plot`."
        for method in methods
        if method.advantage.needs_values
    ]
    if problems:
        raise UserError(problems)


def _rewards(saved: SavedRollout) -> Tensor:
    """(N,) the verifier's rewards; NaN for a row without one."""
    values = [row["clean_reward"] for row in saved.rows]
    return torch.tensor([math.nan if value is None else value for value in values], dtype=torch.float64)


def learned_from(rows: Sequence[dict[str, Any]], config: Config) -> Tensor:
    """(N, 1) 0 on the rows that ``rollout.drop_truncated`` keeps out of the update."""
    dropped = [bool(row["truncated"]) and config.rollout.drop_truncated for row in rows]
    return 1 - torch.tensor(dropped, dtype=torch.int64).unsqueeze(1)


def _initial_entropy(saved: SavedRollout, scorer: _Scorer) -> float:
    """Mean token entropy of the model before training, on the first rollout, which it sampled itself."""
    rows = read_rollout(saved.run, 0)
    _, entropies = scorer.score(saved.base, rows)
    tokens = sum(len(row["token_ids"]) for row in rows)
    return float(entropies.sum() / max(tokens, 1))
