"""SHA-256 digests, in hexadecimal, of text and JSON values."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def text_digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def digest(value: Any) -> str:
    """Return the SHA-256 of a JSON value in canonical form."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text_digest(text)
