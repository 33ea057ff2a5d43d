"""A comparison in sentences: the subject, a sentence per arm, and notes; formatted sizes, p values and costs."""

from __future__ import annotations

from collections.abc import Mapping

from rlvr_cli.compare.results import ArmOnTask, ArmOverTasks, Comparison, Contrast, TaskComparison
from rlvr_cli.core.text import count, listed, some
from rlvr_cli.evaluation.tables import metric_name
from rlvr_cli.stats.clustered import CrossedEstimate
from rlvr_cli.store.metrics import GREEDY
from rlvr_cli.store.metrics import metric as declared

OF_RUNS = "single runs do not compare methods"
# Costs that are counted, by the fields of ``Spent``.
COUNTED = {"updates": "updates", "update_tokens": "tokens in updates", "tokens": "sampled tokens"}


def what_is_compared(comparison: TaskComparison) -> list[str]:
    """Return what the numbers are of: problems, samples, checkpoints or budget, and the pairing."""
    scores, request = comparison.scores, comparison.scores.request
    of = f"{scores.settings['benchmark']}, {scores.settings['split']}, {count(len(scores.problems), 'problem')}"
    greedy = scores.metric == GREEDY or not scores.samples
    samples = ", one greedy completion each" if greedy else f" x {count(scores.samples, 'sample')}"
    subject = f"{metric_name(scores.metric)} on {of}{samples}"
    if request.match is None:
        basis = f"compared: final checkpoints, by the samples of `rlvr eval` ({_budgets(comparison)})"
    else:
        basis = (
            f"compared: held-out evaluations during training, after {scores.end:,.6g} {_of_budget(request.match)}, the "
            "most that all runs have (linear between evaluations); not the samples of `rlvr eval`, which are of the "
            "final checkpoints"
        )
    seeds, unit = {len(row.runs) for row in comparison.rows}, replicate(comparison)
    number = count(min(seeds), unit) if len(seeds) == 1 else f"{min(seeds)} to {max(seeds)} {unit}s"
    if _pooled(comparison):
        number += " (seeds and what else varies)"
    paired = "paired by problem and seed" if scores.paired else "paired by problem, not by seed"
    return [subject, basis, f"each arm: {number}, {paired}; baseline: {scores.baseline}"]


def sentences(comparison: TaskComparison) -> list[str]:
    """Return one sentence for each arm but the baseline, in the order of the table."""
    return [sentence(comparison, row) for row, _ in comparison.others]


def sentence(comparison: TaskComparison, row: ArmOnTask) -> str:
    """Return what the difference between an arm and the baseline comes to, by the arm's verdict."""
    contrast = row.contrast
    assert contrast is not None
    unit = replicate(comparison)
    text = _claim(comparison, comparison.scores.metric, row.arm, contrast, _over(contrast, unit), comparison.family)
    seen = to_see(comparison.scores.metric, contrast, unit) if contrast.verdict == "unseen" else ""
    return f"{text}{seen}{_cost(row)}."


def _claim(
    task: TaskComparison, metric: str, arm: str, contrast: Contrast, over: str, family: int, where: str = ""
) -> str:
    difference, base = contrast.difference, task.scores.baseline
    if contrast.verdict == "single":
        return f"{these_runs(task, arm)}{where}: {signed_text(metric, difference)}, {over}; {OF_RUNS}"
    if contrast.verdict == "unknown":
        return f"{arm} minus {base} is {signed_text(metric, difference)}{where}, {over}"
    if contrast.verdict == "unseen":
        return f"no difference detected between {arm} and {base}{where}: {signed_text(metric, difference)}, {over}"
    than, size = comparative(metric, difference.value), size_text(metric, difference)
    if contrast.verdict == "uncertain":
        return f"{arm} may be {than} {base}{where}, by {size}, {over}; but {doubt(family, contrast.p_holm)}"
    return f"{arm} is {than} {base}{where} by {size}, {over}"


def these_runs(comparison: TaskComparison, arm: str) -> str:
    """Return `this run of lopti minus these 3 runs of grpo`, the baseline."""
    names = (arm, comparison.scores.baseline)
    numbers = zip(names, map(len, comparison.scores.pair(arm)), strict=True)
    return " minus ".join(f"this run of {name}" if n == 1 else f"these {n} runs of {name}" for name, n in numbers)


