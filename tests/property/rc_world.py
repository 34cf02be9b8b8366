"""A requester and a responder with a faulty channel between them, packet by packet.

The world checks, at every step, what RC promises: payloads are placed once, in order, at the right
address; a receive is consumed by the message it belongs to and only when that is whole; a write
completes with SUCCESS only when all of it was placed. The tests decide which fault happens when.
"""

from __future__ import annotations

from collections import deque
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, TypeVar

import numpy as np

from inaproto.core.rdma.behind_gap import PacketsBehind
from inaproto.core.rdma.reliable_connection import Outcome, packets_of
from inaproto.core.rdma.requester import (
    AckArrived,
    Complete,
    PostWrite,
    RcRequester,
    RequesterAction,
    RequesterConfig,
    TimerExpired,
    Transmit,
)
from inaproto.core.rdma.responder import (
    Deliver,
    PacketArrived,
    Place,
    PostReceive,
    RcResponder,
    Reply,
    ResponderConfig,
    RunArrived,
)
from inaproto.core.rdma.selective_requester import SelectiveRequester
from inaproto.core.rdma.selective_responder import SelectiveResponder
from inaproto.units import Instant
from inaproto.wire.behind_gap import BehindGap
from inaproto.wire.roce import Opcode

RKEY = 7
VA_STRIDE = 1 << 20
START = Instant(0)
_Core = TypeVar("_Core", RcRequester, RcResponder)


@dataclass(frozen=True, slots=True)
class DataPacket:
    opcode: int
    psn: int
    ack_request: bool
    nbytes: int
    reth: tuple[int, int, int] | None
    imm: int | None
    origin: tuple[int, int]
    """(message, packet) that it really is."""
    overtaken: int = 0

    @property
    def alike(self) -> tuple[Any, ...]:
        """What the packets of one run have in common."""
        return self.opcode, self.nbytes, self.reth, self.imm


@dataclass(frozen=True, slots=True)
class AckPacket:
    psn: int
    syndrome: int
    msn: int
    behind: BehindGap | None = None
    overtaken: int = 0


def packets(transmit: Transmit, mtu: int, psn_mask: int) -> list[DataPacket]:
    """The packets that a ``Transmit`` orders."""
    message = transmit.message
    write = message.write
    made = []
    for number in range(transmit.first_packet, transmit.first_packet + transmit.count):
        first, last = number == 0, number == message.packets - 1
        match first, last:
            case True, True:
                opcode = Opcode.RC_WRITE_ONLY_IMM
            case True, False:
                opcode = Opcode.RC_WRITE_FIRST
            case False, False:
                opcode = Opcode.RC_WRITE_MIDDLE
            case _:
                opcode = Opcode.RC_WRITE_LAST_IMM
        made.append(
            DataPacket(
                opcode=opcode,
                psn=(transmit.psn + number - transmit.first_packet) & psn_mask,
                ack_request=last or number in transmit.ack_packets,
                nbytes=write.nbytes - mtu * number if last else mtu,
                reth=(write.remote_va, write.rkey, write.nbytes) if first else None,
                imm=write.imm if last else None,
                origin=(message.serial, number),
            )
        )
    return made


