"""The version of rlvr, and that of its records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__version__ = "0.1.0"
FORMAT = 1
"""The format of configuration files, runs and sweeps.

Rises when a run or file that an earlier version wrote would be misread, resumed inexactly, or train to other numbers:
a key is renamed, removed or gets another meaning or default, or a record changes its layout. New optional keys, new
records and better messages leave it.
"""
FORMAT_KEY, WRITER_KEY = "format", "rlvr"


def other_format(content: Mapping[Any, Any]) -> str | None:
    """Return why a record or a file of another format is refused; None if it has this format, or names none."""
    number, writer = content.get(FORMAT_KEY, FORMAT), content.get(WRITER_KEY)
    if type(number) is int and number == FORMAT:
        return None
    reads = f"rlvr {__version__} reads format {FORMAT}"
    if writer is None:
        return f"has format {number!r}; {reads}. Adapt the file, or install the version of rlvr that it is for"
    return f"has format {number!r} of rlvr {writer}; {reads}. Install rlvr=={writer}, or start a new run"
