"""Seals: sizes and SHA-256 digests of files, in a JSON file with a digest of itself."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlvr_cli.core.files import write_text
from rlvr_cli.core.hashes import text_digest

# By path in the sealed folder: `size` in bytes and `sha256`.
Entries = dict[str, dict[str, Any]]
_BLOCK = 1 << 20


class BadSeal(Exception):
    """A missing, unreadable or altered seal; the message is a predicate: `is missing`."""


def file_digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def compute_entry(path: Path) -> dict[str, Any]:
    return {"size": path.stat().st_size, "sha256": file_digest(path)}


def write_seal(path: Path, files: Mapping[str, Mapping[str, Any]], **metadata: Any) -> None:
    """Replace the seal at ``path``; ``metadata`` is sealed with the files."""
    write_text(path, _serialize({**metadata, "files": files}))


def read_seal_file(path: Path) -> dict[str, Any]:
    """Read `files` and the metadata of a seal. Raises BadSeal."""
    try:
        text = path.read_text(encoding="utf-8")
        content: dict[str, Any] = json.loads(text)
        del content["sha256"]
        unaltered = text == _serialize(content) and all(
            {"size", "sha256"} <= set(entry) for entry in content["files"].values()
        )
    except FileNotFoundError:
        raise BadSeal("is missing") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise BadSeal(f"cannot be read ({type(error).__name__})") from error
    if not unaltered:
        raise BadSeal("was altered (its hash differs)")
    return content


def find_file_damage(path: Path, entry: Mapping[str, Any], *, grows: bool = False, hashed: bool = True) -> str | None:
    """Compare a file with its entry; return a predicate such as `is missing`, or None if it is unaltered.

    ``grows``: compare only the first `size` bytes. ``hashed``: compare the digest, not only the size.
    """
    size = entry["size"]
    try:
        now = path.stat().st_size
        if now < size or (now > size and not grows):
            return f"was altered after it was written (it has {now} bytes, not {size})"
        if not hashed:
            return None
        digest, remaining = hashlib.sha256(), size
        with path.open("rb") as stream:
            while remaining and (block := stream.read(min(_BLOCK, remaining))):
                digest.update(block)
                remaining -= len(block)
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return None if digest.hexdigest() == entry["sha256"] else "was altered after it was written (its hash differs)"


def _serialize(content: Mapping[str, Any]) -> str:
    digest = text_digest(json.dumps(content, sort_keys=True))
    return json.dumps({**content, "sha256": digest}, indent=1, sort_keys=True) + "\n"
