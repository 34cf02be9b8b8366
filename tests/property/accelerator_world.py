"""A small fabric of RDMA hosts around two accelerators, the core and the per-packet judge, from one seed.

Hosts on ports of a switch run rings of all-reduces (several rings, element types and operations at
once) as NICs do: messages within a window of N, go-back-N after a NAK or a timeout, NAKs only for the
first gap, resends with other IP ids and AckReq, spurious resends. The wire to and from the switch loses,
duplicates, reorders and damages frames; plain traffic and strangers are mixed in.

Both accelerators get the same arrivals. What this module promises to find:

- a difference in what they send, byte for byte and in order for each port and flow, or in blames,
  faults and counters (``exact`` worlds);
- a result that is not the exact reduction, has a wrong ICRC, or headers that its sender never sent;
- a ring that does not finish once the weather is good;
- a frame that came in and is not counted exactly once.

The judge gets the frames of an arrival flow by flow, the order in which the core says it takes them.

``exact`` worlds cut blocks where the PSNs of a connection are not consecutive: what both do is then the
same packet by packet. (The core takes in a whole run before it answers any of it, so an answer in a run
that was reordered may carry the header of a transmission that came behind it.) The other worlds hand
over blocks as ports do, and only promises of the last three kinds are checked.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from random import Random
from typing import Final

import numpy as np

from inaproto.core.switch.accelerator import (
    Accelerator,
    AcceleratorConfig,
    EmitFrames,
    FramesArrived,
    InstallRing,
    PortUp,
    RingFault,
    RoundArrived,
)
from inaproto.errors import Blame, DecodeError
from inaproto.units import Frames, Instant, PortId
from inaproto.wire import icrc
from inaproto.wire.roce import RocePacket
from inaproto_hil.bench.naive import NaiveAccelerator
from tests.property.accelerator_rings import (
    Flow,
    RingTraffic,
    draw_ring,
    host_mac,
    plain_frame,
    stranger_frame,
)

NOW: Final = Instant(0)
TURNS_MAX: Final = 4000
QUIET_TURNS: Final = 12
"""Turns without progress after which every sender's timer expires."""


@dataclass(slots=True)
class Weather:
    drop: float
    duplicate: float
    reorder: float
    corrupt: float


