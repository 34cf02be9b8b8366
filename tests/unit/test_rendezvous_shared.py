"""Jobs that ask for the path shared: two rings at once, one along the hosts and one through the switches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from inaproto.core.plan.reduction_plan import ReductionPlan
from inaproto.core.rendezvous.events import (
    MemberHalted,
    Noted,
    OperationStalled,
    RendezvousAction,
    Send,
    Woke,
)
from inaproto.core.rendezvous.fabric.events import StartAsked
from inaproto.core.switch.accelerator import InstallRing, RemoveRing, RingFault, RingRefused
from inaproto.core.switch.events import TURN_LOST
from inaproto.errors import Blame
from inaproto.units import Instant, S
from inaproto.wire.control import ControlDecoder
from inaproto.wire.control_messages import (
    AskCalls,
    Error,
    Failed,
    Halt,
    Halted,
    IntoAddress,
    Member,
    Message,
    OpStarted,
    OutAddress,
    Ring,
    RingPath,
    Start,
    decode_message,
    encode_message,
)
from tests.unit.rendezvous_hosts import LARGE, World, failure, refusal, sent
from tests.unit.rendezvous_members import member

THREE = {0: (0, 3), 1: (1,), 2: (2,)}
MESSAGE_BYTES = 170 * 1024
WORDS = (
    "all-reduce 4 was bound to different paths: chain by rank 0 (h0, pid 1000), rank 1 (h1, pid 1001); "
    "switch by rank 2 (h2, pid 1002)"
)


def ina_link(host: int, **changes: Any) -> tuple[OutAddress, IntoAddress]:
    link = member(0, host=host)
    into = replace(link.into, **({"qpn": 800 + host, "slot_bytes": MESSAGE_BYTES} | changes))
    return replace(link.out, qpn=700 + host), into


def halted(
    world: World, host: int, progress: int = 0, *, has_ina: bool = True, **changes: Any
) -> list[RendezvousAction]:
    """The host answers ``Halt`` with two links."""
    name = changes.pop("job", "train")
    [ring_id] = [view.ring_id for view in world.jobs if view.name == name]
    link = member(0, host=host)
    ina_out, ina_into = ina_link(host, **changes)
    told = Halted(
        job=name,
        rank=world.ranks[host][0],
        ring_id=ring_id,
        progress=progress,
        out=replace(link.out, qpn=500 + host),
        into=replace(link.into, qpn=600 + host, slot_bytes=LARGE),
        ina_out=ina_out if has_ina else None,
        ina_into=ina_into if has_ina else None,
    )
    return world.step(MemberHalted(world.session[host], told, 8))


def asks_all(world: World) -> list[RendezvousAction]:
    return [world.asks(rank, path="shared") for rank in range(world.size)][-1]


def halted_all(world: World, progress: int = 0, **changes: Any) -> list[RendezvousAction]:
    return [halted(world, host, progress, **changes) for host in world.ranks][-1]


def joined(**config: Any) -> tuple[World, list[RendezvousAction]]:
    """All have joined, been asked for their links, and have them; and what followed."""
    world = World(THREE, **config)
    asked = asks_all(world)
    assert {halt.path for _, halt in sent(asked, Halt)} == {"shared"}
    return world, halted_all(world)


def running(**config: Any) -> World:
    world, _ = joined(**config)
    world.ready()
    assert world.job.phase == "running"
    return world


def stalled(world: World, host: int, op_index: int, path: RingPath | None) -> list[RendezvousAction]:
    told = OpStarted(
        job="train", rank=world.ranks[host][0], op_index=op_index, signature=1, nbytes=8, path=path
    )
    return world.step(OperationStalled(world.session[host], told))


def test_who_knows_that_another_host_has_taken_the_other_path_need_not_stall() -> None:
    world = running()
    told = OpStarted(job="train", rank=0, op_index=4, signature=1, nbytes=8, path="switch", unlike="h1")
    actions = world.step(OperationStalled(world.session[0], told))
    assert len(sent(actions, Halt)) == 3
    assert world.job.phase == "halted"
    [noted] = [one for one in actions if isinstance(one, Noted)]
    assert "all-reduce 4 was bound to different paths: switch by rank 0" in noted.text
    assert "not by host h1" in noted.text
    assert stalled(world, 1, 4, "chain") == [], "that comes too late"


def test_every_host_is_told_two_rings_and_the_switches_get_the_second() -> None:
    world, actions = joined()
    [install] = [action for action in actions if isinstance(action, InstallRing)]
    rings = sent(actions, Ring)
    assert len(rings) == world.size
    for _, ring in rings:
        before, after = (ring.position - 1) % 3, (ring.position + 1) % 3
        assert (ring.path, ring.ina_ring_id) == ("shared", install.spec.ring_id)
        assert (ring.predecessor.qpn, ring.successor.qpn) == (500 + before, 600 + after)
        assert ring.ina_predecessor == ina_link(before)[0]
        assert ring.ina_successor == ina_link(after)[1]
    assert install.spec.ring_id != rings[0][1].ring_id
    assert [flow.dst_qp for flow in install.spec.flows] == [801, 802, 800]
    assert (world.job.path, world.job.fallback) == ("shared", "")
    assert world.job.ina_ring_id == install.spec.ring_id
    started = world.ready()
    assert {start.ina_ring_id for _, start in sent(started, Start)} == {install.spec.ring_id}
    assert started[-1] == Noted("job train: started")


def test_the_start_waits_for_the_ring_in_the_switches() -> None:
    """Of the tree of switches: the base ring's start is asked for in the name of the other."""
    world, _ = joined()
    for action in world.ready():
        if isinstance(action, Send) and isinstance(action.message, Start):
            assert StartAsked(action).ring_id == world.job.ina_ring_id != 0


