"""Ranks of one host and what the switch answers to them, in the order of bad luck."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial

import pytest

from inaproto.core.host.events import Answered, JobFailed, JoinDenied, JoiningFailed, Said
from inaproto.core.host.hearing import HEARD_OF_MAX
from inaproto.core.host.link import Link
from inaproto.core.host.meeting_place import MeetingPlace
from inaproto.core.host.view import Phase
from inaproto.core.plan.accumulators import Accumulators
from inaproto.core.plan.reduction_plan import ReductionPlan
from inaproto.daemon.host.local_rank import Keeps, LocalRank
from inaproto.daemon.host.ring import HostRing
from inaproto.errors import InvariantBroken, JobError, JoinRefused, LocalMisuse, RankLost
from inaproto.ports import Completion, CompletionKind, Status
from inaproto.units import Instant
from inaproto.wire.control_messages import (
    Broken,
    Gone,
    Halt,
    Halted,
    Member,
    Message,
    Ready,
    Regrouped,
    Ring,
    Start,
)
from inaproto.wire.ina_header import INA_HEADER_BYTES
from inaproto.wire.messages.client import DonePath, Join
from tests.clusters.jobs import fabric_of
from tests.clusters.memory import MemoryCluster, run_world


class Process:
    """What a process hears."""

    def __init__(self) -> None:
        self.errors: list[JobError] = []
        self.has_joined = False

    def joined(
        self,
        ring_id: int,
        operations_max: int,
        *,
        local: bool,
        fills: bool,
        keeps: Keeps,
        meets: MeetingPlace,
    ) -> None:
        self.has_joined = True

    def resumed(self) -> None: ...

    def waits(self, refused: str) -> None: ...

    def held(self) -> AbstractContextManager[None]:
        return nullcontext()

    def results_taken(self, op_index: int, nbytes: int) -> None: ...

    def operation_done(self, op_index: int, path: DonePath, duration_ns: int) -> None: ...

    def rank_failed(self, error: JobError) -> None:
        self.errors.append(error)

    def rank_closed(self) -> None: ...

    def other_left(self, number: int) -> None: ...

    def regrouped(self, message: Regrouped) -> None: ...

    def regroup_refused(self, error: JobError) -> None: ...

    def announce_again(self) -> None: ...

    def process_is_gone(self) -> bool:
        return False


class Host:
    """A ring of job ``j`` on a host that has it alone."""

    def __init__(self, cluster: MemoryCluster) -> None:
        fabric = fabric_of(cluster, 0)
        self.told: list[Message] = []
        self.member: Member
        self.processes: list[Process] = []
        self.ring = HostRing(
            "j",
            settings=fabric.settings,
            nic=fabric.nic,
            tell=self.hear,
            clock=lambda: Instant(0),
            log=lambda text: None,
            random_bits=lambda bits: 1,
        )

    def join(self, number: int, size: int = 3) -> LocalRank:
        self.processes.append(Process())
        join = Join(id=1, job="j", rank=number, size=size, key="", pid=100 + len(self.processes))
        rank = LocalRank(join, self.processes[-1])
        self.ring.add(rank, join.pid)
        return rank

    def hear(self, message: Message) -> None:
        """What the switch is told; but for the ranks that are announced to it."""
        if isinstance(message, Member):
            self.member = message
        else:
            self.told.append(message)

    def halt(self, message: Halt) -> None:
        self.ring.feed(Said(message))

    def start(self, message: Start) -> None:
        self.ring.feed(Said(message))

    def connecting(self) -> list[Link]:
        return [wait.link for wait in self.ring.take_connecting()]

    def answer(
        self, rank: LocalRank, ranks: Sequence[int], ring_id: int = 7, neighbours: int = 0
    ) -> list[LocalRank]:
        """The addresses of all ``neighbours`` are its own."""
        message = self.member
        ring = Ring(
            id=rank.join.pid,
            job="j",
            ring_id=ring_id,
            epoch=1,
            ring_key=1,
            position=0,
            successor=message.into,
            predecessor=message.out,
            peers=tuple(f"h{number}" for number in range(1 + neighbours)),
            ranks=(tuple(ranks), *((8 + number,) for number in range(neighbours))),
        )
        self.ring.feed(Answered(ring, "boot"))
        return self.ring.take_strangers()

    @property
    def gone(self) -> list[tuple[int, str]]:
        return [(word.rank, word.reason) for word in self.told if isinstance(word, Gone)]


def on_a_host(scenario: Callable[[Host], None]) -> None:
    async def run(cluster: MemoryCluster) -> None:
        await cluster.job("warm-up", 1)  # the host has its fabric
        host = Host(cluster)
        try:
            scenario(host)
        finally:
            host.ring.close()

    run_world("host ring", run, hosts=1)


def test_a_host_is_ready_once_when_all_its_ranks_are_answered() -> None:
    def scenario(host: Host) -> None:
        ranks = [host.join(number) for number in (2, 0, 1)]
        for rank in ranks[:2]:
            assert host.answer(rank, (0, 1, 2)) == []
            assert host.told == []
        host.answer(ranks[2], (0, 1, 2))
        assert host.told == [Ready(job="j", rank=0)]
        host.answer(ranks[0], (0, 1, 2))
        assert len(host.told) == 1
        host.start(Start(job="j", ring_id=7))
        assert all(process.has_joined for process in host.processes)

    on_a_host(scenario)


def test_a_host_with_neighbours_is_ready_when_its_queue_pairs_are_connected() -> None:
    """The others send as soon as all are ready: before that it would be lost."""

    def scenario(host: Host) -> None:
        host.answer(host.join(0), (0,), neighbours=1)
        assert (host.ring.phase, host.told) == (Phase.CONNECTING, [])
        [link] = host.connecting()
        assert host.connecting() == [], "one waits for it"
        host.ring.connected(link)
        assert host.told == [Ready(job="j", rank=0)]

    on_a_host(scenario)


def test_queue_pairs_that_are_not_connected_break_their_ring_in_words() -> None:
    """Those of what could not be connected, rather than those of the requests that fail by it."""
    flushed = partial(Completion, kind=CompletionKind.RECEIVE_IMM, wr_id=0, status=Status.FLUSHED)

    def scenario(host: Host) -> None:
        host.answer(host.join(0), (0,), neighbours=1)
        [link] = host.connecting()
        host.ring.completed(flushed(host.ring.queue_pairs[1]))
        assert host.told == []
        host.ring.connected(link, "10.0.0.2 does not answer")
        [broken] = host.told
        assert isinstance(broken, Broken)
        assert "10.0.0.2 does not answer" in broken.reason
        host.halt(Halt(job="j", ring_id=7, path="switch", reason=broken.reason))

        host.answer(next(iter(host.ring.ranks.values())), (0,), ring_id=8, neighbours=1)
        [link] = host.connecting()
        host.ring.completed(flushed(host.ring.queue_pairs[1]))
        host.ring.connected(link)
        broken = host.told[-1]
        assert isinstance(broken, Broken)
        assert "the connection from rank 8 on host h1 failed" in broken.reason

    on_a_host(scenario)


def test_a_link_of_a_ring_that_has_ended_says_nothing() -> None:
    def scenario(host: Host) -> None:
        rank = host.join(0)
        host.answer(rank, (0,), neighbours=1)
        [link] = host.connecting()
        host.halt(Halt(job="j", ring_id=7, path="switch", reason="test"))
        host.ring.connected(link)
        host.answer(rank, (0,), ring_id=8, neighbours=1)
        host.ring.connected(link)
        host.ring.connected(link, "it is closed")
        assert [type(word) for word in host.told] == [Halted]
        assert host.ring.phase is Phase.CONNECTING

    on_a_host(scenario)


def test_a_ring_that_was_made_with_a_process_that_is_gone_fails_alone() -> None:
    """The successor of that process belongs to the job's next life, which uses the same link."""

    def scenario(host: Host) -> None:
        old, beside, third = (host.join(number) for number in (0, 1, 2))
        host.ring.gone(old, "it ended")
        new = host.join(0)
        host.answer(beside, (0, 1, 2))  # the switch had not heard of the end
        host.answer(third, (0, 1, 2))
        assert host.ring.phase is Phase.JOINING
        error = RankLost("rank 0 is lost")
        host.ring.feed(JoiningFailed(7, error))
        assert [process.errors for process in host.processes] == [[], [error], [error], []]
        assert list(host.ring.ranks.values()) == [new]
        again = [host.join(1), host.join(2)]
        for rank in (new, *again):
            host.answer(rank, (0, 1, 2), ring_id=8)
        assert (host.ring.phase, host.ring.ring_id) == (Phase.CONNECTING, 8)
        assert host.gone == [(0, "it ended")]

    on_a_host(scenario)


