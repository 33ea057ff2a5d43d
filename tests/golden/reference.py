"""The project's own golden numbers: each method's published formula in plain Python loops, from seeded cases.

It shares nothing with `rlvr_cli`: no tensors, no autograd, gradients in closed form. Files have the format that
`cases.py` reads. `python -m tests.golden.reference` writes them into `tests/golden/numbers`; a test compares those with
what this file computes.
"""

# ruff: noqa: B023 - closures over a loop's variables are called within their round
from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "numbers"
T = 7
Grid = list[list[float]]
Named = dict[str, Any]
# What one token adds to the loss and its derivative by the token's log-prob, given row, position and advantage.
Term = Callable[[int, int, float], tuple[float, float]]


# Cases


def batch(seed: int, *, spread: float = 0.4, masked_row: bool = False, extreme: bool = False, **wanted: bool) -> Named:
    """Nine rows of three prompts in mixed order, the last prompt's rewards equal; a row of one token, one of ``T``."""
    draw = random.Random(seed)
    lengths = [1, T, *(draw.randint(2, T) for _ in range(7))]
    if masked_row:
        lengths[4] = 0
    groups = [0, 1, 2, 1, 0, 2, 0, 2, 1]
    found: Named = {
        "mask": [[float(t < n) for t in range(T)] for n in lengths],
        "rewards": [0.5 if group == 2 else draw.choice([1.0, 0.0, -1.0, 0.25]) for group in groups],
        "group_ids": groups,
    }
    # Both signs in each of the first two prompts, whatever was drawn.
    found["rewards"][0], found["rewards"][6], found["rewards"][1], found["rewards"][3] = 1.0, -1.0, 1.0, 0.0
    old = [[round(math.log(draw.uniform(0.03, 0.99)), 6) for _ in range(T)] for _ in range(9)]
    now = [[round(min(x + draw.gauss(0, spread), -1e-4), 6) for x in row] for row in old]
    if extreme:
        for row in (1, 3):  # a right and a wrong row
            old[row][0], now[row][0] = -7.0, -1.5
            old[row][1], now[row][1] = -0.4, -7.0
    ref = [[round(x + draw.gauss(0, 0.4), 6) for x in row] for row in old]
    later = [[round(min(x + draw.gauss(0, 0.3), -1e-4), 6) for x in row] for row in now]
    entropies = [[round(draw.uniform(0.0, 2.5), 6) for _ in range(T)] for _ in range(9)]
    grids = {"log_probs": now, "old_log_probs": old}
    grids |= {
        name: grid
        for name, grid in (("ref_log_probs", ref), ("later", later), ("entropies", entropies))
        if wanted.get(name)
    }
    return found | {name: times(grid, found["mask"]) for name, grid in grids.items()}


def times(grid: Grid, mask: Grid) -> Grid:
    return [[x * m for x, m in zip(*rows, strict=True)] for rows in zip(grid, mask, strict=True)]


def places(of: Named) -> list[tuple[int, int]]:
    """Rows and positions of the valid tokens."""
    return [(i, t) for i, row in enumerate(of["mask"]) for t, m in enumerate(row) if m]


def grid(of: Named, value: Callable[[int, int], float]) -> Grid:
    """A value for each valid token, 0 on padding."""
    valid = set(places(of))
    return [[value(i, t) if (i, t) in valid else 0.0 for t in range(len(row))] for i, row in enumerate(of["mask"])]


def mean(values: Iterable[float]) -> float:
    values = list(values)
    return math.fsum(values) / len(values)


def deviation(values: list[float], ddof: int) -> float:
    middle = mean(values)
    return math.sqrt(math.fsum((v - middle) ** 2 for v in values) / (len(values) - ddof))


# Advantages


def of_groups(rewards: list[float], groups: list[int], *, std: bool) -> list[float]:
    result = []
    for reward, group in zip(rewards, groups, strict=True):
        members = [r for r, g in zip(rewards, groups, strict=True) if g == group]
        centred = reward - mean(members)
        result.append(centred / (deviation(members, 1) + 1e-6) if std else centred)
    return result


def spread_out(of: Named, rows: list[float]) -> Grid:
    return grid(of, lambda i, t: rows[i])


def with_advantages(of: Named, *, std: bool = True) -> Named:
    return of | {"advantages": spread_out(of, of_groups(of["rewards"], of["group_ids"], std=std))}


def whitened(of: Named, values: Grid) -> Grid:
    every = [values[i][t] for i, t in places(of)]
    middle, variance = mean(every), deviation(every, 1) ** 2
    return grid(of, lambda i, t: (values[i][t] - middle) / math.sqrt(variance + 1e-8))


def returns(of: Named, rewards: Grid, gamma: float) -> Grid:
    length = [int(sum(row)) for row in of["mask"]]
    return grid(of, lambda i, t: math.fsum(gamma ** (s - t) * rewards[i][s] for s in range(t, length[i])))


def on_last(of: Named, rewards: list[float]) -> Grid:
    return grid(of, lambda i, t: rewards[i] if t == int(sum(of["mask"][i])) - 1 else 0.0)


# Aggregation


def normaliser(of: Named, params: Named) -> Grid:
    """What each token's term is multiplied by before all are added."""
    kind, rows = params["aggregation"], len(of["mask"])
    if kind.startswith("token-mean"):
        return grid(of, lambda i, t: 1 / len(places(of)))
    if kind == "seq-mean-token-mean":
        counted = rows if params.get("masked_rows_in_seq_mean") == "counted as zero" else sum(map(any, of["mask"]))
        return grid(of, lambda i, t: 1 / counted / sum(of["mask"][i]))
    return grid(of, lambda i, t: 1 / (rows * params["max_len"]))


