"""metrics.json of an evaluation: written with its hash, and read only as it was written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlvr_cli.core.errors import RunError
from rlvr_cli.core.hashes import digest

# Of metrics.json: the hash of problems.jsonl, and of all the rest of metrics.json.
PROBLEMS_HASH, OWN_HASH = "problems_sha256", "sha256"
AGAIN = "The same `rlvr eval` makes it again from the samples."


def sealed(result: Mapping[str, Any], problems: str) -> dict[str, Any]:
    """``result`` with the hashes of it and of the content of problems.jsonl."""
    content = {key: value for key, value in result.items() if key != OWN_HASH}
    content[PROBLEMS_HASH] = hashlib.sha256(problems.encode("utf-8")).hexdigest()
    # As it is read back: JSON has no integers as keys, and they sort in another order.
    return {**content, OWN_HASH: digest(json.loads(json.dumps(content)))}


def read_result(path: Path) -> dict[str, Any]:
    """The content of a metrics.json. Raises RunError where it was altered, ValueError where it is no JSON object."""
    result = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(result, dict):
        raise ValueError("not a JSON object")
    if OWN_HASH in result and result[OWN_HASH] != digest({k: v for k, v in result.items() if k != OWN_HASH}):
        raise RunError(f"{path}: was altered after it was written (its hash differs). {AGAIN}")
    return result
