"""Blocks of frames cut into parts that belong together."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from inaproto.units import Frames


def consecutive(psns: NDArray[np.int64]) -> Sequence[tuple[int, int | None]]:
    """Parts in which PSNs rise by ones, as (begin, end), in order."""
    edges = [0, *(np.flatnonzero(np.diff(psns) != 1) + 1).tolist(), len(psns)]
    return list(pairwise(edges))


def one_by_one(frames: Frames) -> list[Frames]:
    """Rows, connection by connection as ``decode_runs`` has them; each of them would be a vector of one."""
    n, length = frames.shape
    data = frames.tobytes()
    by_queue_pair: dict[bytes, list[Frames]] = {}
    for row in range(n):
        at = row * length
        connection = data[at + 26 : at + 34] + data[at + 47 : at + 50]
        by_queue_pair.setdefault(connection, []).append(frames[row : row + 1])
    return [row for rows in by_queue_pair.values() for row in rows]
