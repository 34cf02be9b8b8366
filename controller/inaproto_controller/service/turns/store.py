"""What the coordinators of sharing groups must find again, as bytes of records in the store."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from inaproto.core.sharing.events import SharingRecord, TurnRecord
from inaproto.errors import ConfigError
from inaproto.units import Epoch, JobId, OpIndex
from inaproto.wire.messages.sharing import Decision, Seat, Turn, Version

FORMAT = 1


class Floor(NamedTuple):
    """What groups whose records are gone have used: one that begins anew goes on from here, for switches and
    hosts may have heard of them, and take what is older for stale."""

    term: int = 0
    epoch: Epoch = Epoch(0)

    def above(self, other: Floor) -> Floor:
        return Floor(max(self.term, other.term), max(self.epoch, other.epoch))

    @property
    def record(self) -> SharingRecord:
        return SharingRecord(self.term, self.epoch)


def encode_record(record: SharingRecord) -> bytes:
    decision = record.decision
    fields = {
        "format": FORMAT,
        "term": record.term,
        "epoch": record.epoch,
        "turns": [[_turn(one.turn), list(map(_seat, one.seats))] for one in record.turns],
        "version": [record.version.term, record.version.number],
        "decision": None
        if decision is None
        else [None if decision.granted is None else _turn(decision.granted), decision.ended, decision.until],
        "told": list(map(_seat, record.told)),
    }
    return json.dumps(fields).encode()


def decode_record(body: bytes) -> SharingRecord:
    """Raises ``ConfigError`` for what this program did not write."""
    try:
        fields = json.loads(body)
        if fields["format"] != FORMAT:
            raise ConfigError(f"record of a sharing group: format {fields['format']}, this program knows 1")
        decision = fields["decision"]
        return SharingRecord(
            fields["term"],
            Epoch(fields["epoch"]),
            tuple(TurnRecord(_turn_of(turn), tuple(map(_seat_of, seats))) for turn, seats in fields["turns"]),
            Version(*fields["version"]),
            None
            if decision is None
            else Decision(
                None if decision[0] is None else _turn_of(decision[0]), decision[1], OpIndex(decision[2])
            ),
            tuple(map(_seat_of, fields["told"])),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"record of a sharing group cannot be read: {error!r}") from None


def encode_floor(floor: Floor) -> bytes:
    return json.dumps({"format": FORMAT, "term": floor.term, "epoch": floor.epoch}).encode()


def decode_floor(body: bytes) -> Floor:
    """Raises ``ConfigError`` for what this program did not write."""
    try:
        fields = json.loads(body)
        return Floor(int(fields["term"]), Epoch(int(fields["epoch"])))
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"record of the epochs of sharing groups cannot be read: {error!r}") from None


def _seat(seat: Seat) -> list[Any]:
    return [seat.job, seat.host, seat.life]


def _seat_of(fields: list[Any]) -> Seat:
    return Seat(JobId(fields[0]), fields[1], fields[2])


def _turn(turn: Turn) -> list[Any]:
    return [turn.job, turn.epoch, turn.first, turn.until]


def _turn_of(fields: list[Any]) -> Turn:
    until = None if fields[3] is None else OpIndex(fields[3])
    return Turn(JobId(fields[0]), Epoch(fields[1]), OpIndex(fields[2]), until)
