"""`rlvr analyze directions`: norms of, and angles between, the updates of groups of tokens and ways of clipping.

ACPO paper ("What are key factors for updates in RL for LLM reasoning?"), section 3.1: the subspace of a gradient matrix
W = U S V^T is spanned by its top k singular vectors; with orthonormal bases Q_A, Q_B of two of them the principal
angles are (equation 7)

    theta_i = arccos(s_i),    s_i the singular values of Q_A^T Q_B, clamped to [0, 1].

Parts and variants of the update (appendix D, figure 4): tokens by probability and entropy, advantages by sign, and the
same off-policy batch under other ways of clipping.
"""

from __future__ import annotations

import dataclasses
import math
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from rlvr_cli.analyses.base import AnalysisInput, Findings, Share, analysis
from rlvr_cli.analyses.gradients import gradient, norm
from rlvr_cli.analyses.method_step import MethodStep, ScoredTokens
from rlvr_cli.analyses.saved_rollout import SavedRollout, drawn_rows
from rlvr_cli.analyses.scoring import ScoredRun, load_policy, score_rollout
from rlvr_cli.charts.figure import COLOURS
from rlvr_cli.core.lazy import Tensor, torch
from rlvr_cli.core.section import Count, Section, Text
from rlvr_cli.core.streams import stream_seed
from rlvr_cli.core.table import Table
from rlvr_cli.describe.named import policy_config, replayed_configs
from rlvr_cli.methods.base import PolicyLoss
from rlvr_cli.methods.high_entropy import HighEntropy
from rlvr_cli.methods.method import Method
from rlvr_cli.methods.unclipped import ImportanceSampling, NoImportanceSampling

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Methods whose policy loss is put in place of the full update's.
VARIANTS = ("cispo", "dapo", "acpo")
READING = (
    "Upper row: norm of each gradient relative to the full update's, in percent; above each bar the mean principal "
    "angle to it. 0 degrees: the same dominant directions in every weight matrix; the dashed line below is what "
    "subspaces drawn at random have. Lower row: the angle matrix by matrix, from the first layer to the last, in the "
    "colours of the bars. Parts of the update (left, middle) keep its divisor, so that they add up; hollow marks are "
    "the norms if each is divided by its own number of tokens. The paper (figure 4) has tokens below 0.2 largest and "
    "best aligned (409%, 27.8 degrees), negative advantages better aligned than positive ones (28.0 against 40.5), and "
    "norms that explode without clipping (20,177%) and with CISPO (3,268%) but hardly change on policy (98%, at 47.4 "
    "degrees)."
)
TOKENS, SIGNS, CLIPPING = "tokens", "sign of the advantage", "clipping"
# The paper's k is 128, a 16th of the width of the smaller of its two models.
PAPER_K = 128
NARROWEST = 16
# Singular values below this share of the largest are rounding of float32 gradients and have no direction.
_RANK = 1e-6
_FULL: dict[str, Any] = {"color": "#7F7F7F", "linewidth": 0.9, "linestyle": (0, (4, 3)), "zorder": 0.9}
_LAYER = re.compile(r"\.(\d+)\.")


class DirectionsOptions(Section):
    """Keys of `rlvr analyze directions`."""

    method: Text = Field("grpo", description="The full update, which all others are compared with.")
    k: Count | None = Field(
        None, description="Directions of a matrix; null = a 16th of its shorter side, 128 (the paper's) at most."
    )
    side: Literal["right", "left"] = Field("right", description="Singular vectors: right (the paper's) or left.")
    low: Share = Field(0.2, description="Old probability below which a token is in the group `low`.")
    high: Share = Field(0.8, description="Old probability above which a token is in the group `high`.")
    entropy: Share = Field(0.2, description="Share of the tokens, those of highest entropy, in the group `entropy`.")
    rows: Count = Field(256, description="Completions in the gradients; of more, as many are drawn at random.")
    matrices: Count | None = Field(None, description="Most weight matrices to take angles of; null = all.")


