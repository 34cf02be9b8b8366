"""The slots of a switch daemon: lent to jobs by its controller, renewed while their rings are installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio
import trio.testing

from inaproto.daemon.shell import current_instant
from inaproto.daemon.switch.lent_slots import LentSlots
from inaproto.units import S
from inaproto.wire.control_messages import Message
from inaproto.wire.messages.controller import AgentWelcome
from inaproto.wire.messages.slots import Lease, Order, Outcome, SlotAnswer, SlotRequest, SlotsChanged

LEASE_S = 30


@dataclass
class Lender:
    """A controller that says what it is told to, and slots that hear it."""

    rings: list[str] = field(default_factory=list)
    said: list[Message] = field(default_factory=list)
    number: int = 0

    def __post_init__(self) -> None:
        self.slots = LentSlots(
            "leaf0", "b1", rings=lambda: self.rings, clock=current_instant, lease_ns=LEASE_S * S
        )

    def welcome(self, slots: int) -> None:
        self.slots.connected(AgentWelcome(term=1, report_ms=100, slots=slots), self.said.append)

    def asks(self, order: Order, lease: Lease | None = None, boot: str = "b1") -> SlotAnswer:
        self.number += 1
        self.slots.heard(SlotRequest(1, self.number, boot, order, lease))
        report = self.said[-1]
        assert isinstance(report, SlotAnswer)
        return report

    @property
    def held(self) -> list[str]:
        return [one["job"] for one in self.slots.status()["held"]]


@contextmanager
def lender(slots: int = 2) -> Iterator[Lender]:
    its = Lender()
    its.welcome(slots)
    yield its


@pytest.fixture
def clock() -> trio.testing.MockClock:
    return trio.testing.MockClock(autojump_threshold=0.01)


def run(clock: trio.testing.MockClock, scenario: Any) -> None:
    async def main() -> None:
        with lender() as its:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(its.slots.run)
                await scenario(its)
                nursery.cancel_scope.cancel()

    trio.run(main, clock=clock)


def test_a_controller_that_comes_hears_of_the_boot_and_tells_how_many_slots_there_are(
    clock: trio.testing.MockClock,
) -> None:
    async def scenario(its: Lender) -> None:
        assert its.said == [SlotsChanged(switch="leaf0", boot="b1")]
        assert its.slots.status()["capacity"] == 2
        its.said.clear()
        its.welcome(0)
        assert its.said == [], "it may be one that knows of no slots"
        assert its.asks(Order.ACQUIRE, Lease("a", 1, 1)).outcome is Outcome.REFUSED

    run(clock, scenario)


def test_a_lease_is_renewed_while_a_ring_of_its_job_is_installed(clock: trio.testing.MockClock) -> None:
    async def scenario(its: Lender) -> None:
        its.rings.append("a")
        for number, job in enumerate("ab"):
            assert its.asks(Order.ACQUIRE, Lease(job, 1, number + 1)).outcome is Outcome.GRANTED
        await trio.sleep(LEASE_S * 1.5)
        assert its.held == ["a"], "nobody renewed that of b"
        assert its.said[-1] == SlotsChanged(switch="leaf0", boot="b1")
        await trio.sleep(LEASE_S * 5)
        assert its.held == ["a"]
        its.rings.clear()
        await trio.sleep(LEASE_S * 1.5)
        assert its.held == []
        assert its.slots.status()["counters"] == {"taken": 2, "freed": 2, "run_out": 2, "freed_under_ring": 0}

    run(clock, scenario)


def test_without_a_controller_leases_are_renewed_and_run_out_alike(clock: trio.testing.MockClock) -> None:
    async def scenario(its: Lender) -> None:
        its.rings.append("a")
        its.asks(Order.ACQUIRE, Lease("a", 1, 1))
        its.asks(Order.ACQUIRE, Lease("b", 1, 2))
        its.slots.disconnected()
        heard = len(its.said)
        await trio.sleep(LEASE_S * 3)
        assert (its.held, len(its.said)) == (["a"], heard)
        its.welcome(2)
        assert its.asks(Order.ASK, boot="").held[0].job == "a"

    run(clock, scenario)


@pytest.mark.parametrize("leases", [0.9, 1.1, 7.3])
def test_a_switch_that_was_suspended_lends_no_slot_twice(
    clock: trio.testing.MockClock, leases: float
) -> None:
    """Its own ring stands; what the controller orders is heard before any timer."""

    async def scenario(its: Lender) -> None:
        its.rings += "ab"
        its.asks(Order.ACQUIRE, Lease("a", 1, 1))
        clock.jump(LEASE_S / 2)
        its.asks(Order.ACQUIRE, Lease("b", 1, 2))
        clock.jump(leases * LEASE_S)
        assert its.asks(Order.ACQUIRE, Lease("c", 1, 3)).outcome is Outcome.REFUSED
        assert its.held == ["a", "b"]
        await trio.sleep(LEASE_S * 3)
        assert its.held == ["a", "b"]
        assert its.slots.status()["counters"]["freed_under_ring"] == 0

    run(clock, scenario)


def test_a_lease_that_is_released_under_a_ring_is_counted(clock: trio.testing.MockClock) -> None:
    async def scenario(its: Lender) -> None:
        its.rings.append("a")
        its.asks(Order.ACQUIRE, Lease("a", 1, 1))
        its.asks(Order.RELEASE, Lease("a", 1, 1))
        assert its.slots.status()["counters"]["freed_under_ring"] == 1

    run(clock, scenario)
