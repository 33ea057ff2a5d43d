"""The same comparison at equal budget, on each of them: what one more rollout, update, token or second is worth."""

from __future__ import annotations

from dataclasses import replace

from rlvr_cli.config.errors import UserError
from rlvr_cli.evaluation.comparison.cost import BUDGETS
from rlvr_cli.evaluation.comparison.material import gather_from
from rlvr_cli.evaluation.tables import metric_name, with_interval
from rlvr_cli.report.comparison import Comparison, Row, compare
from rlvr_cli.report.comparison_words import p_text
from rlvr_cli.report.report_subject import Subject
from rlvr_cli.report.report_table import Table, count, table


def budgets_table(subject: Subject) -> Table | None:
    """The difference of each arm to the baseline at the largest common budget, a row for each budget.

    None where final checkpoints are not what is compared, or where the held-out evaluations of training do not give it,
    which `rlvr compare --match` explains.
    """
    if subject.comparison is None or subject.question.match is not None:
        return None
    base = subject.comparison.material.baseline
    asked = replace(subject.question, baseline=base, benchmark=None, where=(), power=None)
    found: dict[str, Comparison] = {}
    for budget in BUDGETS:
        try:
            found[budget] = compare(gather_from(replace(asked, match=budget), subject.readiness.runs, [], []))
        except UserError:
            return None
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
        "of the final checkpoints above. p after Holm's correction within a budget: `rlvr compare --match`.",
    )


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.3g}"


def _cell(metric: str, row: Row) -> str:
    assert row.contrast is not None
    one = row.contrast.difference
    shown = with_interval(metric, {"value": one.value, "low": one.low, "high": one.high}, signed=True)
    return f"{shown}, p {p_text(row.contrast.p_value)}"
