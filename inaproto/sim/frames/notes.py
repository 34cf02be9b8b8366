"""Telling the notes that switches send one another (:mod:`inaproto.wire.tree_note`) from other frames."""

from __future__ import annotations

from typing import Final

from inaproto.errors import DecodeError
from inaproto.wire.roce import Opcode, RocePacket
from inaproto.wire.tree_note import NoteKind, TreeNote

_OPCODE_AT: Final = 42
_FRAME_BYTES_MIN: Final = 54 + 32 + 4
"""BTH and all before it, the shortest note, ICRC."""


def note_kind(frame: bytes) -> NoteKind | None:
    """None: it is no note, or a damaged one."""
    if len(frame) < _FRAME_BYTES_MIN or frame[_OPCODE_AT] != Opcode.RC_SEND_ONLY:
        return None
    try:
        return TreeNote.decode(RocePacket.decode_frame(frame).payload).kind
    except DecodeError:
        return None
