"""From a page's content to one HTML text that needs nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlvr_cli.report.report_page import Page

TEMPLATES = Path(__file__).parent / "page"
# What would not be seen, would turn the text around, or cannot be written to a file: control characters but for line
# ends and tabs, directional overrides, halves of surrogate pairs.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


def render(page: Page) -> str:
    """The page as HTML. Everything but the charts' own markup is escaped; the same content gives the same text."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("page.html").render(page=page)


def visible(text: str) -> str:
    """``text`` with an escape such as `\\x1b` in place of each character that cannot be shown."""
    return _UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _printable(value: Any) -> Any:
    # Markup stays markup.
    return type(value)(visible(value)) if isinstance(value, str) else value