# Token weights


def clipped(ratio: float, advantage: float, low: float, high: float, limit: float | None) -> tuple[float, float]:
    """Value and derivative of the clipped surrogate as a loss; ``limit`` is the dual clip's."""
    if advantage > 0:
        return (-advantage * (1 + high), 0.0) if ratio > 1 + high else (-advantage * ratio, -advantage * ratio)
    if limit is not None and ratio > limit:
        return -advantage * limit, 0.0
    return (-advantage * (1 - low), 0.0) if ratio < 1 - low else (-advantage * ratio, -advantage * ratio)


def ratio(of: Named, i: int, t: int) -> float:
    return math.exp(of["log_probs"][i][t] - of["old_log_probs"][i][t])


def clip_term(of: Named, params: Named) -> Term:
    bounds = params["eps_low"], params["eps_high"], params.get("dual_clip_c")
    return lambda i, t, a: clipped(ratio(of, i, t), a, *bounds)


def soft_term(of: Named, params: Named, outside: Callable[[float, str], float]) -> Term:
    """GPPO and kin: weight ``outside(ratio, side)`` beyond the bounds, the ratio within; value -A F, gradient -A F."""

    def term(i: int, t: int, a: float) -> tuple[float, float]:
        r, limit = ratio(of, i, t), params.get("dual_clip_c")
        if limit is not None and a < 0 and r > limit:
            return -a * limit, 0.0
        where = region(r, a, params["eps_low"], params["eps_high"])
        weight = outside(r, where) if where in ("LN", "HP") else r
        return -a * weight, -a * weight

    return term


def cispo_term(of: Named, params: Named) -> Term:
    def term(i: int, t: int, a: float) -> tuple[float, float]:
        r = ratio(of, i, t)
        if "max_ratio" in params:
            weight = min(r, params["max_ratio"])
        else:
            weight = min(max(r, 1 - params["eps_low"]), 1 + params["eps_high"])
        return -a * weight * of["log_probs"][i][t], -a * weight

    return term


def region(r: float, a: float, low: float, high: float) -> str:
    if r < 1 - low and a:
        return "LN" if a < 0 else "LP"
    if r > 1 + high and a:
        return "HP" if a > 0 else "HN"
    return "M"


def share(hits: list[bool]) -> float | None:
    return sum(hits) / len(hits) if hits else None


def figures(of: Named, params: Named) -> Named:
    low, high = params["eps_low"], params["eps_high"]
    where = [region(ratio(of, i, t), of["advantages"][i][t], low, high) for i, t in places(of)]
    limit = params.get("dual_clip_c")
    dual = [limit is not None and of["advantages"][i][t] < 0 and ratio(of, i, t) > limit for i, t in places(of)]
    return {
        "region_counts": {name: where.count(name) for name in ("LN", "HP", "LP", "HN", "M")} | {"valid": len(where)},
        "clip_fraction": share([name in ("LN", "HP") for name in where]),
        "dual_clip_fraction": share(dual),
        "approx_kl_k1": mean(of["old_log_probs"][i][t] - of["log_probs"][i][t] for i, t in places(of)),
    }


def objective(of: Named, params: Named, term: Term, *, every: Grid | None = None, only: Grid | None = None) -> Named:
    """Loss and gradient with the KL term; tokens outside ``only`` add nothing but are counted."""
    each = normaliser(of, params) if every is None else every
    loss = kl_mean = 0.0
    gradient = [[0.0] * len(row) for row in of["mask"]]
    beta = params.get("kl_coef", 0.0)
    for i, t in places(of):
        if only is not None and not only[i][t]:
            continue
        value, slope = term(i, t, of["advantages"][i][t])
        loss += each[i][t] * value
        gradient[i][t] += each[i][t] * slope
        if "ref_log_probs" in of:
            inner, outer = params.get("kl_log_ratio_clamp") or math.inf, params.get("kl_value_clamp") or math.inf
            d = of["ref_log_probs"][i][t] - of["log_probs"][i][t]
            k = math.exp(min(max(d, -inner), inner)) - min(max(d, -inner), inner) - 1
            kl_mean += each[i][t] * min(k, outer)
            gradient[i][t] += beta * each[i][t] * (1 - math.exp(d)) * (abs(d) <= inner and k <= outer)
    return {"loss": loss + beta * kl_mean, "policy_loss": loss, "kl_mean": kl_mean, "grad_log_probs": gradient}


def case(name: str, params: Named, inputs: Named, expected: Named) -> Named:
    return {"name": name, "params": params, "inputs": inputs, "expected": expected}


def one_pass(name: str, params: Named, of: Named, term: Callable[[Named, Named], Term], **further: Any) -> Named:
    found = objective(of, params, term(of, params))
    keys = ("loss", "grad_log_probs", *(("kl_mean",) if params.get("kl_coef") else ()))
    return case(name, params, of, {key: found[key] for key in keys} | figures(of, params) | further)


def batches(seed: int, *, std: bool = True, **wanted: bool) -> dict[str, Named]:
    """Small and large moves of the policy, ratios of hundreds, a row without tokens."""
    return {
        "near": with_advantages(batch(seed, spread=0.1, **wanted), std=std),
        "wide": with_advantages(batch(seed + 1, spread=0.7, **wanted), std=std),
        "extreme": with_advantages(batch(seed + 2, extreme=True, **wanted), std=std),
        "masked_row": with_advantages(batch(seed + 3, masked_row=True, **wanted), std=std),
    }


