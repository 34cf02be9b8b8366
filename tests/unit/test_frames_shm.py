"""Frame ports in shared memory: what a peer may send before and after both have it, and how that ends."""

from __future__ import annotations

import fcntl
import os
import platform
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import numpy as np
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from inaproto.errors import ConfigError, Unsupported
from inaproto.ports import PortClosed, load_adapter
from inaproto_adapters.frames import (
    ShmAdapter,
    ShmConfig,
    ShmPort,
    compiled_ports,
    connect_frame_port,
    open_frame_listener,
    shm,
)
from inaproto_adapters.frames.shared_ring import HEAD_AT, TAIL_AT, RingShape

SHAPE = RingShape(16, 1 << 20)
ADAPTER = ShmAdapter(ShmConfig(1 << 20))
FRAME = np.arange(62, dtype=np.uint8)[None]


def offer(*, version: int = 1, slots: int = SHAPE.slots, data_bytes: int = SHAPE.data_bytes) -> bytes:
    return shm._OFFER.pack(b"\xffina", version, slots, data_bytes)


@contextmanager
def memory(nbytes: int = 2 * SHAPE.nbytes, seals: int = fcntl.F_SEAL_SHRINK, flags: int = 0) -> Iterator[int]:
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING | flags)
    os.ftruncate(fd, nbytes)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    yield fd
    os.close(fd)


@contextmanager
def accepted() -> Iterator[tuple[ShmPort, socket.socket]]:
    """A port that accepted, and what its peer has."""
    near, far = socket.socketpair()
    far.settimeout(10)
    with near, far:
        yield ShmPort(near, name="near", accepts=True), far


@asynccontextmanager
async def joined(directory: Path) -> AsyncIterator[tuple[ShmPort, ShmPort]]:
    listener = await ADAPTER.listen(directory / "ports.sock")
    near = await ADAPTER.connect(directory / "ports.sock", name="near")
    far = await listener.accept()
    yield near, far
    for one in (near, far, listener):
        await one.aclose()


@pytest.mark.parametrize(
    ("message", "size", "seals", "said"),
    [
        (offer(version=2), 2 * SHAPE.nbytes, fcntl.F_SEAL_SHRINK, "version 2"),
        (offer(slots=0), 2 * SHAPE.nbytes, fcntl.F_SEAL_SHRINK, "0 descriptors"),
        (offer(slots=1 << 40), 2 * SHAPE.nbytes, fcntl.F_SEAL_SHRINK, "cannot be"),
        (offer(data_bytes=4096), 2 * SHAPE.nbytes, fcntl.F_SEAL_SHRINK, "4096 bytes cannot be"),
        (offer(data_bytes=1 << 50), 2 * SHAPE.nbytes, fcntl.F_SEAL_SHRINK, "cannot be"),
        (offer()[:9], 2 * SHAPE.nbytes, fcntl.F_SEAL_SHRINK, "has 9 bytes"),
        (offer(), 2 * SHAPE.nbytes - 1, fcntl.F_SEAL_SHRINK, f"of {2 * SHAPE.nbytes}"),
        (offer(), 2 * SHAPE.nbytes, 0, "not sealed"),
    ],
)
async def test_memory_that_cannot_be_is_refused_and_both_are_told(
    message: bytes, size: int, seals: int, said: str
) -> None:
    with accepted() as (port, far), memory(size, seals) as fd:
        socket.send_fds(far, [message], [fd])
        with pytest.raises(PortClosed, match=said):
            await port.receive()
        answer = far.recv(4096)
        assert answer.startswith(b"\xff\xff")
        assert said in answer[2:].decode()


async def test_memory_in_huge_pages_is_refused() -> None:
    """They are taken from a pool: a peer that gives its own back could let this process touch what there is
    not."""
    size = 2 * SHAPE.nbytes + -2 * SHAPE.nbytes % (2 << 20)
    with accepted() as (port, far), memory(size, flags=os.MFD_HUGETLB) as fd:
        socket.send_fds(far, [offer()], [fd])
        with pytest.raises(PortClosed, match="pages of"):
            await port.receive()


async def test_memory_that_is_found_while_something_is_sent_is_found_by_who_waits_for_frames() -> None:
    near_socket, far_socket = socket.socketpair()
    near = ShmPort(near_socket, name="near", accepts=True)
    far = ShmPort(far_socket, name="far", accepts=False)
    got: list[np.ndarray] = []

    async def receive() -> None:
        got.extend(await near.receive())

    with trio.fail_after(600):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive)
            await wait_all_tasks_blocked()
            far.offer(ADAPTER.config)
            near.send_nowait(FRAME)  # takes the offer from the socket, where `receive` waits for it
            far.send_nowait(FRAME)
    assert [block.tolist() for block in got] == [FRAME.tolist()]
    for port in (near, far):
        await port.aclose()


