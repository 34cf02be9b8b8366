"""What seats of a job tell each other while they do not hear from the coordinator (docs/protocol.md 15.5).

A seat that has voted asks the others what was decided; who knows answers at once, who has voted itself as
soon as it knows. A seat that starts an operation by the fallback, for it is in doubt, says so with its
question: whoever has yet to start that operation does the same, and whoever runs it in a turn reports it, for
no seat can end it on its own path.

Where there are many, a seat asks and is asked by some of the others only (:func:`peers_of`): its *peers*. Who
does not know has it from theirs, since all peers together are connected, and who does as a peer did says so
to its own.

Invariants: a question is answered once; what a peer runs is believed of one operation, the one that is next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from inaproto.core.sharing.events import TellPeer
from inaproto.units import OpIndex
from inaproto.wire.messages.sharing import AskPeer, Decision, Prepare, Seat, TellPeerDecision, Version

ALL: Final = 16
"""So many seats all ask each other."""


def peers_of(seats: Sequence[Seat]) -> list[tuple[Seat, ...]]:
    """Whom each of ``seats`` asks, itself included, in their order; seats of a job stand together.

    More than :data:`ALL` ask those 1, 8, 64 ... places before and behind them: some eight of a thousand, so
    that what is said of a round grows with the seats and not with their square. To be peers is mutual. A way
    of peers leads from each seat to each other one, also within a job, and around most that do not answer.
    """
    count = len(seats)
    if count <= ALL:
        return [tuple(seats)] * count
    far = [8**power for power in range(count.bit_length()) if 8**power <= count // 2]
    places = sorted({0, *far, *(count - one for one in far)})
    seats = (*seats, *seats)
    return [tuple([seats[at + place] for place in places]) for at in range(count)]


@dataclass(slots=True)
class PeerWords:
    """What one seat says to its peers, and owes them."""

    seat: Seat
    _askers: dict[Seat, None] = field(default_factory=dict)
    """Peers of the round that is voted on, to whom its outcome is owed."""
    _fell_back: OpIndex | None = None
    """Not started here, and by the fallback at a peer."""

    def ask(self, round_: Prepare | None, fell_back: OpIndex | None = None) -> list[TellPeer]:
        """Asks all that vote in the round; ``fell_back`` is told to seats of the job alone."""
        if round_ is None:
            return []
        others = [
            one
            for one in round_.peers
            if one != self.seat and (fell_back is None or one.job == self.seat.job)
        ]
        return [TellPeer(one, AskPeer(one, self.seat, round_.version, fell_back)) for one in others]

    def answer(self, to: Seat, version: Version, decision: Decision | None) -> TellPeer:
        return TellPeer(to, TellPeerDecision(to, self.seat, version, decision))

    def owe(self, to: Seat, round_: Prepare | None) -> None:
        """Remembers who has asked too early."""
        if round_ is not None and to in round_.peers:
            self._askers[to] = None

    def pay(self, version: Version, decision: Decision | None) -> list[TellPeer]:
        """Tells all who asked about that version, for it is decided."""
        askers, self._askers = self._askers, {}
        return [self.answer(one, version, decision) for one in askers]

    def told_of(self, index: OpIndex) -> None:
        self._fell_back = index

    def runs(self, index: OpIndex) -> bool:
        """Whether a peer has said so of this operation, which starts now."""
        is_so = index == self._fell_back
        if self._fell_back is not None and self._fell_back <= index:
            self._fell_back = None
        return is_so
