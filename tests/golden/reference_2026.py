"""Golden numbers of the methods of 2025 and 2026: their published formulas in plain Python loops.

As `reference.py`, it shares nothing with `rlvr_cli`. ``NOTES`` says for each file what the paper prints and where
released code departs from it; a number of such code stands beside the paper's under its own name.
`python -m tests.golden.reference_2026` writes the files.
"""

# ruff: noqa: B023 - closures over a loop's variables are called within their round
from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from typing import Any

from tests.golden import reference
from tests.golden.reference import (
    Grid,
    Named,
    T,
    batches,
    case,
    clipped,
    deviation,
    grid,
    mean,
    places,
    ratio,
    softmax,
    with_advantages,
)

# F A of a token, given row, position and advantage: minus the derivative of its loss by its log-prob.
Push = Callable[[int, int, float], float]
# A reward, or None for a completion that could not be judged.
Rewards = list[float | None]

NOTES: dict[str, list[str]] = {
    "dppo": [
        "Paper (arXiv:2602.04879): the mask compares pi with the sampler's mu, ratio truncated (section 5.4).",
        "verl compute_policy_loss_dppo_tv: pi_old in place of mu, log ratio clamped at 20, c 20, its script d .15.",
        "prime-rl default_loss_fn: no truncation, d .2, plus tau log(r)^2 for every token, tau 1e-3 (2602.02276).",
    ],
    "sapo": [
        "Paper (arXiv:2511.20347), TRL and verl agree: gate sigmoid(tau (r - 1)) 4 / tau, tau+ where A > 0.",
        "verl clamps the log ratio at 20 in size; F is 0 there in double precision for r > 1.",
    ],
    "gmpo": [
        "Paper (arXiv:2507.20673), authors' code, TRL and verl agree on F: one-sided clip of log r at 0.4, then mean.",
        "verl and TRL divide by all rows, also those without tokens; the authors' code trains row by row.",
    ],
    "vespo": [
        "Paper (arXiv:2602.10693): phi(w) = w^k exp(-lambda w) exp(lambda), w the product over the row, no clamps.",
        "Authors' code and TRL clamp each token's log ratio at 20, and log w to log 1e-8 ... 20 (`code_push`).",
        "A >= 0 takes the positive pair. The divisor is the token mean in both codes.",
    ],
    "luspo": [
        "Paper (arXiv:2602.05261) and TRL: GSPO's clipped loss times the row's length, mean over rows.",
        "TRL counts rows without tokens as rows; no cap on the ratio in either (GSPO's cap of e^10 is verl's).",
    ],
    "clip_cov": [
        "Paper (arXiv:2505.22617): candidates are the tokens with covariance in the band.",
        "Authors' code and verl leave tokens that the clip cuts out of the candidates; F at share 1 is the same.",
        "Authors' scripts set the clip to [0, 2] (eps 1); verl's default is its actor's 0.2.",
        "Both codes take means over one micro-batch; here they are those of the step.",
    ],
    "kl_cov": [
        "Paper (arXiv:2505.22617) prints a KL divergence as penalty; authors' code and verl |log pi - log pi_old|,",
        "whose gradient is the sign of the log ratio, 0 on policy. The unselected tokens' ratio is not clipped.",
        "The number is max(1, int(share n)). Share: 2e-4 in the 32B script and verl, 2e-3 in the 7B script.",
        "A selected token whose advantage is 0 still has the penalty.",
    ],
    "maxrl": [
        "Paper (arXiv:2602.02710): r / sum of r - 1/n for verdicts r, nothing if none is right; times n: (r - m) / m.",
        "Authors' code adds 1e-6 to m, and in a group of one sets m = 0: a right answer there gets 1e6. With graded"
        " rewards whose mean is negative it turns every sign.",
        "prime-rl: no epsilon, and 0 where m <= 0; it takes rewards, which need not be verdicts.",
    ],
    "opo": [
        "Paper (arXiv:2505.23585) and verl agree: baseline sum of l R / sum of l. verl: a group of one keeps its R."
    ],
    "remax": ["Paper (arXiv:2310.10505) and verl agree: R minus the reward of the greedy completion."],
    "pass_at_k": [
        "chen: arXiv:2508.10751, analytic; mean and deviation over all subsets of k. Its code adds 1e-6 (`chen_code`).",
        "best_minus_second: arXiv:2503.19595 as in verl grpo_passk, k = group size, the best row alone; _std divided by"
        " std + 1e-6.",
        "pkpo: arXiv:2505.15201, transformed rewards; pkpo_loo: its leave-one-out baseline over subsets of k - 1.",
    ],
    "gdpo": [
        "Paper (arXiv:2601.05242): sum of (r - mean) / std of each part, then whitened over the rows of the batch.",
        "Authors' TRL and TRL 1.16: over rows, epsilon 1e-4 twice (`trl`). A missing part adds 0 and is in no mean.",
        "Authors' verl and verl: whitened over tokens, so that long rows count more (`verl`): a prompt whose parts are"
        " all equal then gets an advantage.",
    ],
    "batch_scale": [
        "arXiv:2508.08221: the group's mean, the standard deviation of all rewards of the batch.",
        "TRL: of the rewards as they are, not minus their group's mean; ddof 1, epsilon 1e-4 (`trl`).",
    ],
    "opd": [
        "Thinking Machines, verl (PG OPD): A = log pi_T - log pi_old, undiscounted, one token at a time.",
        "prime-rl ref_kl_loss_fn: minus the current log pi, times the ratio, 0 where p fell by over .2, plus"
        " 1e-3 log(r)^2 (`prime_rl`).",
    ],
    "entropy_bonus": [
        "L = -coef H; dH/dz_v = -p_v (log p_v + H). H is a mean over the step's valid tokens (TRL: of a micro-batch).",
        "Adaptive, paper (arXiv:2505.22312): step k uses c_k 1[e_k <= target], entropies of its own rollout. Authors'",
        "code (`code`) and TRL gate by step k - 1, open at first. At the target exactly: paper c stays, authors' code"
        " lowers it and shuts the gate, TRL raises it and opens the gate. Bounds on c are the codes'.",
    ],
    "lengths": [
        "overlong: DAPO equation 13; TRL agrees; verl has no floor at -1 beyond L_max.",
        "linear: prime-rl: R - c mean(R) L / max L of the group. brevity: prime-rl#2265.",
    ],
    "corrections": [
        "w = pi_old / pi_sampler. IcePop (arXiv:2510.18855): w in [.5, 5], else 0; TRL token_mask the same.",
        "sequence, mis: TRL sequence_truncate, sequence_mask; verl clamps the log of the product at 20 in size.",
        "geometric: verl compares 1 / w with the bounds, so its (lo, hi) is (1 / hi, 1 / lo) here.",
        "opsm (arXiv:2512.02556): strictly above delta, A < 0, mean of log pi_sampler - log pi of the current policy.",
        "TRL's dropped rows stay in the divisor, those of verl's rejection leave it.",
    ],
    "controls": [
        "incorrect: arXiv:2506.10947 rewards agreement with a wrong label (the majority's, where it is wrong), not the"
        " opposite of the verdict.",
        "majority: TTRL (arXiv:2504.16084); ties go to the answer that stands first. An unreadable answer has no vote.",
    ],
}


