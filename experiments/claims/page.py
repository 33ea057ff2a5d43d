"""The claims as a page of Markdown with its figure: the same results give the same bytes."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from experiments.claims.claims import DECIDED, FOLDER, PAPERS, Claim, ClaimResult, ClaimSet, Results, Rule
from experiments.claims.judge import MOST_SEEDS, agreement, verdict_on, wrong_by_chance
from rlvr_cli.charts.figure import COLOURS, INK, MUTED, write_chart
from rlvr_cli.core.files import write_text
from rlvr_cli.core.text import count, format_duration, template_environment

if TYPE_CHECKING:
    import altair

WIDTH = 130
FOLLOWS = "follows from the formula"
UNDECIDED_THERE = "undecided there"
LEANINGS = ("leaning the same way", "the other way", "without a number in some seed", "with both arms the same")
VERDICT_COLOURS = {"holds": COLOURS[2], "does not hold": COLOURS[1], "undecided": COLOURS[7]}
# Half widths up to which the axis is about linear, and where it ends.
_LINEAR, _FARTHEST = 2.0, 100.0


class ClaimRow(NamedTuple):
    """A claim with its results of both sets of seeds, where they are of the claim as it is written today."""

    claim: Claim
    result: ClaimResult | None
    second: ClaimResult | None

    @property
    def state(self) -> str:
        """The verdict; `not run` where there is none."""
        return "not run" if self.result is None else self.result.verdict

    @property
    def follows(self) -> bool:
        """Whether it holds by its formula alone, which is no evidence."""
        return bool(self.claim.cannot_fail) and self.state == "holds"

    @property
    def verdict(self) -> str:
        """`holds`, `undecided (about 31 seeds)`, `follows from the formula`."""
        if self.follows:
            return FOLLOWS
        if self.result is None or self.state != "undecided":
            return self.state
        if self.result.reason is not None:
            return (
                f"undecided ({'both arms have the same number' if self.result.values else 'not seen with every seed'})"
            )
        needed = self.result.needed
        return f"undecided ({f'more than {MOST_SEEDS}' if needed is None else f'about {needed}'} seeds)"

    @property
    def effect(self) -> str:
        """`0.62 [0.41, 0.83]`; without an interval where there is none, or no width of it."""
        result = self.result
        if result is None or result.mean is None:
            return "-"
        point = result.low is None or result.high is None or result.low == result.high
        return f"{result.mean:.3g}" if point else f"{result.mean:.3g} [{result.low:.3g}, {result.high:.3g}]"

    @property
    def note(self) -> str:
        """Why it has no number, why it cannot fail, and what weakens it; empty where there is nothing to say."""
        reasons = [self.result.reason if self.result else None, self.claim.cannot_fail if self.follows else None]
        texts = [text for text in (*reasons, self.claim.note) if text]
        return " ".join(text if text.endswith(".") else f"{text}." for text in texts)

    @property
    def agreement(self) -> str:
        """`agrees`, `contradicts: does not hold`, `-` where the second set of seeds has nothing to say."""
        first, second = self.result, self.second
        if first is None or second is None or first.exact or self.claim.cannot_fail:
            return "-"
        relation = agreement(first.verdict, second.verdict)
        if relation is None:
            return "-" if second.verdict == first.verdict else f"{second.verdict} there"
        return f"contradicts: {second.verdict}" if relation == "contradicts" else relation

    def cells(self, *, two: bool) -> list[str]:
        """Return its row of a table; ``two``: with the second set of seeds."""
        claim, result = self.claim, self.result
        unit = f" {claim.measure.unit}" if result is not None and claim.measure.unit else ""
        seeds = "-" if result is None else "exact" if result.exact else str(len(result.seeds) or "-")
        return [
            f"**{claim.id.partition('/')[2]}**: {claim.statement}",
            claim.place,
            claim.paper_value,
            f"{self.effect}{unit}",
            str(claim.rule),
            seeds,
            self.verdict,
            *([self.agreement] if two else []),
        ]


def rows_of(claim_set: ClaimSet, sets: Sequence[Results]) -> list[ClaimRow]:
    """Return the rows of all claims; ``sets``: the results of one or two sets of seeds."""
    second = sets[1] if len(sets) > 1 else Results(0)
    return [
        ClaimRow(claim, sets[0].current(claim, claim_set), second.current(claim, claim_set))
        for claim in claim_set.claims.values()
    ]


def headline(rows: Sequence[ClaimRow]) -> str:
    """Return `Of 72 claims that can fail, 21 hold, ... 14 more follow from the formula.`"""
    counted = [row.state for row in rows if row.result is not None and not row.follows]
    rest = sum(row.follows for row in rows)
    more = f" {rest} more {'follow' if rest > 1 else 'follows'} from the formula." if rest else ""
    words = {
        "holds": ("holds", "hold"),
        "does not hold": ("does not hold", "do not hold"),
        "undecided": ("is undecided at this scale", "are undecided at this scale"),
        "failed": ("failed", "failed"),
    }
    number = Counter(counted)
    parts = [f"{number[state]} {forms[number[state] != 1]}" for state, forms in words.items() if number[state]]
    return f"Of {count(len(counted), 'claim')} that can fail, {', '.join(parts) or 'none'}.{more}"


def by_chance(rows: Sequence[ClaimRow]) -> str:
    """Return how many claims an interval tests and decides, and how many verdicts may be wrong by chance alone."""
    results = [row.result for row in rows if row.result is not None and not row.follows]
    tested = [result for result in results if not result.exact and result.low != result.high]
    if not tested:
        return "No verdict rests on an interval."
    decided = sum(result.verdict in DECIDED for result in tested)
    least, most = wrong_by_chance(len(tested))
    return (
        f"A 95% interval tests {count(len(tested), 'claim')} and decides {decided}; by chance alone at most "
        f"{least:.1f} verdicts are wrong on average, {most:.1f} if every truth lies on its threshold."
    )


def agreements(rows: Sequence[ClaimRow]) -> str:
    """Return on how many of the decided claims a second set agrees, and which way it leans where it decides nothing.

    Exact statements and claims that cannot fail are left out: no seed decides them.
    """
    relations, leans = Counter[str](), Counter[str]()
    for claim, result, other in rows:
        if result is None or other is None or result.exact or claim.cannot_fail:
            continue
        relation = agreement(result.verdict, other.verdict)
        if relation is not None:
            relations[relation] += 1
        if relation == UNDECIDED_THERE:
            same, against, no_number, arms_alike = LEANINGS
            if other.mean is None:
                leans[arms_alike if other.values else no_number] += 1
            else:
                leans[same if verdict_on(other.mean, other.mean, claim.rule) == result.verdict else against] += 1
    rest = [f"{relations[kind]} {kind}" for kind in ("failed there", UNDECIDED_THERE) if relations[kind]]
    ways = ", ".join(f"{leans[way]} {way}" for way in LEANINGS if leans[way])
    also = f" ({', '.join(rest)}{': ' if ways else ''}{ways})" if rest else ""
    contradicted = relations["contradicts"] or "none"
    decided = count(relations.total(), "verdict")
    return f"agrees on {relations['agrees']} of {decided} resting on seeds and contradicts {contradicted}{also}"


def write_page(folder: Path, claim_set: ClaimSet, sets: Sequence[Results]) -> None:
    """Write `ledger.md` into ``folder``, and `ledger/overview.svg`."""
    rows = rows_of(claim_set, sets)
    (folder / "ledger").mkdir(exist_ok=True)
    write_chart(claims_chart(rows), folder / "ledger" / "overview.svg")
    write_text(folder / "ledger.md", page(rows, sets))


def page(rows: Sequence[ClaimRow], sets: Sequence[Results]) -> str:
    """Return the text of the page."""
    environment = template_environment(FOLDER)
    environment.filters["fill"] = _fill
    papers = [(title, [row for row in rows if row.claim.paper == paper]) for paper, title in PAPERS.items()]
    return environment.get_template("ledger.md.j2").render(
        sets=sets,
        papers=[(title, own) for title, own in papers if own],
        headline=headline(rows),
        by_chance=by_chance(rows),
        agreements=agreements(rows),
        count=count,
        in_words=format_duration,
    )


def _fill(text: str, bullet: str = "") -> str:
    """Return a paragraph, or an item of a list, in lines of the page's width."""
    indent = " " * len(bullet)
    wrapped = textwrap.TextWrapper(WIDTH, bullet, indent, break_long_words=False, break_on_hyphens=False)
    return wrapped.fill(text.strip()) + "\n"