@analysis("angles between the updates of groups of tokens", paper="ACPO", options=DirectionsOptions)
def directions(subject: AnalysisInput, options: DirectionsOptions) -> Findings:
    """The update of ``options.method`` on the subject's rollout at its policy, against parts and variants of it.

    Raises:
        UserError: an unknown method, or one that cannot be applied to a saved rollout; no such rollout or checkpoint.
    """
    (config,) = replayed_configs([options.method])
    saved = subject.saved()

    length = saved.config.rollout.max_new_tokens
    method = config.bound(length)
    run = score_rollout(saved, [method])
    step = MethodStep.of(method, run.scored)
    losses = {name: policy_config(name).bound(length).policy_loss for name in VARIANTS}
    kept = torch.zeros(len(saved.rows), 1, dtype=torch.bool)
    kept[drawn_rows(saved, options.rows)] = True
    every = [
        *token_groups(step, run.scored, low=options.low, high=options.high, entropy=options.entropy),
        *clipping_variants(step, losses, run.scored),
    ]
    full = torch.where(kept, step.full_coefficients(), 0.0)
    found = _compare(saved, full, [group.of_rows(kept) for group in every], options)
    numbers = _numbers(run, step, found)
    return Findings(
        headline=_headline(numbers["summary"], run.place, method.name),
        numbers=numbers,
        tables=(group_table(found),),
        reading=READING,
        draw=lambda: directions_figure(found),
        notes=tuple(_notes(run, step, found, options)),
    )


def _compare(
    saved: SavedRollout, full: Tensor, groups: Sequence[GradientGroup], options: DirectionsOptions
) -> GradientDirections:
    """One gradient of a whole model is held at a time."""
    policy = load_policy(saved, saved.current)
    names = layer_matrices(policy.model, options.matrices)
    reference = Reference(gradient(policy, saved.rows, full), names, options.k, options.side)
    compared: list[Compared | None] = []
    # The groups at the old policy come last: it takes the place of the current one in memory.
    for group in groups:
        if group.at_old and saved.current != saved.old:
            policy = load_policy(saved, saved.old)
        compared.append(reference.compare(gradient(policy, saved.rows, group.coefficients)) if group.tokens else None)
    seed = stream_seed(saved.config.run.seed, "analysis-directions")
    return GradientDirections(tuple(zip(groups, compared, strict=True)), reference, reference.random_angle(seed))


@dataclass(frozen=True)
class GradientDirections:
    """Each group with its comparison (None where a gradient is 0), the full update, and the angle of no relation."""

    groups: tuple[tuple[GradientGroup, Compared | None], ...]
    reference: Reference
    random_angle: float | None

    @property
    def learned(self) -> int:
        """How many tokens of the completions looked at have an advantage: all that a way of clipping is about."""
        return next(group.tokens for group, _ in self.groups if group.kind == CLIPPING)


def own_norm(group: GradientGroup, compared: Compared, learned: int) -> float | None:
    """The norm relative to the full update's if either is divided by its own number of tokens; for parts of it."""
    return None if group.kind == CLIPPING else compared.norm * learned / group.tokens


def _numbers(run: ScoredRun, step: MethodStep, found: GradientDirections) -> dict[str, Any]:
    """All that was computed."""
    return {
        **run.numbers,
        "method": step.method.name,
        "full_norm": found.reference.norm,
        "k": found.reference.k,
        "groups": {
            group.name: {
                "kind": group.kind,
                "what": group.what,
                "tokens": group.tokens,
                "norm": compared.norm if compared else None,
                "angles": compared.angles if compared else {},
            }
            for group, compared in found.groups
        },
        "summary": dict(_summary(run, step, found)),
    }


def _summary(run: ScoredRun, step: MethodStep, found: GradientDirections) -> Iterator[tuple[str, float | int | None]]:
    tokens = step.tokens
    yield "tokens", int(tokens.mask.sum())
    yield "tokens_with_advantage", int((tokens.mask.bool() & (tokens.advantages != 0)).sum())
    yield "updates_since", run.saved.current.step - run.saved.sampled_after
    yield "matrices", len(found.reference.k)
    yield "k", statistics.median(found.reference.k.values()) if found.reference.k else None
    yield "angle_random", found.random_angle
    for group, compared in found.groups:
        yield f"norm_{group.name}", compared.norm if compared else None
        yield f"angle_{group.name}", compared.angle if compared else None
        if group.kind != CLIPPING:
            yield f"share_{group.name}", group.tokens / found.learned if found.learned else None
            yield f"own_norm_{group.name}", own_norm(group, compared, found.learned) if compared else None


