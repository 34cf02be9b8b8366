"""Control messages with arrays behind them, as they travel between hosts and parameter servers, and in logs.

A frame is 8 bytes with the length of its payload (big-endian), a control message in its own framing
(:mod:`inaproto.wire.control`), and the payload: raw bytes, whose meaning the message says. So a gradient is
copied once, into the memory where it stays, and never goes through msgpack.

Invariants: nothing but ``DecodeError`` leaves the decoder for any bytes; a payload longer than the limit is
refused by its length, before any memory is taken for it; how the bytes were cut into chunks makes no
difference to the frames.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from inaproto.errors import DecodeError
from inaproto.wire.control import LENGTH_BYTES, MESSAGE_BYTES_MAX, ControlRecord, decode_control

PREFIX_BYTES: Final = 8 + LENGTH_BYTES
_LAYER: Final = "frame"
_EMPTY: Final = memoryview(b"")


class Frame(NamedTuple):
    record: ControlRecord
    payload: memoryview
    """Its owner is whoever takes the frame: nobody else has it."""


def encode_frame(message: bytes, payload: Sequence[memoryview] = ()) -> list[memoryview]:
    """The parts of a frame, to be sent one after the other; ``message`` as ``encode_control`` made it.

    The payload is not copied: it must not change before it is sent.
    """
    parts = [part.cast("B") for part in payload if part.nbytes]
    nbytes = sum(part.nbytes for part in parts)
    return [memoryview(struct.pack(">Q", nbytes) + message), *parts]


class FrameDecoder:
    """Bytes of a stream in, frames out (sans-IO).

    After a ``DecodeError`` the connection is to be closed; every further ``feed`` raises the same error.
    """

    def __init__(self, payload_bytes_max: int) -> None:
        self.payload_bytes_max = payload_bytes_max
        """Limit of the next frame whose length comes."""
        self._head = bytearray()
        self._record: ControlRecord | None = None
        self._payload = _EMPTY
        self._filled = 0
        self._taken = 0
        """Bytes taken of the frame whose payload is being filled."""
        self._error: DecodeError | None = None

    @property
    def buffered_bytes(self) -> int:
        """Bytes held of a frame that is not complete yet."""
        return len(self._head) + self._taken

    @property
    def is_in_payload(self) -> bool:
        """Whether bytes of an array are missing."""
        return self._record is not None

    def feed(self, data: bytes | memoryview) -> list[Frame]:
        """Take the next bytes; returns the frames that are complete now, in order."""
        if self._error is not None:
            raise self._error
        view, frames = memoryview(data), list[Frame]()
        try:
            while True:
                view = self._take_payload(view) if self._record is not None else self._take_head(view)
                if self._record is not None and self._filled == self._payload.nbytes:
                    frames.append(Frame(self._record, self._payload))
                    self._record, self._payload, self._filled, self._taken = None, _EMPTY, 0, 0
                elif not view.nbytes:
                    return frames
        except DecodeError as error:
            self._error = error
            raise

    def _take_head(self, view: memoryview) -> memoryview:
        """Up to the end of the message; the rest of ``view``."""
        view = self._fill_head(view, PREFIX_BYTES)
        if len(self._head) < PREFIX_BYTES:
            return view
        nbytes, length = struct.unpack_from(">QI", self._head)
        if nbytes > self.payload_bytes_max:
            raise DecodeError(_LAYER, f"a payload of {nbytes} bytes, at most {self.payload_bytes_max}")
        if not 0 < length <= MESSAGE_BYTES_MAX:
            raise DecodeError(_LAYER, f"a message of {length} bytes, not 1 to {MESSAGE_BYTES_MAX}", 8)
        view = self._fill_head(view, PREFIX_BYTES + length)
        if len(self._head) == PREFIX_BYTES + length:
            self._record = decode_control(bytes(self._head[PREFIX_BYTES:]))
            self._taken = len(self._head)
            self._head.clear()
            self._payload = memoryview(bytearray(nbytes)) if nbytes else _EMPTY
        return view

    def _fill_head(self, view: memoryview, size: int) -> memoryview:
        missing = max(0, size - len(self._head))
        self._head += view[:missing]
        return view[missing:]

    def _take_payload(self, view: memoryview) -> memoryview:
        taken = min(view.nbytes, self._payload.nbytes - self._filled)
        self._payload[self._filled : self._filled + taken] = view[:taken]
        self._filled += taken
        self._taken += taken
        return view[taken:]

    def finish(self) -> None:
        """Tell that the stream has ended. Raises ``DecodeError`` if it ended inside a frame."""
        if self._error is not None:
            raise self._error
        if self._record is not None or self._head:
            raise DecodeError(_LAYER, f"the stream ended after {self.buffered_bytes} bytes of a frame")