# Policy losses


def divisors(of: Named) -> dict[str, Grid]:
    """What each token is multiplied by, for each aggregation: rows without tokens are not counted."""
    rows, tokens = sum(map(any, of["mask"])), len(places(of))
    return {
        "token_mean": grid(of, lambda i, t: 1 / tokens),
        "sequence_mean": grid(of, lambda i, t: 1 / rows / sum(of["mask"][i])),
        "sequence_sum": grid(of, lambda i, t: 1 / rows),
    }


def pushes(of: Named, push: Push) -> Grid:
    return grid(of, lambda i, t: push(i, t, of["advantages"][i][t]))


def pushed(name: str, params: Named, of: Named, push: Push, **further: Any) -> Named:
    found = pushes(of, push)
    gradients = {kind: grid(of, lambda i, t: -each[i][t] * found[i][t]) for kind, each in divisors(of).items()}
    return case(name, params, of, {"push": found, "gradients": gradients, **further})


def moved(of: Named, tokens: dict[tuple[int, int], tuple[float, float]]) -> Named:
    """Other log-probs, (now, old), at some places."""
    now, old = ([list(row) for row in of[name]] for name in ("log_probs", "old_log_probs"))
    for (i, t), (x, o) in tokens.items():
        assert of["mask"][i][t]
        now[i][t], old[i][t] = x, o
    return of | {"log_probs": now, "old_log_probs": old}


def at_probabilities(of: Named, tokens: dict[tuple[int, int], tuple[float, float]]) -> Named:
    return moved(of, {place: (math.log(p), math.log(q)) for place, (p, q) in tokens.items()})


def quiet(seed: int) -> Named:
    """A batch near the old policy; row 1 has a positive advantage, row 3 a negative one."""
    of = reference.batch(seed, spread=0.1)
    of["rewards"][8] = 0.25
    of = with_advantages(of)
    assert of["advantages"][1][0] > 0 > of["advantages"][3][0]
    return of


def rounds(seed: int) -> dict[str, Named]:
    """The batches of `reference.py`, and hostile ones."""
    found = batches(seed)
    base = quiet(seed + 4)
    up, down = (-0.01, -30.01), (-30.01, -0.01)
    found["e^30"] = moved(base, {(1, 0): up, (1, 1): down, (3, 0): down, (3, 1): up})
    found["e^30 one way"] = moved(base, {(1, 0): up, (3, 0): down, (0, 0): (-0.5, -3.5)})
    found["on_policy"] = base | {"log_probs": base["old_log_probs"]}
    empty: Grid = [[0.0] * T for _ in range(2)]
    found["no token"] = {
        **dict.fromkeys(("mask", "log_probs", "old_log_probs", "advantages"), empty),
        "rewards": [1.0, 0.0],
        "group_ids": [0, 0],
    }
    return found


def log_ratios(of: Named, i: int) -> list[float]:
    return [x - o for x, o, m in zip(of["log_probs"][i], of["old_log_probs"][i], of["mask"][i], strict=True) if m]


def far_from(values: list[float], *bounds: float, by: float = 1e-6) -> None:
    """No value may lie so near a bound that rounding of the file decides."""
    assert all(abs(value - bound) > by for value in values for bound in bounds)


def dppo() -> list[Named]:
    params = {"d_low": 0.2, "d_high": 0.2, "max_ratio": 20.0, "published_aggregation": ["token_mean"]}
    every = rounds(2100)
    base, e = quiet(2150), 1e-5
    every["at the bounds"] = at_probabilities(
        base, {(1, 0): (0.5 + e, 0.3), (1, 1): (0.5 - e, 0.3), (3, 0): (0.3 - e, 0.5), (3, 1): (0.3 + e, 0.5)}
    )
    every["large ratios inside"] = at_probabilities(
        base, {(1, 0): (0.15, 0.001), (1, 1): (0.001, 0.15), (3, 0): (0.15, 0.001), (3, 1): (0.9, 0.001)}
    )
    found = []
    for name, of in every.items():
        apart = grid(of, lambda i, t: math.exp(of["log_probs"][i][t]) - math.exp(of["old_log_probs"][i][t]))
        far_from([apart[i][t] for i, t in places(of)], 0.2, -0.2)

        def kept(i: int, t: int, a: float) -> bool:
            return apart[i][t] <= 0.2 if a > 0 else apart[i][t] >= -0.2

        def without_truncation(i: int, t: int) -> float:
            a, r = of["advantages"][i][t], ratio(of, i, t)
            return -a * r * kept(i, t, a) + 2e-3 * (of["log_probs"][i][t] - of["old_log_probs"][i][t])

        of_sum = grid(of, without_truncation)
        found.append(
            pushed(
                name,
                params,
                of,
                lambda i, t, a: a * min(ratio(of, i, t), 20.0) * kept(i, t, a),
                prime_rl={"grad_of_sum": of_sum},
            )
        )
    return found


