"""RC responder that keeps what comes behind a gap, for requesters that know of it (docs/protocol.md 4.4).

Everything in order is as in :mod:`inaproto.core.rdma.responder`, whose rules these are. What differs:

* A packet behind a gap is placed where the RETH of its message and its PSN say, if its message has begun
  here, and remembered, up to ``behind_max`` packets behind the expected one. What cannot be placed, or
  contradicts what is known, is as if it had been lost.
* While something is missing, whatever comes is answered, by a NAK for a sequence error that also tells what
  is there behind it. So the requester knows soon what is under way no more. All that comes at once has one
  answer.
* Where a shell has compiled kernels it places middle packets behind a gap itself, as far as there is
  ``room_behind`` for them, and tells once of all (``StretchBehind``).
* Messages end in order, as ever: a receive is consumed when all before it, and all of its message, are there.

Invariants: those of :mod:`~inaproto.core.rdma.responder`, but for the order of placing (1): each PSN is
placed once, at its address, before its message ends. A packet that found no receive when it was due is
forgotten, and placed again when it comes again.
"""

from __future__ import annotations

from typing import SupportsInt

import numpy as np
from numpy.typing import NDArray

from inaproto.core.rdma.behind_gap import PacketsBehind
from inaproto.core.rdma.reliable_connection import NAK_INVALID_REQUEST, NAK_SEQUENCE, packets_of
from inaproto.core.rdma.responder import MIDDLE, RcResponder, leading
from inaproto.core.rdma.responder_events import (
    Awaited,
    MessageInProgress,
    PacketArrived,
    Place,
    Reply,
    ResponderAction,
    ResponderConfig,
    ResponderState,
    RunArrived,
    StretchBehind,
    append_reply,
)
from inaproto.errors import InvariantBroken
from inaproto.wire.behind_gap import BehindGap

_Arrived = RunArrived | PacketArrived


