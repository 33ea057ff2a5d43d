"""Named random streams: every random number of a run comes from a seed derived here.

A stream is addressed by the run's seed and a path of names (``stream_seed(7, "shuffle", 12)``), so a stream can
be re-created at any point of a run without replaying what was drawn before it: that is what makes resume exact and
what lets two runs share the same problems and the same sampling noise.
"""

from __future__ import annotations

import hashlib


def stream_seed(seed: int, *path: str | int) -> int:
    """A 63-bit seed for the stream ``path`` of ``seed``; stable across machines, processes and Python versions."""
    text = "/".join([str(seed), *(f"{type(name).__name__}:{name}" for name in path)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
