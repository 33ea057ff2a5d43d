"""A comparison in plain words: what is compared, a sentence for each arm, and what to keep in mind."""

from __future__ import annotations

from collections.abc import Mapping

from rlvr_cli.compare.contrasts import ArmMean, ArmResult, Comparison, Contrast, MeanContrast, TaskComparison
from rlvr_cli.compare.wording import about, amount, comparative, doubt, enough, ratio_text, signed_text, size_text
from rlvr_cli.core.text import count, listed, some
from rlvr_cli.evaluation.tables import metric_name
from rlvr_cli.stats.over_tasks import Aggregate
from rlvr_cli.store.metrics import GREEDY
from rlvr_cli.store.metrics import metric as declared

OF_RUNS = "one run says nothing of its method"
# Costs that are counted, by the fields of ``Spent``.
COUNTED = {"updates": "updates", "update_tokens": "tokens in updates", "tokens": "sampled tokens"}


def what_is_compared(comparison: TaskComparison) -> list[str]:
    """What the numbers are of: problems, samples, checkpoints or budget, and the pairing."""
    inputs = comparison.inputs
    read, request = inputs.by_run, inputs.request
    of = f"{read.result['benchmark']}, {read.result['split']}, {count(len(read.problems), 'problem')}"
    greedy = read.metric == GREEDY or not read.samples
    samples = ", one greedy completion each" if greedy else f" x {count(read.samples, 'sample')}"
    what = f"{metric_name(read.metric)} on {of}{samples}"
    if request.match is None:
        basis = f"compared: final checkpoints, by the samples of `rlvr eval` ({_budgets(comparison)})"
    else:
        basis = (
            f"compared: held-out evaluations during training, after {read.end:,.6g} {_of_budget(request.match)}, the "
            "most that all runs have (linear between evaluations); not the samples of `rlvr eval`, which are of the "
            "final checkpoints"
        )
    seeds, one = {len(runs) for runs in inputs.runs.values()}, replicate(comparison)
    shown = count(min(seeds), one) if len(seeds) == 1 else f"{min(seeds)} to {max(seeds)} {one}s"
    if _pooled(comparison):
        shown += " (seeds and what else varies)"
    paired = "paired by problem and seed" if inputs.paired else "paired by problem, not by seed"
    return [what, basis, f"each arm: {shown}, {paired}; baseline: {inputs.baseline}"]


def sentences(comparison: TaskComparison) -> list[str]:
    """One sentence for each arm but the baseline, in the order of the table."""
    return [sentence(comparison, row) for row in comparison.rows if row.contrast is not None]


def sentence(comparison: TaskComparison, row: ArmResult) -> str:
    """What the difference between an arm and the baseline comes to; it says what the arm's verdict says."""
    contrast = row.contrast
    assert contrast is not None
    metric, base = comparison.inputs.by_run.metric, comparison.inputs.baseline
    difference, over = contrast.difference, _over(contrast, replicate(comparison))
    cost = _cost(row)
    if contrast.verdict == "single":
        runs = f"{these_runs(comparison, row.arm)} less {these_runs(comparison, base)}"
        return f"{runs}: {signed_text(metric, difference)}, {over}; {OF_RUNS}{cost}."
    if contrast.verdict in ("higher", "lower"):
        return (
            f"{row.arm} is {comparative(metric, difference.value)} {base} by {size_text(metric, difference)}, "
            f"{over}{cost}."
        )
    if contrast.verdict == "uncertain":
        return (
            f"{row.arm} may be {comparative(metric, difference.value)} {base}, by {size_text(metric, difference)}, "
            f"{over}; but {doubt(comparison.family, contrast.p_value)}{cost}."
        )
    if contrast.verdict == "unknown":
        return f"{row.arm} less {base} is {signed_text(metric, difference)}, {over}{cost}."
    between = f"between {row.arm} and {base}: {signed_text(metric, difference)}, {over}"
    return f"no difference can be seen {between}{to_see(metric, contrast, replicate(comparison))}{cost}."


