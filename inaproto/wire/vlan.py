"""IEEE 802.1Q tags of frames, which :mod:`inaproto.wire.outer` takes off and puts back.

A tag is four bytes behind the two Ethernet addresses: type 0x8100, then three bits of priority (PCP), one of
drop eligibility (DEI) and twelve of the VLAN's number (VID). A *priority tag* has VID 0: its frame is of no
VLAN, like one without a tag. No ICRC covers a tag. Frames with two tags, or with one that is not of type
0x8100 (802.1ad), are left alone.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from inaproto.units import Frames

TAG_BYTES: Final = 4
TAG_BEGIN: Final = 12
TAG_END: Final = TAG_BEGIN + TAG_BYTES
_VID_MASK: Final = 0xFFF


def vlan_of(tag: bytes) -> int:
    """VID of the tag with which an outer part begins; 0 also where there is none."""
    return int.from_bytes(tag[2:TAG_BYTES], "big") & _VID_MASK if tag else 0


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
