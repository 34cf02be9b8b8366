"""Exact collectives between the processes of one host, in memory that they share.

The innermost list of a reduction plan, ``[..., [0, 1, 2, 3], ...]``: first and last stage of NetReduce's
parallel all-reduce (section 3.4).
"""

from __future__ import annotations

from inaproto.client.stage.layout import CHUNK_BYTES, RANKS_MAX
from inaproto.client.stage.stage import (
    CAPABILITIES,
    Capabilities,
    SharedMemoryStage,
    TrioSharedMemoryStage,
    open_stage,
    open_trio_stage,
)

__all__ = [
    "CAPABILITIES",
    "CHUNK_BYTES",
    "RANKS_MAX",
    "Capabilities",
    "SharedMemoryStage",
    "TrioSharedMemoryStage",
    "open_stage",
    "open_trio_stage",
]
