"""Describe a comparison in sentences: the subject, each arm's result, and notes; format sizes, p-values and costs."""

from __future__ import annotations

from rlvr_cli.compare.results import ArmOnTask, ArmOverTasks, ArmResult, Comparison, Contrast, TaskComparison
from rlvr_cli.core.text import count, ellipsize, join_and, merge_lines
from rlvr_cli.evaluation.tables import metric_name
from rlvr_cli.stats.clustered import CrossedEstimate
from rlvr_cli.store.metrics import GREEDY
from rlvr_cli.store.metrics import metric as declared

SINGLE_RUN = "a single run cannot rank methods"
# Counted costs (not timed), by the fields of ``Spent``.
COUNTED = {"updates": "updates", "update_tokens": "tokens in updates", "tokens": "sampled tokens"}


def describe_comparison(comparison: TaskComparison) -> list[str]:
    scores, request = comparison.scores, comparison.scores.request
    data = f"{scores.settings['benchmark']}, {scores.settings['split']}, {count(len(scores.problems), 'problem')}"
    greedy = scores.metric == GREEDY or not scores.samples
    samples = ", one greedy completion each" if greedy else f" x {count(scores.samples, 'sample')}"
    subject = f"{metric_name(scores.metric)} on {data}{samples}"
    if request.match is None:
        basis = f"compared: final checkpoints, samples from `rlvr eval` ({_format_rollouts(comparison)})"
    else:
        budget = {"tokens": "sampled tokens", "seconds": "seconds of training"}.get(request.match, request.match)
        basis = (
            f"compared: held-out evaluations during training, after {scores.end:,.6g} {budget}, the most that all runs "
            "have (linear between evaluations); not the samples of `rlvr eval`, which are of the final checkpoints"
        )
    seeds, unit = {len(row.runs) for row in comparison.rows}, replicate_unit(comparison)
    number = count(min(seeds), unit) if len(seeds) == 1 else f"{min(seeds)} to {max(seeds)} {unit}s"
    if _is_pooled(comparison):
        number += " (seeds and other keys that vary)"
    paired = "paired by problem and seed" if scores.paired else "paired by problem, not by seed"
    return [subject, basis, f"each arm: {number}, {paired}; baseline: {scores.baseline}"]


def sentences(comparison: TaskComparison) -> list[str]:
    return [*(sentence(comparison, row) for row, _ in comparison.others), *control_sentences(comparison)]


def control_sentences(comparison: TaskComparison) -> list[str]:
    return [control_sentence(comparison, comparison.scores.metric, row) for row in comparison.rows if row.above]


def sentence(comparison: TaskComparison, row: ArmOnTask) -> str:
    contrast = row.contrast
    assert contrast is not None
    unit = replicate_unit(comparison)
    text = _claim(comparison, comparison.scores.metric, row.arm, contrast, _over(contrast, unit))
    power = describe_power(comparison.scores.metric, contrast, unit) if contrast.verdict == "unseen" else ""
    return f"{text}{power}{_cost(row)}."


def control_sentence(task: TaskComparison, metric: str, row: ArmResult, where: str = "") -> str:
    """Return how far an arm is above the best of its controls."""
    assert row.above is not None
    return f"{_claim(task, metric, row.arm, row.above, _over(row.above, replicate_unit(task)), where)}."


def _claim(task: TaskComparison, metric: str, arm: str, contrast: Contrast, over: str, where: str = "") -> str:
    difference, is_control = contrast.difference, contrast.base != task.scores.baseline
    base = f"its control {contrast.base}" if is_control else contrast.base
    if contrast.verdict == "single":
        runs = these_runs(task, arm, contrast.base)
        return f"{runs}{where}: {format_signed(metric, difference)}, {over}; {SINGLE_RUN}"
    if contrast.verdict == "unknown":
        return f"{arm} minus {base} is {format_signed(metric, difference)}{where}, {over}"
    if contrast.verdict == "unseen":
        return f"no difference detected between {arm} and {base}{where}: {format_signed(metric, difference)}, {over}"
    than, size = comparative(metric, difference.value), format_size(metric, difference)
    if is_control:
        than = {"better than": "above", "worse than": "below"}[than]
    if contrast.verdict == "uncertain":
        return (
            f"{arm} may be {than} {base}{where}, by {size}, {over}; but with {contrast.family} comparisons, one such "
            f"difference may arise by chance (p = {format_p(contrast.p_holm)} after Holm's correction)"
        )
    return f"{arm} is {than} {base}{where} by {size}, {over}"


def these_runs(comparison: TaskComparison, arm: str, base: str | None = None) -> str:
    """Return `this run of lopti minus these 3 runs of grpo`; ``base``: None = the baseline."""
    names = (arm, comparison.scores.baseline if base is None else base)
    numbers = zip(names, map(len, comparison.scores.pair(*names)), strict=True)
    return " minus ".join(f"this run of {name}" if n == 1 else f"these {n} runs of {name}" for name, n in numbers)


