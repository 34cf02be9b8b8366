"""Rings that end while their job goes on: halted, back, on another path, back to the fast one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from inaproto.core.plan.reduction_plan import ReductionPlan
from inaproto.core.rendezvous.events import (
    HostArrived,
    JobView,
    MemberAsked,
    MemberBroken,
    MemberGone,
    MemberHalted,
    MemberLeft,
    MemberReady,
    Noted,
    OperationStalled,
    RendezvousAction,
    RendezvousConfig,
    RendezvousEvent,
    Send,
    SessionEnded,
    SessionId,
    ShuttingDown,
    Woke,
)
from inaproto.core.rendezvous.fabric.control import SWITCH_LOST
from inaproto.core.rendezvous.rendezvous import Rendezvous
from inaproto.core.switch.accelerator import InstallRing, RemoveRing, RingFault, RingRefused
from inaproto.core.switch.events import TURN_LOST
from inaproto.units import Instant, S
from inaproto.wire.control_messages import (
    AskCalls,
    Broken,
    Closed,
    Error,
    Failed,
    Gone,
    Halt,
    Halted,
    Left,
    Member,
    Message,
    OpStarted,
    Ready,
    Ring,
    Start,
    encode_message,
)
from tests.unit.rendezvous_fabrics import fabric_adding
from tests.unit.rendezvous_members import hello, member

T = TypeVar("T", bound=Message)
RECOVER_NS = 5 * S
REFUSED = "needs 9 bytes of memory, 3 are free"


class World:
    """Three hosts with a rank each; host h's session is ``10 * boots + h``."""

    def __init__(
        self, *, size: int = 3, epoch: int = 1, arrive: bool = True, plan: ReductionPlan | None = None
    ) -> None:
        switches, self.at = ((), ("",) * size) if plan is None else fabric_adding(plan)
        config = RendezvousConfig(
            recover_ns=RECOVER_NS, epoch=epoch, first_ring_id=100 * epoch, switches=switches
        )
        self.core = Rendezvous(config)
        self.now = 0
        self.size = size
        self.installed: list[int] = []
        self.session = {host: SessionId(host) for host in range(size)}
        self.queue_pairs = 1000
        if arrive:
            for host in range(size):
                self.arrive(host)

    def step(self, event: RendezvousEvent) -> list[RendezvousAction]:
        actions = self.core.step(event, Instant(self.now))
        for action in actions:
            match action:
                case InstallRing(spec):
                    assert spec.ring_id not in self.installed
                    self.installed.append(spec.ring_id)
                case RemoveRing(ring_id):
                    self.installed.remove(ring_id)
                case Send(_, message):
                    encode_message(message)
                case _:
                    pass
        return actions

    @property
    def job(self) -> JobView:
        [view] = self.core.view().jobs
        return view

    @property
    def counters(self) -> dict[str, int]:
        return {name: count for name, count in self.core.view().counters.items() if count}

    def arrive(self, host: int) -> None:
        self.step(HostArrived(self.session[host], replace(hello(host), switch=self.at[host])))

    def asks(self, rank: int, progress: int | None = None, **changes: Any) -> list[RendezvousAction]:
        asked: Member = replace(member(rank, size=self.size), progress=progress)
        return self.step(MemberAsked(self.session[rank], replace(asked, **changes), 7))

    def ready(self, *ranks: int) -> list[RendezvousAction]:
        actions: list[RendezvousAction] = []
        for rank in ranks or range(self.size):
            actions = self.step(MemberReady(self.session[rank], Ready(job="train", rank=rank)))
        return actions

    def running(self) -> World:
        for rank in range(self.size):
            self.asks(rank)
        self.ready()
        assert self.job.phase == "running"
        return self

    def halted(self, rank: int, progress: int, ring_id: int | None = None) -> list[RendezvousAction]:
        self.queue_pairs += 1
        like = member(rank)
        told = Halted(
            job="train",
            rank=rank,
            ring_id=self.job.ring_id if ring_id is None else ring_id,
            progress=progress,
            out=replace(like.out, qpn=self.queue_pairs),
            into=replace(like.into, qpn=self.queue_pairs + 500, slot_bytes=1 << 22),
        )
        return self.step(MemberHalted(self.session[rank], told, 8))

    def all_halted(self, *progress: int) -> list[RendezvousAction]:
        actions: list[RendezvousAction] = []
        for rank, done in enumerate(progress or (0,) * self.size):
            actions = self.halted(rank, done)
        return actions

    def broken(
        self, rank: int, reason: str = "the queue pair failed", progress: int = 0
    ) -> list[RendezvousAction]:
        ring_id = self.job.ring_id
        told = Broken(job="train", rank=rank, ring_id=ring_id, progress=progress, reason=reason)
        return self.step(MemberBroken(self.session[rank], told))

    def goes_away(self, rank: int) -> list[RendezvousAction]:
        actions = self.step(SessionEnded(self.session[rank], "its cable was pulled"))
        self.session[rank] = SessionId(self.session[rank] + 10)
        return actions

    def refused(self) -> list[RendezvousAction]:
        return self.step(RingRefused(self.job.ring_id, REFUSED))

    def woke_at(self, now: int) -> list[RendezvousAction]:
        self.now = now
        return self.step(Woke())


