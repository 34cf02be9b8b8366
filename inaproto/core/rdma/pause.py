"""Pause frames for a NIC without hardware: IEEE 802.3 annex 31B, and by priority (PFC, IEEE 802.1Qbb).

Whoever runs out of room on a link says for how long nothing may come: of everything, or of a priority. Both
are frames to an address that no bridge forwards. They count in quanta, times of 512 bits; a NIC in user space
has no rate, and takes those of a link of 10 Gbit/s: on a faster one it is silent for longer than it must.
"""

from __future__ import annotations

from typing import Final

from inaproto.units import Frames

_HEAD: Final = bytes.fromhex("0180c2000001")
_TYPE: Final = b"\x88\x08"
_PAUSE, _BY_PRIORITY = b"\x00\x01", b"\x01\x01"
_BYTES_MIN: Final = 34
_QUANTUM_NS_TENTHS: Final = 512


def silence_asked(frames: Frames, priority: int) -> int | None:
    """For how many ns who sends with this priority is to be silent, by the last of these frames that says so.

    0: it may go on; None: no frame says anything of it.
    """
    if frames.shape[1] < _BYTES_MIN or frames[0, 12:14].tobytes() != _TYPE:
        return None
    asked: int | None = None
    for row in frames[:, :_BYTES_MIN]:
        frame = row.tobytes()
        if frame[:6] != _HEAD:
            continue
        kind, at = frame[14:16], 16
        if kind == _BY_PRIORITY and frame[17] >> priority & 1:
            at = 18 + 2 * priority
        elif kind != _PAUSE:
            continue
        asked = int.from_bytes(frame[at : at + 2], "big") * _QUANTUM_NS_TENTHS // 10
    return asked