def these_runs(comparison: TaskComparison, arm: str) -> str:
    """`this run of grpo`; of several `these 3 runs of grpo`."""
    number = len(comparison.inputs.runs[arm])
    return f"this run of {arm}" if number == 1 else f"these {number} runs of {arm}"


def power_lines(comparison: TaskComparison) -> list[str]:
    """What it takes to see the difference of --power, a line for each arm but the baseline."""
    metric, wanted = comparison.inputs.by_run.metric, comparison.inputs.request.power
    one, lines = replicate(comparison), []
    for row in comparison.rows:
        if row.contrast is None or wanted is None:
            continue
        needed, start = row.contrast.needed, f"to see {amount(metric, wanted)} between {row.arm} and the baseline"
        if needed is None:
            lines.append(
                f"{start}: the spread between runs and problems is not known; it takes two {one}s an arm, two problems "
                "and differences that are not all the same."
            )
            continue
        seeds, problems = row.contrast.difference.seeds, row.contrast.difference.problems
        most = (
            "can show none"
            if declared(metric).share and needed.detectable > 1
            else "show " + amount(metric, needed.detectable)
        )
        lines.append(
            f"{start} in 4 of 5 repetitions: {enough(needed.seeds, one)} with {count(problems, 'problem')}; "
            f"{enough(needed.problems, 'problem')} with {count(seeds, one)}. These {count(seeds, one)} x "
            f"{count(problems, 'problem')} {most}."
        )
    return lines


def base_cost(comparison: TaskComparison) -> str:
    """What the baseline spent, which the costs of the other arms are relative to."""
    spent, runs = comparison.baseline.spent, comparison.inputs.spent()[comparison.inputs.baseline]

    def seconds(part: str) -> str:
        values = [one.of(part) for one in runs]
        range_ = f" ({min(values):,.1f} to {max(values):,.1f})" if len(values) > 1 else ""
        return f"{spent.of(part):,.1f} s{range_}"

    return (
        f"cost of {comparison.inputs.baseline}, a run: {spent.rollouts:,.6g} rollouts, {spent.updates:,.6g} updates, "
        f"{spent.tokens:,.0f} tokens sampled, {seconds('update_seconds')} of updates, {seconds('seconds')} in all"
    )


def to_see(metric: str, contrast: Contrast, one: str) -> str:
    """What it would take to see a difference where none is seen, or that it would have been; ``one``: seed or run."""
    needed, low, high = contrast.needed, contrast.difference.low, contrast.difference.high
    if needed is None or low is None or high is None:
        return ""
    if needed.difference is None:
        # A power that was estimated does not rule out what the interval holds.
        least = max(needed.detectable, -low, high)
        return f"; a difference above {amount(metric, least)} would most likely have been seen"
    seeds, problems = contrast.difference.seeds, contrast.difference.problems
    size = amount(metric, needed.difference)
    if needed.detectable <= needed.difference:
        if max(-low, high) < needed.difference:
            return f"; {size} would most likely have been seen"
        return f"; {size} would be seen in 4 of 5 repetitions, and the interval does not rule it out"
    if needed.seeds is not None:
        return f"; to see {size} you would need {about(needed.seeds, one)}"
    if needed.problems is not None:
        return f"; to see {size} you would need {about(needed.problems, 'problem')} with {count(seeds, one)}"
    return f"; to see {size} you would need more of both than {count(seeds, one)} x {count(problems, 'problem')}"


def _over(contrast: Contrast, one: str) -> str:
    difference = contrast.difference
    text = f"{count(difference.seeds, one)} x {count(difference.problems, 'problem')}"
    if not difference.spread_of_runs:
        text = f"over {count(difference.problems, 'problem')}"
    if difference.low is None and difference.seeds * difference.problems == 1:
        return f"{text}, too few for an interval"
    if difference.low is None:
        return f"{text}, the same everywhere, so that there is no interval"
    if difference.spread_of_runs and not difference.spread_of_problems:
        return f"{text} (the interval is over {one}s alone)"
    return text


def _pooled(comparison: TaskComparison) -> bool:
    return any(one.rest for runs in comparison.inputs.runs.values() for one in runs)


def replicate(comparison: TaskComparison) -> str:
    """What the runs of an arm are counted as: seeds, unless more than the seed varies between them."""
    return "run" if _pooled(comparison) else "seed"


