"""A pool for several turns: at a switch the place of a turn is ``epoch mod capacity``, which no other has."""

from __future__ import annotations

import random

import pytest

from inaproto.core.sharing.events import OperationEnded, OperationStarting, TurnStands, TurnWanted
from inaproto.units import MS, JobId, OpIndex
from inaproto.wire.messages.sharing import Rule, Seat
from tests.paper.sharing_group import Group
from tests.seeds import all_seeds

JOBS = "ABCDE"
STEPS = 500


class Pool:
    """A group whose seats run operations when they like, on paths that are noted."""

    def __init__(self, rule: Rule, capacity: int, draw: random.Random) -> None:
        self.group = Group(rule, jobs=JOBS, capacity=capacity)
        self.capacity = capacity
        self.draw = draw
        self.running: dict[Seat, OpIndex] = {}
        self.most = 0

    def step(self) -> None:
        group, draw = self.group, self.draw
        job = JobId(draw.choice(JOBS))
        match draw.choices(("wish", "restart", "time", "operations", "deliver"), (4, 1, 2, 12, 5))[0]:
            case "wish":
                first = draw.randrange(30)
                until = OpIndex(first + draw.randint(1, 60)) if draw.random() < 0.2 else None
                group.tell(TurnWanted(job, draw.choice((None, 1, 2, 5)), OpIndex(first), until))
            case "restart":
                group.restart()
            case "time":
                group.pass_time(draw.choice((1, 20, 400)) * MS)
            case "operations":
                for seat in draw.sample(group.of(job), draw.choice((1, 2, 2, 2, 2))):
                    self.advance(seat)
            case "deliver":
                group.deliver()

    def advance(self, seat: Seat) -> None:
        group = self.group
        view = group.participants[seat].view()
        running = self.running.get(seat)
        if running is None:
            if not view.is_held:
                self.running[seat] = view.next_operation
                group.at(seat, OperationStarting(view.next_operation))
        elif (seat, running) in group.started and self.has_begun(seat, running):
            del self.running[seat]
            group.at(seat, OperationEnded(running))

    def has_begun(self, seat: Seat, index: OpIndex) -> bool:
        """On all seats: it needs all."""
        return all((other, index) in self.group.started for other in self.group.of(seat.job))

    def check(self) -> None:
        """What switches see: the turns of operations that are under way."""
        seen = {
            (seat.job, epoch)
            for seat, participant in self.group.participants.items()
            for _, epoch in participant.view().in_ina
        }
        assert len(seen) <= self.capacity
        assert len({epoch % self.capacity for _, epoch in seen}) == len(seen), sorted(seen)
        self.most = max(self.most, len(seen))


@pytest.mark.parametrize("rule", list(Rule), ids=lambda rule: rule.value)
@pytest.mark.parametrize("capacity", [2, 3])
def test_no_two_turns_that_stand_have_one_place_and_all_places_are_used(rule: Rule, capacity: int) -> None:
    most, passed_over = 0, 0
    for seed in all_seeds(12):
        pool = Pool(rule, capacity, random.Random(f"{seed}/turn places"))
        for _ in range(STEPS):
            pool.step()
            pool.check()
        most = max(most, pool.most)
        epochs = [one.epoch for one in pool.group.actions if isinstance(one, TurnStands)]
        given = sorted(dict.fromkeys(epochs))
        assert list(dict.fromkeys(epochs)) == given, "they grow"
        passed_over += given[-1] - len(given) if given else 0
    assert most == capacity
    assert passed_over > 0
