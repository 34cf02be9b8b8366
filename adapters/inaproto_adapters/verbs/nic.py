"""A RoCE device as ``inaproto.ports.Nic``: RC queue pairs, RDMA WRITE WITH IMMEDIATE, completions under Trio.

One completion queue with a channel serves all queue pairs. Whoever waits for completions polls the queue;
the task in ``run`` waits for the channel's descriptor, asks for the next event, and wakes them to poll
*again*: what came before it asked makes no event.

Invariants: verbs are called from one thread; a queue pair is connected when its peer is resolved
(``neighbours``), so none of them waits for the network; they are taken down in the order that they want,
queue pairs first, the device last; a buffer stays alive while its region is registered; what the device
refuses is a ``FabricError``, and a device that is gone closes its link.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import trio
from numpy.typing import NDArray

from inaproto.errors import FabricError, InvariantBroken, LocalMisuse
from inaproto.ports import (
    Completion,
    MemoryRegion,
    NicCapabilities,
    PortClosed,
    QpAddress,
    QpAttributes,
    Segment,
    Status,
)
from inaproto_adapters.verbs import events, statuses
from inaproto_adapters.verbs.devices import Device, find_device
from inaproto_adapters.verbs.library import verbs
from inaproto_adapters.verbs.neighbours import is_resolved, resolve
from inaproto_adapters.verbs.queue_pair import VerbsQueuePair
from inaproto_adapters.verbs.statistics import DeviceCounters

log = logging.getLogger("inaproto.verbs")

PSN_BITS: Final = 24
_LOCAL_WRITE, _REMOTE_WRITE = 1, 2
_WRITE_IMM: Final = 1
_SIGNALED: Final = 2
_EVENT_LINK: Final = "anon_inode:[infinibandevent]"
_POLLED: Final = 64


@dataclass(frozen=True, slots=True)
class VerbsConfig:
    qps_max: int = 1024
    requests_max: int = 512
    """Sends, and receives, that a queue pair holds."""
    segments_max: int = 16
    completions_max: int = 1 << 15


@dataclass(frozen=True, slots=True, eq=False)
class _Registered:
    region: MemoryRegion
    mr: Any
    lkey: int
    data: NDArray[np.uint8]
    """The caller's bytes, kept alive."""