def power_lines(comparison: TaskComparison) -> list[str]:
    """Return the sample size that detects the difference of --power, a line for each arm but the baseline."""
    metric, wanted = comparison.scores.metric, comparison.scores.request.power
    unit, lines = replicate(comparison), list[str]()
    if wanted is None:
        return lines
    for row, contrast in comparison.others:
        needed, start = contrast.needed, f"to detect {amount(metric, wanted)} between {row.arm} and the baseline"
        if needed is None:
            lines.append(
                f"{start}: the variance between runs and problems is unknown; estimating it takes two {unit}s an arm, "
                "two problems and differences that vary."
            )
            continue
        seeds, problems = contrast.difference.seeds, contrast.difference.problems
        most = (
            "detect none"
            if declared(metric).share and needed.detectable > 1
            else "detect " + amount(metric, needed.detectable)
        )
        ways = f"{enough(needed.seeds, unit)} with {count(problems, 'problem')}; "
        ways += f"{enough(needed.problems, 'problem')} with {count(seeds, unit)}"
        lines.append(
            f"{start} with 80% power: {_pair_text(needed.both, unit) if needed.both else ways}. These "
            f"{count(seeds, unit)} x {count(problems, 'problem')} {most}."
        )
    return lines


def base_cost(comparison: TaskComparison) -> str:
    """Return what the baseline spent, which the costs of the other arms are relative to."""
    spent, runs = comparison.baseline.spent, comparison.baseline.runs

    def seconds(cost: str) -> str:
        values = [run.spent[cost] for run in runs]
        range_ = f" ({min(values):,.1f} to {max(values):,.1f})" if len(values) > 1 else ""
        return f"{spent[cost]:,.1f} s{range_}"

    return (
        f"cost of {comparison.scores.baseline}, a run: {spent['rollouts']:,.6g} rollouts, "
        f"{spent['updates']:,.6g} updates, {spent['tokens']:,.0f} tokens sampled, {seconds('update_seconds')} of "
        f"updates, {seconds('seconds')} in all"
    )


def to_see(metric: str, contrast: Contrast, unit: str) -> str:
    """Return the sample size that would detect a difference where none is detected; ``unit``: seed or run."""
    needed, low, high = contrast.needed, contrast.difference.low, contrast.difference.high
    if needed is None or low is None or high is None:
        return ""
    if needed.difference is None:
        # A power that was estimated does not rule out what the interval holds.
        least = max(needed.detectable, -low, high)
        return f"; a difference above {amount(metric, least)} would most likely have been detected"
    seeds, problems = contrast.difference.seeds, contrast.difference.problems
    size = amount(metric, needed.difference)
    if needed.detectable <= needed.difference:
        if max(-low, high) < needed.difference:
            return f"; {size} would most likely have been detected"
        return f"; {size} would be detected with 80% power, and the interval does not exclude it"
    if needed.seeds is not None:
        return f"; to detect {size} you would need {about(needed.seeds, unit)}"
    if needed.problems is not None:
        return f"; to detect {size} you would need {about(needed.problems, 'problem')} with {count(seeds, unit)}"
    if needed.both is not None:
        return f"; to detect {size} you would need {_pair_text(needed.both, unit)}"
    return f"; to detect {size} you would need more of both than {count(seeds, unit)} x {count(problems, 'problem')}"


def _pair_text(pair: tuple[int, int], unit: str) -> str:
    return f"{about(pair[0], unit)} x {about(pair[1], 'problem').removeprefix('about ')}"


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


def _pooled(comparison: TaskComparison) -> bool:
    return any(replicate.rest for arm in comparison.scores.arms.values() for replicate in arm)


def replicate(comparison: TaskComparison) -> str:
    """Return what the runs of an arm are counted as: seeds, unless more than the seed varies between them."""
    return "run" if _pooled(comparison) else "seed"


def _cost(row: ArmOnTask) -> str:
    """Return what the arm cost next to the baseline, counted: seconds say how loaded the machine was too."""
    ratios = {name: ratio for cost, name in COUNTED.items() if (ratio := row.cost[cost]) is not None}
    if not ratios:
        return ""
    unequal = [f"{times} the {name}" for name, ratio in ratios.items() if (times := ratio_text(ratio)) != "1x"]
    return f"; it cost {', '.join(unequal)}" if unequal else f"; it took as many {listed([*ratios])}"


def _budgets(comparison: TaskComparison) -> str:
    """Return the rollouts that the checkpoints were trained with, of each arm where they differ."""
    rollouts = {row.arm: f"{row.spent['rollouts']:,.6g}" for row in comparison.rows}
    if len(set(rollouts.values())) == 1:
        return f"after {next(iter(rollouts.values()))} rollouts"
    return "after different numbers of rollouts: " + ", ".join(f"{arm} {count}" for arm, count in rollouts.items())


