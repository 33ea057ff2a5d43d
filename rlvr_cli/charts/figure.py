"""Figures without a display: the same style, the same bytes for the same numbers, whole files or none."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import fsync

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from matplotlib.figure import Figure

FORMATS = {".png": "png", ".svg": "svg"}
# Okabe and Ito's colours, told apart with any kind of colour vision; their yellow is too light for lines on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F")
DASHES: tuple[Any, ...] = (
    "solid",
    (0, (6, 2)),
    (0, (1.2, 1.6)),
    (0, (6, 2, 1.2, 2)),
    (0, (10, 2.5)),
    (0, (3, 1.5)),
    (0, (6, 1.6, 1.2, 1.6, 1.2, 1.6)),
    (0, (2, 3)),
)
_STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    # Without a salt of its own, an SVG differs from one process to the next.
    "svg.hashsalt": "rlvr",
}


def check_path(path: Path) -> None:
    """Raise UserError where no picture can be written to ``path``: suffix, folder, permission."""
    if path.suffix.lower() not in FORMATS:
        given = f"{path.suffix!r}" if path.suffix else "none"
        raise UserError(f"{path}: a picture's name must end in .png or .svg; got {given}.")
    if path.is_dir():
        raise UserError(f"{path}: is a folder. Give the name of a file.")
    if not path.parent.is_dir():
        raise UserError(f"{path}: there is no folder {path.parent}.")
    if not os.access(path.parent, os.W_OK):
        raise UserError(f"{path}: the folder {path.parent} cannot be written to.")


def style() -> AbstractContextManager[None]:
    """The style of every figure; what the user's own matplotlib is set to has no effect inside."""
    import matplotlib

    settings: dict[Any, Any] = {**matplotlib.rcParamsDefault, **_STYLE}
    # A figure is drawn by the canvas it is saved with: no backend is chosen, and no display is looked for.
    del settings["backend"]
    return matplotlib.rc_context(settings)


def svg(chart: Any) -> str:
    """Return an altair chart as SVG."""
    import vl_convert

    return str(vl_convert.vegalite_to_svg(_spec(chart)))


def write_chart(chart: Any, path: Path) -> None:
    """Replace ``path`` by an altair chart, in the format of its suffix."""
    import vl_convert

    if path.suffix.lower() == ".svg":
        replace_file(path, svg(chart).encode())
    else:
        replace_file(path, vl_convert.vegalite_to_png(_spec(chart), scale=2))


def _spec(chart: Any) -> dict[str, Any]:
    import altair

    with altair.data_transformers.enable("default", max_rows=None):
        spec: dict[str, Any] = chart.to_dict()
    return spec


def write_figure(figure: Figure, path: Path) -> None:
    """Replace ``path`` by the picture, in the format of its suffix: a reader sees the old file or the new one.

    Must be called inside :func:`style`.
    """
    kind = FORMATS[path.suffix.lower()]
    picture = io.BytesIO()
    # Neither the time nor the library's version: equal numbers give equal bytes.
    metadata = {"png": {"Software": None}, "svg": {"Date": None, "Creator": "rlvr"}}[kind]
    figure.savefig(picture, format=kind, dpi=150, metadata=metadata)
    replace_file(path, picture.getvalue())


def replace_file(path: Path, content: bytes) -> None:
    """Write ``path``: a reader sees the old file or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content)
        fsync(temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync(path.parent)
