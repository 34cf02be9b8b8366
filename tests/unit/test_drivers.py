"""Tasks that wait for the same channel: who reads, and who is told of what was read."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from inaproto.client.channel import Steps, Wait
from inaproto.client.drivers import TrioDriver


class Line:
    """A pollable of which a test holds the other end."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.theirs.setblocking(False)
        self.has_output = False
        self.said: list[bytes] = []
        self.waiting = 0
        """Tasks that wait for it."""

    def fileno(self) -> int:
        return self.ours.fileno()

    def pump(self, on_news: Callable[[], None]) -> None:
        try:
            data = self.ours.recv(100)
        except BlockingIOError:
            return
        self.said.append(data)
        on_news()

    async def wait_receivable(self) -> None:
        self.waiting += 1
        try:
            await trio.lowlevel.wait_readable(self.ours)
        finally:
            self.waiting -= 1

    async def wait_sendable(self) -> None:
        await trio.lowlevel.wait_writable(self.ours)

    def close(self) -> None:
        trio.lowlevel.notify_closing(self.ours)
        self.ours.close()


@pytest.fixture
def lines() -> Iterator[list[Line]]:
    made = [Line(), Line()]
    yield made
    for line in made:
        line.ours.close()
        line.theirs.close()


def until_said(
    driver: TrioDriver, lines: Sequence[Line], word: bytes, until: float | None = None
) -> Steps[bool]:
    """Read ``lines`` until one of them says ``word``, or for so long."""
    while True:
        for line in lines:
            line.pump(driver.note_news)
            if word in line.said:
                return True
        if until is not None and trio.current_time() >= until:
            return False
        yield Wait(lines, until)


def run(scenario: Callable[[], Any]) -> None:
    async def limited() -> None:
        with trio.fail_after(600):
            await scenario()

    trio.run(limited)


def test_one_task_reads_for_all_that_wait_for_the_same(lines: list[Line]) -> None:
    async def scenario() -> None:
        driver = TrioDriver()
        async with trio.open_nursery() as nursery:
            for word in (b"a", b"b", b"c"):
                nursery.start_soon(driver.drive, until_said(driver, lines[:1], word))
            for word in (b"c", b"a", b"b"):
                await trio.testing.wait_all_tasks_blocked()
                assert lines[0].waiting == 1
                lines[0].theirs.send(word)

    run(scenario)


def test_what_nobody_waits_for_yet_is_waited_for(lines: list[Line]) -> None:
    async def scenario() -> None:
        driver = TrioDriver()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(driver.drive, until_said(driver, lines[:1], b"a"))
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(driver.drive, until_said(driver, lines, b"b"))
            await trio.testing.wait_all_tasks_blocked()
            assert [line.waiting for line in lines] == [1, 1]
            lines[1].theirs.send(b"b")
            await trio.testing.wait_all_tasks_blocked()
            assert [line.waiting for line in lines] == [1, 0]
            lines[0].theirs.send(b"a")

    run(scenario)


@pytest.mark.parametrize("how", ["ends", "is cancelled", "waits for something else"])
def test_another_task_takes_over_what_one_waited_for(lines: list[Line], how: str) -> None:
    async def scenario() -> None:
        driver = TrioDriver()

        def first() -> Steps[bool]:
            yield from until_said(driver, lines[:1], b"go")
            if how == "waits for something else":
                yield from until_said(driver, lines[1:], b"end")
            return True

        async with trio.open_nursery() as nursery:
            scope = trio.CancelScope()

            async def reader() -> None:
                with scope:
                    await driver.drive(first())

            nursery.start_soon(reader)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(driver.drive, until_said(driver, lines[:1], b"more"))
            await trio.testing.wait_all_tasks_blocked()
            if how == "is cancelled":
                scope.cancel()
            else:
                lines[0].theirs.send(b"go")
            await trio.testing.wait_all_tasks_blocked()
            assert lines[0].waiting == 1
            lines[0].theirs.send(b"more")
            lines[1].theirs.send(b"end")

    run(scenario)


def test_a_task_that_begins_to_wait_tells_the_others_what_it_read(lines: list[Line]) -> None:
    async def scenario() -> None:
        driver, order = TrioDriver(), list[str]()

        async def waiting(name: str, steps: Steps[bool]) -> None:
            order.append(f"{name} {await driver.drive(steps)}")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(waiting, "first", until_said(driver, lines[:1], b"a"))
            await trio.testing.wait_all_tasks_blocked()
            lines[0].theirs.send(b"a")
            lines[0].pump(driver.note_news)  # before the event loop has seen that there is something
            await trio.testing.wait_all_tasks_blocked()
            assert order == ["first True"]
            await waiting("late", until_said(driver, lines, b"never", trio.current_time()))
        assert order == ["first True", "late False"]

    run(scenario)


def test_who_has_output_waits_for_room_too_although_another_reads(lines: list[Line]) -> None:
    async def scenario() -> None:
        driver, line = TrioDriver(), lines[0]

        def writing() -> Steps[None]:
            line.has_output = True
            yield Wait((line,), None)
            line.has_output = False

        async with trio.open_nursery() as nursery:
            nursery.start_soon(driver.drive, until_said(driver, [line], b"a"))
            await trio.testing.wait_all_tasks_blocked()
            await driver.drive(writing())
            line.theirs.send(b"a")

    run(scenario)


def test_a_channel_that_is_closed_is_news_for_all(lines: list[Line]) -> None:
    async def scenario() -> None:
        driver = TrioDriver()
        closed = False

        def until_closed() -> Steps[None]:
            while not closed:
                yield Wait(lines, None)

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(partial(driver.drive, until_closed()))
            await trio.testing.wait_all_tasks_blocked()
            closed = True
            driver.note_news()
            lines[0].close()

    run(scenario)