def test_answers_of_two_rings_are_not_taken_for_one() -> None:
    def scenario(host: Host) -> None:
        first, second = host.join(0), host.join(1)
        host.answer(first, (0, 1), ring_id=7)
        host.answer(second, (0, 1), ring_id=8)
        assert host.told == []
        host.answer(first, (0, 1), ring_id=8)
        assert host.told == [Ready(job="j", rank=0)]

    on_a_host(scenario)


def test_a_rank_without_which_the_ring_was_made_is_given_back() -> None:
    def scenario(host: Host) -> None:
        first, late = host.join(0), host.join(2)
        assert host.answer(first, (0,)) == [late]
        assert list(host.ring.ranks) == [0]
        assert not late.has_ended
        reason = "its job has begun without it; it asks again"
        assert host.told == [Ready(job="j", rank=0), Gone(job="j", rank=2, reason=reason)]
        tensors = host.ring.holdings.tensors
        assert tensors is not None
        assert tensors.ranks == 1, "nothing of a stranger is added up"

    on_a_host(scenario)


def test_a_ring_that_cannot_be_used_does_not_end_those_that_it_was_made_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unusable(*_: object) -> None:
        raise LocalMisuse("no such plan")

    def scenario(host: Host) -> None:
        first, late = host.join(0), host.join(2)
        monkeypatch.setattr("inaproto.core.host.carrier.make_engine", unusable)
        assert host.answer(first, (0,)) == [late]
        assert first.has_ended
        assert not late.has_ended
        assert late.ring is None

    on_a_host(scenario)