def sapo() -> list[Named]:
    params = {"tau_pos": 1.0, "tau_neg": 1.05, "published_aggregation": ["sequence_mean"]}

    def weight(r: float, tau: float) -> float:
        # p (1 - p) = e^-|x| / (1 + e^-|x|)^2, which does not cancel.
        small = math.exp(-abs(tau * (r - 1)))
        return 4 * small / (1 + small) ** 2 * r

    return [
        pushed(name, params, of, lambda i, t, a: a * weight(ratio(of, i, t), 1.0 if a > 0 else 1.05))
        for name, of in rounds(2200).items()
    ]


def gmpo_push(of: Named) -> Push:
    def push(i: int, t: int, a: float) -> float:
        kept = [min(d, 0.4) if a > 0 else max(d, -0.4) for d in log_ratios(of, i)]
        d = of["log_probs"][i][t] - of["old_log_probs"][i][t]
        return 0.0 if not a or (d > 0.4 if a > 0 else d < -0.4) else a * math.exp(mean(kept))

    return push


def gmpo() -> list[Named]:
    params = {"eps_low": 0.4, "eps_high": 0.4, "bounds_of": "log ratio", "published_aggregation": ["sequence_mean"]}
    every, base, e = rounds(2300), quiet(2350), 1e-5
    every["at the bounds"] = moved(
        base,
        {(1, 0): (-0.5, -0.9 - e), (1, 1): (-0.5, -0.9 + e), (3, 0): (-0.9 - e, -0.5), (3, 1): (-0.9 + e, -0.5)},
    )
    for of in every.values():
        far_from([d for i in range(len(of["mask"])) for d in log_ratios(of, i)], 0.4, -0.4)
    found = [pushed(name, params, of, gmpo_push(of)) for name, of in every.items()]
    # exp(mean of clipped log ratios) of rows of one value.
    return [*found, long_rows(params, lambda d, a: math.exp(min(d, 0.4) if a > 0 else max(d, -0.4)) * inside(d, a))]


def inside(d: float, a: float) -> bool:
    return d <= 0.4 if a > 0 else d >= -0.4


# Each row: tokens, log ratio of each, whether its sign alternates, advantage.
LONG: list[tuple[int, float, bool, float]] = [
    (4000, 1e-4, False, 1.0),
    (4000, 1e-4, False, -1.0),
    (4000, -1e-4, False, 1.0),
    (4000, 0.012, False, 1.0),
    (4000, -0.012, False, -1.0),
    (4000, 1.0, False, 0.5),
    (4000, -1.0, False, 0.5),
    (4000, 1.0, False, -0.5),
    (4000, 0.25, True, -1.5),
    (1, 1e-4, False, 1.0),
]


def long_rows(params: Named, weight: Callable[[float, float], float]) -> Named:
    """Rows of 4,000 tokens, spelled as (tokens, log ratio, alternates, advantage); F of each, ``weight`` of (d, A)."""
    expected = [weight(0.0 if alternates else d, a) for _, d, alternates, a in LONG]
    return case("4,000 tokens", params, {"long_rows": [list(row) for row in LONG]}, {"weight_per_row": expected})


def phi(log_w: float, a: float) -> float:
    k, rate = (2.0, 3.0) if a >= 0 else (3.0, 2.0)
    if log_w > 50:
        return 0.0
    return math.exp(rate + k * log_w - rate * math.exp(log_w))


def vespo() -> list[Named]:
    params = {"k_pos": 2.0, "lambda_pos": 3.0, "k_neg": 3.0, "lambda_neg": 2.0, "published_aggregation": ["token_mean"]}
    every, found = rounds(2400), []
    # Token ratios beyond e^20, which the codes clamp: the row's product is e^5 and e^-5.
    every["e^25"] = moved(
        quiet(2450),
        {(1, 0): (-0.01, -25.01), (1, 1): (-20.01, -0.01), (3, 0): (-0.01, -20.01), (3, 1): (-25.01, -0.01)},
    )
    for name, of in every.items():

        def push(i: int, t: int, a: float) -> float:
            return a * phi(math.fsum(log_ratios(of, i)), a)

        def of_code(i: int, t: int, a: float) -> float:
            log_w = math.fsum(min(max(d, -20.0), 20.0) for d in log_ratios(of, i))
            return a * phi(min(max(log_w, math.log(1e-8)), 20.0), a)

        found.append(pushed(name, params, of, push, code_push=pushes(of, of_code)))

    def of_row(row: tuple[int, float, bool, float]) -> float:
        tokens, d, alternates, a = row
        return phi(0.0 if alternates else tokens * d, a)

    long = case(
        "4,000 tokens", params, {"long_rows": [list(row) for row in LONG]}, {"weight_per_row": list(map(of_row, LONG))}
    )
    return [*found, long]


