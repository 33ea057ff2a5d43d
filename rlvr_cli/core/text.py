"""Format text for the user: suggestions, escaping, shortening, units."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment

# Characters that are invalid in XML, move the cursor or change the text direction.
_HIDDEN = "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff\ufffe\uffff"
# Zero-width characters, which hide differences on a terminal.
_ZERO_WIDTH = (
    "\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200d\u2060-\u2065\u206a-\u206f\u3164\ufff0-\ufffb"
)
_INVISIBLE = re.compile(f"[{_HIDDEN}]")
_UNSAFE = re.compile(f"[{_HIDDEN}{_ZERO_WIDTH}\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]")

_USER = re.compile(r"\b([a-z][a-z0-9+.-]+:/{1,2})[^\s\"'`]*@", re.IGNORECASE)
# Credentials without a scheme: `name:password@host/v1`. Exceptions of the same form, first: a hub id with configuration
# and revision, and a reward function with its file's digest.
_BARE_USER = re.compile(
    r"""(?P<name>
        (?: (?<![\w@./:-]) [A-Za-z0-9][\w.-]*/[\w.-]+:[\w.-]+@(?:refs/[\w./-]+|[\w.-]+)
          | (?<![\w@.-]) [^\s:@"'`=]+\.py:[A-Za-z_]\w*@[0-9a-f]{12} )
        (?![\w@/]|[.:-]\w) )
    | (?<![\w@.-])[^\s/:@"'`=]+:[^\s@"'`]+@(?=[A-Za-z\[][\w.-]*[/:.]|(?:\d{1,3}\.){3}\d|localhost\b)""",
    re.VERBOSE,
)
_QUERY = re.compile(r"\b([a-z][a-z0-9+.-]+:/{1,2}[^\s?#\"'`]*[?#])[^\s\"'`)\]]+", re.IGNORECASE)


def template_environment(folder: Path, **options: Any) -> Environment:
    """Return jinja2's environment for the templates in ``folder``: strict variables, no blank lines from tags."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(folder)
    return Environment(
        loader=loader,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **options,
    )


def escape_control(text: str) -> str:
    return _INVISIBLE.sub(_escape, text)


def escape_for_terminal(text: str) -> str:
    return _UNSAFE.sub(_escape, text.replace("\r\n", "\n"))


def escape_json(text: str) -> str:
    """Escape JSON for a terminal with JSON escapes, which keeps its values."""
    return _UNSAFE.sub(_json_escape, text)


def redact_secrets(text: str) -> str:
    """Replace possible secrets in addresses by ***: credentials, query and fragment."""
    if "@" in text:
        text = _BARE_USER.sub(lambda match: match["name"] or "***@", _USER.sub(r"\1***@", text))
    return _QUERY.sub(r"\1***", text) if ":/" in text else text


def nearest(word: str, names: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Return the name most similar to `word`, allowing transpositions; None below similarity `cutoff` (1 = equal)."""
    by_lower, word = {name.lower(): name for name in names}, word.lower()
    swapped = (word[:at] + word[at : at + 2][::-1] + word[at + 2 :] for at in range(len(word) - 1))
    if exact := next((text for text in swapped if text in by_lower and text != word), None):
        return by_lower[exact]
    matches = difflib.get_close_matches(word, by_lower, n=1, cutoff=cutoff)
    return by_lower[matches[0]] if matches else None


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Return ` Did you mean X?` with a leading blank, or ""."""
    guess = nearest(word, names)
    return f" Did you mean `{guess}`?" if guess else ""


def ellipsize(names: Sequence[str], limit: int) -> str:
    """Join the first ``limit`` names and the number of others: `a, b and 3 more`."""
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more} more" if more > 0 else "")


def merge_lines(lines: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the distinct lines of groups, each prefixed with its group's name unless all groups have it."""
    everywhere = set.intersection(*map(set, lines.values())) if lines else set()
    listed = [line if line in everywhere else f"{name}: {line}" for name, group in lines.items() for line in group]
    return list(dict.fromkeys(listed))


def to_one_line(text: str) -> str:
    return escape_control(" ".join(text.split()))


def shorten(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    tail = (limit - 1) // 2
    return f"{text[: limit - 1 - tail]}…{text[len(text) - tail :]}"


def unique_labels(names: Sequence[str], limit: int) -> dict[str, str]:
    """Return a label of at most ``limit`` characters for each name; numbered if :func:`shorten` makes some equal."""
    labels = {name: shorten(name, limit) for name in names}
    if len(set(labels.values())) == len(labels):
        return labels
    return {name: f"{number}: {shorten(name, limit - 5)}" for number, name in enumerate(labels, start=1)}


def join_and(words: list[str]) -> str:
    """Join words: `a`, `a and b`, `a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def capitalize(text: str) -> str:
    return text[:1].upper() + text[1:]


def format_seconds(seconds: float) -> str:
    """Format seconds with one decimal: `8.1 s`, `3.3 min`, `2.1 h`."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def count(number: int, name: str) -> str:
    """Return `1 seed`, `1,319 problems`."""
    return f"{number:,} {name}{'' if number == 1 else 's'}"


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")


def _json_escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[start : start + 2].hex()}" for start in range(0, len(units), 2))


def format_duration(seconds: float) -> str:
    """Format seconds in whole units: `3 h 20 min`, `5 d 4 h`, `42 s`."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h"
