"""Campaigns through a tree of switches, of which one is the device in question (NetReduce section 3.3).

All other switches are software cores, each a step a frame. What they and the hosts send waits on its cable,
in order; which cable is next is drawn. Weather is on all of them, and on the cables to the device somebody
forges what only switches send: notes, sums, results, in all but one thing right. No packet has a congestion
mark: the RTL does not pass them from switch to switch.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from enum import Enum
from random import Random
from typing import Final

from inaproto.core.plan.aggregation_tree import SwitchAddress, TreeSwitch, compose_roles
from inaproto.core.switch.ring_spec import RingSpec
from inaproto.units import PortId
from inaproto.wire import icrc
from inaproto.wire.ina_header import INA_HEADER_BYTES
from inaproto.wire.packet import HEADER_BYTES, decode_packet
from inaproto.wire.roce import Opcode
from inaproto.wire.tree_note import NOTE_BYTES
from inaproto_hil.rtl.equivalence.device import Output, SoftwareDevice
from inaproto_hil.rtl.equivalence.foreign import TAGS, damaged
from inaproto_hil.rtl.equivalence.rings import Host, Ring
from inaproto_hil.rtl.equivalence.steps import Arrival
from inaproto_hil.rtl.equivalence.traffic import Campaign
from inaproto_hil.rtl.parameters import Parameters

Socket = tuple[str, int]
"""A switch and its port."""

DEVICE: Final = "device"
HOST_PORTS: Final = 3
"""Ports for hosts at each switch but the device."""
QUEUED_MAX: Final = 40
"""Frames on all cables; beyond, hosts wait."""
_TOS: Final = 15
_TOLD_TOS: Final = 54 + NOTE_BYTES + _TOS
"""Traffic class of the first packet that a note tells of."""
KEPT: Final = 40
"""Latest frames between switches of which forgeries are made."""
_NOTE: Final = bytes([Opcode.RC_SEND_ONLY])
_OPENING: Final = tuple(
    bytes([opcode]) for opcode in (Opcode.RC_WRITE_FIRST, Opcode.RC_WRITE_ONLY, Opcode.RC_WRITE_ONLY_IMM)
)
_OPENED_BYTES: Final = HEADER_BYTES[Opcode.RC_WRITE_ONLY_IMM] + INA_HEADER_BYTES
"""Longer first packets have an INA header."""
_INA_ENDS: Final = (3, 4, 5, 6, 7, 11, 15, 19, 23, 25, 27, 29, 31, 39)
"""The last byte of each field of an INA header."""
_OPCODES: Final = (0x04, 0x04, 0x06, 0x07, 0x08, 0x0A, 0x0B, 0x00, 0x10)


class Seat(Enum):
    """Where in the tree the device is."""

    ROOT = "root"
    """Above switches alone."""
    INNER = "inner"
    """Between switches."""
    LEAF = "leaf"
    """Above hosts alone."""
    MIXED = "mixed"
    """Anywhere, with hosts and switches below it."""


class TreeCampaign(Campaign):
    """``frames`` frames reach the device, which is seated at ``seat``. Else see :class:`Campaign`."""

    def __init__(
        self,
        seed: int,
        limits: Parameters,
        frames: int = 2000,
        *,
        seat: Seat = Seat.ROOT,
        first_messages: bool = True,
    ) -> None:
        self._seat = seat
        self._device = limits
        self._cables: dict[Socket, Socket] = {}
        self._places: list[Socket] = []
        """Where hosts are plugged in; a host's port is an index."""
        self._sockets_used: dict[str, int] = {}
        rng = Random(f"tree/{seat.value}/{seed}")
        self._tree = self._draw_tree(rng)
        while len(self._tree.ranks) < 2:
            self._tree = self._draw_tree(rng)
        self._cable_up(self._tree)
        super().__init__(
            seed,
            replace(limits, ports=len(self._places)),
            frames,
            first_messages=first_messages,
            changes=False,
        )
        self._rng = rng
        self._switches = {
            switch.name: SoftwareDevice(replace(limits, ports=max(2, self._sockets_used[switch.name])))
            for switch in self._tree.walk()
            if switch.name != DEVICE
        }
        ring = self._rings[0]
        for sender in ring.senders:
            sender.may_be_marked = False
        specs = self._specs_of(ring)
        for name, device in self._switches.items():
            refusal = device.install(specs[name])
            assert refusal is None, refusal
        self.specs = (specs[DEVICE],)
        self._queues: dict[Socket, deque[bytes]] = {}
        self._later: list[tuple[int, int, Socket, bytes]] = []
        self._kept: deque[Arrival] = deque(maxlen=KEPT)

    # ---- the tree

    def _draw_tree(self, rng: Random) -> TreeSwitch:
        limits, seat = self._device, self._seat
        widest = min(limits.children, limits.ports)
        ranks = limits.trees
        names = iter("abcdefghijklmnop")

        def leaf(size: int, name: str = "") -> TreeSwitch:
            nonlocal ranks
            ranks -= size
            return TreeSwitch(name or next(names), tuple(range(size)))

        def some(count: int) -> list[TreeSwitch | int]:
            """So many switches below, most of them leaves."""
            found: list[TreeSwitch | int] = []
            for left in range(count, 0, -1):
                room = ranks - left
                if room >= 2 and rng.random() < 0.2:
                    found.append(TreeSwitch(next(names), (leaf(1), leaf(rng.randint(1, min(2, room - 1))))))
                else:
                    found.append(leaf(rng.randint(1, max(1, min(2, room)))))
            return found

        if seat is Seat.ROOT:
            tree = TreeSwitch(DEVICE, tuple(some(rng.randint(2, widest))))
        elif seat is Seat.INNER:
            device = TreeSwitch(DEVICE, tuple(some(rng.randint(1, min(limits.children, limits.ports - 1)))))
            tree = TreeSwitch("top", (device, leaf(1)) if rng.random() < 0.7 else (device,))
        elif seat is Seat.MIXED:
            is_root = rng.random() < 0.5
            below = rng.randint(1, min(limits.children - 1, limits.ports - 1 - (not is_root)))
            own = rng.randint(1, min(limits.children - below, 2))
            ranks -= own + (not is_root)
            device = TreeSwitch(DEVICE, tuple(rng.sample([*range(own), *some(below)], own + below)))
            tree = device
            if not is_root:
                beside: TreeSwitch | int = TreeSwitch(next(names), (0,)) if rng.random() < 0.5 else 0
                tree = TreeSwitch("top", (device, beside))
        else:
            device = leaf(rng.randint(1, min(limits.children, ranks - 1)), DEVICE)
            tree = TreeSwitch("top", (*rng.sample([device, *some(1)], 2),))
            if rng.random() < 0.2:
                tree = TreeSwitch("over", (tree, leaf(1))) if ranks else tree
        numbers = list(range(len(tree.ranks)))
        rng.shuffle(numbers)
        return _numbered(tree, iter(numbers))

    def _cable_up(self, switch: TreeSwitch) -> None:
        """Ports: first those to the switches below, then the one up, then hosts'."""
        for child in switch.children:
            if isinstance(child, TreeSwitch):
                below, above = self._socket(child.name), self._socket(switch.name)
                self._cables[below], self._cables[above] = above, below
                self._cable_up(child)
        ports = (
            self._device.ports - self._sockets_used.get(DEVICE, 0) if switch.name == DEVICE else HOST_PORTS
        )
        self._places += [self._socket(switch.name) for _ in range(ports)]

    def _socket(self, name: str) -> Socket:
        port = self._sockets_used.get(name, 0)
        self._sockets_used[name] = port + 1
        return name, port

    def _specs_of(self, ring: Ring) -> dict[str, RingSpec]:
        toward: dict[str, dict[str, PortId]] = {}
        for (name, port), (peer, _) in self._cables.items():
            toward.setdefault(name, {})[peer] = PortId(port)
        names = [switch.name for switch in self._tree.walk()]
        addresses = {
            name: SwitchAddress(b"\x02\x33\0\0\0" + bytes([at]), b"\x0a\x33\0" + bytes([at]))
            for at, name in enumerate(names)
        }
        roles = compose_roles(self._tree, ring_id=ring.spec.ring_id, addresses=addresses, port_toward=toward)
        flows = tuple(
            replace(
                flow,
                src_mac=ring.hosts[flow.rank].mac,
                dst_mac=ring.hosts[(flow.rank + 1) % ring.spec.size].mac,
            )
            for flow in ring.spec.flows
        )
        return {name: replace(ring.spec, flows=flows, role=role) for name, role in roles.items()}

    def _draw_rings(self) -> Iterator[Ring]:
        yield next(super()._draw_rings())

    def _draw_hosts(self, size: int, known: list[Host]) -> list[Host]:
        """Each rank at its switch."""
        at = {
            child: switch.name
            for switch in self._tree.walk()
            for child in switch.children
            if isinstance(child, int)
        }
        places: dict[str, list[int]] = {}
        for place, (name, _) in enumerate(self._places):
            places.setdefault(name, []).append(place)
        return [self._new_host(self._rng.choice(places[at[rank]])) for rank in range(len(at))]

    # ---- frames

    def arrivals(self) -> Iterator[Arrival]:
        for step in range(self.frames):
            self._step = step
            yield self._reaches_the_device()

    def heard(self, out: Output) -> None:
        self._spread(DEVICE, out)

    def _reaches_the_device(self) -> Arrival:
        rng = self._rng
        while True:
            if rng.random() < self.weather.forged / 2 and self._kept:
                return self._forged_between_switches()
            while self._later and self._later[0][0] <= self._step:
                _, _, to, frame = heapq.heappop(self._later)
                self._queues.setdefault(to, deque()).append(frame)
            waiting = sum(map(len, self._queues.values()))
            if (waiting < QUEUED_MAX and rng.random() < 0.3) or not waiting:
                place, frame = self._next()
                self._queues.setdefault(self._places[place], deque()).append(frame)
                continue
            to = rng.choice([socket for socket, queue in self._queues.items() if queue])
            frame = self._queues[to].popleft()
            name, port = to
            if name == DEVICE:
                if to in self._cables:
                    self._kept.append((port, frame))
                return port, frame
            self._spread(name, self._switches[name].frame(port, frame))

    def _damaged(self, frame: bytes) -> bytes:
        """A congestion mark is no damage that the RTL's trees pass on."""
        harmed = damaged(self._rng, frame)
        return frame if harmed[_TOS : _TOS + 1] and harmed[_TOS] & 3 == 3 != frame[_TOS] & 3 else harmed

    def _spread(self, name: str, out: Output) -> None:
        """What a switch sent is on its cables now, or there."""
        rng, weather = self._rng, self.weather
        for port, frame in out:
            to = self._cables.get((name, port))
            if to is None:
                if (name, port) in self._places:
                    super().heard([(self._places.index((name, port)), frame)])
                continue
            if rng.random() < weather.lost / 2:
                continue
            if rng.random() < weather.damaged / 2:
                frame = self._damaged(frame)
            for chance, goes_on in ((weather.twice / 2, True), (weather.late / 2, False)):
                if rng.random() < chance:
                    until = self._step + rng.choice([1, 2, 5, 40])
                    heapq.heappush(self._later, (until, rng.getrandbits(30), to, frame))
                    if not goes_on:
                        break
            else:
                self._queues.setdefault(to, deque()).append(frame)

    def _forged_between_switches(self) -> Arrival:
        """What came from a switch of late: again, from elsewhere, or with another byte and a right ICRC."""
        rng = self._rng
        port, frame = rng.choice(self._kept)
        kinds = ["again", "port", "byte", "byte", "byte", "opcode", "psn", "pair", "source"]
        if self._step < self.frames // 2:  # they stop the ring where they come for a sum
            kinds = ["again", "port", "note", "note", "pair", "source"]
        role = self.specs[0].role
        if role is not None and role.parent is not None and port == role.parent.port:
            kinds += ["psn", "psn", "psn", "opcode", "ina", "ina", "ina"]  # what is no result is refused
            if rng.random() < 0.7:  # close to what is not complete yet
                frame = next(late for at, late in reversed(self._kept) if at == port)
        kind, made = rng.choice(kinds), bytearray(frame)
        is_note, opens = frame[42:43] == _NOTE, frame[42:43] in _OPENING and len(frame) > _OPENED_BYTES
        if decode_packet(frame) is None or (kind == "note" and not is_note) or (kind == "ina" and not opens):
            kind = "again"
        if kind == "port":
            port = rng.randrange(self._device.ports)
        elif kind in ("byte", "note"):
            at = rng.randrange(54, min(len(made), 54 + 56))
            at -= at == _TOLD_TOS
            made[at] ^= rng.choice([1, 2, 0x80, 0xFF])
        elif kind == "ina":
            made[HEADER_BYTES[frame[42]] + rng.choice(_INA_ENDS)] ^= rng.choice([1, 2, 0x80])
        elif kind == "opcode":
            made[42] = rng.choice(_OPCODES)
        elif kind == "psn":
            psn = int.from_bytes(made[51:54], "big") + rng.choice([-40, -3, -1, 1, 1, 2, 3, 40, 1 << 20])
            made[51:54] = (psn & 0xFF_FFFF).to_bytes(3, "big")
        elif kind == "pair":
            made[rng.choice([47, 49])] ^= 1 << rng.randrange(8)
        elif kind == "source":
            made[rng.choice([6, 11])] ^= 2
        if kind not in ("again", "port"):
            icrc.seal(made)
        return (port, frame) if bytes(made[12:14]) in TAGS else (port, bytes(made))


def _numbered(switch: TreeSwitch, numbers: Iterator[int]) -> TreeSwitch:
    """The same tree with these ranks."""
    children = tuple(
        _numbered(child, numbers) if isinstance(child, TreeSwitch) else next(numbers)
        for child in switch.children
    )
    return TreeSwitch(switch.name, children)