def test_a_rank_that_was_withdrawn_and_goes_later_is_named_as_itself() -> None:
    def scenario(host: Host) -> None:
        first, refused = host.join(0), host.join(1)
        host.ring.feed(JoinDenied(refused.join.pid, JoinRefused("no")))
        host.answer(first, (0,))
        assert refused.has_ended
        said = host.ring.gone_after_end(refused, "it closed its connection")
        assert (said.job, said.rank, said.ring_id) == ("j", 1, 7)

    on_a_host(scenario)


def test_the_log_of_a_fault_says_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(*_: object) -> None:
        raise InvariantBroken("planted")

    def scenario(host: Host) -> None:
        logged: list[str] = []
        first = host.join(0)
        monkeypatch.setattr(host.ring, "_log", logged.append)
        monkeypatch.setattr(host.ring.holdings, "on_links", faulty)
        host.answer(first, (0,), neighbours=1)
        assert first.has_ended
        assert any("in faulty" in text for text in logged), logged

    on_a_host(scenario)


def test_a_ring_without_the_rank_that_it_answers_is_refused() -> None:
    def scenario(host: Host) -> None:
        rank = host.join(0)
        host.answer(rank, (1, 2))
        assert "cannot be used here" in str(host.processes[0].errors[0])
        assert [number for number, _ in host.gone] == [0]

    on_a_host(scenario)


@pytest.mark.parametrize("is_running", [False, True])
def test_the_switch_hears_first_of_the_rank_that_died_then_of_those_beside_it(is_running: bool) -> None:
    def scenario(host: Host) -> None:
        ranks = [host.join(number) for number in (0, 1, 2)]
        for rank in ranks:
            host.answer(rank, (0, 1, 2))
        if is_running:
            host.start(Start(job="j", ring_id=7))
        host.ring.gone(ranks[1], "it ended")
        told = "rank 1 (h0, pid 102) of job 'j' is lost: it ended"
        assert host.gone == [(1, "it ended"), (0, told), (2, told)]
        assert [[str(error) for error in each.errors] for each in host.processes] == [[told], [], [told]]
        assert host.ring.phase is Phase.ENDED

    on_a_host(scenario)


