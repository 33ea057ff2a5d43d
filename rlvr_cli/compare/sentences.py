"""A comparison in plain words: what is compared, a sentence for each arm, and what to keep in mind."""

from __future__ import annotations

from rlvr_cli.compare.contrasts import Comparison, Contrast, Row
from rlvr_cli.core.text import count
from rlvr_cli.evaluation.tables import metric_name
from rlvr_cli.results.metrics import GREEDY
from rlvr_cli.results.metrics import metric as declared
from rlvr_cli.stats.clustered import CrossedEstimate

# Costs that are counted, by the fields of ``Spent``.
COUNTED = {"updates": "updates", "update_tokens": "tokens in updates", "tokens": "sampled tokens"}


def decimals(metric: str) -> int:
    """The decimals of a difference in the metric's unit."""
    return declared(metric).difference_decimals


def headline(comparison: Comparison) -> list[str]:
    """What the numbers are of: problems, samples, checkpoints or budget, and the pairing."""
    material = comparison.material
    read, question = material.read, material.question
    of = f"{read.result['benchmark']}, {read.result['split']}, {count(len(read.problems), 'problem')}"
    greedy = read.metric == GREEDY or not read.samples
    samples = ", one greedy completion each" if greedy else f" x {count(read.samples, 'sample')}"
    what = f"{metric_name(read.metric)} on {of}{samples}"
    if question.match is None:
        basis = f"compared: final checkpoints, by the samples of `rlvr eval` ({_budgets(comparison)})"
    else:
        basis = (
            f"compared: held-out evaluations during training, after {read.end:,.6g} {_of_budget(question.match)}, the "
            "most that all runs have (linear between evaluations); not the samples of `rlvr eval`, which are of the "
            "final checkpoints"
        )
    seeds, one = {len(runs) for runs in material.runs.values()}, replicate(comparison)
    shown = count(min(seeds), one) if len(seeds) == 1 else f"{min(seeds)} to {max(seeds)} {one}s"
    if _pooled(comparison):
        shown += " (seeds and what else varies)"
    paired = "paired by problem and seed" if material.paired else "paired by problem, not by seed"
    return [what, basis, f"each arm: {shown}, {paired}; baseline: {material.baseline}"]


def sentences(comparison: Comparison) -> list[str]:
    """One sentence for each arm but the baseline, in the order of the table."""
    return [sentence(comparison, row) for row in comparison.rows if row.contrast is not None]


def sentence(comparison: Comparison, row: Row) -> str:
    """What the difference between an arm and the baseline comes to; it says what the arm's verdict says."""
    contrast = row.contrast
    assert contrast is not None
    metric, base = comparison.material.read.metric, comparison.material.baseline
    difference, over = contrast.difference, _over(contrast, replicate(comparison))
    cost = _cost(row)
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


def power_lines(comparison: Comparison) -> list[str]:
    """What it takes to see the difference of --power, a line for each arm but the baseline."""
    metric, wanted = comparison.material.read.metric, comparison.material.question.power
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
            f"{start} in 4 of 5 repetitions: {_enough(needed.seeds, one)} with {count(problems, 'problem')}; "
            f"{_enough(needed.problems, 'problem')} with {count(seeds, one)}. These {count(seeds, one)} x "
            f"{count(problems, 'problem')} {most}."
        )
    return lines


def amount(metric: str, value: float) -> str:
    """The size of a difference: `2 points`, `3.1 points`, `0.012 of reward`."""
    factor, name = declared(metric).factor, declared(metric).unit
    text = _trimmed(abs(value) * factor, decimals(metric))
    return f"{text} {name.removesuffix('s') if text == '1' else name}".rstrip()


def p_text(p_value: float | None) -> str:
    """A p-value with three decimals."""
    if p_value is None:
        return "-"
    return "<0.001" if p_value < 0.001 else f"{p_value:.3f}"


def ratio_text(ratio: float) -> str:
    """How many times the baseline's: two digits, and all that are before the point."""
    return f"{ratio:,.0f}x" if ratio >= 100 else f"{ratio:.2g}x"


def cost_text(row: Row, part: str) -> str:
    """A part of what was spent over the baseline's; of seconds with the range over pairs of runs."""
    ratio, spread = row.cost[part], row.seconds.get(part)
    if ratio is None:
        return "-"
    if part not in row.seconds:
        return ratio_text(ratio)
    return f"{ratio_text(ratio)} ({'1 run' if spread is None else '-'.join(map(ratio_text, spread))})"


