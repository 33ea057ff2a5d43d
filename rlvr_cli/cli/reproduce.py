"""`rlvr reproduce`: the papers' claims, run, measured and judged."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlvr_cli.cli.command import MORE
from rlvr_cli.cli.options import RUNS, Runs, output
from rlvr_cli.cli.output import ListFormat, show
from rlvr_cli.core.errors import UserError

if TYPE_CHECKING:
    from rlvr_cli.ledger.claim_results import Results
    from rlvr_cli.ledger.claims import ClaimSet
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
        Path | None, output("FILE", "Write the ledger as a page (.md); its figure and data go next to it.")
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
    own: Annotated[
        Path | None,
        typer.Option("--claims", metavar="DIR", rich_help_panel=MORE, help="Claims, arms and bases of your own."),
    ] = None,
    form: ListFormat = "table",
) -> None:
    """Put the papers' claims to the test: train and measure what is missing, and judge each by its rule.

    Ends with 0 whatever the verdicts are; 1 when a training or a measure failed; 130 after Ctrl-C, 143 after SIGTERM,
    129 when its terminal is closed (what is done stays done); 2 on bad input.
    """
    from rlvr_cli.ledger.claims import DATA, read_claims
    from rlvr_cli.ledger.documents import claims_document
    from rlvr_cli.ledger.trainings import Folders

    if scale not in ("lab", "full"):
        raise UserError(f"--scale {scale}: must be lab or full.")
    claim_set = read_claims(own or DATA)
    folders = Folders(root.resolve(), "lab" if scale == "lab" else "full")
    if names and everything:
        raise UserError("--all and names of claims: give one of them.")
    if not names and not everything:
        if dry_run or write is not None or scale == "full":
            raise UserError("name claims or papers, or give --all; without any, this lists the lab's verdicts.")
        show(form, claims_document(claim_set, folders))
        return
    claims = tuple(claim_set.claims.values()) if everything else tuple(claim_set.choose(names or []))
    _run(claim_set, claims, folders, seed_from, workers, dry_run, write, against, form)


def _run(
    claim_set: ClaimSet,
    claims: tuple[Claim, ...],
    folders: Folders,
    seed_from: int,
    workers: int | None,
    dry_run: bool,
    write: Path | None,
    against: Path | None,
    form: str,
) -> None:
    import sys

    from rich.console import Console

    from rlvr_cli.launch.stopping import say
    from rlvr_cli.ledger import wording
    from rlvr_cli.ledger.claim_results import read_results
    from rlvr_cli.ledger.documents import reproduction_document, results_document
    from rlvr_cli.ledger.jobs import Stopped
    from rlvr_cli.ledger.page import check_page, write_page
    from rlvr_cli.ledger.run import Order, reproduce

    if folders.scale == "full":
        from rlvr_cli.ledger.full import at_full_scale, recipes_folder

        claim_set, claims = at_full_scale(claim_set, claims, recipes_folder())
    command = ("rlvr", "reproduce", *sys.argv[2:])
    order = Order(claims, claim_set, folders, seed_from, workers, command)
    if write is not None:
        check_page(write)
    other = None if against is None else read_results(against)
    if dry_run:
        show(form, reproduction_document(order))
        return
    console = Console(stderr=form != "table")
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
        others = {
            claim.id: found for claim in chosen if (found := wording.current(claim, claim_set, other)) is not None
        }
    show(form, results_document(chosen, results, others, None if other is None else other.seed_from))
    if write is not None:
        write_page(write, claim_set, results, other)
        say(console, f"\nwritten: {write}")
    if any(results.outcomes[claim.id].verdict == "failed" for claim in chosen):
        raise typer.Exit(FAILED)


def _other(folders: Folders, seed_from: int) -> Results | None:
    """The results of another set of seeds, the first that there is."""
    from rlvr_cli.ledger.claim_results import all_results

    return next((found for found in all_results(folders) if found.seed_from != seed_from), None)
