"""Rows of the engine's tables: connections, flows, messages, rings, regions and slots (NetReduce 3.1, 3.2).

Each table is a memory that is read synchronously. The names are those of the software core, whose rules the
engine keeps: ``inaproto.core.switch`` (``lookup_table``, ``aggregator``, ``ring_spec``).
"""

from __future__ import annotations

from amaranth.lib import data

from inaproto.core.switch.lookup_table import FIRST_SIGHTINGS
from inaproto_hil.rtl.parameters import Parameters
from inaproto_hil.rtl.tree_parser import OPENS

SERIAL = 32
OFFSET = 16
SOURCES = 4
"""Ethernet addresses of first packets that a flow remembers."""

POSITION = data.StructLayout({"known": 1, "serial": SERIAL, "offset": OFFSET})
"""A packet of a ring: ``offset`` in message ``serial``. Serial numbers wrap; which one is later says the
sign of their difference."""

CONNECTION = data.StructLayout({"valid": 1, "src_ip": 32, "dst_ip": 32, "dst_qp": 24})
"""What a packet of a ring is known by: one row of the connection lookup table."""


def owner_layout(parameters: Parameters) -> data.StructLayout:
    """What the control plane says of a connection beside that; in a tree, all that it says."""
    tree = {"below": 1, "above": 1, "elsewhere": 1, "told": 1, "learnt": 1, "delivered": 1}
    tree |= {"port": 8, "link": 8, "link_known": 1, "rank": 16, "successor": 8}
    addresses = {"src_ip": 32, "dst_ip": 32, "dst_qp": 24}
    own = {"src_mac": 48, "dst_mac": 48, "macs_known": 1}
    return data.StructLayout({**own, **({**tree, **addresses} if parameters.trees else {})})


ENTRY = data.StructLayout({"valid": 1, "serial": SERIAL, "psn0": 24, "packets": 16})
"""A message of a connection: one of the last 2N."""


def region_layout(parameters: Parameters) -> data.StructLayout:
    """The slots of one message: its tenant, what all ranks must agree on, and the layout of its last packet.

    ``dma_length``: bytes of the message, as the first input says them; as they were when something of the
    message first went up, and down, they stay there.
    """
    tree = {"dma_length": 32, "up_stands": 1, "up_length": 32, "down_stands": 1, "down_length": 32}
    return data.StructLayout(
        {
            "valid": 1,
            "serial": SERIAL,
            "packets": 16,
            "dtype": 8,
            "op": 8,
            "flags": 8,
            "op_index": 32,
            "signature": 16,
            "last_known": 1,
            "last_opcode": 8,
            "last_payload": 16,
            **(tree if parameters.trees else {}),
        }
    )


def flow_layout(parameters: Parameters) -> data.StructLayout:
    """State of one connection: ``Flow`` of the core, in a tree ``TreeFlow``.

    ``gapped``: a packet of it before the highest full one was missing when it was last looked at; ``looked``:
    none before that one was.
    """
    return data.StructLayout(
        {
            "src_mac": 48,
            "dst_mac": 48,
            "sources": data.ArrayLayout(48, SOURCES),
            "sources_count": range(SOURCES + 1),
            "shown_known": 1,
            "shown_src": 48,
            "shown_dst": 48,
            "shown_psn": 24,
            "sightings": range(FIRST_SIGHTINGS),
            "routed": 1,
            "latest": range(parameters.regions),
            "reached": POSITION,
            "replay": POSITION,
            "gap": POSITION,
            "gapped": 1,
            "looked": POSITION,
            **({"hole": POSITION, "sent": POSITION} if parameters.trees else {}),
        }
    )


RING = data.StructLayout(
    {
        "valid": 1,
        "ring_id": 32,
        "key": 64,
        "epoch": 32,
        "size": 8,
        "window": 8,
        "message_packets": 16,
        "mtu": 16,
        "selective": 1,
        "pooled": 1,
        "place": 8,
        "log2_places": 2,
        "has_turn": 1,
        "base": 32,
        "first_serial": SERIAL,
        "failed": 1,
        "next_serial": SERIAL,
        "next_offset": OFFSET,
        "done_high": POSITION,
        "fault_rule": 8,
        "fault_child": 8,
    }
)
"""A ring as it was installed, and its frontier: the first packet whose result has not left yet. One of a pool
has ``base`` and ``epoch`` of its turn."""

PLACE = data.StructLayout({"base": 32, "slots": 32, "epoch": 32, "seen": 1, "held": 1, "holder": 8})
"""Slots that rings of a pool have by turns: how many there are, the latest turn, and who has it."""


TREE = data.StructLayout(
    {
        "valid": 1,
        "has_parent": 1,
        "inputs": 8,
        "parent_port": 8,
        "start_psn": 24,
        "sum_high": POSITION,
        "asked_to": POSITION,
    }
)
"""What of a ring spans several switches. ``sum_high``: the highest packet that is added up; ``asked_to``: up
to there sums went up again because later results came before theirs."""

OPENING = data.StructLayout({"valid": 1, "serial": SERIAL, "header": OPENS})
"""A message of a connection that begins elsewhere: what a note told of its first packet."""

WORN = data.StructLayout({"stands": 1, "serial": SERIAL, "header": OPENS})
"""The header under which its results leave. A later note of the same message makes it stand no more; what
leaves still leaves under it, until something of the message is dressed anew."""


def slot_layout(parameters: Parameters) -> data.StructLayout:
    """A slot's tenant and bitmap: bits of another tenant count as none, so nothing is ever cleared.

    Below another switch: ``final``: it holds the result, no sum; ``asked``: rows of connections on which a
    packet came again since its sum last went up again.
    """
    tree = {"final": 1, "asked": parameters.rows - 1} if parameters.trees else {}
    return data.StructLayout({"valid": 1, "serial": SERIAL, "seen": parameters.children, **tree})
