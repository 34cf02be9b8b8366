"""What an accelerator must be told of a ring before it sums for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from inaproto.errors import LocalMisuse
from inaproto.units import PSN_BITS
from inaproto.wire.messages.switch import PoolSpec, Role
from inaproto.wire.outer import outer_of, short_ip

NO_TURN: Final = -1
"""Epoch of a ring of a pool while it is not its turn."""


SHARED_POOL: Final = "shared"
"""The pool of all jobs on the path ``shared``, at every switch of their trees."""


@dataclass(frozen=True, slots=True)
class FlowSpec:
    """The connection on which ``rank`` sends to its successor, as its packets show it.

    ``src_ip`` and ``dst_ip`` are 4 bytes each, or 16; ``dst_qp`` is the successor's receiving queue pair.
    ``src_mac`` and ``dst_mac`` are the Ethernet addresses of the NICs, 6 bytes each; both empty: not known.
    """

    rank: int
    src_ip: bytes
    dst_ip: bytes
    dst_qp: int
    src_mac: bytes = b""
    dst_mac: bytes = b""
    src_qp: int = 0
    """The rank's own queue pair, where its NIC may be told what has come to the switch; 0: it may not."""

    outer: bytes = b""
    """Outer part of a connection over IPv6 whose addresses are in their short form: it has them in full
    (:mod:`inaproto.wire.outer`)."""

    def shortened(self) -> FlowSpec:
        """With addresses as they are inside a switch, and in its packets in plain form."""
        src, dst = self.src_ip, self.dst_ip
        if len(src) == len(short_ip(src)):
            return self
        return replace(self, src_ip=short_ip(src), dst_ip=short_ip(dst), outer=outer_of(src, dst))

    @property
    def connection(self) -> tuple[bytes, bytes, int]:
        """Key of the connection lookup table (NetReduce section 3.2)."""
        return (self.src_ip, self.dst_ip, self.dst_qp)

    @property
    def addresses(self) -> bytes:
        """Ethernet addresses, as a frame begins: 12 bytes, or none."""
        return self.dst_mac + self.src_mac