def _of_budget(budget: str) -> str:
    return {"tokens": "sampled tokens", "seconds": "seconds of training"}.get(budget, budget)


# Fewer tasks are no sample of tasks.
FEW_TASKS = 10


def noun(comparison: Comparison) -> str:
    """Return what the tasks are called."""
    return "benchmark" if comparison.scores.together else "task"


def metric_text(comparison: Comparison) -> str:
    """Return the metric's name; where tasks have different numbers of samples, that of all of them."""
    names = {task.metric for task in comparison.scores.tasks.values()}
    return metric_name(comparison.metric) if len(names) == 1 else (comparison.scores.request.metric or "accuracy")


def lines_before(comparison: Comparison) -> list[str]:
    """Return what stands above the tables: what is compared; over several tasks also the answer."""
    if comparison.only is not None:
        return what_is_compared(comparison.only)
    scores, tasks = comparison.scores, comparison.tasks
    over = "" if scores.together else f" ({', '.join(scores.request.over)})"
    number = count(len(tasks), noun(comparison))
    heads = {name: what_is_compared(task) for name, task in tasks.items()}
    lines = [f"{metric_text(comparison)} over {number}{over}: {', '.join(tasks)}"]
    lines += [f"{name}: {head[0]}" for name, head in heads.items()]
    for line in (1, 2):
        lines += _once({name: head[line] for name, head in heads.items()})
    return [*lines, "", *(mean_sentence(comparison, row) for row in comparison.rows if row.contrast is not None)]


def mean_sentence(comparison: Comparison, row: ArmOverTasks) -> str:
    """Return what an arm comes to against the baseline over all tasks, by the verdict of the mean."""
    contrast, task = row.contrast, comparison.first
    assert contrast is not None
    where = f" on the mean over {count(len(comparison.tasks), noun(comparison))}"
    over = _over(contrast, replicate(task))
    text = _claim(task, comparison.metric, row.arm, contrast, over, comparison.family, where)
    return f"{text}. {_tasks(comparison, row.arm, contrast)}."


def lines_after(comparison: Comparison) -> list[str]:
    """Return what stands below them: sentences, power, costs, the correction of p-values, their worth, notes."""
    if comparison.only is not None:
        return _task_lines_after(comparison.only)
    unit, arms, tasks = noun(comparison), len(comparison.rows) - 1, len(comparison.tasks)
    lines = _once({name: "; ".join(power_lines(each)) for name, each in comparison.tasks.items()})
    if comparison.tested:
        lines += [
            f"p: two-sided, Holm's correction over {count(comparison.family, 'comparison')}: {count(arms, 'arm')} on "
            f"{count(tasks, unit)} and on their mean"
        ]
    few = (
        f"{count(tasks, unit)} are not a sample of {unit}s: every number over them is about these alone, and another "
        f"{unit} may show something else.",
    )
    notes = (*(few if tasks < FEW_TASKS else ()), *comparison.scores.notes)
    return [*lines, *(f"note: {note}" for note in notes)]


def _task_lines_after(comparison: TaskComparison) -> list[str]:
    family, base = comparison.family, comparison.scores.baseline
    tests = [f"p: two-sided, Holm's correction over {family} comparisons"] if family > 1 and comparison.tested else []
    tests += [
        f"permutation of whole runs between {row.arm} and {base}: p {p_text(test.p_value)}, of "
        f"{'all' if test.exact else 'a sample of'} {test.permutations:,} deals, which can give {p_text(test.smallest)} "
        "at least"
        for row, contrast in comparison.others
        if (test := contrast.permutation) is not None
    ]
    notes = [f"note: {note}" for note in comparison.scores.notes]
    return [*sentences(comparison), *power_lines(comparison), base_cost(comparison), *tests, *notes]


def _tasks(comparison: Comparison, arm: str, contrast: Contrast) -> str:
    """Return on which tasks the arm is clearly higher and lower."""
    by_verdict: dict[str, list[str]] = {}
    for name, task in comparison.tasks.items():
        judged = next(row.contrast for row in task.rows if row.arm == arm)
        assert judged is not None
        by_verdict.setdefault(judged.verdict, []).append(name)
    above = contrast.outcomes
    text = (
        f"{arm} is higher on {above.wins}, lower on {above.losses} of {count(len(comparison.tasks), noun(comparison))}"
    )
    if contrast.verdict == "single":
        return text
    clear = [f"{verdict} on {some(by_verdict[verdict], 4)}" for verdict in ("higher", "lower") if verdict in by_verdict]
    return f"{text}; {'clearly ' + ', '.join(clear) if clear else 'clearly on none'}"