def luspo() -> list[Named]:
    found = []
    for low, high in ((0.2, 0.2), (3e-4, 4e-4), (0.002, 0.0025)):
        params = {"eps_low": low, "eps_high": high, "published_aggregation": ["sequence_sum"]}

        def weight(d: float, a: float) -> float:
            return -clipped(math.exp(d), a, low, high, None)[1] / a if a else 0.0

        for name, of in rounds(2500).items():
            middle = [mean(log_ratios(of, i)) if any(row) else 0.0 for i, row in enumerate(of["mask"])]
            if name != "on_policy":
                # Of rows without tokens, too: 1 is no bound.
                far_from([math.exp(d) for d in middle], 1 - low, 1 + high)
            found.append(pushed(f"{name}/{low:g}", params, of, lambda i, t, a: a * weight(middle[i], a)))
        found.append(long_rows(params, weight) | {"name": f"4,000 tokens/{low:g}"})
    # One token, whose ratio e^12 lies beyond GSPO's cap.
    of = {
        "mask": [[1.0], [1.0]],
        "log_probs": [[-0.5], [-0.5]],
        "old_log_probs": [[-12.5], [-12.5]],
        "advantages": [[-0.7071], [0.7071]],
        "rewards": [0.0, 1.0],
        "group_ids": [0, 0],
    }
    params = {"eps_low": 0.2, "eps_high": 0.2, "published_aggregation": ["sequence_sum"]}
    beyond = pushed("beyond the cap", params, of, lambda i, t, a: a * math.exp(12.0) if a < 0 else 0.0)
    return [*found, beyond]


def covariances(of: Named) -> Grid:
    where = places(of)
    if not where:
        return of["mask"]
    of_a = mean(of["advantages"][i][t] for i, t in where)
    of_x = mean(of["log_probs"][i][t] for i, t in where)
    return grid(of, lambda i, t: (of["advantages"][i][t] - of_a) * (of["log_probs"][i][t] - of_x))


def with_unlikely(of: Named) -> Named:
    """Two unlikely tokens in a row of negative advantage, whose covariance lies in Clip-Cov's band."""
    row = min((i for i, mask in enumerate(of["mask"]) if sum(mask) > 1), key=lambda i: of["advantages"][i][0])
    return moved(of, {(row, 0): (-3.5, -3.4), (row, 1): (-4.0, -4.3)})


def clip_cov() -> list[Named]:
    found = []
    every = {name: with_unlikely(of) if name in ("near", "wide") else of for name, of in rounds(2600).items()}
    every["masked_row"] = with_unlikely(every["masked_row"])
    for eps in (1.0, 0.2):
        params = {"eps_low": eps, "eps_high": eps, "band": [1.0, 5.0], "share": 1.0}
        params["published_aggregation"] = ["token_mean"]
        for name, of in every.items():
            cov = covariances(of)
            far_from([cov[i][t] for i, t in places(of)], 1.0, 5.0)
            band = grid(of, lambda i, t: float(1.0 < cov[i][t] < 5.0))

            def slope(i: int, t: int, a: float) -> float:
                return -clipped(ratio(of, i, t), a, eps, eps, None)[1]

            cut = grid(of, lambda i, t: float(of["advantages"][i][t] != 0 and not slope(i, t, of["advantages"][i][t])))
            candidates = grid(of, lambda i, t: float(band[i][t] and not cut[i][t]))
            found.append(
                pushed(
                    f"{name}/{eps:g}",
                    params,
                    of,
                    lambda i, t, a: 0.0 if band[i][t] else slope(i, t, a),
                    covariances=cov,
                    in_band=band,
                    candidates_of_code=candidates,
                    dropped_of_code_at_2e_4=min(max(int(2e-4 * len(places(of))), 1), int(sum(map(sum, candidates)))),
                )
            )
    return found


def long_batch() -> Named:
    """12,600 tokens in three rows, so that a share of 2e-4 is two of them."""
    return {"tokens": 4200, "rows": 3, "advantages_per_row": [1.0, -0.5, 0.25]}


def long_log_probs(i: int, t: int) -> tuple[float, float]:
    """Current and old log-prob of the long batch, as exact fractions."""
    now = -((7 * t + 3 * i) % 1021) / 256 - 1 / 64
    return now, now + (((5 * t + i) % 13) - 6) / 64


def kl_cov() -> list[Named]:
    params = {"share": 2e-4, "coef": 1.0, "published_aggregation": ["token_mean"]}
    every, found = rounds(2730), []
    # The least likely token, in a row whose advantage is 0.
    base = quiet(2750)
    zero = next(i for i, row in enumerate(base["advantages"]) if base["mask"][i][1] and not any(row))
    every["selected without advantage"] = moved(base, {(zero, 1): (-9.0, -8.5)}) | {
        "advantages": [
            [a + m * (0.5 if a else 0.0) for a, m in zip(*rows, strict=True)]
            for rows in zip(base["advantages"], base["mask"], strict=True)
        ],
    }
    for name, of in every.items():
        cov = covariances(of)
        order = sorted(places(of), key=lambda place: -cov[place[0]][place[1]])
        selected = order[: max(1, int(2e-4 * len(order)))]
        if order and name != "selected without advantage":
            (i, t), (j, s) = order[:2]
            assert of["advantages"][i][t] and cov[i][t] > cov[j][s] + 1e-6
        elif order:
            assert not of["advantages"][order[0][0]][order[0][1]]
        chosen = grid(of, lambda i, t: float((i, t) in selected))

        def push(i: int, t: int, a: float) -> float:
            d = of["log_probs"][i][t] - of["old_log_probs"][i][t]
            return a * ratio(of, i, t) - chosen[i][t] * ((d > 0) - (d < 0))

        found.append(pushed(name, params, of, push, covariances=cov, selected=chosen))
    of = long_batch()
    tokens = [(i, t) for i in range(of["rows"]) for t in range(of["tokens"])]
    a, x = of["advantages_per_row"], long_log_probs
    of_a, of_x = mean(a[i] for i, _ in tokens), mean(x(i, t)[0] for i, t in tokens)
    value = {(i, t): (a[i] - of_a) * (x(i, t)[0] - of_x) for i, t in tokens}
    first = sorted(tokens, key=lambda place: (-value[place], place))
    number = max(1, int(2e-4 * len(tokens)))
    # Several tokens tie for the last place: those above it, those of which the rest are taken.
    last = value[first[number - 1]]
    above = [list(place) for place in first if value[place] > last + 1e-9]
    level = [list(place) for place in first if abs(value[place] - last) <= 1e-9]
    ties = {"number": number, "above": above, "level": level}
    return [*found, case("12,600 tokens", params, {"long_batch": of}, {"selection": ties})]


