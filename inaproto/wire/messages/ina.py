"""Control messages of a ring through the switches that leaves them, and comes back elsewhere (MINA IV-A).

switch -> host daemon: InaPark, InaStands.
host daemon -> switch: InaParked.

The queue pairs of the ring stay as they are, and its messages are numbered on; only the switches change. A
host daemon of an older release does not know these messages, and does not say in its hello that it does: a
job with ranks there has no ring through the switches any more once a controller wishes one to be elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from inaproto.wire.messages.types import U16, U32, U64, Message, Name

POOL_DEFAULT: Final = "shared"
"""Where a host has its turns that is told of no other pool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InaPark(Message, type="ina_park"):
    """Have no turns any more on that ring, and say so when nothing of it is on its way."""

    job: Name
    ring_id: U32
    """Id of the INA ring."""
    epoch: U32
    """Epoch of the wish that the ring follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InaParked(Message, type="ina_parked"):
    """Nothing of the ring is on its way here, and this host sends nothing on it before it stands again."""

    job: Name
    rank: U16
    """Any rank of this host."""
    ring_id: U32
    epoch: U32
    """Epoch of the ``InaPark`` that it answers."""
    messages: U64
    """Messages that the ring has carried: the same at all hosts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InaStands(Message, type="ina_stands"):
    """The switches have the ring again, with its next message: the host may have turns in that pool."""

    job: Name
    ring_id: U32
    epoch: U32
    pool: Name = POOL_DEFAULT
