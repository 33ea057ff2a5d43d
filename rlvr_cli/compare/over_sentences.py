"""A comparison over several tasks in plain words."""

from __future__ import annotations

from collections.abc import Mapping

from rlvr_cli.compare.over_contrasts import TasksComparison, TasksContrast, TasksRow
from rlvr_cli.compare.sentences import comparative, doubt, headline, power_lines, replicate, signed_text, size_text
from rlvr_cli.core.text import count, some
from rlvr_cli.evaluation.tables import metric_name
from rlvr_cli.stats.over_tasks import Aggregate

# Below so many tasks or runs the summaries over them say little.
FEW_TASKS = 10
# With 20 runs that answer all tasks, bootstraps still hold the truth in 91% (docs/statistics.md).
FEW_RUNS = 21
VERDICTS = {
    "higher": "higher",
    "lower": "lower",
    "uncertain": "may differ",
    "unseen": "no difference seen",
    "unknown": "no interval",
}


def noun(comparison: TasksComparison) -> str:
    """What the tasks are called."""
    return "benchmark" if comparison.material.together else "task"


def metric_text(comparison: TasksComparison) -> str:
    """The metric's name; where tasks have different numbers of samples, that of all of them."""
    names = {one.read.metric for one in comparison.material.tasks.values()}
    return metric_name(comparison.metric) if len(names) == 1 else (comparison.material.question.metric or "accuracy")


def lines_before(comparison: TasksComparison) -> list[str]:
    """What is compared, and the answer."""
    material, tasks = comparison.material, comparison.tasks
    over = "" if material.together else f" ({', '.join(material.question.over)})"
    number = count(len(tasks), noun(comparison))
    heads = {name: headline(one) for name, one in tasks.items()}
    lines = [f"{metric_text(comparison)} over {number}{over}: {', '.join(tasks)}"]
    lines += [f"{name}: {head[0]}" for name, head in heads.items()]
    for place in (1, 2):
        lines += _once({name: head[place] for name, head in heads.items()})
    return [*lines, "", *sentences(comparison)]


def sentences(comparison: TasksComparison) -> list[str]:
    """One for each arm but the baseline, in the order of the table."""
    return [sentence(comparison, row) for row in comparison.rows if row.contrast is not None]


def sentence(comparison: TasksComparison, row: TasksRow) -> str:
    """What an arm comes to against the baseline over all tasks; it says what the verdict of the mean says."""
    contrast = row.contrast
    assert contrast is not None
    base, metric, difference = comparison.material.baseline, comparison.metric, contrast.difference
    where = f"on the mean over {count(len(comparison.tasks), noun(comparison))}"
    one = replicate(next(iter(comparison.tasks.values())))
    over = f"{count(difference.seeds, one)} x {count(difference.problems, 'problem')}"
    if not difference.spread_of_runs:
        over += f" (the interval is over problems alone: another {one} may say otherwise)"
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
    return f"{text}, {over}. {_tasks(comparison, row.arm, contrast)}. {_chance(row.arm, base, contrast.improvement)}."


def lines_after(comparison: TasksComparison) -> list[str]:
    """Below the tables: how p-values were corrected, what the summaries are worth, power, notes."""
    one, arms, tasks = noun(comparison), len(comparison.rows) - 1, len(comparison.tasks)
    lines = _once({name: "; ".join(power_lines(each)) for name, each in comparison.tasks.items()})
    lines += [
        f"p: two-sided, Holm's correction over {count(comparison.family, 'comparison')}: {count(arms, 'arm')} on "
        f"{count(tasks, one)} and on their mean"
    ]
    return [*lines, *(f"note: {note}" for note in (*worth(comparison), *comparison.material.notes))]


def worth(comparison: TasksComparison) -> list[str]:
    """What so few tasks and runs can and cannot say."""
    one, tasks = noun(comparison), len(comparison.tasks)
    runs = comparison.rows[0].mean.seeds
    notes = []
    if tasks < FEW_TASKS:
        notes.append(
            f"{count(tasks, one)} are no sample of {one}s: every number over them is about these alone, and another "
            f"{one} may come out otherwise."
        )
        notes.append(
            f"the interquartile mean is that of the middle half of {count(runs * tasks, 'score')} an arm; where {one}s "
            f"differ more than runs do, it leaves out the easiest and the hardest {one} rather than lucky runs."
        )
    if runs < FEW_RUNS:
        short = "one run an arm has no interval" if runs == 1 else f"with {runs} runs an arm they are too short"
        notes.append(
            f"intervals of the interquartile mean, the chance and the profile are bootstraps over runs: {short} "
            "(docs/statistics.md). Decide by the difference of the means and its p."
        )
    return notes


def chance_text(chance: Aggregate) -> str:
    """`0.82 [0.60, 0.96]`."""
    return f"{chance.value:.2f}" + ("" if chance.low is None else f" [{chance.low:.2f}, {chance.high:.2f}]")


def _tasks(comparison: TasksComparison, arm: str, contrast: TasksContrast) -> str:
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
