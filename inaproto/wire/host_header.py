"""The header of messages that hosts send each other beside the accelerators: 40 bytes.

A path that needs no accelerator (:mod:`inaproto.core.host.engines.chain`) sends messages of its own over the
ring's connections. Their header is the INA header with another magic, so that no accelerator on the way takes
them for a ring's messages, and with the *kind* of the payload in the high half of ``flags``, so that no
host takes one kind for another.

Invariants: those of the INA header; the flag ``RESULT`` is never set, it is an accelerator's word.
``encode(decode(b)) == b`` for the 40 bytes of every header that decodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Self

from inaproto.errors import DecodeError, LocalMisuse
from inaproto.wire.ina_header import FLAGS_OFFSET, INA_HEADER_BYTES, MAGIC, InaHeader

HOST_MAGIC: Final = 0x494E4148
"""``INAH``."""
HOST_HEADER_BYTES: Final = INA_HEADER_BYTES
_HOST_MAGIC: Final = HOST_MAGIC.to_bytes(4, "big")
_INA_MAGIC: Final = MAGIC.to_bytes(4, "big")
_KIND_SHIFT: Final = 4
_FLAGS_MASK: Final = (1 << _KIND_SHIFT) - 1


class Kind(IntEnum):
    """What the payload is, by its number on the wire."""

    ACCUMULATOR = 1
    """Sums that are not complete: those of the lists of the reduction plan that are open at this rank."""
    RESULT = 2


@dataclass(frozen=True, slots=True)
class HostHeader:
    kind: Kind
    fields: InaHeader
    """All else; ``msg_len`` counts the packets of this message, whatever its payload is."""

    def encode(self) -> bytes:
        """The 40 bytes. Raises ``LocalMisuse`` for values that no decoder would take."""
        if self.fields.is_result:
            raise LocalMisuse("host header: the flag RESULT is set by accelerators alone")
        data = self.fields.encode()
        flags = data[FLAGS_OFFSET] | self.kind << _KIND_SHIFT
        return _HOST_MAGIC + data[4:FLAGS_OFFSET] + bytes([flags]) + data[FLAGS_OFFSET + 1 :]

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview) -> Self:
        """Read the header at the start of ``data``; the rest is ignored."""
        if len(data) < HOST_HEADER_BYTES:
            raise DecodeError("host header", f"{len(data)} bytes, needs {HOST_HEADER_BYTES}", len(data))
        head = bytes(data[:HOST_HEADER_BYTES])
        if head[:4] != _HOST_MAGIC:
            magic = int.from_bytes(head[:4], "big")
            raise DecodeError("host header", f"magic is 0x{magic:08x}, not 0x{HOST_MAGIC:08x}", 0)
        kind, flags = head[FLAGS_OFFSET] >> _KIND_SHIFT, head[FLAGS_OFFSET] & _FLAGS_MASK
        if kind not in tuple(Kind):
            raise DecodeError("host header", f"unknown kind {kind}", FLAGS_OFFSET)
        fields = InaHeader.decode(
            _INA_MAGIC + head[4:FLAGS_OFFSET] + bytes([flags]) + head[FLAGS_OFFSET + 1 :]
        )
        if fields.is_result:
            raise DecodeError("host header", "the flag RESULT is an accelerator's", FLAGS_OFFSET)
        return cls(Kind(kind), fields)

    def __str__(self) -> str:
        """One line for a log; the key is a secret and stays out."""
        return f"{self.kind.name.lower()} of {self.fields}"