def over_the_wire(message: Message) -> Message:
    decoder = ControlDecoder()
    [record] = decoder.feed(encode_message(message))
    return decode_message(record)


def test_the_messages_go_over_the_wire() -> None:
    _, actions = joined()
    for action in actions:
        if isinstance(action, Send):
            assert over_the_wire(action.message) == action.message
    asked = replace(member(0), ina_out=ina_link(0)[0], ina_into=ina_link(0)[1])
    assert over_the_wire(asked) == asked


def test_what_a_daemon_of_before_says_means_one_ring() -> None:
    """It knows none of the fields, and ignores them in what it hears."""
    _, actions = joined()
    ring = next(action.message for action in actions if isinstance(action, Send))
    [record] = ControlDecoder().feed(encode_message(ring))
    without = {name: value for name, value in record.items() if not name.startswith("ina_")}
    assert len(without) == len(record) - 3
    before = decode_message(without)
    assert isinstance(before, Ring)
    assert (before.ina_ring_id, before.ina_successor, before.ina_predecessor) == (0, None, None)
    [said] = ControlDecoder().feed(encode_message(member(0)))
    assert not any(name.startswith("ina_") for name in said), "what it does not have it does not say"


def test_a_ring_that_the_switches_refuse_leaves_the_job_on_its_base_ring() -> None:
    world, _ = joined()
    ring_id = world.job.ina_ring_id
    refused = world.step(RingRefused(ring_id, "no room for 9 slots"))
    assert refused[0] == RemoveRing(ring_id)
    assert refused[1:] == [
        Noted("job train: begins without a ring in the switches: no room for 9 slots", is_problem=True)
    ]
    started = world.ready()
    assert {start.ina_ring_id for _, start in sent(started, Start)} == {0}
    assert started[-1] == Noted("job train: started, the hosts sum: no room for 9 slots", is_problem=True)
    job = world.job
    assert (job.phase, job.path, job.fallback) == ("running", "chain", "no room for 9 slots")
    assert (job.recoveries, job.ina_ring_id) == (0, 0)


def test_it_tries_the_switches_again_and_has_two_rings_then() -> None:
    world, _ = joined()
    world.step(RingRefused(world.job.ina_ring_id, "no room"))
    world.ready()
    assert world.core.deadline == Instant(1 * S)
    halts = sent(world.woke_at(1 * S), Halt)
    assert {halt.path for _, halt in halts} == {"shared"}
    actions = halted_all(world, 5)
    assert {(ring.path, ring.progress) for _, ring in sent(actions, Ring)} == {("shared", 5)}
    world.ready()
    assert (world.job.path, world.job.fallback, world.job.recoveries) == ("shared", "", 1)
    assert list(world.installed) == [world.job.ina_ring_id]


def test_a_ring_that_is_refused_after_the_start_ends_its_generation() -> None:
    world = running()
    halts = sent(world.step(RingRefused(world.job.ina_ring_id, "no room")), Halt)
    assert {halt.path for _, halt in halts} == {"chain"}
    assert world.installed == {}


def test_a_ring_that_the_switches_stop_is_no_failure_of_the_job() -> None:
    world = running()
    ring_id = world.job.ina_ring_id
    actions = world.step(RingFault(ring_id, 1, "wrong epoch", "3 where 4 is due"))
    assert actions[0] == RemoveRing(ring_id)
    assert {halt.path for _, halt in sent(actions, Halt)} == {"chain"}
    world.halted(0, 3)
    world.halted(1, 3)
    actions = world.halted(2, 3)
    assert {(ring.path, ring.ina_ring_id) for _, ring in sent(actions, Ring)} == {("chain", 0)}
    world.ready()
    assert world.job.fallback == (
        "the switch stopped its ring there: wrong epoch at rank 1 (h1, pid 1001): 3 where 4 is due"
    )


def test_every_ring_that_the_switches_stop_is_counted() -> None:
    world = running()
    for count, rule in enumerate(("wrong epoch", TURN_LOST, TURN_LOST, "wrong epoch"), start=1):
        ended = world.job.ring_id
        world.step(RingFault(world.job.ina_ring_id, 1, rule, "3 where 4 is due"))
        assert world.core.view().counters["fallbacks"] == count
        halted_all(world, has_ina=False)
        world.ready()
        assert world.step(RingFault(ended, 1, rule, "said of a ring that has ended")) == []
        assert world.core.deadline is not None
        world.woke_at(world.core.deadline)
        halted_all(world)
        world.ready()
        assert world.job.path == "shared"


