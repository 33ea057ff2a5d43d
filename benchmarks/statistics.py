"""Do the statistics hold what they promise? Coverage, false positives, power and pass@k, by simulation.

    python -m benchmarks.statistics

prints the tables that docs/statistics.md summarizes; about half an hour of one core. ``--tables 200`` is a quick look;
``--only`` and ``--seeds`` print a part: the numbers of a setting do not depend on the settings before it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations

import numpy as np
from scipy.special import stdtrit

from benchmarks.statistics_data import KINDS, Kind, simulated, true_mean
from experiments.claims.claims import FOLDER, read_claims, read_results
from rlvr_cli.stats.clustered import (
    MeanVariance,
    VarianceComponents,
    crossed_difference,
    crossed_interval,
    half_width,
    p_value,
    two_way,
)
from rlvr_cli.stats.intervals import student_quantile
from rlvr_cli.stats.passk import pass_at_k
from rlvr_cli.stats.permutation import holm, permutation_test
from rlvr_cli.stats.power import PlannedTest
from rlvr_cli.stats.scores import Array

SEEDS, PROBLEMS, RUN_SDS = (2, 3, 5, 10), (50, 200, 400), (0.0, 0.01, 0.03)
BOOTSTRAPPED = 400
DRAWS = 400
SHIFT = 0.25
# Mean logits of problems; the scores' means are about .02, .05, .89, .95 and .98, with the sd of a run's mean score.
EXTREMES = ((-5.2, 0.005), (-4.0, 0.01), (3.0, 0.02), (4.0, 0.01), (5.2, 0.005))
FAMILY = 6
LOOKS = (3, 5, 8, 12, 20, 30)
LETTERS = "ABCD"
# Standard deviations of runs, problems and the rest.
VARIANCES = ((0.0, 0.1, 0.3), (0.01, 0.1, 0.2), (0.03, 0.05, 0.3), (0.03, 0.2, 0.1))
# Problems of each of three tasks.
TASKS = (40, 100, 200)


def covered(differences: Array, truth: float) -> dict[str, list[bool]]:
    """For each kind of interval, in which tables [N, S, P] of differences it holds the truth."""
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
    """Welch and Satterthwaite 1946: one quantile, of the degrees of freedom of the sum of both parts."""
    runs, problems = variance.runs, variance.problems
    spread = runs.variance**2 / runs.degrees + problems.variance**2 / problems.degrees
    least = np.minimum(runs.degrees, problems.degrees)
    degrees = np.maximum(variance.total**2 / np.where(spread > 0, spread, np.inf), least)
    quantile: Array = -stdtrit(degrees, alpha / 2)
    return quantile * np.sqrt(variance.total)


def pigeonhole_means(tables: Array, generator: np.random.Generator, draws: int) -> Array:
    """The means [..., draws] of resampled tables [..., S, P]; all tables are resampled alike.

    Seeds and problems are resampled with replacement, independently; a cell counts as often as its row times its
    column (Owen 2007, "The pigeonhole bootstrap").
    """
    rows, columns = (generator.multinomial(n, np.full(n, 1 / n), size=draws) for n in tables.shape[-2:])
    cells = tables.shape[-2] * tables.shape[-1]
    means: Array = np.einsum("...dp,dp->...d", rows.astype(np.float64) @ tables, columns.astype(np.float64)) / cells
    return means


def pigeonhole_covered(differences: Array, truth: float) -> list[bool]:
    """The same of the pigeonhole bootstrap's percentile interval, each table resampled by itself."""
    generator = np.random.default_rng(1)
    means = np.stack([pigeonhole_means(table, generator, DRAWS) for table in differences])
    low, high = np.quantile(means, (0.025, 0.975), axis=1)
    return list((low <= truth) & (truth <= high))


