"""IEEE 802.1Q tags of RoCEv2 frames: taken off, so that all behind sees plain frames, and put back.

A tag is four bytes behind the two Ethernet addresses: type 0x8100, then three bits of priority (PCP), one of
drop eligibility (DEI) and twelve of the VLAN's number (VID). A *priority tag* has VID 0: its frame is of no
VLAN, like one without a tag. No ICRC covers a tag. Frames with two tags, or with one that is not of type
0x8100 (802.1ad), are left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inaproto.units import Frames
from inaproto.wire.icrc import ICRC_BYTES
from inaproto.wire.vector import BTH_END

TAG_BYTES: Final = 4
TAG_BEGIN: Final = 12
TAG_END: Final = TAG_BEGIN + TAG_BYTES
TAG_TYPE: Final = 0x81
"""First byte of a tag."""
_VID_MASK: Final = 0xFFF
_COLUMNS: Final = np.array([12, 13, 16, 17, 18, 27, 40, 41])
_ROCE: Final = np.frombuffer(bytes.fromhex("81000800451112b7"), np.uint8)
"""A tagged RoCEv2 frame at ``_COLUMNS``: types, IP version and header length, protocol, UDP port."""

_BYTES_MIN: Final = TAG_BYTES + BTH_END + ICRC_BYTES


def vlan_of(tag: bytes) -> int:
    """VID of a tag; 0 also where there is none."""
    return int.from_bytes(tag[2:], "big") & _VID_MASK if tag else 0


def may_have_tag(frames: Frames) -> bool:
    """Whether the first frame begins as a tagged one does."""
    n, length = frames.shape
    return bool(n and length > TAG_END and frames[0, TAG_BEGIN] == TAG_TYPE)


def is_tagged(frames: Frames) -> bool:
    """Whether the first frame is one whose tag ``by_tag`` takes off."""
    return may_have_tag(frames) and frames.shape[1] >= _BYTES_MIN and not _differ(frames[:1]).any()


def by_tag(blocks: Sequence[Frames]) -> list[tuple[bytes, Sequence[Frames]]]:
    """Frames in the order in which they came, in groups of one tag, as (tag, blocks without it).

    An empty tag: frames as they are, without one or no RoCEv2. The rest are copies.
    """
    groups: list[tuple[bytes, list[Frames]]] = []
    for block in blocks:
        for tag, part in _cut(block) if may_have_tag(block) else [(b"", block)]:
            if not groups or groups[-1][0] != tag:
                groups.append((tag, []))
            groups[-1][1].append(part)
    return list(groups)


def with_tag(frames: Frames, tag: bytes) -> Frames:
    """Copies of the frames, with the tag in its place; the frames themselves where it is empty."""
    if not tag:
        return frames
    n, length = frames.shape
    out = np.empty((n, length + TAG_BYTES), np.uint8)
    out[:, :TAG_BEGIN] = frames[:, :TAG_BEGIN]
    out[:, TAG_BEGIN:TAG_END] = np.frombuffer(tag, np.uint8)
    out[:, TAG_END:] = frames[:, TAG_BEGIN:]
    return out


def _cut(block: Frames) -> list[tuple[bytes, Frames]]:
    """The block cut where tags change, each part without its own."""
    n, length = block.shape
    if length < _BYTES_MIN:
        return [(b"", block)]
    tags = block[:, TAG_BEGIN:TAG_END].copy().view(np.uint32)[:, 0]
    tags[_differ(block)] = 0
    bounds = [0, *(np.flatnonzero(tags[1:] != tags[:-1]) + 1).tolist(), n]
    parts = []
    for begin, end in pairwise(bounds):
        rows = block[begin:end]
        if tags[begin]:
            out = np.empty((end - begin, length - TAG_BYTES), np.uint8)
            out[:, :TAG_BEGIN] = rows[:, :TAG_BEGIN]
            out[:, TAG_BEGIN:] = rows[:, TAG_END:]
            parts.append((tags[begin].tobytes(), out))
        else:
            parts.append((b"", rows))
    return parts


def _differ(frames: Frames) -> NDArray[np.bool_]:
    """Which frames are no tagged RoCEv2: bool (n,)."""
    found: NDArray[np.bool_] = (frames[:, _COLUMNS] != _ROCE).any(axis=1)
    return found