def power_lines(comparison: TaskComparison) -> list[str]:
    """Return the seeds and problems required to detect the difference of --power, a line per arm but the baseline."""
    metric, target = comparison.scores.metric, comparison.scores.request.power
    unit, lines = replicate_unit(comparison), list[str]()
    if target is None:
        return lines
    for row, contrast in comparison.others:
        needed, start = contrast.needed, f"to detect {format_amount(metric, target)} between {row.arm} and the baseline"
        if needed is None:
            lines.append(
                f"{start}: the variance between runs and problems is unknown; this needs two {unit}s per arm, two "
                "problems, and differences that are not all equal."
            )
            continue
        seeds, problems = contrast.difference.seeds, contrast.difference.problems
        most = (
            "cannot detect any difference"
            if declared(metric).share and needed.detectable > 1
            else "can detect " + format_amount(metric, needed.detectable)
        )
        sizes = f"{_format_required(needed.seeds, unit)} with {count(problems, 'problem')}; "
        sizes += f"{_format_required(needed.problems, 'problem')} with {count(seeds, unit)}"
        lines.append(
            f"{start} with 80% power: {_format_pair(needed.both, unit) if needed.both else sizes}. These "
            f"{count(seeds, unit)} x {count(problems, 'problem')} {most}."
        )
    return lines


def baseline_cost(comparison: TaskComparison) -> str:
    """Return the baseline's costs, to which those of the other arms are relative."""
    spent, runs = comparison.baseline.spent, comparison.baseline.runs

    def seconds(cost: str) -> str:
        values = [run.spent[cost] for run in runs]
        range_ = f" ({min(values):,.1f} to {max(values):,.1f})" if len(values) > 1 else ""
        return f"{spent[cost]:,.1f} s{range_}"

    return (
        f"mean cost of a run of {comparison.scores.baseline}: {spent['rollouts']:,.6g} rollouts, "
        f"{spent['updates']:,.6g} updates, {spent['tokens']:,.0f} tokens sampled, {seconds('update_seconds')} of "
        f"updates, {seconds('seconds')} in all"
    )


def describe_power(metric: str, contrast: Contrast, unit: str) -> str:
    """Return the sizes required to detect a difference, or which would have been detected; ``unit``: seed or run."""
    needed, low, high = contrast.needed, contrast.difference.low, contrast.difference.high
    if needed is None or low is None or high is None:
        return ""
    if needed.difference is None:
        # Estimated power does not exclude differences inside the interval.
        least = max(needed.detectable, -low, high)
        return f"; a difference above {format_amount(metric, least)} would most likely have been detected"
    seeds, problems = contrast.difference.seeds, contrast.difference.problems
    size = format_amount(metric, needed.difference)
    if needed.detectable <= needed.difference:
        if max(-low, high) < needed.difference:
            return f"; {size} would most likely have been detected"
        return f"; {size} would be detected with 80% power, and the interval does not exclude it"
    if needed.seeds is not None:
        return f"; to detect {size} you would need {_round_up(needed.seeds, unit)}"
    if needed.problems is not None:
        return f"; to detect {size} you would need {_round_up(needed.problems, 'problem')} with {count(seeds, unit)}"
    if needed.both is not None:
        return f"; to detect {size} you would need {_format_pair(needed.both, unit)}"
    return f"; to detect {size} you would need more of both than {count(seeds, unit)} x {count(problems, 'problem')}"


def _format_pair(pair: tuple[int, int], unit: str) -> str:
    return f"{_round_up(pair[0], unit)} x {_round_up(pair[1], 'problem').removeprefix('about ')}"


def _over(contrast: Contrast, unit: str) -> str:
    difference = contrast.difference
    text = f"{count(difference.seeds, unit)} x {count(difference.problems, 'problem')}"
    if not difference.spread_of_runs:
        text = f"over {count(difference.problems, 'problem')}"
    if difference.low is None and difference.seeds * difference.problems == 1:
        return f"{text}, too few for an interval"
    if difference.low is None:
        return f"{text}, all equal, so there is no interval"
    if difference.spread_of_runs and not difference.spread_of_problems:
        return f"{text} (the interval is over {unit}s alone)"
    return text


def _is_pooled(comparison: TaskComparison) -> bool:
    return any(replicate.rest for arm in comparison.scores.arms.values() for replicate in arm)


def replicate_unit(comparison: TaskComparison) -> str:
    """Return the unit of an arm's runs: `seed`, or `run` if other keys vary too."""
    return "run" if _is_pooled(comparison) else "seed"


