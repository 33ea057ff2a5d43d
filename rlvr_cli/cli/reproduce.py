"""`rlvr reproduce`: the papers' claims, run, measured and judged."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlvr_cli.cli.options import RUNS, Runs, output
from rlvr_cli.cli.output import Format, plain_table, print_json, print_table
from rlvr_cli.core.errors import UserError

if TYPE_CHECKING:
    from rlvr_cli.ledger.book import ClaimSet
    from rlvr_cli.ledger.outcomes import ClaimResult, Results
    from rlvr_cli.ledger.run import Order
    from rlvr_cli.ledger.schema import Claim
    from rlvr_cli.ledger.trainings import Folders

FAILED = 1


def command(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CLAIM|PAPER]...",
            help="Claims, or papers for all of theirs. None: list the claims with their last verdicts.",
            show_default=False,
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every claim of every paper.")] = False,
    scale: Annotated[
        str,
        typer.Option(
            "--scale", metavar="lab|full", help="Miniatures on this machine's cores, or the papers' own recipes."
        ),
    ] = "lab",
    seed_from: Annotated[
        int, typer.Option("--seed-from", metavar="N", min=0, help="First seed of the set: N, N+1, ...")
    ] = 0,
    workers: Annotated[
        int | None,
        typer.Option("--workers", metavar="N", min=1, help="Processes at a time, a core each. Default: every core."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be built, trained and measured; start nothing.")
    ] = False,
    write: Annotated[
        Path | None,
        output("FILE", "Write the ledger as a page (.md); its figure and data go next to it."),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            "--against",
            metavar="RESULTS",
            help="Results (.json) of other seeds or another machine. Default: another set in --runs.",
            show_default=False,
        ),
    ] = None,
    root: Runs = RUNS,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="FOLDER", help="Claims, arms and bases of your own.")
    ] = None,
    form: Format = "table",
) -> None:
    """Put the papers' claims to the test: train and measure what is missing, and judge each by its rule.

    Ends with 0 whatever the verdicts are; 1 when a training or a measure failed; 130 after Ctrl-C, 143 after SIGTERM,
    129 when its terminal is closed (what is done stays done); 2 on bad input.
    """
    from rlvr_cli.ledger.book import DATA, read_book
    from rlvr_cli.ledger.trainings import Folders

    if scale not in ("lab", "full"):
        raise UserError(f"--scale {scale}: must be lab or full.")
    book = read_book(data or DATA)
    folders = Folders(root.resolve(), "lab" if scale == "lab" else "full")
    if names and everything:
        raise UserError("--all and names of claims: give one of them.")
    if not names and not everything:
        if dry_run or write is not None or scale == "full":
            raise UserError("name claims or papers, or give --all; without any, this lists the lab's verdicts.")
        _list(book, folders, as_json=form == "json")
        return
    claims = tuple(book.claims.values()) if everything else tuple(book.choose(names or []))
    _run(book, claims, folders, seed_from, workers, dry_run, write, against, as_json=form == "json")


def _run(
    book: ClaimSet,
    claims: tuple[Claim, ...],
    folders: Folders,
    seed_from: int,
    workers: int | None,
    dry_run: bool,
    write: Path | None,
    against: Path | None,
    *,
    as_json: bool,
) -> None:
    import sys

    from rich.console import Console

    from rlvr_cli.launch.stopping import say
    from rlvr_cli.ledger import words
    from rlvr_cli.ledger.jobs import Stopped
    from rlvr_cli.ledger.outcomes import read_results
    from rlvr_cli.ledger.page import check_page, write_page
    from rlvr_cli.ledger.run import Order, reproduce

    if folders.scale == "full":
        from rlvr_cli.ledger.full import at_full_scale, recipes_folder

        book, claims = at_full_scale(book, claims, recipes_folder())
    command = ("rlvr", "reproduce", *sys.argv[2:])
    order = Order(claims, book, folders, seed_from, workers, command)
    if write is not None:
        check_page(write)
    other = None if against is None else read_results(against)
    if dry_run:
        _show_plan(order, as_json=as_json)
        return
    console = Console(stderr=as_json)
    try:
        results = reproduce(order, console)
    except Stopped as stopped:
        say(console, "stopped; what is done stays done. Continue with the same command.")
        raise typer.Exit(stopped.exit_code) from None
    other = other or _other(folders, seed_from)
    chosen = [claim for claim in claims if claim.id in results.outcomes]
    # As on the page: what was judged by an earlier rule says nothing.
    others = None
    if other is not None:
        others = {claim.id: found for claim in chosen if (found := words.current(claim, book, other)) is not None}
    if as_json:
        print_json(_as_json(chosen, results, others))
    else:
        _show(chosen, results, others, None if other is None else other.seed_from)
    if write is not None:
        write_page(write, book, results, other)
        say(console, f"\nwritten: {write}")
    if any(results.outcomes[claim.id].verdict == "failed" for claim in chosen):
        raise typer.Exit(FAILED)


def _other(folders: Folders, seed_from: int) -> Results | None:
    """The results of another set of seeds, the first that there is."""
    from rlvr_cli.ledger.outcomes import all_results

    return next((found for found in all_results(folders) if found.seed_from != seed_from), None)


def _show(
    claims: list[Claim], results: Results, others: Mapping[str, ClaimResult] | None, other_seeds: int | None
) -> None:
    from rlvr_cli.ledger import words

    second = [] if others is None else [f"seeds {other_seeds}-"]
    table = plain_table("claim", "paper", "ours [95%]", "rule", "n", "verdict", *second)
    for claim in claims:
        found = results.outcomes[claim.id]
        cells = [
            claim.paper_value,
            words.effect(found),
            str(claim.rule),
            words.size(found),
            words.verdict_in_words(found, claim),
        ]
        if others is not None:
            cells.append(words.other_set(found, others.get(claim.id)))
        table.add_row(claim.id, *cells)
    print_table(table)
    outcomes = [results.outcomes[claim.id] for claim in claims]
    counted = words.that_can_fail(claims, results.outcomes)
    print(f"\n{words.claims_headline(claims, results.outcomes)} {words.by_chance(counted)}")
    if others is not None:
        print(f"Another set of seeds {words.agreements(claims, results.outcomes, others)}.")
    for one in outcomes:
        if one.reason is not None:
            print(f"{one.claim} {one.verdict}: {one.reason}")


def _as_json(claims: list[Claim], results: Results, others: Mapping[str, ClaimResult] | None) -> dict[str, Any]:
    from dataclasses import asdict

    from rlvr_cli.ledger import words

    rows = []
    for claim in claims:
        found = results.outcomes[claim.id]
        about = claim.model_dump(mode="json", by_alias=True, exclude_none=True)
        said = None if others is None else words.other_set(found, others.get(claim.id))
        rows.append({**about, **asdict(found), "other_set": said})
    return {
        "seed_from": results.seed_from,
        "scale": results.scale,
        "seconds": results.seconds,
        "machine": results.machine,
        "claims": rows,
    }


def _list(book: ClaimSet, folders: Folders, *, as_json: bool) -> None:
    """The claims, with the last verdict of each set of seeds."""
    from rlvr_cli.ledger import words
    from rlvr_cli.ledger.outcomes import all_results

    sets = all_results(folders)
    if as_json:
        print_json(
            [
                {
                    **claim.model_dump(mode="json", by_alias=True, exclude_none=True),
                    "verdicts": {
                        str(one.seed_from): None
                        if (found := words.current(claim, book, one)) is None
                        else found.verdict
                        for one in sets
                    },
                }
                for claim in book.claims.values()
            ]
        )
        return
    table = plain_table("claim", "place", "statement", *(f"seeds {one.seed_from}-" for one in sets))
    for claim in book.claims.values():
        cells = [words.last(claim, book, one) for one in sets]
        table.add_row(claim.id, claim.place, claim.statement, *cells)
    print_table(table)
    print(f"\n{len(book.claims)} claims. `rlvr reproduce CLAIM`, a paper's name, or --all puts them to the test.")


def _show_plan(order: Order, *, as_json: bool) -> None:
    from rlvr_cli.core.text import duration_in_words
    from rlvr_cli.ledger.run import plan_reproduction

    plan = plan_reproduction(order)
    if as_json:
        print_json(plan.as_json())
        return
    table = plain_table("arm", "base", "trainings", "done", "failed", "to do", "rollouts each")
    for row in plan.arms:
        counted = (row.trainings, row.done, row.failed, row.to_do, row.rollouts)
        table.add_row(row.arm, row.base, *map(str, counted))
    print_table(table)
    to_do = sum(row.to_do for row in plan.arms)
    rollouts = sum(row.to_do * row.rollouts for row in plan.arms)
    print(
        f"\n{plan.claims} claims, seeds {order.seed_from} and up: {to_do} trainings of {rollouts:,} rollouts to do, "
        f"{plan.measures} analyses of one training each, {plan.workers} worker{'s' if plan.workers > 1 else ''}"
    )
    for said in plan.lacking:
        print(f"this machine lacks: {said}")
    if plan.bases:
        print(f"to build first: {', '.join(plan.bases)}")
    if plan.seconds is not None:
        print(f"about {duration_in_words(plan.seconds)} of training, by the finished ones")
    elif to_do:
        print("the time is known once the first training is done")
