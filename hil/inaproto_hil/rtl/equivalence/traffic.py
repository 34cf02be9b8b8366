"""Seeded campaigns: rings of go-back-N senders in bad weather, forgeries, and all else that a switch sees.

A campaign draws rings, hosts and weather from its seed, and makes one frame after the other. It is told what
the golden device sent, so its hosts know which results there are (NetReduce section 3.2: a message may begin
once the results of the one a window before it have come). So a campaign is a function of its seed and of what
the golden device does, and both devices get the same frames. Rings come and go amid them, and ports go
down, where nothing comes then (``changes``).

What a campaign keeps from:

- frames with a VLAN tag, packets with IP options that are whole otherwise, and damage that makes one;
- 64-bit elements, which the RTL does not add up;
- packets of a ring with Ethernet padding, or whose length is not 2 mod 4, unless they were damaged;
- frames longer than Ethernet's 1,514 bytes.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Final

from inaproto.wire import icrc
from inaproto.wire.ethernet import BROADCAST
from inaproto.wire.ina_header import FLAG_LAST, FLAG_RESULT, INA_HEADER_BYTES, InaHeader
from inaproto.wire.roce import SYNDROME_ACK, SYNDROME_NAK, SYNDROME_RNR, Opcode
from inaproto_hil.rtl.equivalence.changes import Changes
from inaproto_hil.rtl.equivalence.device import REPLAY_FILL_PACKETS_MAX, Output
from inaproto_hil.rtl.equivalence.foreign import Foreign, damaged, disfigured
from inaproto_hil.rtl.equivalence.rings import DTYPES, OPENING, Host, Message, Ring, Sender
from inaproto_hil.rtl.equivalence.steps import Arrival, Step
from inaproto_hil.rtl.parameters import Parameters

WINDOWS: Final = (1, 2, 4)
LENGTHS: Final = (1, 2, 3, 5, 8)
MTUS: Final = (64, 128, 256)
WRITES: Final = tuple(range(Opcode.RC_WRITE_FIRST, Opcode.RC_WRITE_ONLY_IMM + 1))
PATIENCE: Final = 12
"""Turns without a new result after which a sender's timer expires."""
GONE_SHARE: Final = 0.2
"""What ranks of a ring that went send, of what they sent before."""
ROUTERS: Final = tuple(b"\x02\x55\0\0\0" + bytes([number]) for number in range(7))
"""More Ethernet addresses than a flow remembers."""


@dataclass(frozen=True, slots=True)
class Weather:
    """Probabilities: the first ones a packet, the last ones a turn."""

    lost: float
    twice: float
    late: float
    damaged: float
    back: float
    result_lost: float
    rerouted: float
    stale: float
    forged: float
    answer: float
    foreign: float

    @classmethod
    def draw(cls, rng: Random) -> Weather:
        strength = rng.choice([0.0, 0.02, 0.1, 0.2])
        return cls(
            lost=strength * rng.random(),
            twice=strength * rng.random(),
            late=strength * rng.random(),
            damaged=strength * rng.random(),
            back=strength * rng.random(),
            result_lost=strength * rng.random(),
            rerouted=rng.choice([0.0, 0.003, 0.003, 0.1]),
            stale=rng.choice([0.0, 0.01, 0.06]),
            forged=rng.choice([0.0, 0.03, 0.12]),
            answer=rng.choice([0.0, 0.05, 0.15]),
            foreign=rng.choice([0.0, 0.05, 0.25]),
        )


