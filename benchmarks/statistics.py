"""Do the statistics hold what they promise? Coverage, false positives, power and pass@k, by simulation.

    python -m benchmarks.statistics

prints the tables of docs/statistics.md; about a quarter of an hour of one core. ``--tables 200`` is a quick look.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import combinations

import numpy as np

from benchmarks.statistics_data import KINDS, Kind, simulated, true_mean
from rlvr_cli.stats.aggregate import iqm_interval
from rlvr_cli.stats.bootstrap import pigeonhole_means
from rlvr_cli.stats.clustered import VarianceComponents, unpaired_crossed_interval
from rlvr_cli.stats.corrections import holm
from rlvr_cli.stats.crossed import cochran_half_width, half_width, p_value, two_way, welch_half_width
from rlvr_cli.stats.intervals import student_quantile
from rlvr_cli.stats.passk import pass_at_k
from rlvr_cli.stats.permutation import permutation_test
from rlvr_cli.stats.power import detectable_difference, power
from rlvr_cli.stats.scores import Array

SEEDS, PROBLEMS, RUN_SDS = (3, 5, 10), (50, 200, 400), (0.0, 0.01, 0.03)
BOOTSTRAPPED = 400
DRAWS = 400
SHIFT = 0.25
EASY = 3.0
FAMILY = 6
LETTERS = "ABCD"


def covered(differences: Array, truth: float) -> dict[str, list[bool]]:
    """For each kind of interval, in which tables [N, S, P] of differences it holds the truth."""
    table = two_way(differences)
    distance = np.abs(table.mean - truth)
    one_way = student_quantile(table.count - 1) * np.sqrt(table.problems / (table.seeds * table.count))
    widths = {
        "default": half_width(table.variance),
        "Welch": welch_half_width(table.variance),
        "Cochran": cochran_half_width(table.variance),
        "problems only": one_way,
    }
    return {name: list(distance <= width) for name, width in widths.items()}


def pigeonhole_covered(differences: Array, truth: float) -> list[bool]:
    """The same of the pigeonhole bootstrap's percentile interval, each table resampled by itself."""
    generator = np.random.default_rng(1)
    means = np.stack([pigeonhole_means(table, generator, DRAWS) for table in differences])
    low, high = np.quantile(means, (0.025, 0.975), axis=1)
    return list((low <= truth) & (truth <= high))


def coverage(tables: int) -> Iterator[str]:
    """The share of 95% intervals that hold the true difference."""
    yield "| seeds | problems | run sd | " + " | ".join(LETTERS) + " | Welch | Cochran | problems only | pigeonhole |"
    yield "|---" * (len(LETTERS) + 7) + "|"
    seen: dict[str, list[float]] = {}
    for seeds in SEEDS:
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
                cells += [span(row[name]) for name in ("Welch", "Cochran", "problems only", "pigeonhole")]
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


def easy(tables: int) -> Iterator[str]:
    """Coverage of the default where most answers are right."""
    yield "| seeds | problems | run sd | mean score | " + " | ".join(LETTERS) + " |"
    yield "|---" * (len(LETTERS) + 4) + "|"
    for seeds in SEEDS:
        for problems in (50, 200):
            n, run_sd = tables * 10 // seeds, 0.02
            mean = true_mean(KINDS[0], run_sd, 0.0, EASY)
            shares = [setting_coverage(kind, seeds, problems, run_sd, n, centre=EASY)["default"] for kind in KINDS]
            yield f"| {seeds} | {problems} | {run_sd} | {mean:.2f} | " + " | ".join(f"{x:.3f}" for x in shares) + " |"


def unpaired(tables: int) -> Iterator[str]:
    """Coverage for arms whose seeds are not shared, of unequal number."""
    yield "| seeds | problems | run sd | " + " | ".join(LETTERS) + " |"
    yield "|---" * (len(LETTERS) + 3) + "|"
    for first, second, problems in ((3, 5, 200), (5, 10, 200)):
        for run_sd in RUN_SDS:
            cells = []
            for kind in KINDS:
                apart = Kind(kind.name, kind.interaction, kind.samples, 0.0)
                truth = true_mean(apart, run_sd, SHIFT) - true_mean(apart, run_sd, 0.0)
                hits = []
                for a, b in simulated(apart, second, problems, run_sd, (SHIFT, 0.0), tables):
                    for one, other in zip(a[:, :first], b, strict=True):
                        estimate = unpaired_crossed_interval(one, other)
                        hits.append(estimate.low is not None and estimate.high is not None
                                    and estimate.low <= truth <= estimate.high)  # fmt: skip
                cells.append(f"{np.mean(hits):.3f}")
            yield f"| {first} and {second} | {problems} | {run_sd} | " + " | ".join(cells) + " |"


