"""pass@k and maj@k over k, from the samples of the runs' evaluations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from rlvr_cli.charts.lines import ArmLine, Line, Panel, XAxis, YAxis, compute_extents
from rlvr_cli.compare.results import arm_mean
from rlvr_cli.core.errors import RunError
from rlvr_cli.core.text import join_and, to_one_line
from rlvr_cli.report.charts.chart import BAND_FROM, Chart, draw_panels, legend
from rlvr_cli.report.charts.learning import curve_table, describe_crowd
from rlvr_cli.stats.passk import majority_at_k, pass_at_k
from rlvr_cli.store.evaluation import Evaluation
from rlvr_cli.store.metrics import bounds

# Answer and correctness of each sample, by problem.
Samples = Mapping[str, Sequence[tuple[str | None, bool]]]


def _pass(samples: Sequence[tuple[str | None, bool]], k: int) -> float:
    return pass_at_k(len(samples), sum(right for _, right in samples), k)


def _majority(samples: Sequence[tuple[str | None, bool]], k: int) -> float:
    return majority_at_k([answer for answer, _ in samples], [right for _, right in samples], k)


# By metric: its value for a problem's samples and k, and its meaning.
_KINDS: dict[str, tuple[Callable[[Sequence[tuple[str | None, bool]], int], float], str]] = {
    "pass": (_pass, "the probability that at least one of k samples is correct"),
    "maj": (_majority, "the probability that the majority of k samples is correct (ties lose, so k = 2 is low)"),
}


def over_k_figures(arms: Mapping[str, Sequence[Evaluation]]) -> list[Chart]:
    """Return figures of pass@k and maj@k at k = 1, 2, 4 ... n; none if n is 1.

    All k use the first n samples of each problem, n the smallest number of samples of a run. The band is
    ``crossed_interval`` over runs and problems, clipped to [0, 1].

    Args:
        arms: the evaluation of each run, by the arm's name, in the order of colours.
    Raises RunError for damaged samples.
    """
    sampled = {name: [run for run in runs if _has_samples(run)] for name, runs in arms.items()}
    all_runs = [run for runs in sampled.values() for run in runs]
    n = min((int(run.result["samples"]) for run in all_runs), default=0)
    shared = set.intersection(*({row.id for row in run.rows} for run in all_runs)) if all_runs else set()
    if n < 2 or not shared:
        return []
    ks = sorted({2**power for power in range(n.bit_length()) if 2**power <= n} | {n})
    ids = [row.id for row in all_runs[0].rows if row.id in shared]
    tables = {name: [_read_samples(run, ids, n) for run in runs] for name, runs in sampled.items() if runs}
    notes = _make_notes(arms, sampled, all_runs, shared)
    return [_make_figure(kind, tables, list(arms), ids, ks, notes) for kind in _KINDS]


def _has_samples(evaluation: Evaluation) -> bool:
    return int(evaluation.result["samples"]) > 1 and (evaluation.folder / "samples.jsonl").exists()


def _read_samples(evaluation: Evaluation, ids: Sequence[str], n: int) -> Samples:
    samples: dict[str, dict[int, tuple[str | None, bool]]] = {name: {} for name in ids}
    problems = {row.id: row for row in evaluation.rows}
    try:
        for record in evaluation.samples:
            problem, index = record["problem"], record["sample"]
            if problem in samples and isinstance(index, int) and 0 <= index < n:
                samples[problem][index] = (problems[problem].vote(record["answer"]), bool(record["correct"]))
        return {name: [samples[name][index] for index in range(n)] for name in ids}
    except (KeyError, TypeError) as error:
        raise RunError(
            f"{evaluation.folder / 'samples.jsonl'}: a sample or one of its fields is missing ({error}). Run the "
            "evaluation again to complete it."
        ) from error


def _make_figure(
    kind: str,
    tables: Mapping[str, Sequence[Samples]],
    names: Sequence[str],
    ids: Sequence[str],
    ks: Sequence[int],
    notes: Sequence[str],
) -> Chart:
    lines = [_make_line(names.index(name), to_one_line(name), runs, kind, ids, ks) for name, runs in tables.items()]
    x = XAxis("samples k", ticks=tuple(ks))
    y = YAxis(f"{kind}@k", share=True)
    panels = [Panel("", tuple(each.line for each in lines))]
    key, title = f"{kind}-over-k", f"{kind}@k over k"
    counts = {each.line.name: each.runs for each in lines}
    same = len(set(counts.values())) == 1
    runs = next(iter(counts.values()))
    of = (f"{runs} run{'s' if runs > 1 else ''}" if same else ", ".join(f"{n}: {c}" for n, c in counts.items())) + (
        f" x {len(ids)} problem{'s' if len(ids) > 1 else ''} x {ks[-1]} samples"
    )
    hidden = all(each.line.hide_band for each in lines)
    single = "; for one run over problems alone" if min(counts.values()) == 1 else ""
    interval = f"pointwise 95% interval over runs and problems ({of}){single}"
    drawn = (
        f"Thin lines: single runs; the {interval} is in the table."
        if hidden
        else f"Band: {interval}; none where all values are equal."
    )
    caption = (
        f"{kind}@k: {_KINDS[kind][1]}.",
        f"All k use the same {ks[-1]} samples per problem.",
        *(describe_crowd(len(lines)) or (drawn,)),
        *notes,
    )
    pictures = draw_panels(title, panels, x, y, compute_extents(panels, y, shared=True), marked=True)
    return Chart(key, title, pictures, caption, curve_table({"": lines}, x, share=True), legend(panels, len(names)))


def _make_line(
    arm: int, name: str, runs: Sequence[Samples], kind: str, ids: Sequence[str], ks: Sequence[int]
) -> ArmLine:
    scores = np.array([[[_KINDS[kind][0](run[problem], k) for k in ks] for problem in ids] for run in runs])
    means = [arm_mean(scores[:, :, index], bounds=bounds(f"{kind}@{k}")) for index, k in enumerate(ks)]
    low, high = (
        np.array([np.nan if end is None else end for end in ends])
        for ends in ([mean.low for mean in means], [mean.high for mean in means])
    )
    at = np.array(ks, dtype=np.float64)
    singles = tuple((at, run.mean(axis=0)) for run in scores) if 1 < len(runs) < BAND_FROM else ()
    line = Line(
        arm, name, at, np.array([mean.value for mean in means]), low, high, singles=singles, hide_band=bool(singles)
    )
    return ArmLine(line, len(runs), 1, None, "runs")


def _make_notes(
    arms: Mapping[str, Sequence[Evaluation]],
    sampled: Mapping[str, Sequence[Evaluation]],
    all_runs: Sequence[Evaluation],
    shared: set[str],
) -> list[str]:
    notes = []
    if without := [to_one_line(name) for name, runs in arms.items() if len(sampled[name]) < len(runs)]:
        notes.append(f"Excluded, fewer than two samples per problem: runs of {join_and(without)}.")
    if absent := [to_one_line(name) for name, runs in arms.items() if not runs]:
        notes.append(f"Not evaluated: {join_and(absent)}.")
    most = max(len(run.rows) for run in all_runs)
    if len(shared) < most:
        notes.append(f"Common problems: {len(shared)} of up to {most}.")
    return notes
