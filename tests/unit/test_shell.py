"""Where cores meet Trio: events one after the other, deadlines in virtual time."""

from __future__ import annotations

from collections.abc import Callable

import trio
from trio.testing import MockClock

from inaproto.core.steps import Steps
from inaproto.daemon.shell import Alarm, current_instant
from inaproto.units import MS, Instant, S


def test_what_a_step_causes_waits_until_it_has_ended() -> None:
    said: list[str] = []

    def step(event: int) -> None:
        said.append(f"begins {event}")
        if event < 3:
            assert not steps.post(event + 1)
        said.append(f"ends {event}")

    steps = Steps(step)
    assert steps.post(1)
    assert said == ["begins 1", "ends 1", "begins 2", "ends 2", "begins 3", "ends 3"]


def test_after_a_step_that_raised_the_next_one_is_taken() -> None:
    said: list[int] = []

    def step(event: int) -> None:
        if event == 0:
            raise ZeroDivisionError
        said.append(event)

    steps = Steps(step)
    try:
        steps.post(0)
    except ZeroDivisionError:
        assert steps.post(1)
    assert said == [1]


def test_an_alarm_wakes_at_each_deadline_and_follows_one_that_changes() -> None:
    woken: list[int] = []
    due: Instant | None = None
    began = Instant(0)

    def wake() -> None:
        nonlocal due
        woken.append((current_instant() - began) // MS)
        due = Instant(due + 10 * MS) if due is not None and len(woken) < 3 else None

    async def main() -> None:
        nonlocal due, began
        began = current_instant()
        alarm = Alarm(lambda: due, wake)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(alarm.run)
            await trio.sleep(1)
            assert woken == [], "nobody wants to be woken"
            due = Instant(current_instant() + 3600 * S)
            alarm.look()
            await trio.sleep(1)
            due = Instant(began + 5 * S)
            alarm.look()
            await trio.sleep(60)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0))
    assert woken == [5000, 5010, 5020]


def test_an_alarm_is_stirred_by_what_comes_sooner_than_it_wakes_and_by_nothing_else() -> None:
    asked: list[Instant] = []
    due: Instant | None = None

    def deadline() -> Instant | None:
        asked.append(current_instant())
        return due

    async def main() -> None:
        nonlocal due
        alarm = Alarm(deadline, lambda: None)

        async def is_asked(look: Callable[[], None]) -> bool:
            before = len(asked)
            look()
            await trio.sleep(1)
            return len(asked) > before

        async with trio.open_nursery() as nursery:
            nursery.start_soon(alarm.run)
            await trio.sleep(1)
            due = Instant(current_instant() + 10 * S)
            assert await is_asked(lambda: alarm.look_before(Instant(current_instant() + 20 * S)))
            assert not await is_asked(lambda: alarm.look_before(Instant(current_instant() + 20 * S)))
            assert await is_asked(lambda: alarm.look_before(Instant(current_instant() + S)))
            assert await is_asked(alarm.look)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0))