# Files

TOKEN_MEAN = {"aggregation": "token-mean"}
ROW_MEAN = {"aggregation": "seq-mean-token-mean", "masked_rows_in_seq_mean": "excluded"}


def grpo() -> list[Named]:
    bounds = {"eps_low": 0.2, "eps_high": 0.2}
    found = []
    for name, of in batches(100).items():
        found.append(one_pass(f"{name}/token-mean", {**bounds, "dual_clip_c": None, **TOKEN_MEAN}, of, clip_term))
        found.append(one_pass(f"{name}/row-mean", {**bounds, "dual_clip_c": 3.0, **ROW_MEAN}, of, clip_term))
    counted = {**ROW_MEAN, "masked_rows_in_seq_mean": "counted as zero"}
    found.append(one_pass("masked_row/counted", {**bounds, "dual_clip_c": 3.0, **counted}, of, clip_term))
    kl = {"kl_coef": 0.3, "kl_log_ratio_clamp": 5.0, "kl_value_clamp": 10.0}
    for name, of in batches(110, ref_log_probs=True).items():
        found.append(one_pass(f"{name}/kl", {**bounds, "dual_clip_c": 10.0, **TOKEN_MEAN, **kl}, of, clip_term))
    on_policy = batches(120)["near"]
    on_policy["log_probs"] = on_policy["old_log_probs"]
    return [*found, one_pass("on_policy", {**bounds, "dual_clip_c": 3.0, **TOKEN_MEAN}, on_policy, clip_term)]


def dapo() -> list[Named]:
    params = {"eps_low": 0.2, "eps_high": 0.28, "dual_clip_c": 10.0, **TOKEN_MEAN}
    return [one_pass(name, params, of, clip_term) for name, of in batches(200).items()]


def dr_grpo() -> list[Named]:
    params = {"eps_low": 0.2, "eps_high": 0.2, "dual_clip_c": None, "adv_std_norm": False, "max_len": 12}
    params["aggregation"] = "sum over tokens / (rows * max_len)"
    return [one_pass(name, params, of, clip_term) for name, of in batches(300, std=False).items()]


def gspo() -> list[Named]:
    params = {"eps_low": 3e-4, "eps_high": 4e-4, "log_seq_ratio_max": 10.0, **ROW_MEAN}
    found = []
    for name, of in batches(400).items():
        length = [sum(row) for row in of["mask"]]

        def sequence(i: int, of: Named = of, length: list[float] = length) -> float:
            moved = math.fsum(x - o for x, o in zip(of["log_probs"][i], of["old_log_probs"][i], strict=True))
            return math.exp(min(moved / length[i], 10.0))

        bounds = params["eps_low"], params["eps_high"]
        loss = objective(of, params, lambda i, t, a: clipped(sequence(i), a, *bounds, None))
        outside = [region(sequence(i), of["advantages"][i][t], *bounds) in ("LN", "HP") for i, t in places(of)]
        expected = {key: loss[key] for key in ("loss", "grad_log_probs")} | {"clip_fraction": share(outside)}
        found.append(case(name, params, of, expected))
    return found


def cispo() -> list[Named]:
    found = []
    for name, of in batches(500).items():
        params = {"eps_low": 0.2, "eps_high": 0.3, **TOKEN_MEAN}
        outside = [not 0.8 <= ratio(of, i, t) <= 1.3 for i, t in places(of)]
        found.append(one_pass(name, params, of, cispo_term, clip_fraction=share(outside)))
        params = {"max_ratio": 2.0, **TOKEN_MEAN}
        loss = objective(of, params, cispo_term(of, params))
        found.append(case(f"{name}/cap", params, of, {key: loss[key] for key in ("loss", "grad_log_probs")}))
    return found


def gppo_kin(seed: int, *betas: tuple[float, float]) -> list[Named]:
    found = []
    for name, of in batches(seed).items():
        for (one, two), limit in ((pair, limit) for pair in betas for limit in (None, 10.0)):
            params = {"eps_low": 0.2, "eps_high": 0.28, "beta1": one, "beta2": two, "dual_clip_c": limit, **TOKEN_MEAN}

            def term(of: Named, params: Named, one: float = one, two: float = two) -> Term:
                sides = {"LN": one * (1 - params["eps_low"]), "HP": two * (1 + params["eps_high"])}
                return soft_term(of, params, lambda r, side: sides[side])

            found.append(one_pass(f"{name}/{one},{two},{limit}", params, of, term))
    return found


def dgpo() -> list[Named]:
    found = []
    for name, of in batches(700).items():
        for n, m in ((1, 2), (2, 2), (1, 4)):
            params = {"eps_low": 0.2, "eps_high": 0.2, "n": n, "m": m, "dual_clip_c": None, **TOKEN_MEAN}

            def term(of: Named, params: Named, n: int = n, m: int = m) -> Term:
                def outside(r: float, side: str) -> float:
                    return r ** (n + 1) / 0.8**n if side == "LN" else 1.2 ** (1 / m) * r ** (1 - 1 / m)

                return soft_term(of, params, outside)

            high = share([ratio(of, i, t) > 3 and of["advantages"][i][t] < 0 for i, t in places(of)])
            found.append(one_pass(f"{name}/{n},{m}", params, of, term, ratio_gt_3_and_negative_fraction=high))
    return found


