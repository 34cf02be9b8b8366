"""Named streams of random bits: one seed gives as many independent streams as there are purposes.

A stream belongs to one purpose ("weather/port-0/in"), so that a draw added for one purpose moves no
other. The bits are those of PCG64, whose output numpy keeps stable over its releases; its
distributions it does not, so whoever must replay a run in a year draws raw bits (``random_raw``) and
compares integers.
"""

from __future__ import annotations

import hashlib

import numpy as np

Seed = int | str
"""What a person gives; an ``int`` and its decimal text are the same seed."""


def named_bits(seed: Seed, purpose: str) -> np.random.PCG64:
    """The bit stream of ``purpose`` under ``seed``, from its beginning."""
    digest = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()
    return np.random.PCG64(int.from_bytes(digest, "big"))
