"""What passes on each link of a simulated tree of switches, and what the tree's arithmetic says must.

A ring's operation of P packets puts P packets on the link of each of its hosts, and P on each link of its
tree, in each direction: one copy up, one down (NetReduce section 3.3). Packets that are sent again are
counted apart, by connection and PSN on each link; so are the notes of switches, ACKs, and what hosts and
switches announce when they come up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from inaproto.faults.announcement import is_announcement
from inaproto.sim.frames.draw.topology import Topology
from inaproto.sim.frames.notes import note_kind
from inaproto.units import Frames
from inaproto.wire.ina_header import INA_HEADER_BYTES
from inaproto.wire.roce import Opcode

_OPCODE_AT: Final = 42
_FLAGS_AT: Final = 43
_BEHIND_BTH: Final = 54
_ICRC_BYTES: Final = 4
_WRITES: Final = {
    Opcode.RC_WRITE_FIRST: 16,
    Opcode.RC_WRITE_MIDDLE: 0,
    Opcode.RC_WRITE_LAST: 0,
    Opcode.RC_WRITE_LAST_IMM: 4,
    Opcode.RC_WRITE_ONLY: 16,
    Opcode.RC_WRITE_ONLY_IMM: 20,
}
"""Bytes of the headers between BTH and payload."""


@dataclass(slots=True)
class Count:
    frames: int = 0
    payload_bytes: int = 0

    def add(self, payload_bytes: int) -> None:
        self.frames += 1
        self.payload_bytes += payload_bytes


@dataclass(slots=True)
class Direction:
    """What one direction of a link was given to carry."""

    first: Count = field(default_factory=Count)
    """Packets of messages, each the first time that it passes here."""
    again: Count = field(default_factory=Count)
    """The same, any further time."""
    notes: Count = field(default_factory=Count)
    """Between switches, of connections across racks."""
    acks: int = 0
    announcements: int = 0
    other: int = 0
    seen: set[bytes] = field(default_factory=set)

    def see(self, frame: bytes) -> None:
        opcode = frame[_OPCODE_AT]
        if is_announcement(frame):
            self.announcements += 1
        elif opcode == Opcode.RC_ACK:
            self.acks += 1
        elif opcode in _WRITES:
            pad = frame[_FLAGS_AT] >> 4 & 3
            nbytes = len(frame) - _BEHIND_BTH - _WRITES[Opcode(opcode)] - pad - _ICRC_BYTES
            packet = frame[26:34] + frame[47:50] + frame[51:54]
            (self.again if packet in self.seen else self.first).add(nbytes)
            self.seen.add(packet)
        elif note_kind(frame) is not None:
            self.notes.add(len(frame) - _BEHIND_BTH - _ICRC_BYTES)
        else:
            self.other += 1

    def as_dict(self) -> dict[str, Any]:
        return {
            "first": asdict(self.first),
            "again": asdict(self.again),
            "notes": asdict(self.notes),
            "acks": self.acks,
            "announcements": self.announcements,
            "other": self.other,
        }


class LinkTraffic:
    """Traffic of all link directions, by name (``host0>leaf1``)."""

    def __init__(self) -> None:
        self.directions: dict[str, Direction] = {}

    def see(self, link: str, frame: Frames) -> None:
        """One frame that a link was given."""
        self.directions.setdefault(link, Direction()).see(frame.tobytes())


@dataclass(frozen=True, slots=True)
class Volume:
    """What one rank sends in an operation, or in several."""

    packets: int
    payload_bytes: int
    messages: int
    openings: int
    """Notes that tell the next rank's switch of its messages: of one packet once, of more twice (7.8.4)."""

    @classmethod
    def of(cls, nbytes: int, *, mtu: int, message_packets: int) -> Volume:
        """An operation of ``nbytes``: messages of so many packets at most, with a header in each."""
        room = message_packets * mtu - INA_HEADER_BYTES
        messages = -(-nbytes // room)
        last = nbytes - (messages - 1) * room + INA_HEADER_BYTES
        last_packets = -(-last // mtu)
        packets = (messages - 1) * message_packets + last_packets
        openings = (messages - 1) * min(2, message_packets) + min(2, last_packets)
        return cls(packets, nbytes + messages * INA_HEADER_BYTES, messages, openings)

    def times(self, count: int) -> Volume:
        return Volume(
            self.packets * count, self.payload_bytes * count, self.messages * count, self.openings * count
        )


@dataclass(frozen=True, slots=True)
class Expected:
    """Expected traffic of one direction of a link."""

    frames: int = 0
    payload_bytes: int = 0
    notes: int = 0
    """If nothing is sent again."""


def arithmetic(
    topology: Topology, hosts: Sequence[int], volume: Volume
) -> dict[str, tuple[Expected, Expected]]:
    """Upward and downward, of each link, by the names of its ends from below (``leaf1>spine``).

    All switches aggregate. The job's rank ``r`` is on ``hosts[r]``.
    """
    names = [switch.name for switch in topology.switches]
    paths = [topology.path_up(topology.attached[host]) for host in hosts]
    root = next(switch for switch in paths[0] if all(switch in path for path in paths))
    one = Expected(volume.packets, volume.payload_bytes)
    found = {}
    for number, at in enumerate(topology.attached):
        carries = one if number in hosts else Expected()
        found[f"host{number}>{names[at]}"] = carries, carries
    for number, switch in enumerate(topology.switches):
        if switch.above < 0:
            continue
        below = [number in path for path in paths]
        is_in_tree = any(below) and number not in topology.path_up(root)
        begins = [here and not then for here, then in zip(below, [*below[1:], below[0]], strict=True)]
        ends = [then and not here for here, then in zip(below, [*below[1:], below[0]], strict=True)]
        up, down = (
            Expected(one.frames, one.payload_bytes, sum(crossing) * volume.openings)
            if is_in_tree
            else Expected()
            for crossing in (begins, ends)
        )
        found[f"{switch.name}>{names[switch.above]}"] = up, down
    return found


def compare(
    traffic: LinkTraffic, expected: dict[str, tuple[Expected, Expected]]
) -> tuple[list[dict[str, Any]], bool]:
    """One record for each link, JSON-ready, and whether first copies are what the tree's arithmetic says."""
    records = []
    for name, (up, down) in expected.items():
        below, _, above = name.partition(">")
        record: dict[str, Any] = {"link": name}
        is_right = True
        for key, direction, wanted in (
            ("up", f"{below}>{above}", up),
            ("down", f"{above}>{below}", down),
        ):
            seen = traffic.directions.get(direction, Direction())
            matches = seen.first == Count(wanted.frames, wanted.payload_bytes)
            record[key] = seen.as_dict() | {"expected": asdict(wanted), "ok": matches}
            is_right = is_right and matches
        records.append(record | {"ok": is_right})
    return records, all(record["ok"] for record in records)