def distance(result: ClaimResult, rule: Rule) -> tuple[float, bool] | None:
    """Return the effect's distance from the threshold it is nearest to, above 0 where the claim would hold.

    In half widths of its interval, at most 100; of an effect without spread 100, and True. None without an interval.
    """
    if result.mean is None or result.low is None or result.high is None:
        return None
    low, high = rule.bounds
    margins = [result.mean - low] if low is not None else []
    margins += [high - result.mean] if high is not None else []
    margin, half = min(margins), (result.high - result.low) / 2
    if half == 0:
        return (_FARTHEST if result.verdict == "holds" else -_FARTHEST), True
    return max(-_FARTHEST, min(_FARTHEST, margin / half)), False


def claims_chart(rows: Sequence[ClaimRow]) -> altair.TopLevelMixin:
    """Return the overview: a panel for each paper, a line for each of its claims that can fail."""
    import altair
    import pandas as pd

    rows = [row for row in rows if not row.claim.cannot_fail]
    ticks = [-100, -10, -1, 0, 1, 10, 100]
    x = altair.X(
        "position:Q",
        title=None,
        scale=altair.Scale(type="symlog", constant=_LINEAR, domain=[-1.4 * _FARTHEST, 1.4 * _FARTHEST], nice=False),
        axis=altair.Axis(values=ticks, labelExpr=f"abs(datum.value) < {_FARTHEST} ? datum.label : datum.label + '+'"),
    )
    colour = altair.Color(
        "verdict:N",
        title=None,
        scale=altair.Scale(domain=list(VERDICT_COLOURS), range=list(VERDICT_COLOURS.values())),
        legend=altair.Legend(orient="top"),
    )
    band = altair.Chart(pd.DataFrame([{"position": -1, "end": 1}])).mark_rect(color=INK, opacity=0.05)
    zero = altair.Chart(pd.DataFrame([{"position": 0}])).mark_rule(color=INK, strokeWidth=0.8)
    panels = []
    for paper, title in PAPERS.items():
        marks = pd.DataFrame(
            [_marks(row) for row in rows if row.claim.paper == paper],
            columns=["claim", "verdict", "position", "low", "high", "spread", "second", "state"],
        )
        if marks.empty:
            continue
        y = altair.Y("claim:N", sort=None, title=None, axis=altair.Axis(labelLimit=0, labelFontSize=10, grid=True))
        base = altair.Chart(marks).encode(y=y)
        first = base.transform_filter("isValid(datum.position)")
        bars = base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=1.6)
        second = base.transform_filter("isValid(datum.second)").mark_point(
            color=INK, size=28, yOffset=4, strokeWidth=0.9
        )
        panels.append(
            altair.layer(
                band.encode(x=x, x2="end:Q"),
                zero.encode(x=x),
                bars.encode(x=altair.X("low:Q", title=None), x2="high:Q", color=colour),
                first.mark_point(filled=True, opacity=1, size=34).encode(
                    x=x,
                    color=colour,
                    shape=altair.Shape(
                        "spread:N",
                        title=None,
                        scale=altair.Scale(domain=["with an interval", "no spread"], range=["circle", "diamond"]),
                        legend=altair.Legend(orient="top"),
                    ),
                ),
                second.encode(x=altair.X("second:Q", title=None)),
                base.transform_filter("isValid(datum.state)")
                .mark_text(align="left", fontSize=9, color=MUTED, dx=3)
                .encode(x=altair.datum(0), text="state:N"),
            ).properties(width=460, height=altair.Step(16), title=title)
        )
    text = "distance from the threshold, in half widths of the 95% interval (right: as claimed; ring: second set)"
    return altair.vconcat(*panels).properties(title=altair.TitleParams(text, fontSize=12))


def _marks(row: ClaimRow) -> dict[str, Any]:
    """Return a claim's dot and bar and the ring of the second set, or why there are none."""
    line: dict[str, Any] = {"claim": row.claim.id.partition("/")[2]}
    shown = None if row.result is None else distance(row.result, row.claim.rule)
    if row.result is None or shown is None:
        return line | {"state": row.state}
    position, exact = shown
    line |= {
        "verdict": row.result.verdict,
        "position": position,
        "spread": "no spread" if exact else "with an interval",
    }
    if not exact:
        line |= {"low": position - 1, "high": position + 1}
    second = None if row.second is None else distance(row.second, row.claim.rule)
    return line | {"second": None if second is None or row.result.exact else second[0]}
