"""Captures of a running switch: whole, as the ports count, and never at the cost of the switch."""

from __future__ import annotations

import os
import socket
import stat
import struct
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from inaproto.daemon.capture.client import CaptureFailed, capture, control_socket
from inaproto.daemon.net.control_stream import ControlStream
from inaproto.daemon.observe.status import ask
from inaproto.daemon.switch.capture_desk import RECORDINGS_MAX
from inaproto.errors import ConfigError
from inaproto.ports import FramePort
from inaproto.wire.control_messages import Error
from inaproto.wire.files.capture_reader import CaptureReader, read_capture
from inaproto.wire.files.pcapng import CapturedFrame, Direction
from inaproto.wire.messages.capture import Capture, CaptureBegun, CaptureEnded
from inaproto.wire.roce import Opcode, RocePacket
from tests.clusters.loopback import open_cluster
from tests.clusters.switch import Running, running_switch
from tests.daemon.test_switch_ports import frame, plug, ports_up, received

FILLS = (0x01010101, 0x02020202)


class Capturing:
    """A capture of all ports, by the client of ``inaproto capture``."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.enough = trio.Event()
        self.begun = trio.Event()
        self.ended: CaptureEnded | None = None

    async def run(self, switch: Running, **asked: Any) -> None:
        self.ended = await capture(
            switch.settings.control_path,
            Capture(id=1, **asked),
            self.data.extend,
            begun=lambda ports: self.begun.set(),
            enough=self.enough,
        )


def counted(frames: Sequence[CapturedFrame]) -> Counter[tuple[str, Direction]]:
    return Counter((one.interface.name, one.direction) for one in frames)


async def captures(switch: Running) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await ask(switch.settings.control_path))["captures"]
    return found


async def exchange(ports: Sequence[FramePort]) -> None:
    """A broadcast of each port, and frames from the first to the second."""
    for number, port in enumerate(ports):
        port.send_nowait(frame(number, None, count=3, length=60 + number))
        for other in ports:
            if other is not port:
                await received(other, 3)
    ports[0].send_nowait(frame(0, 1, count=50))
    await received(ports[1], 50)


async def test_a_capture_has_what_the_ports_count(runtime_dir: Path) -> None:
    async with running_switch(runtime_dir) as switch, trio.open_nursery() as nursery:
        ports = [await plug(switch, nursery) for _ in range(3)]
        await ports_up(switch, 3)
        found = Capturing()
        nursery.start_soon(found.run, switch)
        await found.begun.wait()
        await exchange(ports)
        told = (await ask(switch.settings.control_path))["ports"]
        found.enough.set()
        while found.ended is None:
            await wait_all_tasks_blocked()
        assert found.ended.reason == "the client has enough"
        frames = read_capture(bytes(found.data))
        expected = {
            (port["name"], direction): port[name]
            for port in told
            for name, direction in (("frames_in", Direction.INBOUND), ("frames_out", Direction.OUTBOUND))
        }
        assert counted(frames) == expected
        assert (found.ended.frames, found.ended.lost) == (len(frames), 0)
        assert len({one.interface.name for one in frames}) == 3
        sent = frame(0, 1).tobytes()
        assert sum(one.data == sent for one in frames) == 100  # in by one port, out by another
        assert await captures(switch) == []
        for port in ports:
            await port.aclose()
        nursery.cancel_scope.cancel()


async def test_a_port_a_number_of_frames_and_a_time(runtime_dir: Path) -> None:
    async with running_switch(runtime_dir) as switch, trio.open_nursery() as nursery:
        ports = [await plug(switch, nursery) for _ in range(2)]
        await ports_up(switch, 2)
        one_port, short = Capturing(), Capturing()
        async with trio.open_nursery() as capturing:
            capturing.start_soon(lambda: one_port.run(switch, ports=("port-1",), frames_max=7))
            capturing.start_soon(lambda: short.run(switch, duration_ms=1))
            await one_port.begun.wait()
            await exchange(ports)
        assert one_port.ended is not None
        assert (one_port.ended.frames, one_port.ended.reason) == (7, "7 frames")
        frames = read_capture(bytes(one_port.data))
        assert {one.interface.name for one in frames} == {"port-1"}
        assert len(frames) == 7
        assert short.ended is not None
        assert short.ended.reason == "0.001 s"
        for port in ports:
            await port.aclose()
        nursery.cancel_scope.cancel()


async def test_who_does_not_read_loses_frames_and_the_switch_nothing(runtime_dir: Path) -> None:
    async with running_switch(runtime_dir) as switch, trio.open_nursery() as nursery:
        ports = [await plug(switch, nursery) for _ in range(2)]
        await ports_up(switch, 2)
        stream = await switch.stranger()
        ours, theirs = socket.socketpair()
        with theirs:
            await stream.send(Capture(id=5), descriptors=[theirs.fileno()])
        assert isinstance(await stream.receive(), CaptureBegun)
        rounds, batch, length = 60, 200, 4000
        ports[1].send_nowait(frame(1, 0))
        await received(ports[0], 1)
        for _ in range(rounds):
            ports[0].send_nowait(frame(0, 1, count=batch, length=length))
            await received(ports[1], batch)  # all of them, though nobody reads the capture
        [told] = await captures(switch)
        assert told["lost"] > 0
        ours.setblocking(False)
        data = bytearray()
        async with trio.open_nursery() as reading:

            async def read() -> None:
                with trio.socket.from_stdlib_socket(ours) as sock:
                    while part := await sock.recv(1 << 20):
                        data.extend(part)

            reading.start_soon(read)
            while (await captures(switch))[0]["bytes"] < told["frames"] * length:
                await wait_all_tasks_blocked()
            ports[0].send_nowait(frame(0, 1, count=1, length=61))
            await received(ports[1], 1)
            switch.stop.set()
        reader = CaptureReader()
        frames = list(reader.feed(bytes(data)))
        expected = 2 + rounds * batch * 2 + 2
        assert len(frames) + sum(one.dropped for one in frames) == expected
        assert sum(one.dropped for one in frames) >= told["lost"]
        for port in ports:
            await port.aclose()
        nursery.cancel_scope.cancel()


async def test_who_keeps_the_socket_and_makes_it_blocking_stops_nobody(runtime_dir: Path) -> None:
    """The mode of a socket belongs to all who have it."""
    stall_s = 120  # a send that waited would take so long, which is more than a busy machine needs
    async with running_switch(runtime_dir) as switch, trio.open_nursery() as nursery:
        ports = [await plug(switch, nursery) for _ in range(2)]
        await ports_up(switch, 2)
        stream = await switch.stranger()
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", stall_s, 0))
            await stream.send(Capture(id=5), descriptors=[theirs.fileno()])
            assert isinstance(await stream.receive(), CaptureBegun)
            os.set_blocking(theirs.fileno(), True)
            ports[1].send_nowait(frame(1, 0))
            await received(ports[0], 1)
            begun = trio.current_time()
            for _ in range(3):
                ports[0].send_nowait(frame(0, 1, count=100, length=4000))
                await received(ports[1], 100)
            assert len(await captures(switch)) == 1
            assert trio.current_time() - begun < stall_s
        for port in ports:
            await port.aclose()
        nursery.cancel_scope.cancel()


async def test_a_client_that_is_gone_costs_nothing_more(runtime_dir: Path) -> None:
    async with running_switch(runtime_dir) as switch:
        stream = await switch.stranger()
        ours, theirs = socket.socketpair()
        await stream.send(Capture(id=5), descriptors=[theirs.fileno()])
        await stream.receive()
        assert len(await captures(switch)) == 1
        stream.close()
        while await captures(switch):
            await wait_all_tasks_blocked()
        for sock in (ours, theirs):
            sock.close()


async def refusal(stream: ControlStream, asked: Capture, *descriptors: int) -> str:
    await stream.send(asked, descriptors=descriptors)
    while True:
        answer = await stream.receive()
        if isinstance(answer, Error):
            assert answer.of == asked.id
            return answer.message


async def test_captures_that_cannot_be(runtime_dir: Path) -> None:
    async with running_switch(runtime_dir) as switch:
        stream = await switch.stranger()
        before = len(os.listdir("/proc/self/fd"))
        null = os.open(os.devnull, os.O_RDONLY)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams:
            assert "one descriptor" in await refusal(stream, Capture(id=1))
            assert "no socket" in await refusal(stream, Capture(id=2), null)
            assert "no stream socket" in await refusal(stream, Capture(id=3), datagrams.fileno())
            assert "one descriptor" in await refusal(stream, Capture(id=4), null, null)
        os.close(null)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            words = await refusal(stream, Capture(id=5, ports=("port-9",)), theirs.fileno())
            assert words == "there is no port port-9; ports: none"
            await stream.send(Capture(id=6), descriptors=[theirs.fileno()])
            assert "a capture already" in await refusal(stream, Capture(id=7), theirs.fileno())
            others = [await switch.stranger() for _ in range(RECORDINGS_MAX)]
            for other in others[1:]:
                await other.send(Capture(id=8), descriptors=[theirs.fileno()])
                assert isinstance(await other.receive(), CaptureBegun)
            assert "run already" in await refusal(others[0], Capture(id=9), theirs.fileno())
        for one in (stream, *others):
            one.close()
        while await captures(switch):
            await wait_all_tasks_blocked()
        while len(os.listdir("/proc/self/fd")) > before:  # that of the last question closes a moment later
            await wait_all_tasks_blocked()


async def test_what_nobody_takes_counts_after_its_end(runtime_dir: Path) -> None:
    """Its queue is memory still."""
    async with running_switch(runtime_dir) as switch:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.setblocking(False)
            with suppress(BlockingIOError):
                while True:
                    theirs.send(bytes(1 << 16))
            streams = [await switch.stranger() for _ in range(RECORDINGS_MAX + 1)]
            for stream in streams[:-1]:
                await stream.send(Capture(id=1, duration_ms=1), descriptors=[theirs.fileno()])
                assert isinstance(await stream.receive(), CaptureBegun)
            while not all(one["ended"] for one in await captures(switch)):
                await wait_all_tasks_blocked()
            assert len(await captures(switch)) == RECORDINGS_MAX
            assert "run already" in await refusal(streams[-1], Capture(id=2), theirs.fileno())
        for stream in streams:
            stream.close()


async def test_where_no_switch_is(runtime_dir: Path) -> None:
    with pytest.raises(ConfigError, match="no switch has its socket here"):
        control_socket(runtime_dir)
    with pytest.raises(CaptureFailed, match="is a switch started there"):
        await capture(runtime_dir / "control.sock", Capture(id=1), bytearray().extend)


async def test_inputs_are_as_they_came_and_results_as_they_left(runtime_dir: Path) -> None:
    """The accelerator sums in the buffer that a frame arrived in."""
    found = Capturing()
    async with open_cluster(runtime_dir, 2, weather="clear") as cluster, trio.open_nursery() as nursery:
        comms = await cluster.job("j", 2)
        asked = Capture(id=1)
        control = cluster.directory / "control.sock"

        async def run() -> None:
            found.ended = await capture(
                control, asked, found.data.extend, begun=lambda ports: found.begun.set(), enough=found.enough
            )

        nursery.start_soon(run)
        await found.begun.wait()
        works = [
            comm.all_reduce(np.full(50_000, one, np.int32)) for comm, one in zip(comms, FILLS, strict=True)
        ]
        for work in works:
            assert set(await work) == {sum(FILLS)}
        found.enough.set()
    frames = [one for one in read_capture(bytes(found.data)) if one.wire_bytes > 1000]
    packets = [(one.direction, RocePacket.decode_frame(one.data, verify=True)) for one in frames]
    seen: dict[Direction, set[int]] = {Direction.INBOUND: set(), Direction.OUTBOUND: set()}
    sent = set()
    for direction, packet in packets:
        which = (packet.ip.src, packet.bth.dest_qp, packet.bth.psn)
        # What a host sends again after the result has come is read from memory where that lies now.
        is_again = direction is Direction.INBOUND and which in sent
        if packet.opcode == Opcode.RC_WRITE_MIDDLE and not is_again:
            sent.add(which)
            seen[direction].update(np.frombuffer(packet.payload, np.int32).tolist())
    assert seen == {Direction.INBOUND: set(FILLS), Direction.OUTBOUND: {sum(FILLS)}}


def file_of(path: Path) -> dict[str, object]:
    return {"capture": path, "capture_mb": 1}


async def test_a_file_from_the_start_to_the_end(runtime_dir: Path) -> None:
    path = runtime_dir / "all.pcapng"
    async with (
        running_switch(runtime_dir, capture=path, capture_mb=1) as switch,
        trio.open_nursery() as nursery,
    ):
        ports = [await plug(switch, nursery) for _ in range(3)]
        await ports_up(switch, 3)
        await exchange(ports)
        for port in ports:
            await port.aclose()
        await ports_up(switch, 0)
        totals = (await ask(switch.settings.control_path))["totals"]
        switch.stop.set()
        await switch.ended.wait()
        nursery.cancel_scope.cancel()
    found = counted(read_capture(path.read_bytes()))
    for direction, name in ((Direction.INBOUND, "frames_in"), (Direction.OUTBOUND, "frames_out")):
        assert sum(n for (_, one), n in found.items() if one is direction) == totals[name]


async def test_a_file_that_is_full_is_told_and_the_switch_goes_on(runtime_dir: Path) -> None:
    path = runtime_dir / "all.pcapng"
    async with (
        running_switch(runtime_dir, capture=path, capture_mb=1) as switch,
        trio.open_nursery() as nursery,
    ):
        ports = [await plug(switch, nursery) for _ in range(2)]
        await ports_up(switch, 2)
        while not (await captures(switch))[0]["ended"]:
            ports[0].send_nowait(frame(0, None, count=50, length=1000))
            await received(ports[1], 50)
        [told] = await captures(switch)
        assert told["ended"] == "the file has 1 MiB"
        for port in ports:
            await port.aclose()
        nursery.cancel_scope.cancel()
    assert path.stat().st_size <= (1 << 20) + 1000  # and the counts of its ports
    assert len(read_capture(path.read_bytes())) == told["frames"]


async def test_a_file_that_cannot_be_made_ends_the_start(runtime_dir: Path) -> None:
    with pytest.RaisesGroup(
        pytest.RaisesExc(ConfigError, match="capture: cannot write"), flatten_subgroups=True
    ):
        async with running_switch(runtime_dir, capture=runtime_dir / "none" / "all.pcapng"):
            pass


async def test_a_file_that_takes_nothing_more_does_not_keep_the_switch(runtime_dir: Path) -> None:
    """As one on a disk that hangs; here it is a pipe, and who reads it has stopped."""
    path = runtime_dir / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    watch = threading.Timer(30, os.close, [reader])  # a switch that waits is let go, too late
    watch.start()
    async with running_switch(runtime_dir, capture=path) as switch, trio.open_nursery() as nursery:
        ports = [await plug(switch, nursery) for _ in range(2)]
        await ports_up(switch, 2)
        for _ in range(10):
            ports[0].send_nowait(frame(0, None, count=50, length=1000))
            await received(ports[1], 50)
        for port in ports:
            await port.aclose()
        switch.stop.set()
        await switch.ended.wait()
        nursery.cancel_scope.cancel()
    assert watch.is_alive()
    watch.cancel()
    os.close(reader)


async def test_a_pipe_that_nobody_reads_ends_the_start(runtime_dir: Path) -> None:
    path = runtime_dir / "pipe"
    os.mkfifo(path)
    with pytest.RaisesGroup(
        pytest.RaisesExc(ConfigError, match="capture: cannot write"), flatten_subgroups=True
    ):
        async with running_switch(runtime_dir, capture=path):
            pass


async def test_a_capture_is_not_for_everybody(runtime_dir: Path) -> None:
    path = runtime_dir / "all.pcapng"
    before = os.umask(0)
    try:
        async with running_switch(runtime_dir, capture=path):
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o640


async def test_tshark_reads_a_capture(runtime_dir: Path, program: Callable[[str], Path]) -> None:
    tshark = program("tshark")
    path = runtime_dir / "all.pcapng"
    async with running_switch(runtime_dir, capture=path) as switch, trio.open_nursery() as nursery:
        ports = [await plug(switch, nursery) for _ in range(2)]
        await ports_up(switch, 2)
        await exchange(ports)
        for port in ports:
            await port.aclose()
        switch.stop.set()
        await switch.ended.wait()
        nursery.cancel_scope.cancel()
    fields = ("frame.interface_name", "frame.packet_flags_direction", "frame.len")
    argv = [str(tshark), "-r", str(path), "-T", "fields", *(word for name in fields for word in ("-e", name))]
    ran = await trio.run_process(argv, capture_stdout=True, stderr=subprocess.DEVNULL)
    rows = [line.split("\t") for line in ran.stdout.decode().splitlines()]
    ours = read_capture(path.read_bytes())
    assert [(row[0], int(row[1], 16), int(row[2])) for row in rows] == [
        (one.interface.name, one.direction, one.wire_bytes) for one in ours
    ]