def base_cost(comparison: Comparison) -> str:
    """What the baseline spent, which the costs of the other arms are relative to."""
    spent, runs = comparison.baseline.spent, comparison.material.spent()[comparison.material.baseline]

    def seconds(part: str) -> str:
        values = [one.of(part) for one in runs]
        range_ = f" ({min(values):,.1f} to {max(values):,.1f})" if len(values) > 1 else ""
        return f"{spent.of(part):,.1f} s{range_}"

    return (
        f"cost of {comparison.material.baseline}, a run: {spent.rollouts:,.6g} rollouts, {spent.updates:,.6g} updates, "
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
        return f"; to see {size} you would need {_about(needed.seeds, one)}"
    if needed.problems is not None:
        return f"; to see {size} you would need {_about(needed.problems, 'problem')} with {count(seeds, one)}"
    return f"; to see {size} you would need more of both than {count(seeds, one)} x {count(problems, 'problem')}"


def size_text(metric: str, difference: CrossedEstimate) -> str:
    """`3.1 points, 95% interval 0.9 to 5.2`, of the size of the difference."""
    assert difference.low is not None and difference.high is not None
    ends = (difference.low, difference.high) if difference.value > 0 else (-difference.high, -difference.low)
    return f"{_with_unit(metric, abs(difference.value))}, 95% interval {_ends(metric, ends)}"


def signed_text(metric: str, difference: CrossedEstimate) -> str:
    """`+0.4 points, 95% interval -1.2 to 2.0`; without the interval where there is none."""
    value = _with_unit(metric, difference.value, signed=True)
    if difference.low is None or difference.high is None:
        return value
    return f"{value}, 95% interval {_ends(metric, (difference.low, difference.high))}"


def _ends(metric: str, ends: tuple[float, float]) -> str:
    return " to ".join(_figure(metric, end) for end in ends)


def _over(contrast: Contrast, one: str) -> str:
    difference = contrast.difference
    text = f"{count(difference.seeds, one)} x {count(difference.problems, 'problem')}"
    if difference.low is None and difference.seeds * difference.problems == 1:
        return f"{text}, too few for an interval"
    if difference.low is None:
        return f"{text}, the same everywhere, so that there is no interval"
    if not difference.spread_of_runs:
        return f"{text} (the interval is over problems alone: another {one} may say otherwise)"
    if not difference.spread_of_problems:
        return f"{text} (the interval is over {one}s alone)"
    return text


def doubt(family: int, p_value: float | None) -> str:
    """Why a difference whose interval leaves out 0 may be chance all the same."""
    shown = p_text(p_value)
    if family == 1:
        return f"p = {shown}, which is of a test that allows for more than the interval does"
    return f"of {family} comparisons one may come out so by chance (p = {shown} after Holm's correction)"


def comparative(metric: str, difference: float) -> str:
    """`better than`, `worse than`; of lengths and reasons `longer than`, `higher in ... than`."""
    better = declared(metric).higher_is_better
    if better is not None:
        return "better than" if (difference > 0) == better else "worse than"
    if metric == "length":
        return "longer than" if difference > 0 else "shorter than"
    return f"{'higher' if difference > 0 else 'lower'} in {metric_name(metric).strip()} than"


def _pooled(comparison: Comparison) -> bool:
    return any(one.rest for runs in comparison.material.runs.values() for one in runs)


def replicate(comparison: Comparison) -> str:
    """What the runs of an arm are counted as: seeds, unless more than the seed varies between them."""
    return "run" if _pooled(comparison) else "seed"


def _enough(number: int | None, name: str) -> str:
    return f"no number of {name}s will do" if number is None else _about(number, name)


def _cost(row: Row) -> str:
    """What the arm cost beside the baseline, counted: seconds say how loaded the machine was too."""
    ratios = {name: ratio for part, name in COUNTED.items() if (ratio := row.cost[part]) is not None}
    if not ratios:
        return ""
    said = [f"{times} the {name}" for name, ratio in ratios.items() if (times := ratio_text(ratio)) != "1x"]
    return f"; it cost {', '.join(said)}" if said else f"; it cost the same {' and '.join(ratios)}"


def _budgets(comparison: Comparison) -> str:
    """The rollouts that the checkpoints were trained with, of each arm where they differ."""
    rollouts = {row.arm: f"{row.spent.rollouts:,.6g}" for row in comparison.rows}
    if len(set(rollouts.values())) == 1:
        return f"after {next(iter(rollouts.values()))} rollouts"
    return "after different numbers of rollouts: " + ", ".join(f"{arm} {count}" for arm, count in rollouts.items())


def _of_budget(budget: str) -> str:
    return {"tokens": "sampled tokens", "seconds": "seconds of training"}.get(budget, budget)


def _figure(metric: str, value: float, *, signed: bool = False) -> str:
    factor = declared(metric).factor
    return f"{value * factor:{'+' if signed else ''}z.{decimals(metric)}f}"


def _with_unit(metric: str, value: float, *, signed: bool = False) -> str:
    return f"{_figure(metric, value, signed=signed)} {declared(metric).unit}".rstrip()


def _trimmed(value: float, decimals: int) -> str:
    text = f"{value:.{decimals}f}" if value >= 10**-decimals else f"{value:.2g}"
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text


def _about(number: int, name: str) -> str:
    """What was worked out from an estimated spread: no more than two digits of it, rounded up, mean anything."""
    unit = 10 ** max(0, len(str(number)) - 2)
    return f"about {count(-(-number // unit) * unit, name)}"