class SelectiveResponder(RcResponder):
    """The state machine; see the module's text for its rules."""

    def __init__(self, config: ResponderConfig) -> None:
        super().__init__(config)
        self._behind = PacketsBehind(config.mtu)

    def place_of(self, psn: SupportsInt) -> MessageInProgress | None:
        distance = (int(psn) - self._expected) & self.config.psn_mask
        if not 0 < distance < self._half:  # packets that came before may lead up to the expected one
            return self._message
        return self._behind.place_of(distance, self._message)

    @property
    def awaits(self) -> Awaited | None:
        return None if self._behind.reach else super().awaits

    def room_behind(self, psn: int) -> tuple[MessageInProgress, int] | None:
        distance = psn - self._expected & self.config.psn_mask
        if not 0 < distance <= self.config.behind_max or self._state is not ResponderState.READY:
            return None
        near = self.config.behind_max + 1 - distance
        behind = self._behind
        place = behind.place_of(distance, self._message)
        if place is None:
            return None
        packets = behind.missing_from(distance, min(near, (place.remaining - 1) // self.config.mtu))
        return (place, packets) if packets else None

    def _flush(self) -> list[ResponderAction]:
        self._behind.forget()
        return super()._flush()

    def _received(self) -> Reply:
        behind = self._behind
        if not behind.reach:
            return super()._received()
        told = BehindGap(behind.reach, behind.arrived >> 1)
        return self._reply(NAK_SEQUENCE)._replace(behind=told)

    # ---- the expected packet ---------------------------------------------------------------------

    def _in_order(
        self, run: RunArrived, row: int, stretch: int, actions: list[ResponderAction], replies: list[Reply]
    ) -> int:
        if self._behind.reach:  # behind the gap it is not expected any more
            stretch = self._behind.missing_from(0, stretch)
        return super()._in_order(run, row, stretch, actions, replies)

    def _take(
        self, run: _Arrived, row: int, rows: int, actions: list[ResponderAction], replies: list[Reply]
    ) -> int:
        behind = self._behind
        if run.reth is not None and not behind.fits(0, run.reth[2], self._message):
            overlap = NAK_INVALID_REQUEST, "message begun over another"
            self._fail(run, self._fault(run, self._message) or overlap, actions, replies)
            return 0
        taken = super()._take(run, row, rows, actions, replies)
        if taken and behind.reach:
            behind.advance(taken)
            if self._go_on(actions):
                append_reply(replies, self._received())
            else:
                self._not_ready(replies)
        return taken

    def _go_on(self, actions: list[ResponderAction]) -> bool:
        """The gap is closed: what follows it is received; False if a receive is missing for it."""
        behind = self._behind
        while ready := behind.ready:
            message = self._message or behind.begun_here()
            assert message is not None, "what was placed has a message"
            left = packets_of(message.remaining, self.config.mtu)
            imm = behind.immediates.get(left - 1)
            lacks_receive = ready >= left and imm is not None and not self._receives
            packets = left - 1 if lacks_receive else min(ready, left)
            if packets < left:
                nbytes = packets * self.config.mtu
                whole = message.remaining == message.nbytes and not packets
                self._message = (
                    None
                    if whole
                    else message._replace(va=message.va + nbytes, remaining=message.remaining - nbytes)
                )
            else:
                self._whole(imm, message.nbytes, actions)
            self._expected = (self._expected + packets) & self.config.psn_mask
            behind.advance(packets)
            if lacks_receive:
                behind.forget_expected()
                self.counters.packets -= 1
                return False
        return True

    # ---- packets behind it -----------------------------------------------------------------------

    def _early(self, ahead: NDArray[np.int64]) -> int:
        return leading(ahead == ahead[0] + np.arange(len(ahead)))

    def _gap(
        self,
        run: _Arrived,
        row: int,
        distance: int,
        rows: int,
        actions: list[ResponderAction],
        replies: list[Reply],
    ) -> None:
        behind = self._behind
        near = min(rows, self.config.behind_max + 1 - distance)
        if near <= 0:
            self.counters.out_of_sequence += rows
            return
        self.counters.out_of_sequence += rows - near
        opens = not behind.reach or distance > behind.reach + 1
        done = 0
        while done < near:
            done += self._keep(run, row + done, distance + done, near - done, actions)
        behind.reach = max(behind.reach, distance + near - 1)
        if opens:
            self.counters.naks += 1
        append_reply(replies, self._received())

    def _placed_behind(self, stretch: StretchBehind) -> list[ResponderAction]:
        """What ``_gap`` does with packets that are right, but for ``Place``."""
        psn, packets = stretch
        room = self.room_behind(psn)
        if room is None or not 0 < packets <= room[1]:
            raise InvariantBroken(f"{stretch} was placed where there is room for {room}")
        behind = self._behind
        distance = psn - self._expected & self.config.psn_mask
        if not behind.reach or distance > behind.reach + 1:
            self.counters.naks += 1
        behind.mark(distance, packets)
        self.counters.packets += packets
        self.counters.behind_gap += packets
        behind.reach = max(behind.reach, distance + packets - 1)
        return [self._received()]

    def _keep(self, run: _Arrived, row: int, distance: int, rows: int, actions: list[ResponderAction]) -> int:
        """Place what can be of the rows, the first of which is at ``distance``; how many are dealt with."""
        behind = self._behind
        if behind.has(distance):
            self.counters.duplicates += 1
            return 1
        place = self._place_behind(run, distance)
        if place is None:
            self.counters.out_of_sequence += 1
            return 1
        if run.opcode == MIDDLE:
            rows = behind.missing_from(distance, min(rows, (place.remaining - 1) // self.config.mtu))
        else:
            rows = 1
        if run.payload_bytes:
            actions.append(Place(place.va, place.rkey, row, rows))
        if run.reth is not None:
            behind.begin(distance, place)
        if run.imm is not None:
            behind.immediates[distance] = run.imm
        behind.mark(distance, rows)
        self.counters.packets += rows
        self.counters.behind_gap += rows
        return rows

    def _place_behind(self, run: _Arrived, distance: int) -> MessageInProgress | None:
        """Where a packet behind the gap goes; None: it is as if it had been lost."""
        if run.reth is None:
            place = self._behind.place_of(distance, self._message)
            return None if self._fault(run, place) else place
        va, rkey, nbytes = run.reth
        if self._fault(run, None) or not self._behind.fits(distance, nbytes, self._message):
            return None
        return MessageInProgress(va, rkey, nbytes, nbytes)