class World:
    def __init__(
        self, seed: int, *, exact: bool = True, disagreement: bool = False, rounds: bool = False
    ) -> None:
        """``rounds``: what comes at several ports is taken in together."""
        self.seed = seed
        self.exact = exact and not rounds
        self._rounds = Random(f"{seed}/rounds") if rounds else None
        self.faults: list[tuple[int, int, str]] = []
        self.blames: list[str] = []
        self.frames_in = 0
        self.digest = 0
        """Of all that went in and came out."""
        rng = Random(f"{seed}/shape")
        self._weather_rng = Random(f"{seed}/weather")
        self._turns = Random(f"{seed}/turns")
        self._hosts = list(range(rng.randint(2, 5)))
        self._flooding = rng.random() < 0.2
        self._fill_max = rng.choice([64, 64, 64, 0])
        self.rings: list[RingTraffic] = [
            draw_ring(rng, number, self._hosts, disagreement=disagreement and number == 0)
            for number in range(rng.choice([1, 1, 2, 3]))
        ]
        self._flows = {flow.connection: flow for ring in self.rings for flow in ring.flows}
        self._by_send_qp = {flow.send_qp: flow for ring in self.rings for flow in ring.flows}
        self._replies: dict[int, list[bytes]] = {host: [] for host in self._hosts}
        strength = rng.choice([0.0, 0.02, 0.1, 0.25])
        self._weather = Weather(*(strength * rng.random() for _ in range(4)))
        self._start()

    def _start(self) -> None:
        self._core = Accelerator(AcceleratorConfig(replay_fill_packets_max=self._fill_max))
        self._naive = NaiveAccelerator(replay_fill_packets_max=self._fill_max)
        for host in self._hosts:
            self._core.step(PortUp(PortId(host)), NOW)
            self._naive.port_up(host)
        for ring in self.rings:
            assert self._core.step(InstallRing(ring.spec), NOW) == []
            self._naive.install(ring.spec)
        if not self._flooding:
            for host in self._hosts:
                self._arrive(host, [b"\xff" * 6 + host_mac(host) + bytes(48)])

    # -- the loop ------------------------------------------------------------------------------

    def run(self) -> None:
        """Until every ring that can finish has finished; the weather is good in the second half."""
        quiet = 0
        for turn in range(TURNS_MAX):
            if self._finished():
                break
            if turn == TURNS_MAX // 8:
                self._weather = Weather(0, 0, 0, 0)
            before = sum(flow.expected for flow in self._flows.values())
            if self._rounds is None:
                self._turn(self._turns.choice(self._hosts))
            else:
                hosts = self._rounds.sample(self._hosts, self._rounds.randint(1, len(self._hosts)))
                self._arrive_together([(host, sent) for host in hosts if (sent := self._sends(host))])
            quiet = 0 if sum(flow.expected for flow in self._flows.values()) > before else quiet + 1
            if quiet > QUIET_TURNS * len(self._hosts):
                quiet = 0
                for flow in self._flows.values():
                    flow.next = flow.expected
        assert self._finished(), f"seed {self.seed}: not finished after {TURNS_MAX} turns: {self._where()}"
        self._compare_counters()
        self._check_ledger()

    def _finished(self) -> bool:
        return all(
            ring.failed or all(flow.expected == len(flow.packets) for flow in ring.flows)
            for ring in self.rings
        )

    def _where(self) -> list[list[tuple[int, int, int]]]:
        return [[(f.expected, f.next, len(f.packets)) for f in ring.flows] for ring in self.rings]

    def _turn(self, host: int) -> None:
        sent = self._sends(host)
        while sent:
            count = self._turns.choice([1, 2, 5, 40])
            self._arrive(host, sent[:count])
            sent = sent[count:]

    def _sends(self, host: int) -> list[bytes]:
        """What comes of it at its port."""
        rng = self._turns
        streams = [self._replies[host]]
        self._replies[host] = []
        for ring in self.rings:
            for flow in ring.flows:
                if flow.host == host and not ring.failed:
                    if rng.random() < 0.05:
                        flow.next = rng.randint(min(max(0, flow.expected - 3), flow.next), flow.next)
                    streams.append(self._send(ring, flow, rng.choice([0, 1, 3, 8, 20])))
        plain = rng.choice([0, 0, 1, 3])
        streams += [[plain_frame(rng, host, rng.choice(self._hosts))] for _ in range(plain)]
        if rng.random() < 0.03:
            streams.append([stranger_frame(rng, host, self.rings)])
        return self._weathered(_merged(rng, streams))

    def _send(self, ring: RingTraffic, flow: Flow, burst: int) -> list[bytes]:
        sent: list[bytes] = []
        while len(sent) < burst and flow.next < len(flow.packets) and ring.may_send(flow):
            sent.append(flow.frame(self._turns, flow.next))
            flow.next += 1
        return sent

    # -- weather -------------------------------------------------------------------------------

    def _weathered(self, sent: list[bytes]) -> list[bytes]:
        rng, weather = self._weather_rng, self._weather
        out: list[bytes] = []
        for frame in sent:
            if rng.random() < weather.drop:
                continue
            if rng.random() < weather.corrupt:
                frame = self._damaged(frame)
            out.append(frame)
            if rng.random() < weather.duplicate:
                out.append(frame)
            if rng.random() < weather.reorder and len(out) > 1:
                at = len(out) - rng.randint(2, min(len(out), 6))
                out.insert(at, out.pop())
        return out

    def _damaged(self, frame: bytes) -> bytes:
        """One flipped bit; not in the MAC addresses, which the Ethernet FCS protects on each link."""
        harmed = bytearray(frame)
        at = self._weather_rng.randrange(min(14, len(frame) - 1), len(frame))
        harmed[at] ^= 1 << self._weather_rng.randrange(8)
        return bytes(harmed)

    # -- arrivals ------------------------------------------------------------------------------

    def _arrive(self, port: int, frames: list[bytes]) -> None:
        self._arrive_together([(port, frames)])

    def _arrive_together(self, arrivals: list[tuple[int, list[bytes]]]) -> None:
        """More than one only where ``rounds`` are."""
        came = [FramesArrived(PortId(port), self._blocks(frames)) for port, frames in arrivals]
        actions = self._core.step(came[0] if self._rounds is None else RoundArrived(came), NOW)
        frames = [frame for _, sent in arrivals for frame in sent]
        self.frames_in += len(frames)
        out = [
            (int(action.port), row.tobytes())
            for action in actions
            if isinstance(action, EmitFrames)
            for row in action.frames
        ]
        faults = [(act.ring_id, act.rank, act.rule) for act in actions if isinstance(act, RingFault)]
        blames = [action.rule for action in actions if isinstance(action, Blame)]
        failed_before = [ring.failed for ring in self.rings]
        for ring_id, _, _ in faults:
            next(ring for ring in self.rings if ring.spec.ring_id == ring_id).failed = True
        self.faults += faults
        self.blames += blames
        for frame in (*frames, *(frame for _, frame in out)):
            self.digest = zlib.crc32(frame, self.digest)
        if self.exact:
            seen = len(self._naive.blames), len(self._naive.faults)
            port = arrivals[0][0]
            judged = self._naive.receive_batch(port, self._flow_by_flow(frames))
            where = f"seed {self.seed}, arrival up to frame {self.frames_in} on port {port}"
            assert blames == [blame.rule for blame in self._naive.blames[seen[0] :]], where
            assert faults == self._naive.faults[seen[1] :], where
            assert _by_flow(out) == _by_flow(judged), where
            if not self._flooding and all(ring.one_host_a_rank for ring in self.rings):
                assert _by_port(out) == _by_port(judged), where
        for egress, frame in out:
            self._deliver(egress, frame, frames, failed_before)

    def _flow_by_flow(self, frames: list[bytes]) -> list[bytes]:
        """A connection of a ring after the other, and of all else a pair of addresses after the other."""
        flows: dict[object, list[bytes]] = {}
        for frame in frames:
            connection = (frame[26:30], frame[30:34], int.from_bytes(frame[47:50], "big"))
            roce = frame[12:15] == b"\x08\0E" and frame[23:24] == b"\x11" and frame[36:38] == b"\x12\xb7"
            whole = not int.from_bytes(frame[20:22], "big") & 0x3FFF
            of_ring = roce and whole and connection in self._flows
            flows.setdefault(connection if of_ring else frame[:12], []).append(frame)
        return [frame for flow in flows.values() for frame in flow]

    def _blocks(self, frames: list[bytes]) -> list[Frames]:
        """Frames as a port hands them over: blocks of one length, some with gaps between the rows."""
        groups: list[list[bytes]] = []
        for frame in frames:
            joins = bool(groups) and len(groups[-1][0]) == len(frame)
            if joins and self.exact:
                joins = not _breaks_sequence(groups[-1][-1], frame)
            if joins and self._turns.random() < 0.95:
                groups[-1].append(frame)
            else:
                groups.append([frame])
        blocks = []
        for group in groups:
            rows = np.frombuffer(b"".join(group), np.uint8).reshape(len(group), -1)
            gap = self._turns.choice([0, 4])
            buffer = np.zeros((len(group), rows.shape[1] + gap), np.uint8)
            buffer[:, gap:] = rows
            blocks.append(buffer[:, gap:])
        return blocks

    def _deliver(self, port: int, frame: bytes, arrived: list[bytes], failed: list[bool]) -> None:
        """Check one frame that left, and give it to the host there if the wire does not lose it."""
        try:
            packet = RocePacket.decode_frame(frame)
            right = icrc.verify(frame)
        except DecodeError:
            assert frame in arrived
            return
        flow = self._flows.get((packet.ip.src, packet.ip.dst, packet.bth.dest_qp))
        is_write = 0x06 <= packet.opcode <= 0x0B
        if flow is None or not right or not is_write:
            assert frame in arrived, "what is no result passes unchanged"
        if not right:
            return
        if self._weather_rng.random() < self._weather.drop:
            return
        if packet.opcode == 0x11:
            self._acknowledge(packet)
        elif flow is not None and is_write:
            assert not failed[flow.ring], "a ring that failed forwards nothing"
            index = flow.index_of(packet.bth.psn)
            flow.check(index, packet, frame)
            if flow.receiver == port:
                self._receive(flow, index)

    def _receive(self, flow: Flow, index: int) -> None:
        if index == flow.expected:
            flow.expected += 1
            flow.nak_sent = False
        elif index > flow.expected and not flow.nak_sent:
            flow.nak_sent = True
            self._replies[flow.receiver].append(flow.nak())

    def _acknowledge(self, packet: RocePacket) -> None:
        flow = self._by_send_qp.get(packet.bth.dest_qp)
        if flow is not None and packet.aeth is not None and packet.aeth.is_nak:
            flow.next = min(flow.next, flow.index_of(packet.bth.psn))

    def events(self) -> dict[str, int]:
        """What happened how often in the core, by the names of its counters and rules."""
        counters = asdict(self._core.view().counters)
        return {**counters.pop("dropped"), **counters}

    def _check_ledger(self) -> None:
        """Every frame that came in is counted once: aggregated, bridged, dropped by name, or waiting."""
        counters = self._core.counters
        accounted = counters.aggregated_in + counters.bridged + sum(counters.dropped.values())
        accounted += self._core.waiting
        assert accounted == self.frames_in, f"seed {self.seed}: {counters}"

    def _compare_counters(self) -> None:
        if not self.exact:
            return
        mine = dict(self._naive.counters)
        counters = self._core.view().counters
        core = {name: getattr(counters, name) for name in mine}
        assert core == mine, f"seed {self.seed}"
        assert counters.dropped == self._naive.dropped, f"seed {self.seed}"


