"""Control messages over UNIX sockets: both ways, with descriptors, and with peers that misbehave."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from inaproto.client.unix_stream import DESCRIPTORS_MAX
from inaproto.daemon.net.control_stream import ControlStream, EndOfChannel
from inaproto.errors import DecodeError
from inaproto.wire.control_messages import Error, Message, Ping, StatusReply, UnknownMessage, encode_message
from inaproto.wire.messages.client import Buffer, Ok

DEADLINE_S = 600


def pair(**options: int) -> tuple[ControlStream, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return ControlStream(ours, **options), theirs


@asynccontextmanager
async def joined() -> AsyncIterator[tuple[ControlStream, ControlStream]]:
    ours, theirs = pair()
    other = ControlStream(theirs)
    try:
        with trio.fail_after(DEADLINE_S):
            yield ours, other
    finally:
        ours.close()
        other.close()


async def test_messages_arrive_in_order_both_ways() -> None:
    async with joined() as (ours, other):
        for id in range(3):
            await ours.send(Ping(id=id))
            other.send_nowait(Ok(id=id))
        assert [(await other.receive()).id for _ in range(3)] == [0, 1, 2]
        assert [await ours.receive() for _ in range(3)] == [Ok(id=0), Ok(id=1), Ok(id=2)]


async def test_what_is_held_leaves_together(monkeypatch: pytest.MonkeyPatch) -> None:
    async with joined() as (ours, other):
        calls: list[int] = []
        send = ours._stream.send_nowait

        def counted(data: memoryview, descriptors: Sequence[int] = ()) -> int:
            calls.append(len(data))
            return send(data, descriptors)

        monkeypatch.setattr(ours._stream, "send_nowait", counted)
        ours.send_nowait(Ok(id=0))
        with ours.held():
            for id in range(1, 5):
                ours.send_nowait(Ok(id=id))
            assert (await other.receive()).id == 0
            assert len(ours._output) == 4
        assert not ours._output
        assert [(await other.receive()).id for _ in range(4)] == [1, 2, 3, 4]
        assert len(calls) == 2


async def test_what_is_held_behind_a_full_socket_follows_in_order() -> None:
    async with joined() as (ours, other), trio.open_nursery() as nursery:
        nursery.start_soon(ours.run)
        many = 0
        while not ours._output:
            ours.send_nowait(Ok(id=many))
            many += 1
        with ours.held():
            ours.send_nowait(Ok(id=many))
        assert [(await other.receive()).id for _ in range(many + 1)] == list(range(many + 1))
        nursery.cancel_scope.cancel()


async def test_who_is_gone_when_what_was_held_leaves_is_told_of_as_ever() -> None:
    ours, theirs = pair()
    theirs.close()
    with pytest.raises(EndOfChannel), ours.held():
        ours.send_nowait(Ok(id=1))
    with ours.held():
        pass
    ours.close()


async def test_a_peer_that_always_has_more_to_say_keeps_no_other_task_waiting() -> None:
    """A process of a tenant would else have its host's daemon to itself."""
    ours, theirs = pair()
    theirs.setblocking(False)
    flood = 1000 * encode_message(Ping())
    sent = turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        for _ in range(100_000):
            try:
                sent += theirs.send(flood[sent % len(flood) :])
            except BlockingIOError:
                await ours.receive()
        nursery.cancel_scope.cancel()
    assert turns > 20
    ours.close()
    theirs.close()


async def test_message_of_a_later_version_is_unknown_not_fatal() -> None:
    ours, theirs = pair()
    body = bytes.fromhex("83a17601a474797065a36e6577a2696407")  # {v: 1, type: "new", id: 7}
    theirs.sendall(len(body).to_bytes(4, "big") + body)
    assert await ours.receive() == UnknownMessage(id=7, type="new")
    ours.close()
    theirs.close()


async def test_output_beyond_the_socket_buffer_is_moved_by_run() -> None:
    async with joined() as (ours, other), trio.open_nursery() as nursery:
        nursery.start_soon(ours.run)
        sent: list[Message] = [StatusReply(id=id, body={"x": "y" * 100_000}) for id in range(20)]
        for message in sent:
            ours.send_nowait(message)
        assert [await other.receive() for _ in sent] == sent
        ours.close()


async def test_a_peer_that_does_not_read_loses_its_channel() -> None:
    ours, theirs = pair(output_bytes_max=500_000)

    def send_much() -> None:
        for _ in range(100):
            ours.send_nowait(StatusReply(body={"x": "y" * 100_000}))

    with pytest.raises(EndOfChannel, match=r"left [0-9]+ bytes of messages unread"):
        send_much()
    with pytest.raises(EndOfChannel, match="unread"):
        await ours.receive()
    theirs.close()


