"""A host measures its link to another where the switch asks for it: the host's side.

Two queue pairs of the hosts' own NICs, each for this probe alone. Small writes, one after the other, give the
latency: half of the shortest time until one is acknowledged. Then a large amount in writes that follow each
other gives the rate, twice. Every step has a bound in time, all memory goes back at the end; who is asked
by a peer answers a few at once.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

import trio

from inaproto.errors import FabricError, LocalMisuse
from inaproto.ports import (
    Completion,
    CompletionKind,
    MemoryRegion,
    Nic,
    PortClosed,
    QpAddress,
    QpAttributes,
    Segment,
    Status,
)
from inaproto.units import S
from inaproto.wire.control_messages import Message
from inaproto.wire.messages.probe import LinkProbe, LinkProbed, LinkProbeWord

STEP_S: Final = 5.0
ANSWERS_MAX: Final = 4
"""Most probes of others that are answered at once."""
SMALL: Final = 8
LARGE: Final = 2
"""The better one counts: a packet that came again after a timer is no rate."""
WRITE_BYTES: Final = 64 << 10
RECEIVES_SPARE: Final = 8


class _NotMeasured(Exception):
    """In words."""


@dataclass(eq=False)
class _End:
    """A queue pair for one probe, and the memory for it."""

    address: QpAddress
    region: MemoryRegion
    completed: int = 0
    """Writes that are acknowledged."""
    failed: str = ""
    news: trio.Event = field(default_factory=trio.Event)
    answer: LinkProbeWord | None = None
    is_over: bool = False

    def tell(self) -> None:
        self.news.set()
        self.news = trio.Event()


class LinkProbing:
    """Probes links during one life of a host's NIC; ``tell`` speaks to the switch."""

    def __init__(self, nic: Nic, attributes: QpAttributes, tell: Callable[[Message], None]) -> None:
        self._nic = nic
        self._attributes = attributes
        self._tell = tell
        self._own: dict[int, _End] = {}
        self._answering: dict[int, _End] = {}

    def completed(self, completion: Completion) -> None:
        """Takes a completion of a queue pair that is of no ring."""
        for end in (*self._own.values(), *self._answering.values()):
            if end.address.qpn == completion.qpn:
                if completion.status is not Status.SUCCESS:
                    end.failed = end.failed or completion.status.value
                elif completion.kind is CompletionKind.SEND:
                    end.completed += 1
                end.tell()

    def heard(self, nursery: trio.Nursery, message: LinkProbe | LinkProbeWord) -> None:
        """From the switch."""
        number = message.id or 0
        if isinstance(message, LinkProbe):
            if number not in self._own:
                nursery.start_soon(self._measure, number, message.nbytes)
        elif message.kind == "offer":
            nursery.start_soon(self._answer, number, message)
        else:
            end = (self._own if message.kind == "answer" else self._answering).get(number)
            if end is not None:
                end.answer, end.is_over = message, message.kind == "end"
                end.tell()

    # --- who measures

    async def _measure(self, number: int, nbytes: int) -> None:
        try:
            latency_ns, rate_bps = await self._figures(number, nbytes)
            self._tell(LinkProbed(id=number, latency_ns=latency_ns, rate_bps=rate_bps))
        except (_NotMeasured, FabricError, LocalMisuse) as why:
            self._tell(LinkProbed(id=number, latency_ns=0, rate_bps=0, why=str(why)[:500]))
        except PortClosed:
            pass  # the fabric ends with it
        finally:
            self._tell(LinkProbeWord(id=number, kind="end"))

    async def _figures(self, number: int, nbytes: int) -> tuple[int, int]:
        with ExitStack() as stack:
            end = self._open(stack, min(nbytes, WRITE_BYTES))
            self._own[number] = end
            stack.callback(self._own.pop, number)
            self._tell(_word(number, "offer", end, nbytes))
            await self._wait(end, lambda: end.answer is not None, "its peer has not answered")
            there = end.answer
            assert there is not None
            if there.why:
                raise _NotMeasured(f"its peer says: {there.why}")
            if there.nbytes < end.region.nbytes:
                raise _NotMeasured(f"its peer has {there.nbytes} bytes to write to")
            await self._connect(end, there)
            shortest_ns = min([await self._timed(end, there, [1]) for _ in range(SMALL)])
            whole, rest = divmod(nbytes, WRITE_BYTES)
            writes = [WRITE_BYTES] * whole + [rest] * bool(rest)
            large_ns = min([await self._timed(end, there, writes) for _ in range(LARGE)])
            took_ns = max(large_ns - shortest_ns, large_ns // 2, 1)  # the first packet's way is no rate
            return shortest_ns // 2, max(1, 8 * S * nbytes // took_ns)

    async def _timed(self, end: _End, there: LinkProbeWord, writes: list[int]) -> int:
        """Until all are acknowledged, ns."""
        before, began = end.completed, trio.current_time()
        for nbytes in writes:
            segment = Segment(end.region.key, end.region.va, nbytes)
            qpn = end.address.qpn
            self._nic.post_write_imm(qpn, 0, [segment], remote_va=there.va, rkey=there.rkey, imm=0)
        await self._wait(end, lambda: end.completed >= before + len(writes), "a write is not acknowledged")
        return round((trio.current_time() - began) * S)

    # --- who is asked

    async def _answer(self, number: int, offer: LinkProbeWord) -> None:
        if number in self._answering or len(self._answering) >= ANSWERS_MAX or not offer.nbytes:
            self._tell(LinkProbeWord(id=number, kind="answer", why="it answers as many probes as it can"))
            return
        try:
            with ExitStack() as stack:
                end = self._open(stack, min(offer.nbytes, WRITE_BYTES))
                self._answering[number] = end
                stack.callback(self._answering.pop, number)
                for receive in range(SMALL + LARGE * -(-offer.nbytes // WRITE_BYTES) + RECEIVES_SPARE):
                    self._nic.post_receive(end.address.qpn, receive)
                await self._connect(end, offer)
                self._tell(_word(number, "answer", end, end.region.nbytes))
                with trio.move_on_after((SMALL + LARGE + 3) * STEP_S):
                    while not end.is_over:
                        await end.news.wait()
        except (_NotMeasured, FabricError, LocalMisuse) as why:
            self._tell(LinkProbeWord(id=number, kind="answer", why=str(why)[:500]))
        except PortClosed:
            pass

    # --- both

    def _open(self, stack: ExitStack, nbytes: int) -> _End:
        """Given back when ``stack`` is closed."""
        region = self._nic.register_memory(memoryview(bytearray(nbytes)))
        stack.callback(self._nic.deregister_memory, region)
        address = self._nic.create_qp(psn=0)
        stack.callback(self._nic.destroy_qp, address.qpn)
        return _End(address, region)

    async def _connect(self, end: _End, there: LinkProbeWord) -> None:
        remote = QpAddress(there.mac, there.ip, there.qpn, there.psn, infiniband=there.infiniband)
        self._nic.connect_qp(end.address.qpn, remote, self._attributes)
        with trio.move_on_after(STEP_S) as scope:
            await self._nic.wait_connected(end.address.qpn)
        if scope.cancelled_caught:
            raise _NotMeasured(f"its queue pair is not connected within {STEP_S:g} s")

    async def _wait(self, end: _End, holds: Callable[[], bool], what: str) -> None:
        with trio.move_on_after(STEP_S):
            while not holds() and not end.failed:
                await end.news.wait()
        if end.failed:
            raise _NotMeasured(f"its queue pair has failed: {end.failed}")
        if not holds():
            raise _NotMeasured(f"{what} within {STEP_S:g} s")


def _word(number: int, kind: str, end: _End, nbytes: int) -> LinkProbeWord:
    at, region = end.address, end.region
    return LinkProbeWord(
        id=number,
        kind="offer" if kind == "offer" else "answer",
        mac=at.mac,
        ip=at.ip,
        qpn=at.qpn,
        psn=at.psn,
        va=region.va,
        rkey=region.key,
        infiniband=at.infiniband,
        nbytes=nbytes,
    )