def _once(lines: Mapping[str, str]) -> list[str]:
    """Return a line of every task, once where it is the same for all, else with the task before it; none if empty."""
    if len(set(lines.values())) == 1:
        return [line for line in dict.fromkeys(lines.values()) if line]
    return [f"{name}: {line}" for name, line in lines.items() if line]


VERDICTS = {
    "higher": "higher",
    "lower": "lower",
    "uncertain": "may differ",
    "unseen": "no difference seen",
    "unknown": "no interval",
    "single": "of these runs",
}


def amount(metric: str, value: float) -> str:
    """Return the size of a difference: `2 points`, `3.1 points`, `0.012 of reward`."""
    factor, name = declared(metric).factor, declared(metric).unit
    text = _trimmed(abs(value) * factor, decimals(metric))
    return f"{text} {name.removesuffix('s') if text == '1' else name}".rstrip()


def size_text(metric: str, difference: CrossedEstimate) -> str:
    """Return `3.1 points, 95% interval 0.9 to 5.2`, of the size of the difference."""
    assert difference.low is not None and difference.high is not None
    ends = (difference.low, difference.high) if difference.value > 0 else (-difference.high, -difference.low)
    return f"{_with_unit(metric, abs(difference.value))}, 95% interval {_ends(metric, ends)}"


def signed_text(metric: str, difference: CrossedEstimate) -> str:
    """Return `+0.4 points, 95% interval -1.2 to 2.0`, or the value alone without an interval."""
    value = _with_unit(metric, difference.value, signed=True)
    if difference.low is None or difference.high is None:
        return value
    return f"{value}, 95% interval {_ends(metric, (difference.low, difference.high))}"


def comparative(metric: str, difference: float) -> str:
    """Return `better than`, `worse than`; of lengths and reasons `longer than`, `higher in ... than`."""
    better = declared(metric).higher_is_better
    if better is not None:
        return "better than" if (difference > 0) == better else "worse than"
    if metric == "length":
        return "longer than" if difference > 0 else "shorter than"
    return f"{'higher' if difference > 0 else 'lower'} in {metric_name(metric).strip()} than"


def doubt(family: int, p_value: float | None) -> str:
    """Return why a difference whose interval leaves out 0 may be chance all the same."""
    return f"of {family} comparisons one may look like this by chance (p = {p_text(p_value)} after Holm's correction)"


def p_text(p_value: float | None) -> str:
    """Return a p-value with three decimals."""
    if p_value is None:
        return "-"
    return "<0.001" if p_value < 0.001 else f"{p_value:.3f}"


def ratio_text(ratio: float) -> str:
    """Return how many times the baseline's: two digits, and all that are before the point."""
    return f"{ratio:,.0f}x" if ratio >= 100 else f"{ratio:.2g}x"


def cost_text(row: ArmOnTask, cost: str) -> str:
    """Return a part of what was spent over the baseline's; of seconds with the range over pairs of runs."""
    ratio, spread = row.cost[cost], row.seconds.get(cost)
    if ratio is None:
        return "-"
    if cost not in row.seconds:
        return ratio_text(ratio)
    return f"{ratio_text(ratio)} ({'1 run' if spread is None else '-'.join(map(ratio_text, spread))})"


def enough(number: int | None, name: str) -> str:
    return f"no number of {name}s suffices" if number is None else about(number, name)


def about(number: int, name: str) -> str:
    """Return what was worked out from an estimated spread: no more than two digits of it, rounded up, mean anything."""
    unit = 10 ** max(0, len(str(number)) - 2)
    return f"about {count(-(-number // unit) * unit, name)}"


def decimals(metric: str) -> int:
    """Return the decimals of a difference in the metric's unit."""
    return declared(metric).difference_decimals


def _ends(metric: str, ends: tuple[float, float]) -> str:
    return " to ".join(_figure(metric, end) for end in ends)


def _figure(metric: str, value: float, *, signed: bool = False) -> str:
    factor = declared(metric).factor
    return f"{value * factor:{'+' if signed else ''}z.{decimals(metric)}f}"


def _with_unit(metric: str, value: float, *, signed: bool = False) -> str:
    return f"{_figure(metric, value, signed=signed)} {declared(metric).unit}".rstrip()


def _trimmed(value: float, decimals: int) -> str:
    text = f"{value:.{decimals}f}" if value >= 10**-decimals else f"{value:.2g}"
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text