class VerbsNic:
    """A device under one of its addresses; see ``inaproto.ports.Nic``."""

    def __init__(self, device: Device, config: VerbsConfig) -> None:
        self.device: Final = device
        self._config = config
        self._refusal: type[Exception] = verbs("pyverbs_error").PyverbsError
        before = _event_descriptors()
        self._context = verbs("device").Context(name=device.name)
        self._event_fds = _event_descriptors() - before
        for fd in self._event_fds:
            os.set_blocking(fd, False)
        limits = self._context.query_device()
        self._qps_max = min(config.qps_max, limits.max_qp)
        self._requests_max = min(config.requests_max, limits.max_qp_wr)
        self._segments_max = min(config.segments_max, limits.max_sge)
        self._pd = verbs("pd").PD(self._context)
        self._channel, self._fd = _open_channel(self._context)
        depth = min(config.completions_max, limits.max_cqe)
        self._cq = verbs("cq").CQ(self._context, depth, None, self._channel, 0)
        self._cq.req_notify()
        self._queue_pairs: dict[int, VerbsQueuePair] = {}
        self._regions: dict[int, _Registered] = {}
        # pyverbs wants a segment with each request; of a write with immediate none has anything in it here.
        self._nothing = self.register_memory(memoryview(bytearray(1)))
        segment = Segment(self._nothing.key, self._nothing.va, 0)
        self._no_bytes = verbs("wr").SGE(segment.va, 0, self._lkey(segment))
        self._receive = verbs("wr").RecvWR(num_sge=1, sg=[self._no_bytes])
        self._counters = DeviceCounters(device.name, device.port)
        self._done: list[Completion] = []
        """Completions of queue pairs that were destroyed."""
        self._serial = 0
        self._changed = trio.lowlevel.ParkingLot()
        """Who waits for completions, or to be connected, looks again."""
        self._run_scope: trio.CancelScope | None = None
        self._closed: str | None = None
        self._lost: str | None = None
        """Why the device is of no use any more."""
        self._nursery: trio.Nursery | None = None
        self._unresolved: dict[int, tuple[QpAddress, QpAttributes]] = {}
        """Peers by the number of the queue pair that is to be connected."""

    @property
    def capabilities(self) -> NicCapabilities:
        return NicCapabilities(
            name=f"verbs {self.device.name}",
            mac=self.device.mac,
            ip=self.device.ip,
            mtu_max=self.device.mtu,
            qps_max=self._qps_max,
            retry_forever=self.device.name.startswith("rxe"),
        )

    # --- verbs

    def register_memory(self, buffer: memoryview) -> MemoryRegion:
        if not buffer.c_contiguous or buffer.nbytes == 0:
            raise LocalMisuse("only a contiguous buffer of at least one byte can be registered")
        data = np.frombuffer(buffer.cast("B"), np.uint8)
        va = int(data.ctypes.data)
        access = 0 if buffer.readonly else _LOCAL_WRITE | _REMOTE_WRITE
        with self._translated("register memory", f"{buffer.nbytes} bytes"):
            mr = verbs("mr").MR(self._pd, buffer.nbytes, access, address=va)
        # What peers may not write has no remote key: the local one tells such regions apart.
        key = mr.lkey if buffer.readonly else mr.rkey
        if key in self._regions:
            mr.close()
            raise InvariantBroken(f"{self.device.name} gave the key {key} to two memory regions")
        region = MemoryRegion(key=key, va=va, nbytes=buffer.nbytes)
        self._regions[region.key] = _Registered(region, mr, mr.lkey, data)
        return region

    def deregister_memory(self, region: MemoryRegion) -> None:
        known = self._regions.get(region.key)
        if known is None or known.region != region:
            raise LocalMisuse(f"memory region {region} is not registered")
        del self._regions[region.key]
        known.mr.close()

    def create_qp(self, *, psn: int) -> QpAddress:
        if not 0 <= psn < 1 << PSN_BITS:
            raise LocalMisuse(f"psn {psn} does not fit 24 bits")
        if len(self._queue_pairs) >= self._qps_max:
            raise LocalMisuse(f"all {self._qps_max} queue pairs are in use")
        with self._translated("create a queue pair", f"{len(self._queue_pairs)} are there"):
            made = VerbsQueuePair(
                self._pd,
                self._cq,
                requests_max=self._requests_max,
                segments_max=self._segments_max,
                psn=psn,
                port=self.device.port,
            )
        self._queue_pairs[made.qpn] = made
        return QpAddress(self.device.mac, self.device.ip, made.qpn, psn)

    def connect_qp(self, qpn: int, remote: QpAddress, attributes: QpAttributes) -> None:
        """At once, or when the peer is resolved: until then writes wait, and if it is not, they fail."""
        queue_pair = self._of(qpn)
        queue_pair.may_connect(attributes, self.device.mtu)
        if is_resolved(self.device.ip, remote.ip, self.device.interface):
            queue_pair.connect(remote, attributes, gid_index=self.device.gid_index)
            return
        if self._lost is not None:
            peer = ipaddress.IPv4Address(remote.ip)
            raise FabricError("connect", str(peer), "asking for its MAC address", self._lost, retryable=True)
        self._unresolved[qpn] = (remote, attributes)
        if self._nursery is not None:
            self._nursery.start_soon(self._connect_later, queue_pair, remote, attributes)

    async def _connect_later(
        self, queue_pair: VerbsQueuePair, remote: QpAddress, attributes: QpAttributes
    ) -> None:
        resolved = await resolve(self.device.ip, remote.ip, self.device.interface)
        if self._queue_pairs.get(queue_pair.qpn) is not queue_pair:
            return  # destroyed meanwhile
        del self._unresolved[queue_pair.qpn]
        peer = ipaddress.IPv4Address(remote.ip)
        try:
            if not resolved:
                phase = f"asking for its MAC address at {self.device.interface}"
                raise FabricError("connect", str(peer), phase, "no answer", retryable=True)
            queue_pair.connect(remote, attributes, gid_index=self.device.gid_index)
        except FabricError as error:
            log.warning("%s: queue pair %d: %s", self.device.name, queue_pair.qpn, error)
            self._done += queue_pair.fail(error)
        self._changed.unpark_all()

    async def wait_connected(self, qpn: int) -> None:
        await trio.lowlevel.checkpoint()
        self._require_open()
        queue_pair = self._of(qpn)
        while True:
            if self._queue_pairs.get(qpn) is not queue_pair:
                raise FabricError(
                    "connect", f"queue pair {qpn}", "waiting", "it is destroyed", retryable=False
                )
            if queue_pair.refusal is not None:
                raise queue_pair.refusal
            if queue_pair.is_ready:
                return
            if not queue_pair.is_connected:
                raise LocalMisuse(f"queue pair {qpn} is not connected")
            await self._changed.park()
            self._require_open()

    def post_receive(self, qpn: int, wr_id: int) -> None:
        serial = self._next_serial()
        self._receive.wr_id = serial
        queue_pair = self._of(qpn)
        queue_pair.post_receive(serial, wr_id, self._receive)
        self._fail_if_failed(queue_pair)

    def post_write_imm(
        self,
        qpn: int,
        wr_id: int,
        segments: Sequence[Segment],
        *,
        remote_va: int,
        rkey: int,
        imm: int,
    ) -> None:
        queue_pair = self._of(qpn)
        if not queue_pair.is_connected:
            raise LocalMisuse(f"queue pair {qpn} is not connected")
        module = verbs("wr")
        gather = [module.SGE(one.va, one.nbytes, self._lkey(one)) for one in segments if one.nbytes]
        if len(gather) > self._segments_max:
            raise LocalMisuse(f"{len(gather)} segments in one write, the device takes {self._segments_max}")
        serial = self._next_serial()
        request = module.SendWR(
            wr_id=serial,
            opcode=_WRITE_IMM,
            num_sge=len(gather) or 1,
            imm_data=socket.htonl(imm),
            sg=gather or [self._no_bytes],
            send_flags=_SIGNALED,
        )
        request.set_wr_rdma(rkey, remote_va)
        queue_pair.post_send(serial, wr_id, request)
        self._fail_if_failed(queue_pair)

    def _fail_if_failed(self, queue_pair: VerbsQueuePair) -> None:
        if queue_pair.has_failed:
            self._done += queue_pair.flushed()
            self._changed.unpark_all()

    def destroy_qp(self, qpn: int) -> None:
        queue_pair = self._of(qpn)
        # Taken while they can still be told from those of the next queue pair of this number.
        found = self.poll()
        try:
            queue_pair.close()
        except FabricError as error:
            log.warning("%s: %s", self.device.name, error)
        found += self.poll()
        del self._queue_pairs[qpn]
        self._unresolved.pop(qpn, None)
        self._done = found + queue_pair.flushed()
        self._changed.unpark_all()

    def poll(self) -> list[Completion]:
        found, self._done = self._done, []
        while True:
            try:
                count, completed = self._cq.poll(_POLLED)
            except self._refusal as error:
                self._lose(f"its completion queue: {error}")
                return found
            for one in completed:
                status = statuses.decode(one.status)
                if status is not Status.SUCCESS and status is not Status.FLUSHED:
                    log.warning(
                        "%s: queue pair %d: %s", self.device.name, one.qp_num, statuses.name(one.status)
                    )
                queue_pair = self._queue_pairs.get(one.qp_num)
                if queue_pair is not None and not queue_pair.has_failed:
                    imm = socket.ntohl(one.imm_data)
                    found.append(queue_pair.completed(one.wr_id, status, imm, one.byte_len))
            if count < _POLLED:
                return found

    async def wait_completions(self) -> list[Completion]:
        await trio.lowlevel.checkpoint()
        while True:
            self._require_open()
            found = self.poll()
            if found:
                return found
            await self._changed.park()

    def _require_open(self) -> None:
        if self._closed is not None or self._lost is not None:
            raise PortClosed(self._closed or self._lost or "")

    def statistics(self) -> dict[str, int]:
        return self._counters.read()

    # --- running

    async def run(self) -> None:
        """Serve until ``aclose``."""
        if self._closed is not None:
            return
        if self._run_scope is not None:
            raise LocalMisuse("the NIC is running already")
        try:
            await self._serve()
        finally:
            if self._lost is None:
                self._lose("it does not run any more")

    async def _serve(self) -> None:
        with trio.CancelScope() as self._run_scope:
            async with trio.open_nursery() as self._nursery:
                for qpn, (remote, attributes) in self._unresolved.items():
                    self._nursery.start_soon(self._connect_later, self._queue_pairs[qpn], remote, attributes)
                for fd in self._event_fds:
                    self._nursery.start_soon(self._watch_device, fd)
                while self._lost is None:
                    await trio.lowlevel.wait_readable(self._fd)
                    try:
                        self._channel.get_cq_event(self._cq)
                    except self._refusal as error:
                        self._lose(f"its completion channel: {error}")
                        break
                    self._cq.ack_events(1)
                    self._cq.req_notify()
                    self._changed.unpark_all()
                self._nursery.cancel_scope.cancel()

    def _lose(self, why: str) -> None:
        """Whoever waits for completions hears of it."""
        self._lost = f"the RoCE device {self.device.name}: {why}"
        self._changed.unpark_all()

    async def _watch_device(self, fd: int) -> None:
        """Say what happens to it; a device that is lost loses its host the link."""
        while True:
            await trio.lowlevel.wait_readable(fd)
            try:
                event = self._context.get_async_event()
            except self._refusal as error:
                log.warning("%s: its events cannot be read any more: %s", self.device.name, error)
                return
            kind = int(event.event_type)
            event.ack()  # a queue pair is not destroyed before all of its events are
            level = logging.WARNING if events.is_worth_a_warning(kind) else logging.INFO
            log.log(level, "%s: %s", self.device.name, events.name(kind))
            if events.is_fatal(kind):
                self._lose(events.name(kind))
                return

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()
        if self._closed is not None:
            return
        self._closed = f"the RoCE device {self.device.name} was closed"
        if self._run_scope is not None:
            self._run_scope.cancel()
        self._changed.unpark_all()
        registered = [known.mr for known in self._regions.values()]
        parts = (*self._queue_pairs.values(), *registered, self._cq, self._channel, self._pd, self._context)
        self._queue_pairs.clear()
        self._regions.clear()
        self._unresolved.clear()
        for part in parts:
            try:
                part.close()
            except (FabricError, self._refusal) as error:  # a device that is gone has closed it
                log.warning("%s: %s", self.device.name, error)

    # --- parts

    def _of(self, qpn: int) -> VerbsQueuePair:
        found = self._queue_pairs.get(qpn)
        if found is None:
            raise LocalMisuse(f"there is no queue pair {qpn}")
        return found

    def _lkey(self, segment: Segment) -> int:
        known = self._regions.get(segment.key)
        if known is not None:
            begin = segment.va - known.region.va
            if begin >= 0 and segment.nbytes >= 0 and begin + segment.nbytes <= known.region.nbytes:
                return known.lkey
        raise LocalMisuse(f"{segment} is not inside a registered memory region")

    @contextlib.contextmanager
    def _translated(self, op: str, what: str) -> Iterator[None]:
        try:
            yield
        except self._refusal as error:
            raise FabricError(op, self.device.name, what, str(error), retryable=True) from None

    def _next_serial(self) -> int:
        self._serial += 1
        return self._serial


def open_nic(*, ip: bytes, **limits: int) -> VerbsNic:
    """The device that has the IPv4 address ``ip`` (4 bytes); ``limits`` are fields of :class:`VerbsConfig`.

    Raises ``Unsupported``: no pyverbs, no such device, or one that cannot be used, and why.
    """
    return VerbsNic(find_device(ip), VerbsConfig(**limits))


def _open_channel(context: Any) -> tuple[Any, int]:
    """A completion channel and its descriptor, which older versions of pyverbs do not tell."""
    before = _event_descriptors()
    channel = verbs("cq").CompChannel(context)
    fd = getattr(channel, "fd", None)
    if fd is None:
        (fd,) = _event_descriptors() - before
    os.set_blocking(fd, False)
    return channel, fd


def _event_descriptors() -> set[int]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}") == _EVENT_LINK:
                found.add(int(name))
        except OSError:
            continue  # that of the listing itself
    return found
