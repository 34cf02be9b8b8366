"""Proofs of the RTL, by induction, so for runs of any length: ``inaproto rtl prove``.

A file a property. :mod:`~inaproto_hil.rtl.proofs.proof` is what proofs are made of,
:mod:`~inaproto_hil.rtl.proofs.prover` decides them by Yosys and Z3. Sizes are small, and the same RTL makes
the large ones; what is proved is proved of all frames, register writes and moments at these sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from inaproto_hil.rtl.parameters import Parameters
from inaproto_hil.rtl.proofs import neighbours, streams
from inaproto_hil.rtl.proofs.proof import Proof
from inaproto_hil.rtl.proofs.raw_gradients import raw_gradients
from inaproto_hil.rtl.proofs.tenants import Tenants


class Property(NamedTuple):
    name: str
    says: str
    make: Callable[[Parameters], Proof]
    run_cycles: int = 8
    """How far to look for a run from the initial values where it does not hold."""


# A slot is written first after some 60 cycles: a connection, its ring and a frame come before.
SIZES: Final = "ports=2,words=2,rings=2,children=2,window=2,slots=8,mtu=64"
PROPERTIES: Final = (
    Property("raw_gradients", "a packet of a ring never leaves as it came", raw_gradients, 16),
    Property("tenants", "a slot's bits are of its own message, each of its own rank", Tenants, 0),
    Property("receiver", "a frame stays until the engine is through with it", neighbours.receiver),
    Property("emitter", "one order at a time, begun with room at all its ports", neighbours.emitter),
    Property("queue", "beats leave a port whole, unchanged, in order, none is overwritten", streams.queue),
    Property("align", "two bytes in front, nothing else, offered until taken", streams.align),
    Property("unalign", "two bytes less, nothing else, offered until taken", streams.unalign),
)
