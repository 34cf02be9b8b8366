"""Pause frames, of everything (IEEE 802.3 annex 31B) and by priority (PFC, IEEE 802.1Qbb).

Whoever runs out of room on a link says for how long nothing may come: of everything, or of a priority. Both
are frames to an address that no bridge forwards. They count in quanta, times of 512 bits; a port in user
space has no rate, and takes those of a link of 10 Gbit/s: on a faster one it is silent for longer than it
must.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import numpy as np

from inaproto.units import Frames

_HEAD: Final = bytes.fromhex("0180c2000001")
_TYPE: Final = b"\x88\x08"
_TYPE_BEGIN: Final = 12
_PAUSE, _BY_PRIORITY = b"\x00\x01", b"\x01\x01"
_BYTES_MIN: Final = 34
_QUANTUM_NS_TENTHS: Final = 512
_QUANTA_MAX: Final = 0xFFFF
_FRAME_BYTES: Final = 60


def pauses_of(frames: Frames) -> list[bytes]:
    """Those of the frames that ask for silence, as far as they say of what and for how long."""
    if frames.shape[1] < _BYTES_MIN:
        return []
    is_control = (frames[:, _TYPE_BEGIN] == _TYPE[0]) & (frames[:, _TYPE_BEGIN + 1] == _TYPE[1])
    if not is_control.any():
        return []
    found = [row.tobytes() for row in frames[is_control, :_BYTES_MIN]]
    return [frame for frame in found if frame[:6] == _HEAD and frame[14:16] in (_PAUSE, _BY_PRIORITY)]


def silence_asked(frames: Frames, priority: int) -> int | None:
    """For how many ns who sends with this priority is to be silent, by the last of these frames that says so.

    0: it may go on; None: no frame says anything of it.
    """
    asked: int | None = None
    for frame in pauses_of(frames):
        kind, at = frame[14:16], 16
        if kind == _BY_PRIORITY and frame[17] >> priority & 1:
            at = 18 + 2 * priority
        elif kind != _PAUSE:
            continue
        asked = int.from_bytes(frame[at : at + 2], "big") * _QUANTUM_NS_TENTHS // 10
    return asked


def pause_frame(mac: bytes, silence_ns: int, priorities: Collection[int] = ()) -> Frames:
    """One frame by which the station ``mac`` asks for that much silence, at most 3.4 ms.

    0: all may go on. It is of these priorities, of everything if there are none.
    """
    quanta = min(_QUANTA_MAX, silence_ns * 10 // _QUANTUM_NS_TENTHS).to_bytes(2, "big")
    asked = sum(1 << priority for priority in priorities)
    body = _BY_PRIORITY + asked.to_bytes(2, "big") + quanta * 8 if priorities else _PAUSE + quanta
    frame = (_HEAD + mac + _TYPE + body).ljust(_FRAME_BYTES, b"\0")
    return np.frombuffer(bytearray(frame), np.uint8)[None]