def families(tables: int) -> Iterator[str]:
    """The share of families of equal methods in which Holm's correction leaves any p at or below 0.05."""
    letters = " | ".join(LETTERS)
    yield f"| seeds | problems | run sd | {FAMILY} against a baseline: {letters} | all pairs of 4: {letters} | Welch |"
    yield "|---" * (2 * len(LETTERS) + 4) + "|"
    designs = {"star": [(0, i) for i in range(1, FAMILY + 1)], "pairs": list(combinations(range(4), 2))}
    for seeds in SEEDS:
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
        outside |= np.abs(table.mean) >= welch_half_width(table.variance, 1 - 0.05 / len(pairs))
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


def powers(tables: int) -> Iterator[str]:
    """Power at the difference that should be seen in 80%, by simulation; normal data of known variances."""
    yield "| seeds | problems | run sd | problem sd | rest sd | difference seen in 80% | simulated power |"
    yield "|---" * 7 + "|"
    generator = np.random.default_rng(5)
    for seeds in SEEDS:
        for problems in (50, 400):
            for run, problem, rest in ((0.0, 0.1, 0.3), (0.01, 0.1, 0.2), (0.03, 0.05, 0.3), (0.03, 0.2, 0.1)):
                components = VarianceComponents(run**2, problem**2, rest**2)
                difference = detectable_difference(components, seeds, problems)
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
            predicted = power(components, truth, seeds, problems)
            yield (f"| {seeds} | {problems} | {run_sd} | {letter} | {truth:.4f} | {predicted:.3f} | "
                   f"{np.mean(hits):.3f} |")  # fmt: skip


def interquartile(tables: int) -> Iterator[str]:
    """Coverage of the bootstrap interval of the interquartile mean: 6 tasks, normal runs."""
    yield "| runs | coverage |"
    yield "|---|---|"
    generator = np.random.default_rng(7)
    centres = np.linspace(0.2, 0.8, 6)
    for runs in (*SEEDS, 20):
        truth = float(np.mean([iqm_interval(centres + 0.05 * generator.normal(size=(runs, 6)), draws=1).value
                               for _ in range(20_000)]))  # fmt: skip
        hits = []
        for i in range(tables):
            found = iqm_interval(centres + 0.05 * generator.normal(size=(runs, 6)), seed=i, draws=500)
            hits.append(found.low is not None and found.high is not None and found.low <= truth <= found.high)
        yield f"| {runs} | {np.mean(hits):.3f} |"


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
    n = parser.parse_args().tables
    print(". ".join(f"{letter}: {kind.name}" for letter, kind in zip(LETTERS, KINDS, strict=True)) + ".")
    many = " and ".join(f"{n * 10 // seeds} ({seeds} seeds)" for seeds in SEEDS)
    for title, lines in (
        (f"Coverage of the 95% interval of a paired difference; {many} comparisons", coverage(n)),
        (f"Coverage where most answers are right; {many} comparisons", easy(n)),
        (f"Coverage for seeds that are not shared; {n // 2} comparisons", unpaired(n // 2)),
        (f"False positives of a family after Holm's correction; {many} families", families(n)),
        (f"False positives / power of single tests at 5%; {n // 2} comparisons", tests(n // 2)),
        (f"Power, normal data; {n} comparisons", powers(n)),
        (f"Power, simulated evaluations; {n} comparisons", binary_powers(n)),
        (f"Coverage of the interquartile mean's bootstrap interval; {n // 2} arms", interquartile(n // 2)),
        ("pass@k against enumeration", enumerated()),
    ):
        print(f"\n### {title}\n", flush=True)
        for line in lines:
            print(line, flush=True)


if __name__ == "__main__":
    main()
