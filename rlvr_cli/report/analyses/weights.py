"""`rlvr analyze weights`: weights of real tokens on grad log pi and grad pi, and their bias, by region and method.

Imports no torch before the request is known to be good.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlvr_cli.config.analysis_kinds import WeightsOptions
from rlvr_cli.report.analyses.findings import Findings, Subject
from rlvr_cli.report.named_methods import replayed_configs

if TYPE_CHECKING:
    from torch import Tensor

    from rlvr_cli.analysis.saved_rollout import SavedRollout
    from rlvr_cli.analysis.weights import MethodWeights
    from rlvr_cli.methods.method import Method


def analyze(subject: Subject, options: WeightsOptions) -> Findings:
    """The weights of ``options.methods`` on the subject's rollout at its policy.

    Raises:
        UserError: an unknown method, or one that cannot be applied to a saved rollout; no such rollout or checkpoint.
    """
    configs = {config.name: config for config in replayed_configs(options.methods)}
    saved = subject.saved()

    from rlvr_cli.analysis.scoring import score
    from rlvr_cli.analysis.weights import by_old_prob, by_region, decay_of_ratios, method_weights
    from rlvr_cli.report.analyses import weights_words as words
    from rlvr_cli.report.analyses.weights_figure import weights_figure
    from rlvr_cli.report.analyses.weights_found import MethodFound, numbers_of

    length = saved.config.rollout.max_new_tokens
    methods = [config.bound(length) for config in configs.values()]
    # No weight has the KL term in it, and without one the model before training need not be run.
    plain = [method.model_copy(update={"kl": method.kl.replace(beta=0.0)}) for method in methods]
    run = score(saved, plain)
    weights = [
        method_weights(method, run.scored, eps_low=options.eps_low, eps_high=options.eps_high) for method in plain
    ]
    biases = _gradient_biases(saved, weights, options.rows) if options.gradients else [None] * len(methods)
    gamma = decay_of_ratios(weights[0].ratio[weights[0].region("LN")], 1 - options.eps_low)
    found = [
        MethodFound(
            method,
            of,
            tuple(by_region(of)),
            tuple(by_old_prob(of)),
            bias,
            _limits(method, of, gamma, 1 - options.eps_low),
        )
        for method, of, bias in zip(methods, weights, biases, strict=True)
    ]
    numbers = numbers_of(saved, run, found, gamma)
    return Findings(
        headline=words.headline(numbers["summary"], saved, found),
        numbers=numbers,
        tables=(words.region_table(found), words.limit_table(found)),
        reading=words.READING,
        draw=lambda: weights_figure(found, run.scored, options.eps_low, options.eps_high),
        notes=tuple(words.notes(saved, run, found, options)),
    )


def _gradient_biases(
    saved: SavedRollout, weights: Sequence[MethodWeights], most: int
) -> list[dict[str, float | None] | None]:
    from rlvr_cli.analysis.drawn_rows import drawn_rows
    from rlvr_cli.analysis.loaded_policy import load_policy
    from rlvr_cli.analysis.policy_gradient import gradient, norm
    from rlvr_cli.analysis.weight_gradients import Norms, gradient_bias

    policy = load_policy(saved, saved.current)
    chosen = drawn_rows(saved, most)

    def norm_of(coefficients: Tensor) -> float:
        kept = coefficients.new_zeros(coefficients.shape)
        kept[chosen] = coefficients[chosen]
        return norm(gradient(policy, saved.rows, kept))

    norms = Norms(norm_of)
    return [gradient_bias(of, norms) for of in weights]


def _limits(method: Method, weights: MethodWeights, gamma: float | None, lowest: float) -> dict[str, float | None]:
    from rlvr_cli.analysis.weights import median_old_prob
    from rlvr_cli.report.weight_limits import far_slope, left_bias

    old_prob = median_old_prob(weights, ["LN"])
    return {
        "slope_LN": far_slope(method, "LN"),
        "slope_HP": far_slope(method, "HP"),
        "bias_LN": None if gamma is None or old_prob is None else left_bias(method, gamma, lowest, old_prob),
    }
