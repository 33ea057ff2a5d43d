"""How a comparison says its numbers: sizes of differences, p-values, costs, verdicts."""

from __future__ import annotations

from rlvr_cli.compare.contrasts import ArmResult
from rlvr_cli.core.text import count
from rlvr_cli.evaluation.tables import metric_name
from rlvr_cli.stats.clustered import CrossedEstimate
from rlvr_cli.stats.over_tasks import Aggregate
from rlvr_cli.store.metrics import metric as declared

VERDICTS = {
    "higher": "higher",
    "lower": "lower",
    "uncertain": "may differ",
    "unseen": "no difference seen",
    "unknown": "no interval",
    "single": "of these runs",
}


def amount(metric: str, value: float) -> str:
    """The size of a difference: `2 points`, `3.1 points`, `0.012 of reward`."""
    factor, name = declared(metric).factor, declared(metric).unit
    text = _trimmed(abs(value) * factor, decimals(metric))
    return f"{text} {name.removesuffix('s') if text == '1' else name}".rstrip()


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


def comparative(metric: str, difference: float) -> str:
    """`better than`, `worse than`; of lengths and reasons `longer than`, `higher in ... than`."""
    better = declared(metric).higher_is_better
    if better is not None:
        return "better than" if (difference > 0) == better else "worse than"
    if metric == "length":
        return "longer than" if difference > 0 else "shorter than"
    return f"{'higher' if difference > 0 else 'lower'} in {metric_name(metric).strip()} than"


def doubt(family: int, p_value: float | None) -> str:
    """Why a difference whose interval leaves out 0 may be chance all the same."""
    shown = p_text(p_value)
    if family == 1:
        return f"p = {shown}, which is of a test that allows for more than the interval does"
    return f"of {family} comparisons one may come out so by chance (p = {shown} after Holm's correction)"


def p_text(p_value: float | None) -> str:
    """A p-value with three decimals."""
    if p_value is None:
        return "-"
    return "<0.001" if p_value < 0.001 else f"{p_value:.3f}"


def chance_text(chance: Aggregate) -> str:
    """`0.82 [0.60, 0.96]`."""
    return f"{chance.value:.2f}" + ("" if chance.low is None else f" [{chance.low:.2f}, {chance.high:.2f}]")


def ratio_text(ratio: float) -> str:
    """How many times the baseline's: two digits, and all that are before the point."""
    return f"{ratio:,.0f}x" if ratio >= 100 else f"{ratio:.2g}x"


def cost_text(row: ArmResult, part: str) -> str:
    """A part of what was spent over the baseline's; of seconds with the range over pairs of runs."""
    ratio, spread = row.cost[part], row.seconds.get(part)
    if ratio is None:
        return "-"
    if part not in row.seconds:
        return ratio_text(ratio)
    return f"{ratio_text(ratio)} ({'1 run' if spread is None else '-'.join(map(ratio_text, spread))})"


def enough(number: int | None, name: str) -> str:
    return f"no number of {name}s will do" if number is None else about(number, name)


def about(number: int, name: str) -> str:
    """What was worked out from an estimated spread: no more than two digits of it, rounded up, mean anything."""
    unit = 10 ** max(0, len(str(number)) - 2)
    return f"about {count(-(-number // unit) * unit, name)}"


def decimals(metric: str) -> int:
    """The decimals of a difference in the metric's unit."""
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
