"""What a switch of a tree knows of a ring that spans several (NetReduce section 3.3).

Connections of the ring, as this switch sees them:

- *inputs*: of ranks, and virtual ones from the switches below; a rank's may be delivered here, or elsewhere,
  and then what its packets say is *told* in notes;
- *learnt*: delivered here, but their packets come in elsewhere: what their headers are comes in notes;
- the rest, on which no packet may come here, and the virtual one from the switch above.

Only inputs stand in the lookup table, so that nothing else can be taken for one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from inaproto.core.switch.events import RingState
from inaproto.core.switch.lookup_table import Flow, LookupTable
from inaproto.core.switch.ring_spec import FlowSpec, RingSpec
from inaproto.core.switch.tree.region import Shape, TreeArray, TreeRegion
from inaproto.core.switch.tree.translation import base_header, inward
from inaproto.errors import InvariantBroken
from inaproto.units import PortId
from inaproto.wire.messages.switch import Role, VirtualConnection
from inaproto.wire.outer import in_vlan_of


@dataclass(slots=True)
class Link:
    """The outgoing half of a virtual connection."""

    connection: VirtualConnection
    row: int
    base: bytes = field(repr=False)

    @property
    def port(self) -> PortId:
        return self.connection.port


@dataclass(slots=True)
class TreeFlow(Flow):
    """A connection of a ring that spans several switches."""

    row: int = -1
    successor: TreeFlow | None = field(default=None, repr=False, compare=False)
    """Connection of the receiver of one that is delivered here; it is an input here."""
    barred: frozenset[PortId] = frozenset()
    """Ports towards switches above: packets of a rank never come from there, nor do its results leave."""
    link: Link | None = None
    """Where results go of an input from a switch below, or notes of a rank's that is told."""
    below: bool = False
    """From a switch below; else of a rank."""
    learnt: bool = False
    sent: int = 0
    """Learnt: the position up to which its results were sent."""
    openings: list[tuple[int, bytes] | None] = field(default_factory=list)
    """Learnt: (serial, first packet's headers) of the latest messages."""
    hole: int = -1
    """Learnt: position of the last gap that a note told of. Told: of the last one that was told."""

    def may_come(self, port: int) -> bool:
        return self.link is not None and port == self.link.port if self.below else port not in self.barred

    def emitted(self, frontier: int) -> int:
        return min(frontier, self.sent) if self.learnt else frontier

    @property
    def worn_tag(self) -> bytes:
        """Outer part with which its results leave: of learnt ones in the VLAN of their receiver's packets."""
        if not self.learnt or self.successor is None:
            return self.tag
        return in_vlan_of(self.spec.outer, self.successor.tag)

    def opening_of(self, serial: int) -> bytes | None:
        """Headers of the first packet of a message, if a note brought them."""
        known = self.openings[serial % len(self.openings)]
        return known[1] if known is not None and known[0] == serial else None


@dataclass(slots=True)
class TreeRing(RingState):
    """A ring that spans several switches, at one that sums for it."""

    role: Role = field(default_factory=Role)
    delivered_here: list[TreeFlow] = field(default_factory=list)
    groups: list[tuple[slice, list[TreeFlow]]] = field(default_factory=list)
    """``delivered``, by maximal runs of rows."""
    told: list[TreeFlow] = field(default_factory=list)
    learnt: dict[int, TreeFlow] = field(default_factory=dict)
    """Learnt connections by rank."""
    children: list[Link] = field(default_factory=list)
    parent: Link | None = None
    from_parent: TreeFlow | None = None
    note_links: dict[int, Link] = field(default_factory=dict)
    """Where notes about each rank go on."""
    asked_to: int = 0
    """Position up to which sums were repeated because later results came before theirs."""
    answered: set[int] = field(default_factory=set)
    """Messages of which results came in this step; at the root, were made."""

    @property
    def delivered(self) -> list[TreeFlow]:
        """Inputs that are delivered here."""
        return self.delivered_here

    @property
    def is_between_messages(self) -> bool:
        frontier = self.array.frontier
        return self.array.is_between_messages and all(flow.sent == frontier for flow in self.learnt.values())

    @property
    def tree_array(self) -> TreeArray:
        if not isinstance(self.array, TreeArray):
            raise InvariantBroken(f"ring {self.spec.ring_id} has no aggregators of a tree")
        return self.array

    def region_at(self, serial: int) -> TreeRegion | None:
        """The region of a message, if it has one now."""
        region = self.tree_array.region_of(serial)
        return region if region.serial == serial else None


