"""The same comparison at equal budget, on each of them: what one more rollout, update, token or second is worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rlvr_cli.compare.contrasts import Comparison, Row, compare
from rlvr_cli.compare.inputs import gather_from
from rlvr_cli.compare.sentences import p_text
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.text import count
from rlvr_cli.evaluation.tables import metric_name, with_interval
from rlvr_cli.report.report_subject import Subject
from rlvr_cli.report.report_table import Table, table
from rlvr_cli.results.spending import BUDGETS


@dataclass(frozen=True)
class Budgets:
    """``table``: None where no budget gives one. ``without``: why a budget gives none, a line each."""

    table: Table | None
    without: tuple[str, ...]


def budgets(subject: Subject) -> Budgets:
    """The difference of each arm to the baseline at the largest common budget, a row for each budget.

    Nothing where final checkpoints are not what is compared, or the runs have no held-out evaluations from training.
    """
    if subject.comparison is None or subject.question.match is not None:
        return Budgets(None, ())
    if not all(any(run.dir.held_out_dir.glob("*/metrics.json")) for run in subject.readiness.runs):
        return Budgets(None, ())
    base = subject.comparison.material.baseline
    asked = replace(subject.question, baseline=base, benchmark=None, where=(), power=None)
    found: dict[str, Comparison] = {}
    without: list[str] = []
    for budget in BUDGETS:
        try:
            found[budget] = compare(gather_from(replace(asked, match=budget), subject.readiness.runs, [], []))
        except UserError as error:
            without.append(f"Not at equal {budget}: {' '.join(error.problems)}")
    return Budgets(_table(found, base) if found else None, tuple(without))


def _table(found: Mapping[str, Comparison], base: str) -> Table:
    first = next(iter(found.values()))
    read = first.material.read
    arms = [row.arm for row in first.rows if row.contrast is not None]
    rows = []
    for budget, one in found.items():
        own = {row.arm: row for row in one.rows}
        rows.append((f"{_amount(one.material.read.end)} {budget}", *(_cell(read.metric, own[arm]) for arm in arms)))
    samples = f" x {count(read.samples, 'sample')}" if read.samples else ", greedy"
    return table(
        f"At equal budget: difference to {base} [95%]",
        ("at", *arms),
        rows,
        note=f"{metric_name(read.metric).strip()} of the held-out evaluations in training ({read.result['split']}, "
        f"{count(len(read.problems), 'problem')}{samples}), linear between them, at the most that all runs have; not "
        "of the final checkpoints above. p after Holm's correction within a budget. `rlvr compare --match` has the "
        "rest.",
    )


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.3g}"


def _cell(metric: str, row: Row) -> str:
    assert row.contrast is not None
    one = row.contrast.difference
    shown = with_interval(metric, {"value": one.value, "low": one.low, "high": one.high}, signed=True)
    return f"{shown}, p {p_text(row.contrast.p_value)}"
