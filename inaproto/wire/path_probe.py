"""A probe of the path between a NIC and its switch: do frames of this length come through, both ways?

A NIC asks with a frame as long as the RoCE packets that it would send. The first switch of this project on
the way answers where the question came, with a frame of the same length, and passes it no further. So an
answer says that every link between them carries that length, up and down. The frame is of an experimental
EtherType (IEEE 802, local experimental 1), like that of trunks (:mod:`inaproto.wire.trunk_hello`), but other
bridges pass it on::

     0 destination: 03:49:4e:41:50:00, or who asked | 6 source: who asks, or 02:49:4e:41:50:00
    12 VLAN tag, if the NIC's frames have one | 0x88b5
    then magic u32 | version u8 | kind u8: 1 asks, 2 answers | token u64, which the answer repeats | anything

Byte 5 of the token is a number from 0 on: of several links at once who asks by each, and a port with several
links sends questions and answers by that one.

Invariant: who answers sends no more than was asked, and only to who asked.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np

from inaproto.units import Frames
from inaproto.wire.vlan import TAG_BEGIN, TAG_BYTES

MAGIC: Final = 0x494E4150
"""``INAP``."""
VERSION: Final = 1
ASKS, ANSWERS = 1, 2
TO_SWITCHES: Final = bytes.fromhex("03494e415000")
OF_SWITCHES: Final = bytes.fromhex("02494e415000")
FRAME_BYTES_MIN: Final = 60
ETHERTYPE: Final = 0x88B5
_ETHERTYPE: Final = ETHERTYPE.to_bytes(2, "big")
_TAG: Final = b"\x81\x00"
_FIELDS: Final = struct.Struct(">2sIBBQ")
_GROUP_BIT: Final = 1
_WAY_AT: Final = _FIELDS.size - 3


def question(*, mac: bytes, token: int, nbytes: int) -> Frames:
    """One frame of ``nbytes``."""
    head = TO_SWITCHES + mac + _FIELDS.pack(_ETHERTYPE, MAGIC, VERSION, ASKS, token)
    return np.frombuffer(head.ljust(max(nbytes, FRAME_BYTES_MIN), b"\0"), np.uint8).reshape(1, -1)


def answers_to(frames: Frames) -> Frames | None:
    """The answers to questions among frames of one length; None: there is none."""
    asking = [row for row, frame in enumerate(frames) if _is_question(frame[:_HEAD_BYTES].tobytes())]
    if not asking:
        return None
    answers = frames[asking].copy()
    answers[:, :6] = answers[:, 6:12]
    answers[:, 6:12] = np.frombuffer(OF_SWITCHES, np.uint8)
    for answer in answers:
        answer[_kind_at(answer[:_HEAD_BYTES].tobytes())] = ANSWERS
    return answers


def token_answered(frame: bytes) -> int | None:
    """The token of an answer, tagged or not; None for any other frame."""
    told = _told(frame[:_HEAD_BYTES])
    return told[1] if told is not None and told[0] == ANSWERS else None


_HEAD_BYTES: Final = TAG_BEGIN + TAG_BYTES + _FIELDS.size


def _is_question(head: bytes) -> bool:
    told = _told(head)
    return told is not None and told[0] == ASKS and not head[6] & _GROUP_BIT and head[:6] == TO_SWITCHES


def way_at(head: bytes) -> int | None:
    """Where the first bytes of a probe have the number of its link; None: the frame is no probe."""
    return None if _told(head[:_HEAD_BYTES]) is None else _fields_at(head) + _WAY_AT


def _told(head: bytes) -> tuple[int, int] | None:
    """Kind and token of a probe."""
    at = _fields_at(head)
    if len(head) < at + _FIELDS.size:
        return None
    ethertype, magic, version, kind, token = _FIELDS.unpack_from(head, at)
    return (kind, token) if (ethertype, magic, version) == (_ETHERTYPE, MAGIC, VERSION) else None


def _fields_at(head: bytes) -> int:
    return TAG_BEGIN + TAG_BYTES * (head[TAG_BEGIN : TAG_BEGIN + 2] == _TAG)


def _kind_at(head: bytes) -> int:
    return _fields_at(head) + 7
