"""Do the statistics hold what they promise? Coverage, false positives and power, by simulation.

    python -m benchmarks.statistics [--tables 2000] [--only coverage,powers]

prints the tables of docs/statistics.md, in a quarter of an hour of one core; ``--tables 200`` is a quick look.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy.special import stdtrit

from rlvr_cli.stats.clustered import MeanVariance, VarianceComponents, half_width, p_value, two_way
from rlvr_cli.stats.intervals import student_quantile
from rlvr_cli.stats.permutation import holm, permutation_test
from rlvr_cli.stats.power import PlannedTest
from rlvr_cli.stats.scores import Array

SEEDS, PROBLEMS, RUN_SDS = (2, 3, 5, 10), (50, 200, 400), (0.0, 0.01, 0.03)
# Standard deviations in logits: of problems, and of each run on each problem.
DIFFICULTY, RUN_BY_PROBLEM = 1.5, 0.5
# The true difference of two arms, in logits.
SHIFT = 0.25
BOOTSTRAPPED = DRAWS = 400
FAMILY = 6
LOOKS = (3, 5, 8, 12, 20, 30)
# Standard deviations of runs, problems and the rest.
VARIANCES = ((0.0, 0.1, 0.3), (0.01, 0.1, 0.2), (0.03, 0.05, 0.3), (0.03, 0.2, 0.1))


@dataclass(frozen=True)
class Kind:
    """What problems and samples are like.

    ``interaction``: standard deviation, in logits, of what a method does to a problem, in every run alike.
    ``samples``: how many a problem, run and arm. ``shared``: correlation of the run effects of arms of one seed.
    """

    name: str
    interaction: float
    samples: int
    shared: float

    @property
    def spread(self) -> float:
        return float(np.sqrt(DIFFICULTY**2 + self.interaction**2 + RUN_BY_PROBLEM**2))


KINDS = (
    Kind("A: methods differ by problem, 8 samples", 0.5, 8, 0.0),
    Kind("B: methods differ much by problem, 32 samples", 1.0, 32, 0.5),
    Kind("C: methods alike, 4 samples", 0.2, 4, 0.5),
    Kind("D: methods equal, 1 sample", 0.0, 1, 0.0),
)


def simulated(
    kind: Kind, seeds: int, problems: int, run_sd: float, shifts: tuple[float, ...], tables: int, seed: int = 0
) -> Iterator[list[Array]]:
    """Yield chunks of score tables [chunk, S, P] of ``tables`` comparisons, one array an arm.

    A sample is right with probability sigmoid(difficulty[p] + shift + run[s] + interaction[p] + noise[s, p]); the
    difficulty is normal of standard deviation ``DIFFICULTY``, all else as in ``kind``; ``run_sd`` is the standard
    deviation of a run's mean score. A score is the mean over samples.
    """
    generator = np.random.default_rng([seed, seeds, problems, int(run_sd * 1000), kind.samples])
    effect = _run_logits(kind, run_sd)
    left = tables
    while left > 0:
        n = min(left, max(1, 1_000_000 // (seeds * problems)))
        left -= n
        difficulty = generator.normal(0.0, DIFFICULTY, (n, 1, problems))
        common = generator.normal(size=(n, seeds, 1))
        arms = []
        for shift in shifts:
            own = generator.normal(size=(n, seeds, 1))
            logits = difficulty + shift + effect * (np.sqrt(kind.shared) * common + np.sqrt(1 - kind.shared) * own)
            logits = logits + kind.interaction * generator.normal(size=(n, 1, problems))
            logits = logits + RUN_BY_PROBLEM * generator.normal(size=(n, seeds, problems))
            arms.append(generator.binomial(kind.samples, _right(logits)) / kind.samples)
        yield arms


def _right(logits: Array) -> Array:
    right: Array = 1 / (1 + np.exp(-logits))
    return right


def _run_logits(kind: Kind, run_sd: float) -> float:
    """Return the run effect in logits that moves the mean score by ``run_sd``."""
    return run_sd / _expected(lambda logits: _right(logits) * (1 - _right(logits)), 0.0, kind.spread)


def true_mean(kind: Kind, run_sd: float, shift: float) -> float:
    """Return the mean score over all runs and problems, by quadrature over the sum of all normal effects."""
    return _expected(_right, shift, float(np.hypot(kind.spread, _run_logits(kind, run_sd))))


def _expected(function: Callable[[Array], Array], mean: float, spread: float) -> float:
    nodes, weights = np.polynomial.hermite_e.hermegauss(81)
    return float((weights * function(mean + spread * nodes)).sum() / weights.sum())


def covered(differences: Array, truth: float) -> dict[str, list[bool]]:
    """Return, for each kind of interval, in which tables [N, S, P] of differences it holds the truth."""
    table = two_way(differences)
    distance = np.abs(table.mean - truth)
    one_way = student_quantile(table.count - 1) * np.sqrt(table.problems / (table.seeds * table.count))
    widths = {
        "default": half_width(table.variance),
        "Welch": welch_half_width(table.variance),
        "problems only": one_way,
    }
    return {name: list(distance <= width) for name, width in widths.items()}


def welch_half_width(variance: MeanVariance, alpha: float = 0.05) -> Array:
    """Return the half width by one quantile, of the degrees of freedom of the sum (Welch and Satterthwaite 1946)."""
    runs, problems = variance.runs, variance.problems
    spread = runs.variance**2 / runs.degrees + problems.variance**2 / problems.degrees
    least = np.minimum(runs.degrees, problems.degrees)
    degrees = np.maximum(variance.total**2 / np.where(spread > 0, spread, np.inf), least)
    quantile: Array = -stdtrit(degrees, alpha / 2)
    return quantile * np.sqrt(variance.total)


def pigeonhole_covered(differences: Array, truth: float) -> list[bool]:
    """Return the same of the percentile interval of the pigeonhole bootstrap (Owen 2007).

    Seeds and problems are resampled with replacement, independently; a cell counts as often as its row times its
    column.
    """
    generator = np.random.default_rng(1)
    held = []
    for table in differences:
        rows, columns = (generator.multinomial(n, np.full(n, 1 / n), size=DRAWS) for n in table.shape)
        means = np.einsum("dp,dp->d", rows.astype(np.float64) @ table, columns.astype(np.float64)) / table.size
        low, high = np.quantile(means, (0.025, 0.975))
        held.append(bool(low <= truth <= high))
    return held


def setting_coverage(
    kind: Kind, seeds: int, problems: int, run_sd: float, tables: int, bootstrapped: int = 0
) -> dict[str, float]:
    """Return coverage in one setting, of arms that truly differ by ``SHIFT``; the bootstrap's on the first tables."""
    truth = true_mean(kind, run_sd, SHIFT) - true_mean(kind, run_sd, 0.0)
    found: dict[str, list[bool]] = {}
    for a, b in simulated(kind, seeds, problems, run_sd, (SHIFT, 0.0), tables):
        for name, hits in covered(a - b, truth).items():
            found.setdefault(name, []).extend(hits)
        if (left := bootstrapped - len(found.get("pigeonhole", []))) > 0:
            found.setdefault("pigeonhole", []).extend(pigeonhole_covered((a - b)[:left], truth))
    return {name: float(np.mean(hits)) for name, hits in found.items()}