def sent(actions: Sequence[RendezvousAction], kind: type[T]) -> list[tuple[int, T]]:
    return [(a.session, a.message) for a in actions if isinstance(a, Send) and isinstance(a.message, kind)]


def failure(actions: Sequence[RendezvousAction]) -> str:
    words = {f"{message.code}: {message.message}" for _, message in sent(actions, Failed)}
    assert len(words) == 1
    return words.pop()


def test_a_ring_that_broke_is_halted_everywhere_and_removed() -> None:
    world = World().running()
    actions = world.broken(1)
    assert isinstance(actions[0], RemoveRing)
    why = "rank 1 (h1, pid 1001): the queue pair failed"
    assert sent(actions, Halt) == [
        (s, Halt(job="train", ring_id=1 * 100, path="switch", reason=why)) for s in range(3)
    ]
    assert actions[-1] == Noted(f"job train: halted, to go on by switch: {why}", is_problem=True)
    assert (world.job.phase, world.job.last_recovery, world.job.recoveries) == ("halted", why, 1)
    assert world.installed == []


def test_it_goes_on_where_the_rank_that_is_ahead_was() -> None:
    world = World().running()
    world.broken(1)
    assert world.halted(2, 40) == world.halted(0, 41) == []
    actions = world.halted(1, 42)
    assert world.installed == [101]
    rings = [ring for _, ring in sent(actions, Ring)]
    assert [(ring.position, ring.progress, ring.donor, ring.path) for ring in rings] == [
        (0, 42, 1, "switch"),
        (1, 42, 1, "switch"),
        (2, 42, 1, "switch"),
    ]
    assert {ring.ring_key for ring in rings} == {8}
    assert [ring.successor.qpn for ring in rings] == [1503, 1501, 1502]  # of the new queue pairs
    assert actions[-1] == Noted(
        "job train: ring 101 of 3 ranks on h0, h1, h2, by switch, from message 42, where "
        "rank 1 (h1, pid 1001) is"
    )
    assert sent(world.ready(), Start) == [(s, Start(job="train", ring_id=101)) for s in range(3)]
    assert world.job.phase == "running"
    assert world.core.deadline is None


def test_ranks_farther_apart_than_the_window_cannot_go_on() -> None:
    world = World().running()
    world.broken(0)
    assert failure(world.all_halted(40, 43, 42)) == (
        "fabric_lost: job 'train' cannot go on: rank 0 (h0, pid 1000) has 40 results and another host 43: "
        "more than the window of 2 apart, which no fault of the network explains"
    )
    assert world.core.view().jobs == ()


def test_a_host_that_lost_its_connection_may_come_back() -> None:
    world = World().running()
    actions = world.goes_away(2)
    assert [session for session, _ in sent(actions, Halt)] == [0, 1]  # nobody hears at the lost one
    assert [rank.state for rank in world.job.ranks] == ["here", "here", "away"]
    world.halted(0, 5)
    world.halted(1, 5)
    world.arrive(2)
    actions = world.asks(2, progress=6)
    assert [(session, ring.progress, ring.donor) for session, ring in sent(actions, Ring)] == [
        (0, 6, 2),
        (1, 6, 2),
        (12, 6, 2),
    ]
    assert [session for session, _ in sent(world.ready(), Start)] == [0, 1, 12]