@dataclass(frozen=True, slots=True)
class RingSpec:
    """A ring of ``len(flows)`` ranks; flow ``i`` is that of rank ``i``.

    Raises ``LocalMisuse`` for what no ring can be: fewer than two ranks, ranks out of order, a window
    that is no power of two (``msg_id mod 2N`` must survive the wrap of ``msg_id``), or a window that
    does not fit in half the PSN space.
    """

    ring_id: int
    epoch: int
    key: int
    window_messages: int
    message_packets: int
    mtu: int
    flows: tuple[FlowSpec, ...]
    psn_bits: int = PSN_BITS
    msg_id_bits: int = 32
    role: Role | None = None
    """What this switch does for a ring that spans several; None: it alone does all."""
    pool: PoolSpec | None = None
    """None: slots of its own. Else ``epoch`` is not that of INA headers, which is the number of the turn."""
    first_message: int = 0
    """Messages that its ranks have ended with, elsewhere: the next one opens first, older ones are stale."""
    job: str = ""
    """Job whose ring it is, for who lends slots to jobs (:mod:`inaproto.core.migration.ledger`); empty:
    nobody said."""
    selective: bool = False
    """All its NICs keep what comes behind a gap: if one switch does all, results leave as they are done."""

    def __post_init__(self) -> None:
        if len(self.flows) < 2:
            raise LocalMisuse(f"ring {self.ring_id} has {len(self.flows)} ranks; a ring needs at least 2")
        if [flow.rank for flow in self.flows] != list(range(len(self.flows))):
            raise LocalMisuse(f"ring {self.ring_id}: flows must be those of ranks 0, 1, 2, ... in order")
        if len({flow.connection for flow in self.flows}) != len(self.flows):
            raise LocalMisuse(f"ring {self.ring_id}: two ranks share one connection")
        if {(len(flow.src_mac), len(flow.dst_mac)) for flow in self.flows} not in ({(6, 6)}, {(0, 0)}):
            raise LocalMisuse(f"ring {self.ring_id}: Ethernet addresses of all ranks are known, or of none")
        if len({len(ip) for flow in self.flows for ip in (flow.src_ip, flow.dst_ip)}) != 1:
            raise LocalMisuse(f"ring {self.ring_id}: some hosts have IPv4 addresses, some IPv6")
        window = self.window_messages
        if window < 1 or window & (window - 1):
            raise LocalMisuse(f"ring {self.ring_id}: window of {window} messages is no power of two")
        if not 1 <= self.message_packets < 1 << 16:
            raise LocalMisuse(f"ring {self.ring_id}: {self.message_packets} packets a message")
        if self.mtu < 64 or self.mtu % 8:
            raise LocalMisuse(f"ring {self.ring_id}: MTU {self.mtu} is below 64 or no multiple of 8")
        if self.first_message < 0:
            raise LocalMisuse(f"ring {self.ring_id} begins with message {self.first_message}")
        if 2 * window * self.message_packets > 1 << (self.psn_bits - 1):
            raise LocalMisuse(
                f"ring {self.ring_id}: 2 x {window} messages of {self.message_packets} packets "
                f"do not fit in half of a {self.psn_bits}-bit PSN space"
            )
        if 2 * window >= 1 << (self.msg_id_bits - 1):
            raise LocalMisuse(f"ring {self.ring_id}: message ids of {self.msg_id_bits} bits are too narrow")
        if self.role is not None:
            self._check_role(self.role)

    def _check_role(self, role: Role) -> None:
        named = {*role.ranks, *role.delivers, *role.steered, *(rank for rank, _ in role.notes)}
        if not named <= set(range(self.size)):
            raise LocalMisuse(f"ring {self.ring_id} has {self.size} ranks, its role names {sorted(named)}")
        if len(set(role.ranks)) != len(role.ranks) or len(set(role.children)) != len(role.children):
            raise LocalMisuse(f"ring {self.ring_id}: an input twice")
        if not self.flows[0].addresses:  # where a connection ends, no packet of its sender comes by
            raise LocalMisuse(
                f"ring {self.ring_id} spans several switches: the Ethernet addresses of its ranks are missing"
            )
        if role.inputs and role.steered:
            raise LocalMisuse(
                f"ring {self.ring_id}: a switch sums for a ring or steers its packets, not both"
            )
        if not role.inputs and (role.steer_to is None or role.parent or role.delivers or role.notes):
            raise LocalMisuse(
                f"ring {self.ring_id}: a switch without inputs steers, to a port, and does no more"
            )
        known = {rank for rank, _ in role.notes}
        silent = [rank for rank in role.ranks if rank not in role.delivers and rank not in known]
        if silent:
            raise LocalMisuse(
                f"ring {self.ring_id}: the connection of rank {silent[0]} ends elsewhere, and no note says so"
            )
        beside = [*role.children, role.parent]
        lost = [(rank, link) for rank, link in role.notes if link not in beside]
        if lost:
            rank, link = lost[0]
            raise LocalMisuse(
                f"ring {self.ring_id}: notes of rank {rank} go to {link.peer}, which is not next to this "
                "switch in its tree"
            )

    def shortened(self) -> RingSpec | None:
        """With IPv6 addresses in their short form; None where two connections would be one then."""
        flows = tuple(flow.shortened() for flow in self.flows)
        if flows == self.flows:
            return self
        if len({flow.connection for flow in flows}) != len(flows):
            return None
        return replace(self, flows=flows)

    @property
    def size(self) -> int:
        return len(self.flows)

    @property
    def regions(self) -> int:
        """Messages that the aggregator array holds: twice the window (NetReduce section 3.1)."""
        return 2 * self.window_messages
