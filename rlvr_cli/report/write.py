"""Write a report as one self-contained HTML file."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlvr_cli.charts.figure import COLOURS, dash
from rlvr_cli.compare.request import CompareRequest
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import write_text
from rlvr_cli.core.terminal import Marked
from rlvr_cli.core.text import escape_control, template_environment
from rlvr_cli.report.data import read_report_data
from rlvr_cli.report.page import make_page

if TYPE_CHECKING:
    from markupsafe import Markup

NAME = "report.html"
# In print, tables with more columns become a paragraph per row.
MOST_COLUMNS = 9
TEMPLATES = Path(__file__).parent / "templates"


def write_report(request: CompareRequest, output: Path | None = None) -> dict[str, Any]:
    """Write the page atomically, replacing an existing one; return its path, size and summary. Raises UserError."""
    if output is not None:
        _check_path(output)
    data = read_report_data(request)
    path = output or _default_path([run.dir.path for run in data.runs])
    if not os.access(path.parent, os.W_OK):
        raise UserError(f"{path.parent}: no write permission. Use --output FILE for another path.")
    page = make_page(data, output)
    text = render(page)
    write_text(path, text)
    answer = page["answer"]
    return {
        "path": str(path),
        "bytes": len(text.encode()),
        "question": answer.question,
        "answer": answer.short,
        "sentences": [sentence.text for sentence in answer.sentences],
        "unfinished": page["unfinished"],
    }


def _check_path(output: Path) -> None:
    if output.is_dir():
        raise UserError(f"--output {output}: must be a file; got a folder. Use --output {output / NAME}.")
    if not output.parent.is_dir():
        raise UserError(f"--output {output}: no such folder: {output.parent}.")
    if output.exists() and output.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--output {output}: exists and is not an HTML file. Choose another.")


def _default_path(runs: Sequence[Path]) -> Path:
    """Return the path in the run's folder, or in the common folder of several runs."""
    if len(runs) == 1:
        return runs[0] / NAME
    folders = list(dict.fromkeys(path.parent for path in runs))
    if len(folders) > 1:
        names = ", ".join(map(str, folders[:4]))
        raise UserError(f"the runs are in several folders ({names}). Use --output FILE.")
    return folders[0] / NAME


def render(page: dict[str, Any]) -> str:
    """Render the page as deterministic HTML.

    Everything except the charts' markup is escaped; invisible characters are shown as escapes such as `\\x1b`.
    """
    from markupsafe import Markup

    environment = template_environment(TEMPLATES, autoescape=True, finalize=_escape)
    environment.filters["code"] = _mark_code
    environment.globals["arms"] = page["indices"]
    environment.globals["dash"] = lambda arm: " ".join(map(str, dash(arm)))
    environment.filters["css"] = lambda name: "".join(f"\\{ord(letter):x} " for letter in escape_control(name))
    environment.globals["columns"] = MOST_COLUMNS
    environment.globals["colours"] = len(COLOURS)
    script = (TEMPLATES / "explorer.js").read_text(encoding="utf-8")
    # The Content-Security-Policy allows only this script.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template("page.html").render(
        page=page, script=Markup(script), script_hash=f"sha256-{digest}"
    )


def _mark_code(text: str) -> Markup:
    """Return a sentence with text in backquotes marked up as code."""
    from markupsafe import Markup, escape

    pieces = escape_control(text).split("`")
    if len(pieces) % 2 == 0:
        return escape(escape_control(text))
    return Markup("").join(
        Markup("<code>{}</code>").format(piece) if index % 2 else escape(piece) for index, piece in enumerate(pieces)
    )


def _escape(value: Any) -> Any:
    if isinstance(value, Marked):
        return escape_control(value.text)
    if not isinstance(value, str):
        return value
    return type(value)(escape_control(value)) if hasattr(value, "__html__") else escape_control(value)