def coverage(tables: int, seeds_of: tuple[int, ...] = SEEDS) -> Iterator[str]:
    """The share of 95% intervals that hold the true difference."""
    yield "| seeds | problems | run sd | " + " | ".join(LETTERS) + " | Welch | problems only | pigeonhole |"
    yield "|---" * (len(LETTERS) + 6) + "|"
    seen: dict[str, list[float]] = {}
    for seeds in seeds_of:
        for problems in PROBLEMS:
            for run_sd in RUN_SDS:
                row: dict[str, list[float]] = {}
                for kind in KINDS:
                    n = tables * 10 // seeds
                    found = setting_coverage(kind, seeds, problems, run_sd, n, BOOTSTRAPPED)
                    for name, share in found.items():
                        row.setdefault(name, []).append(share)
                        seen.setdefault(name, []).append(share)
                cells = [f"{share:.3f}" for share in row["default"]]
                cells += [span(row[name]) for name in ("Welch", "problems only", "pigeonhole")]
                yield f"| {seeds} | {problems} | {run_sd} | " + " | ".join(cells) + " |"
    yield ""
    for name, shares in seen.items():
        outside = sum(not 0.93 <= share <= 0.97 for share in shares)
        yield f"- {name}: {span(shares)}; outside 0.93 to 0.97 in {outside} of {len(shares)} settings"


def setting_coverage(
    kind: Kind, seeds: int, problems: int, run_sd: float, tables: int, bootstrapped: int = 0, centre: float = 0.0
) -> dict[str, float]:
    """Coverage in one setting, arms that truly differ by ``SHIFT`` logits; the bootstrap's on the first tables."""
    truth = true_mean(kind, run_sd, SHIFT, centre) - true_mean(kind, run_sd, 0.0, centre)
    found: dict[str, list[bool]] = {}
    for a, b in simulated(kind, seeds, problems, run_sd, (SHIFT, 0.0), tables, centre=centre):
        differences = a - b
        for name, hits in covered(differences, truth).items():
            found.setdefault(name, []).extend(hits)
        done = len(found.get("pigeonhole", []))
        if done < bootstrapped:
            found.setdefault("pigeonhole", []).extend(pigeonhole_covered(differences[: bootstrapped - done], truth))
    return {name: float(np.mean(hits)) for name, hits in found.items()}


def extremes(tables: int, seeds_of: tuple[int, ...] = SEEDS) -> Iterator[str]:
    """Return the coverage of the default where almost all answers are right, or wrong."""
    yield "| seeds | problems | run sd | mean score | " + " | ".join(LETTERS) + " |"
    yield "|---" * (len(LETTERS) + 4) + "|"
    for seeds in seeds_of:
        for centre, run_sd in EXTREMES:
            for problems in (50, 200):
                n = tables * 10 // seeds
                mean = true_mean(KINDS[0], run_sd, 0.0, centre)
                rows = [setting_coverage(kind, seeds, problems, run_sd, n, centre=centre) for kind in KINDS]
                cells = " | ".join(f"{row['default']:.3f}" for row in rows)
                yield f"| {seeds} | {problems} | {run_sd} | {mean:.2f} | {cells} |"


