"""Which seeds a seeded test runs: its default, or ``INAPROTO_SEEDS=first:end`` (one seed: ``17:18``)."""

from __future__ import annotations

import os


def seeds(count: int) -> range:
    """``0 .. count - 1``, unless the environment says otherwise."""
    first, colon, end = os.environ.get("INAPROTO_SEEDS", f"0:{count}").partition(":")
    if not colon:
        raise ValueError(f"INAPROTO_SEEDS={first}: write first:end, for example 0:1000")
    return range(int(first), int(end))
