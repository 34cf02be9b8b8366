"""A host in a ring of two, on a RoCE device that does nothing: its messages are answered by what they are.

Real are the host's part of a job, its link, and the NIC above the device. The device is told here what has
become of its work requests, and the results of messages are written here, outside of what is measured.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import Any, Final

from inaproto.core.host.events import Answered, LinkReady, Said
from inaproto.core.host.link import RingLink
from inaproto.core.host.operations import BASE
from inaproto.daemon.host.local_rank import LocalRank
from inaproto.daemon.host.request_batches import batched
from inaproto.daemon.host.ring import HostRing
from inaproto.daemon.host.successions import Nobody
from inaproto.daemon.net.shared_buffers import SharedBuffer
from inaproto.daemon.settings.config import HostSettings
from inaproto.daemon.shell import current_instant
from inaproto.errors import JobError
from inaproto.wire.control_messages import Member, Message, Ring, Start
from inaproto.wire.ina_header import FLAG_RESULT, FLAGS_OFFSET, INA_HEADER_BYTES, Dtype, Op
from inaproto.wire.messages.client import AllReduce, DonePath, Join
from inaproto_adapters.verbs.nic import VerbsConfig, VerbsNic
from inaproto_hil.bench.verbs.device import OWN, StubbedDevice

_PEER_RANK: Final = 1


@dataclass(frozen=True, slots=True)
class Shape:
    """Of messages, and how many are in flight."""

    mtu: int = 4096
    packets: int = 170
    window: int = 8

    @property
    def tensor_bytes(self) -> int:
        return self.mtu * self.packets - INA_HEADER_BYTES


class _Process(Nobody):
    """Whoever called the all-reduces: it counts those that are done."""

    def __init__(self) -> None:
        self.done = 0

    def operation_done(self, op_index: int, path: DonePath, duration_ns: int) -> None:
        self.done += 1

    def rank_failed(self, error: JobError) -> None:
        raise error

    def process_is_gone(self) -> bool:
        return False


class _Nowhere:
    """Memory that nothing is written to."""

    def __getitem__(self, at: slice) -> _Nowhere:
        return self

    def __setitem__(self, at: slice, value: memoryview) -> None:
        """That is all."""

    def release(self) -> None:
        """Nothing is held."""


def _fail(text: str) -> None:
    raise AssertionError(text)


class StubbedHost:
    """One rank of two, in a trio run; ``answer`` lets its device and its neighbour act."""

    def __init__(self, shape: Shape, device: StubbedDevice, messages: int, *, copies: bool) -> None:
        """``messages`` of each all-reduce; without ``copies`` results stay in the slots where they came."""
        self.shape = shape
        self.device = device
        self.nbytes = messages * shape.tensor_bytes
        self.process = _Process()
        self._calls = 0
        self._answered = 0
        """The last write that was."""
        self._member: Member
        self.nic = VerbsNic(OWN, VerbsConfig())
        self._batch = batched(self.nic)
        self.ring = HostRing(
            "bench",
            settings=HostSettings(
                name="h0",
                ip="10.0.0.1",
                mtu=shape.mtu,  # type: ignore[arg-type]
                message_packets=shape.packets,
                window_messages=shape.window,
            ),
            nic=self.nic,
            tell=self._hear,
            clock=current_instant,
            log=_fail,
            random_bits=lambda bits: 1,
        )
        self._rank = LocalRank(Join(id=1, job="bench", rank=0, size=2, key="", pid=1), self.process)
        self.ring.add(self._rank, 1)
        self._connect()
        memory = mmap.mmap(-1, self.nbytes)
        region = self.nic.register_memory(memoryview(memory).toreadonly())
        view: Any = memoryview(memory) if copies else _Nowhere()
        self._rank.segments[0] = SharedBuffer(0, self.nbytes, memory, view, self.nic, region)

    def _hear(self, message: Message) -> None:
        if isinstance(message, Member):
            self._member = message

    def _connect(self) -> None:
        """With a neighbour whose addresses are this host's own."""
        member = self._member
        ring = Ring(
            id=1, job="bench", ring_id=7, epoch=1, ring_key=1, position=0,
            successor=member.into, predecessor=member.out,
            peers=("h0", "h1"), ranks=((0,), (_PEER_RANK,)),
        )  # fmt: skip
        self.ring.feed(Answered(ring, "boot"))
        self.ring.feed(LinkReady(BASE))
        self.ring.feed(Said(Start(job="bench", ring_id=7)))
        link = self.ring.holdings.links[BASE]
        assert isinstance(link, RingLink)
        self._link = link
        self._out, self._into = (self.nic.queue_pair(qpn) for qpn in link.qpns)

    def call(self) -> None:
        """The next all-reduce of the process."""
        elements = self.nbytes // 4
        request = AllReduce(
            op_index=self._calls, segment=0, offset=0, nbytes=self.nbytes, dtype=int(Dtype.F32),
            op=int(Op.SUM), shape=(elements,),
        )  # fmt: skip
        self._calls += 1
        self.ring.submit(self._rank, request)

    def answer(self, most: int = 1 << 30) -> int:
        """The first of what is posted arrive, are summed and come back; returns how many messages."""
        link, shape = self._link, self.shape
        sends, receives = self._out.posted[0], iter(self._into.posted[1])
        new = [sent for sent in sends if sent[0] > self._answered][:most]
        signalled = self.device.signalled
        for serial, msg_id in new:
            at, head = msg_id % link.slots * link.slot_bytes, msg_id % link.slots * INA_HEADER_BYTES
            header = bytearray(link._headers[head : head + INA_HEADER_BYTES])
            header[FLAGS_OFFSET] |= FLAG_RESULT
            header[24:26] = _PEER_RANK.to_bytes(2, "big")
            link._received[at : at + INA_HEADER_BYTES] = header
            self._answered = serial
            if serial in signalled:
                signalled.remove(serial)
                self._complete(serial, self._out.qpn, 0, 0)
            self._complete(next(receives)[0], self._into.qpn, msg_id, shape.mtu * shape.packets)
        return len(new)

    def _complete(self, serial: int, qpn: int, imm: int, nbytes: int) -> None:
        imm_data = int.from_bytes(imm.to_bytes(4, "big"), "little")
        self.device.completed.append(
            {"wr_id": serial, "qp_num": qpn, "imm_data": imm_data, "byte_len": nbytes}
        )

    def take(self) -> None:
        """What the daemon does when the device has completed something."""
        completions = self.nic.poll()
        with self._batch:
            self.ring.completed_all(completions)