def test_a_second_host_may_go_away_while_the_first_is() -> None:
    world = World().running()
    world.goes_away(2)
    world.halted(0, 5)
    world.halted(1, 5)
    actions = world.goes_away(1)
    assert actions[-1] == Noted(
        "job train: rank 1 (h1, pid 1001) is away: its host daemon is gone: its cable was pulled"
    )
    for rank in (1, 2):
        world.arrive(rank)
        actions = world.asks(rank, progress=5)
    assert len(sent(actions, Ring)) == 3
    assert world.counters["recoveries"] == 1


def test_a_host_that_does_not_come_back_is_named() -> None:
    world = World().running()
    world.now = 3 * S
    world.goes_away(2)
    world.halted(0, 5)
    world.halted(1, 5)
    assert world.core.deadline == 8 * S
    assert world.woke_at(8 * S - 1) == []
    actions = world.woke_at(8 * S)
    assert [session for session, _ in sent(actions, Failed)] == [0, 1]
    assert failure(actions) == (
        "rank_lost: rank 2 (h2, pid 1002) of job 'train' is lost: it has not come back within 5 s; the "
        "ring had ended: rank 2 (h2, pid 1002) is away: its host daemon is gone: its cable was pulled"
    )
    assert world.core.deadline is None


def flaps(world: World, away_ns: int, progress: int, *, up_ns: int = S) -> list[RendezvousAction]:
    """Host 2 goes away and comes back; what follows its coming back."""
    world.goes_away(2)
    for rank in (0, 1):
        world.halted(rank, progress)
    world.now += away_ns
    world.arrive(2)
    actions = world.asks(2, progress=progress)
    if sent(actions, Ring):
        world.ready()
        world.now += up_ns
    return actions


def test_a_host_that_comes_and_goes_does_not_keep_a_job_without_progress_alive() -> None:
    world = World().running()
    for _ in range(5):
        assert sent(flaps(world, S, 40), Ring)
    assert failure(flaps(world, S, 40)) == (
        "fabric_lost: job 'train' makes no progress: its ranks were waited for 6 s in all since the last; "
        "its ring had ended: rank 2 (h2, pid 1002) is away: its host daemon is gone: its cable was pulled"
    )
    assert world.core.deadline is None


def test_waits_end_with_any_progress_and_not_with_time() -> None:
    world = World().running()
    for progress in range(1, 30):
        assert sent(flaps(world, 5 * S - 1, progress), Ring)
    assert sent(flaps(world, 1, 29, up_ns=10_000 * S), Ring), "just as long"
    assert failure(flaps(world, 1, 29)).startswith("fabric_lost: job 'train' makes no progress: ")


def test_ranks_that_do_not_connect_use_up_the_same_time() -> None:
    """The ring is made again before all were ready."""
    world = World().running()
    for _ in range(5):
        world.goes_away(2)
        for rank in (0, 1):
            world.halted(rank, 40)
        world.arrive(2)
        assert sent(world.asks(2, progress=40), Ring)
        world.now += S
    assert sent(flaps(world, 0, 40), Ring)
    assert failure(flaps(world, 1, 40)).startswith("fabric_lost: job 'train' makes no progress: ")


def test_a_rank_that_does_not_connect_again_is_named() -> None:
    world = World().running()
    world.broken(0)
    world.all_halted()
    world.ready(0, 2)
    assert failure(world.woke_at(5 * S)).startswith(
        "rank_lost: rank 1 (h1, pid 1001) of job 'train' is lost: "
    )
    assert world.installed == []


def test_a_new_process_does_not_take_the_place_of_one_that_is_away() -> None:
    world = World().running()
    world.goes_away(2)
    world.arrive(2)
    actions = world.asks(2, pid=4711)
    assert failure(actions) == (
        "rank_lost: rank 2 (h2, pid 1002) of job 'train' is lost: a new process came in its place"
    )
    assert (world.job.phase, world.job.missing) == ("joining", (0, 1))