# Advantages: groups stand together; None is a reward that nobody gave.


def in_groups(values: list[Any], size: int) -> list[list[Any]]:
    return [values[start : start + size] for start in range(0, len(values), size)]


def ragged(lengths: list[int]) -> Grid:
    longest = max(lengths)
    return [[float(t < n) for t in range(longest)] for n in lengths]


def without_missing(rewards: Rewards) -> list[float]:
    return [reward for reward in rewards if reward is not None]


def estimated(name: str, params: Named, rewards: Rewards, size: int, rows: list[float], **further: Any) -> Named:
    inputs: Named = {"rewards": rewards, "group_size": size}
    inputs |= {key: further.pop(key) for key in ("mask", "correct", "greedy_rewards", "parts") if key in further}
    inputs.setdefault("mask", ragged([1 + i % 3 for i in range(len(rewards))]))
    return case(name, params, inputs, {"advantages_per_row": rows, **further})


def maxrl() -> list[Named]:
    verdicts: Rewards = [1, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 1, 1, 1, 1]
    missing: Rewards = [1, None, 0, 0, None, None, None, None, None, 1, None, None, None, 0, 0, None, 1, 0, None, 1]

    def rows(values: Rewards, size: int) -> list[float]:
        result: list[float] = []
        for group in in_groups(values, size):
            known = without_missing(group)
            right, n = math.fsum(known), len(known)
            result += [0.0 if r is None or right <= 0 else (r / right - 1 / n) * n for r in group]
        return result

    graded: Rewards = [3.0, -0.5, -1.0, 3.0, -0.5, -0.5, -1.0, -1.0]
    right: Rewards = [1, 0, 0, 1, 0, 0, 0, 0]
    found = []
    for name, values, size in (("verdicts", verdicts, 4), ("missing", missing, 4), ("groups of one", [1, 0, None], 1)):
        rewards = [None if v is None else float(v) for v in values]
        correct = [float(bool(v)) for v in values]
        found.append(estimated(name, {}, rewards, size, rows(rewards, size), correct=correct))
    by_verdict = rows(right, 4)
    found.append(
        estimated(
            "graded", {}, graded, 4, by_verdict, correct=[float(bool(v)) for v in right], by_reward=rows(graded, 4)
        )
    )
    return found


def opo() -> list[Named]:
    cases: list[tuple[str, Rewards, list[int], int]] = [
        ("ragged", [1.0, 0.0, 0.25, -1.0, 1.0, 1.0, 0.0, 0.0], [1, 7, 3, 5, 2, 60, 4, 1], 4),
        ("equal rewards", [0.3, 0.3, 0.3, 0.3], [1, 2, 3, 4], 4),
        ("equal lengths", [1.0, 0.0, 0.25, -1.0, 0.0, 0.0, 0.0, 1.0], [3] * 8, 4),
        ("missing", [1.0, None, 0.0, None, None, None, None, 1.0], [5, 6, 2, 1, 3, 3, 3, 3], 4),
        ("a row without tokens", [1.0, 0.0, 1.0, 0.0], [4, 0, 2, 1], 4),
    ]
    found = []
    for name, rewards, lengths, size in cases:
        rows: list[float] = []
        for group in in_groups(list(zip(rewards, lengths, strict=True)), size):
            pairs = [(r, n) for r, n in group if r is not None]
            baseline = math.fsum(r * n for r, n in pairs) / sum(n for _, n in pairs) if pairs else 0.0
            rows += [0.0 if r is None else r - baseline for r, _ in group]
        found.append(estimated(name, {}, rewards, size, rows, mask=ragged(lengths)))
    return found


def remax() -> list[Named]:
    rewards: Rewards = [1.0, 0.0, 0.25, None, 1.0, 1.0, 0.0, 0.0]
    greedy = [1.0] * 4 + [0.25] * 4
    rows = [0.0 if r is None else r - g for r, g in zip(rewards, greedy, strict=True)]
    return [
        estimated("two prompts", {}, rewards, 4, rows, greedy_rewards=greedy),
        estimated("groups of one", {}, [1.0, 0.0], 1, [0.5, -1.0], greedy_rewards=[0.5, 1.0]),
    ]