def aspo() -> list[Named]:
    found = []
    for wide in (0.2, 0.4):
        for name, of in batches(800, entropies=True).items():
            limit = [quantile([h for h, m in zip(*rows, strict=True) if m], 0.8) for rows in zip_rows(of)]
            low = grid(of, lambda i, t: float(of["entropies"][i][t] <= limit[i]))
            params = {
                "eps_low_entropy_tokens": 0.2,
                "eps_high_entropy_tokens": wide,
                "dual_clip_neg": 3.0,
                "dual_clip_pos": 3.0,
                "entropy_quantile": 0.8,
                "quantile_scope": "per row",
                **TOKEN_MEAN,
            }
            soft: dict[bool, list[bool]] = {True: [], False: []}

            def term(
                i: int, t: int, a: float, of: Named = of, low: Grid = low, wide: float = wide, soft: Any = soft
            ) -> tuple[float, float]:
                r, eps = ratio(of, i, t), 0.2 if low[i][t] else wide
                if a >= 0:
                    q = 1 / min(r, 1 + eps)
                    inside = r <= 1 + eps
                else:
                    q = max(r, 1 - eps)
                    inside = r >= 1 - eps
                if a:
                    soft[a > 0].append(q > 3)
                if q > 3:
                    return -a * 3 * of["log_probs"][i][t], -a * 3
                return -a * q, -a * q * inside

            loss = objective(of, params, term)
            expected = {key: loss[key] for key in ("loss", "grad_log_probs")}
            narrow = figures(of, {"eps_low": 0.2, "eps_high": 0.2})
            bound = grid(of, lambda i, t: 0.2 if low[i][t] else wide)
            signs = [(ratio(of, i, t), of["advantages"][i][t] < 0, bound[i][t]) for i, t in places(of)]
            expected |= {
                "region_counts": narrow["region_counts"],
                "clip_fraction_upper": share([not minus and r > 1 + e for r, minus, e in signs]),
                "clip_fraction_lower": share([minus and r < 1 - e for r, minus, e in signs]),
                "dual_fraction_positive": share(soft[True]),
                "dual_fraction_negative": share(soft[False]),
                "low_entropy_mask": low,
            }
            found.append(case(f"{name}/{wide}", params, of, expected))
    return found


def zip_rows(of: Named) -> list[tuple[list[float], list[float]]]:
    return list(zip(of["entropies"], of["mask"], strict=True))


def quantile(values: list[float], at: float) -> float:
    """With linear interpolation; NaN of nothing."""
    if not values:
        return math.nan
    values = sorted(values)
    place = at * (len(values) - 1)
    below = int(place)
    above = min(below + 1, len(values) - 1)
    return values[below] + (place - below) * (values[above] - values[below])


def acpo() -> list[Named]:
    params = {"alpha": 3.0, "eps_b": 0.1, "num_bins": 5, "bins": "equal_width", "min_count": 2, **ROW_MEAN}
    params["dual_clip_c"] = None
    found = []
    for name, of in batches(900).items():
        bin_of = {(i, t): min(int(math.exp(of["old_log_probs"][i][t]) * 5), 4) for i, t in places(of)}
        inside = [[ratio(of, *place) for place in bin_of if bin_of[place] == k] for k in range(5)]
        sigma = [deviation(each, 0) if len(each) > 1 else 0.0 for each in inside]
        eps = [3.0 * s + 0.1 for s in sigma]

        def term(i: int, t: int, a: float, of: Named = of, eps: Any = eps, bin_of: Any = bin_of) -> tuple[float, float]:
            return clipped(ratio(of, i, t), a, eps[bin_of[i, t]], eps[bin_of[i, t]], None)

        where = [region(ratio(of, *p), of["advantages"][p[0]][p[1]], eps[k], eps[k]) for p, k in bin_of.items()]
        loss = objective(of, params, term)
        expected = {key: loss[key] for key in ("loss", "grad_log_probs")} | {
            "bin_edges": [0.0, 0.2, 0.4, 0.6, 0.8, 1.0],
            "bins": [{"count": len(each), "sigma": s, "eps": e} for each, s, e in zip(inside, sigma, eps, strict=True)],
            "clip_counts": {"low_neg": where.count("LN"), "high_pos": where.count("HP")},
        }
        found.append(case(name, params, of, expected))
    return found


def reweighted(of: Named, alpha: float) -> Grid:
    return grid(of, lambda i, t: (alpha * math.exp(of["old_log_probs"][i][t]) + 1 - alpha) * of["advantages"][i][t])


def ar() -> list[Named]:
    found = []
    for name, of in batches(1000).items():
        for alpha in (0.3, 1.0):
            params = {"alpha": alpha, "eps_low": 0.2, "eps_high": 0.24, "dual_clip_c": 10.0, **TOKEN_MEAN}
            found.append(in_one_pass(f"{name}/{alpha}", params, of))
    return found


def in_one_pass(name: str, params: Named, of: Named) -> Named:
    changed = of | {"advantages": reweighted(of, params["alpha"])}
    result = one_pass(name, params, changed, clip_term, advantages_reweighted=changed["advantages"])
    return result | {"inputs": of}


