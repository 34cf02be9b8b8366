"""A host with two rings of a job, and what the switch says of them, in the order of bad luck."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from inaproto.core.host.events import Answered, Said
from inaproto.core.host.view import Phase
from inaproto.ports import Completion, CompletionKind, Status
from inaproto.wire.control_messages import Broken, Halt, Halted, Ready, Ring, Start
from inaproto.wire.messages.ina import InaPark, InaParked, InaStands
from tests.daemon.test_host_ring import Host, on_a_host

BASE_RING, INA_RING = 7, 8
flushed = partial(Completion, kind=CompletionKind.RECEIVE_IMM, wr_id=0, status=Status.FLUSHED)


def connecting(host: Host) -> None:
    """It has links for both rings, and was told of both: all addresses are its own."""
    rank = host.join(0)
    host.halt(Halt(job="j", ring_id=BASE_RING - 1, path="shared", reason=""))
    [halted] = host.told
    assert isinstance(halted, Halted)
    ring = Ring(
        job="j",
        ring_id=BASE_RING,
        epoch=1,
        ring_key=1,
        position=0,
        successor=halted.into,
        predecessor=halted.out,
        peers=("h0", "h1", "h2"),
        ranks=((0,), (1,), (2,)),
        path="shared",
        ina_ring_id=INA_RING,
        ina_successor=halted.ina_into,
        ina_predecessor=halted.ina_out,
    )
    host.told.clear()
    host.ring.feed(Answered(replace(ring, id=rank.join.pid), "boot"))


def connected(host: Host) -> None:
    connecting(host)
    for link in host.connecting():
        host.ring.connected(link)
    assert host.told == [Ready(job="j", rank=0)]
    host.told.clear()


def start(host: Host, ina_ring_id: int = INA_RING, *, parked: bool = False) -> None:
    host.start(Start(job="j", ring_id=BASE_RING, ina_ring_id=ina_ring_id, ina_parked=parked))


def test_a_host_is_ready_when_both_of_its_links_are_connected() -> None:
    def scenario(host: Host) -> None:
        connecting(host)
        first, second = host.connecting()
        assert len(set(host.ring.queue_pairs)) == 4
        host.ring.connected(second)
        assert host.told == []
        host.ring.connected(first)
        assert host.told == [Ready(job="j", rank=0)]

    on_a_host(scenario)


def test_the_ring_in_the_switches_stands_from_the_start_on_if_they_have_it() -> None:
    def scenario(host: Host) -> None:
        connected(host)
        start(host)
        status = host.ring.status()
        assert (status["path"], status["ring_id"], status["ina_ring_id"]) == ("shared", BASE_RING, INA_RING)

    on_a_host(scenario)


def test_a_link_for_a_ring_that_the_switches_refuse_is_given_back_and_not_heard_of_again() -> None:
    def scenario(host: Host) -> None:
        connected(host)
        *_, ina = host.ring.queue_pairs
        start(host, 0)
        assert len(host.ring.queue_pairs) == 2
        host.ring.completed(flushed(ina))
        assert host.told == []
        assert host.ring.phase is Phase.RUNNING
        assert host.ring.status()["path"] == "chain"

    on_a_host(scenario)


@pytest.mark.parametrize("at", range(4))
def test_a_connection_of_either_ring_that_fails_ends_both(at: int) -> None:
    def scenario(host: Host) -> None:
        connected(host)
        start(host)
        host.ring.completed(flushed(host.ring.queue_pairs[at]))
        [broken] = host.told
        assert isinstance(broken, Broken)
        assert broken.ring_id == BASE_RING

    on_a_host(scenario)


def test_rings_that_broke_just_before_the_start_stay_broken() -> None:
    """The switch has not heard of it when it says that all are ready."""

    def scenario(host: Host) -> None:
        connected(host)
        host.ring.completed(flushed(host.ring.queue_pairs[3]))
        start(host)
        assert [type(word) for word in host.told] == [Broken]
        host.halt(Halt(job="j", ring_id=BASE_RING, path="shared", reason="it broke"))
        assert [type(word) for word in host.told] == [Broken, Halted]
        assert host.ring.phase is Phase.HALTED

    on_a_host(scenario)


def test_a_ring_alone_follows_one_of_two() -> None:
    def scenario(host: Host) -> None:
        connected(host)
        start(host)
        host.halt(Halt(job="j", ring_id=BASE_RING, path="chain", reason="no room"))
        [halted] = host.told
        assert isinstance(halted, Halted)
        assert (halted.ina_out, halted.ina_into) == (None, None)
        assert len(host.ring.queue_pairs) == 2

    on_a_host(scenario)


# --- rings that leave their switches


def test_a_ring_is_parked_and_stands_again_with_all_its_links() -> None:
    def scenario(host: Host) -> None:
        connected(host)
        start(host)
        queue_pairs = host.ring.queue_pairs
        host.ring.feed(Said(InaPark(job="j", ring_id=INA_RING, epoch=3)))
        assert host.told == [InaParked(job="j", rank=0, ring_id=INA_RING, epoch=3, messages=0)]
        status = host.ring.status()
        assert (status["is_parked"], status["ina_ring_id"]) == (True, INA_RING)
        host.ring.feed(Said(InaStands(job="j", ring_id=INA_RING, epoch=4, pool="shared@spine1")))
        assert not host.ring.status()["is_parked"]
        assert host.ring.queue_pairs == queue_pairs

    on_a_host(scenario)


def test_a_ring_may_begin_parked() -> None:
    def scenario(host: Host) -> None:
        connected(host)
        start(host, parked=True)
        assert host.ring.status()["is_parked"]
        assert len(host.ring.queue_pairs) == 4
        host.ring.feed(Said(InaStands(job="j", ring_id=INA_RING, epoch=4)))
        assert not host.ring.status()["is_parked"]
        assert host.told == []

    on_a_host(scenario)


@pytest.mark.parametrize("is_halted", [False, True])
def test_what_is_said_of_another_ring_changes_nothing(*, is_halted: bool) -> None:
    def scenario(host: Host) -> None:
        connected(host)
        start(host)
        if is_halted:
            host.halt(Halt(job="j", ring_id=BASE_RING, path="shared", reason="it broke"))
        host.told.clear()
        ring_id = INA_RING + (not is_halted)
        host.ring.feed(Said(InaPark(job="j", ring_id=ring_id, epoch=3)))
        host.ring.feed(Said(InaStands(job="j", ring_id=ring_id, epoch=4)))
        assert host.told == []

    on_a_host(scenario)


def test_a_ring_that_ends_while_it_is_parked_is_followed_by_another() -> None:
    def scenario(host: Host) -> None:
        connected(host)
        start(host)
        host.ring.feed(Said(InaPark(job="j", ring_id=INA_RING, epoch=3)))
        host.halt(Halt(job="j", ring_id=BASE_RING, path="shared", reason="it broke"))
        assert isinstance(host.told[-1], Halted)
        assert len(host.ring.queue_pairs) == 4

    on_a_host(scenario)
