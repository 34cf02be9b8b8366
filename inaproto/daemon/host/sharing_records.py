"""Words of sharing by two-phase commit as control messages, and back."""

from __future__ import annotations

from typing import assert_never

from inaproto.core.sharing.messages import (
    Abort,
    Ask,
    AskPeer,
    Commit,
    CoordinatorMessage,
    Decision,
    Done,
    Drained,
    EndTurn,
    PeerMessage,
    Prepare,
    Refusal,
    Rule,
    Seat,
    SeatMessage,
    TellPeerDecision,
    Turn,
    Version,
    Vote,
)
from inaproto.units import Epoch, JobId, OpIndex
from inaproto.wire.sharing_messages import (
    DecisionRecord,
    FromController,
    FromSeat,
    PeerWord,
    SeatRecord,
    SharingAbort,
    SharingAsk,
    SharingAskPeer,
    SharingCommit,
    SharingDone,
    SharingDrained,
    SharingEnd,
    SharingPrepare,
    SharingRefusal,
    SharingTellPeer,
    SharingVote,
    TurnGrant,
    VersionRecord,
)


def seat_record(seat: Seat) -> SeatRecord:
    return SeatRecord(job=seat.job, host=seat.host, life=seat.life)


def seat_of(record: SeatRecord) -> Seat:
    return Seat(JobId(record.job), record.host, record.life)


def _version_record(version: Version) -> VersionRecord:
    return VersionRecord(term=version.term, number=version.number)


def _version_of(record: VersionRecord) -> Version:
    return Version(record.term, record.number)


def _decision_record(decision: Decision) -> DecisionRecord:
    turn = decision.granted
    granted = None
    if turn is not None:
        granted = TurnGrant(job=turn.job, epoch=turn.epoch, first=turn.first, until=turn.until)
    return DecisionRecord(granted=granted, ended=decision.ended, until=decision.until)


def _decision_of(record: DecisionRecord) -> Decision:
    turn, granted = record.granted, None
    if turn is not None:
        granted = Turn(JobId(turn.job), Epoch(turn.epoch), OpIndex(turn.first), _index(turn.until))
    return Decision(granted, _epoch(record.ended), OpIndex(record.until))


def _index(value: int | None) -> OpIndex | None:
    return None if value is None else OpIndex(value)


def _epoch(value: int | None) -> Epoch | None:
    return None if value is None else Epoch(value)


def order_message(said: CoordinatorMessage) -> FromController:
    seat = seat_record(said.seat)
    match said:
        case Prepare():
            return SharingPrepare(
                seat=seat,
                term=said.term,
                version=_version_record(said.version),
                rule=said.rule.value,
                granted=said.granted,
                ended=said.ended,
                over_below=said.over_below,
                margin=said.margin,
                lease_ns=said.lease_ns,
                peers=tuple(map(seat_record, said.peers)),
                first=said.first,
            )
        case Commit():
            return SharingCommit(
                seat=seat,
                term=said.term,
                version=_version_record(said.version),
                decision=_decision_record(said.decision),
            )
        case Abort():
            return SharingAbort(seat=seat, term=said.term, version=_version_record(said.version))
        case EndTurn():
            return SharingEnd(seat=seat, term=said.term, epoch=said.epoch, until=said.until)
        case _:
            assert_never(said)


def order_of(message: FromController) -> CoordinatorMessage:
    seat = seat_of(message.seat)
    match message:
        case SharingPrepare():
            return Prepare(
                seat=seat,
                term=message.term,
                version=_version_of(message.version),
                rule=Rule(message.rule),
                granted=None if message.granted is None else JobId(message.granted),
                ended=_epoch(message.ended),
                over_below=Epoch(message.over_below),
                margin=message.margin,
                lease_ns=message.lease_ns,
                peers=tuple(map(seat_of, message.peers)),
                first=OpIndex(message.first),
            )
        case SharingCommit():
            return Commit(seat, message.term, _version_of(message.version), _decision_of(message.decision))
        case SharingAbort():
            return Abort(seat, message.term, _version_of(message.version))
        case SharingEnd():
            return EndTurn(seat, message.term, Epoch(message.epoch), _index(message.until))
        case _:
            assert_never(message)


def answer_message(said: SeatMessage) -> FromSeat:
    seat = seat_record(said.seat)
    match said:
        case Vote():
            return SharingVote(
                seat=seat, version=_version_record(said.version), index=said.index, in_ina=said.in_ina
            )
        case Refusal():
            return SharingRefusal(seat=seat, version=_version_record(said.version))
        case Done():
            return SharingDone(seat=seat, version=_version_record(said.version))
        case Drained():
            return SharingDrained(seat=seat, epoch=said.epoch)
        case Ask():
            return SharingAsk(seat=seat, version=_version_record(said.version))
        case _:
            assert_never(said)


def answer_of(message: FromSeat) -> SeatMessage:
    seat = seat_of(message.seat)
    match message:
        case SharingVote():
            return Vote(seat, _version_of(message.version), OpIndex(message.index), message.in_ina)
        case SharingRefusal():
            return Refusal(seat, _version_of(message.version))
        case SharingDone():
            return Done(seat, _version_of(message.version))
        case SharingDrained():
            return Drained(seat, Epoch(message.epoch))
        case SharingAsk():
            return Ask(seat, _version_of(message.version))
        case _:
            assert_never(message)


def peer_message(said: PeerMessage) -> PeerWord:
    seat, sender, version = seat_record(said.seat), seat_record(said.sender), _version_record(said.version)
    match said:
        case AskPeer():
            return SharingAskPeer(seat=seat, sender=sender, version=version, fell_back=said.fell_back)
        case TellPeerDecision():
            decision = None if said.decision is None else _decision_record(said.decision)
            return SharingTellPeer(seat=seat, sender=sender, version=version, decision=decision)
        case _:
            assert_never(said)


def peer_of(message: PeerWord) -> PeerMessage:
    seat, sender, version = seat_of(message.seat), seat_of(message.sender), _version_of(message.version)
    match message:
        case SharingAskPeer():
            fell_back = None if message.fell_back is None else OpIndex(message.fell_back)
            return AskPeer(seat, sender, version, fell_back)
        case SharingTellPeer():
            decision = None if message.decision is None else _decision_of(message.decision)
            return TellPeerDecision(seat, sender, version, decision)
        case _:
            assert_never(message)