def in_two_passes(name: str, params: Named, of: Named) -> Named:
    """Both passes of a rollout; the policy moved between them."""
    of = dict(of)
    first, second = of.pop("log_probs"), of.pop("later")
    effective = reweighted(of, params["alpha"])
    expected: Named = {"advantages_effective": effective}
    for number, log_probs in ((1, first), (2, second)):
        of[f"log_probs_phase{number}"] = log_probs
        now = of | {"log_probs": log_probs, "advantages": effective}
        low = grid(of, lambda i, t: float((math.exp(of["old_log_probs"][i][t]) < params["eta"]) == (number == 1)))
        found = objective(now, params, clip_term(now, params), only=low)
        masked = now | {"advantages": times(effective, low)}
        expected[f"phase{number}"] = found | {"token_mask": low} | figures(masked, params)
    return case(name, params, of, expected)


def two_passes(seed: int, *alphas: float) -> list[Named]:
    kl = {"kl_coef": 0.2, "kl_log_ratio_clamp": 5.0, "kl_value_clamp": 10.0}
    bounds = {"eps_low": 0.2, "eps_high": 0.24, "dual_clip_c": 10.0}
    found = []
    for name, of in batches(seed, ref_log_probs=True, later=True).items():
        for alpha in alphas:
            params = {"eta": 0.5, "alpha": alpha, **bounds, **TOKEN_MEAN, **kl}
            found.append(in_two_passes(f"{name}/{alpha}", params, of))
    return found


def sequence(seed: int, alpha: float) -> Named:
    """Algorithm 1 on a linear policy: every mini-batch of the low pass, then every one of the high pass."""
    draw, size, words, lr = random.Random(seed), 2, 4, 0.5
    of: Named = {
        "features": [[[round(draw.gauss(0, 1), 4) for _ in range(3)] for _ in range(3)] for _ in range(4)],
        "weights": [[round(draw.gauss(0, 1), 4) for _ in range(words)] for _ in range(3)],
        "token_ids": [[draw.randrange(words) for _ in range(3)] for _ in range(4)],
        "mask": [[1.0, 1.0, 1.0], [1.0, 1.0, 0.0], [1.0, 0.0, 0.0], [1.0, 1.0, 1.0]],
        "rewards": [1.0, 0.0, 1.0, 0.0],
        "group_ids": [0, 0, 1, 1],
    }
    params = {"eta": 0.4, "alpha": alpha, "kl_coef": 0.0, "eps_low": 0.2, "eps_high": 0.24, "dual_clip_c": 10.0}
    params |= {"lr": lr, "mini_batch_rows": size}

    def distribution(weights: Grid, i: int, t: int) -> list[float]:
        x = of["features"][i][t]
        logits = [math.fsum(x[k] * weights[k][w] for k in range(3)) for w in range(words)]
        total = math.fsum(map(math.exp, logits))
        return [math.exp(z) / total for z in logits]

    def log_probs(weights: Grid) -> Grid:
        return grid(of, lambda i, t: math.log(distribution(weights, i, t)[of["token_ids"][i][t]]))

    of_rows = spread_out(of, of_groups(of["rewards"], of["group_ids"], std=True))
    old, weights, steps = log_probs(of["weights"]), of["weights"], []
    effective = reweighted({**of, "old_log_probs": old, "advantages": of_rows}, alpha)
    for phase in (1, 2):
        for start in range(0, 4, size):
            rows = range(start, start + size)
            part: Named = {
                key: [values[i] for i in rows]
                for key, values in (
                    ("mask", of["mask"]),
                    ("old_log_probs", old),
                    ("log_probs", log_probs(weights)),
                    ("advantages", effective),
                )
            }
            chosen = grid(part, lambda i, t: float((math.exp(part["old_log_probs"][i][t]) < 0.4) == (phase == 1)))
            found = objective(part, {**params, **TOKEN_MEAN}, clip_term(part, params), only=chosen)
            after = [list(row) for row in weights]
            for row, i in enumerate(rows):
                for t in range(3):
                    p = distribution(weights, i, t)
                    for k in range(3):
                        for w in range(words):
                            slope = of["features"][i][t][k] * ((w == of["token_ids"][i][t]) - p[w])
                            after[k][w] -= lr * found["grad_log_probs"][row][t] * slope
            weights = after
            steps.append(
                {"rows": list(rows), "phase": phase, "loss_before_step": found["loss"], "weights_after": weights}
            )
    expected = {"old_log_probs": old, "advantages_effective": effective, "steps": steps}
    return case(f"sequence/{alpha}", params, of, expected)


def reinforce_pp() -> list[Named]:
    found = []
    bounds = {"eps_low": 0.2, "eps_high": 0.24, "dual_clip_c": 10.0, **TOKEN_MEAN}
    for (name, of), (beta, gamma) in zip(
        batches(1300, ref_log_probs=True).items(), ((0.0, 1.0), (0.05, 1.0), (0.05, 0.9), (0.001, 1.0)), strict=True
    ):
        params = {"gamma": gamma, "kl_in_reward_coef": beta, **bounds}
        last = on_last(of, of["rewards"])
        rewards = grid(
            of,
            lambda i, t: last[i][t] - beta * (of["old_log_probs"][i][t] - of["ref_log_probs"][i][t]),
        )
        summed = returns(of, rewards, gamma)
        of["advantages"] = whitened(of, summed)
        result = one_pass(name, params, of, clip_term, token_level_rewards=rewards, returns=summed)
        result["expected"]["advantages"] = of.pop("advantages")
        found.append(result)
    of = batches(1310)["wide"]
    of["advantages"] = whitened(of, returns(of, on_last(of, of["rewards"]), 1.0))
    found.append(in_one_pass("reweighted", {"alpha": 0.1, **bounds}, of))
    of = batches(1320, ref_log_probs=True, later=True)["wide"]
    of["advantages"] = whitened(of, returns(of, on_last(of, of["rewards"]), 1.0))
    return [*found, in_two_passes("lopti", {"eta": 0.5, "alpha": 0.1, "kl_coef": 0.0, **bounds}, of)]


