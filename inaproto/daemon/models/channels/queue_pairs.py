"""The NIC of a process of the overlay, and the queue pairs on it: opened, kept, and given up for TCP.

Two processes that are connected by TCP (or TLS) find in step whether a queue pair can take its place: each
names one, connects it, and has what the other wrote by it as a proof; each of these steps is one message of
either side, and who cannot go on says why instead. Then both stay with TCP, and know the reason.

Invariants: both sides of a connection come to the same; a NIC that has lost its link ends its streams, not
its process, and is opened again until it is there; as long as it is not, connections go by TCP.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import trio

from inaproto.daemon.models.channels.message_channel import StreamChannel
from inaproto.daemon.models.channels.queue_pair_stream import QueuePairStream
from inaproto.errors import DecodeError, FabricError, Unsupported
from inaproto.ports import Completion, Nic, PortClosed
from inaproto.wire.control_messages import Message
from inaproto.wire.messages.model_connections import (
    OverlayNoQueuePair,
    OverlayQueuePair,
    OverlayQueuePairReady,
)

OpenNic = Callable[[], Awaitable[Nic]]
STEP_S: Final = 10.0
"""For a step of the peer, its proof among them."""
RETRY_FIRST_S: Final = 0.1
RETRY_LAST_S: Final = 2.0
CLOSE_S: Final = 0.5
_WHY_CHARACTERS_MAX: Final = 500

M = TypeVar("M", bound=Message)
log = logging.getLogger("inaproto.overlay")


class NoQueuePair(Exception):
    """Both sides know that there is none, and why: they go on by the stream that they have."""


class QueuePairs:
    """All streams of a process's NIC, whose completions this takes; :meth:`run` it."""

    def __init__(self, open_nic: OpenNic, *, traffic_class: int = 0) -> None:
        """``open_nic`` raises ``FabricError``, ``PortClosed`` or ``OSError`` where one more try is due."""
        self._open_nic = open_nic
        self._traffic_class = traffic_class
        self._nic: Nic | None = None
        self._nursery: trio.Nursery | None = None
        self._streams: dict[int, QueuePairStream] = {}
        self.trouble = "not tried yet"
        """Why there is no NIC now."""

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled. Started after the first attempt to open the NIC.

        Raises ``Unsupported`` and ``ConfigError`` of that attempt: it can never be opened.
        """
        retry_s, is_first = RETRY_FIRST_S, True
        while True:
            try:
                nic = await self._open_nic()
            except (FabricError, OSError) as error:
                self._note(str(error))
            except PortClosed as closed:
                self._note(closed.reason)
            except Unsupported as error:
                if is_first:
                    raise
                self._note(str(error))
            else:
                retry_s = RETRY_FIRST_S
                if is_first:
                    task_status.started()
                    is_first = False
                await self._serve(nic)
            if is_first:
                task_status.started()
                is_first = False
            await trio.sleep(retry_s)
            retry_s = min(2 * retry_s, RETRY_LAST_S)

    def _note(self, why: str) -> None:
        if why != self.trouble:
            log.warning("there is no NIC for words and arrays, they go by TCP: %s", why)
        self.trouble = why[:_WHY_CHARACTERS_MAX]

    async def _serve(self, nic: Nic) -> None:
        """As long as the NIC has its link."""
        self._nic, self.trouble = nic, ""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(nic.run)
                try:
                    while True:
                        self._dispatch(await nic.wait_completions())
                except PortClosed as closed:
                    self._note(f"the NIC has lost its link: {closed.reason}")
                finally:
                    self._nic = self._nursery = None
                nursery.cancel_scope.cancel()
        finally:
            for stream in list(self._streams.values()):
                stream.fail(self.trouble or "the process ends")
                stream.release(self.trouble or "the process ends")
            with trio.CancelScope(shield=True), trio.move_on_after(CLOSE_S):
                await nic.aclose()

    def _dispatch(self, completions: Sequence[Completion]) -> None:
        for completion in completions:
            stream = self._streams.get(completion.qpn)
            if stream is not None:
                stream.completed(completion)

    # --- a connection that might go by the NIC

    async def open(self, other: StreamChannel) -> QueuePairStream:
        """In place of ``other``, whose far side does the same; from now on ``other`` is the stream's.

        Raises ``NoQueuePair``: both go on by ``other``. Raises what ``other`` raises, ``DecodeError`` for a
        peer that does something else, ``FabricError`` for one that is silent: then ``other`` is of no use.
        """
        stream: QueuePairStream | None = None
        try:
            mine: Message
            try:
                stream = self._new_stream(other)
                mine = stream.offer()
            except FabricError as error:
                mine = _none(error)
            remote = await _in_step(other, mine, OverlayQueuePair)
            assert stream is not None
            await _in_step(other, await self._ready(self._connect(stream, remote)), OverlayQueuePairReady)
            await _in_step(other, await self._ready(stream.prove()), OverlayQueuePairReady)
        except BaseException:
            if stream is not None:
                stream.abort()
            raise
        stream.keep_beside()
        return stream

    def _new_stream(self, other: StreamChannel) -> QueuePairStream:
        nic = self._nic
        if nic is None:
            raise FabricError("open", "the NIC", "making a queue pair", self.trouble, retryable=True)
        if len(self._streams) >= nic.capabilities.qps_max:
            all_of = f"all {nic.capabilities.qps_max} queue pairs are in use"
            raise FabricError("open", "the NIC", "making a queue pair", all_of, retryable=True)
        stream = QueuePairStream(nic, self, other)
        self._streams[stream.address.qpn] = stream
        return stream

    async def _connect(self, stream: QueuePairStream, remote: OverlayQueuePair) -> None:
        nic = self._nic
        if nic is None:
            raise FabricError("open", "the NIC", "connecting", self.trouble, retryable=True)
        stream.connect(remote, traffic_class=self._traffic_class)
        await nic.wait_connected(stream.address.qpn)

    async def _ready(self, step: Awaitable[None]) -> Message:
        """What is to be said of it."""
        try:
            with trio.fail_after(STEP_S):
                await step
        except (FabricError, PortClosed, trio.TooSlowError, trio.ClosedResourceError) as error:
            return _none(error)
        return OverlayQueuePairReady()

    # --- Owner

    def linger(self, stream: QueuePairStream) -> None:
        if self._nursery is None:
            stream.abort()
        else:
            self._nursery.start_soon(stream.linger)

    def gone(self, stream: QueuePairStream) -> None:
        self._streams.pop(stream.address.qpn, None)
        self.look()  # what is left of it there is not taken for the next one's of its number

    def look(self) -> None:
        if self._nic is not None:
            self._dispatch(self._nic.poll())

    # --- for people

    def status(self) -> dict[str, Any]:
        nic = self._nic
        record: dict[str, Any] = {"trouble": self.trouble, "queue_pairs": len(self._streams)}
        if nic is None:
            return record | {"name": "", "ip": "", "counters": {}}
        has = nic.capabilities
        return record | {
            "name": has.name,
            "ip": str(ipaddress.ip_address(has.ip)),
            "counters": nic.statistics(),
        }


def _none(error: BaseException) -> OverlayNoQueuePair:
    reason = error.reason if isinstance(error, PortClosed) else str(error) or f"not done in {STEP_S:g} s"
    return OverlayNoQueuePair(why=reason[:_WHY_CHARACTERS_MAX])


async def _in_step(other: StreamChannel, mine: Message, wanted: type[M]) -> M:
    """Say one thing and hear one. Raises ``NoQueuePair`` if either is that."""
    try:
        with trio.fail_after(STEP_S):
            other.send_nowait(mine)
            await other.flush()
            theirs = await other.receive()
    except trio.TooSlowError:
        phase, why = "exchanging queue pairs", f"not ready within {STEP_S:g} s"
        raise FabricError("connect", other.address, phase, why, retryable=True) from None
    if isinstance(mine, OverlayNoQueuePair):
        raise NoQueuePair(mine.why)
    if isinstance(theirs, OverlayNoQueuePair):
        raise NoQueuePair(f"its peer says: {theirs.why}")
    if not isinstance(theirs, wanted):
        raise DecodeError("overlay", f"{theirs.TYPE!r}, where {wanted.TYPE!r} was to come")
    return theirs
