"""Trio shell of the softnic engine: implements ``inaproto.ports.Nic`` over any ``FramePort``.

Two tasks own the engine: one takes in what the port receives, one sleeps until the engine's deadline.
Whoever has asked for it is told of completions in the first of them, right behind the receive, and what
he posts there is sent together.
A timer is served only after what has come meanwhile: an ACK that waits in the port shows that nothing is
lost.
Both, and the synchronous verbs, end in ``_settle``, which hands output to the port without waiting,
moves the deadline and wakes whoever waits for completions. What the port cannot take is lost as on a
wire, counted as ``output_lost``, and comes again by go-back-N.

With ``moderation`` (interrupt moderation, as network cards have it) the port is left alone after each receive
while the engine says that messages queue on the way (``SoftNicEngine.rest_ns``), so that one wake-up finds
what several would have found. A rest ends at once when a timer is due, the NIC closes, or something is posted
that will be waited for; there is none for a while after one from which the process came back late.

The NIC owns its port: ``run`` runs it, ``aclose`` closes it. When the port closes, completions that
are there can still be taken; then ``wait_completions`` raises ``PortClosed`` with the reason.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import trio

from inaproto.core.rdma.dcqcn import DcqcnConfig
from inaproto.core.rdma.nic import SoftNicConfig, SoftNicEngine
from inaproto.core.rdma.pacing import PaceConfig
from inaproto.core.rdma.reliable_connection import MTUS
from inaproto.daemon.shell import Rest
from inaproto.errors import LocalMisuse, Unsupported
from inaproto.ports import (
    Completion,
    FramePort,
    MemoryRegion,
    NicCapabilities,
    PortClosed,
    QpAddress,
    QpAttributes,
    Segment,
    SendsBlocks,
    TakesNow,
)
from inaproto.units import US, Frames, Instant, S

PROBES_MAX: Final = 6
PROBE_S: Final = 0.05
"""How long the first question whether frames come through is waited for; the n-th, n times as long."""
PACE_QUANTUM_NS: Final = 200 * US
"""A process that woke for each packet, or each 55 us to let a rate grow, would do nothing else."""
RECEIVES_BEFORE_TIMERS_MAX: Final = 64
"""A port that never falls silent does not keep timers from being served."""


def _now() -> Instant:
    return Instant(round(trio.current_time() * S))


def _late(deadline: Instant | None) -> float:
    """When to wake: a microsecond late, so that the float clock is past the deadline for sure."""
    return math.inf if deadline is None else (deadline + US) / S


class SoftNic:
    """A RoCEv2 NIC in user space; see ``inaproto.ports.Nic``."""

    def __init__(self, port: FramePort, config: SoftNicConfig, *, moderation: bool = False) -> None:
        self._port = port
        self._moderation = moderation
        self._rest = Rest()
        self._sends_blocks = port if isinstance(port, SendsBlocks) else None
        self._takes = port if isinstance(port, TakesNow) else None
        self._engine = SoftNicEngine(config, reuses_output=True)  # ports copy what they send
        self._completed = trio.lowlevel.ParkingLot()
        self._timer_scope: trio.CancelScope | None = None
        self._timer_at: Instant | None = None  # for which the task of timers waits
        self._closed: str | None = None
        self._receives = 0
        self._running = False
        self._tell: Callable[[Sequence[Completion]], None] | None = None
        self._batches = 0  # that have begun and not ended, one inside the other
        self._batch_now = Instant(0)  # when the outer one began
        self._probed: trio.Event | None = None  # somebody waits for answers to probes

    @property
    def capabilities(self) -> NicCapabilities:
        config = self._engine.config
        return NicCapabilities(
            name="softnic",
            mac=config.mac,
            ip=config.ip,
            mtu_max=config.mtu_max,
            qps_max=config.qps_max,
            retry_forever=True,
            way=self._port.capabilities.way,
        )

    # ---- verbs -----------------------------------------------------------------------------------

    def register_memory(self, buffer: memoryview) -> MemoryRegion:
        return self._engine.register_memory(buffer)

    def deregister_memory(self, region: MemoryRegion) -> None:
        self._engine.deregister_memory(region)

    def create_qp(self, *, psn: int) -> QpAddress:
        return self._engine.create_qp(psn=psn)

    def connect_qp(self, qpn: int, remote: QpAddress, attributes: QpAttributes) -> None:
        self._engine.connect_qp(qpn, remote, attributes)

    def post_receive(self, qpn: int, wr_id: int) -> None:
        self._engine.post_receive(qpn, wr_id)
        if not self._batches:
            self._settle()

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
        now = self._batch_now if self._batches else _now()
        self._engine.post_write_imm(qpn, wr_id, segments, remote_va=remote_va, rkey=rkey, imm=imm, now=now)
        if not self._batches:
            self._settle()

    def destroy_qp(self, qpn: int) -> None:
        self._engine.destroy_qp(qpn)
        self._settle()

    def begin_batch(self) -> None:
        """What is posted from here on is sent at the end of the batch."""
        if not self._batches:
            self._batch_now = _now()
        self._batches += 1

    def end_batch(self) -> None:
        self._batches -= 1
        self._settle()

    def tell_completions(self, to: Callable[[Sequence[Completion]], None]) -> None:
        """See ``inaproto.ports.TellsCompletions``."""
        self._tell = to

    def poll(self) -> list[Completion]:
        return self._engine.take_completions()

    async def wait_connected(self, qpn: int) -> None:
        """At once: nobody is asked for the peer's MAC address, which is told with the rest of it."""
        await trio.lowlevel.checkpoint()
        if self._closed is not None:
            raise PortClosed(self._closed)
        self._engine.require_connected(qpn)

    async def wait_completions(self) -> list[Completion]:
        await trio.lowlevel.checkpoint()
        while not self._engine.has_completions:
            if self._closed is not None:
                raise PortClosed(self._closed)
            await self._completed.park()
        return self._engine.take_completions()

    async def probe_path(self, mtus: Sequence[int]) -> int:
        """See ``inaproto.ports.ProbesPath``."""
        path, largest = self._engine.path, max(mtus)
        path.begin(self._port.capabilities.links)
        for attempt in range(1, PROBES_MAX + 1):
            path.ask([mtu for mtu in mtus if mtu > path.mtu or mtu == min(mtus)])
            self._settle()
            with trio.move_on_after(attempt * PROBE_S):
                while path.mtu < largest and self._closed is None:
                    self._probed = trio.Event()
                    await self._probed.wait()
            self._probed = None
            if path.mtu >= largest or self._closed is not None:
                break
        return path.mtu

    def statistics(self) -> dict[str, int]:
        port = self._port.counters
        return self._engine.statistics() | {"bytes_sent": port.bytes_out, "bytes_received": port.bytes_in}

    # ---- running ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until the port closes or ``aclose``. Returns; ``wait_completions`` tells why."""
        if self._running:
            raise LocalMisuse("this NIC runs already")
        self._running = True
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._port.run)
                nursery.start_soon(self._serve_timers)
                try:
                    await self._serve_port()
                except PortClosed as closed:
                    self._close(closed.reason)
                nursery.cancel_scope.cancel()
        finally:
            self._rest.close()
            self._close("the NIC does not run any more")

    async def aclose(self) -> None:
        """Close the NIC and its port; ``run`` returns."""
        self._close("the NIC was closed")
        await self._port.aclose()

    async def _serve_port(self) -> None:
        while True:
            blocks: Sequence[Frames] = ()
            if self._moderation and (rest_ns := self._engine.rest_ns):
                rested = await self._rest.until(trio.current_time() + rest_ns / S)
                if rested and self._takes is not None:  # receive begins with a turn of the loop
                    blocks = self._takes.take_nowait()
            if not blocks:
                blocks = await self._port.receive()
            self._receives += 1
            self._engine.handle_frames(blocks, _now())
            if self._probed is not None:
                self._probed.set()
            if self._tell is not None and self._engine.has_completions:
                self.begin_batch()
                try:
                    self._tell(self._engine.take_completions())
                finally:
                    self._batches -= 1
            self._settle()

    async def _serve_timers(self) -> None:
        while True:
            self._timer_at = self._engine.deadline
            with trio.CancelScope(deadline=_late(self._timer_at)) as self._timer_scope:
                await trio.sleep_forever()
            if not self._is_due():  # acknowledgements have moved it meanwhile, as they mostly do
                continue
            await self._take_in()
            self._engine.handle_timer(_now())
            self._settle()

    def _is_due(self) -> bool:
        deadline = self._engine.deadline
        return deadline is not None and deadline <= _now()

    async def _take_in(self) -> None:
        """Let the other task take in what the port holds."""
        if self._rest.lasts:
            self._rest.end()
            await trio.lowlevel.checkpoint()
        for _ in range(RECEIVES_BEFORE_TIMERS_MAX):
            receives = self._receives
            # The first lets Trio ask the kernel which ports have input, the second lets the task have it.
            await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()
            if self._receives == receives:
                return

    def _settle(self) -> None:
        """After anything that may have changed the engine: send, move the timer, wake the waiting.

        A timer that is now later is left: who wakes too early looks at the engine's deadline again.
        """
        if self._batches:
            return
        output = self._engine.take_output()
        if output and self._closed is None:
            lost = 0
            try:
                if self._sends_blocks is not None:
                    lost = self._sends_blocks.send_blocks_nowait(output)
                else:
                    for frames in output:
                        lost += len(frames) - self._port.send_nowait(frames)
            except PortClosed as closed:
                self._close(closed.reason)
            if lost:
                self._engine.count_lost_output(lost)
        at = self._engine.deadline
        if at is not None and (self._timer_at is None or at < self._timer_at):
            self._timer_at = at
            if self._timer_scope is not None:
                self._timer_scope.deadline = _late(at)
        if self._engine.has_completions:
            self._completed.unpark_all()
        if self._rest.lasts and not self._engine.rest_ns:
            self._rest.end()

    def _close(self, reason: str) -> None:
        if self._closed is None:
            self._closed = reason
        self._rest.end()
        self._completed.unpark_all()