@dataclass(slots=True)
class RcWorld:
    """Writes of ``lengths`` bytes. Time stands still except that timers expire."""

    lengths: tuple[int, ...]
    sizes: tuple[int, ...]
    """Packets of each."""
    requester: RcRequester
    responder: RcResponder
    data: tuple[DataPacket, ...] = ()
    acks: tuple[AckPacket, ...] = ()
    now: Instant = START
    receives_posted: int = 0
    writes_posted: int = 0
    placed: int = 0
    delivered: int = 0
    completed: int = 0
    order: list[tuple[int, int]] = field(default_factory=list)
    """Every packet of every message, in the only order allowed."""
    selective: bool = False
    """Packets behind a gap are placed as they come."""
    there: frozenset[tuple[int, int]] = frozenset()
    """Packets that were placed, on a selective connection."""
    lost: int = 0
    """Packets and acknowledgements that the weather took."""

    @classmethod
    def start(
        cls,
        lengths: tuple[int, ...],
        *,
        psn_mask: int,
        initial_psn: int,
        window: int,
        ack_every: int,
        mtu: int = 1,
        selective: bool = False,
    ) -> RcWorld:
        requester = (SelectiveRequester if selective else RcRequester)(
            RequesterConfig(
                initial_psn=initial_psn,
                mtu=mtu,
                outstanding_packets_max=window,
                ack_every=ack_every,
                backoff_doublings_max=0,
                behind_max=window - 1 if selective else 0,
                psn_mask=psn_mask,
            )
        )
        responder = (SelectiveResponder if selective else RcResponder)(
            ResponderConfig(
                initial_psn=initial_psn,
                mtu=mtu,
                psn_mask=psn_mask,
                behind_max=window - 1 if selective else 0,
            )
        )
        sizes = tuple(packets_of(nbytes, mtu) for nbytes in lengths)
        order = [(message, packet) for message, size in enumerate(sizes) for packet in range(size)]
        return cls(lengths, sizes, requester, responder, order=order, selective=selective)

    def fork(self) -> RcWorld:
        return replace(self, requester=_fork(self.requester), responder=_fork(self.responder))

    @property
    def finished(self) -> bool:
        return self.completed == self.delivered == len(self.sizes)

    def key(self) -> tuple[Any, ...]:
        """Equal for worlds with equal futures: all state, times relative to ``now``."""
        return (
            _freeze(self.requester, self.now),
            _freeze(self.responder, self.now),
            self.data,
            self.acks,
            self.receives_posted,
            self.writes_posted,
            self.placed,
            self.there,
            self.delivered,
            self.completed,
        )

    # ---- what can happen -------------------------------------------------------------------------

    def post_write(self) -> None:
        number = self.writes_posted
        self.writes_posted += 1
        write = PostWrite(number, self.lengths[number], VA_STRIDE * number, RKEY, imm=1000 + number)
        self._requested(self.requester.step(write, self.now))

    def post_receive(self) -> None:
        assert not self.responder.step(PostReceive(self.receives_posted), self.now)
        self.receives_posted += 1

    def expire(self) -> None:
        deadline = self.requester.deadline
        assert deadline is not None, "nothing under way, and nobody waits for a timer"
        self.now = max(self.now, deadline)
        self._requested(self.requester.step(TimerExpired(), self.now))

    def deliver_data(self, index: int) -> None:
        """The packet at ``index`` arrives, overtaking those before it."""
        packet = self.data[index]
        passed = (replace(other, overtaken=other.overtaken + 1) for other in self.data[:index])
        self.data = (*passed, *self.data[index + 1 :])
        self.arrive([packet])

    def deliver_run(self, count: int) -> None:
        """The first packets of the queue arrive, at most ``count``, as one run of what they share."""
        head = self.data[0]
        run = list(takewhile(lambda packet: packet.alike == head.alike, self.data[:count]))
        self.data = self.data[len(run) :]
        self.arrive(run)

    def arrive(self, run: list[DataPacket]) -> None:
        """Packets alike in all but PSN and AckReq arrive at the responder at once; one alone as such."""
        head = run[0]
        event: RunArrived | PacketArrived
        if len(run) == 1:
            event = PacketArrived(
                head.opcode, head.psn, head.ack_request, head.nbytes, head.reth, head.imm, permitted=True
            )
        else:
            event = RunArrived(
                opcode=head.opcode,
                psn=np.array([packet.psn for packet in run], np.int64),
                ack_request=np.array([packet.ack_request for packet in run]),
                payload_bytes=head.nbytes,
                reth=head.reth,
                imm=head.imm,
                permitted=True,
            )
        for action in self.responder.step(event, self.now):
            match action:
                case Place():
                    for row in range(action.rows):
                        self._place(run[action.first_row + row], action.va + row * head.nbytes)
                case Deliver():
                    self._deliver(action)
                case Reply():
                    self._told(action)
                case _:
                    raise AssertionError(f"{action} for packets that are all in order by construction")

    def deliver_ack(self, index: int) -> None:
        ack = self.acks[index]
        passed = (replace(other, overtaken=other.overtaken + 1) for other in self.acks[:index])
        self.acks = (*passed, *self.acks[index + 1 :])
        self._requested(self.requester.step(AckArrived(ack.psn, ack.syndrome, ack.msn, ack.behind), self.now))

    # ---- what must hold --------------------------------------------------------------------------

    def _requested(self, actions: list[RequesterAction]) -> None:
        config = self.requester.config
        for action in actions:
            match action:
                case Transmit():
                    self.data += tuple(packets(action, config.mtu, config.psn_mask))
                case Complete():
                    assert action.outcome is Outcome.SUCCESS
                    assert action.wr_id == self.completed, "a write completed out of order"
                    self.completed += 1
                    assert self.delivered >= self.completed, "completed before it arrived"
                case _:
                    raise AssertionError(f"{action} although nothing can fail here")
        self._check_requester()

    def _check_requester(self) -> None:
        view = self.requester.view()
        config = self.requester.config
        assert view.outstanding <= config.outstanding_packets_max
        armed = self.requester.deadline is not None
        assert armed == (view.outstanding > 0)
        in_flight = (view.next_psn - view.una_psn) & config.psn_mask
        assert in_flight <= view.outstanding
        assert in_flight or view.rnr_waiting or not view.outstanding, "something to resend, and it is not"
        assert view.window <= config.outstanding_packets_max

    def _place(self, packet: DataPacket, va: int) -> None:
        message, number = packet.origin
        assert va == VA_STRIDE * message + number * self.requester.config.mtu
        if self.selective:
            assert packet.origin not in self.there or self.lacked_receive(packet), "placed twice"
            self.placed += packet.origin not in self.there
            self.there |= {packet.origin}
            return
        assert self.placed < len(self.order), f"{packet} placed a second time"
        assert packet.origin == self.order[self.placed], "placed out of order or twice"
        self.placed += 1

    def lacked_receive(self, packet: DataPacket) -> bool:
        """Whether it may have found no receive when it was due: then it is forgotten, and comes again."""
        return (
            packet.imm is not None
            and packet.origin[0] == self.delivered
            and bool(self.responder.counters.rnr_naks)
        )

    def _told(self, reply: Reply) -> None:
        """What a reply says of packets behind a gap is what is there."""
        self.acks += (AckPacket(reply.psn, reply.syndrome, reply.msn, reply.behind),)

    def _deliver(self, deliver: Deliver) -> None:
        assert deliver.wr_id == self.delivered, "a receive consumed out of order"
        assert deliver.imm == 1000 + self.delivered, "the wrong message was delivered"
        assert deliver.nbytes == self.lengths[self.delivered]
        if self.selective:
            if not deliver.nbytes:
                self.there |= {(self.delivered, 0)}
                self.placed += 1
            packets = {(self.delivered, number) for number in range(self.sizes[self.delivered])}
            assert packets <= self.there, "delivered before it was whole"
            self.delivered += 1
            return
        self.placed += not deliver.nbytes  # the packet of an empty message has nothing to place
        self.delivered += 1
        assert self.placed == sum(self.sizes[: self.delivered]), "delivered before it was whole"


def _fork(core: _Core) -> _Core:
    twin = object.__new__(type(core))
    for name, value in vars(core).items():
        mutable = isinstance(value, deque | dict | PacketsBehind)
        object.__setattr__(twin, name, deepcopy(value) if mutable else value)
    return twin


def _freeze(core: RcRequester | RcResponder, now: Instant) -> tuple[Any, ...]:
    frozen: list[Any] = []
    for name, value in vars(core).items():
        if name in {"config", "counters"}:
            continue
        if name in {"_timer", "_rnr_until"} and value is not None:
            value = value - now
        elif name in {"_went_back", "_timing"} and value is not None:
            value = (value[0], value[1] - now)
        if isinstance(value, PacketsBehind):
            value = repr(value)
        elif isinstance(value, dict):
            value = tuple(value.items())
        frozen.append(tuple(value) if isinstance(value, deque) else value)
    return tuple(frozen)