def any_rejected(arms: list[Array], pairs: list[tuple[int, int]]) -> list[bool]:
    """Return, for every simulated family, whether Holm's correction rejects any of the comparisons."""
    columns = []
    for i, j in pairs:
        table = two_way(arms[i] - arms[j])
        columns.append(p_value(table.mean, table.variance))
    return [min(holm(row)) <= 0.05 for row in np.stack(columns, axis=1)]


def any_outside_welch(arms: list[Array], pairs: list[tuple[int, int]]) -> list[bool]:
    """Return the same if p were Welch's: Holm rejects any where the least p times their number is at most 0.05."""
    outside = np.zeros(len(arms[0]), dtype=bool)
    for i, j in pairs:
        table = two_way(arms[i] - arms[j])
        outside |= np.abs(table.mean) >= welch_half_width(table.variance, 0.05 / len(pairs))
    return list(outside)


def rejections(kind: Kind, seeds: int, run_sd: float, shift: float, tables: int) -> dict[str, float]:
    """Return the share of p < 0.05 for each test, 200 problems."""
    signs = np.random.default_rng(3).choice([-1.0, 1.0], (399, 200))
    found: dict[str, list[bool]] = {"crossed": [], "runs": [], "problems": []}
    for a, b in simulated(kind, seeds, 200, run_sd, (shift, 0.0), tables, seed=4):
        table = two_way(a - b)
        found["crossed"] += list(p_value(table.mean, table.variance) < 0.05)
        for one, other in zip(a, b, strict=True):
            test = permutation_test(one, other, draws=499)
            found["runs"].append(test is not None and test.p_value < 0.05)
            difference = (one - other).mean(0)
            extreme = np.abs(signs @ difference) >= abs(difference.sum()) * (1 - 1e-9)
            found["problems"].append((1 + extreme.sum()) / 400 < 0.05)
    return {name: float(np.mean(hits)) for name, hits in found.items()}


def row(*cells: object) -> str:
    return f"| {' | '.join(f'{cell:.3f}' if isinstance(cell, np.floating) else str(cell) for cell in cells)} |"


def head(*titles: str) -> str:
    return f"{row(*titles)}\n{'|---' * len(titles)}|"