def _merged(rng: Random, streams: Iterable[list[bytes]]) -> list[bytes]:
    """All streams as one, each in its own order: a NIC serves its queue pairs in turns."""
    left = [stream for stream in streams if stream]
    out: list[bytes] = []
    while left:
        at = rng.randrange(len(left))
        count = rng.choice([1, 4, 40])
        out += left[at][:count]
        left[at] = left[at][count:]
        left = [stream for stream in left if stream]
    return out


def _breaks_sequence(before: bytes, after: bytes) -> bool:
    """Whether two frames are of one connection, but not consecutive packets of it."""
    if len(before) < 58 or before[26:34] != after[26:34] or before[47:50] != after[47:50]:
        return False
    return (int.from_bytes(before[51:54], "big") + 1) & 0xFF_FFFF != int.from_bytes(after[51:54], "big")


def _by_port(out: list[tuple[int, bytes]]) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {}
    for port, frame in out:
        found.setdefault(port, []).append(frame)
    return found


def _by_flow(out: list[tuple[int, bytes]]) -> dict[tuple[int, bytes], list[bytes]]:
    found: dict[tuple[int, bytes], list[bytes]] = {}
    for port, frame in out:
        found.setdefault((port, frame[26:34] + frame[47:50]), []).append(frame)
    return found