def test_ranks_that_called_different_all_reduces_fail_as_on_every_path() -> None:
    world = running()
    assert sent(world.step(RingFault(world.job.ina_ring_id, 1, "operations differ", "4 bytes")), AskCalls)
    deadline = world.core.deadline
    assert deadline is not None
    world.now = deadline
    failed = world.step(Woke())
    assert failure(failed).startswith("tensor_mismatch: the ranks of job 'train' called different")


def test_a_shared_job_whose_rings_break_goes_on_by_its_base_ring_alone() -> None:
    world = running()
    for path in ("shared", "chain"):
        halts = sent(world.broken(1, 7), Halt)
        assert {halt.path for _, halt in halts} == {path}
        halted_all(world, 7, has_ina=path == "shared")
        world.ready()
    assert world.job.path == "chain"


# --- hosts that bind one operation to different paths


def test_hosts_that_have_bound_an_operation_differently_are_halted_and_go_on() -> None:
    world = running()
    assert sent(stalled(world, 0, 4, "chain"), Halt) == []
    assert sent(stalled(world, 1, 4, "chain"), Halt) == []
    actions = stalled(world, 2, 4, "switch")
    assert {(halt.path, halt.reason) for _, halt in sent(actions, Halt)} == {
        (
            "shared",
            WORDS,
        )
    }
    assert world.core.view().counters["disagreements"] == 1
    actions = halted_all(world, 4)
    assert {(ring.path, ring.progress) for _, ring in sent(actions, Ring)} == {("shared", 4)}
    world.ready()
    assert sent(stalled(world, 2, 4, "chain"), Halt) == [], "what was said of a ring that has ended is over"
    stalled(world, 1, 4, "switch")
    assert world.core.view().counters["disagreements"] == 2


def test_hosts_that_agree_or_have_bound_nothing_yet_are_waited_for() -> None:
    world = running()
    for host in THREE:
        assert sent(stalled(world, host, 4, None), Halt) == []
    for host in (0, 1):
        assert sent(stalled(world, host, 4, "switch"), Halt) == []
    assert sent(stalled(world, 0, 5, "chain"), Halt) == [], "of another operation"


# --- who cannot have two rings


def test_a_switch_that_ends_jobs_with_their_rings_refuses_it() -> None:
    world = World(THREE, recover_ns=0)
    assert "this switch ends a job with its ring" in refusal(world.asks(0, path="shared"), 0)


def test_a_host_without_a_second_link_ends_the_job_in_words() -> None:
    world = World(THREE)
    asks_all(world)
    lost = halted(world, 0, has_ina=False)
    assert "it has one link, and the path shared needs two" in failure(lost)


def test_a_second_link_with_other_slots_or_of_another_host_is_refused() -> None:
    world = World(THREE)
    out, into = ina_link(0)
    for slots, link in ((3, out), (4, replace(out, ip=bytes([9, 9, 9, 9])))):
        asked = world.asks(0, path="shared", ina_out=link, ina_into=replace(into, slots=slots))
        assert refusal(asked, 0)


def test_hosts_that_no_chain_can_follow_are_refused_in_words() -> None:
    world = World(THREE, plan=ReductionPlan(((0, 2), 1)))
    actions = asks_all(world)
    [words] = {error.message for _, error in sent(actions, Error)}
    assert words.startswith("job 'train' asked for the path shared, but its hosts cannot sum in the order")


def test_a_job_on_one_host_has_no_ring_at_all() -> None:
    world = World({0: (0, 1)})
    actions = asks_all(world)
    assert {(ring.path, ring.ina_ring_id) for _, ring in sent(actions, Ring)} == {("switch", 0)}
    assert world.installed == {}


def test_both_rings_are_given_up_with_the_job() -> None:
    world = running()
    ring_id = world.job.ina_ring_id
    actions = world.gone(1)
    assert RemoveRing(ring_id) in actions
    assert len(sent(actions, Failed)) == 2
    assert world.step(RingFault(ring_id, 0, "late", "")) == []
    assert not any(isinstance(action, Blame) for action in actions)


@pytest.mark.parametrize("path", ["auto", "chain"])
def test_of_other_jobs_a_second_link_changes_nothing(path: str) -> None:
    world = World({0: (0,), 1: (1,)})
    out, into = ina_link(0)
    actions: list[RendezvousAction] = []
    for rank in range(2):
        out, into = ina_link(rank)
        actions = world.asks(rank, path=path, ina_out=out, ina_into=into)
    assert {ring.ina_ring_id for _, ring in sent(actions, Ring)} == {0}
    assert all(ring.ina_successor is None for _, ring in sent(actions, Ring))
    for install in world.installed.values():
        assert {flow.dst_qp for flow in install.spec.flows}.isdisjoint({800, 801})


def test_a_member_says_nothing_of_a_second_link_by_itself() -> None:
    assert isinstance(member(0), Member)
    assert member(0).ina_into is None
