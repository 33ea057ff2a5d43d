"""Seals: sizes and SHA-256 hashes of files, in a JSON file that has its hash too."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlvr_cli.core.files import write_text
from rlvr_cli.core.hashes import text_digest

# By the file's path in the sealed folder: `size` in bytes and `sha256`.
Entries = dict[str, dict[str, Any]]
_BLOCK = 1 << 20


class BadSeal(Exception):
    """A seal that is missing, cannot be read or was altered; the message is a predicate: `is missing`."""


def file_hash(path: Path) -> str:
    """Compute the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def entry_of(path: Path) -> dict[str, Any]:
    """Compute the size and the hash of a file."""
    return {"size": path.stat().st_size, "sha256": file_hash(path)}


def write_seal(path: Path, files: Mapping[str, Mapping[str, Any]], **facts: Any) -> None:
    """Replace the seal at ``path``; ``facts`` are sealed with the files."""
    write_text(path, _text({**facts, "files": files}))


def read_seal_file(path: Path) -> dict[str, Any]:
    """Read what was sealed: `files`, and the facts written with them.

    Raises:
        BadSeal: as its docstring says.
    """
    try:
        text = path.read_text(encoding="utf-8")
        content: dict[str, Any] = json.loads(text)
        del content["sha256"]
        unaltered = text == _text(content) and all(
            {"size", "sha256"} <= set(entry) for entry in content["files"].values()
        )
    except FileNotFoundError:
        raise BadSeal("is missing") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise BadSeal(f"cannot be read ({type(error).__name__})") from error
    if not unaltered:
        raise BadSeal("was altered (its own hash differs)")
    return content


def damage_of(path: Path, entry: Mapping[str, Any], *, grows: bool = False, hashed: bool = True) -> str | None:
    """Compare a file with its entry. Returns a predicate such as `is missing`, or None where it is as it was sealed.

    Args:
        grows: the file may have become longer; its first `size` bytes are compared.
        hashed: the hash is compared, too; else the size alone.
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


def _text(content: Mapping[str, Any]) -> str:
    digest = text_digest(json.dumps(content, sort_keys=True))
    return json.dumps({**content, "sha256": digest}, indent=1, sort_keys=True) + "\n"