def install_tree(
    spec: RingSpec, role: Role, table: LookupTable, ports_up: frozenset[PortId] = frozenset()
) -> TreeRing:
    """The state of a ring with this role; its inputs are in the table then.

    ``ports_up`` are those to all switches above this one, of whatever tree.
    """
    inputs = len(role.inputs)
    learnt_row = inputs
    child_row = learnt_row + len(role.learns)
    parent_row = child_row + len(role.children)
    shape = Shape(inputs, parent_row + (role.parent is not None), root=role.parent is None)
    ring = TreeRing(spec, TreeArray(spec, shape), [], role=role)
    if role.parent is not None:
        ring.parent = Link(role.parent, parent_row, base_header(role.parent))
        ring.from_parent = _virtual_flow(spec, role.parent)
    barred = (ports_up if role.parent is None else ports_up | {role.parent.port}).difference(role.below or ())
    ring.children = [
        Link(child, child_row + number, base_header(child)) for number, child in enumerate(role.children)
    ]
    links = {link.connection: link for link in (*ring.children, *([ring.parent] if ring.parent else []))}
    ring.note_links = {rank: links[connection] for rank, connection in role.notes}
    rows: dict[int, int] = {}
    for row, entry in enumerate(role.inputs):
        if isinstance(entry, int):
            rows[entry] = row
            continue
        flow = _virtual_flow(spec, entry)
        flow.row, flow.link, flow.below = row, links[entry], True
        ring.flows.append(flow)
        table.put(flow)
    of_rank = [_flow(spec, flow_spec) for flow_spec in spec.flows]
    for rank, flow in enumerate(of_rank):
        flow.barred, flow.untold = barred, frozenset(role.below or ())
        ring.flows.append(flow)
        if rank in rows:
            flow.row = rows[rank]
            table.put(flow)
            if rank in role.delivers:
                ring.delivered.append(flow)
            else:
                flow.link = ring.note_links[rank]
                ring.told.append(flow)
        elif rank in role.delivers:
            flow.row, flow.learnt = learnt_row, True
            flow.openings = [None] * spec.regions
            flow.sent = ring.array.frontier
            ring.learnt[rank] = flow
            learnt_row += 1
    if ring.from_parent is not None:
        ring.flows.append(ring.from_parent)
    for rank in role.delivers:
        of_rank[rank].successor = of_rank[(rank + 1) % spec.size]
    ring.delivered.sort(key=lambda flow: flow.row)
    ring.groups = _runs_of_rows(ring.delivered)
    return ring


def _flow(spec: RingSpec, flow: FlowSpec) -> TreeFlow:
    return TreeFlow(
        flow,
        spec.ring_id,
        (1 << spec.psn_bits) - 1,
        [None] * spec.regions,
        src_mac=flow.src_mac,
        dst_mac=flow.dst_mac,
        tag=flow.outer,
    )


def _virtual_flow(spec: RingSpec, connection: VirtualConnection) -> TreeFlow:
    addresses = connection.there_mac, connection.here_mac
    return _flow(spec, FlowSpec(connection.rank, *inward(connection), *addresses))


def _runs_of_rows(flows: Sequence[TreeFlow]) -> list[tuple[slice, list[TreeFlow]]]:
    breaks = [at for at, (one, next_one) in enumerate(pairwise(flows), 1) if next_one.row != one.row + 1]
    groups = [list(flows[begin:end]) for begin, end in pairwise([0, *breaks, len(flows)])]
    return [(slice(group[0].row, group[-1].row + 1), group) for group in groups if group]