def _cost(row: ArmOnTask) -> str:
    """Return the arm's counted costs relative to the baseline; seconds also depend on the load of the machine."""
    ratios = {name: ratio for cost, name in COUNTED.items() if (ratio := row.cost[cost]) is not None}
    if not ratios:
        return ""
    unequal = [f"{times} the {name}" for name, ratio in ratios.items() if (times := format_ratio(ratio)) != "1x"]
    return f"; it cost {', '.join(unequal)}" if unequal else f"; it cost the same {join_and([*ratios])}"


def _format_rollouts(comparison: TaskComparison) -> str:
    """Return the rollouts of the checkpoints, per arm if they differ."""
    rollouts = {row.arm: f"{row.spent['rollouts']:,.6g}" for row in comparison.rows}
    if len(set(rollouts.values())) == 1:
        return f"after {next(iter(rollouts.values()))} rollouts"
    return "after different numbers of rollouts: " + ", ".join(f"{arm} {count}" for arm, count in rollouts.items())


# Below this number, results are not generalised to other tasks.
FEW_TASKS = 10


def task_noun(comparison: Comparison) -> str:
    return "benchmark" if comparison.scores.together else "task"


def metric_text(comparison: Comparison) -> str:
    names = {task.metric for task in comparison.scores.tasks.values()}
    return metric_name(comparison.metric) if len(names) == 1 else (comparison.scores.request.metric or "accuracy")


def lines_before(comparison: Comparison) -> list[str]:
    """Return the lines above the tables: the subject, and over several tasks the results on their mean."""
    if comparison.only is not None:
        return describe_comparison(comparison.only)
    scores, tasks = comparison.scores, comparison.tasks
    over = "" if scores.together else f" ({', '.join(scores.request.over)})"
    number = count(len(tasks), task_noun(comparison))
    heads = {name: describe_comparison(task) for name, task in tasks.items()}
    lines = [f"{metric_text(comparison)} over {number}{over}: {', '.join(tasks)}"]
    lines += [f"{name}: {head[0]}" for name, head in heads.items()]
    for line in (1, 2):
        lines += merge_lines({name: [head[line]] for name, head in heads.items()})
    where = f" on the mean over {number}"
    rows, task, metric = comparison.rows, comparison.first, comparison.metric
    means = (mean_sentence(comparison, row) for row in rows if row.contrast)
    return [*lines, "", *means, *(control_sentence(task, metric, row, where) for row in rows if row.above)]


def mean_sentence(comparison: Comparison, row: ArmOverTasks) -> str:
    """Return the result of an arm against the baseline on the mean over all tasks, and per task."""
    contrast, task = row.contrast, comparison.first
    assert contrast is not None
    where = f" on the mean over {count(len(comparison.tasks), task_noun(comparison))}"
    over = _over(contrast, replicate_unit(task))
    text = _claim(task, comparison.metric, row.arm, contrast, over, where)
    return f"{text}. {_task_outcomes(comparison, row.arm, contrast)}."


def lines_after(comparison: Comparison) -> list[str]:
    """Return the lines below the tables: sentences, power, costs, the correction of p-values, notes."""
    if comparison.only is not None:
        return _task_lines_after(comparison.only)
    unit, arms, tasks = task_noun(comparison), len(comparison.rows) - 1, len(comparison.tasks)
    powers = {name: "; ".join(power_lines(each)) for name, each in comparison.tasks.items()}
    lines = merge_lines({name: [power] if power else [] for name, power in powers.items()})
    if comparison.tested and comparison.family:
        lines.append(
            f"p: two-sided, Holm's correction over {count(comparison.family, 'comparison')}: {count(arms, 'arm')} on "
            f"{count(tasks, unit)} and on their mean"
        )
    lines += _control_tests(comparison) if comparison.tested else []
    notes = list(comparison.scores.notes)
    if tasks < FEW_TASKS:
        number = count(tasks, unit)
        notes.insert(0, f"{number} are not a sample of {unit}s: results over them do not generalise to other {unit}s.")
    return [*lines, *(f"note: {note}" for note in notes)]


def _task_lines_after(comparison: TaskComparison) -> list[str]:
    family, base = comparison.family, comparison.scores.baseline
    tests = [f"p: two-sided, Holm's correction over {family} comparisons"] if family > 1 and comparison.tested else []
    tests += _control_tests(comparison)
    tests += [
        f"permutation of whole runs between {row.arm} and {base}: p {format_p(test.p_value)}, of "
        f"{'all' if test.exact else 'a sample of'} {test.permutations:,} assignments of runs to the arms; "
        f"smallest possible p {format_p(test.smallest)}"
        for row, contrast in comparison.others
        if (test := contrast.permutation) is not None
    ]
    notes = [f"note: {note}" for note in comparison.scores.notes]
    return [*sentences(comparison), *power_lines(comparison), baseline_cost(comparison), *tests, *notes]


