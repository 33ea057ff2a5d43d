"""The ledger as a page of Markdown, its figure and its data next to it: the same results give the same bytes."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import write_text
from rlvr_cli.core.text import count, in_words
from rlvr_cli.ledger import words
from rlvr_cli.ledger.book import Book
from rlvr_cli.ledger.figure import overview
from rlvr_cli.ledger.outcomes import Outcome, Results
from rlvr_cli.ledger.schema import PAPERS, Claim
from rlvr_cli.ledger.verdicts import DECIDED
from rlvr_cli.results.figure import style, write_figure

WIDTH = 130
FIGURE = "overview.svg"
_COUNTED = ("hold", "do not hold", "undecided", "failed or not run", "follow from the formula")
Row = tuple[Claim, Outcome | None, Outcome | None]


def check_page(path: Path) -> None:
    """Raise UserError where no page can be written to ``path``."""
    if path.suffix != ".md":
        raise UserError(f"{path}: the page's name ends in .md.")
    if not path.absolute().parent.is_dir():
        raise UserError(f"{path}: there is no folder {path.absolute().parent}.")
    beside = path.with_suffix("")
    if beside.exists() and not beside.is_dir():
        raise UserError(f"{beside}: the figure and the data go into this folder, and it is a file.")


def write_page(path: Path, book: Book, results: Results, other: Results | None) -> None:
    """Write the page, and into the folder of its name the figure and the results that it is made from."""
    beside = path.with_suffix("")
    beside.mkdir(exist_ok=True)
    sets = [results] if other is None else [results, other]
    for one, name in zip(sets, data_files(results, other), strict=True):
        one.write(beside / name)
    with style():
        write_figure(overview(_rows(book, results, other)), beside / FIGURE)
    write_text(path, page(book, results, other, beside.name))


def data_files(results: Results, other: Results | None) -> list[str]:
    """The names of the results' files next to the page: `seeds-0.json`; the same seeds once more are `again`."""
    names = [f"seeds-{results.seed_from}.json"]
    if other is not None:
        again = "-again" if other.seed_from == results.seed_from else ""
        names.append(f"seeds-{other.seed_from}{again}.json")
    return names


def page(book: Book, results: Results, other: Results | None, beside: str) -> str:
    """The text of the page; ``beside`` is the folder with the figure and the data."""
    rows = _rows(book, results, other)
    parts = [*_head(results, other, rows, beside)]
    for paper, title in PAPERS.items():
        own = [row for row in rows if row[0].paper == paper]
        if own:
            parts += [f"## {title}", _table(own, other)]
    parts += _exceptions(rows)
    parts += _method(book, results, other, rows, beside)
    return "\n\n".join(parts) + "\n"


def _rows(book: Book, results: Results, other: Results | None) -> list[Row]:
    """Every claim with its outcome and that of the other set, where they are of the claim as it is written today."""
    return [
        (claim, words.current(claim, book, results), None if other is None else words.current(claim, book, other))
        for claim in book.claims.values()
    ]


def _head(results: Results, other: Results | None, rows: Sequence[Row], beside: str) -> Iterator[str]:
    claims = [claim for claim, _, _ in rows]
    outcomes = {claim.id: found for claim, found, _ in rows if found is not None}
    yield "# The ledger"
    yield _paragraph(
        "Claims of five papers, each put to the test by a rule that was written down before the run. Made by "
        f"`{_command(results)}`; [reproduce.md](reproduce.md) says how, and what a verdict means."
    )
    chance = words.by_chance(words.that_can_fail(claims, outcomes))
    yield _paragraph(f"**{words.headline(claims, outcomes)}** {chance}")
    if other is not None:
        others = {claim.id: second for claim, _, second in rows if second is not None}
        said = words.agreements(claims, outcomes, others)
        same = other.seed_from == results.seed_from
        what = "Another run of the same seeds" if same else "A second set of seeds"
        yield _paragraph(f"{what} {said}.")
    yield _summary(rows)
    yield f"![Each claim's distance from its threshold]({beside}/{FIGURE})"
    yield _paragraph(
        "Each dot is a claim's effect, measured from its threshold in the claimed direction, in units of half its own "
        "95% interval (so that every bar reaches one to either side): with the whole bar right of the line the claim "
        "holds, left of it it does not. Rings are the second set of seeds. Diamonds have no spread."
    )


def _command(results: Results) -> str:
    seeds = f" --seed-from {results.seed_from}" if results.seed_from else ""
    return f"rlvr reproduce --all --scale {results.scale}{seeds} --output docs/ledger.md"