def pass_at_k() -> list[Named]:
    """By enumeration of all subsets of k of a group of eight."""
    found, n = [], 8
    for k in (1, 2, 4, 8):
        groups = [[float(i < right) for i in range(n)] for right in (0, 1, 2, 4, 5, 7, 8)]
        # The right ones not first, so that an index is no rank.
        groups = [group[3:] + group[:3] for group in groups]
        result: dict[str, list[float]] = {}

        def add(name: str, values: list[float]) -> None:
            result.setdefault(name, []).extend(values)

        for group in groups:
            subsets = [(s, max(group[i] for i in s)) for s in itertools.combinations(range(n), k)]
            middle = mean(best for _, best in subsets)
            sigma = deviation([best for _, best in subsets], 0)
            of_row = [mean(best for s, best in subsets if i in s) - middle for i in range(n)]
            add("chen", [a / sigma if sigma > 1e-12 else 0.0 for a in of_row])
            add("chen_code", [a / (sigma + 1e-6) if sigma > 1e-12 else 0.0 for a in of_row])
            share = math.comb(n, k)
            plain = [math.fsum(best for s, best in subsets if i in s) / share for i in range(n)]
            add("pkpo", plain)

            def without(i: int) -> float:
                others = [
                    max((group[j] for j in s), default=0.0)
                    for s in itertools.combinations([j for j in range(n) if j != i], k - 1)
                ]
                return math.fsum(others) / share

            add("pkpo_loo", [plain[i] - without(i) for i in range(n)])
            first, second = sorted(group, reverse=True)[:2]
            best = group.index(first)
            std = deviation(group, 1) + 1e-6
            add("best_minus_second", [(first - second) * (i == best) for i in range(n)])
            add("best_minus_second_std", [(first - second) / std * (i == best) for i in range(n)])
        rewards: Rewards = [r for group in groups for r in group]
        inputs: Named = {"rewards": rewards, "group_size": n, "mask": ragged([2] * len(rewards)), "correct": rewards}
        found.append(case(f"k = {k}", {"k": k}, inputs, result))
    return found


def gdpo() -> list[Named]:
    three = [
        [[1.0, 0.0, 0.3], [0.0, 1.0, 0.3], [0.0, 0.0, 0.1], [1.0, 1.0, 0.9]],
        [[1.0, 1.0, 0.5], [1.0, 1.0, 0.5], [1.0, 1.0, 0.5], [1.0, 1.0, 0.5]],
        [[0.0, 1.0, 100.0], [0.0, 0.0, -20.0], [0.0, 1.0, 3.0], [1.0, 1.0, 4.0]],
    ]
    missing = [[list(row) for row in group] for group in three]
    missing[0][1] = missing[2][3] = [None, None, None]  # type: ignore[list-item]
    partly = [[list(row) for row in group] for group in three]
    partly[0][1][0] = partly[2][2][2] = None  # type: ignore[call-overload]
    constant = [three[1], three[1]]
    found = []
    for name, groups in (("three", three), ("missing", missing), ("one part missing", partly), ("constant", constant)):
        lengths = [1 + (5 * i) % 7 for i in range(4 * len(groups))]
        mask = ragged(lengths)

        def combined(epsilon: float) -> Rewards:
            rows: Rewards = []
            for group in groups:
                total: Rewards = [None if all(v is None for v in row) else 0.0 for row in group]
                for part in zip(*group, strict=True):
                    values = without_missing(list(part))
                    middle, std = mean(values), deviation(values, 1)
                    for i, value in enumerate(part):
                        if value is not None and max(values) > min(values):
                            total[i] = (total[i] or 0.0) + (value - middle) / (std + epsilon)
                rows += total
            return rows

        def over_rows(epsilon: float) -> list[float]:
            rows = combined(epsilon)
            middle, std = mean(without_missing(rows)), deviation(without_missing(rows), 1)
            return [0.0 if row is None else (row - middle) / (std + epsilon) for row in rows]

        def over_tokens() -> list[float]:
            rows = combined(1e-6)
            tokens = [row for row, n in zip(rows, lengths, strict=True) if row is not None for _ in range(n)]
            middle, variance = mean(tokens), deviation(tokens, 1) ** 2
            return [0.0 if row is None else (row - middle) / math.sqrt(variance + 1e-8) for row in rows]

        parts = [row for group in groups for row in group]
        rewards = [None if all(v is None for v in row) else math.fsum(without_missing(row)) for row in parts]
        further = {"trl": over_rows(1e-4), "verl": over_tokens()}
        found.append(estimated(name, {"epsilon": 1e-6}, rewards, 4, over_rows(1e-6), mask=mask, parts=parts, **further))
    return found


def batch_scale() -> list[Named]:
    cases: list[tuple[str, Rewards, int]] = [
        ("two prompts", [1.0, 0.0, 0.0, 0.25, 1.0, 1.0, 1.0, 0.0], 4),
        ("a prompt of equal rewards", [0.1, 0.1, 0.1, 0.1, 1.0, 0.0, 0.0, 0.0], 4),
        ("every reward equal", [0.1] * 8, 4),
        ("apart", [5.0, 5.0, 5.0, 5.1, 0.0, 0.0, 0.1, 0.0], 4),
        ("missing", [1.0, None, 0.0, 0.0, None, None, None, None, 1.0, 1.0, 0.0, 1.0], 4),
    ]
    found = []
    for name, rewards, size in cases:
        std = deviation(without_missing(rewards), 1)

        def rows(epsilon: float) -> list[float]:
            result: list[float] = []
            for group in in_groups(rewards, size):
                values = without_missing(group)
                equal = not values or max(values) == min(values)
                result += [0.0 if r is None or equal else (r - mean(values)) / (std + epsilon) for r in group]
            return result

        found.append(estimated(name, {"epsilon": 1e-6}, rewards, size, rows(1e-6), trl=rows(1e-4)))
    return found


