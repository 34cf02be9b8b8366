"""Of many seats each asks some others only: what one knows comes to all, for a few words a seat."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from inaproto.core.sharing.events import (
    CoordinatorLost,
    FromCoordinator,
    FromPeer,
    ParticipantConfig,
    StartOperation,
    TellPeer,
    Woke,
)
from inaproto.core.sharing.participant import SharingParticipant
from inaproto.core.sharing.peers import ALL, peers_of
from inaproto.units import MS, Epoch, Instant, JobId, OpIndex, S
from inaproto.wire.messages.sharing import Commit, Decision, Prepare, Rule, Seat, Turn, Version

VERSION = Version(1, Epoch(1))
LOSS = 0.2


def seats(count: int, jobs: int = 1) -> tuple[Seat, ...]:
    return tuple(
        Seat(JobId(f"j{job}"), f"h{at:05}", 1) for job in range(jobs) for at in range(job, count, jobs)
    )


def reached(peers: dict[Seat, set[Seat]], start: Seat) -> set[Seat]:
    found, new = {start}, {start}
    while new:
        new = {one for seat in new for one in peers[seat]} - found
        found |= new
    return found


@pytest.mark.parametrize("count", [1, 2, ALL, ALL + 1, 18, 19, 64, 65, 100, 255, 1024, 1025, 4096])
def test_peers_are_mutual_few_and_connected(count: int) -> None:
    all_of_them = seats(count)
    found = {seat: set(its) for seat, its in zip(all_of_them, peers_of(all_of_them), strict=True)}
    assert all(seat in its for seat, its in found.items())
    assert all(seat in found[peer] for seat, its in found.items() for peer in its)
    assert max(map(len, found.values())) <= max(ALL, 2 * count.bit_length())
    assert reached(found, all_of_them[count // 2]) == set(all_of_them)


@pytest.mark.parametrize(
    ("count", "distances"),
    [
        (ALL, range(1, ALL)),
        (ALL + 1, [1, 8, 9, 16]),
        (128, [1, 8, 64, 120, 127]),
        (130, [1, 8, 64, 66, 122, 129]),
    ],
)
def test_peers_are_at_distances_of_powers_of_eight(count: int, distances: Sequence[int]) -> None:
    all_of_them = seats(count)
    for at, its in enumerate(peers_of(all_of_them)):
        assert len(its) == len(distances) + 1
        assert set(its) == {all_of_them[(at + one) % count] for one in (0, *distances)}


@pytest.mark.parametrize(("count", "jobs"), [(20, 2), (200, 3), (1000, 7)])
def test_peers_of_one_job_are_connected_too(count: int, jobs: int) -> None:
    all_of_them = seats(count, jobs)
    for job in range(jobs):
        its = {seat for seat in all_of_them if seat.job == f"j{job}"}
        found = {
            seat: its & set(peers)
            for seat, peers in zip(all_of_them, peers_of(all_of_them), strict=True)
            if seat in its
        }
        assert reached(found, min(its)) == its


class Seats:
    """Seats that have voted, and hear no more of the coordinator but for one."""

    def __init__(self, all_of_them: Sequence[Seat], choice: random.Random) -> None:
        self.cores = {seat: SharingParticipant(ParticipantConfig(seat=seat)) for seat in all_of_them}
        self.now = Instant(0)
        self.choice = choice
        self.sent: list[TellPeer] = []
        self.words = 0
        self.started: dict[Seat, bool] = {}
        for seat, peers in zip(all_of_them, peers_of(all_of_them), strict=True):
            prepare = Prepare(
                seat=seat,
                term=1,
                version=VERSION,
                rule=Rule.EQUAL_INDEX,
                granted=all_of_them[0].job,
                over_below=Epoch(1),
                margin=0,
                lease_ns=200 * MS,
                peers=peers,
                seats=0 if len(peers) == len(all_of_them) else len(all_of_them),
            )
            self.step(seat, FromCoordinator(prepare))

    def step(self, seat: Seat, event: FromCoordinator | FromPeer | CoordinatorLost | Woke) -> None:
        for action in self.cores[seat].step(event, self.now):
            if isinstance(action, TellPeer):
                self.words += 1
                self.sent.append(action)
            elif isinstance(action, StartOperation):
                self.started[seat] = action.epoch is not None

    def deliver(self) -> None:
        """All that was said and what is said upon it, in any order, a part lost."""
        while self.sent:
            at = self.choice.randrange(len(self.sent))
            self.sent[at], self.sent[-1] = self.sent[-1], self.sent[at]
            one = self.sent.pop()
            if self.choice.random() >= LOSS:
                self.step(one.seat, FromPeer(one.message.sender, one.message))

    def know(self) -> int:
        return sum(core.view().version == VERSION for core in self.cores.values())


@pytest.mark.parametrize("count", [8, 40, 300])
def test_what_one_seat_knows_comes_to_all(count: int) -> None:
    """Its commit is the only one that arrives; the controller is lost to all others."""
    for seed in range(3):
        choice = random.Random(f"{seed}/{count}/peers")
        all_of_them = seats(count, jobs=2)
        world = Seats(all_of_them, choice)
        turn = Turn(all_of_them[0].job, Epoch(1), OpIndex(1), None)
        knows = choice.choice(all_of_them)
        decision = Decision(turn, None)
        world.step(knows, FromCoordinator(Commit(seat=knows, term=1, version=VERSION, decision=decision)))
        for seat in all_of_them:
            if seat != knows:
                world.step(seat, CoordinatorLost())
        while world.know() < count and world.now < 10 * S:
            world.deliver()
            world.now = Instant(world.now + 50 * MS)
            for seat, core in world.cores.items():
                if core.deadline is not None and core.deadline <= world.now:
                    world.step(seat, Woke())
        assert world.know() == count, f"seed {seed}"
        peers = len(peers_of(all_of_them)[0])
        assert world.words <= 40 * peers * count  # asked and answered some times, and never by all of all
