"""The ledger as a page of Markdown, its figure and its data next to it: the same results give the same bytes."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import NamedTuple

from rlvr_cli.charts.figure import style, write_figure
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import write_text
from rlvr_cli.core.text import count, duration_in_words, template_environment
from rlvr_cli.ledger import wording
from rlvr_cli.ledger.claim_results import ClaimResult, Results
from rlvr_cli.ledger.claims import ClaimSet
from rlvr_cli.ledger.figure import claims_figure
from rlvr_cli.ledger.schema import PAPERS, Claim

WIDTH = 130
FIGURE = "overview.svg"


class ClaimRow(NamedTuple):
    """A claim with its outcome and that of the other set, where they are of the claim as it is written today."""

    claim: Claim
    found: ClaimResult | None
    second: ClaimResult | None

    @property
    def state(self) -> str:
        """Its verdict; `not run` where there is none."""
        return "not run" if self.found is None else self.found.verdict

    @property
    def follows(self) -> bool:
        """Whether it holds by its formula alone."""
        return self.found is not None and wording.verdict_in_words(self.found, self.claim) == wording.FOLLOWS

    @property
    def note(self) -> str:
        """Why it has no number, why it cannot fail, and what weakens it; empty where there is nothing to say."""
        reasons = [self.found.reason if self.found else None, self.claim.cannot_fail if self.follows else None]
        said = [text for text in (*reasons, self.claim.note) if text]
        return " ".join(text if text.endswith(".") else f"{text}." for text in said)

    def cells(self, *, two: bool) -> list[str]:
        """Its row of a table; ``two``: with what the other set of seeds says."""
        claim, found = self.claim, self.found
        cells = [f"**{claim.id.partition('/')[2]}**: {claim.statement}", claim.place, claim.paper_value]
        if found is None:
            cells += ["-", str(claim.rule), "-", "not run"]
        else:
            unit = f" {claim.measure.unit}" if claim.measure.unit else ""
            cells += [
                f"{wording.effect(found)}{unit}",
                str(claim.rule),
                wording.size(found),
                wording.verdict_in_words(found, claim),
            ]
        if two:
            cells.append("-" if found is None or claim.cannot_fail else wording.other_set(found, self.second))
        return cells


def check_page(path: Path) -> None:
    """Raise UserError where no page can be written to ``path``."""
    if path.suffix != ".md":
        raise UserError(f"{path}: the page's name must end in .md.")
    if not path.absolute().parent.is_dir():
        raise UserError(f"{path}: there is no folder {path.absolute().parent}.")
    folder = path.with_suffix("")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: must be a folder for the figure and the data, but is a file.")


def write_page(path: Path, claim_set: ClaimSet, results: Results, other: Results | None) -> None:
    """Write the page, and into the folder of its name the figure and the results that it is made from."""
    folder = path.with_suffix("")
    folder.mkdir(exist_ok=True)
    sets = [results] if other is None else [results, other]
    for one, name in zip(sets, data_files(results, other), strict=True):
        one.write(folder / name)
    with style():
        write_figure(claims_figure(_rows(claim_set, results, other)), folder / FIGURE)
    write_text(path, page(claim_set, results, other, folder.name))


def data_files(results: Results, other: Results | None) -> list[str]:
    """The names of the results' files next to the page: `seeds-0.json`; the same seeds once more are `again`."""
    names = [f"seeds-{results.seed_from}.json"]
    if other is not None:
        again = "-again" if other.seed_from == results.seed_from else ""
        names.append(f"seeds-{other.seed_from}{again}.json")
    return names


def page(claim_set: ClaimSet, results: Results, other: Results | None, folder: str) -> str:
    """The text of the page; ``folder`` is the folder with the figure and the data."""
    environment = template_environment(Path(__file__).parent / "templates")
    environment.filters["fill"] = _fill
    rows = _rows(claim_set, results, other)
    papers = [(title, [row for row in rows if row.claim.paper == paper]) for paper, title in PAPERS.items()]
    sets = [results] if other is None else [results, other]
    return environment.get_template("ledger.md.j2").render(
        results=results,
        other=other,
        sets=list(zip(sets, data_files(results, other), strict=True)),
        folder=folder,
        figure=FIGURE,
        claims=list(claim_set.claims.values()),
        outcomes={row.claim.id: row.found for row in rows if row.found is not None},
        others={row.claim.id: row.second for row in rows if row.second is not None},
        papers=[(title, own) for title, own in papers if own],
        wording=wording,
        count=count,
        in_words=duration_in_words,
    )


def _rows(claim_set: ClaimSet, results: Results, other: Results | None) -> list[ClaimRow]:
    return [
        ClaimRow(
            claim,
            wording.current(claim, claim_set, results),
            None if other is None else wording.current(claim, claim_set, other),
        )
        for claim in claim_set.claims.values()
    ]


def _fill(text: str, bullet: str = "") -> str:
    """A paragraph, or an item of a list, in lines of the page's width."""
    indent = " " * len(bullet)
    wrapped = textwrap.TextWrapper(WIDTH, bullet, indent, break_long_words=False, break_on_hyphens=False)
    return wrapped.fill(text.strip()) + "\n"