def opd() -> list[Named]:
    found = []
    for name, of in batches(2800, ref_log_probs=True).items():
        of["teacher_log_probs"] = of.pop("ref_log_probs")
        if name == "extreme":
            of["teacher_log_probs"][1][0], of["teacher_log_probs"][3][1] = -40.0, -0.001
        del of["advantages"]

        def apart(i: int, t: int) -> float:
            return of["teacher_log_probs"][i][t] - of["old_log_probs"][i][t]

        def prime_rl(i: int, t: int) -> float:
            x, o, r = of["log_probs"][i][t], of["old_log_probs"][i][t], ratio(of, i, t)
            kept = math.exp(x) - math.exp(o) >= -0.2
            return -(of["teacher_log_probs"][i][t] - x) * r * kept + 2e-3 * (x - o)

        clips = {f"{c:g}": grid(of, lambda i, t: min(max(apart(i, t), -c), c)) for c in (1.0, 5.0)}
        expected = {
            "advantages": grid(of, apart),
            "advantages_clipped": clips,
            "prime_rl": {"grad_of_sum": grid(of, prime_rl)},
        }
        found.append(case(name, {}, of, expected))
    return found


def entropy_bonus() -> list[Named]:
    found, words = [], 6
    for number, (name, scale) in enumerate((("near uniform", 0.1), ("ordinary", 1.5), ("nearly certain", 20.0))):
        draw = random.Random(2900 + number)
        mask = ragged([1, 4, 0, 3])
        of: Named = {
            "mask": mask,
            "logits": [[[round(draw.gauss(0, scale), 4) for _ in range(words)] for _ in row] for row in mask],
        }
        of["logits"][1][0] = [0.0] * words
        of["logits"][1][1] = [0.0, -1e4, 0.0, 50.0, -1e4, 50.0]
        count = len(places(of))
        zeros = [[[0.0] * words for _ in row] for row in mask]
        entropies, slopes = [[0.0 for _ in row] for row in mask], zeros
        for i, t in places(of):
            top = max(of["logits"][i][t])
            p = softmax([z - top for z in of["logits"][i][t]])
            log_total = math.log(math.fsum(math.exp(z - top) for z in of["logits"][i][t]))
            log_p = [z - top - log_total for z in of["logits"][i][t]]
            h = -math.fsum(a * b for a, b in zip(p, log_p, strict=True))
            entropies[i][t] = h
            slopes[i][t] = [0.01 / count * a * (b + h) for a, b in zip(p, log_p, strict=True)]
        total = math.fsum(map(math.fsum, entropies))
        expected = {"entropies": entropies, "loss": -0.01 * total / count, "grad_logits": slopes}
        found.append(case(name, {"coefficient": 0.01}, of, expected))
    measured = [0.5, 0.3, 0.15, 0.2, 0.1, 0.1, 0.25, 0.2, 0.6, 0.6, 0.05]
    delta, target, largest = 0.005, 0.2, 0.012
    for rule in ("paper", "code", "trl"):
        c, enabled, before, applied = 0.0, True, [], []
        for e in measured:
            below, above = e < target or (rule == "trl" and e == target), e > target or (rule == "code" and e == target)
            before.append(c)
            applied.append(c * (e <= target if rule == "paper" else enabled))
            c = min(max(c + delta * (below - above), 0.0), largest)
            enabled = below
        params = {"adaptive": rule, "target": target, "delta": delta, "min": 0.0, "max": largest, "start": 0.0}
        expected = {"coefficient_before": before, "coefficient_applied": applied}
        found.append(case(f"adaptive, {rule}", params, {"measured": measured}, expected))
    return found


def lengths() -> list[Named]:
    found = []
    for longest, cache in ((100, 20), (100, 0), (7, 7)):
        of = [0, 1, longest - cache - 1, longest - cache, longest - cache + 1, longest - 1, longest, longest + 1]
        of = [n for n in of if n >= 0]
        rewards = [
            0.0 if n <= longest - cache else ((longest - cache) - n) / cache if n <= longest else -1.0 for n in of
        ]
        params = {"kind": "overlong", "max_length": longest, "cache": cache}
        found.append(case(f"overlong {longest}, {cache}", params, {"lengths": of}, {"penalties": rewards}))
    groups: list[tuple[Rewards, list[int]]] = [
        ([1.0, 1.0, 0.0, 0.0], [10, 30, 20, 40]),
        ([0.0, 0.0, 0.0, 0.0], [10, 30, 20, 40]),
        ([1.0, 1.0, 1.0, 1.0], [5, 5, 5, 5]),
        ([1.0, 0.0, None, 1.0], [1, 9, 50, 4]),
        ([1.0, 1.0, 0.0, 1.0], [0, 0, 3, 0]),
        ([None, None, None, None], [1, 2, 3, 4]),
    ]
    rewards = [r for group, _ in groups for r in group]
    counts = [n for _, group in groups for n in group]
    for coefficient in (0.5, 1.0):
        linear: Rewards = []
        for group, of in groups:
            known = [(r, n) for r, n in zip(group, of, strict=True) if r is not None]
            rate, most = mean(r for r, _ in known) if known else 0.0, max((n for _, n in known), default=1)
            linear += [
                None if r is None else r - coefficient * rate * n / max(most, 1) for r, n in zip(group, of, strict=True)
            ]
        params = {"kind": "linear", "coefficient": coefficient}
        inputs: Named = {"rewards": rewards, "lengths": counts, "group_size": 4}
        found.append(case(f"linear {coefficient:g}", params, inputs, {"rewards": linear}))
    brief: Rewards = []
    for group, of in groups:
        right = [n for r, n in zip(group, of, strict=True) if r == 1.0]
        middle = mean(right) if right else 0.0
        for r, n in zip(group, of, strict=True):
            bonus = min(max(1 - n / middle, 0.0), 1.0) if middle else 0.0
            brief.append(r if r is None or r != 1.0 else r * (1 + bonus))
    inputs = {"rewards": rewards, "lengths": counts, "group_size": 4, "correct": [float(r == 1.0) for r in rewards]}
    found.append(case("brevity", {"kind": "brevity"}, inputs, {"rewards": brief}))
    return found