def _cost(row: ArmResult) -> str:
    """What the arm cost next to the baseline, counted: seconds say how loaded the machine was too."""
    ratios = {name: ratio for part, name in COUNTED.items() if (ratio := row.cost[part]) is not None}
    if not ratios:
        return ""
    said = [f"{times} the {name}" for name, ratio in ratios.items() if (times := ratio_text(ratio)) != "1x"]
    return f"; it cost {', '.join(said)}" if said else f"; it took as many {listed([*ratios])}"


def _budgets(comparison: TaskComparison) -> str:
    """The rollouts that the checkpoints were trained with, of each arm where they differ."""
    rollouts = {row.arm: f"{row.spent.rollouts:,.6g}" for row in comparison.rows}
    if len(set(rollouts.values())) == 1:
        return f"after {next(iter(rollouts.values()))} rollouts"
    return "after different numbers of rollouts: " + ", ".join(f"{arm} {count}" for arm, count in rollouts.items())


def _of_budget(budget: str) -> str:
    return {"tokens": "sampled tokens", "seconds": "seconds of training"}.get(budget, budget)


# Below so many tasks or runs the summaries over them say little.
FEW_TASKS = 10
# With 20 runs that answer all tasks, bootstraps still hold the truth in 91% (docs/statistics.md).
FEW_RUNS = 21


def noun(comparison: Comparison) -> str:
    """What the tasks are called."""
    return "benchmark" if comparison.inputs.together else "task"


def metric_text(comparison: Comparison) -> str:
    """The metric's name; where tasks have different numbers of samples, that of all of them."""
    names = {one.by_run.metric for one in comparison.inputs.tasks.values()}
    return metric_name(comparison.metric) if len(names) == 1 else (comparison.inputs.request.metric or "accuracy")


def lines_before(comparison: Comparison) -> list[str]:
    """What stands above the tables: what is compared; over several tasks also the answer."""
    if comparison.only is not None:
        return what_is_compared(comparison.only)
    inputs, tasks = comparison.inputs, comparison.tasks
    over = "" if inputs.together else f" ({', '.join(inputs.request.over)})"
    number = count(len(tasks), noun(comparison))
    heads = {name: what_is_compared(one) for name, one in tasks.items()}
    lines = [f"{metric_text(comparison)} over {number}{over}: {', '.join(tasks)}"]
    lines += [f"{name}: {head[0]}" for name, head in heads.items()]
    for place in (1, 2):
        lines += _once({name: head[place] for name, head in heads.items()})
    return [*lines, "", *(mean_sentence(comparison, row) for row in comparison.rows if row.contrast is not None)]


def mean_sentence(comparison: Comparison, row: ArmMean) -> str:
    """What an arm comes to against the baseline over all tasks; it says what the verdict of the mean says."""
    contrast = row.contrast
    assert contrast is not None
    base, metric, difference = comparison.inputs.baseline, comparison.metric, contrast.difference
    where = f"on the mean over {count(len(comparison.tasks), noun(comparison))}"
    one = replicate(next(iter(comparison.tasks.values())))
    over = f"{count(difference.seeds, one)} x {count(difference.problems, 'problem')}"
    if contrast.verdict == "single":
        first = next(iter(comparison.tasks.values()))
        runs = f"{these_runs(first, row.arm)} less {these_runs(first, base)} {where}"
        over = f"over {count(difference.problems, 'problem')}; {OF_RUNS}"
        return f"{runs}: {signed_text(metric, difference)}, {over}. {_tasks(comparison, row.arm, contrast)}."
    if contrast.verdict in ("higher", "lower"):
        text = f"{row.arm} is {comparative(metric, difference.value)} {base} {where} by {size_text(metric, difference)}"
    elif contrast.verdict == "uncertain":
        text = (
            f"{row.arm} may be {comparative(metric, difference.value)} {base} {where}, by "
            f"{size_text(metric, difference)}; but {doubt(comparison.family, contrast.p_value)}"
        )
    elif contrast.verdict == "unknown":
        text = f"{row.arm} less {base} is {signed_text(metric, difference)} {where}"
    else:
        text = f"no difference can be seen between {row.arm} and {base} {where}: {signed_text(metric, difference)}"
    text = f"{text}, {over}. {_tasks(comparison, row.arm, contrast)}."
    return text if contrast.improvement is None else f"{text} {_chance(row.arm, base, contrast.improvement)}."