def likelihood_family() -> list[Named]:
    found = []
    for name, of in batches(1400).items():
        del of["advantages"]
        of["rewards"] = [float(reward > 0) for reward in of["rewards"]]
        sign = [1.0 if reward else -1.0 for reward in of["rewards"]]
        for kind in ("PL", "NL", "CL", "TNPL", "TNNL", "TNCL"):
            for clip, importance in ((None, True), (0.2, True), (None, False)):
                longest = 12 if kind.startswith("TN") else None
                params = {"loss": kind, "clip": clip, "importance_ratio": importance, "max_len_T": longest}
                wanted = {"P": (1.0,), "N": (-1.0,), "C": (1.0, -1.0)}[kind[-2]]
                trained = [i for i, row in enumerate(of["mask"]) if any(row) and sign[i] in wanted]
                each = grid(of, lambda i, t: 1 / len(trained) / (longest or sum(of["mask"][i])) * (i in trained))

                def term(i: int, t: int, a: float, of: Named = of, params: Named = params) -> tuple[float, float]:
                    if params["clip"]:
                        return clipped(ratio(of, i, t), a, params["clip"], params["clip"], None)
                    if params["importance_ratio"]:
                        return -a * ratio(of, i, t), -a * ratio(of, i, t)
                    return -a * of["log_probs"][i][t], -a

                loss = objective(of | {"advantages": spread_out(of, sign)}, {}, term, every=each)
                expected = {key: loss[key] for key in ("loss", "grad_log_probs")}
                how = f"clip {clip}" if clip else "ratio" if importance else "weight 1"
                found.append(case(f"{name}/{kind}, {how}", params, of, expected))
    return found


def high_entropy_mask() -> list[Named]:
    params = {"rho": 0.2, "quantile": 0.8, "eps_low": 0.2, "eps_high": 0.28, **TOKEN_MEAN}
    found = []
    for name, of in batches(1500, entropies=True).items():
        limit = quantile([of["entropies"][i][t] for i, t in places(of)], 0.8)
        kept = grid(of, lambda i, t: float(of["entropies"][i][t] >= limit))
        loss = objective(of, params, clip_term(of, params), only=kept)
        over_kept = loss["loss"] * len(places(of)) / sum(map(sum, kept))
        expected = {"keep_mask": kept, "variant_divisor_kept_tokens": {"loss": over_kept}}
        found.append(case(name, params, of, expected | {key: loss[key] for key in ("loss", "grad_log_probs")}))
    return found


def ppo_value() -> list[Named]:
    found = []
    for number, (name, of) in enumerate(batches(1600).items()):
        gamma, lam = ((1.0, 1.0), (0.95, 0.9))[number % 2]
        draw, clip = random.Random(1650 + number), 0.5
        values = grid(of, lambda i, t: round(draw.gauss(0, 1), 6))
        predictions = grid(of, lambda i, t: round(values[i][t] + draw.gauss(0, 0.6), 6))
        rewards, length = on_last(of, of["rewards"]), [int(sum(row)) for row in of["mask"]]
        plain = grid(of, lambda i, t: 0.0)
        for i, t in reversed(places(of)):
            more = t + 1 < length[i]
            delta = rewards[i][t] + (gamma * values[i][t + 1] if more else 0.0) - values[i][t]
            plain[i][t] = delta + (gamma * lam * plain[i][t + 1] if more else 0.0)
        targets = grid(of, lambda i, t: plain[i][t] + values[i][t])
        count, loss, slope, beyond = len(places(of)), 0.0, grid(of, lambda i, t: 0.0), []
        for i, t in places(of):
            v, near = predictions[i][t], min(max(predictions[i][t], values[i][t] - clip), values[i][t] + clip)
            free, bound = (v - targets[i][t]) ** 2, (near - targets[i][t]) ** 2
            loss += 0.5 * max(free, bound) / count
            slope[i][t] = 0.0 if bound > free else (v - targets[i][t]) / count
            beyond.append(bound > free)
        params = {"gamma": gamma, "lam": lam, "eps_low": 0.2, "eps_high": 0.2, "dual_clip_c": 3.0, "value_clip": clip}
        of["advantages"] = whitened(of, plain)
        result = one_pass(
            name,
            {**params, **TOKEN_MEAN},
            of,
            clip_term,
            advantages=of["advantages"],
            advantages_before_whitening=plain,
            returns=targets,
            value_loss=loss,
            value_clip_fraction=share(beyond),
            grad_value_predictions=slope,
        )
        del of["advantages"]
        of |= {"values": values, "value_predictions": predictions, "token_level_rewards": rewards}
        found.append(result)
    return found