def corrections() -> list[Named]:
    """Log ratios d = log pi_old - log pi_sampler of each token, rows of any length; weights of tokens or rows."""
    ln2, e = math.log(2.0), 1e-6
    rows = [
        [0.0, 0.1, -0.2],
        [0.9, -0.9, 0.3, 0.0],
        [ln2 - e],
        [ln2 + e],
        [e - ln2],
        [-e - ln2],
        [math.log(5.0) - e, math.log(5.0) + e, -2.0],
        [3.0, -3.0],
        [12.0],
        [-12.0],
        [0.5, 0.6],
        [],
        [1.5, 1.7],
    ]
    long = [(4000, 0.012, False), (4000, -0.2, False), (4000, 0.25, True), (4000, 1e-4, False), (100, 0.012, False)]

    def of_rows(values: list[list[float]], name: str, inputs: Named) -> Named:
        cap, low, high, near, far = 2.0, 0.5, 5.0, 0.999, 1.001
        total = [math.fsum(row) for row in values]
        product = [math.exp(min(t, 700.0)) for t in total]
        middle = [t / len(row) if row else 0.0 for t, row in zip(total, values, strict=True)]
        every = [d for row in values for d in row]
        expected: Named = {
            "sequence": [min(w, cap) for w in product],
            "mis": [w if w <= cap else 0.0 for w in product],
            "geometric": [float(math.log(near) <= m <= math.log(far)) for m in middle],
            "geometric_.5_2": [float(0.5 <= math.exp(m) <= 2.0) for m in middle],
            "mismatch": {
                "mean_abs": mean(map(abs, every)),
                "k3": mean(math.exp(d) - 1 - d for d in every),
                "share_beyond_2": mean(float(abs(d) > ln2) for d in every),
            },
        }
        if "rows" in inputs:
            expected["token"] = [[min(math.exp(d), cap) for d in row] for row in values]
            expected["icepop"] = [[math.exp(d) if low <= math.exp(d) <= high else 0.0 for d in row] for row in values]
        params = {"cap": cap, "icepop": [low, high], "geometric": [near, far]}
        return case(name, params, inputs, expected)

    def spelled(n: int, d: float, alternates: bool) -> list[float]:
        return [d * (-1) ** t if alternates else d for t in range(n)]

    short = of_rows(rows, "short", {"rows": rows})
    far_from([math.exp(d) for row in rows for d in row], 5.0, 2.0, 0.5, by=e / 4)
    whole = of_rows([spelled(*row) for row in long], "4,000 tokens", {"long_rows": [list(row) for row in long]})
    # The sequence mask: drift = log pi_sampler - log pi of each token.
    drift = [[0.3, 0.1], [0.3, 0.1], [-0.3, -0.1], [-0.3, -0.1], [], [0.25, 0.25], [0.25, 0.25], [9.0], [9.0], [0.5]]
    signs = [-1.0, 1.0, -1.0, 1.0, -1.0, -1.0, 1.0, -1.0, 0.0, -1e-9]
    found = [short, whole]
    for delta in (0.25, 1e-4):
        # A row exactly at delta is kept.
        kept = [
            float(not (a < 0 and row and math.fsum(row) / len(row) > delta))
            for row, a in zip(drift, signs, strict=True)
        ]
        inputs = {"drift": drift, "advantages_per_row": signs}
        found.append(case(f"opsm {delta:g}", {"delta": delta}, inputs, {"opsm": kept}))
    return found


def controls() -> list[Named]:
    answers = [
        ["7", "7", "8", None],
        ["8", "7", "8", "7"],
        [None, None, None, None],
        ["7", "7", "7", "7"],
        ["9", "9", "7", "8"],
        ["7", None, None, None],
    ]
    truth = "7"
    judged = [[True, True, True, True]] * 5 + [[True, True, True, False]]
    majority: list[Rewards] = []
    agrees: list[Rewards] = []
    for group, known in zip(answers, judged, strict=True):
        votes = [answer for answer, yes in zip(group, known, strict=True) if answer is not None and yes]
        # The first of the most frequent answers.
        label = max(dict.fromkeys(votes), key=votes.count) if votes else None
        majority.append([float(a is not None and a == label) if y else None for a, y in zip(group, known, strict=True)])
        wrong = label if label != truth else None
        agrees.append([float(a is not None and a == wrong) if y else None for a, y in zip(group, known, strict=True)])
    inputs: Named = {"answers": answers, "truth": truth, "judged": [[float(y) for y in row] for row in judged]}
    opposite = [
        [float(a != truth) if y else None for a, y in zip(group, known, strict=True)]
        for group, known in zip(answers, judged, strict=True)
    ]
    readable = [
        [float(a is not None) if y else None for a, y in zip(group, known, strict=True)]
        for group, known in zip(answers, judged, strict=True)
    ]
    expected = {"majority": majority, "incorrect_opposite": opposite, "incorrect_label": agrees, "format": readable}
    return [case("six prompts", {}, inputs, expected)]


FILES: dict[str, Callable[[], list[Named]]] = {
    "dppo": dppo,
    "sapo": sapo,
    "gmpo": gmpo,
    "vespo": vespo,
    "luspo": luspo,
    "clip_cov": clip_cov,
    "kl_cov": kl_cov,
    "maxrl": maxrl,
    "opo": opo,
    "remax": remax,
    "pass_at_k": pass_at_k,
    "gdpo": gdpo,
    "batch_scale": batch_scale,
    "opd": opd,
    "entropy_bonus": entropy_bonus,
    "lengths": lengths,
    "corrections": corrections,
    "controls": controls,
}


def document(name: str) -> Named:
    return {"notes": NOTES[name], **reference.document(name, FILES)}


def main() -> None:
    for name in FILES:
        reference.write(document(name))


if __name__ == "__main__":
    main()
