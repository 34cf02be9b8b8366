"""Where the port of a host is in an InfiniBand network, which has no Ethernet and no IPv4 addresses.

A host on InfiniBand says it beside ``mac`` and ``ip``, which are zeros then; one on Ethernet does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from inaproto.wire.messages.fields import Octets, Record
from inaproto.wire.messages.types import U16

GID_BYTES = 16
Gid = Annotated[bytes, Octets(GID_BYTES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class InfinibandPort:
    """A port of an InfiniBand network."""

    gid: Gid
    """Prefix of its subnet, 8 bytes, and the GUID of the port: it stays the same while the host is up."""
    lid: U16
    """Its address within the subnet, which the subnet manager gives; 0: it has none, packets go by GID."""


InfinibandField = Annotated[InfinibandPort, Record(InfinibandPort)]