def _headline(summary: Mapping[str, Any], where: str, method: str) -> str:
    """One sentence; ``where`` the tokens are from."""
    if summary["norm_noclip"] is None:
        return f"The update of {method} on {where} is 0: no token has an advantage, so nothing has a direction."
    parts = (
        f"{what}: {_percent(summary[f'norm_{name}'])} of its norm at {_degrees(summary[f'angle_{name}'])}"
        for name, what in (("low", "unlikely tokens"), ("high", "likely ones"), ("noclip", "no clipping"))
        if summary[f"norm_{name}"] is not None
    )
    return f"Against the update of {method} on {where}; {'; '.join(parts)}."


def group_table(found: GradientDirections) -> Table:
    """A row each group."""
    rows = [
        (
            group.name,
            group.what,
            f"{group.tokens:,}",
            _percent(compared.norm if compared else None),
            _percent(own_norm(group, compared, found.learned) if compared else None),
            _degrees(compared.angle if compared else None),
        )
        for group, compared in found.groups
    ]
    rows.append(("random", "subspaces drawn at random", "", "", "", _degrees(found.random_angle)))
    header = ("group", "what", "tokens", "norm", "norm, own divisor", "mean angle")
    return Table("Against the full update", header, rows)


def _notes(run: ScoredRun, step: MethodStep, found: GradientDirections, options: DirectionsOptions) -> Iterator[str]:
    """What weakens the numbers."""
    yield from run.notes
    tokens = step.tokens
    if not bool(((tokens.log_probs != tokens.old_log_probs) & tokens.mask.bool()).any()):
        yield (
            "Every ratio is 1: the current policy is the old one, so all ways of clipping give the same update. Choose "
            "a later --step or an earlier --rollout."
        )
    if len(run.saved.rows) > options.rows:
        yield f"Gradients of {options.rows} of {len(run.saved.rows)} completions, drawn at random."
    empty = [group.what for group, compared in found.groups if compared is None]
    if empty and len(empty) < len(found.groups):
        yield f"No gradient from: {', '.join(empty)}."
    full_rank = [name for name, k in found.reference.k.items() if k >= found.reference.width(name)]
    if full_rank:
        yield (
            f"In {len(full_rank)} of {len(found.reference.k)} matrices k directions are all there are: every angle is "
            "0 there. Choose a smaller k."
        )
    if len(step.method.passes.names) > 1:
        yield f"{step.method.name}: the passes are added up at the current policy."


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1%}"


def _degrees(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}\u00b0"


@dataclass(frozen=True)
class GradientGroup:
    """Coefficients to take the gradient with.

    Attributes:
        name: short, as in the summary numbers.
        kind: ``TOKENS``, ``SIGNS`` or ``CLIPPING``.
        what: for people.
        coefficients: (N, T) what multiplies grad log pi.
        members: (N, T) the tokens that have a part: those with an advantage, clipped ones too.
        at_old: whether the gradient is that of the policy that sampled.
    """

    name: str
    kind: str
    what: str
    coefficients: Tensor
    members: Tensor
    at_old: bool = False

    @property
    def tokens(self) -> int:
        """How many have a part."""
        return int(self.members.sum())

    def of_rows(self, kept: Tensor) -> GradientGroup:
        """What some of the rows, ``kept`` (N, 1), have of it."""
        coefficients = torch.where(kept, self.coefficients, 0.0)
        return dataclasses.replace(self, coefficients=coefficients, members=self.members & kept)


def token_groups(
    step: MethodStep, scored: ScoredTokens, *, low: float, high: float, entropy: float
) -> Iterator[GradientGroup]:
    """Parts of the whole update, with its divisor: the two signs add up to it.

    Args:
        low, high: bounds of the old probability. entropy: share of the rollout's tokens, under the policy that sampled.
    """
    whole, old_probs = step.full_coefficients(), step.tokens.old_probs
    advantages = step.tokens.advantages.expand_as(whole)
    learned = step.tokens.mask.bool() & (advantages != 0)
    parts = (
        ("low", TOKENS, f"p < {low:g}", old_probs < low),
        ("high", TOKENS, f"p > {high:g}", old_probs > high),
        ("entropy", TOKENS, f"highest {entropy:.0%} of entropy", HighEntropy(share=entropy).kept(scored.rollout)),
        ("positive", SIGNS, "A > 0", advantages > 0),
        ("negative", SIGNS, "A < 0", advantages < 0),
    )
    for name, kind, what, chosen in parts:
        part = torch.where(chosen & learned, whole, 0.0)
        yield GradientGroup(name, kind, what, part, chosen & learned)


