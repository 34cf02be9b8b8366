"""Fields that control messages share, and the root of them (:mod:`inaproto.wire.control_messages`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from inaproto.wire.ina_header import DIMENSIONS_MAX, Dtype, Op
from inaproto.wire.messages.fields import Boolean, Integer, Many, Octets, OneOf, Text, Words

U16 = Annotated[int, Integer(0, 0xFFFF)]
U24 = Annotated[int, Integer(0, 0xFF_FFFF)]
U32 = Annotated[int, Integer(0, 0xFFFF_FFFF)]
U64 = Annotated[int, Integer(0, (1 << 64) - 1)]
Positive16 = Annotated[int, Integer(1, 0xFFFF)]
Positive32 = Annotated[int, Integer(1, 0xFFFF_FFFF)]
Mtu = Annotated[int, Integer(256, 4096)]
DtypeCode = Annotated[int, Integer(0, max(Dtype))]
OpCode = Annotated[int, Integer(0, max(Op))]
Name = Annotated[str, Text(128, bytes_min=1)]
"""Name of a job, a host, a code."""
Secret = Annotated[str, Text(256)]
Path = Annotated[str, Text(1024, bytes_min=1)]
Explanation = Annotated[str, Words(8192)]
LongText = Annotated[str, Text(8192)]
Flag = Annotated[bool, Boolean()]
Mac = Annotated[bytes, Octets(6)]
Ip = Annotated[bytes, Octets(4, 16)]
"""IPv4 address, or one of IPv6."""
SwitchIp = Annotated[bytes, Octets(4)]
"""Address of a switch's end of a tree's connection: of IPv4, whatever the hosts have."""
Ranks = Annotated[tuple[int, ...], Many(Integer(0, 0xFFFF), 1 << 16)]
RankGroups = Annotated[tuple[tuple[int, ...], ...], Many(Many(Integer(0, 0xFFFF), 1 << 16), 1 << 16)]
Names = Annotated[tuple[str, ...], Many(Text(128, bytes_min=1), 1 << 16)]
Shape = Annotated[tuple[int, ...], Many(Integer(0, (1 << 64) - 1), DIMENSIONS_MAX)]
PathAsked = Literal["auto", "chain", "overlay", "ring", "shared"]
"""Path that a job wants: ``auto`` is the switches, and the hosts while these cannot; ``shared`` is both at
once, each operation by one of them."""
AskedField = Annotated[PathAsked, OneOf(("auto", "chain", "overlay", "ring", "shared"))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Root of all control messages. ``type`` is how one is named where it travels."""

    TYPE: ClassVar[str] = ""
    id: U64 = 0

    def __init_subclass__(cls, *, type: str = "") -> None:
        if type:  # a dataclass with slots is made twice, the second time without
            cls.TYPE = type


@dataclass(frozen=True, slots=True)
class Unnumbered(Message):
    """Root of those whose ``id`` says nothing: no answer refers to it. They are equal whatever it is."""

    id: U64 = field(default=0, repr=False, compare=False, kw_only=True)


def messages_of(*rooms: Mapping[str, object]) -> list[type[Message]]:
    """All kinds of messages that these modules have, in order."""
    found = [one for room in rooms for one in room.values() if isinstance(one, type)]
    return [one for one in found if issubclass(one, Message) and one.TYPE]