def gtpo() -> list[Named]:
    found = []
    for seed in (1700, 1701, 1702):
        draw, words = random.Random(seed), 6
        lengths = [5, 5, 4, 1, 5, 3]
        of: Named = {"mask": [[float(t < n) for t in range(5)] for n in lengths]}
        # Few words, so that rows agree; some rows certain, some not.
        of["token_ids"] = [[draw.choice([2, 2, 3, 4]) if t < n else 0 for t in range(5)] for n in lengths]
        scale = [6.0, 0.5, 5.0, 0.5, 6.0, 4.0]
        of["logits"] = [
            [[round(draw.gauss(0, s), 4) for _ in range(words)] if t < n else [0.0] * words for t in range(5)]
            for s, n in zip(scale, lengths, strict=True)
        ]
        advantages = of["advantages_per_row"] = [1.0, -0.8, 0.6, -1.2, 0.0, 0.4]
        probability = [[softmax(z) for z in row] for row in of["logits"]]
        of["log_probs"] = grid(of, lambda i, t: math.log(probability[i][t][of["token_ids"][i][t]]))
        entropy = grid(of, lambda i, t: -math.fsum(p * math.log(p) for p in probability[i][t]))
        rows = range(len(lengths))
        of["row_mean_entropy"] = h = [math.fsum(entropy[i]) / lengths[i] for i in rows]

        def conflict(i: int, offset: int, place: Callable[[int, int], int]) -> bool:
            token = of["token_ids"][i][place(i, offset)]
            return any(
                offset < lengths[j] and of["token_ids"][j][place(j, offset)] == token
                for j in rows
                if advantages[i] * advantages[j] < 0
            )

        def runs(place: Callable[[int, int], int]) -> Grid:
            mask = grid(of, lambda i, t: 0.0)
            for i in rows:
                for offset in range(lengths[i]):
                    if not conflict(i, offset, place):
                        break
                    mask[i][place(i, offset)] = 1.0
            return mask

        forward, backward = runs(lambda i, k: k), runs(lambda i, k: lengths[i] - 1 - k)
        both = grid(of, lambda i, t: float(forward[i][t] or backward[i][t]))

        def factor(i: int, hit: float) -> float:
            return 1.0 if not hit else 2.0 if advantages[i] > 0 else 0.0

        weight = grid(of, lambda i, t: factor(i, both[i][t]))
        twice = grid(of, lambda i, t: factor(i, forward[i][t]) * factor(i, backward[i][t]))
        keep = [float(h[i] <= math.log(2)) for i in rows]
        coefficient = [keep[i] * (advantages[i] - 0.1 * h[i]) for i in rows]
        slope = grid(of, lambda i, t: -coefficient[i] * weight[i][t] / lengths[i] / len(lengths))
        free = grid(of, lambda i, t: -(advantages[i] - 0.1 * h[i]) * weight[i][t] / lengths[i] / len(lengths))
        paper = {
            "aggregation": "(1/rows) * sum over rows of token mean",
            "forward_mask": forward,
            "backward_mask": backward,
            "conflict_mask": both,
            "token_weight": weight,
            "row_keep": keep,
            "row_coefficient": coefficient,
            "loss": math.fsum(map(sum, slope)),
            "grad_log_probs": slope,
            "loss_without_filter": math.fsum(map(sum, free)),
        }
        params = {"gamma": 0.1, "entropy_threshold_paper": "ln 2", "weight_positive": 2.0}
        found.append(case(f"seed {seed}", params, of, {"paper": paper, "code": {"token_weight": twice}}))
    return found


def softmax(logits: list[float]) -> list[float]:
    total = math.fsum(map(math.exp, logits))
    return [math.exp(z) / total for z in logits]


def advantages() -> list[Named]:
    found = []
    for name, masked in (("ragged", False), ("masked_row", True)):
        of = batch(1800 + masked, masked_row=masked)
        of = {key: of[key] for key in ("rewards", "group_ids", "mask")}
        rewards, groups = of["rewards"], of["group_ids"]
        centred = of_groups(rewards, groups, std=False)
        others = [
            reward - mean(r for j, r in enumerate(rewards) if groups[j] == groups[i] and j != i)
            for i, reward in enumerate(rewards)
        ]
        last = on_last(of, rewards)
        expected = {
            "grpo": spread_out(of, of_groups(rewards, groups, std=True)),
            "dr_grpo": spread_out(of, centred),
            "rloo": spread_out(of, others),
            "reinforce_pp": whitened(of, returns(of, last, 1.0)),
            "reinforce_pp_gamma_0.9": whitened(of, returns(of, last, 0.9)),
            "reinforce_pp_baseline": whitened(of, spread_out(of, centred)),
        }
        found.append(case(name, {"std_ddof": 1, "std_eps": 1e-6}, of, expected))
    return found


def entropy_min_reward() -> list[Named]:
    of = batch(1900, entropies=True)
    of = {key: of[key] for key in ("entropies", "group_ids", "mask")}
    rewards = [-math.fsum(h) / sum(m) for h, m in zip_rows(of)]
    found = spread_out(of, of_groups(rewards, of["group_ids"], std=True))
    return [case("ragged", {}, of, {"rewards": rewards, "advantages": found})]


def noisy_rewards() -> list[Named]:
    rewards, flips, groups = [1.0, 0.0, 0.0, 1.0, 0.0, 0.0], [0.0, 1.0, 0.0, 1.0, 1.0, 0.0], [0, 1, 0, 1, 0, 1]
    noisy = [1 - reward if flip else reward for reward, flip in zip(rewards, flips, strict=True)]
    expected = {"noisy_rewards": noisy, "advantages_per_row": of_groups(noisy, groups, std=True)}
    return [case("three of six", {}, {"rewards": rewards, "flip": flips, "group_ids": groups}, expected)]


# Knights & Knaves: the public reward

TAGS = ("<think>", "</think>", "<answer>", "</answer>")
TRUTH = {"Zoey": "knight", "Oliver": "knave", "Mia": "knight"}