def clipping_variants(
    step: MethodStep, losses: Mapping[str, PolicyLoss], scored: ScoredTokens
) -> Iterator[GradientGroup]:
    """The whole batch with another policy loss in place of the method's.

    Args:
        losses: name -> policy loss, next to those without settings: no clipping (F = r), and F = 1 at the current
            policy and at the old one, which is the update that is made on policy.
    """
    learned = step.tokens.mask.bool() & (step.tokens.advantages != 0)

    def variant(loss: PolicyLoss, of: MethodStep = step) -> Tensor:
        return dataclasses.replace(of, method=with_policy_loss(of.method, loss)).full_coefficients()

    at_old = step.at(scored.old_log_probs, scored.rollout.entropies)
    yield GradientGroup("noclip", CLIPPING, "no clipping", variant(ImportanceSampling()), learned)
    for name, loss in losses.items():
        yield GradientGroup(name, CLIPPING, name.upper(), variant(loss), learned)
    yield GradientGroup("onpolicy", CLIPPING, "ratio 1", variant(NoImportanceSampling()), learned)
    yield GradientGroup("old", CLIPPING, "old policy", variant(NoImportanceSampling(), at_old), learned, at_old=True)


def with_policy_loss(method: Method, policy_loss: PolicyLoss) -> Method:
    """``method`` with another policy loss; all else is as it was."""
    return method.model_copy(update={"policy_loss": policy_loss})


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


def directions_figure(found: GradientDirections) -> Figure:
    """A column each for tokens, signs and clipping. Must be called inside ``charts.figure.style()``."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12.0, 6.8), layout="constrained")
    grid = figure.subplots(2, 3, sharey="row", width_ratios=(3, 2, 5))
    for column, kind in enumerate((TOKENS, SIGNS, CLIPPING)):
        _draw_norms(grid[0, column], found, kind)
        _draw_angles(grid[1, column], found, kind)
    grid[0, 0].set_ylabel("norm, % of the full update's")
    grid[1, 0].set_ylabel("mean principal angle to the full update, degrees")
    return figure


def _draw_norms(axes: Any, found: GradientDirections, kind: str) -> None:
    groups = [(group, compared) for group, compared in found.groups if group.kind == kind]
    for place, (group, compared) in enumerate(groups):
        if compared is None:
            continue
        axes.bar(place, 100 * compared.norm, 0.7, color=COLOURS[place])
        own = own_norm(group, compared, found.learned)
        tallest = max(compared.norm, own or 0.0)
        if own is not None:
            axes.plot(place, 100 * own, "o", markerfacecolor="none", markeredgecolor=COLOURS[place], markersize=6)
        if compared.angle is not None:
            axes.annotate(
                f"{compared.angle:.1f}\u00b0",
                (place, 100 * tallest),
                xytext=(0, 5),
                textcoords="offset points",
                ha="center",
                fontsize=8,
            )
    axes.axhline(100, **_FULL)
    if any(compared is not None for _, compared in groups):
        axes.set_yscale("log")
    axes.margins(y=0.15)
    axes.set_xticks(range(len(groups)), [group.what.replace(" of ", "\nof ") for group, _ in groups], fontsize=8)
    axes.grid(axis="x", visible=False)
    axes.set_title(kind)


def _draw_angles(axes: Any, found: GradientDirections, kind: str) -> None:
    names = list(found.reference.k)
    groups = [(group, compared) for group, compared in found.groups if group.kind == kind]
    for place, (_, compared) in enumerate(groups):
        if compared is not None and compared.angles:
            at = [names.index(name) for name in compared.angles]
            axes.plot(at, list(compared.angles.values()), "o-", markersize=3, color=COLOURS[place])
    if found.random_angle is not None:
        axes.axhline(found.random_angle, **_FULL)
    firsts: dict[str, int] = {}
    for index, name in enumerate(names):
        layer = _LAYER.search(name)
        firsts.setdefault(layer[1] if layer else name, index)
    # So many layers as can be read.
    every = max(1, len(firsts) // 8)
    axes.set_xticks(list(firsts.values())[::every], list(firsts)[::every])
    axes.set_xlabel("layer, its matrices in their order")
    axes.set_ylim(0, 92)