async def test_a_peer_of_a_stream_that_sending_found_is_served_by_one_stream() -> None:
    got: list[np.ndarray] = []
    with accepted() as (port, far):

        async def receive() -> None:
            got.extend(await port.receive())

        with trio.fail_after(600):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(port.run)
                async with trio.open_nursery() as receiving:
                    receiving.start_soon(receive)
                    await wait_all_tasks_blocked()
                    message = FRAME.shape[1].to_bytes(4, "big") + FRAME.tobytes()
                    far.send(message)
                    port.send_nowait(FRAME)  # finds that the peer shares no memory
                port.send_nowait(FRAME)
                sent = b""
                while len(sent) < 2 * len(message):  # the two may come apart
                    sent += await trio.to_thread.run_sync(far.recv, 2 * len(message))
                nursery.cancel_scope.cancel()
        await port.aclose()
    assert sent == 2 * message
    assert [block.tolist() for block in got] == [FRAME.tolist()]


async def test_who_waits_for_frames_hears_of_a_refusal_that_sending_found() -> None:
    with accepted() as (port, far), memory() as fd:

        async def receive() -> None:
            with pytest.raises(PortClosed, match="version 2"):
                await port.receive()

        with trio.fail_after(600):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(receive)
                await wait_all_tasks_blocked()
                socket.send_fds(far, [offer(version=2)], [fd])
                with pytest.raises(PortClosed, match="version 2"):
                    port.send_nowait(FRAME)


@pytest.mark.parametrize("count", [0, 2, 4, 5])
async def test_one_descriptor_comes_with_it(count: int) -> None:
    with accepted() as (port, far), memory() as fd:
        before = len(os.listdir("/proc/self/fd"))
        socket.send_fds(far, [offer()], [fd] * count)
        with pytest.raises(PortClosed, match="1 is the memory"):
            await port.receive()
        assert len(os.listdir("/proc/self/fd")) == before - 1  # the port's own


async def test_what_is_no_memfd_is_refused(tmp_path: Path) -> None:
    with accepted() as (port, far), (tmp_path / "file").open("w+") as file:
        file.truncate(2 * SHAPE.nbytes)
        socket.send_fds(far, [offer()], [file.fileno()])
        with pytest.raises(PortClosed, match="no memfd"):
            await port.receive()


async def test_a_user_shares_with_himself_and_with_root(monkeypatch: pytest.MonkeyPatch) -> None:
    with accepted() as (port, far), memory() as fd:
        monkeypatch.setattr(os, "geteuid", lambda: 1234)
        monkeypatch.setattr(shm, "_CREDENTIALS", _Credentials())
        socket.send_fds(far, [offer()], [fd])
        with pytest.raises(PortClosed, match="user 1234 shares no memory with user 77"):
            await port.receive()


class _Credentials:
    size = 12

    def unpack(self, data: bytes) -> tuple[int, int, int]:
        return 1, 77, 1


async def test_whoever_ends_before_it_sends_anything_has_closed() -> None:
    with accepted() as (port, far):
        far.close()
        with pytest.raises(PortClosed, match="before it sent its memory"):
            await port.receive()


async def test_a_peer_that_only_listens_gets_frames_of_a_stream_up_to_a_bound() -> None:
    with accepted() as (port, far):
        assert port.send_nowait(FRAME) == 1
        assert far.recv(4096) == b"\0\0\0\x3e" + FRAME.tobytes()
        long = np.zeros((100, 1082), np.uint8)
        sent = port.send_nowait(long)
        assert 0 < sent < 100
        assert port.counters.drops == {"output queue full": 100 - sent}
        assert len(far.recv(1 << 20)) == sent * 1086
        assert port.send_nowait(long) == 0
        far.send(b"\0\0\0\x3e" + FRAME.tobytes())
        assert port.send_nowait(long) == 100
        assert (await port.receive())[0].tobytes() == FRAME.tobytes()


async def test_a_peer_that_reads_nothing_is_left_before_a_frame_is_cut() -> None:
    with accepted() as (port, _):
        port._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        long = np.zeros((10, 1082), np.uint8)
        assert port.send_nowait(long) == 0
        with pytest.raises(PortClosed, match="takes no more frames: it does not read"):
            port.send_nowait(long)
        with pytest.raises(PortClosed, match="takes no more frames: it does not read"):
            await port.receive()
        assert port.counters.frames_out == 0


async def test_a_peer_that_reads_nothing_gets_no_answer() -> None:
    with accepted() as (port, far), memory() as fd:
        port._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        try:
            while True:
                port._sock.send(bytes(1000))
        except BlockingIOError:
            pass
        socket.send_fds(far, [offer()], [fd])
        with pytest.raises(PortClosed, match="it does not read"):
            await port.receive()