def _control_tests(comparison: TaskComparison | Comparison) -> list[str]:
    number = comparison.control_family
    text = f"p of differences to controls: Holm's correction over {count(number, 'comparison')}"
    return [text] if number and comparison.tested else []


def _task_outcomes(comparison: Comparison, arm: str, contrast: Contrast) -> str:
    """Return the tasks on which the arm is clearly higher or lower."""
    by_verdict: dict[str, list[str]] = {}
    for name, task in comparison.tasks.items():
        on_task = next(row.contrast for row in task.rows if row.arm == arm)
        assert on_task is not None
        by_verdict.setdefault(on_task.verdict, []).append(name)
    counts, tasks = contrast.outcomes, count(len(comparison.tasks), task_noun(comparison))
    text = f"{arm} is higher on {counts.wins}, lower on {counts.losses} of {tasks}"
    if contrast.verdict == "single":
        return text
    clear = [
        f"{verdict} on {ellipsize(by_verdict[verdict], 4)}" for verdict in ("higher", "lower") if verdict in by_verdict
    ]
    return f"{text}; {'clearly ' + ', '.join(clear) if clear else 'clearly on none'}"


VERDICTS = {
    "higher": "higher",
    "lower": "lower",
    "uncertain": "may differ",
    "unseen": "no difference detected",
    "unknown": "no interval",
    "single": "single run",
}


def format_amount(metric: str, value: float) -> str:
    """Format the size of a difference: `2 points`, `3.1 points`, `0.012 of reward`."""
    factor, name = declared(metric).factor, declared(metric).unit
    text = _trim(abs(value) * factor, declared(metric).difference_decimals)
    return f"{text} {name.removesuffix('s') if text == '1' else name}".rstrip()


def format_size(metric: str, difference: CrossedEstimate) -> str:
    """Format the size of a difference with its interval: `3.1 points, 95% interval 0.9 to 5.2`."""
    assert difference.low is not None and difference.high is not None
    ends = (difference.low, difference.high) if difference.value > 0 else (-difference.high, -difference.low)
    return f"{_with_unit(metric, abs(difference.value))}, 95% interval {_ends(metric, ends)}"


def format_signed(metric: str, difference: CrossedEstimate) -> str:
    """Format a signed difference with its interval, if any: `+0.4 points, 95% interval -1.2 to 2.0`."""
    value = _with_unit(metric, difference.value, signed=True)
    if difference.low is None or difference.high is None:
        return value
    return f"{value}, 95% interval {_ends(metric, (difference.low, difference.high))}"


def comparative(metric: str, difference: float) -> str:
    """Return `better than` or `worse than`; for lengths and reasons `longer than`, `higher in ... than`."""
    better = declared(metric).higher_is_better
    if better is not None:
        return "better than" if (difference > 0) == better else "worse than"
    if metric == "length":
        return "longer than" if difference > 0 else "shorter than"
    return f"{'higher' if difference > 0 else 'lower'} in {metric_name(metric).strip()} than"


def format_p(p_value: float | None) -> str:
    if p_value is None:
        return "-"
    return "<0.001" if p_value < 0.001 else f"{p_value:.3f}"


def format_ratio(ratio: float) -> str:
    """Format a ratio to the baseline with two significant digits, or all integer digits."""
    return f"{ratio:,.0f}x" if ratio >= 100 else f"{ratio:.2g}x"


def format_cost(row: ArmOnTask, cost: str) -> str:
    """Format a cost relative to the baseline's; timed costs with the range over pairs of runs."""
    ratio, spread = row.cost[cost], row.seconds.get(cost)
    if ratio is None:
        return "-"
    if cost not in row.seconds:
        return format_ratio(ratio)
    return f"{format_ratio(ratio)} ({'1 run' if spread is None else '-'.join(map(format_ratio, spread))})"


def _format_required(number: int | None, name: str) -> str:
    return f"no number of {name}s suffices" if number is None else _round_up(number, name)


def _round_up(number: int, name: str) -> str:
    """Format a required size, rounded up to two significant digits, as it is from estimated variances."""
    unit = 10 ** max(0, len(str(number)) - 2)
    return f"about {count(-(-number // unit) * unit, name)}"


def _ends(metric: str, ends: tuple[float, float]) -> str:
    return " to ".join(_figure(metric, end) for end in ends)


def _figure(metric: str, value: float, *, signed: bool = False) -> str:
    factor = declared(metric).factor
    return f"{value * factor:{'+' if signed else ''}z.{declared(metric).difference_decimals}f}"


def _with_unit(metric: str, value: float, *, signed: bool = False) -> str:
    return f"{_figure(metric, value, signed=signed)} {declared(metric).unit}".rstrip()


def _trim(value: float, decimals: int) -> str:
    text = f"{value:.{decimals}f}" if value >= 10**-decimals else f"{value:.2g}"
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text