def ledger_runs(tables: int, seeds_of: tuple[int, ...] = SEEDS) -> Iterator[str]:
    """Return the coverage where runs differ as those of the ledger: the accuracy differences of its contrasts.

    A run's difference is drawn from the 10 of a contrast, less their mean, smoothed by a normal kernel of Silverman's
    width, and of a third of it; problems and the rest are normal.
    """
    outcomes = [read_results(FOLDER / "ledger" / f"seeds-{first}.json").outcomes for first in (0, 10)]
    claims = read_claims().claims.values()
    names = [claim.id for claim in claims if claim.contrast is not None and claim.measure.unit == "accuracy"]
    yield f"{len(names)} contrasts"
    yield ""
    yield "| seeds | coverage | less smoothed |"
    yield "|---" * 3 + "|"
    for seeds in seeds_of:
        generator = np.random.default_rng([11, seeds])
        hits: list[list[bool]] = [[], []]
        for name in names:
            runs = np.concatenate([results[name].values for results in outcomes])
            size = (max(1, tables // 20), seeds)
            for held, width in zip(hits, (0.9, 0.3), strict=True):
                drawn = generator.choice(runs - runs.mean(), size)
                drawn = drawn + width * runs.std(ddof=1) * len(runs) ** -0.2 * generator.normal(size=size)
                cells = drawn[:, :, None] + 0.1 * generator.normal(size=(size[0], 1, 200))
                held += covered(cells + 0.2 * generator.normal(size=(*size, 200)), 0.0)["default"]
        yield f"| {seeds} | " + " | ".join(f"{np.mean(held):.3f}" for held in hits) + " |"


def collapses(tables: int, seeds_of: tuple[int, ...] = SEEDS) -> Iterator[str]:
    """Return the coverage where a run in five scores 0: in one arm, and in both; 200 problems, kind A."""
    yield "| seeds | runs of one arm collapse | runs of both |"
    yield "|---" * 3 + "|"
    for seeds in seeds_of:
        generator = np.random.default_rng([12, seeds])
        loss = -0.2 * true_mean(KINDS[0], 0.02, 0.0)
        hits: list[list[bool]] = [[], []]
        for a, b in simulated(KINDS[0], seeds, 200, 0.02, (0.0, 0.0), tables * 10 // seeds):
            kept = generator.random((2, len(a), seeds, 1)) >= 0.2
            hits[0] += covered(a * kept[0] - b, loss)["default"]
            hits[1] += covered(a * kept[0] - b * kept[1], 0.0)["default"]
        yield f"| {seeds} | " + " | ".join(f"{np.mean(held):.3f}" for held in hits) + " |"


def looks(tables: int) -> Iterator[str]:
    """Return how often equal methods are called different at some look, where seeds are added and compared again."""
    schedules = {"30": (30,), ", ".join(map(str, LOOKS)): LOOKS, "3 to 30, each": tuple(range(3, 31))}
    yield "| seeds at the looks | run sd | " + " | ".join(LETTERS) + " |"
    yield "|---" * (len(LETTERS) + 2) + "|"
    for run_sd in (0.0, 0.03):
        shares: dict[str, list[float]] = {name: [] for name in schedules}
        for kind in KINDS:
            called: dict[int, list[bool]] = {seeds: [] for seeds in range(3, 31)}
            for a, b in simulated(kind, 30, 200, run_sd, (0.0, 0.0), tables, seed=13):
                for seeds, rows in called.items():
                    rows += [not held for held in covered((a - b)[:, :seeds], 0.0)["default"]]
            for name, counts in schedules.items():
                shares[name].append(float(np.mean(np.any([called[seeds] for seeds in counts], axis=0))))
        for name, rates in shares.items():
            yield f"| {name} | {run_sd} | " + " | ".join(f"{rate:.3f}" for rate in rates) + " |"


def problem_families(tables: int, seeds_of: tuple[int, ...] = SEEDS) -> Iterator[str]:
    """Return the coverage where 10 problems in a row are variants of one: by problem, and of the families' means."""
    yield "| seeds | run sd | by problem: A | B | by family: A | B |"
    yield "|---" * 6 + "|"
    for seeds in seeds_of:
        for run_sd in (0.0, 0.03):
            shares: list[list[float]] = [[], []]
            for kind in (replace(kind, family=10) for kind in KINDS[:2]):
                hits: list[list[bool]] = [[], []]
                for a, b in simulated(kind, seeds, 200, run_sd, (0.0, 0.0), tables * 10 // seeds, seed=14):
                    means = (a - b).reshape(len(a), seeds, 20, 10).mean(-1)
                    for held, scores in zip(hits, (a - b, means), strict=True):
                        held += covered(scores, 0.0)["default"]
                for column, held in zip(shares, hits, strict=True):
                    column.append(float(np.mean(held)))
            yield f"| {seeds} | {run_sd} | " + " | ".join(f"{share:.3f}" for share in [*shares[0], *shares[1]]) + " |"


def unpaired(tables: int) -> Iterator[str]:
    """Coverage for arms whose seeds are not shared, of unequal number."""
    yield "| seeds | problems | run sd | " + " | ".join(LETTERS) + " |"
    yield "|---" * (len(LETTERS) + 3) + "|"
    for first, second, problems in ((2, 10, 200), (3, 5, 200), (5, 10, 200)):
        for run_sd in RUN_SDS:
            cells = []
            for kind in KINDS:
                apart = Kind(kind.name, kind.interaction, kind.samples, 0.0)
                truth = true_mean(apart, run_sd, SHIFT) - true_mean(apart, run_sd, 0.0)
                hits = []
                for a, b in simulated(apart, second, problems, run_sd, (SHIFT, 0.0), tables):
                    for one, other in zip(a[:, :first], b, strict=True):
                        estimate = crossed_difference([one], [other], paired=False)
                        hits.append(estimate.low is not None and estimate.high is not None
                                    and estimate.low <= truth <= estimate.high)  # fmt: skip
                cells.append(f"{np.mean(hits):.3f}")
            yield f"| {first} and {second} | {problems} | {run_sd} | " + " | ".join(cells) + " |"


def families(tables: int, seeds_of: tuple[int, ...] = SEEDS) -> Iterator[str]:
    """The share of families of equal methods in which Holm's correction leaves any p at or below 0.05."""
    letters = " | ".join(LETTERS)
    yield f"| seeds | problems | run sd | {FAMILY} against a baseline: {letters} | all pairs of 4: {letters} | Welch |"
    yield "|---" * (2 * len(LETTERS) + 4) + "|"
    designs = {"star": [(0, i) for i in range(1, FAMILY + 1)], "pairs": list(combinations(range(4), 2))}
    for seeds in seeds_of:
        for problems in (50, 400):
            run_sd = 0.02
            shares: dict[str, list[float]] = {"star": [], "pairs": [], "Welch": []}
            for kind in KINDS:
                found: dict[str, list[bool]] = {"star": [], "pairs": [], "Welch": []}
                n = tables * 10 // seeds
                for arms in simulated(kind, seeds, problems, run_sd, (0.0,) * (FAMILY + 1), n, seed=2):
                    for name, pairs in designs.items():
                        found[name] += any_rejected(arms, pairs)
                    found["Welch"] += any_outside_welch(arms, designs["star"])
                for name, hits in found.items():
                    shares[name].append(float(np.mean(hits)))
            cells = [f"{share:.3f}" for share in shares["star"] + shares["pairs"]] + [span(shares["Welch"])]
            yield f"| {seeds} | {problems} | {run_sd} | " + " | ".join(cells) + " |"


def any_rejected(arms: list[Array], pairs: list[tuple[int, int]]) -> list[bool]:
    """For every simulated family, whether Holm's correction rejects any of the comparisons."""
    columns = []
    for i, j in pairs:
        table = two_way(arms[i] - arms[j])
        columns.append(p_value(table.mean, table.variance))
    return [min(holm(row)) <= 0.05 for row in np.stack(columns, axis=1)]


def any_outside_welch(arms: list[Array], pairs: list[tuple[int, int]]) -> list[bool]:
    """The same if p were Welch's: Holm rejects any where the least p times their number is at most 0.05."""
    outside = np.zeros(len(arms[0]), dtype=bool)
    for i, j in pairs:
        table = two_way(arms[i] - arms[j])
        outside |= np.abs(table.mean) >= welch_half_width(table.variance, 0.05 / len(pairs))
    return list(outside)


def tests(tables: int) -> Iterator[str]:
    """False positives and power of p < 0.05 of three tests."""
    yield "| seeds | run sd | kind | crossed p | runs permuted | signs flipped by problem |"
    yield "|---" * 6 + "|"
    for seeds in (4, 5, 10):
        for kind, letter, run_sd in ((KINDS[0], "A", 0.02), (KINDS[1], "B", 0.0), (KINDS[2], "C", 0.02)):
            rates = [rejections(kind, seeds, run_sd, shift, tables) for shift in (0.0, SHIFT)]
            cells = [f"{rates[0][name]:.3f} / {rates[1][name]:.2f}" for name in rates[0]]
            yield f"| {seeds} | {run_sd} | {letter} | " + " | ".join(cells) + " |"


def rejections(kind: Kind, seeds: int, run_sd: float, shift: float, tables: int) -> dict[str, float]:
    """The share of p < 0.05 for each test, 200 problems."""
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


def powers(tables: int, seeds_of: tuple[int, ...] = SEEDS) -> Iterator[str]:
    """Power at the difference that should be seen in 80%, by simulation; normal data of known variances."""
    yield "| seeds | problems | run sd | problem sd | rest sd | difference seen in 80% | simulated power |"
    yield "|---" * 7 + "|"
    for seeds in seeds_of:
        for problems in (50, 400):
            for number, (run, problem, rest) in enumerate(VARIANCES):
                generator = np.random.default_rng([5, seeds, problems, number])
                components = VarianceComponents(run**2, problem**2, rest**2)
                difference = PlannedTest(components).detectable(seeds, problems)
                hits: list[bool] = []
                for _ in range(max(1, tables // 100)):
                    data = difference + run * generator.normal(size=(100, seeds, 1))
                    data = data + problem * generator.normal(size=(100, 1, problems))
                    table = two_way(data + rest * generator.normal(size=(100, seeds, problems)))
                    hits += list(p_value(table.mean, table.variance) < 0.05)
                yield (f"| {seeds} | {problems} | {run} | {problem} | {rest} | {difference:.4f} | "
                       f"{np.mean(hits):.3f} |")  # fmt: skip


def binary_powers(tables: int) -> Iterator[str]:
    """Power of simulated evaluations against the prediction from their own mean variance components."""
    yield "| seeds | problems | run sd | kind | true difference | predicted power | simulated power |"
    yield "|---" * 7 + "|"
    for seeds, problems, run_sd in ((3, 400, 0.01), (5, 200, 0.02), (10, 100, 0.02)):
        for kind, letter in zip(KINDS, LETTERS, strict=True):
            truth = true_mean(kind, run_sd, SHIFT) - true_mean(kind, run_sd, 0.0)
            hits: list[bool] = []
            squares = []
            for a, b in simulated(kind, seeds, problems, run_sd, (SHIFT, 0.0), tables, seed=6):
                table = two_way(a - b)
                hits += list(p_value(table.mean, table.variance) < 0.05)
                squares.append(np.stack([table.runs, table.problems, table.rest], axis=1))
            runs, columns, rest = np.concatenate(squares).mean(0)
            components = VarianceComponents(max(0.0, runs - rest) / problems, max(0.0, columns - rest) / seeds, rest)
            predicted = PlannedTest(components).chance(truth, seeds, problems)
            yield (f"| {seeds} | {problems} | {run_sd} | {letter} | {truth:.4f} | {predicted:.3f} | "
                   f"{np.mean(hits):.3f} |")  # fmt: skip


def unpaired_powers(tables: int, seeds_of: tuple[int, ...] = SEEDS) -> Iterator[str]:
    """The same of arms that share no seeds, at the difference that should be seen in 70%."""
    yield "| seeds | problems | run sd | problem sd | rest sd | difference seen in 70% | simulated power | if paired |"
    yield "|---" * 8 + "|"
    for seeds in seeds_of:
        for number, (run, problem, rest) in enumerate(VARIANCES):
            generator = np.random.default_rng([8, seeds, number])
            components = VarianceComponents(2 * run**2, problem**2, 2 * rest**2)
            difference = PlannedTest(components, paired=False, power=0.7).detectable(seeds, 100)
            hits = []
            for _ in range(tables):
                a, b = (run * generator.normal(size=(seeds, 1)) + rest * generator.normal(size=(seeds, 100))
                        for _ in range(2))  # fmt: skip
                a = a + difference + problem * generator.normal(size=(1, 100))
                p = crossed_difference([a], [b], paired=False).p_value
                hits.append(p is not None and p < 0.05)
            paired = PlannedTest(components).chance(difference, seeds, 100)
            yield (f"| {seeds} | 100 | {run} | {problem} | {rest} | {difference:.4f} | {np.mean(hits):.3f} | "
                   f"{paired:.3f} |")  # fmt: skip


def over_tasks(tables: int, seeds_of: tuple[int, ...] = SEEDS) -> Iterator[str]:
    """Coverage of the difference of the means over three tasks, whose runs are the same or each task's own."""
    yield "| runs | run sd | runs of the tasks | coverage | taken for the other kind |"
    yield "|---" * 5 + "|"
    for seeds in seeds_of:
        for run in (0.01, 0.03):
            for together in (True, False):
                generator = np.random.default_rng([9, seeds, int(run * 1000), together])
                hits: list[list[bool]] = [[], []]
                for _ in range(tables):
                    luck = generator.normal(size=(seeds, 1))
                    differences = []
                    for problems in TASKS:
                        own = luck if together else generator.normal(size=(seeds, 1))
                        table = run * own + 0.1 * generator.normal(size=(1, problems))
                        differences.append(table + 0.2 * generator.normal(size=(seeds, problems)))
                    for found, way in zip(hits, (together, not together), strict=True):
                        estimate = crossed_interval(*differences, together=way)
                        found.append(holds(estimate.low, estimate.high, 0.0))
                kind = "the same" if together else "each its own"
                yield f"| {seeds} | {run} | {kind} | " + " | ".join(f"{np.mean(found):.3f}" for found in hits) + " |"


def holds(low: float | None, high: float | None, truth: float) -> bool:
    """Whether an interval holds the truth."""
    return low is not None and high is not None and low <= truth <= high


def enumerated() -> Iterator[str]:
    """pass@k against the list of all subsets of the samples."""
    worst, cases = 0.0, 0
    for n in range(1, 13):
        for correct in range(n + 1):
            marks = [True] * correct + [False] * (n - correct)
            for k in range(1, n + 1):
                share = np.mean([any(subset) for subset in combinations(marks, k)])
                worst, cases = max(worst, abs(pass_at_k(n, correct, k) - float(share))), cases + 1
    yield f"{cases} cases (all n up to 12, all c and k): the largest difference is {worst:.1e}."


def span(shares: list[float]) -> str:
    return f"{min(shares):.3f} to {max(shares):.3f}"


def main() -> None:
    """Print all tables as Markdown."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("--tables", type=int, default=2000, help="simulated comparisons with 10 seeds")
    parser.add_argument("--only", metavar="NAME[,NAME...]", help="of the tables: as `coverage,powers`")
    parser.add_argument("--seeds", metavar="N[,N...]", help="of the rows of tables that have rows for seeds")
    arguments = parser.parse_args()
    n = arguments.tables
    seeds = {} if arguments.seeds is None else {"seeds_of": tuple(int(one) for one in arguments.seeds.split(","))}
    print(". ".join(f"{letter}: {kind.name}" for letter, kind in zip(LETTERS, KINDS, strict=True)) + ".")
    many = " and ".join(f"{n * 10 // number} ({number} seeds)" for number in seeds.get("seeds_of", SEEDS))
    tables: dict[str, tuple[str, Callable[[], Iterator[str]]]] = {
        "coverage": (
            f"Coverage of the 95% interval of a paired difference; {many} comparisons",
            lambda: coverage(n, **seeds),
        ),
        "extremes": (
            f"Coverage where almost all answers are right or wrong; {many} comparisons",
            lambda: extremes(n, **seeds),
        ),
        "unpaired": (f"Coverage for seeds that are not shared; {n // 2} comparisons", lambda: unpaired(n // 2)),
        "ledger_runs": (
            f"Coverage with the run differences of the ledger; {n // 20} comparisons a contrast",
            lambda: ledger_runs(n, **seeds),
        ),
        "collapses": (f"Coverage where a run in five collapses; {many} comparisons", lambda: collapses(n, **seeds)),
        "looks": (f"False positives where seeds are added and compared again; {n} comparisons", lambda: looks(n)),
        "problem_families": (
            f"Coverage with families of 10 similar problems; {many} comparisons",
            lambda: problem_families(n, **seeds),
        ),
        "families": (
            f"False positives of a family after Holm's correction; {many} families",
            lambda: families(n, **seeds),
        ),
        "tests": (f"False positives / power of single tests at 5%; {n // 2} comparisons", lambda: tests(n // 2)),
        "powers": (f"Power, normal data; {n} comparisons", lambda: powers(n, **seeds)),
        "unpaired_powers": (
            f"Power of arms that share no seeds, normal data; {n} comparisons",
            lambda: unpaired_powers(n, **seeds),
        ),
        "binary_powers": (f"Power, simulated evaluations; {n} comparisons", lambda: binary_powers(n)),
        "over_tasks": (
            f"Coverage of the difference of means over tasks; {n} comparisons",
            lambda: over_tasks(n, **seeds),
        ),
        "enumerated": ("pass@k against enumeration", enumerated),
    }
    for name in tables if arguments.only is None else arguments.only.split(","):
        title, lines = tables[name]
        print(f"\n### {title}\n", flush=True)
        for line in lines():
            print(line, flush=True)


if __name__ == "__main__":
    main()
