"""Policy gradients of a saved rollout with arbitrary coefficients, and SGD steps along them.

    grad J = sum over tokens of  c * grad log pi(token)

Parameters are those of the whole model, with adapters merged. Memory: the weights, once more for each gradient and
inside :func:`sgd_step`, and the activations of a batch of rows (``LoadedPolicy.batches``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rlvr_cli.analyses.scoring import LoadedPolicy, Rows
from rlvr_cli.core.lazy import Tensor, torch

Gradient = dict[str, Tensor]
# Positions per chunk of float64 distributions.
POSITIONS = 256


@dataclass(frozen=True)
class LogitGradients:
    """Gradients of the tokens' log-probs at the tempered logits, e_k - p; (N, T) float64, 0 on padding.

    Attributes:
        norms: ||e_k - p||, Euclidean.
        rest: 1 - p(token), summed over the other tokens for precision near p = 1.
        vocabulary: size of the vocabulary.
    """

    norms: Tensor
    rest: Tensor
    vocabulary: int


def gradient(policy: LoadedPolicy, rows: Rows, coefficients: Tensor) -> Gradient:
    """Return the sum of ``coefficients`` (N, T) times grad log pi by parameter; rows of zeros are skipped."""
    names, parameters = _parameters(policy)
    total = [torch.zeros_like(parameter) for parameter in parameters]
    used = [index for index in range(len(rows)) if bool(coefficients[index].any())]
    chosen = [rows[index] for index in used]
    for indices in policy.batches(chosen):
        batch = [chosen[index] for index in indices]
        log_probs, _ = policy.forward(batch)
        weights = coefficients[[used[index] for index in indices], : log_probs.shape[1]].to(log_probs)
        gradients = torch.autograd.grad((weights * log_probs).sum(), parameters, allow_unused=True)
        for accumulated, increment in zip(total, gradients, strict=True):
            if increment is not None:
                accumulated += increment
    return dict(zip(names, total, strict=True))


def token_norms(policy: LoadedPolicy, rows: Rows, positions: Sequence[tuple[int, int]]) -> Tensor:
    """Return the (P,) float64 norms of grad log pi at ``positions`` (row, position), one backward pass each."""
    _, parameters = _parameters(policy)
    norms = torch.zeros(len(positions), dtype=torch.float64)
    by_row: dict[int, list[int]] = {}
    for index, (row, _) in enumerate(positions):
        by_row.setdefault(row, []).append(index)
    for row, indices in by_row.items():
        log_probs, _ = policy.forward([rows[row]])
        for index in indices:
            last = index == indices[-1]
            gradients = torch.autograd.grad(
                log_probs[0, positions[index][1]], parameters, retain_graph=not last, allow_unused=True
            )
            norms[index] = _norm(tensor for tensor in gradients if tensor is not None)
    return norms


def logit_gradients(policy: LoadedPolicy, rows: Rows, width: int) -> LogitGradients:
    """Return each token's gradient at the logits, T = ``width`` (AR-Lopti, arXiv:2505.12929, eq. 15 with w = 1)."""
    norms, rest = torch.zeros(2, len(rows), width, dtype=torch.float64)
    vocabulary = 0
    for indices in policy.batches(rows):
        chosen = [rows[index] for index in indices]
        with torch.no_grad():
            distributions = policy.distributions(chosen)
        vocabulary = distributions.shape[-1]
        for batch_index, (index, row) in enumerate(zip(indices, chosen, strict=True)):
            ids = torch.tensor(row["token_ids"], device=distributions.device).unsqueeze(1)
            for start in range(0, len(ids), POSITIONS):
                span = slice(start, min(start + POSITIONS, len(ids)))
                # Renormalised in float64: float32 probabilities do not sum to 1 precisely enough.
                others = distributions[batch_index, span].double().log_softmax(dim=-1).exp().scatter(1, ids[span], 0.0)
                share = others.sum(dim=1)
                rest[index, span] = share.cpu()
                norms[index, span] = (share.square() + others.square().sum(dim=1)).sqrt().cpu()
    return LogitGradients(norms, rest, vocabulary)


@contextmanager
def sgd_step(policy: LoadedPolicy, direction: Mapping[str, Tensor], rate: float) -> Iterator[None]:
    """Set the weights to theta + rate * direction (a plain SGD ascent step), and restore them on exit."""
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


def norm(gradient: Mapping[str, Tensor]) -> float:
    return _norm(gradient.values())


def _norm(tensors: Iterable[Tensor]) -> float:
    return math.sqrt(math.fsum(float(tensor.double().square().sum()) for tensor in tensors))


def _parameters(policy: LoadedPolicy) -> tuple[list[str], list[Tensor]]:
    """Return names and tensors of the trainable parameters; tied weights once."""
    named = [(name, parameter) for name, parameter in policy.model.named_parameters() if parameter.requires_grad]
    return [name for name, _ in named], [parameter for _, parameter in named]
