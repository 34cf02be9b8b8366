"""Where a controller has placed jobs, as host daemons ask for it (docs/protocol.md 17)."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio
import trio.testing

from inaproto.daemon.host.job_hosts import ANSWER_S, ASKED_BURST, JobHosts
from inaproto.wire.control_messages import Message
from inaproto.wire.messages.controller import AgentPlacement, AgentWelcome, AgentWhere

PLACED = AgentPlacement(job="train", hosts=("h2", "h3"), ranks_per_host=2)


@dataclass
class Asking:
    """Host h2 and its controller."""

    said: list[Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.hosts = JobHosts("h2")
        self.connect()

    def connect(self, *, places: bool = True) -> None:
        self.hosts.connected(AgentWelcome(term=1, report_ms=100, places=places), self.said.append)

    async def answered(self, placement: AgentPlacement, rank: int, job: str = "train") -> str:
        """What is said of that rank when the controller answers so."""
        found: list[str] = []

        async def ask() -> None:
            found.append(await self.hosts.why_not_here(job, rank))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            self.hosts.heard(placement)
        return found[0]


def run(scenario: Callable[[Asking], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        await scenario(Asking())

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.01))


@pytest.mark.parametrize(
    ("rank", "words"),
    [
        (0, ""),
        (1, ""),
        (2, "the controller has placed it on h3, one of h2, h3, not on h2; start it there"),
        (3, "the controller has placed it on h3, one of h2, h3, not on h2; start it there"),
        (4, "the controller has placed it with ranks 0 to 3, on h2, h3"),
    ],
)
@pytest.mark.parametrize("job", ["train", "train#1/2"])
def test_a_rank_hears_on_which_host_it_belongs(rank: int, words: str, job: str) -> None:
    async def scenario(its: Asking) -> None:
        assert await its.answered(PLACED, rank, job) == words
        assert its.said == [AgentWhere(job="train")]

    run(scenario)


def test_a_job_that_is_nowhere_may_come_anywhere() -> None:
    async def scenario(its: Asking) -> None:
        for answer in (
            AgentPlacement(job="train"),
            AgentPlacement(job="train", hosts=("h9",), ranks_per_host=0),
        ):
            assert await its.answered(answer, 0) == ""

    run(scenario)


def test_long_lists_of_hosts_are_cut() -> None:
    async def scenario(its: Asking) -> None:
        hosts = tuple(f"g{number}" for number in range(12))
        said = await its.answered(AgentPlacement(job="train", hosts=hosts, ranks_per_host=1), 11)
        named = "g0, g1, g2, g3, g4, g5, g6, g7 and 4 more"
        assert said == f"the controller has placed it on g11, one of {named}, not on h2; start it there"

    run(scenario)


def test_a_controller_that_does_not_say_that_it_answers_is_not_asked() -> None:
    """An old one ends the session of a host that says what it does not know."""

    async def scenario(its: Asking) -> None:
        its.connect(places=False)
        assert await its.hosts.why_not_here("train", 0) == ""
        assert its.said == []

    run(scenario)


def test_a_job_that_goes_on_without_a_lost_rank_is_not_asked_for() -> None:
    async def scenario(its: Asking) -> None:
        assert await its.hosts.why_not_here("train~1", 0) == ""
        assert its.said == []

    run(scenario)


def test_nobody_waits_for_ever_for_an_answer() -> None:
    async def scenario(its: Asking) -> None:
        began = trio.current_time()
        assert await its.hosts.why_not_here("train", 3) == ""
        assert trio.current_time() - began == pytest.approx(ANSWER_S)
        its.hosts.heard(PLACED)  # too late
        assert await its.answered(PLACED, 3) != ""

    run(scenario)


def test_who_asks_when_the_controller_goes_joins_at_once() -> None:
    async def scenario(its: Asking) -> None:
        async with trio.open_nursery() as nursery:
            found: list[str] = []

            async def ask() -> None:
                found.append(await its.hosts.why_not_here("train", 3))

            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            began = trio.current_time()
            its.hosts.disconnected()
        assert (found, trio.current_time()) == ([""], began)
        assert await its.hosts.why_not_here("train", 3) == ""
        its.connect()
        assert await its.answered(PLACED, 3) != ""

    run(scenario)


def test_ranks_that_come_together_ask_once() -> None:
    async def scenario(its: Asking) -> None:
        found: list[str] = []

        async def ask(rank: int) -> None:
            found.append(await its.hosts.why_not_here("train", rank))

        async with trio.open_nursery() as nursery:
            for rank in range(4):
                nursery.start_soon(ask, rank)
            await trio.testing.wait_all_tasks_blocked()
            its.hosts.heard(AgentPlacement(job="other", hosts=("h2",), ranks_per_host=4))
            assert found == []
            its.hosts.heard(PLACED)
        assert sorted(bool(why) for why in found) == [False, False, True, True]
        assert its.said == [AgentWhere(job="train")]

    run(scenario)


def test_processes_cannot_make_a_host_flood_its_controller() -> None:
    async def scenario(its: Asking) -> None:
        async with trio.open_nursery() as nursery:
            for number in range(2 * ASKED_BURST):
                nursery.start_soon(its.hosts.why_not_here, f"job{number}", 0)
            await trio.testing.wait_all_tasks_blocked()
            assert len(its.said) == ASKED_BURST
        await trio.sleep(1)  # the deadlines were 2 s: some of the allowance is there again
        assert await its.answered(PLACED, 3) != ""

    run(scenario)