def open_nic(
    port: FramePort, *, mac: bytes, ip: bytes, moderation: bool = False, dcqcn_mbit: int = 0, **limits: Any
) -> SoftNic:
    """A softnic on ``port``; ``limits`` are fields of ``SoftNicConfig``.

    ``moderation``: take in what comes less often while messages queue on the way. ``dcqcn_mbit``: congestion
    control for a link of that rate; packets that have a rate leave each ``PACE_QUANTUM_NS``.
    The largest MTU that fits the port's frames is ``mtu_max``. Raises ``ConfigError`` for limits that
    cannot be and ``Unsupported`` if no MTU fits. ``first_key`` and ``first_qpn`` are drawn unless given,
    so that packets and peers that remember an earlier life of this address do not fit the new one.
    """
    if dcqcn_mbit:
        limits["congestion"] = DcqcnConfig(line_rate_bps=dcqcn_mbit * 1_000_000)
        limits["pace"] = PaceConfig(quantum_ns=PACE_QUANTUM_NS)
    limits.setdefault("first_key", 1 + secrets.randbelow((1 << 32) - 1))
    limits.setdefault("first_qpn", 2 + secrets.randbelow((1 << 24) - 2))
    config = SoftNicConfig(mac=mac, ip=ip, **limits)
    overhead = config.overhead_bytes
    payload_max = min(config.mtu_max, port.capabilities.frame_bytes_max - overhead)
    fitting = [mtu for mtu in MTUS if mtu <= payload_max]
    if not fitting:
        raise Unsupported(
            "softnic",
            f"port {port.capabilities.name!r} takes frames of {port.capabilities.frame_bytes_max} bytes and "
            f"mtu_max is {config.mtu_max}; RoCE needs {overhead} and an MTU of {MTUS[0]} or more",
        )
    return SoftNic(port, replace(config, mtu_max=fitting[-1]), moderation=moderation)
