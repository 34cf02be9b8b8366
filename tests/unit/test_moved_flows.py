"""A rank whose packets come by another port from the middle of a message on: what a link aggregation or ECMP
does when a link goes down beyond the next switch, which no port here shows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from inaproto.core.rdma.nic import SoftNicConfig, SoftNicEngine
from inaproto.core.rdma.verbs import QpAddress, QpAttributes, Segment
from inaproto.core.switch.accelerator import Accelerator, EmitFrames, FramesArrived, InstallRing, PortUp
from inaproto.core.switch.ring_spec import FlowSpec, RingSpec
from inaproto.units import Frames, Instant, PortId
from inaproto.wire.ina_header import FLAG_LAST, Dtype, InaHeader, Op
from tests.accelerators import software_only

PACKETS, MTU, SLOT = 8, 256, 8 * 256
HOSTS = 2
OTHER = 2
"""Port by which host 0 comes later."""


def mac(host: int) -> bytes:
    return bytes([2, 0, 10, 0, 0, host + 1])


def ip(host: int) -> bytes:
    return bytes([10, 0, 0, host + 1])


class Wire:
    """Two hosts at a switch; host 0 has two links to it, and its packets come at ``port``."""

    def __init__(self, *, selective: bool) -> None:
        self.now = Instant(0)
        self.port = 0
        self.to_drop = 0
        """So many of the next data packets of host 0 are lost."""
        self.switch = Accelerator()
        for port in range(3):
            self.switch.step(PortUp(PortId(port)), self.now)
        self.nics = [
            SoftNicEngine(
                SoftNicConfig(mac=mac(host), ip=ip(host), selective=selective, first_qpn=20 + 10 * host)
            )
            for host in range(HOSTS)
        ]
        self.memory = [bytearray(SLOT) for _ in range(2 * HOSTS)]
        self.regions = [
            self.nics[at % 2].register_memory(memoryview(its)) for at, its in enumerate(self.memory)
        ]
        out = [nic.create_qp(psn=100) for nic in self.nics]
        into = [nic.create_qp(psn=200) for nic in self.nics]
        attributes = QpAttributes(mtu=MTU, timeout=12, ack_every=1, outstanding_packets=PACKETS)
        for host, nic in enumerate(self.nics):
            self._connect(nic, out[host], into[1 - host], attributes)
            self._connect(nic, into[host], out[1 - host], attributes)
            for receive in range(4):
                nic.post_receive(into[host].qpn, receive)
        self.out, self.into = out, into
        flows = tuple(
            FlowSpec(host, ip(host), ip(1 - host), into[1 - host].qpn, mac(host), mac(1 - host), 0)
            for host in range(HOSTS)
        )
        spec = RingSpec(7, 1, 99, 1, PACKETS, MTU, flows, selective=selective)
        assert self.switch.step(InstallRing(spec), self.now) == []

    @staticmethod
    def _connect(nic: SoftNicEngine, own: QpAddress, peer: QpAddress, attributes: QpAttributes) -> None:
        nic.connect_qp(own.qpn, peer, attributes)

    def post(self, host: int) -> None:
        """The only message of an operation: ones in it."""
        header = InaHeader(
            dtype=Dtype.I32, op=Op.SUM, flags=FLAG_LAST, ring_id=7, epoch=1, op_index=0, msg_id=0, rank=host,
            ring_size=2, msg_len=PACKETS, signature=5, key=99,
        ).encode()  # fmt: skip
        self.memory[host][:] = header + b"\1\0\0\0" * ((SLOT - len(header)) // 4)
        region, there = self.regions[host], self.regions[2 + 1 - host]
        self.nics[host].post_write_imm(
            self.out[host].qpn, 1, [Segment(region.key, region.va, SLOT)], remote_va=there.va, rkey=there.key,
            imm=0, now=self.now,
        )  # fmt: skip

    def frames(self) -> Iterator[tuple[int, Frames]]:
        """What hosts send now, by port."""
        for host, nic in enumerate(self.nics):
            for block in nic.take_output():
                for row in block.copy():
                    yield self.port if host == 0 else 1, row[None]

    def run(self, *, moves_after: int = 1 << 30, until_s: float = 5.0) -> None:
        """Until nothing is sent any more and no timer runs, or time is up."""
        came = 0
        while self.now < until_s * 1e9:
            sent = list(self.frames())
            for port, frame in sent:
                if port == 0 and frame.shape[1] > 200:
                    came += 1
                    if came > moves_after:
                        self.port = port = OTHER
                elif port == 0 and came > moves_after:
                    port = OTHER
                actions = self.switch.step(FramesArrived(PortId(port), [frame]), self.now)
                for action in actions:
                    if isinstance(action, EmitFrames):
                        self._deliver(action.port, action.frames.copy())
            if not sent:
                due = [nic.deadline for nic in self.nics if nic.deadline is not None]
                if not due:
                    return
                self.now = Instant(min(due) + 1)
                for nic in self.nics:
                    nic.handle_timer(self.now)

    def _deliver(self, port: int, frames: Frames) -> None:
        if port in (0, OTHER):  # both links go on downwards
            self.nics[0].handle_frames([frames], self.now)
        elif port == 1:
            self.nics[1].handle_frames([frames], self.now)


@software_only("a board's table is another")
@pytest.mark.parametrize("selective", [False, True])
@pytest.mark.parametrize("moves_after", [0, 1, 3, 7])
def test_the_last_message_of_an_operation_is_summed_though_its_way_changes_in_the_middle(
    moves_after: int, selective: bool
) -> None:
    """No other first packet follows, which would say with the ring's key where the rank is now."""
    wire = Wire(selective=selective)
    for host in range(HOSTS):
        wire.post(host)
    wire.run(moves_after=moves_after)
    assert wire.now < 3e9
    for host in range(HOSTS):
        assert wire.memory[2 + host][40:] == b"\2\0\0\0" * ((SLOT - 40) // 4)