def _summary(rows: Sequence[Row]) -> str:
    header = ("paper", "claims that can fail", *_COUNTED)
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    for paper, title in PAPERS.items():
        own = [(claim, found) for claim, found, _ in rows if claim.paper == paper]
        if own:
            follow = sum(found is not None and words.verdict(found, claim) == words.FOLLOWS for claim, found in own)
            said = [
                None if found is None else found.verdict
                for claim, found in own
                if found is None or words.verdict(found, claim) != words.FOLLOWS
            ]
            missing = said.count("failed") + said.count(None)
            counted = [len(said), *(said.count(kind) for kind in words.ORDER[:3]), missing, follow]
            lines.append(f"| {title} | {' | '.join(map(str, counted))} |")
    return "\n".join(lines)


def _table(rows: Sequence[Row], other: Results | None) -> str:
    header = ["claim", "place", "paper", "ours [95%]", "holds if", "n", "verdict"]
    header += [] if other is None else [f"seeds {other.seed_from} and up"]
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    for claim, found, second in rows:
        cells = [f"**{claim.id.partition('/')[2]}**: {claim.statement}", claim.place, claim.paper_value]
        if found is None:
            cells += ["-", str(claim.rule), "-", "not run"]
        else:
            unit = f" {claim.measure.unit}" if claim.measure.unit else ""
            cells += [f"{words.effect(found)}{unit}", str(claim.rule), words.size(found), words.verdict(found, claim)]
        if other is not None:
            cells.append("-" if found is None or claim.cannot_fail else words.other_set(found, second))
        lines.append(f"| {' | '.join(map(_cell, cells))} |")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _exceptions(rows: Sequence[Row]) -> Iterator[str]:
    """The claims that do not hold, contradict, fail or are undecided, each with what is known of why; those given."""
    shown = [(claim, found) for claim, found, _ in rows if found is not None and found.verdict != "holds"]
    if not shown:
        return
    yield "## What does not hold, and what is undecided"
    lines = []
    for claim, found in shown:
        said = f"{words.verdict(found)}: {found.reason or words.effect(found)}"
        note = f" {claim.note}" if claim.note else ""
        lines.append(_item(f"**{claim.id}**, {said}, where it holds if {claim.rule}.{note}"))
    yield "\n".join(lines)
    given = [
        (claim, claim.cannot_fail)
        for claim, found, _ in rows
        if found is not None and found.verdict == "holds" and claim.cannot_fail
    ]
    if given:
        yield "## What follows from the formula"
        yield "\n".join(_item(f"**{claim.id}**: {why}") for claim, why in given)
    notes = [
        (claim, claim.note) for claim, found, _ in rows if found is not None and found.verdict == "holds" and claim.note
    ]
    if notes:
        yield "## What weakens those that hold"
        yield "\n".join(_item(f"**{claim.id}**: {note}") for claim, note in notes)


def _method(book: Book, results: Results, other: Results | None, rows: Sequence[Row], beside: str) -> Iterator[str]:
    yield "## How each was measured"
    lines = ["| claim | measure | of | seeds |", "|---|---|---|---|"]
    for claim, found, _ in rows:
        seeds = "-" if found is None or not found.seeds else f"{found.seeds[0]}-{found.seeds[-1]}"
        lines.append(f"| {claim.id} | {_cell(words.measure(claim))} | {_cell(words.subject(claim))} | {seeds} |")
    yield "\n".join(lines)
    yield "## The trainings"
    yield _paragraph(
        "Overrides of `rlvr train` on the base that is named; `lab` is the model that ships with the project, the "
        "others are built by `rlvr lab build` from the recipes in `rlvr_cli/ledger/data/bases`, one with each seed."
    )
    used = [name for name in book.arms if any(name in claim.arms for claim in book.claims.values())]
    lines = ["| arm | base | overrides |", "|---|---|---|"]
    lines += [f"| {name} | {book.arms[name].base} | {_cell(words.overrides(book.arms[name]))} |" for name in used]
    yield "\n".join(lines)
    yield "## Where and how long"
    for one, name in zip([results, other], data_files(results, other), strict=False):
        if one is not None:
            yield _paragraph(_where(one, f"{beside}/{name}"))


def _where(results: Results, file: str) -> str:
    """`Seeds 0 and up: 1 h 20 min on 2 cores (...), in 2 sessions.`"""
    machine = results.machine
    made = ", ".join(f"{name} {version}" for name, version in machine.items() if name not in ("processor", "cores"))
    cores = f"{results.workers} of {machine.get('cores', '?')} cores"
    decided = sum(one.verdict in DECIDED for one in results.outcomes.values())
    taken = f"{in_words(results.seconds)} in {count(results.sessions, 'session')}"
    return (
        f"Seeds {results.seed_from} and up: {taken} on {cores} ({machine.get('processor', '?')}), {made}; "
        f"{count(decided, 'claim')} decided. All numbers, seed by seed: "
        f"[{file.rpartition('/')[2]}]({file})."
    )


def _paragraph(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def _item(text: str) -> str:
    filled = textwrap.fill(text, WIDTH - 2, break_long_words=False, break_on_hyphens=False)
    return "- " + filled.replace("\n", "\n  ")