def coverage(tables: int) -> Iterator[str]:
    """Yield the share of 95% intervals of a paired difference that hold the truth."""
    yield head("seeds", "problems", "run sd", *"ABCD", "Welch", "problems only", "pigeonhole")
    for seeds in SEEDS:
        for problems in PROBLEMS:
            for run_sd in RUN_SDS:
                n = tables * 10 // seeds
                kinds = [setting_coverage(kind, seeds, problems, run_sd, n, BOOTSTRAPPED) for kind in KINDS]
                others = [[of[name] for of in kinds] for name in ("Welch", "problems only", "pigeonhole")]
                spans = [f"{min(shares):.3f} to {max(shares):.3f}" for shares in others]
                yield row(seeds, problems, run_sd, *(np.float64(of["default"]) for of in kinds), *spans)


def looks(tables: int) -> Iterator[str]:
    """Yield how often equal methods are called different at some look, where seeds are added and compared again."""
    schedules = {"30": (30,), ", ".join(map(str, LOOKS)): LOOKS, "3 to 30, each": tuple(range(3, 31))}
    yield head("run sd", "kind", *schedules)
    for run_sd in (0.0, 0.03):
        for kind in KINDS:
            called: dict[int, list[bool]] = {seeds: [] for seeds in range(3, 31)}
            for a, b in simulated(kind, 30, 200, run_sd, (0.0, 0.0), tables, seed=13):
                for seeds, rows in called.items():
                    rows += [not held for held in covered((a - b)[:, :seeds], 0.0)["default"]]
            rates = [np.mean(np.any([called[seeds] for seeds in counts], axis=0)) for counts in schedules.values()]
            yield row(run_sd, kind.name[0], *rates)


def families(tables: int) -> Iterator[str]:
    """Yield the share of families of equal methods in which Holm's correction leaves any p at or below 0.05."""
    yield head("seeds", "problems", "kind", f"{FAMILY} against a baseline", "all pairs of 4", "Welch")
    star, pairs = [(0, i) for i in range(1, FAMILY + 1)], list(combinations(range(4), 2))
    for seeds in SEEDS:
        for problems in (50, 400):
            for kind in KINDS:
                found: list[list[bool]] = [[], [], []]
                for arms in simulated(kind, seeds, problems, 0.02, (0.0,) * 7, tables * 10 // seeds, seed=2):
                    found[0] += any_rejected(arms, star)
                    found[1] += any_rejected(arms, pairs)
                    found[2] += any_outside_welch(arms, star)
                yield row(seeds, problems, kind.name[0], *(np.mean(hits) for hits in found))


def tests(tables: int) -> Iterator[str]:
    """Yield false positives and power of p < 0.05 of three tests."""
    yield head("seeds", "run sd", "kind", "crossed p", "runs permuted", "signs flipped by problem")
    for seeds in (4, 5, 10):
        for kind, run_sd in zip(KINDS, (0.02, 0.0, 0.02), strict=False):
            false, power = (rejections(kind, seeds, run_sd, shift, tables // 2) for shift in (0.0, SHIFT))
            yield row(seeds, run_sd, kind.name[0], *(f"{false[name]:.3f} / {power[name]:.2f}" for name in false))


def powers(tables: int) -> Iterator[str]:
    """Yield power at the difference that should be seen in 80%; normal data of known variances."""
    yield head("seeds", "problems", "run sd", "problem sd", "rest sd", "difference seen in 80%", "simulated power")
    for seeds in SEEDS:
        for problems in (50, 400):
            for number, (run, problem, rest) in enumerate(VARIANCES):
                generator = np.random.default_rng([5, seeds, problems, number])
                planned = PlannedTest(VarianceComponents(run**2, problem**2, rest**2))
                difference = planned.detectable_difference(seeds, problems)
                hits: list[bool] = []
                for _ in range(max(1, tables // 100)):
                    data = difference + run * generator.normal(size=(100, seeds, 1))
                    data = data + problem * generator.normal(size=(100, 1, problems))
                    table = two_way(data + rest * generator.normal(size=(100, seeds, problems)))
                    hits += list(p_value(table.mean, table.variance) < 0.05)
                yield row(seeds, problems, run, problem, rest, f"{difference:.4f}", np.mean(hits))


TABLES = (coverage, looks, families, tests, powers)


def main() -> None:
    """Print all tables as Markdown."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("--tables", type=int, default=2000, help="simulated comparisons with 10 seeds")
    parser.add_argument("--only", metavar="NAME[,NAME...]", help="of the tables: as `coverage,powers`")
    arguments = parser.parse_args()
    print(f"{'; '.join(kind.name for kind in KINDS)}.")
    names = {table.__name__: table for table in TABLES}
    for name in names if arguments.only is None else arguments.only.split(","):
        print(f"\n### {name}\n", flush=True)
        for line in names[name](arguments.tables):
            print(line, flush=True)


if __name__ == "__main__":
    main()