def test_a_rank_that_was_refused_for_its_size_does_not_change_the_slots_of_a_chain() -> None:
    """All hosts must take the same; of half types, the chain of two passes on less than that of seven."""

    def scenario(host: Host) -> None:
        wrong, right = host.join(0, size=7), host.join(1, size=2)
        host.ring.feed(JoinDenied(wrong.join.pid, JoinRefused("it says the job has 7 ranks")))
        host.answer(right, (1,))
        host.halt(Halt(job="j", ring_id=7, path="chain", reason="test"))
        halted = host.told[-1]
        assert isinstance(halted, Halted)
        slot_bytes = Accumulators(ReductionPlan.flat(2)).slot_bytes(3 * 256 - INA_HEADER_BYTES)
        assert halted.into.slot_bytes == slot_bytes
        assert slot_bytes != Accumulators(ReductionPlan.flat(7)).slot_bytes(3 * 256 - INA_HEADER_BYTES)

    on_a_host(scenario)


@pytest.mark.parametrize("plan", ["[0, 1", "[1, 0]", "[" * 8000], ids=["no JSON", "other order", "deep"])
def test_a_plan_that_no_chain_can_follow_ends_its_job_and_nothing_else(plan: str) -> None:
    """It was said by a switch of another version, or a broken one; the host has other jobs."""

    def scenario(host: Host) -> None:
        host.join(0)
        host.halt(Halt(job="j", ring_id=7, path="chain", reason="test", plan=plan))
        [process] = host.processes
        [error] = process.errors
        assert isinstance(error, JoinRefused)
        assert "the path chain that its switch names cannot be used here" in str(error)
        assert host.ring.phase is Phase.ENDED
        assert [rank for rank, _ in host.gone] == [0]

    on_a_host(scenario)


def test_a_host_does_not_remember_all_jobs_whose_end_it_is_not_told() -> None:
    """A host is not told of the end of a job that it has ended itself, by the death of its only rank."""

    async def run(cluster: MemoryCluster) -> None:
        await cluster.job("warm-up", 1)
        fabric = fabric_of(cluster, 0)
        host = Host(cluster)
        host.join(0, 1)
        member, hearing = host.member, fabric._hearing
        answer = Ring(job="", ring_id=0, epoch=1, ring_key=1, position=0, successor=member.into,
                      predecessor=member.out, peers=("h0",), ranks=((0,),))  # fmt: skip
        for ring_id in range(HEARD_OF_MAX + 10):
            fabric._handle(replace(answer, job=f"j{ring_id}", ring_id=ring_id))
        fabric._handle(replace(answer, job="j10", ring_id=1))
        fabric._handle(replace(answer, job="new", ring_id=2))
        assert len(hearing) == HEARD_OF_MAX
        assert not hearing.has_heard_of("j9", 9)
        assert hearing.has_heard_of("j10", 1), "this one was heard of again"
        assert not hearing.has_heard_of("j11", 11)
        assert hearing.has_heard_of("j12", 12)
        host.ring.close()

    run_world("heard of", run, hosts=1)


def test_a_process_that_joined_anew_is_withdrawn_with_the_link_that_a_failed_ring_was_to_have() -> None:
    """The switch holds its rank in the job's next life, with the addresses of that link."""

    def scenario(host: Host) -> None:
        old, _ = host.join(0), host.join(1)
        host.ring.gone(old, "it ended")
        host.join(0)
        host.halt(Halt(job="j", ring_id=7, path="ring", reason="", plan=""))  # said before it heard that
        assert host.ring.phase is Phase.HALTED
        host.ring.feed(JobFailed(RankLost("rank 0 is lost")))
        assert [len(process.errors) for process in host.processes] == [0, 1, 1]
        assert host.gone == [(0, "it ended"), (0, "rank 0 is lost"), (1, "rank 0 is lost")]

    on_a_host(scenario)
