"""`rlvr analyze directions`: norms of and angles between the updates of token groups and clipping variants.

"What are key factors for updates in RL for LLM reasoning?" (ACPO), section 3.1: the subspace of a gradient matrix
W = U S V^T is spanned by its top k singular vectors; the principal angles between two, with orthonormal bases Q_A and
Q_B, are (equation 7)

    theta_i = arccos(s_i),    s_i the singular values of Q_A^T Q_B, clamped to [0, 1].

Groups (appendix D, figure 4): tokens by probability and entropy, advantages by sign, and the same off-policy batch
under other policy losses.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from rlvr_cli.analyses.base import Analysis, AnalysisInput, Frames, Share, divide, make_frames, summary_of
from rlvr_cli.analyses.gradients import gradient, norm
from rlvr_cli.analyses.method_step import MethodStep, ScoredTokens
from rlvr_cli.analyses.saved_rollout import draw_rows
from rlvr_cli.analyses.scoring import ScoredRun, load_policy, score_rollout
from rlvr_cli.core.lazy import Tensor, alt, torch
from rlvr_cli.core.section import Count, Section, Text
from rlvr_cli.core.streams import stream_seed
from rlvr_cli.describe.named import policy_config, replayed_configs
from rlvr_cli.methods.base import PolicyLoss
from rlvr_cli.methods.high_entropy import HighEntropy
from rlvr_cli.methods.unclipped import ImportanceSampling, NoImportanceSampling

Row = dict[str, Any]
# Methods whose policy losses replace that of the full update.
VARIANTS = ("cispo", "dapo", "acpo")
TOKENS, SIGNS, CLIPPING = "tokens", "sign of the advantage", "clipping"
# The paper's k: a 16th of the width of the smaller of its two models.
PAPER_K = 128
NARROWEST = 16
# Singular values below this share of the largest are rounding of float32 gradients.
_RANK = 1e-6


class DirectionsOptions(Section):
    method: Text = Field("grpo", description="Method of the full update, the reference for all others.")
    k: Count | None = Field(
        None, description="Singular vectors per matrix; null = a 16th of its shorter side, at most 128 (the paper's)."
    )
    side: Literal["right", "left"] = Field("right", description="Singular vectors: right (the paper's) or left.")
    low: Share = Field(0.2, description="Upper bound of the old probability in the group `low`.")
    high: Share = Field(0.8, description="Lower bound of the old probability in the group `high`.")
    entropy: Share = Field(0.2, description="Share of tokens, by highest entropy, in the group `entropy`.")
    rows: Count = Field(256, description="Maximum number of completions in the gradients, sampled at random.")
    matrices: Count | None = Field(None, description="Maximum number of weight matrices to compare; null = all.")


def measure(inputs: AnalysisInput, options: DirectionsOptions) -> Frames:
    """Compare the update of ``options.method`` on a rollout at a policy with its parts and variants."""
    (config,) = replayed_configs([options.method])
    saved = inputs.find_rollout()
    length = saved.config.rollout.max_new_tokens
    method = config.with_max_length(length)
    run = score_rollout(saved, [method])
    step = MethodStep.of(method, run.scored)
    losses = {name: policy_config(name).with_max_length(length).policy_loss for name in VARIANTS}
    drawn = torch.zeros(len(saved.rows), 1, dtype=torch.bool)
    drawn[draw_rows(saved, options.rows)] = True
    groups = [
        *token_groups(step, run.scored, low=options.low, high=options.high, entropy=options.entropy),
        *clipping_variants(step, losses, run.scored),
    ]
    policy = load_policy(saved, saved.current)
    full = gradient(policy, saved.rows, torch.where(drawn, step.full_coefficients(), 0.0))
    reference = Reference(full, layer_matrices(policy.model, options.matrices), options.k, options.side)
    del full
    learned = int((step.learned & drawn).sum())
    rows, angles = list[Row](), list[Row]()
    # Groups at the old policy come last: it replaces the current one in memory.
    for group in groups:
        if group.at_old and saved.current != saved.old:
            policy = load_policy(saved, saved.old)
        tokens = int((group.members & drawn).sum())
        coefficients = torch.where(drawn, group.coefficients, 0.0)
        compared = reference.compare(gradient(policy, saved.rows, coefficients)) if tokens else None
        size, by_matrix = compared or (None, {})
        # Normalised by the number of tokens.
        per_token = None if size is None or group.kind == CLIPPING else size * learned / tokens
        key = {"group": group.name, "kind": group.kind}
        sizes = {"tokens": tokens, "norm": size, "own_norm": per_token, "angle": mean_angle(by_matrix)}
        rows.append({**key, "of": group.label, **sizes})
        angles += [{**key, "matrix": name, "k": reference.k[name], "angle": at} for name, at in by_matrix.items()]
    seed = stream_seed(saved.config.run.seed, "analysis-directions")
    summary = {
        **run.numbers,
        "method": method.name,
        "full_norm": reference.norm,
        "tokens": int(step.tokens.mask.sum()),
        "tokens_with_advantage": int(step.learned.sum()),
        "updates_since": saved.current.step - saved.sampled_after,
        "matrices": len(reference.k),
        "k": statistics.median(reference.k.values()) if reference.k else None,
        "angle_random": reference.random_angle(seed),
    }
    for row in rows:
        name = row["group"]
        summary |= {f"norm_{name}": row["norm"], f"angle_{name}": row["angle"]}
        if row["kind"] != CLIPPING:
            summary |= {f"share_{name}": divide(row["tokens"], learned), f"own_norm_{name}": row["own_norm"]}
    return make_frames(summary, _make_notes(run, step, rows, reference, options), groups=rows, angles=angles)


def headline(frames: Frames) -> str:
    summary = summary_of(frames)
    method = summary["method"]
    label = f"rollout {summary['rollout']} under the policy of step {summary['current_policy']}"
    if summary["norm_noclip"] is None:
        return f"The update of {method} on {label} is 0: no token has an advantage."
    comparisons = (
        f"{name}: {summary[f'norm_{group}']:,.1%} of its norm at {summary[f'angle_{group}']:.1f}\u00b0"
        for group, name in (
            ("low", "low-probability tokens"),
            ("high", "high-probability tokens"),
            ("noclip", "without clipping"),
        )
        if summary[f"norm_{group}"] is not None and summary[f"angle_{group}"] is not None
    )
    return f"Relative to the update of {method} on {label}: {'; '.join(comparisons)}."


def _make_notes(
    run: ScoredRun, step: MethodStep, rows: Sequence[Row], reference: Reference, options: DirectionsOptions
) -> Iterator[str]:
    yield from run.notes
    tokens = step.tokens
    if not bool(((tokens.log_probs != tokens.old_log_probs) & tokens.mask.bool()).any()):
        yield (
            "All ratios are 1: the current policy is the old one, so clipping has no effect. Use a later --step or an "
            "earlier --rollout."
        )
    if len(run.saved.rows) > options.rows:
        yield f"Gradients of {options.rows} of {len(run.saved.rows)} completions, sampled at random."
    empty = [row["of"] for row in rows if row["norm"] is None]
    if empty and len(empty) < len(rows):
        yield f"No gradient from: {', '.join(empty)}."
    full_rank = [name for name, k in reference.k.items() if k >= reference.width(name)]
    if full_rank:
        yield (
            f"In {len(full_rank)} of {len(reference.k)} matrices k is the full rank, so all angles are 0. Set a "
            "smaller k."
        )
    if len(step.method.passes.names) > 1:
        yield f"{step.method.name}: passes are summed at the current policy."


@dataclass(frozen=True)
class GradientGroup:
    """Coefficients of a gradient.

    Attributes:
        name: short, as in the summary. label: long. kind: ``TOKENS``, ``SIGNS`` or ``CLIPPING``.
        coefficients: (N, T) factors of grad log pi.
        members: (N, T) mask of the group's tokens with an advantage, including clipped ones.
        at_old: whether the gradient is taken at the sampling policy.
    """

    name: str
    kind: str
    label: str
    coefficients: Tensor
    members: Tensor
    at_old: bool = False


def token_groups(
    step: MethodStep, scored: ScoredTokens, *, low: float, high: float, entropy: float
) -> Iterator[GradientGroup]:
    """Yield parts of the full update, with its normaliser; the two signs add up to it.

    Args:
        low, high: bounds of the old probability. entropy: share of the rollout's tokens, under the sampling policy.
    """
    coefficients, old_probs, advantages = step.full_coefficients(), step.tokens.old_probs, step.tokens.advantages
    groups = (
        ("low", TOKENS, f"p < {low:g}", old_probs < low),
        ("high", TOKENS, f"p > {high:g}", old_probs > high),
        (
            "entropy",
            TOKENS,
            f"highest {entropy:.0%} of entropy",
            HighEntropy(share=entropy).select(scored.rollout),
        ),
        ("positive", SIGNS, "A > 0", advantages > 0),
        ("negative", SIGNS, "A < 0", advantages < 0),
    )
    for name, kind, label, chosen in groups:
        members = chosen & step.learned
        yield GradientGroup(name, kind, label, torch.where(members, coefficients, 0.0), members)


def clipping_variants(
    step: MethodStep, losses: Mapping[str, PolicyLoss], scored: ScoredTokens
) -> Iterator[GradientGroup]:
    """Yield the whole batch under ``losses``, without clipping (F = r), and on-policy (F = 1) at either policy."""

    def variant(
        name: str, label: str, loss: PolicyLoss, base_step: MethodStep = step, *, at_old: bool = False
    ) -> GradientGroup:
        other = dataclasses.replace(base_step, method=base_step.method.model_copy(update={"policy_loss": loss}))
        return GradientGroup(name, CLIPPING, label, other.full_coefficients(), step.learned, base_step is not step)

    yield variant("noclip", "no clipping", ImportanceSampling())
    for name, loss in losses.items():
        yield variant(name, name.upper(), loss)
    yield variant("onpolicy", "ratio 1", NoImportanceSampling())
    at_old = step.at(scored.old_log_probs, scored.rollout.entropies)
    yield variant("old", "old policy", NoImportanceSampling(), at_old)


def mean_angle(angles: Mapping[str, float]) -> float | None:
    """Return the mean over matrices; None if empty."""
    return math.fsum(angles.values()) / len(angles) if angles else None


class Reference:
    """Subspaces and norm of a gradient; the gradient itself is not stored.

    Args:
        gradient: parameter -> gradient.
        names: matrices to compare.
        k: directions of each; None for a 16th of its shorter side, 128 at most.
        side: ``right`` or ``left`` singular vectors.
    """

    def __init__(self, gradient: Mapping[str, Tensor], names: Sequence[str], k: int | None, side: str) -> None:
        self._side = side
        self._shapes = {name: gradient[name].shape for name in names}
        self.k = {name: _count_directions(shape, k) for name, shape in self._shapes.items()}
        self.norm = norm(gradient)
        self._bases = {name: top_directions(gradient[name], self.k[name], side) for name in names}

    def width(self, name: str) -> int:
        return self._shapes[name][1 if self._side == "right" else 0]

    def compare(self, gradient: Mapping[str, Tensor]) -> tuple[float, dict[str, float]] | None:
        """Return the relative norm of ``gradient`` and its mean principal angles to the reference, degrees.

        Matrices with a zero gradient have no angle; None if either gradient is 0.
        """
        size = norm(gradient)
        if not size or not self.norm:
            return None
        angles = self._angles(lambda name: top_directions(gradient[name], self.k[name], self._side))
        return size / self.norm, angles

    def random_angle(self, seed: int) -> float | None:
        """Return the mean angle to random subspaces, the baseline for unrelated updates."""
        generator = torch.Generator().manual_seed(seed)

        def draw_basis(name: str) -> Tensor:
            size = (self.width(name), self.k[name])
            return _orthonormalize(torch.randn(*size, generator=generator, dtype=torch.float64))

        return mean_angle(self._angles(draw_basis))

    def _angles(self, other: Callable[[str], Tensor]) -> dict[str, float]:
        by_matrix = {name: principal_angles(basis, other(name).to(basis.device)) for name, basis in self._bases.items()}
        return {name: float(angles.mean()) for name, angles in by_matrix.items() if angles.numel()}


def top_directions(matrix: Tensor, k: int, side: str) -> Tensor:
    """Return the (d, k') orthonormal float64 top singular vectors of an (m, n) ``matrix``, d = n (right) or m (left).

    k' < k for a matrix of lower rank.
    """
    oriented = matrix.detach().double() if side == "right" else matrix.detach().double().T
    is_wide = oriented.shape[1] > oriented.shape[0]
    # The smaller Gram matrix takes a tenth of the time of an SVD.
    values, vectors = torch.linalg.eigh(oriented @ oriented.T if is_wide else oriented.T @ oriented)
    values, vectors = values.flip(0)[:k].clamp(min=0).sqrt(), vectors.flip(1)[:, :k]
    nonzero = (values > _RANK * values[0]) & (values > 0)
    directions: Tensor = vectors[:, nonzero]
    return _orthonormalize(oriented.T @ directions / values[nonzero]) if is_wide else directions


def principal_angles(a: Tensor, b: Tensor) -> Tensor:
    """Return the (min(j, k),) ascending angles, degrees, between the spans of orthonormal (d, j) a and (d, k) b."""
    cosines: Tensor = torch.linalg.svdvals(a.T @ b)
    return cosines.clamp(0, 1).arccos().rad2deg()


def layer_matrices(model: Any, most: int | None) -> list[str]:
    """Return at most ``most`` names of linear layers' weights, evenly spaced, without the output head."""
    head = model.get_output_embeddings()
    named = [
        f"{name}.weight"
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and module is not head
    ]
    if most is None or len(named) <= most:
        return named
    return [named[(2 * index + 1) * len(named) // (2 * most)] for index in range(most)]


def _orthonormalize(columns: Tensor) -> Tensor:
    basis: Tensor = torch.linalg.qr(columns).Q
    return basis


def _count_directions(shape: torch.Size, k: int | None) -> int:
    shorter = min(shape)
    return min(PAPER_K, max(1, shorter // NARROWEST)) if k is None else min(k, shorter)


def plot(frames: Frames) -> alt.TopLevelMixin:
    groups = alt.Chart(frames["groups"]).encode(x=alt.X("group:N", sort=None, title=None), color="kind:N")
    norms = groups.mark_bar().encode(
        y=alt.Y("norm:Q", title="norm / full update", axis=alt.Axis(format="%"), scale=alt.Scale(type="symlog"))
    )
    angles = groups.mark_point(filled=True, size=60).encode(y=alt.Y("angle:Q", title="mean angle, degrees"))
    matrices = (
        alt.Chart(frames["angles"])
        .mark_line(point=True)
        .encode(
            x=alt.X("matrix:N", sort=None, title=None),
            y=alt.Y("angle:Q", title="angle, degrees"),
            color=alt.Color("group:N", sort=None),
        )
    )
    return alt.vconcat(alt.hconcat(norms, angles), matrices).properties(resolve={"scale": {"color": "independent"}})


ANALYSIS = Analysis(
    "angles between the updates of groups of tokens", "ACPO", DirectionsOptions, measure, plot, headline
)
