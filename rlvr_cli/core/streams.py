"""Named random streams, which seed all random numbers of a run.

A stream is addressed by the run's seed and a path of names (``stream_seed(7, "shuffle", 12)``), so it can be re-created
without replaying earlier draws. This makes resume exact and lets two runs share problems and sampling noise.
"""

from __future__ import annotations

import hashlib


def stream_seed(seed: int, *path: str | int) -> int:
    """Return a 63-bit seed for the stream ``path`` of ``seed``, stable across machines and Python versions."""
    text = "/".join([str(seed), *(f"{type(name).__name__}:{name}" for name in path)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
