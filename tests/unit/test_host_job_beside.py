"""A host in a job with two rings: one through the switches, beside that of the hosts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from inaproto.core.host import events
from inaproto.core.host.engines.two_paths import AskBinding, Binding, Bound, Wait
from inaproto.core.host.operations import BASE, INA, UP, PostMessage
from inaproto.errors import RankLost
from inaproto.units import Epoch, Instant, OpIndex
from inaproto.wire.control_messages import Ring
from inaproto.wire.ina_header import INA_HEADER_BYTES
from inaproto.wire.messages.ina import InaPark
from tests.unit.host_of_ranks import (
    ENDS,
    call,
    failed,
    halt,
    host_of,
    result,
    running_on,
    shown,
    start,
    unacknowledged_by,
)
from tests.unit.test_host_job import BESIDE, CONFIG, INTO, OUT, TWO_LINKS, Host, beside, ring, stands
from tests.unit.test_two_paths import result_of

LOST = RankLost("rank 3 is lost")
CLOSES = events.CloseLinks(recovers=True)


def test_a_ring_that_broke_before_it_began_gets_no_other_beside_it() -> None:
    host = beside()
    host.feed(events.NicRefused("no memory"))
    assert host.feed(start(ina_ring_id=9)) == [events.RanksBegun(5)]
    assert host.job.view().ina_ring_id is None


def test_without_the_ring_in_the_switches_nothing_is_kept_of_it_or_parked() -> None:
    host = beside()
    host.feed(start())
    assert host.feed(events.Said(InaPark(job="j", ring_id=9, epoch=3))) == []
    assert host.feed(halt())[:2] == [events.KeepResults((), 0, None), CLOSES]


@pytest.mark.parametrize("other", [host_of, running_on])
def test_where_there_is_one_ring_nothing_is_parked_or_bound(other: Any) -> None:
    host = other(0)
    for event in (events.Said(InaPark(job="j", ring_id=9, epoch=3)), events.Said(stands(3))):
        assert host.feed(event) == []
    assert host.feed(events.BindingDiffers(OpIndex(0), "h1")) == []
    assert host.feed(events.BindingChanged()) == []


def test_a_ring_in_the_switches_has_turns_where_the_switch_says_and_ends_with_the_job() -> None:
    host = beside()
    actions = host.feed(start(ina_ring_id=9, ina_epoch=2, ina_pool="p"))
    assert events.BeginTurns(replace(stands(2), pool="p"), 2, OpIndex(0)) in actions
    ends = shown(host.feed(events.JobFailed(LOST)))
    assert ends == [events.EndTurns(), *ENDS, failed(0, RankLost, str(LOST))]


def test_an_all_reduce_goes_by_the_ring_that_turns_say_as_soon_as_they_say_it() -> None:
    host = beside()
    host.feed(start(ina_ring_id=9))
    call(host, 0, 0)
    host.feed(result(host))
    assert host.job.progress == 1
    asks = AskBinding(OpIndex(1))
    assert call(host, 0, 1) == [asks]
    assert host.feed(events.BindingSaid(OpIndex(1), Wait(Instant(50)))) == []
    assert host.job.deadline == 50
    assert host.feed(events.BindingChanged()) == [asks]
    host.now = 7
    actions = host.feed(events.BindingSaid(OpIndex(1), Binding(INA, Epoch(4))))
    assert actions[0] == Bound(OpIndex(1), INA, Epoch(4))
    assert host.job.deadline == 7 + CONFIG.stall_ns
    unacknowledged = [unacknowledged_by(host)]
    for path in (BASE, INA):
        host.feed(events.MessageAcknowledged(path, UP, 0))
        unacknowledged.append(unacknowledged_by(host))
    assert unacknowledged == [2, 1, 0]
    host.now = 7 + CONFIG.stall_ns
    assert "Stalled" in [type(action).__name__ for action in host.feed(events.BindingChanged())]
    [post] = [action for action in actions if isinstance(action, PostMessage)]
    came = result_of(post, 0)
    done = host.feed(events.MessageArrived(INA, UP, 4, came.imm, INA_HEADER_BYTES + 400, came.header))
    assert events.AllReduceDone(OpIndex(1), "switch") in done
    assert done[-1] == events.PostReceive(INA, UP, 4)
    assert host.job.view().operations_by_path == {"chain": 1, "switch": 1}
    call(host, 0, 2)
    host.feed(events.Stopped("stop"))
    assert host.feed(events.BindingChanged()) == []


def ring_of(host: Host) -> Ring:
    present = host.job.ring
    assert present is not None
    return present


def test_the_ring_in_the_switches_is_connected_like_the_other() -> None:
    host = Host()
    host.feed(TWO_LINKS)
    host.join()
    orders = host.feed(events.Answered(BESIDE, "boot"))
    assert orders == [events.ConnectLink(BASE, INTO, OUT), events.ConnectLink(INA, INTO, OUT)]
    assert ring_of(host) == BESIDE != ring(5)
