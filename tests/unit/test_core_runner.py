"""Cores of the controller: what they make durable is written before they hear so, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import trio

from inaproto.units import Instant
from inaproto_controller.service.core_runner import EVENTS_MAX, CoreRunner, ToPersist


@dataclass
class Counter:
    """Persists each event, and says it aloud when that is done; wakes after a second."""

    deadline: Instant | None = None
    steps: list[str] = field(default_factory=list)

    def step(self, event: str, now: Instant) -> Sequence[str | ToPersist]:
        self.steps.append(event)
        if event.startswith("persisted"):
            return [f"say {event}"]
        self.deadline = Instant(now + 10**9) if event == "arm" else None
        return [ToPersist(event.encode(), len(self.steps)), f"heard {event}"]


@dataclass
class Place:
    log: list[str] = field(default_factory=list)
    news: trio.Event = field(default_factory=trio.Event)

    async def put(self, owner: str, body: bytes | None) -> None:
        await trio.lowlevel.checkpoint()
        self.log.append(f"{owner} {body!r}")

    def perform(self, action: str | ToPersist) -> None:
        assert isinstance(action, str)
        self.log.append(action)
        self.news.set()
        self.news = trio.Event()


def runner(core: Counter, place: Place) -> CoreRunner[str, str | ToPersist]:
    return CoreRunner(
        "sharing/1",
        core,
        put_record=place.put,
        persistence=lambda action: action if isinstance(action, ToPersist) else None,
        persisted=lambda token: f"persisted {token}",
        woke="woke",
        perform=place.perform,
        now=lambda: Instant(round(trio.current_time() * 1e9)),
    )


async def test_durable_before_visible(autojump_clock: trio.testing.MockClock) -> None:
    core, place = Counter(), Place()
    one = runner(core, place)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.run)
        one.tell("a")
        one.tell("b")
        while len(place.log) < 6:
            await place.news.wait()
        nursery.cancel_scope.cancel()
    assert place.log == [
        "sharing/1 b'a'",
        "heard a",
        "say persisted 1",
        "sharing/1 b'b'",
        "heard b",
        "say persisted 3",
    ]


async def test_it_wakes_at_the_deadline(autojump_clock: trio.testing.MockClock) -> None:
    core, place = Counter(), Place()
    one = runner(core, place)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.run)
        one.tell("arm")
        while "heard woke" not in place.log:
            await place.news.wait()
        assert trio.current_time() >= 1.0
        nursery.cancel_scope.cancel()


async def test_events_are_bounded() -> None:
    one = runner(Counter(), Place())
    for _ in range(EVENTS_MAX):
        one.tell("a")
    with pytest.raises(trio.WouldBlock):
        one.tell("a")
