"""Angles between the subspaces in which two gradients move each weight matrix, and their norms.

ACPO paper ("What are key factors for updates in RL for LLM reasoning?"), section 3.1: the subspace of a gradient matrix
W = U S V^T is spanned by its top k singular vectors; with orthonormal bases Q_A, Q_B of two of them the principal
angles are (equation 7)

    theta_i = arccos(s_i),    s_i the singular values of Q_A^T Q_B, clamped to [0, 1].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlvr_cli.analysis.policy_gradient import norm

# The paper's k is 128, a 16th of the width of the smaller of its two models.
PAPER_K = 128
NARROWEST = 16
# Singular values below this share of the largest are rounding of float32 gradients and have no direction.
_RANK = 1e-6


@dataclass(frozen=True)
class Compared:
    """A gradient against the reference.

    Attributes:
        norm: of all parameters together, relative to the reference's.
        angles: matrix -> mean principal angle, degrees; without the matrices in which one of the two is 0.
    """

    norm: float
    angles: dict[str, float]

    @property
    def angle(self) -> float | None:
        """Mean over matrices."""
        return math.fsum(self.angles.values()) / len(self.angles) if self.angles else None


class Reference:
    """The subspaces and the norm of one gradient; the gradient itself is not kept.

    Args:
        gradient: parameter -> gradient.
        names: the matrices to take angles of.
        k: directions of each; None for a 16th of its shorter side, 128 at most.
        side: ``right`` or ``left`` singular vectors.
    """

    def __init__(self, gradient: Mapping[str, Tensor], names: Sequence[str], k: int | None, side: str) -> None:
        self._side = side
        self._shapes = {name: gradient[name].shape for name in names}
        self.k = {name: _directions(shape, k) for name, shape in self._shapes.items()}
        self.norm = norm(gradient)
        self._bases = {name: top_directions(gradient[name], self.k[name], side) for name in names}

    def width(self, name: str) -> int:
        """Length of a singular vector of matrix ``name``."""
        return self._shapes[name][1 if self._side == "right" else 0]

    def compare(self, gradient: Mapping[str, Tensor]) -> Compared | None:
        """``gradient`` against this one; None where either is 0."""
        size = norm(gradient)
        if not size or not self.norm:
            return None
        return Compared(
            size / self.norm, self._angles(lambda name: top_directions(gradient[name], self.k[name], self._side))
        )

    def random_angle(self, seed: int) -> float | None:
        """Mean angle to subspaces drawn at random: what no relation at all looks like."""
        generator = torch.Generator().manual_seed(seed)

        def drawn(name: str) -> Tensor:
            size = (self.width(name), self.k[name])
            return _orthonormal(torch.randn(*size, generator=generator, dtype=torch.float64))

        return Compared(1.0, self._angles(drawn)).angle

    def _angles(self, other: Callable[[str], Tensor]) -> dict[str, float]:
        angles = {}
        for name, basis in self._bases.items():
            found = principal_angles(basis, other(name).to(basis.device))
            if found.numel():
                angles[name] = float(found.mean())
        return angles


def top_directions(matrix: Tensor, k: int, side: str) -> Tensor:
    """(d, k') orthonormal float64: the top singular vectors of an (m, n) ``matrix``, d = n (right) or m (left).

    k' < k where the matrix has a lower rank.
    """
    own = matrix.detach().double() if side == "right" else matrix.detach().double().T
    wide = own.shape[1] > own.shape[0]
    # By the smaller of the two Gram matrices: a tenth of the time of a singular value decomposition of a large matrix.
    values, vectors = torch.linalg.eigh(own @ own.T if wide else own.T @ own)
    values, vectors = values.flip(0)[:k].clamp(min=0).sqrt(), vectors.flip(1)[:, :k]
    kept = (values > _RANK * values[0]) & (values > 0)
    directions: Tensor = vectors[:, kept]
    return _orthonormal(own.T @ directions / values[kept]) if wide else directions


def principal_angles(a: Tensor, b: Tensor) -> Tensor:
    """(min(j, k),) degrees, rising, between the subspaces of the orthonormal (d, j) ``a`` and (d, k) ``b``."""
    cosines: Tensor = torch.linalg.svdvals(a.T @ b)
    return cosines.clamp(0, 1).arccos().rad2deg()


def layer_matrices(model: Any, most: int | None) -> list[str]:
    """Names of the weights of the linear layers, without the output head; at most ``most`` of them, evenly spaced."""
    head = model.get_output_embeddings()
    named = [
        f"{name}.weight"
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and module is not head
    ]
    if most is None or len(named) <= most:
        return named
    return [named[(2 * place + 1) * len(named) // (2 * most)] for place in range(most)]


def _orthonormal(columns: Tensor) -> Tensor:
    basis: Tensor = torch.linalg.qr(columns).Q
    return basis


def _directions(shape: torch.Size, k: int | None) -> int:
    shorter = min(shape)
    return min(PAPER_K, max(1, shorter // NARROWEST)) if k is None else min(k, shorter)
