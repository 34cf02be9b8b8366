"""The frames of one receive, flow by flow, so that packets of several flows that alternate are still vectors.

A port hands frames over as they came. Where two jobs share a port their packets alternate, and each would be
a vector of one. So they are taken in another order: flows in the order of their first frame, the frames of
each flow in the order in which they came.

Which order matters, and stays:

- *of a ring*, that of each connection (source address, destination address, destination queue pair): the
  first packet of a message tells where the others belong, a resend is told from what it repeats, and
  acknowledgements and requests to one queue pair keep their places. Between connections a network promises
  no order, rings have nothing in common, and the flows of one ring meet only in its bitmaps.
- *of all else*, that of each pair of Ethernet addresses, as a bridge owes it (IEEE 802.1D, 6.5.3).

A vector of a ring's packets made here has PSNs that rise by ones: what the accelerator makes of it is what
it makes of the packets one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inaproto.units import PSN_MASK, Frames
from inaproto.wire.vector import BTH_END, HEADER_COLUMNS, header_columns

Connection = tuple[bytes, bytes, int]

_ADDRESSES_END: Final = 12
_JOINED_ROWS_MAX: Final = 16
"""Longest part that is copied to be in one vector with its neighbours."""
_MASK: Final = np.zeros(HEADER_COLUMNS, np.uint8)
_MASK[[*range(15), 23, *range(26, 34), 36, 37, 47, 48, 49]] = 0xFF
_MASK[20:22] = 0x3F, 0xFF
_ALIKE: Final = ((0, 8, "u8"), (8, 8, "u8"), (20, 4, "u4"), (26, 8, "u8"), (34, 4, "u4"), (42, 8, "u8"))
"""Columns, as words, in which frames of one flow and opcode agree: (first, bytes, type)."""
_IPV4: Final = bytes.fromhex("080045")
"""Ethertype, version and header length of IPv4 without options."""
_UDP: Final = 17
_ROCE_PORT: Final = (4791).to_bytes(2, "big")


def flow_by_flow(blocks: Sequence[Frames], is_of_ring: Callable[[Connection], bool]) -> Sequence[Frames]:
    """The same frames in blocks that each have one flow, unless all have one already.

    Blocks are uint8 (n, frame_bytes). ``is_of_ring`` says whether a connection is one whose packets may pass
    others between the same two addresses.
    """
    if len(blocks) == 1 and (len(blocks[0]) < 2 or _is_uniform(blocks[0])):
        return blocks
    parts: dict[Connection | bytes, list[Frames]] = {}
    flows: dict[bytes, Connection | bytes] = {}

    def flow_of(key: bytes) -> Connection | bytes:
        flow = flows.get(key)
        if flow is None:
            flow = flows[key] = _flow_of(key, is_of_ring)
        return flow

    for block in blocks:
        if len(block) == 0:
            continue
        if len(block) == 1 or _is_uniform(block):
            key = (header_columns(block[:1]) & _MASK).tobytes()
            parts.setdefault(flow_of(key), []).append(block)
            continue
        rows: dict[Connection | bytes, list[int]] = {}
        keys = (header_columns(block) & _MASK).view(f"V{HEADER_COLUMNS}")[:, 0].tolist()
        for row, key in enumerate(keys):
            rows.setdefault(flow_of(key), []).append(row)
        for flow, its in rows.items():
            frames = block if len(rows) == 1 else block[its]
            cut = _in_sequence(frames) if isinstance(flow, tuple) else [frames]
            parts.setdefault(flow, []).extend(cut)
    return [block for flow, its in parts.items() for block in (its if len(its) == 1 else _joined(flow, its))]


def _is_uniform(block: Frames) -> bool:
    """Whether all frames are surely of one flow, and have one opcode: no means maybe."""
    if block.shape[1] < BTH_END:
        return False
    for column, width, kind in _ALIKE:
        words = block[:, column : column + width].view(kind)
        if (words != words[0]).any():
            return False
    return True


def _flow_of(key: bytes, is_of_ring: Callable[[Connection], bool]) -> Connection | bytes:
    """What frames with these masked header columns must keep their order with."""
    is_whole = key[20:22] == bytes(2)
    if key[12:15] == _IPV4 and is_whole and key[23] == _UDP and key[36:38] == _ROCE_PORT:
        connection = key[26:30], key[30:34], int.from_bytes(key[47:50], "big")
        if is_of_ring(connection):
            return connection
    return key[:_ADDRESSES_END]


def _psns(frames: Frames) -> NDArray[np.int64]:
    words: NDArray[np.int64] = np.ascontiguousarray(frames[:, 50:54]).view(">u4")[:, 0].astype(np.int64)
    return words & PSN_MASK


def _in_sequence(frames: Frames) -> list[Frames]:
    """The packets of one connection, cut where PSNs do not rise by one."""
    psns = _psns(frames)
    breaks = np.flatnonzero(((psns[1:] - psns[:-1]) & PSN_MASK) != 1) + 1
    if not len(breaks):
        return [frames]
    return [frames[begin:end] for begin, end in pairwise([0, *breaks.tolist(), len(frames)])]


def _joined(flow: Connection | bytes, parts: list[Frames]) -> list[Frames]:
    """Parts of one flow, in order; short ones that may be one vector made one."""
    out: list[Frames] = []
    run: list[Frames] = []
    for part in parts:
        if run and not (_may_join(run[-1], part, is_of_ring=isinstance(flow, tuple))):
            out.append(run[0] if len(run) == 1 else np.concatenate(run))
            run = []
        run.append(part)
    out.append(run[0] if len(run) == 1 else np.concatenate(run))
    return out


def _may_join(before: Frames, after: Frames, *, is_of_ring: bool) -> bool:
    if before.shape[1] != after.shape[1] or max(len(before), len(after)) > _JOINED_ROWS_MAX:
        return False
    if not is_of_ring:
        return True
    low, high = (int.from_bytes(row[51:54].tobytes(), "big") for row in (before[-1], after[0]))
    return (low + 1) & PSN_MASK == high
