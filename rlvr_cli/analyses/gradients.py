"""Gradients of the log-probs of a saved rollout's tokens, and the policy after a step along one.

    grad J = sum over tokens of  c * grad log pi(token)

with any coefficients c: those of a method on some of the tokens (``method_step``), or 1 on a single one. Parameters are
those of the whole model, merged where an adapter was trained. Memory: the weights, as much again for each gradient that
is kept, as much again inside :func:`stepped`, and the activations of one batch of rows (``LoadedPolicy.batches``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rlvr_cli.analyses.scoring import LoadedPolicy, Rows
from rlvr_cli.core.lazy import Tensor, torch

Gradient = dict[str, Tensor]
# Whose distributions are held in float64 at a time.
POSITIONS = 256


@dataclass(frozen=True)
class LogitGradients:
    """The gradient of each token's log-prob at the tempered logits, e_k - p; all (N, T) float64, 0 on padding.

    Attributes:
        norms: ||e_k - p||, Euclidean.
        rest: 1 - p(token), summed over the other tokens so that it keeps its digits where p is nearly 1.
        vocabulary: N, tokens of the vocabulary.
    """

    norms: Tensor
    rest: Tensor
    vocabulary: int


def gradient(policy: LoadedPolicy, rows: Rows, coefficients: Tensor) -> Gradient:
    """sum of ``coefficients`` (N, T) times grad log pi over the rows' tokens, by parameter.

    Rows whose coefficients are all 0 cost nothing.
    """
    names, parameters = _parameters(policy)
    total = [torch.zeros_like(parameter) for parameter in parameters]
    used = [index for index in range(len(rows)) if bool(coefficients[index].any())]
    chosen = [rows[index] for index in used]
    for indices in policy.batches(chosen):
        part = [chosen[index] for index in indices]
        log_probs, _ = policy.forward(part)
        weights = coefficients[[used[index] for index in indices], : log_probs.shape[1]].to(log_probs)
        parts = torch.autograd.grad((weights * log_probs).sum(), parameters, allow_unused=True)
        for whole, share in zip(total, parts, strict=True):
            if share is not None:
                whole += share
    return dict(zip(names, total, strict=True))


def token_norms(policy: LoadedPolicy, rows: Rows, places: Sequence[tuple[int, int]]) -> Tensor:
    """(P,) float64 norms of grad log pi over all parameters, of the tokens at ``places`` (row, position).

    One backward pass a token; one gradient is held at a time.
    """
    _, parameters = _parameters(policy)
    norms = torch.zeros(len(places), dtype=torch.float64)
    by_row: dict[int, list[int]] = {}
    for index, (row, _) in enumerate(places):
        by_row.setdefault(row, []).append(index)
    for row, indices in by_row.items():
        log_probs, _ = policy.forward([rows[row]])
        for index in indices:
            last = index == indices[-1]
            parts = torch.autograd.grad(
                log_probs[0, places[index][1]], parameters, retain_graph=not last, allow_unused=True
            )
            norms[index] = _norm(part for part in parts if part is not None)
    return norms


def logit_gradients(policy: LoadedPolicy, rows: Rows, width: int) -> LogitGradients:
    """The gradients of every token at the logits, T = ``width`` (AR-Lopti, arXiv:2505.12929, eq. 15 with w = 1)."""
    norms, rest = torch.zeros(2, len(rows), width, dtype=torch.float64)
    vocabulary = 0
    for indices in policy.batches(rows):
        chosen = [rows[index] for index in indices]
        with torch.no_grad():
            distributions = policy.distributions(chosen)
        vocabulary = distributions.shape[-1]
        for place, (index, row) in enumerate(zip(indices, chosen, strict=True)):
            ids = torch.tensor(row["token_ids"], device=distributions.device).unsqueeze(1)
            for start in range(0, len(ids), POSITIONS):
                some = slice(start, min(start + POSITIONS, len(ids)))
                # Normalised again: rounded to float32, the probabilities do not add up to 1 closely enough.
                others = distributions[place, some].double().log_softmax(dim=-1).exp().scatter(1, ids[some], 0.0)
                share = others.sum(dim=1)
                rest[index, some] = share.cpu()
                norms[index, some] = (share.square() + others.square().sum(dim=1)).sqrt().cpu()
    return LogitGradients(norms, rest, vocabulary)


@contextmanager
def stepped(policy: LoadedPolicy, direction: Mapping[str, Tensor], rate: float) -> Iterator[None]:
    """Inside, the weights are theta + rate * direction (one plain SGD step uphill); after it, what they were."""
    names, parameters = _parameters(policy)
    before = [parameter.detach().clone() for parameter in parameters]
    try:
        with torch.no_grad():
            for name, parameter in zip(names, parameters, strict=True):
                parameter.add_(direction[name], alpha=rate)
        yield
    finally:
        with torch.no_grad():
            for parameter, value in zip(parameters, before, strict=True):
                parameter.copy_(value)


def norm(of: Mapping[str, Tensor]) -> float:
    """Euclidean norm over all parameters."""
    return _norm(of.values())


def _norm(parts: Iterable[Tensor]) -> float:
    return math.sqrt(math.fsum(float(part.double().square().sum()) for part in parts))


def _parameters(policy: LoadedPolicy) -> tuple[list[str], list[Tensor]]:
    """Every trained parameter once, tied weights too."""
    named = [(name, parameter) for name, parameter in policy.model.named_parameters() if parameter.requires_grad]
    return [name for name, _ in named], [parameter for _, parameter in named]
