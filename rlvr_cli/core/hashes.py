"""SHA-256, in hexadecimal, of text and of values that are stored as JSON."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def text_digest(text: str) -> str:
    """Of a text, as UTF-8."""
    return hashlib.sha256(text.encode()).hexdigest()


def digest(value: Any) -> str:
    """Of a JSON value, written in one canonical way."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text_digest(text)
