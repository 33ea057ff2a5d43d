"""From a page's content to one HTML text that needs nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlvr_cli.core.text import visible

if TYPE_CHECKING:
    from markupsafe import Markup

    from rlvr_cli.report.report_page import Page

TEMPLATES = Path(__file__).parent / "page"


def render(page: Page) -> str:
    """The page as HTML.

    Everything but the charts' own markup is escaped, and characters that cannot be seen or written are shown as
    escapes, as `\\x1b`. The same content gives the same text.
    """
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
    environment.filters["code"] = _code
    return environment.get_template("page.html").render(page=page)


def _code(text: str) -> Markup:
    """A sentence with what stands between back-quotes as code."""
    from markupsafe import Markup, escape

    parts = visible(text).split("`")
    if len(parts) % 2 == 0:
        return escape(visible(text))
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if place % 2 else escape(part) for place, part in enumerate(parts)
    )


def _printable(value: Any) -> Any:
    # Markup stays markup.
    return type(value)(visible(value)) if isinstance(value, str) else value
