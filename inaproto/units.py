"""Identifiers, units and limits that every layer shares.

Time is an integer number of nanoseconds (``Instant`` for a point, plain ``int`` with an ``_ns``
suffix for a duration), so that two runs of one seed compare equal and no rounding creeps into a
deadline. Identifiers are ``NewType``s: mypy then refuses a rank where a PSN is meant.
"""

from __future__ import annotations

from typing import Final, NewType

import numpy as np
from numpy.typing import NDArray

Instant = NewType("Instant", int)
"""A point in time, nanoseconds since an arbitrary origin of the world that owns the clock."""

Rank = NewType("Rank", int)
RingId = NewType("RingId", int)
MsgId = NewType("MsgId", int)
OpIndex = NewType("OpIndex", int)
Epoch = NewType("Epoch", int)
JobId = NewType("JobId", str)
Psn = NewType("Psn", int)
Qpn = NewType("Qpn", int)
PortId = NewType("PortId", int)
"""Index of a switch port, in the order in which the ports came up."""

Frames = NDArray[np.uint8]
"""``n`` Ethernet frames of one length without FCS: uint8, shape (n, frame_bytes).

The last axis is contiguous; rows may be strided (they are often a view of a receive buffer, with
length prefixes between them). A receiver's rows are valid until its next ``receive``: whoever keeps
a frame copies it.
"""

US: Final = 1_000
MS: Final = 1_000_000
S: Final = 1_000_000_000

PSN_BITS: Final = 24
PSN_MASK: Final = (1 << PSN_BITS) - 1
FRAME_BYTES_MAX: Final = 9_216
"""Longest frame any port takes: a jumbo frame as data centres run it."""
UNIX_PATH_BYTES_MAX: Final = 107
"""Longest UNIX socket path on Linux (``sun_path`` less its terminating NUL)."""


def psn_distance(later: int, earlier: int, mask: int = PSN_MASK) -> int:
    """Signed distance ``later - earlier`` in half the sequence space: ``-(mask+1)/2 .. (mask+1)/2 - 1``."""
    half = (mask + 1) >> 1
    return ((later - earlier + half) & mask) - half