def test_one_that_missed_the_start_comes_back_as_if_for_the_first_time() -> None:
    world = World()
    for rank in range(3):
        world.asks(rank)
    world.ready(0, 1)
    world.goes_away(2)
    world.halted(0, 0)
    world.halted(1, 0)
    world.arrive(2)
    assert {(ring.progress, ring.donor) for _, ring in sent(world.asks(2), Ring)} == {(0, 0)}
    assert sent(world.ready(), Start)


def test_one_that_ended_while_its_host_was_away_is_named_when_that_is_back() -> None:
    world = World().running()
    world.goes_away(2)
    world.arrive(2)
    told = Gone(job="train", rank=2, reason="process 1002 ended without leaving")
    actions = world.step(MemberGone(world.session[2], told))
    assert failure(actions) == (
        "rank_lost: rank 2 (h2, pid 1002) of job 'train' is lost: process 1002 ended without leaving"
    )


def test_after_a_restart_one_that_has_ended_is_not_waited_for() -> None:
    told = Gone(job="train", rank=2, reason="process 1002 ended without leaving")
    why = "rank 2 of job 'train' is lost: process 1002 ended without leaving (host h2)"
    world = World(epoch=2)
    world.asks(0, progress=3)
    actions = world.step(MemberGone(world.session[2], told))
    assert [error.message for _, error in sent(actions, Error)] == [why]
    world = World(epoch=2)
    assert world.step(MemberGone(world.session[2], told)) == []
    actions = world.asks(0, progress=3)
    assert [error.message for _, error in sent(actions, Error)] == [why]
    # A job that begins anew has nothing to do with it.
    for rank in (2, 0):
        world.asks(rank)
    assert len(sent(world.asks(1), Ring)) == 3


def test_one_whose_job_has_ended_meanwhile_hears_why() -> None:
    world = World().running()
    world.core._state.config = replace(world.core._state.config, boot_id="this")
    world.goes_away(2)
    world.step(MemberGone(world.session[1], Gone(job="train", rank=1, reason="it was killed")))
    world.arrive(2)
    [(_, error)] = sent(world.asks(2, progress=5, boot_id="this"), Error)
    assert error.message.endswith(
        "it has ended meanwhile: rank 1 (h1, pid 1001) of job 'train' is lost: it was killed"
    )
    assert world.core.view().jobs == ()
    [(_, error)] = sent(world.asks(2, progress=5, boot_id="this", job="unknown"), Error)
    assert error.message.endswith("it has ended meanwhile: long ago")
    assert not sent(world.asks(2, progress=5, boot_id="another"), Error)


def test_one_who_missed_that_all_have_left_hears_that_its_job_is_closed() -> None:
    """First: a host whose ranks have left ends well by that; for any other its job has ended."""
    world = World().running()
    world.core._state.config = replace(world.core._state.config, boot_id="this")
    for rank in (0, 1, 2):
        if rank == 2:
            world.goes_away(0)
        world.step(MemberLeft(world.session[rank], Left(job="train", rank=rank, operations=5)))
    assert world.core.view().jobs == ()
    world.arrive(0)
    [closed, refused] = [
        it.message for it in world.asks(0, progress=5, boot_id="this") if isinstance(it, Send)
    ]
    assert isinstance(closed, Closed)
    assert isinstance(refused, Error)
    assert refused.message.endswith("it has ended meanwhile: all its ranks left")


def test_a_host_may_not_direct_its_predecessor_elsewhere_when_halted() -> None:
    for wrong, why in (
        ({"ip": member(1).into.ip}, "a host speaks for itself"),
        ({"slots": 3}, "its receive buffer has 3 slots of"),
        ({"slot_bytes": 9}, "needs 4 slots of 174080"),
    ):
        world = World().running()
        world.broken(1)
        like = member(0)
        told = Halted(
            job="train",
            rank=0,
            ring_id=world.job.ring_id,
            progress=0,
            out=like.out,
            into=replace(like.into, **wrong),
        )
        words = failure(world.step(MemberHalted(world.session[0], told, 8)))
        assert words.startswith("rank_lost: rank 0 (h0, pid 1000) of job 'train' is lost: ")
        assert why in words


