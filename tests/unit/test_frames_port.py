"""A frame port against a peer that speaks bytes: what it says of a stream that is no stream of frames."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import numpy as np
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from inaproto.errors import ConfigError, LocalMisuse
from inaproto.ports import PortClosed
from inaproto_adapters.frames import FramesConfig, StreamFramePort
from inaproto_adapters.frames.framing import RUNS_MAX


def encode(*frames: bytes) -> bytes:
    return b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)


@asynccontextmanager
async def port_and_raw_peer(
    config: FramesConfig | None = None,
) -> AsyncIterator[tuple[StreamFramePort, trio.SocketStream]]:
    ours, theirs = socket.socketpair()
    with trio.fail_after(600):
        async with trio.SocketStream(trio.socket.from_stdlib_socket(theirs)) as peer:
            port = StreamFramePort(ours, config, name="port under test")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(port.run)
                yield port, peer
                await port.aclose()


async def receive_all(port: StreamFramePort) -> tuple[list[bytes], str]:
    """Every frame until the port closes, and why it closed."""
    got: list[bytes] = []
    while True:
        try:
            blocks = await port.receive()
        except PortClosed as closed:
            return got, closed.reason
        got.extend(row.tobytes() for block in blocks for row in block)


@pytest.mark.parametrize(
    ("tail", "reason"),
    [
        (b"", "the peer closed the connection"),
        (b"\0", "inside a length prefix: 1 of 4 bytes"),
        (b"\0\0\4", "inside a length prefix: 3 of 4 bytes"),
        (b"\0\0\4\x3a", "inside a frame: 0 of 1082 bytes"),
        (b"\0\0\4\x3a" + bytes(1000), "inside a frame: 1000 of 1082 bytes"),
        (b"\0\0\0\0" + bytes(60), "a frame of 0 bytes (length prefix 00 00 00 00)"),
        (
            b"\0\0\x24\x01" + bytes(60),
            "a frame of 9217 bytes (length prefix 00 00 24 01), a frame has 1 to 9216",
        ),
        (b"GET / HTTP/1.1\r\n", "a frame of 1195725856 bytes (length prefix 47 45 54 20)"),
    ],
)
async def test_stream_that_ends_badly_names_what_and_how_much(tail: bytes, reason: str) -> None:
    frames = [bytes([n]) * 60 for n in range(5)]
    async with port_and_raw_peer() as (port, peer):
        await peer.send_all(encode(*frames) + tail)
        await peer.send_eof()
        got, why = await receive_all(port)
        assert got == frames
        assert reason in why
        with pytest.raises(PortClosed, match=r"bytes|closed"):
            port.send_nowait(np.zeros((1, 60), dtype=np.uint8))


async def test_bad_length_closes_the_connection_towards_the_peer() -> None:
    async with port_and_raw_peer() as (port, peer):
        await peer.send_all(b"\xff\xff\xff\xff")
        await receive_all(port)
        assert await peer.receive_some(10) == b""


async def test_reset_connection_is_a_closed_port() -> None:
    async with port_and_raw_peer() as (port, peer):
        # A peer that goes with unread bytes in its socket resets the connection.
        port.send_nowait(np.zeros((4, 60), dtype=np.uint8))
        await wait_all_tasks_blocked()
        await peer.aclose()
        _, why = await receive_all(port)
        assert "connection" in why


async def test_peer_that_stops_reading_is_found_by_sending_and_its_last_frames_are_received() -> None:
    async with port_and_raw_peer() as (port, peer):
        await peer.send_all(encode(b"x" * 60))
        peer.socket.shutdown(socket.SHUT_RD)
        port.send_nowait(np.zeros((1, 60), dtype=np.uint8))
        await wait_all_tasks_blocked()
        with pytest.raises(PortClosed, match="takes no more frames"):
            port.send_nowait(np.zeros((1, 60), dtype=np.uint8))
        (block,) = await port.receive()
        assert block.tobytes() == b"x" * 60


async def test_runts_are_dropped_and_counted() -> None:
    async with port_and_raw_peer() as (port, peer):
        await peer.send_all(encode(b"a" * 60, b"b" * 13, b"c", b"c", b"d" * 14))
        await peer.send_eof()
        got, _ = await receive_all(port)
        assert got == [b"a" * 60, b"d" * 14]
        assert port.counters.drops == {"runt frame": 3}
        assert port.counters.frames_in == 2


async def test_nothing_but_runts_does_not_keep_other_tasks_from_running() -> None:
    config = FramesConfig(receive_bytes=20_000)
    async with port_and_raw_peer(config) as (port, peer), trio.open_nursery() as nursery:
        # Five receive buffers full, half of them in runs too short for one portion.
        await peer.send_all(encode(b"r") * 10_000 + encode(b"r", b"ru") * 5_000)
        nursery.start_soon(receive_all, port)
        turns = 0
        while port.counters.drops.get("runt frame") != 20_000:
            turns += 1
            await trio.lowlevel.checkpoint()
        assert turns >= 5 + 10_000 // RUNS_MAX
        nursery.cancel_scope.cancel()


async def test_batch_larger_than_the_queue_is_sent_when_the_socket_takes_it() -> None:
    async with port_and_raw_peer(FramesConfig(queue_bytes_max=10_000)) as (port, peer):
        frames = np.arange(50, dtype=np.uint8)[:, None].repeat(1082, axis=1)
        assert port.send_nowait(frames) == 50
        expected = encode(*(row.tobytes() for row in frames))
        got = b""
        while len(got) < len(expected):
            got += await peer.receive_some()
        assert got == expected


async def test_frames_sent_in_one_turn_leave_together() -> None:
    first, middle, last = (np.full((n, 1082), n, dtype=np.uint8) for n in (1, 4, 2))
    async with port_and_raw_peer() as (port, peer):
        for block in (first, middle, last):
            port.send_nowait(block)
        expected = encode(*(row.tobytes() for block in (first, middle, last) for row in block))
        assert await peer.receive_some(1 << 16) == expected


async def test_large_output_is_written_without_waiting_for_run() -> None:
    ours, theirs = socket.socketpair()
    port = StreamFramePort(ours)
    port.send_nowait(np.zeros((60, 1082), dtype=np.uint8))
    assert len(theirs.recv(1 << 17)) == 60 * 1086
    await port.aclose()
    theirs.close()


async def test_closing_still_sends_what_the_socket_takes() -> None:
    async with port_and_raw_peer() as (port, peer):
        port.send_nowait(np.full((1, 60), 7, dtype=np.uint8))
        await port.aclose()
        assert await peer.receive_some(100) == encode(b"\7" * 60)


async def test_receive_buffer_bounds_one_receive() -> None:
    async with port_and_raw_peer(FramesConfig(receive_bytes=20_000)) as (port, peer):
        frames = [bytes([n]) * 9000 for n in range(8)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peer.send_all, encode(*frames))
            got: list[bytes] = []
            while len(got) < 8:
                blocks = await port.receive()
                assert sum(block.size for block in blocks) <= 20_000
                got.extend(row.tobytes() for block in blocks for row in block)
        assert got == frames


async def test_datagram_socket_is_refused() -> None:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with left, right, pytest.raises(LocalMisuse, match="stream socket"):
        StreamFramePort(left)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: FramesConfig(frame_bytes_max=13), "frame_bytes_max=13"),
        (lambda: FramesConfig(frame_bytes_max=9217), "frame_bytes_max=9217"),
        (lambda: FramesConfig(queue_bytes_max=9219), "queue_bytes_max=9219"),
        (lambda: FramesConfig(receive_bytes=18_439), "receive_bytes=18439"),
        (lambda: FramesConfig(write_at_once_bytes=-1), "write_at_once_bytes=-1"),
    ],
)
def test_configuration_errors_name_the_field(make: Callable[[], FramesConfig], field: str) -> None:
    with pytest.raises(ConfigError, match=f"frames: {field}: "):
        make()


@pytest.mark.parametrize("part", [b"\0\0", encode(bytes(60))[:30]])
async def test_a_peer_that_stops_in_the_middle_of_a_frame_ends_its_port(
    part: bytes, autojump_clock: MockClock
) -> None:
    ours, theirs = socket.socketpair()
    port = StreamFramePort(ours, None, name="port under test")
    theirs.sendall(encode(bytes(60)) + part)
    assert len((await port.receive())[0]) == 1
    with pytest.raises(PortClosed, match=r"the peer sent no more for 10 s; the stream ended inside a"):
        await port.receive()
    await port.aclose()
    theirs.close()


async def test_silence_between_frames_is_no_fault(autojump_clock: MockClock) -> None:
    ours, theirs = socket.socketpair()
    port = StreamFramePort(ours, None, name="port under test")
    theirs.sendall(encode(bytes(60)))
    assert len((await port.receive())[0]) == 1
    with trio.move_on_after(3600) as scope:
        await port.receive()
    assert scope.cancelled_caught
    await port.aclose()
    theirs.close()
