"""Faults of sharing that rarely do harm by themselves: what is said and heard shows them (control worlds)."""

from __future__ import annotations

from typing import Any, Final

from inaproto.core.sharing.participant import SharingParticipant
from inaproto.core.sharing.round import Round
from inaproto.core.sharing.rounds import Rounds
from inaproto.core.sharing.standing_turns import StandingTurns
from inaproto.core.sharing.wishes import Wishes
from tests.planted.planting import Change, PlantedFault

SHARING: Final = "MINA IV-B; docs/protocol.md 15"
_P: Final = SharingParticipant


def _fault(name: str, text: str, function: Any, right: str, wrong: str) -> PlantedFault:
    return PlantedFault(name, SHARING, text, (Change(function, right, wrong),))


WORD_FAULTS: Final = (
    # seats
    _fault(
        "vote_one_low",
        "votes with the operation that it has begun, not with the next",
        _P._prepare,
        "Vote(self._seat, said.version, self._next, in_ina)",
        "Vote(self._seat, said.version, max(0, self._next - 1), in_ina)",
    ),
    _fault(
        "vote_one_high",
        "votes with the operation after the next",
        _P._prepare,
        "Vote(self._seat, said.version, self._next, in_ina)",
        "Vote(self._seat, said.version, self._next + 1, in_ina)",
    ),
    _fault(
        "ina_in_doubt",
        "goes on by the switches while it does not know what was decided",
        _P._decide,
        "if self._is_doubtful(index) and self._concerns_us(epoch):",
        "if False:",
    ),
    _fault(
        "doubt_one_late",
        "begins to doubt one operation too late",
        _P._is_doubtful,
        "index >= max(self._vote + said.margin, said.first)",
        "index > max(self._vote + said.margin, said.first)",
    ),
    _fault(
        "doubt_from_now",
        "doubts from the operation on that it is at, not from that of its vote",
        _P._is_doubtful,
        "max(self._vote + said.margin, said.first)",
        "max(self._next + said.margin, said.first)",
    ),
    _fault(
        "old_decision_unlocks",
        "takes a decision of before for that of the round that it has voted on",
        _P._apply,
        "if self._phase is not Phase.FREE and version >= self._voted:",
        "if self._phase is not Phase.FREE:",
    ),
    _fault(
        "given_up_and_taken",
        "takes a turn that it has given up before it heard of it",
        _P._apply,
        "if granted.epoch < self._floor or self._is_closed:",
        "if self._is_closed:",
    ),
    _fault(
        "another_decision_told",
        "answers a peer with the last decision that it knows, whichever was asked for",
        _P._asked_by_peer,
        "self._decision if said.version == self._decided else None",
        "self._decision",
    ),
    _fault(
        "end_ignored",
        "goes on in a turn that was ended without a round",
        _P._end_turn,
        "self._shorten(turn, said.until)",
        "pass",
    ),
    _fault(
        "turn_over_one_late",
        "gives a turn up one operation past its end, which may be long after",
        _P._pass_end,
        "turn.until <= self._next",
        "turn.until < self._next",
    ),
    _fault(
        "turn_over_one_soon",
        "gives a turn up before its last operation",
        _P._pass_end,
        "turn.until <= self._next",
        "turn.until <= self._next + 1",
    ),
    _fault(
        "doubts_without_a_timer",
        "asks once, and sets no timer for the next question",
        _P._ask,
        "self._deadline = Instant(now + self._config.ask_ns)",
        "self._deadline = None",
    ),
    _fault(
        "done_never_said",
        "applies decisions and does not say so: no other round ever begins",
        _P._apply,
        "actions: list[ParticipantAction] = [TellCoordinator(Done(self._seat, version))]",
        "actions: list[ParticipantAction] = []",
    ),
    # the coordinator
    _fault(
        "one_vote_missing",
        "commits when one vote is missing",
        Rounds._voted,
        "if len(round_.votes) < len(round_.change.seats):",
        "if len(round_.votes) + 1 < len(round_.change.seats):",
    ),
    _fault(
        "old_votes_count",
        "takes votes on an earlier round for those on this one",
        Rounds._voted,
        "if vote.version != round_.version or vote.seat not in round_.asked:",
        "if vote.seat not in round_.asked:",
    ),
    _fault(
        "said_before_written",
        "tells what was decided while it is on its way to the disk",
        Rounds._decide,
        "return self._persist(record)",
        "self._record = record\n"
        "    return [*self._persist(record), *(self._commit_for(seat) for seat in told)]",
    ),
    _fault(
        "undecided_is_aborted",
        "answers that a round was aborted while its decision is on its way to the disk",
        Rounds._asked_in_round,
        "if self.round is not None and message.version == self.round.version:\n        return []",
        "pass",
    ),
    _fault(
        "all_is_aborted",
        "answers to all questions that the round was aborted",
        Rounds._answer,
        "if self._record.decision is not None and version == self._record.version:",
        "if False:",
    ),
    _fault(
        "unequal_not_looked_at",
        "commits though the seats of a job are at different operations",
        Round.objection,
        "return Mark.ABORTED_UNEQUAL",
        "pass",
    ),
    _fault(
        "least_index_counts",
        "begins a turn at the least of the indices that were reported",
        Round.greatest,
        "max(",
        "min(",
    ),
    _fault(
        "first_one_low",
        "begins a turn one operation before the margin is over",
        Round.decision,
        "OpIndex(self.greatest(change.granted) + margin)",
        "OpIndex(max(0, self.greatest(change.granted) + margin - 1))",
    ),
    _fault(
        "until_one_high",
        "ends a turn one operation late",
        Round.decision,
        "until = OpIndex(self.greatest(ended.turn.job) + margin)",
        "until = OpIndex(self.greatest(ended.turn.job) + margin + 1)",
    ),
    _fault(
        "wish_begins_anywhere",
        "begins a turn before the first operation that was wished for",
        Round.decision,
        "max(OpIndex(self.greatest(change.granted) + margin), change.first)",
        "OpIndex(self.greatest(change.granted) + margin)",
    ),
    _fault(
        "turn_one_long",
        "gives a turn one operation more than was wished for",
        Round.decision,
        "OpIndex(first + change.operations)",
        "OpIndex(first + change.operations + 1)",
    ),
    _fault(
        "nothing_is_granted",
        "never gives anybody a turn: all goes by the chain, and nothing is wrong",
        Wishes.change,
        "granted = job if has_room or at_once else None",
        "granted = None",
    ),
    _fault(
        "nothing_is_ended",
        "never ends a turn for another job",
        Wishes._turn_to_end,
        "return is_open[0] if wanted is not None and is_full and not is_ending else None",
        "return None",
    ),
    _fault(
        "epoch_used_again",
        "gives the next turn the epoch of the last one",
        StandingTurns.next_epoch,
        "found = epoch + 1",
        "found = max(epoch, 1)",
    ),
    _fault(
        "epoch_forgotten",
        "counts epochs from one again after a restart",
        Rounds.__init__,
        "self._epoch = self._record.epoch",
        "self._epoch = Epoch(0)",
    ),
    _fault(
        "place_shared",
        "gives two turns that stand at once one place of the pool",
        StandingTurns.next_epoch,
        "while found % capacity in taken and len(taken) < capacity:",
        "while False:",
    ),
)