def test_slots_for_a_chain_are_larger() -> None:
    world = World()
    for rank in range(3):
        world.asks(rank)
    world.refused()
    like = member(0)
    told = Halted(job="train", rank=0, ring_id=world.job.ring_id, progress=0, out=like.out, into=like.into)
    words = failure(world.step(MemberHalted(world.session[0], told, 8)))
    assert "of 170 packets needs 4 slots of 348120" in words


def test_a_seat_that_is_held_is_refused_while_halted() -> None:
    world = World().running()
    world.broken(0)
    [(_, error)] = sent(world.asks(1, progress=5), Error)
    assert "the rank is held by process 1001 on h1" in error.message


def test_a_process_that_ends_while_halted_is_lost_at_once() -> None:
    world = World().running()
    world.broken(0)
    actions = world.step(MemberGone(SessionId(1), Gone(job="train", rank=1, reason="it was killed")))
    assert failure(actions) == "rank_lost: rank 1 (h1, pid 1001) of job 'train' is lost: it was killed"


def test_what_is_said_of_a_ring_that_has_ended_is_not_heard() -> None:
    world = World().running()
    ring_id = world.job.ring_id
    world.broken(0)
    assert world.broken(1) == []
    assert world.ready(1) == []
    told = OpStarted(job="train", rank=1, op_index=3, signature=9, nbytes=64)
    assert world.step(OperationStalled(SessionId(1), told)) == []
    assert world.step(RingFault(ring_id, 1, "operations differ", "")) == []
    assert world.step(RingRefused(ring_id, "")) == []
    assert world.halted(1, 7, ring_id=ring_id - 1) == []
    world.all_halted()
    world.ready()
    late = Broken(job="train", rank=1, ring_id=ring_id, progress=0, reason="late")
    assert world.step(MemberBroken(SessionId(1), late)) == []
    assert world.job.phase == "running"


def test_a_switch_of_the_tree_that_is_lost_ends_the_ring_alone() -> None:
    world = World().running()
    actions = world.step(RingFault(world.job.ring_id, 0, SWITCH_LOST, "leaf1 has restarted"))
    assert {halt.reason for _, halt in sent(actions, Halt)} == {"leaf1 has restarted"}


def test_a_ring_that_lost_its_turn_goes_on_by_its_hosts() -> None:
    world = World().running()
    actions = world.step(RingFault(world.job.ring_id, 0, TURN_LOST, "ring 9 has turn 4"))
    assert {halt.reason for _, halt in sent(actions, Halt)} == {"its turn was lost: ring 9 has turn 4"}
    world.all_halted()
    world.ready()
    assert (world.job.path, world.job.fallback) == ("chain", "its turn was lost: ring 9 has turn 4")
    assert world.core.view().counters["fallbacks"] == 1


def test_ranks_that_differ_still_fail() -> None:
    world = World().running()
    actions = world.step(RingFault(world.job.ring_id, 0, "operations differ", "f32 and f16"))
    assert [message for _, message in sent(actions, AskCalls)] == [AskCalls(job="train")] * 3
    deadline = world.core.deadline
    assert deadline is not None
    world.now = deadline
    assert failure(world.step(Woke())).startswith("tensor_mismatch: ")


def test_after_a_restart_of_the_switch_ranks_join_with_their_progress() -> None:
    world = World(epoch=2)
    assert not sent(world.asks(1, progress=12, left_after=3), Ring)
    assert world.core.deadline == 5 * S
    world.asks(2, progress=11)
    actions = world.asks(0, progress=12)
    assert [(ring.progress, ring.donor) for _, ring in sent(actions, Ring)] == [(12, 0)] * 3
    assert world.installed == [200]
    assert sent(world.ready(), Start)
    # The one that had left before is still known to have.
    told = OpStarted(job="train", rank=0, op_index=3, signature=9, nbytes=64)
    assert "rank 1 (h1, pid 1001) left job 'train' after 3" in failure(
        world.step(OperationStalled(SessionId(0), told))
    )