def lines_after(comparison: Comparison) -> list[str]:
    """What stands below them: sentences, power, costs, how p-values were corrected, what they are worth, notes."""
    if comparison.only is not None:
        return _task_lines_after(comparison.only)
    one, arms, tasks = noun(comparison), len(comparison.rows) - 1, len(comparison.tasks)
    lines = _once({name: "; ".join(power_lines(each)) for name, each in comparison.tasks.items()})
    if comparison.tested:
        lines += [
            f"p: two-sided, Holm's correction over {count(comparison.family, 'comparison')}: {count(arms, 'arm')} on "
            f"{count(tasks, one)} and on their mean"
        ]
    return [*lines, *(f"note: {note}" for note in (*worth(comparison), *comparison.inputs.notes))]


def _task_lines_after(comparison: TaskComparison) -> list[str]:
    family = comparison.family
    tests = [f"p: two-sided, Holm's correction over {family} comparisons"] if family > 1 and comparison.tested else []
    notes = [f"note: {note}" for note in comparison.inputs.notes]
    return [*sentences(comparison), *power_lines(comparison), base_cost(comparison), *tests, *notes]


def worth(comparison: Comparison) -> list[str]:
    """What so few tasks and runs can and cannot say."""
    one, tasks = noun(comparison), len(comparison.tasks)
    runs = comparison.rows[0].mean.seeds
    notes = []
    if tasks < FEW_TASKS:
        notes.append(
            f"{count(tasks, one)} are not a sample of {one}s: every number over them is about these alone, and another "
            f"{one} may come out otherwise."
        )
        notes.append(
            f"the interquartile mean is that of the middle half of {count(runs * tasks, 'score')} an arm; where {one}s "
            f"differ more than runs do, it leaves out the easiest and the hardest {one} rather than lucky runs."
        )
    if runs < FEW_RUNS:
        short = "one run an arm has no interval" if runs == 1 else f"with {runs} runs an arm they are too short"
        decide = " Decide by the difference of the means and its p." if comparison.tested else ""
        notes.append(
            f"intervals of the interquartile mean, the chance and the profile are bootstraps over runs: {short} "
            f"(docs/statistics.md).{decide}"
        )
    return notes


def _tasks(comparison: Comparison, arm: str, contrast: MeanContrast) -> str:
    """On which tasks the arm is clearly higher and lower."""
    found: dict[str, list[str]] = {}
    for name, one in comparison.tasks.items():
        judged = next(row.contrast for row in one.rows if row.arm == arm)
        assert judged is not None
        found.setdefault(judged.verdict, []).append(name)
    above = contrast.outcomes
    text = (
        f"{arm} is higher on {above.wins}, lower on {above.losses} of {count(len(comparison.tasks), noun(comparison))}"
    )
    if contrast.verdict == "single":
        return text
    clear = [f"{verdict} on {some(found[verdict], 4)}" for verdict in ("higher", "lower") if verdict in found]
    return f"{text}; {'clearly ' + ', '.join(clear) if clear else 'clearly on none'}"


def _chance(arm: str, base: str, chance: Aggregate) -> str:
    if chance.low is None or chance.high is None:
        interval = ", without an interval: " + ("one run an arm" if chance.runs < 2 else "all resamples of runs agree")
    else:
        interval = f", 95% interval {chance.low:.2f} to {chance.high:.2f}"
    return f"The chance that a run of {arm} is above one of {base} is {chance.value:.2f}{interval}"


def _once(lines: Mapping[str, str]) -> list[str]:
    """A line of every task: once where it is the same for all, else with the task before it; none where it is empty."""
    if len(set(lines.values())) == 1:
        return [line for line in dict.fromkeys(lines.values()) if line]
    return [f"{name}: {line}" for name, line in lines.items() if line]