def kk_score(text: str) -> tuple[float, bool, str | None]:
    response = None
    for header in ("Assistant:", "<|im_start|>assistant"):
        if header in text:
            response = text[text.index(header) + len(header) :]
            break
    checked = text if response is None else response
    at = [checked.find(tag) for tag in TAGS]
    well_formed = all(checked.count(tag) == 1 for tag in TAGS) and at == sorted(at)
    answer = None
    if response is not None and "<answer>" in response and "</answer>" in response.split("<answer>", 1)[1]:
        answer = response.rsplit("</answer>", 1)[0].rsplit("<answer>", 1)[1].strip()
    score = 1.0 if well_formed else -1.0
    if not well_formed or not answer:
        return score - 2.0, well_formed, answer
    said = answer.lower()
    if said.count("knight") + said.count("knave") != len(TRUTH):
        return score - 2.0, well_formed, answer
    roles = {name: re.search(rf"\b{name}\b\s+is\s+a\s+\b(knight|knave)\b", answer, re.I) for name in TRUTH}
    if not all(roles.values()):
        return score - 2.0, well_formed, answer
    right = all(role is not None and role[1].lower() == TRUTH[name] for name, role in roles.items())
    return score + (2.0 if right else -1.5), well_formed, answer


def kk_reward() -> list[Named]:
    solution = "(1) Zoey is a knight\n(2) Oliver is a knave\n(3) Mia is a knight"
    start = "<|im_start|>user\nWho is who?\n<|im_end|>\n<|im_start|>assistant\n<think>"
    in_one_line = "Mia is a knight, zoey is a KNIGHT and Oliver  is\na knave."
    rest = {
        "right": f" so </think><answer>{solution}</answer>",
        "another order": f"</think> so <answer>{in_one_line}</answer> done",
        "wrong": f" so </think><answer>{solution.replace('knave', 'knight')}</answer>",
        "all wrong": "</think><answer>Zoey is a knave. Oliver is a knight. Mia is a knave</answer>",
        "one person short": "</think><answer>Zoey is a knight. Oliver is a knave.</answer>",
        "a word too many": f"</think><answer>{solution}. A knave lies.</answer>",
        "is not a": f"</think><answer>{solution.replace('Mia is a', 'Mia is not a')}</answer>",
        "is the": f"</think><answer>{solution.replace('Mia is a', 'Mia is the')}</answer>",
        "a colon": "</think><answer>Zoey: knight, Oliver: knave, Mia: knight</answer>",
        "nothing said": "</think><answer>  </answer>",
        "no answer": " so and so",
        "thinks again": f"<think></think><answer>{solution}</answer>",
        "answers twice": f"</think><answer>{solution}</answer><answer>{solution}</answer>",
        "the other way round": f"<answer>{solution}</answer></think>",
        "never closed": f"</think><answer>{solution}",
    }
    texts = {name: start + end for name, end in rest.items()}
    texts["base template"] = f"User: Who?\nAssistant: <think>so</think><answer>{solution}</answer>"
    texts["no header"] = f"<think>so</think><answer>{solution}</answer>"
    found = []
    for name, text in texts.items():
        score, well_formed, answer = kk_score(text)
        expected = {"score": score} if not well_formed else {"score": score, "format_ok": True, "answer": answer}
        found.append(case(name, {}, {"text": text, "solution_text_format": solution}, expected))
    return found


FILES: dict[str, Callable[[], list[Named]]] = {
    "grpo": grpo,
    "dapo": dapo,
    "dr_grpo": dr_grpo,
    "gspo": gspo,
    "cispo": cispo,
    "gppo": lambda: gppo_kin(600, (1.0, 1.0)),
    "ce_gppo": lambda: gppo_kin(610, (0.5, 1.0), (0.75, 0.9)),
    "aspo": aspo,
    "dgpo": dgpo,
    "acpo": acpo,
    "ar": ar,
    "lopti": lambda: [*two_passes(1100, 0.0), sequence(1150, 0.0)],
    "ar_lopti": lambda: [*two_passes(1200, 0.3), sequence(1250, 0.3)],
    "reinforce_pp": reinforce_pp,
    "likelihood_family": likelihood_family,
    "high_entropy_mask": high_entropy_mask,
    "ppo_value": ppo_value,
    "gtpo": gtpo,
    "advantages": advantages,
    "entropy_min_reward": entropy_min_reward,
    "noisy_rewards": noisy_rewards,
    "kk_reward": kk_reward,
}


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.10g}") + 0.0
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list) else value


def document(name: str, files: dict[str, Callable[[], list[Named]]] = FILES) -> Named:
    """A file's content; arrays that several cases start from stand in the first of them."""
    found: list[Named] = []
    for each in map(rounded, files[name]()):
        first = next((other["name"] for other in found if other["inputs"] == each["inputs"]), None)
        found.append(each if first is None else each | {"inputs": {"same_as": first}})
    return {"method": name, "cases": found}


def write(of: Named) -> None:
    """Write a file, a case a line."""
    before = "".join(f'"{key}":{json.dumps(value)},\n' for key, value in of.items() if key not in ("method", "cases"))
    lines = ",\n".join(json.dumps(each, separators=(",", ":")) for each in of["cases"])
    text = f'{{"method":"{of["method"]}",{before}"cases":[\n{lines}\n]}}\n'
    (FOLDER / f"{of['method']}.json").write_text(text, encoding="utf-8")


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name in FILES:
        write(document(name))


if __name__ == "__main__":
    main()
