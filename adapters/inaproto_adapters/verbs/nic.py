"""An RDMA device as ``inaproto.ports.Nic``: RC queue pairs, RDMA WRITE WITH IMMEDIATE, completions in Trio.

One completion queue with a channel serves all queue pairs. Whoever waits for completions polls the queue;
the task in ``run`` waits for the channel's descriptor, asks for the next event, and wakes them to poll
*again*: what came before it asked makes no event.

Invariants: verbs are called from one thread; a queue pair is connected when its peer is resolved
(``neighbours``; on InfiniBand its LID says all), so none of them waits for the network; they are taken down
in the order that they want, queue pairs first, the device last; a buffer stays alive while its region is
registered; what the device refuses is a ``FabricError``, and a device that is gone closes its link.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import trio

from inaproto.errors import FabricError, LocalMisuse
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
from inaproto_adapters.verbs.channel import event_descriptors, open_channel
from inaproto_adapters.verbs.devices import Device, cpus_near, find_device
from inaproto_adapters.verbs.library import verbs
from inaproto_adapters.verbs.memory import Registrations
from inaproto_adapters.verbs.neighbours import is_resolved, resolve
from inaproto_adapters.verbs.path_probe import PathAsker
from inaproto_adapters.verbs.paths import name_of, path_to
from inaproto_adapters.verbs.queue_pair import VerbsQueuePair
from inaproto_adapters.verbs.requests import Requests
from inaproto_adapters.verbs.statistics import DeviceCounters

log = logging.getLogger("inaproto.verbs")

PSN_BITS: Final = 24
_FRUITLESS_MAX: Final = 1000
"""Turns without a completion after which who polls waits for an event: nothing is on its way."""
_SUCCESS: Final = Status.SUCCESS  # a member of an enumeration takes longer to look up than a constant
_POLLED: Final = 64


@dataclass(frozen=True, slots=True)
class VerbsConfig:
    qps_max: int = 1024
    requests_max: int = 512
    """Sends, and receives, that a queue pair holds."""
    segments_max: int = 16
    completions_max: int = 1 << 15
    relaxed_ordering: int = 0
    """1: PCI Express may reorder what the device writes; completions still come behind it."""
    busy_polls: int = 0
    """Polls in a row before others have their turn; 0: waits for an event."""
    router_lid: int = 0
    """On InfiniBand: by which packets reach other subnets; 0: they do not."""


class VerbsNic:
    """A device under one of its addresses; see ``inaproto.ports.Nic``."""

    def __init__(self, device: Device, config: VerbsConfig) -> None:
        self.device: Final = device
        self._config = config
        self._refusal: type[Exception] = verbs("pyverbs_error").PyverbsError
        before = event_descriptors()
        self._context = verbs("device").Context(name=device.name)
        self._event_fds = event_descriptors() - before
        for fd in self._event_fds:
            os.set_blocking(fd, False)
        limits = self._context.query_device()
        self._qps_max = min(config.qps_max, limits.max_qp)
        self._requests_max = min(config.requests_max, limits.max_qp_wr)
        self._segments_max = min(config.segments_max, limits.max_sge)
        self._pd = verbs("pd").PD(self._context)
        self._channel, self._fd = open_channel(self._context)
        depth = min(config.completions_max, limits.max_cqe)
        self._cq = verbs("cq").CQ(self._context, depth, None, self._channel, 0)
        self._cq.req_notify()
        self._queue_pairs: dict[int, VerbsQueuePair] = {}
        self._memory = Registrations(device.name, self._pd, relaxed_ordering=config.relaxed_ordering > 0)
        nothing = self.register_memory(memoryview(bytearray(1)))
        lkey = self._memory.by_key[nothing.key].lkeys[0]
        self._requests = Requests((nothing.va, lkey), self._segments_max)
        self._batches = 0
        """That are open."""
        self._batched: dict[int, VerbsQueuePair] = {}
        """Queue pairs with requests in the batch."""
        self._own_port = device.own_port(config.router_lid)
        self._counters = DeviceCounters(device.name, device.port)
        self._path = PathAsker(device)
        self._done: list[Completion] = []
        """Completions of queue pairs that were destroyed."""
        self._serial = 0
        self._fruitless = 0
        """Turns since the last completion."""
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
            mac=self.device.mac or bytes(6),
            ip=self.device.ip or bytes(4),
            mtu_max=self.device.mtu,
            qps_max=self._qps_max,
            retry_forever=self.device.name.startswith("rxe"),
            cpus=cpus_near(self.device.name),
            infiniband=self.device.infiniband,
        )

    # --- verbs

    def register_memory(self, buffer: memoryview) -> MemoryRegion:
        with self._translated("register memory", f"{buffer.nbytes} bytes"):
            return self._memory.register(buffer)

    async def register_memory_in_parts(self, buffer: memoryview) -> MemoryRegion:
        registered = self._memory.begin(buffer)
        with (
            self._translated("register memory", f"{buffer.nbytes} bytes"),
            self._memory.undone(registered),
        ):
            while not self._memory.go_on(registered):
                await trio.lowlevel.checkpoint()
                self._require_open()
        return registered.region

    def deregister_memory(self, region: MemoryRegion) -> None:
        self._memory.end(region)

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
        has = self.device
        if has.infiniband is not None:
            return QpAddress(bytes(6), bytes(4), made.qpn, psn, infiniband=has.infiniband)
        return QpAddress(has.mac, has.ip, made.qpn, psn)

    def connect_qp(self, qpn: int, remote: QpAddress, attributes: QpAttributes) -> None:
        """At once, or when the peer is resolved: until then writes wait, and if it is not, they fail."""
        queue_pair = self._of(qpn)
        path = path_to(self._own_port, remote)
        queue_pair.may_connect(attributes, self.device.mtu)
        if self._own_port is not None or is_resolved(self.device.ip, remote.ip, self.device.interface):
            queue_pair.connect(remote, path, attributes, gid_index=self.device.gid_index)
            return
        if self._lost is not None:
            phase = "asking for its MAC address"
            raise FabricError("connect", name_of(remote), phase, self._lost, retryable=True)
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
        try:
            if not resolved:
                phase = f"asking for its MAC address at {self.device.interface}"
                raise FabricError("connect", name_of(remote), phase, "no answer", retryable=True)
            path = path_to(self._own_port, remote)
            queue_pair.connect(remote, path, attributes, gid_index=self.device.gid_index)
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
        queue_pair = self._queue_pairs.get(qpn) or self._of(qpn)
        self._serial = serial = self._serial + 1
        if queue_pair.post_receive(serial, wr_id, self._requests, batched=self._batches > 0):
            self._batched[qpn] = queue_pair
        elif queue_pair.has_failed:
            self._fail_posted(queue_pair)

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
        queue_pair = self._queue_pairs.get(qpn) or self._of(qpn)
        if not queue_pair.is_connected:
            raise LocalMisuse(f"queue pair {qpn} is not connected")
        used, total = self._memory.gather(segments, self._requests.segments)
        self._serial = serial = self._serial + 1
        request = self._requests.write(serial, used, total, queue_pair.inline_max, imm)
        request.set_wr_rdma(rkey, remote_va)
        if queue_pair.post_send(serial, wr_id, request, batched=self._batches > 0):
            self._batched[qpn] = queue_pair
        elif queue_pair.has_failed:
            self._fail_posted(queue_pair)

    def _fail_posted(self, queue_pair: VerbsQueuePair) -> None:
        self._done += queue_pair.flushed()
        self._changed.unpark_all()

    def begin_batch(self) -> None:
        """What is posted from now on may wait for the end of the batch; batches may lie in each other."""
        self._batches += 1

    def end_batch(self) -> None:
        """Hand it to the device. What that refuses fails, as if it had been taken and could not be done."""
        self._batches -= 1
        if self._batches or not self._batched:
            return
        batched, self._batched = self._batched, {}
        for queue_pair in batched.values():
            try:
                queue_pair.post_batch(self._requests)
            except FabricError as error:
                log.warning("%s: %s", self.device.name, error)
                self._done += queue_pair.refused()
                self._changed.unpark_all()

    def queue_pair(self, qpn: int) -> VerbsQueuePair:
        """One of this NIC's. Raises ``LocalMisuse``."""
        return self._of(qpn)

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
        self._batched.pop(qpn, None)
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
                status = self._status_of(one) if one.status else _SUCCESS
                queue_pair = self._queue_pairs.get(one.qp_num)
                if queue_pair is not None and not queue_pair.has_failed:
                    queue_pair.completed(one.wr_id, status, one.imm_data, one.byte_len, found)
            if count < _POLLED:
                return found

    def _status_of(self, failed: Any) -> Status:
        status = statuses.decode(failed.status)
        if status is not Status.FLUSHED:
            name = statuses.name(failed.status)
            log.warning("%s: queue pair %d: %s", self.device.name, failed.qp_num, name)
        return status

    async def wait_completions(self) -> list[Completion]:
        await trio.lowlevel.checkpoint()
        while True:
            self._require_open()
            found = self.poll() or self._poll_on()
            if found:
                self._fruitless = 0
                return found
            if self._fruitless < _FRUITLESS_MAX and self._config.busy_polls:
                self._fruitless += 1
                await trio.lowlevel.checkpoint()
                continue
            self._fruitless = 0
            await self._changed.park()

    def _poll_on(self) -> list[Completion]:
        """Ask again and again instead of waiting for an event, where that was wished for."""
        for _ in range(self._config.busy_polls):
            found = self.poll()
            if found or self._lost is not None:
                return found
        return []

    def _require_open(self) -> None:
        if self._closed is not None or self._lost is not None:
            raise PortClosed(self._closed or self._lost or "")

    async def probe_path(self, mtus: Sequence[int]) -> int:
        """See ``inaproto.ports.ProbesPath``."""
        return await self._path.probe_path(mtus)

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
                self._nursery.start_soon(self._path.run)
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
        """A device that is lost loses its host the link."""
        is_infiniband = self._own_port is not None
        why = await events.watch(self._context, fd, self.device.name, is_infiniband=is_infiniband)
        if why is not None:
            self._lose(why)

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()
        if self._closed is not None:
            return
        self._closed = f"the RoCE device {self.device.name} was closed"
        if self._run_scope is not None:
            self._run_scope.cancel()
        self._changed.unpark_all()
        queue_pairs = list(self._queue_pairs.values())
        self._queue_pairs.clear()
        self._unresolved.clear()
        for part in (*queue_pairs, self._memory, self._cq, self._channel, self._pd, self._context):
            try:
                part.close()
            except (FabricError, self._refusal) as error:  # a device that is gone has closed it
                log.warning("%s: %s", self.device.name, error)
        await self._path.aclose()

    # --- parts

    def _of(self, qpn: int) -> VerbsQueuePair:
        found = self._queue_pairs.get(qpn)
        if found is None:
            raise LocalMisuse(f"there is no queue pair {qpn}")
        return found

    @contextlib.contextmanager
    def _translated(self, op: str, what: str) -> Iterator[None]:
        try:
            yield
        except self._refusal as error:
            raise FabricError(op, self.device.name, what, str(error), retryable=True) from None


def open_nic(*, ip: bytes = b"", gid: bytes = b"", **limits: int) -> VerbsNic:
    """The device that has the address ``ip`` (4 bytes, or 16 of IPv6), or on InfiniBand the GID ``gid`` (16);
    ``limits`` are fields of :class:`VerbsConfig`.

    Raises ``Unsupported``: no pyverbs, no such device, or one that cannot be used, and why.
    """
    return VerbsNic(find_device(gid or ip, infiniband=bool(gid)), VerbsConfig(**limits))