def test_after_a_restart_of_the_switch_a_rank_that_stays_away_is_named() -> None:
    world = World(epoch=2)
    world.asks(0, progress=12)
    world.asks(1, progress=12)
    actions = world.woke_at(5 * S)
    errors = sent(actions, Error)
    assert [(session, error.of) for session, error in errors] == [(0, 100), (1, 101)]
    assert errors[0][1].message == "rank 2 of job 'train' is lost: it has not come back within 5 s"
    assert world.core.view().jobs == ()


def test_a_new_process_cannot_complete_a_job_that_is_in_the_middle() -> None:
    world = World(epoch=2)
    world.asks(0, progress=12)
    world.asks(1, progress=12)
    [(_, error)] = sent(world.asks(2), Error)
    assert "its ranks are in the middle of it, and gather after a restart" in error.message
    assert world.job.missing == (2,)
    assert len(sent(world.asks(2, progress=12), Ring)) == 3


def test_a_rank_of_a_job_that_has_ended_does_not_complete_another_of_that_name() -> None:
    world = World(epoch=2)
    world.asks(0)
    world.asks(1)
    [(_, error)] = sent(world.asks(2, progress=12), Error)
    assert "it has ended meanwhile, and another job of that name is gathering" in error.message
    assert len(sent(world.asks(2), Ring)) == 3


def test_ranks_may_leave_while_the_job_is_halted_or_connects_anew() -> None:
    world = World().running()
    world.broken(0)
    world.step(MemberLeft(SessionId(0), Left(job="train", rank=0, operations=5)))
    world.all_halted(20, 20, 20)
    assert world.job.ranks[0].state == "left"
    world.step(MemberLeft(SessionId(1), Left(job="train", rank=1, operations=5)))
    assert world.job.phase == "connecting"
    actions = world.step(MemberLeft(SessionId(2), Left(job="train", rank=2, operations=5)))
    assert len(sent(actions, Closed)) == 3
    assert world.installed == []


def test_ranks_that_all_left_before_the_switch_restarted_hear_that_all_have() -> None:
    world = World(epoch=2)
    for rank in range(3):
        world.asks(rank, progress=12, left_after=3)
    assert world.job.phase == "connecting"
    actions = world.ready()
    assert len(sent(actions, Start)) == len(sent(actions, Closed)) == 3
    assert world.installed == []
    assert world.core.view().jobs == ()


def test_a_rank_may_leave_while_others_are_missing_after_a_restart_of_the_switch() -> None:
    world = World(epoch=2)
    world.asks(0, progress=12)
    world.step(MemberLeft(SessionId(0), Left(job="train", rank=0, operations=3)))
    assert world.job.ranks[0].state == "left"
    world.asks(1, progress=12, left_after=3)
    assert not sent(world.asks(2, progress=12, left_after=3), Closed)
    assert len(sent(world.ready(), Closed)) == 3


def test_a_rank_may_stall_while_it_waits_for_its_next_ring() -> None:
    world = World(epoch=2)
    told = OpStarted(job="train", rank=0, op_index=3, signature=9, nbytes=64)
    world.asks(0, progress=12)
    assert world.step(OperationStalled(SessionId(0), told)) == []
    for rank in (1, 2):
        world.asks(rank, progress=12)
    assert world.job.phase == "connecting"
    assert world.step(OperationStalled(SessionId(0), told)) == []


def test_before_the_first_ring_a_rank_that_leaves_is_lost() -> None:
    world = World()
    for rank in range(3):
        world.asks(rank)
    actions = world.step(MemberLeft(SessionId(1), Left(job="train", rank=1, operations=0)))
    assert failure(actions) == "rank_lost: rank 1 (h1, pid 1001) of job 'train' is lost: it left"


def test_a_switch_that_stops_says_so_to_halted_jobs_too() -> None:
    world = World().running()
    world.broken(0)
    assert failure(world.step(ShuttingDown("it was told to stop"))).startswith("switch_unreachable: ")


def test_without_recovery_every_end_of_a_ring_fails_its_job() -> None:
    for end in (World.broken, World.goes_away):
        world = World()
        world.core = Rendezvous(RendezvousConfig())
        for host in range(3):
            world.arrive(host)
        world.running()
        assert failure(end(world, 1)).startswith("rank_lost: rank 1 (h1, pid 1001) of job 'train' is lost: ")
