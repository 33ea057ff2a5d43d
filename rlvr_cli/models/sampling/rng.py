"""Draw random numbers and tokens that depend only on (seed, row key, position), not on a row's batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
# A wider row of probabilities is searched in two stages: blocks of this width, then within a block.
_BLOCK = 256
_MAX_ONE_STAGE = 1024


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Apply the finaliser of splitmix64 (Steele, Lea and Flood 2014) elementwise to uint64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: npt.NDArray[np.uint64] = x ^ (x >> np.uint64(31))
    return mixed


def _streams(seed: int, keys: Sequence[int]) -> npt.NDArray[np.uint64]:
    mask = (1 << 64) - 1
    root = _mix(np.array([seed & mask], dtype=np.uint64) + _GOLDEN)
    return _mix(_mix(np.array([key & mask for key in keys], dtype=np.uint64) + _GOLDEN) ^ root)


def stream_start(seed: int, key: int) -> int:
    """Return the 64-bit initial state of a row key's stream."""
    return int(_streams(seed, [key])[0])


def uniforms(seed: int, keys: Sequence[int], start: int, count: int) -> npt.NDArray[np.float64]:
    """Return uniform numbers in [0, 1), shape [count, len(keys)], for positions start .. start + count - 1.

    Row key k has the splitmix64 stream that starts at a hash of seed and k; position t is its t-th output.
    """
    positions = np.arange(start + 1, start + count + 1, dtype=np.uint64) * _GOLDEN
    bits = _mix(_streams(seed, keys)[None, :] + positions[:, None])
    fractions: npt.NDArray[np.float64] = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return fractions


def _invert(weights: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Draw an index by inverse CDF; return it and the position of u in its interval.

    weights [rows, n], non-negative with a positive sum; u [rows] float64 in [0, 1). Returns index [rows, 1]
    int64 and the remainder [rows] in [0, 1). An entry of weight 0 is never returned.
    """
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    # u is at most 1 - 2^-53, for which u * total still rounds to less than total.
    target = u.unsqueeze(1) * cumulative[:, -1:]
    # The clamp acts only on rows of NaN, which the caller detects by the probability of the drawn token.
    index = torch.searchsorted(cumulative, target, right=True).clamp_(max=weights.shape[1] - 1)
    width = weights.gather(1, index).double()
    below = cumulative.gather(1, index) - width
    remainder = ((target - below) / width).clamp_(0, 1 - 2.0**-53)
    return index, remainder.squeeze(1)


def draw_tokens(probabilities: Tensor, u: Tensor) -> Tensor:
    """Draw a token per row by inverse CDF. probabilities [rows, vocabulary]; u [rows] float64. Returns [rows, 1]."""
    rows, size = probabilities.shape
    if size <= _MAX_ONE_STAGE:
        return _invert(probabilities, u)[0]
    padding = -size % _BLOCK
    if padding:
        probabilities = torch.nn.functional.pad(probabilities, (0, padding))
    blocks = probabilities.view(rows, -1, _BLOCK)
    block, remainder = _invert(blocks.sum(-1), u)
    within = blocks.gather(1, block.unsqueeze(2).expand(-1, 1, _BLOCK)).squeeze(1)
    return (block * _BLOCK + _invert(within, remainder)[0]).clamp_(max=size - 1)


def keep_likely(probabilities: Tensor, top_p: float, top_k: int, min_p: float) -> Tensor:
    """Zero the tokens that top_k, then top_p, then min_p leave out, in transformers' order.

    min_p (arXiv:2407.01082) drops tokens less likely than that share of the likeliest token's probability.
    """
    likely = probabilities if top_p == 1 and top_k == 0 else nucleus(probabilities, top_p, top_k)
    if min_p == 0:
        return likely
    return likely.masked_fill(probabilities < min_p * probabilities.amax(-1, keepdim=True), 0.0)


def penalize(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Return the logits with those of ``seen`` tokens lowered (arXiv:1909.05858, equation 2; negative ones multiplied).

    logits and seen: [rows, vocabulary].
    """
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def nucleus(probabilities: Tensor, top_p: float, top_k: int = 0) -> Tensor:
    """Zero all but the smallest set of most likely tokens whose probability reaches top_p (Holtzman et al. 2020).

    top_k > 0 first keeps the top_k most likely tokens; top_p is a share of these, as in transformers and vLLM.
    probabilities [rows, vocabulary]; kept entries are not renormalised. The most likely token is always kept; ties are
    broken by the lower id.
    """
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    mass: float | Tensor = top_p
    if 0 < top_k < ordered.shape[1]:
        ordered[:, top_k:] = 0.0
        mass = top_p * ordered.sum(-1, keepdim=True, dtype=torch.float64)
    before = ordered.cumsum(-1, dtype=torch.float64) - ordered
    if top_p < 1:
        ordered = ordered.masked_fill(before >= mass, 0.0)
    return torch.zeros_like(probabilities).scatter_(1, order, ordered)
