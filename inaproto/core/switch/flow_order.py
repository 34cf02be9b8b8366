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

from collections.abc import Callable, Iterable, Sequence
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
_MASK_BITS: Final = int.from_bytes(_MASK[:BTH_END].tobytes(), "big")
_ALIKE: Final = np.zeros(HEADER_COLUMNS, np.uint8)
_ALIKE[[*range(15), *range(20, 24), *range(26, 38), *range(42, 50)]] = 0xFF
_ALIKE_BITS: Final = int.from_bytes(_ALIKE.tobytes(), "big")
"""Columns in which frames of one flow and opcode agree, as bits of one number."""
_RISING: Final = np.arange(4096, dtype=np.uint32) << 8
_IPV4: Final = bytes.fromhex("080045")
"""Ethertype, version and header length of IPv4 without options."""
_UDP: Final = 17
_ROCE_PORT: Final = (4791).to_bytes(2, "big")


def flow_by_flow(blocks: Sequence[Frames], is_of_ring: Callable[[Connection], bool]) -> Sequence[Frames]:
    """The same frames in blocks that each have one flow, unless all have one already.

    Blocks are uint8 (n, frame_bytes). ``is_of_ring`` says whether a connection is one whose packets may pass
    others between the same two addresses.
    """
    if _is_one_flow(blocks):
        return blocks
    parts: dict[Connection | bytes, list[Frames]] = {}
    flows: dict[bytes, Connection | bytes] = {}
    for block in blocks:
        if len(block) == 0:
            continue
        one = len(block) == 1 or _is_uniform(block)
        headers = header_columns(block[:1] if one else block)
        keys = (headers & _MASK).view(f"V{HEADER_COLUMNS}")[:, 0].tolist()
        for key in keys if one else dict.fromkeys(keys):
            if key not in flows:
                flows[key] = flow_of(key, is_of_ring)
        if one:
            parts.setdefault(flows[keys[0]], []).append(block)
            continue
        rows: dict[Connection | bytes, list[int]] = {}
        for row, key in enumerate(keys):
            flow = flows[key]
            if flow in rows:
                rows[flow].append(row)
            else:
                rows[flow] = [row]
        for flow, its in rows.items():
            parts.setdefault(flow, []).append(block if len(rows) == 1 else block[its])
    return [block for flow, its in parts.items() for block in joined(flow, its)]


def _is_one_flow(blocks: Sequence[Frames]) -> bool:
    """Whether there is nothing to do: surely one flow, and vectors where there can be."""
    first, width = None, 0
    for block in blocks:
        n, length = block.shape
        if n == 0 or length < BTH_END or (n > 1 and not _is_uniform(block)):
            return False
        if n == 1 and length == width:
            return False  # perhaps a vector with its neighbour
        key = int.from_bytes(block[0, :BTH_END].tobytes(), "big") & _MASK_BITS
        if key != first and first is not None:
            return False
        first, width = key, length
    return True


def _is_uniform(block: Frames) -> bool:
    """Whether all frames are surely of one flow, have one opcode and follow each other: no means maybe."""
    if block.shape[1] < HEADER_COLUMNS:
        return False
    columns = block[:, :HEADER_COLUMNS].copy()
    words = columns.reshape(-1).view(np.uint64).reshape(len(block), -1)
    varying = np.bitwise_or.reduce(words ^ words[0], axis=0).tobytes()
    if int.from_bytes(varying, "big") & _ALIKE_BITS:
        return False
    psns = columns[:, 50:54].view(">u4")[:, 0].astype(np.uint32)
    psns <<= 8  # less AckReq
    psns -= psns[0]
    return bool((psns == _RISING[: len(psns)]).all()) if len(psns) <= len(_RISING) else False


def flow_of(key: bytes, is_of_ring: Callable[[Connection], bool]) -> Connection | bytes:
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
    if frames.shape[1] < BTH_END:  # cut off on the way, in their PSN or just before it
        return [frames]
    psns = _psns(frames)
    breaks = np.flatnonzero(((psns[1:] - psns[:-1]) & PSN_MASK) != 1) + 1
    if not len(breaks):
        return [frames]
    return [frames[begin:end] for begin, end in pairwise([0, *breaks.tolist(), len(frames)])]


def joined(flow: Connection | bytes, parts: list[Frames]) -> list[Frames]:
    """Parts of one flow, in order: cut where a ring's PSNs do not rise by one, short ones made one vector."""
    if isinstance(flow, tuple):
        parts = [cut for part in parts for cut in (_in_sequence(part) if len(part) > 1 else [part])]
    if len(parts) < 2:
        return parts
    out: list[Frames] = []
    run: list[Frames] = []
    for part in parts:
        if run and not (_may_join(run[-1], part, is_of_ring=isinstance(flow, tuple))):
            out.append(run[0] if len(run) == 1 else np.concatenate(run))
            run = []
        run.append(part)
    out.append(run[0] if len(run) == 1 else np.concatenate(run))
    return out


def joined_rows(rows: Iterable[Frames]) -> list[Frames]:
    """The same with blocks of one frame each, packets of a ring."""
    out: list[Frames] = []
    run: list[Frames] = []
    follows = length = -1
    for row in rows:
        n = row.shape[1]
        psn = int.from_bytes(row[0, 51:54].tobytes(), "big")
        if run and (psn != follows or n != length):
            out.append(run[0] if len(run) == 1 else np.concatenate(run))
            run = []
        run.append(row)
        follows, length = psn + 1 & PSN_MASK, n
    out.append(run[0] if len(run) == 1 else np.concatenate(run))
    return out


def _may_join(before: Frames, after: Frames, *, is_of_ring: bool) -> bool:
    if before.shape[1] != after.shape[1] or max(len(before), len(after)) > _JOINED_ROWS_MAX:
        return False
    if not is_of_ring:
        return True
    low, high = (int.from_bytes(row[51:54].tobytes(), "big") for row in (before[-1], after[0]))
    return (low + 1) & PSN_MASK == high
