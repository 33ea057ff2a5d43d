"""What `rlvr reproduce` shows: the claims with their last verdicts, what would be done, and what came out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from rlvr_cli.core.table import ResultDocument, Table
from rlvr_cli.core.terminal import Cell, Marked
from rlvr_cli.core.text import duration_in_words
from rlvr_cli.ledger import wording
from rlvr_cli.ledger.claim_results import ClaimResult, Results, all_results
from rlvr_cli.ledger.claims import ClaimSet
from rlvr_cli.ledger.run import Order, plan_reproduction
from rlvr_cli.ledger.schema import Claim
from rlvr_cli.ledger.trainings import Folders


def claims_document(claim_set: ClaimSet, folders: Folders) -> ResultDocument:
    """The claims, with the last verdict of each set of seeds."""
    sets = all_results(folders)
    rows = []
    for claim in claim_set.claims.values():
        found = {str(one.seed_from): wording.current(claim, claim_set, one) for one in sets}
        verdicts = {seeds: None if one is None else one.verdict for seeds, one in found.items()}
        rows.append({**claim.model_dump(mode="json", by_alias=True, exclude_none=True), "verdicts": verdicts})
    cells = [
        (claim.id, claim.place, claim.statement, *(wording.last(claim, claim_set, one) for one in sets))
        for claim in claim_set.claims.values()
    ]
    header = ("claim", "place", "statement", *(f"seeds {one.seed_from}-" for one in sets))
    said = f"{len(rows)} claims. `rlvr reproduce CLAIM`, a paper's name, or --all puts them to the test."
    return ResultDocument(tables=[Table("", header, cells)], data=rows, after=[said], rows=rows)


def reproduction_document(order: Order) -> ResultDocument:
    """What would be built, trained and measured."""
    plan = plan_reproduction(order)
    header = ("arm", "base", "trainings", "done", "failed", "to do", "rollouts each")
    cells = [
        (row.arm, row.base, *map(str, (row.trainings, row.done, row.failed, row.to_do, row.rollouts)))
        for row in plan.arms
    ]
    to_do = sum(row.to_do for row in plan.arms)
    rollouts = sum(row.to_do * row.rollouts for row in plan.arms)
    lines = [
        f"{plan.claims} claims, seeds {order.seed_from} and up: {to_do} trainings of {rollouts:,} rollouts to do, "
        f"{plan.measures} analyses of one training each, {plan.workers} worker{'s' if plan.workers > 1 else ''}",
        *(f"this machine lacks: {said}" for said in plan.lacking),
    ]
    if plan.bases:
        lines.append(f"to build first: {', '.join(plan.bases)}")
    if plan.seconds is not None:
        lines.append(f"about {duration_in_words(plan.seconds)} of training, by the finished ones")
    elif to_do:
        lines.append("the time is known once the first training is done")
    rows = [asdict(row) for row in plan.arms]
    return ResultDocument(tables=[Table("", header, cells)], data=plan.as_json(), after=lines, rows=rows)


def _marked(words: str, verdict: str) -> Cell:
    style = {"holds": "good", "does not hold": "bad", "failed": "bad"}.get(verdict)
    return words if style is None else Marked(words, style)


def results_document(
    claims: list[Claim], results: Results, others: Mapping[str, ClaimResult] | None, other_seeds: int | None
) -> ResultDocument:
    """The verdicts on ``claims``; next to them those of another set of seeds, where there is one."""
    cells, rows = [], []
    for claim in claims:
        found = results.outcomes[claim.id]
        other = None if others is None else wording.other_set(found, others.get(claim.id))
        cells.append(
            (
                claim.id,
                claim.paper_value,
                wording.effect(found),
                str(claim.rule),
                wording.size(found),
                _marked(wording.verdict_in_words(found, claim), found.verdict),
                *([] if other is None else [other]),
            )
        )
        about = claim.model_dump(mode="json", by_alias=True, exclude_none=True)
        rows.append({**about, **asdict(found), "other_set": other})
    second = [] if others is None else [f"seeds {other_seeds}-"]
    counted = wording.that_can_fail(claims, results.outcomes)
    lines = [f"{wording.claims_headline(claims, results.outcomes)} {wording.by_chance(counted)}"]
    if others is not None:
        lines.append(f"Another set of seeds {wording.agreements(claims, results.outcomes, others)}.")
    for one in (results.outcomes[claim.id] for claim in claims):
        if one.reason is not None:
            lines.append(f"{one.claim} {one.verdict}: {one.reason}")
    about_all = {name: getattr(results, name) for name in ("seed_from", "scale", "seconds", "machine")}
    return ResultDocument(
        tables=[Table("", ("claim", "paper", "ours [95%]", "rule", "n", "verdict", *second), cells)],
        data={**about_all, "claims": rows},
        after=lines,
        rows=rows,
    )
