"""Tree migration under random weather: messages lost, doubled and late, crashes, restarts, deaths, new plans,
and switches that are taken out.

While it lasts no switch lends more slots than it has, none releases a slot that its job uses, and nobody is
blamed (``MigratingJobs`` checks it in every step). When it is over, every job gets what the last plan gives
it, and every slot that is lent is one of those.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from inaproto.core.migration.events import MigrationConfig, PlanWanted, SwitchLost
from inaproto.units import MS, S
from tests.unit.migrating_jobs import MigratingJobs, plan

JOBS = ("A", "B", "C", "D")
STEPS = 40


class Weather:
    """One seeded run."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(f"{seed}/tree migration")
        self.switches = "abcde"[: self.random.randint(2, 5)]
        self.capacity = self.random.randint(1, 2)
        self.is_bad = True
        config = MigrationConfig(
            tuple(self.switches),
            (self.capacity,) * len(self.switches),
            tries_max=self.random.randint(2, 5),
            audit_ns=2 * S,
            jitter_ns=tuple(self.random.randrange(20 * MS) for _ in range(16)),
        )
        self.world = MigratingJobs(
            self.switches,
            capacity=self.capacity,
            config=config,
            drain_ns=self.random.choice((0, MS, 300 * MS)),
            copies=self.copies,
        )
        self.version = 0
        self.plan: PlanWanted | None = None
        self.dead: set[str] = set()

    def copies(self) -> list[int]:
        if not self.is_bad or self.random.random() < 0.6:
            return [MS]
        count = self.random.choice((0, 0, 1, 2))
        return [self.random.choice((MS, 5 * MS, 400 * MS, 3 * S)) for _ in range(count)]

    def new_plan(self) -> None:
        """One that the slots suffice for."""
        free = dict.fromkeys(self.switches, self.capacity)
        targets: dict[str, str] = {}
        for job in JOBS:
            some = sorted(self.random.sample(self.switches, self.random.randint(1, len(self.switches))))
            wanted = [at for at in some if free[at]] if self.random.random() < 0.8 else []
            for at in wanted:
                free[at] -= 1
            if job not in self.dead:
                targets[job] = "".join(wanted)
        self.version += 1
        self.plan = plan(self.version, **targets)
        self.world.tell(self.plan)

    def something_happens(self) -> None:
        world, switch = self.world, self.random.choice(self.switches)
        match self.random.randrange(10):
            case 0 | 1 | 2:
                self.new_plan()
            case 3:
                world.crash()
            case 4:
                world.reboot(switch, says_so=self.random.random() < 0.5)
            case 5:
                world.tell(SwitchLost(switch))
            case 6 if len(self.dead) < 2:
                job = self.random.choice([its for its in JOBS if its not in self.dead])
                self.dead.add(job)
                world.die(job)
            case 7 if len(self.switches) > 2:
                self.take_out(switch)
            case _:
                self.return_if_down()

    def take_out(self, switch: str) -> None:
        """Whoever operates the cluster edits its file, and starts the controller anew."""
        self.switches = self.switches.replace(switch, "")
        self.world.crash()
        slots = (self.capacity,) * len(self.switches)
        self.world.config = replace(self.world.config, switches=tuple(self.switches), slots=slots)
        self.world.restart()
        self.new_plan()

    def return_if_down(self) -> None:
        """The planner says all that it knows."""
        if self.world.coordinator is None:
            self.world.restart()
        if self.plan is not None:
            self.world.tell(self.plan)
        for job in self.dead:
            self.world.die(job)

    def run(self) -> None:
        for _ in range(STEPS):
            self.something_happens()
            self.world.run(self.random.choice((0, MS, 20 * MS, S, 4 * S)))
        self.is_bad = False
        self.return_if_down()
        self.new_plan()
        assert self.world.settle(60 * S), f"not settled: {self.world.core.view()}"
        assert not self.dead & {its.job for its in self.world.core.view().jobs}


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_whatever_happens_slots_are_safe_and_in_the_end_jobs_have_their_trees(first: int) -> None:
    migrations = 0
    for seed in range(first, first + 10):
        weather = Weather(seed)
        try:
            weather.run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        migrations += weather.world.core.view().counters["migrations"]
    assert migrations > 10


def test_runs_of_one_seed_are_equal() -> None:
    runs = [Weather(3), Weather(3)]
    for its in runs:
        its.run()
    assert runs[0].world.log == runs[1].world.log
