"""Streams of many sessions that one task reads: each hears what is its own, in order."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager

import pytest
import trio
import trio.testing

from inaproto.daemon.net import many_streams
from inaproto.daemon.net.control_stream import PARTIAL_S, ControlStream, EndOfChannel
from inaproto.daemon.net.many_streams import ManyStreams
from inaproto.errors import DecodeError
from inaproto.wire.control_messages import Message, Ping, encode_message


@asynccontextmanager
async def reading() -> AsyncIterator[ManyStreams]:
    many = ManyStreams()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(many.run)
        yield many
        nursery.cancel_scope.cancel()


Pair = Callable[[], tuple[ControlStream, socket.socket]]
"""A stream, and the socket at its far end."""


@pytest.fixture
def pair() -> Iterator[Pair]:
    with ExitStack() as stack:

        def make() -> tuple[ControlStream, socket.socket]:
            near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            stack.enter_context(near)
            stack.enter_context(far)
            return ControlStream(near), far

        yield make


async def until_said(heard: list[Message], count: int) -> None:
    with trio.fail_after(600):
        while len(heard) < count:  # noqa: ASYNC110  by another task of this loop
            await trio.sleep(0.001)


async def test_each_stream_hears_its_own_messages_in_their_order(pair: Pair) -> None:
    count = 3 * many_streams.READY_AT_ONCE
    pairs = [pair() for _ in range(count)]
    heard: list[list[Message]] = [[] for _ in pairs]
    async with reading() as many, trio.open_nursery() as nursery:
        for (near, _), its in zip(pairs, heard, strict=True):
            nursery.start_soon(near.receive_each, many, its.append)
        for number in range(4):
            for index, (_, far) in enumerate(pairs):
                far.sendall(encode_message(Ping(id=10 * index + number)))
            for its in heard:
                await until_said(its, number + 1)
        nursery.cancel_scope.cancel()
    for index, its in enumerate(heard):
        assert its == [Ping(id=10 * index + number) for number in range(4)]


async def test_a_message_that_comes_in_parts_is_whole_and_those_after_it_are_heard(pair: Pair) -> None:
    near, far = pair()
    heard: list[Message] = []
    first, second = encode_message(Ping(id=1)), encode_message(Ping(id=2))
    async with reading() as many, trio.open_nursery() as nursery:
        nursery.start_soon(near.receive_each, many, heard.append)
        for part in (first, first[:3], first[3:9], first[9:] + second[:5], second[5:], second):
            far.sendall(part)
            await trio.testing.wait_all_tasks_blocked(0.01)
        await until_said(heard, 4)
        nursery.cancel_scope.cancel()
    assert heard == [Ping(id=1), Ping(id=1), Ping(id=2), Ping(id=2)]


async def test_a_message_that_never_becomes_whole_is_not_waited_for(
    pair: Pair, autojump_clock: trio.testing.MockClock
) -> None:
    near, far = pair()
    heard: list[Message] = []
    async with reading() as many, trio.open_nursery() as nursery:

        async def send() -> None:
            far.sendall(encode_message(Ping(id=1)))
            await until_said(heard, 1)
            far.sendall(encode_message(Ping(id=2))[:7])

        nursery.start_soon(send)
        with pytest.raises(DecodeError, match=r"bytes of a message, and no more for"):
            await near.receive_each(many, heard.append)
    assert trio.current_time() >= PARTIAL_S


async def test_a_stream_that_ends_says_how_and_others_go_on(pair: Pair) -> None:
    (near, far), (other, its_far) = pair(), pair()
    heard: list[Message] = []
    others: list[Message] = []
    async with reading() as many, trio.open_nursery() as nursery:
        nursery.start_soon(other.receive_each, many, others.append)
        far.sendall(encode_message(Ping(id=1)))

        async def close() -> None:
            await until_said(heard, 1)
            far.close()

        nursery.start_soon(close)
        with pytest.raises(EndOfChannel, match="closed by its peer"):
            await near.receive_each(many, heard.append)
        its_far.sendall(encode_message(Ping(id=2)))
        await until_said(others, 1)
        nursery.cancel_scope.cancel()
    assert (heard, others) == ([Ping(id=1)], [Ping(id=2)])


async def test_a_stream_that_is_closed_here_wakes_who_waits_for_it(pair: Pair) -> None:
    near, far = pair()
    heard: list[Message] = []
    async with reading() as many, trio.open_nursery() as nursery:
        far.sendall(encode_message(Ping(id=1)))

        async def close() -> None:
            await until_said(heard, 1)
            await trio.testing.wait_all_tasks_blocked(0.01)
            near.close("replaced")

        nursery.start_soon(close)
        with pytest.raises(EndOfChannel, match="replaced"):
            await near.receive_each(many, heard.append)


async def test_what_the_reader_does_not_take_is_raised_in_the_task_of_the_stream(pair: Pair) -> None:
    (near, far), (other, its_far) = pair(), pair()
    heard: list[Message] = []

    def take(message: Message) -> None:
        if heard:
            raise ValueError("not that one")
        heard.append(message)

    others: list[Message] = []
    async with reading() as many, trio.open_nursery() as nursery:
        nursery.start_soon(other.receive_each, many, others.append)
        far.sendall(encode_message(Ping(id=1)))

        async def send() -> None:
            await until_said(heard, 1)
            await trio.testing.wait_all_tasks_blocked(0.01)
            far.sendall(encode_message(Ping(id=2)))

        nursery.start_soon(send)
        with pytest.raises(ValueError, match="not that one"):
            await near.receive_each(many, take)
        its_far.sendall(encode_message(Ping(id=3)))
        await until_said(others, 1)
        nursery.cancel_scope.cancel()


async def test_what_is_no_message_is_raised_in_the_task_of_the_stream(pair: Pair) -> None:
    near, far = pair()
    heard: list[Message] = []
    async with reading() as many, trio.open_nursery() as nursery:
        far.sendall(encode_message(Ping(id=1)))

        async def send() -> None:
            await until_said(heard, 1)
            await trio.testing.wait_all_tasks_blocked(0.01)
            far.sendall(b"\xff" * 8)

        nursery.start_soon(send)
        with pytest.raises(DecodeError, match="length prefix"):
            await near.receive_each(many, heard.append)


async def test_who_is_cancelled_may_go_on_and_has_lost_nothing(pair: Pair) -> None:
    near, far = pair()
    heard: list[Message] = []
    async with reading() as many:
        for number in range(5):
            with trio.move_on_after(0.01):
                await near.receive_each(many, heard.append)
            far.sendall(encode_message(Ping(id=number)))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(near.receive_each, many, heard.append)
            await until_said(heard, 5)
            nursery.cancel_scope.cancel()
    assert heard == [Ping(id=number) for number in range(5)]


async def test_a_stream_that_closes_another_one_is_no_harm_to_the_reader(pair: Pair) -> None:
    """Both have something to read in the same step, and the first one ends the second."""
    pairs = [pair(), pair()]
    heard: list[Message] = []
    ended: list[str] = []
    async with reading() as many, trio.open_nursery() as nursery:

        def take(index: int, message: Message) -> None:
            heard.append(message)
            if message.id == 1:
                pairs[1 - index][0].close("by the other one")

        async def receive(index: int) -> None:
            try:
                await pairs[index][0].receive_each(many, lambda message: take(index, message))
            except EndOfChannel as end:
                ended.append(end.reason)

        for index, (_, far) in enumerate(pairs):
            nursery.start_soon(receive, index)
            far.sendall(encode_message(Ping(id=7)))
        await until_said(heard, 2)
        await trio.testing.wait_all_tasks_blocked(0.01)
        for _, far in pairs:
            far.sendall(encode_message(Ping(id=1)))
        with trio.fail_after(600):
            while not ended:  # noqa: ASYNC110  by another task of this loop
                await trio.sleep(0.001)
        await trio.testing.wait_all_tasks_blocked(0.01)
        nursery.cancel_scope.cancel()
    assert ended == ["by the other one"]
    assert len(heard) == 3


async def test_a_number_that_is_used_again_is_of_the_new_stream() -> None:
    """A socket is closed by another task, and its number watched anew, before its own task has its turn."""
    heard: list[bytes] = []
    async with reading() as many, trio.open_nursery() as nursery:
        first, far = socket.socketpair()
        number = first.fileno()
        ended = trio.Event()
        on_close: list[Callable[[], None]] = []

        async def watch_first() -> None:
            await many.until(number, lambda: False, on_close.append)
            ended.set()

        nursery.start_soon(watch_first)
        await trio.testing.wait_all_tasks_blocked()
        on_close[0]()
        first.close()
        far.close()
        second, far = socket.socketpair()
        if second.fileno() != number:
            second, far = far, second
        assert second.fileno() == number

        def read() -> bool:
            heard.append(second.recv(100))
            return True

        # Begun here, so that it watches before the first one's task goes on.
        watching = many.until(number, read, lambda _: None)
        async with trio.open_nursery() as inner:

            async def send() -> None:
                await ended.wait()
                far.send(b"x")

            inner.start_soon(send)
            with trio.fail_after(600):
                await watching
        nursery.cancel_scope.cancel()
    assert heard == [b"x"]
    second.close()
    far.close()


async def test_an_error_is_raised_though_the_wait_was_cancelled_in_the_same_turn() -> None:
    """What was read is not there any more: who lost it must hear of that."""
    near, far = socket.socketpair()
    many, raised = ManyStreams(), []

    def read() -> bool:
        raise DecodeError("control", "nonsense")

    async def wait(scope: trio.CancelScope) -> None:
        with scope:
            try:
                await many.until(near.fileno(), read, lambda _: None)
            except DecodeError as error:
                raised.append(error)

    with near, far:
        async with trio.open_nursery() as nursery:
            scope = trio.CancelScope()
            nursery.start_soon(wait, scope)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
            many._watched[near.fileno()].look()  # as its reader may, before the task has its turn
    many._epoll.close()
    assert len(raised) == 1
