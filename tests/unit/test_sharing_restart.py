"""A coordinator that starts again and waits for its disk (found by one control world in fifty)."""

from __future__ import annotations

from inaproto.core.sharing.coordinator import SharingCoordinator
from inaproto.core.sharing.events import Persist, Persisted, SharingConfig, SharingRecord, TurnRecord, Woke
from inaproto.units import Epoch, Instant, JobId, OpIndex
from inaproto.wire.messages.sharing import EndTurn, Seat, Turn

SEAT = Seat(JobId("A"), "h0")
TURN = Turn(SEAT.job, Epoch(3), OpIndex(4), OpIndex(6))


def test_while_its_term_is_not_on_disk_it_is_not_woken_in_vain() -> None:
    config = SharingConfig("g", resend_ns=10)
    core = SharingCoordinator(config, SharingRecord(2, Epoch(3), (TurnRecord(TURN, (SEAT,)),)))
    (persist,) = core.step(Woke(), Instant(0))
    assert isinstance(persist, Persist)
    for _ in range(3):
        due = core.deadline
        assert due is not None
        assert core.step(Woke(), due) == [], "nothing may be said before the term is durable"
        assert core.deadline is None or core.deadline > due
    said = core.step(Persisted(persist.token), Instant(100))
    assert any(isinstance(getattr(action, "message", None), EndTurn) for action in said)