class Campaign:
    """``frames`` frames of ``seed`` for a device of ``limits``. ``heard`` is told what left because of each.

    ``first_messages``: some rings begin with a message that is not their first, close to the end of message
    numbers sometimes. ``changes``: rings come and go, and ports go down; what comes there then is
    lost, so there are fewer frames.
    """

    def __init__(
        self,
        seed: int,
        limits: Parameters | None = None,
        frames: int = 2000,
        *,
        first_messages: bool = True,
        changes: bool = True,
    ) -> None:
        self.seed = seed
        self.frames = frames
        self._limits = limits or Parameters()
        self._rng = rng = Random(f"equivalence/{seed}")
        self._hosts = 0
        self._first_messages = first_messages
        self._rings: list[Ring] = []
        """All that there were."""
        self._senders: list[Sender] = []
        self._weights: list[float] = []
        self._receiving: dict[bytes, Sender] = {}
        for ring in self._draw_rings():
            self._add(ring)
        self.specs = tuple(ring.spec for ring in self._rings)
        strangers = [self._new_host(rng.randrange(self._limits.ports)) for _ in range(rng.choice([1, 4, 24]))]
        self._foreign = Foreign(rng, self._rings, strangers)
        self.weather = Weather.draw(rng)
        w = self.weather
        others = [w.stale, w.forged, w.answer, w.foreign]
        makers = [self._stale, self._forged, self._answer, self._foreign.draw, self._next_of_ring]
        self._turns: list[tuple[float, Callable[[], Arrival | None]]] = []
        total = 0.0
        for weight, maker in zip([*others, 1 - sum(others)], makers, strict=True):
            total += weight
            self._turns.append((total, maker))
        self._step = 0
        self._late: list[tuple[int, int, Arrival]] = []
        """What comes when, and in what order at once."""
        self._asked: list[tuple[Sender, int]] = []
        """NAKs that wait to be sent: where each asks its sender to go back to."""
        self._burst: tuple[Sender, int] | None = None
        quarrels = range(int(0.6 * frames), frames) if rng.random() < 0.5 else ()
        self._quarrels = sorted(rng.sample(quarrels, min(6, len(quarrels))), reverse=True)
        self._quarrelsome = rng.choice(self._rings).senders
        self._changes = Changes(seed, self._limits, frames, self._rings, self._draw_ring) if changes else None

    def __iter__(self) -> Iterator[Step]:
        for step, arrival in enumerate(self.arrivals()):
            while self._changes is not None and self._changes.due(step):
                order, ring = self._changes.next(step)
                if ring is not None:
                    self._add(ring)
                yield order
            if self._changes is None or arrival[0] in self._changes.up:
                yield arrival

    def arrivals(self) -> Iterator[Arrival]:
        """The frames alone: for a device whose rings stay."""
        for step in range(self.frames):
            self._step = step
            yield self._next()

    def heard(self, out: Output) -> None:
        for port, frame in out:
            sender = self._receiving.get(frame[26:34] + frame[47:50])
            if sender is None or frame[42] not in WRITES or frame[12:14] != b"\x08\x00":
                continue
            if port != sender.receiver.port and not sender.by_way_of:
                continue
            if self._rng.random() >= self.weather.result_lost:
                missing = sender.receive(int.from_bytes(frame[51:54], "big"))
                if missing is not None:
                    self._asked.append((sender, missing))

    # ---- sizes

    def _draw_rings(self) -> Iterator[Ring]:
        slots = self._limits.slots
        for number in range(self._rng.randint(1, min(2, self._limits.rings))):
            if slots < 2:
                break
            ring = self._draw_ring(number, slots)
            slots -= ring.spec.regions * ring.spec.message_packets
            yield ring

    def _draw_ring(self, number: int, slots: int, before: Ring | None = None) -> Ring:
        """A ring that ``slots`` are enough for; on the connections of the one ``before``."""
        rng, limits = self._rng, self._limits
        shapes = [(n, m) for n in WINDOWS for m in LENGTHS if n <= limits.window and 2 * n * m <= slots]
        window, length = rng.choice([*shapes, shapes[-1], shapes[-1]])
        mtu = rng.choice([mtu for mtu in MTUS if mtu <= limits.mtu])
        first = rng.choice([0, 0, 0, 7, 0xFFFF_FFFD]) if self._first_messages else 0
        known = [host for ring in self._rings for host in ring.hosts]
        hosts = self._draw_hosts(rng.randint(2, limits.children), known) if before is None else before.hosts
        return Ring(rng, number, hosts, (window, length, mtu), first)

    def _add(self, ring: Ring) -> None:
        self._rings.append(ring)
        self._senders += ring.senders
        self._weights += [1.0] * len(ring.senders)
        self._receiving |= {_key(*sender.connection): sender for sender in ring.senders}

    def _draw_hosts(self, size: int, known: list[Host]) -> list[Host]:
        """One for each rank, at another port than the one before: no result leaves where it is from.

        Rarely two are at one port, and that ring comes to a stop.
        """
        rng, ports = self._rng, self._limits.ports
        hosts: list[Host] = []
        for rank in range(size):
            beside = {hosts[-1].port} if hosts else set()
            if rank == size - 1:
                beside.add(hosts[0].port)
            free = [port for port in range(ports) if port not in beside] or list(range(ports))
            port = rng.choice(free) if rng.random() < 0.99 else rng.randrange(ports)
            there = [host for host in known if host.port == port and host not in hosts]
            hosts.append(rng.choice(there) if there and rng.random() < 0.5 else self._new_host(port))
        return hosts

    def _new_host(self, port: int) -> Host:
        self._hosts += 1
        number = self._hosts.to_bytes(2, "big")
        return Host(port, b"\x02\0\0\0" + number, b"\x0a\0" + number)

    # ---- turns

    def _next(self) -> Arrival:
        rng = self._rng
        if self._late and self._late[0][0] <= self._step:
            return heapq.heappop(self._late)[2]
        if self._step % 40 == 0:  # some ranks are slow for a while
            self._weights = [
                rng.choice([1.0, 1.0, 0.1, 0.02]) * (GONE_SHARE if sender.ring.is_gone else 1.0)
                for sender in self._senders
            ]
        for _ in range(60):
            if self._quarrels and self._step >= self._quarrels[-1]:
                self._quarrels.pop()
                arrival = self._quarrel()
            else:
                drawn = rng.random()
                arrival = next((maker for share, maker in self._turns if drawn < share), self._next_of_ring)()
            if arrival is not None:
                arrival = self._on_its_way(arrival)
            if arrival is not None:
                return arrival
        return self._foreign.draw()

    def _damaged(self, frame: bytes) -> bytes:
        return damaged(self._rng, frame)

    def _on_its_way(self, arrival: Arrival) -> Arrival | None:
        """What comes of it now."""
        rng, weather = self._rng, self.weather
        port, frame = arrival
        if rng.random() < weather.lost:
            return None
        if rng.random() < weather.damaged:
            arrival = port, self._damaged(frame)
        if rng.random() < weather.twice:
            self._put_off(arrival)
        if rng.random() < weather.late:
            self._put_off(arrival)
            return None
        return arrival

    def _put_off(self, arrival: Arrival) -> None:
        until = self._step + self._rng.choice([1, 2, 3, 8, 60])
        heapq.heappush(self._late, (until, self._rng.getrandbits(30), arrival))

    def _pick(self) -> Sender:
        return self._rng.choices(self._senders, self._weights)[0]

    def _next_of_ring(self) -> Arrival | None:
        """The next packet of some rank, or of the one whose turn it was; now and then it goes back before."""
        rng = self._rng
        if self._burst is None:
            self._burst = self._pick(), rng.choice([1, 1, 1, 2, 5, 12])
        sender, left = self._burst
        self._burst = (sender, left - 1) if left > 1 else None
        sender.idle += 1
        if rng.random() < self.weather.back and sender.high:
            spec, message = sender.ring.spec, sender.message(sender.next)
            first = max(spec.first_message, message.serial - spec.window_messages)
            low = max(0, sender.next - rng.randint(1, 4))
            low = sender.ring.at(first).begin if rng.random() < 0.4 else low
            sender.next = rng.randint(low, max(low, sender.next))
        elif sender.idle > PATIENCE:
            sender.idle = 0  # its timer has expired
            at = min(sender.expected, sender.next)
            sender.next = sender.message(at).begin if rng.random() < 0.3 else at
        if rng.random() < self.weather.rerouted:
            to = rng.choice([sender.receiver.mac, sender.receiver.mac, rng.choice(ROUTERS)])
            sender.by_way_of = rng.choice([b"", to + rng.choice(ROUTERS)])
        if not sender.may_send():
            self._burst = None
            return None
        index = sender.next
        sender.next += 1
        is_resend, sender.high = index < sender.high, max(sender.high, sender.next)
        if is_resend and rng.random() < 0.1:
            return sender.host.port, sender.frame(index, payload=self._reused(sender, index))
        return sender.host.port, sender.frame(index)

    def _reused(self, sender: Sender, index: int) -> bytes:
        """The packet's payload after its sender has reused the buffer: of a result that it has already."""
        message = sender.message(index)
        at = (index - message.begin) * sender.ring.spec.mtu
        payload = bytearray(message.bodies[sender.rank][at : at + sender.ring.spec.mtu])
        keep = INA_HEADER_BYTES if index == message.begin else 0
        payload[keep:] = self._rng.randbytes(len(payload) - keep)
        return bytes(payload)

    def _stale(self) -> Arrival | None:
        """An old packet comes late: of a message that is two windows back, or of any."""
        rng, sender = self._rng, self._rng.choice(self._senders)
        spec = sender.ring.spec
        if not sender.high:
            return None
        index = rng.randrange(sender.high)
        newest = max(other.high for other in sender.ring.senders)
        serial = sender.message(newest).serial - 2 * spec.window_messages - rng.choice([0, 0, 1, 2])
        if rng.random() < 0.25 and sender.next > REPLAY_FILL_PACKETS_MAX + 3:
            # What was left out, when the next one comes, is just short enough to be filled, or just too long.
            index = sender.next - REPLAY_FILL_PACKETS_MAX - rng.choice([0, 1, 1, 2, 3])
        elif rng.random() < 0.7 and serial >= spec.first_message:
            message = sender.ring.at(serial)
            index = min(sender.high - 1, rng.randrange(message.begin, message.end))
        return sender.host.port, sender.frame(index)

    def _answer(self) -> Arrival | None:
        rng = self._rng
        if self._asked:
            sender, index = self._asked.pop()
            sender.next = min(sender.next, index)
            return sender.answer(sender.psn0 + index, SYNDROME_NAK)
        sender = rng.choice(self._senders)
        syndrome = rng.choice([SYNDROME_ACK, SYNDROME_ACK, SYNDROME_NAK, SYNDROME_RNR | 3])
        backwards = rng.random() < 0.2
        return sender.answer(sender.psn0 + sender.expected - 1, syndrome, backwards=backwards)

    # ---- forgeries: right in all but one thing

    def _forged(self) -> Arrival | None:
        rng = self._rng
        kinds = (
            *(self._wrong_header, self._wrong_header, self._wrong_header, self._too_far, self._too_old),
            *(self._another_psn, self._elsewhere, self._elsewhere, self._send, self._disfigured),
            *(self._lost_place, self._as_result),
        )
        return rng.choice(kinds)(self._pick())

    def _header_of(self, sender: Sender, message: Message, **wrong: int) -> Arrival:
        """The first packet of a message, with other values in its INA header."""
        body = bytearray(message.bodies[sender.rank])
        for name, value in wrong.items():
            at, size = _INA_FIELDS[name]
            body[at : at + size] = (value % (1 << 8 * size)).to_bytes(size, "big")
        return sender.host.port, sender.frame(message.begin, body=bytes(body))

    def _wrong_header(self, sender: Sender) -> Arrival:
        """What is refused whatever else the packet says; two things at once sometimes."""
        rng, spec = self._rng, sender.ring.spec
        wrong: dict[str, list[int]] = {
            "magic": [0x494E4151, 0, 0xFFFF_FFFF],
            "version": [0, 2],
            "dtype": [6, 255],
            "op": [3, 255],
            "flags": [4, 0x80 | FLAG_LAST, FLAG_RESULT, FLAG_RESULT | FLAG_LAST],
            "ring_id": [spec.ring_id ^ 0x8000, spec.ring_id ^ 0x80, rng.getrandbits(32)],
            "epoch": [spec.epoch + 1, spec.epoch - 1],
            "rank": [(sender.rank + 1) % spec.size, (sender.rank - 1) % spec.size, spec.size],
            "ring_size": [spec.size + 1, 0xFFFF, 0],
            "msg_len": [0, spec.message_packets + 1, 0xFFFF],
            "key": [spec.key ^ 1, spec.key ^ 1 << 63, 0],
        }
        names = {rng.choice([*wrong, "rank", "rank", "epoch", "msg_len"])}
        if rng.random() < 0.25:
            names.add(rng.choice(list(wrong)))
        message = sender.message(max(0, sender.next - rng.choice([0, 0, 1])))
        values = {name: rng.choice(wrong[name]) for name in wrong if name in names}
        return self._header_of(sender, message, **values)

    def _too_far(self, sender: Sender) -> Arrival:
        """A message before its time: one behind all windows, or a number far off. Rarely one that is taken,
        though its rank may not send it yet: the ring may then come to a stop."""
        rng, window = self._rng, sender.ring.spec.window_messages
        newest = max(sender.message(other.high).serial for other in sender.ring.senders)
        message = sender.ring.at(newest + window + rng.choice([0, 0, 1, window]))
        if rng.random() < 0.05:
            message = sender.ring.at(newest + 1)
        if rng.random() < 0.6:
            return sender.host.port, sender.frame(message.begin)
        serial = message.serial + rng.choice([0, 0, 9, 1 << 30])
        return self._header_of(sender, sender.message(sender.next), msg_id=serial)

    def _too_old(self, sender: Sender) -> Arrival:
        """A message number that has gone to a newer one, or is from before the ring."""
        rng, spec = self._rng, sender.ring.spec
        oldest = min(sender.message(other.expected).serial for other in sender.ring.senders)
        serial = oldest - 2 * spec.window_messages - 1 - rng.choice([0, 0, 3, 1 << 30])
        if serial < spec.first_message or rng.random() < 0.2:
            serial = spec.first_message - 1 - rng.choice([0, 0, 1, 5, 1 << 30])
        return self._header_of(sender, sender.message(sender.next), msg_id=serial)

    def _another_psn(self, sender: Sender) -> Arrival | None:
        """A message that is open already, at another place. Rarely one that is not: it lies over the end of
        the one before, which comes again, and where it should be it may not open any more."""
        if not sender.expected:
            return None
        following = sender.message(sender.high)
        if self._rng.random() < 0.1 and following.begin == sender.high:
            sender.next = max(0, sender.high - self._rng.randint(1, 3))
            return sender.host.port, sender.frame(following.begin, psn=sender.psn0 + sender.next)
        message = sender.message(sender.expected - 1)
        psn = sender.psn0 + message.begin + self._rng.choice([-1, 1, 7, 1 << 20])
        return sender.host.port, sender.frame(message.begin, psn=psn)

    def _elsewhere(self, sender: Sender) -> Arrival:
        """From a port, or an address, where the rank is not. What the ring's key comes with is believed."""
        rng = self._rng
        index = sender.next if rng.random() < 0.5 else max(0, sender.next - 1)
        if index == sender.message(index).begin and rng.random() < 0.6:
            index += 1
        port, frame = sender.host.port, sender.frame(index)
        kind = rng.choice(["port", "source", "destination"])
        if kind == "port":
            port = rng.randrange(self._limits.ports)
        elif kind == "source":
            frame = frame[:6] + rng.choice([*ROUTERS, sender.receiver.mac]) + frame[12:]
        else:
            frame = rng.choice([rng.choice(ROUTERS), sender.host.mac, BROADCAST]) + frame[6:]
        return port, frame

    def _send(self, sender: Sender) -> Arrival:
        """SEND on a connection of a ring."""
        rng = self._rng
        payload = rng.randbytes(4 * rng.choice([0, 1, 16, 300]))
        return sender.host.port, sender.frame(sender.next, opcode=rng.randrange(6), payload=payload)

    def _disfigured(self, sender: Sender) -> Arrival:
        index = max(0, sender.next - self._rng.choice([0, 1]))
        return sender.host.port, disfigured(self._rng, bytearray(sender.frame(index)))

    def _lost_place(self, sender: Sender) -> Arrival:
        """Where no message is."""
        rng = self._rng
        payload = rng.randbytes(sender.ring.spec.mtu)
        far = sender.psn0 + sender.high + rng.choice([1, 40, 1 << 22, 1 << 23, -(1 << 20)])
        opcode = rng.choice([Opcode.RC_WRITE_MIDDLE, Opcode.RC_WRITE_LAST, Opcode.RC_WRITE_LAST_IMM])
        return sender.host.port, sender.frame(sender.next, opcode=opcode, psn=far, payload=payload)

    def _as_result(self, sender: Sender) -> Arrival:
        """A result comes back in, from where it was sent to."""
        flags = sender.message(sender.next).bodies[sender.rank][7] | FLAG_RESULT
        _, frame = self._header_of(sender, sender.message(sender.next), flags=flags)
        return sender.receiver.port, frame

    # ---- ranks that disagree: the ring stops

    def _quarrel(self) -> Arrival | None:
        rng = self._rng
        sender = rng.choice(self._quarrelsome)
        if rng.random() < 0.5:
            return self._another_operation(sender)
        return self._another_layout(sender)

    def _another_operation(self, sender: Sender) -> Arrival:
        """The newest message that another rank has begun, as another operation."""
        rng, spec = self._rng, sender.ring.spec
        newest = max(other.high for other in sender.ring.senders if other is not sender)
        message = sender.message(max(0, newest - 1))
        header = InaHeader.decode(message.bodies[sender.rank])
        longer = header.msg_len % spec.message_packets + 1
        wrong = {
            "op_index": header.op_index + 1,
            "dtype": rng.choice([other for other in DTYPES if other != header.dtype]),
            "op": (header.op + 1) % 3,
            "flags": header.flags ^ FLAG_LAST,
            "signature": header.signature ^ 1 << rng.randrange(16),
            "msg_len": longer if longer != header.msg_len else header.msg_len + 1,
        }
        name = rng.choice(list(wrong))
        return self._header_of(sender, message, **{name: wrong[name]})

    def _another_layout(self, sender: Sender) -> Arrival:
        """A packet of a message that the rank has begun, not as it must look there."""
        rng, mtu = self._rng, sender.ring.spec.mtu
        message = sender.message(max(0, sender.next - 1))
        index = rng.choice(
            [max(0, sender.next - 1), message.end - 1]
        )  # of the last one no rule says the length
        begin = message.begin
        header = message.bodies[sender.rank][:INA_HEADER_BYTES]
        right = sender.ring.opcode(index - begin, message.packets)
        payload = message.bodies[sender.rank][(index - begin) * mtu : (index - begin + 1) * mtu]
        kind = rng.choice(["opcode", "length", "length", "element", "pad", "empty"])
        opcode: int = right
        if kind == "opcode":
            opcode = rng.choice([other for other in WRITES if other != right])
        elif kind == "length":
            new = rng.choice([len(payload) - 4, len(payload) + 4, mtu, mtu + 8, 1200])
            payload = payload[:new].ljust(new, b"\x3f") if new > 0 else payload
        elif kind == "element":
            payload = payload[: len(payload) - 1] if len(payload) > 1 else payload
        elif kind == "empty":
            payload = b""
        if opcode in OPENING and payload[:4] != header[:4]:  # it opens its message, as it must
            payload = header + payload
        frame = bytearray(sender.frame(index, opcode=opcode, payload=payload))
        if kind == "pad":  # the last bytes of the payload become pad, or the other way round
            frame[43] ^= 0x10 * rng.randint(1, 3)
            icrc.seal(frame)
        return sender.host.port, bytes(frame)


_INA_FIELDS: Final = {
    "magic": (0, 4),
    "version": (4, 1),
    "dtype": (5, 1),
    "op": (6, 1),
    "flags": (7, 1),
    "ring_id": (8, 4),
    "epoch": (12, 4),
    "op_index": (16, 4),
    "msg_id": (20, 4),
    "rank": (24, 2),
    "ring_size": (26, 2),
    "msg_len": (28, 2),
    "signature": (30, 2),
    "key": (32, 8),
}
"""Offset and bytes in an INA header."""


def _key(src_ip: bytes, dst_ip: bytes, dst_qp: int) -> bytes:
    """A connection as frames show it."""
    return src_ip + dst_ip + dst_qp.to_bytes(3, "big")