async def test_descriptors_come_with_their_message() -> None:
    async with joined() as (ours, other):
        reading, writing = os.pipe()
        try:
            await ours.send(Ping(id=1))
            await ours.send(Buffer(id=2, segment=0, nbytes=8), descriptors=[writing])
            assert (await other.receive()).id == 1
            assert (await other.receive()).id == 2
            passed = other.take_descriptor()
            assert passed is not None
            assert other.take_descriptor() is None
            assert not os.get_inheritable(passed)
            os.write(passed, b"through")
            os.close(passed)
            assert os.read(reading, 7) == b"through"
        finally:
            os.close(reading)
            os.close(writing)


async def test_descriptors_nobody_takes_are_closed_with_the_stream() -> None:
    async with joined() as (ours, other):
        reading, writing = os.pipe()
        await ours.send(Buffer(id=2, segment=0, nbytes=8), descriptors=[writing])
        os.close(writing)
        await other.receive()
        other.close()
        assert os.read(reading, 1) == b""  # no writing end is left anywhere
        os.close(reading)


async def test_a_flood_of_descriptors_is_refused() -> None:
    ours, theirs = pair()
    reading, writing = os.pipe()
    socket.send_fds(theirs, [encode_message(Ping())], [reading] * (DESCRIPTORS_MAX + 1))
    with pytest.raises(DecodeError, match="descriptors"):
        await ours.receive()
    ours.close()
    theirs.close()
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x00\x00", "after 2 of 4 bytes of a length prefix"),
        (b"\x00\x00\x00\x09abc", "after 3 of 9 bytes of a message"),
        (b"\xff\xff\xff\xff", "length prefix of"),
        (b"\x00\x00\x00\x01\xc1", "not msgpack"),
        (b"GET / HTTP/1.1\r\n\r\n", "length prefix of"),
    ],
)
async def test_garbage_is_a_decode_error(data: bytes, words: str) -> None:
    ours, theirs = pair()
    theirs.sendall(data)
    theirs.close()
    with pytest.raises(DecodeError, match=words):
        await ours.receive()
    ours.close()


async def test_the_end_is_told_after_all_messages() -> None:
    ours, theirs = pair()
    theirs.sendall(encode_message(Error(code="x", message="y")))
    theirs.close()
    assert ours.peer_is_gone()
    assert isinstance(await ours.receive(), Error)
    with pytest.raises(EndOfChannel, match="closed by its peer"):
        await ours.receive()
    with pytest.raises(EndOfChannel):
        await ours.send(Ping())
    ours.close()


async def test_what_the_peer_said_before_it_closed_outlives_a_failed_send() -> None:
    ours, theirs = pair()
    theirs.sendall(encode_message(Error(code="x", message="y")))
    theirs.close()
    for _ in range(2):
        with pytest.raises(EndOfChannel, match="closed by its peer"):
            await ours.send(Ping())
    assert isinstance(await ours.receive(), Error)
    with pytest.raises(EndOfChannel):
        await ours.receive()
    ours.close()


async def test_closing_wakes_whoever_waits() -> None:
    ours, theirs = pair()
    ended: list[str] = []

    async def wait_for_message() -> None:
        with pytest.raises(EndOfChannel) as caught:
            await ours.receive()
        ended.append(caught.value.reason)

    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for_message)
            nursery.start_soon(ours.run)
            await wait_all_tasks_blocked()
            assert not ours.peer_is_gone()
            ours.close("refused")
    assert ended == ["refused"]
    assert ours.peer_is_gone()
    theirs.close()


async def test_the_kernel_names_the_peer() -> None:
    async with joined() as (ours, _):
        assert ours.peer_pid() == os.getpid()


async def test_a_peer_that_stops_in_the_middle_of_a_message_is_cut_off(autojump_clock: MockClock) -> None:
    ours, theirs = pair()
    theirs.sendall(encode_message(Ping(id=1))[:3])
    with pytest.raises(DecodeError, match="3 bytes of a message, and no more for 10 s"):
        await ours.receive()
    ours.close()
    theirs.close()


async def test_silence_between_messages_is_no_fault(autojump_clock: MockClock) -> None:
    ours, theirs = pair()
    with trio.move_on_after(3600) as scope:
        await ours.receive()
    assert scope.cancelled_caught
    ours.close()
    theirs.close()