async def test_frames_before_the_answer_are_no_answer(runtime_dir: Path) -> None:
    near, far = socket.socketpair()
    with near, far:
        accepting = ShmPort(far, name="far", accepts=True)
        assert accepting.send_nowait(np.repeat(FRAME, 3, axis=0)) == 3
        port = ShmPort(near, name="near", accepts=False)
        port.offer(ShmConfig(1 << 20))
        assert accepting.send_nowait(FRAME) == 1
        (block,) = await port.receive()
        assert (block == FRAME).all()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(port.receive)
            await wait_all_tasks_blocked()
            assert port._answer is None
            assert port.counters.drops == {"before memory was shared": 3}
            accepting.send_nowait(FRAME)


async def test_an_answer_that_cannot_be_ends_the_port() -> None:
    near, far = socket.socketpair()
    with near, far:
        port = ShmPort(near, name="near", accepts=False)
        far.send(b"\0\1\0\0 ...")
        port.offer(ShmConfig(1 << 20))
        with pytest.raises(PortClosed, match="answered what cannot be"):
            await port.receive()


async def test_a_peer_that_sends_frames_is_served_as_one_of_a_stream(runtime_dir: Path) -> None:
    listener = await ADAPTER.listen(runtime_dir / "ports.sock")
    plain = await connect_frame_port(runtime_dir / "ports.sock")
    port = await listener.accept()
    assert port.send_nowait(FRAME) == 1
    async with trio.open_nursery() as nursery:
        nursery.start_soon(port.run)
        nursery.start_soon(plain.run)
        assert plain.send_nowait(FRAME) == 1
        (block,) = await port.receive()
        assert (block == FRAME).all()
        assert port.send_blocks_nowait([FRAME, FRAME]) == 0
        got = 0
        while got < 3:
            got += sum(map(len, await plain.receive()))
        assert got == 3
        assert port.capabilities.name == plain.capabilities.name
        assert (port.counters.frames_in, port.counters.frames_out) == (1, 3)
        await port.aclose()
        with pytest.raises(PortClosed, match="closed on this side"):
            port.send_nowait(FRAME)
        with pytest.raises(PortClosed, match="peer closed"):
            await plain.receive()
    await listener.aclose()


async def test_a_switch_that_knows_no_memory_is_told_of(runtime_dir: Path) -> None:
    listener = await open_frame_listener(runtime_dir / "ports.sock")
    port = await ADAPTER.connect(runtime_dir / "ports.sock")
    plain = await listener.accept()
    with pytest.raises(PortClosed, match="announced a frame"):
        await plain.receive()
    with pytest.raises(PortClosed, match="before it took the memory; it must use the adapter shm"):
        await port.receive()
    await listener.aclose()


async def test_who_offers_hears_why_it_was_refused() -> None:
    near, far = socket.socketpair()
    with near, far:
        port = ShmPort(near, name="near", accepts=False)
        port.offer(ShmConfig(1 << 20))
        far.send(b"\xff\xffversion 1 of rings is not known here, 2 is")
        with pytest.raises(PortClosed, match="refused the memory: version 1"):
            await port.receive()


@pytest.mark.parametrize("at", [HEAD_AT, TAIL_AT])
async def test_a_peer_that_breaks_its_ring_ends_its_port_alone(at: int) -> None:
    with accepted() as (port, far), memory() as fd:
        socket.send_fds(far, [offer()], [fd])
        port._look_for_offer()
        begin = at if at == HEAD_AT else at + SHAPE.nbytes
        os.pwrite(fd, (1 << 40).to_bytes(8, "little"), begin)
        if at == TAIL_AT:
            with pytest.raises(PortClosed, match="broke the ring"):
                port.send_nowait(FRAME)
        with pytest.raises(PortClosed, match="broke the ring"):
            await port.receive()


async def test_bells_without_frames_are_no_frames(runtime_dir: Path) -> None:
    async with joined(runtime_dir) as (near, far), trio.open_nursery() as nursery:
        got: list[int] = []

        async def receive() -> None:
            got.append(sum(map(len, await far.receive())))

        nursery.start_soon(receive)
        for _ in range(5):
            near._sock.send(b"\0")
            await wait_all_tasks_blocked()
        assert not got
        near.send_nowait(FRAME)


async def test_no_descriptor_is_left(runtime_dir: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    async with joined(runtime_dir) as (near, far):
        assert len(os.listdir("/proc/self/fd")) == before + 5  # each has its socket and the memory
        near.send_nowait(FRAME)
        await far.receive()
    assert len(os.listdir("/proc/self/fd")) == before


def test_bounds_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="queue_bytes_max=1000"):
        load_adapter("shm").open(queue_bytes_max=1000)


def test_a_processor_that_needs_the_compiled_part_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_ports, "active", lambda: None)
    load_adapter("shm").open()
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(Unsupported, match="use the adapter frames"):
        load_adapter("shm").open()
