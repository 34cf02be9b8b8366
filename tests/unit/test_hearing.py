"""Which words of the switch are for which jobs of a host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from inaproto.core.host import events
from inaproto.core.host.hearing import HEARD_OF_MAX, Hearing
from inaproto.core.host.view import Phase
from inaproto.errors import JoinRefused, RankLost, SwitchUnreachable
from inaproto.wire.control_messages import Closed, Error, Failed, Gone, Halt, JobStatus, Message, Ring, Start
from inaproto.wire.messages.ina import InaPark, InaStands
from tests.unit.test_host_job import Host, ring, running


def joined(request: int = 1) -> Host:
    host = Host()
    host.join(request)
    return host


def halted() -> Host:
    host = running()
    host.hears(Halt(job="j", ring_id=5, path="chain", reason="it broke"))
    assert host.phase() is Phase.HALTED
    return host


def away_and_back() -> Host:
    host = running()
    host.comes_back()
    return host


STATUS, PARK = JobStatus(job="j", op_index=0, waiting_for=(1,)), InaPark(job="j", ring_id=9, epoch=1)
STANDS = InaStands(job="j", ring_id=9, epoch=1)
REFUSED = Error(of=1, code=JoinRefused.code, message="the job is full")
OVER = Failed(job="j", ring_id=0, code=SwitchUnreachable.code, message="the switch stops")
NO_RING = Failed(job="j", ring_id=0, code=RankLost.code, message="rank 1 is lost")
MADE: dict[str, Callable[[], Host]] = {
    "joined": joined,
    "joined with 2": lambda: joined(2),
    "running": running,
    "halted": halted,
    "back": away_and_back,
}


def failed(ring_id: int) -> Failed:
    return Failed(job="j", ring_id=ring_id, code=RankLost.code, message="rank 1 is lost")


NO_ERROR = object()
EVENTS: dict[type, type] = {
    Ring: events.Answered,
    Start: events.Said,
    Halt: events.Said,
    JobStatus: events.Said,
    InaPark: events.Said,
    InaStands: events.Said,
    Closed: events.Said,
    Error: events.JoinDenied,
}


@pytest.mark.parametrize(
    ("word", "jobs", "for_whom"),
    [
        (ring(6), ["joined", "joined with 2", "running"], [0, 2]),
        (Start(job="j", ring_id=5), ["joined", "running"], [1]),
        (Start(job="j", ring_id=6), ["joined", "running"], []),
        (Halt(job="j", ring_id=5, path="chain", reason="x"), ["joined", "running"], [1]),
        (Halt(job="j", ring_id=6, path="chain", reason="x"), ["joined", "running"], [0, 1]),
        (Halt(job="j", ring_id=6, path="chain", reason="x"), ["joined", "halted", "back"], [1, 2]),
        (STATUS, ["joined", "running"], [0, 1]),
        (PARK, ["joined", "running"], [0, 1]),
        (STANDS, ["running"], [0]),
        (Closed(job="j", ring_id=5), ["joined", "running", "back"], [1, 2]),
        (Closed(job="j", ring_id=6), ["joined", "running", "back"], [2]),
        (REFUSED, ["joined", "joined with 2", "running"], [0]),
        (replace(REFUSED, of=2), ["joined", "joined with 2", "back"], [1, 2]),
        (failed(5), ["running", "joined"], {0: events.JobFailed, 1: events.JoiningFailed}),
        (failed(6), ["running", "joined"], {0: events.JoiningFailed, 1: events.JobUnknown}),
        (failed(6), ["back", "joined"], {0: events.JobFailed, 1: events.JobUnknown}),
        (NO_RING, ["joined", "running", "back"], {1: events.JobFailed, 2: events.JobFailed}),
        (OVER, ["joined", "running"], {0: events.SwitchLost, 1: events.SwitchLost}),
        (Gone(job="j", rank=1, reason="x"), ["joined", "running"], []),
    ],
)
def test_whom_a_word_of_the_switch_is_for(
    word: Message, jobs: list[str], for_whom: list[int] | dict[int, type]
) -> None:
    routed = Hearing("boot").heard(word, [MADE[name]().job for name in jobs])
    kinds: dict[int, type] = {number: type(event) for number, event in routed}
    assert len(routed) == len(kinds)
    expected = for_whom if isinstance(for_whom, dict) else {number: EVENTS[type(word)] for number in for_whom}
    assert kinds == expected
    errors = [getattr(event, "error", NO_ERROR) for _, event in routed]
    said = {str(error) for error in errors if error is not NO_ERROR}
    assert said <= {getattr(word, "message", "")}


def test_the_last_ring_of_a_job_is_remembered_until_it_is_over() -> None:
    hearing = Hearing("boot")
    for number in range(HEARD_OF_MAX):
        hearing.heard(replace(ring(5), job=f"j{number}"), [])
    hearing.heard(replace(ring(6), job="j0"), [])
    hearing.heard(replace(ring(5), job="the last"), [])
    assert len(hearing) == HEARD_OF_MAX
    assert [hearing.has_heard_of(*it) for it in (("j0", 5), ("j0", 6), ("j1", 5), ("j2", 5))] == [
        False,
        True,
        False,
        True,
    ]
    for word in (Closed(job="j0", ring_id=5), Closed(job="j0", ring_id=6), replace(failed(5), job="j2")):
        hearing.heard(word, [])
    assert not hearing.has_heard_of("j0", 6)
    assert not hearing.has_heard_of("j2", 5)
    assert len(hearing) == HEARD_OF_MAX - 2
