"""Text for people: names that were most likely meant, and text of others made safe to show and to store."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

# What XML cannot hold, what moves a cursor, and what turns the direction of the text around it.
_HIDDEN = "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff\ufffe\uffff"
# What takes no room, so that a terminal shows another text than there is.
_WITHOUT_WIDTH = (
    "\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200d\u2060-\u2065\u206a-\u206f\u3164\ufff0-\ufffb"
)
_INVISIBLE = re.compile(f"[{_HIDDEN}]")
_UNSAFE = re.compile(f"[{_HIDDEN}{_WITHOUT_WIDTH}\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]")

_USER = re.compile(r"\b([a-z][a-z0-9+.-]+:/{1,2})[^\s\"'`]*@", re.IGNORECASE)
# Without a scheme: `name:password@host/v1`.
_BARE_USER = re.compile(r"(?<![\w@.-])[^\s/:@\"'`=]+:[^\s@\"'`]+@(?=[A-Za-z\[][\w.-]*[/:.])")
_QUERY = re.compile(r"\b([a-z][a-z0-9+.-]+:/{1,2}[^\s?#\"'`]*[?#])[^\s\"'`)\]]+", re.IGNORECASE)


def visible(text: str) -> str:
    """``text`` with an escape such as `\\x1b` for each character that has no picture; tab and newline stay."""
    return _INVISIBLE.sub(_escape, text)


def for_terminal(text: str) -> str:
    """``text`` as a terminal may get it: :func:`visible`, and an escape for what takes no room."""
    return _UNSAFE.sub(_escape, text.replace("\r\n", "\n"))


def for_json(text: str) -> str:
    """JSON as a terminal may get it: the same values, with such characters as JSON's own escapes."""
    return _UNSAFE.sub(_json_escape, text)


def without_secrets(text: str) -> str:
    """``text`` without what may be a secret in addresses: name and password, query and fragment."""
    if "@" in text:
        text = _BARE_USER.sub("***@", _USER.sub(r"\1***@", text))
    return _QUERY.sub(r"\1***", text) if ":/" in text else text


def nearest(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The known name most like `word`, or None where none is as close as `cutoff` (1 = equal)."""
    by_lower = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=cutoff)
    return by_lower[found[0]] if found else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """` Did you mean X?`, with a leading blank; empty where nothing is near."""
    guess = nearest(word, known)
    return f" Did you mean `{guess}`?" if guess else ""


def some(names: Sequence[str], most: int) -> str:
    """The first ``most`` names, and how many more there are: `a, b and 3 more`."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")


def _json_escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[place : place + 2].hex()}" for place in range(0, len(units), 2))
