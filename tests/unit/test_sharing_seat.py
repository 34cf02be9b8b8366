"""The turns of one job on one host, without a daemon."""

from __future__ import annotations

import pytest

from inaproto.core.sharing.events import FromCoordinator, Path, TellCoordinator
from inaproto.core.sharing.seat import MayBind, OperationBound, RingStands, SeatConfig, SharingSeat
from inaproto.core.sharing.seat import OperationDone as Done
from inaproto.errors import LocalMisuse
from inaproto.units import Epoch, Instant, JobId, OpIndex, S
from inaproto.wire.messages.sharing import Ask, Prepare, Rule, Seat, Version

JOB = JobId("train")
SEAT = Seat(JOB, "h0", 1)


def test_one_operation_too_many_changes_nothing() -> None:
    """What its participant had to say in doubt was said to nobody."""
    seat = SharingSeat(SeatConfig(JOB, "h0", operations_max=1))
    seat.step(RingStands(1, OpIndex(0)), Instant(0))
    seat.step(OperationBound(OpIndex(0), Path.FALLBACK), Instant(0))
    asked = Prepare(
        seat=SEAT,
        term=1,
        version=Version(1, 1),
        rule=Rule.BY_INDEX,
        granted=JOB,
        over_below=Epoch(1),
        margin=2,
        lease_ns=S,
        peers=(SEAT,),
    )
    seat.step(FromCoordinator(asked), Instant(0))
    before = seat.view()
    with pytest.raises(LocalMisuse, match="one of too many"):
        seat.step(MayBind(OpIndex(1)), Instant(2 * S))
    assert seat.view() == before
    said = seat.step(Done(OpIndex(0)), Instant(2 * S)) + seat.step(MayBind(OpIndex(1)), Instant(2 * S))
    assert TellCoordinator(Ask(SEAT, Version(1, 1))) in said
