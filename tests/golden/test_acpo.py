"""ACPO: bins, spread, bounds, loss and gradient."""

from __future__ import annotations

from rlvr_cli.methods.acpo import ACPO
from tests.golden.cases import Case, golden
from tests.golden.objective import compare_objective, method


@golden("acpo")
def test_acpo(case: Case) -> None:
    params, tokens = case.params, case.tokens()
    weight = ACPO(
        alpha=params["alpha"], eps_b=params["eps_b"], bins=params["num_bins"], edges=params["bins"], bound="per_bin"
    )
    assert (params["min_count"], params["dual_clip_c"]) == (2, None)

    edges, count, sigma = weight.bin_tokens(tokens)
    statistics = weight.statistics(tokens)
    case.compare("bin_edges", edges)
    bins = case.take("bins")
    for name, ours in (("count", count), ("sigma", sigma), ("eps", statistics[1, : weight.bins])):
        case.pending[name] = [each[name] for each in bins]
        case.compare(name, ours)
    where = weight.regions(tokens, statistics)
    assert case.take("clip_counts") == {"low_neg": int(where.LN.sum()), "high_pos": int(where.HP.sum())}
    compare_objective(case, method(params, weight), tokens)
