"""Exact collectives between the processes of one host, in memory that they share.

The innermost list of a reduction plan, ``[..., [0, 1, 2, 3], ...]``: first and last stage of NetReduce's
parallel all-reduce (section 3.4). ``load_adapter("shm").open(path, rank, plan=...)`` is :func:`open_stage`.
"""

from __future__ import annotations

from inaproto.ports import Adapter
from inaproto_adapters.shm.layout import CHUNK_BYTES, RANKS_MAX
from inaproto_adapters.shm.stage import (
    CAPABILITIES,
    Capabilities,
    SharedMemoryStage,
    TrioSharedMemoryStage,
    open_stage,
    open_trio_stage,
)

__all__ = [
    "ADAPTER",
    "CAPABILITIES",
    "CHUNK_BYTES",
    "RANKS_MAX",
    "Capabilities",
    "SharedMemoryStage",
    "TrioSharedMemoryStage",
    "open_stage",
    "open_trio_stage",
]

ADAPTER = Adapter(name="shm", kinds=frozenset({"exact collective"}), open=open_stage)
