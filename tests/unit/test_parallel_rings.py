"""Parallel rings at the client's side: names, slices, arguments, and what goes to which daemon."""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from inaproto.client.arguments import check_arguments, check_sockets
from inaproto.client.blocking_communicator import BlockingCommunicator, connect_blocking
from inaproto.client.channel import Channel, JobRank
from inaproto.client.communicator import Communicator
from inaproto.client.drivers import TrioDriver
from inaproto.client.parallel_rings import ParallelRings, slices
from inaproto.client.ring_names import RingName, parse_ring_job, ring_job
from inaproto.client.unix_stream import dial_unix
from inaproto.client.wishes import JobWishes
from inaproto.errors import JobError, LocalMisuse, OperationTimeout, RankLost, Unsupported
from inaproto.wire.control import ControlDecoder
from inaproto.wire.control_messages import (
    Message,
    Status,
    StatusReply,
    decode_message,
    encode_message,
    error_message,
)
from inaproto.wire.messages.client import AllReduce, Buffer, Done, Joined, Leave, Ok

WHO = JobRank("j", 1, 4)

# --- names


@pytest.mark.parametrize(("ring", "rings"), [(0, 2), (1, 2), (9, 10), (0, 3)])
def test_the_name_of_a_ring_says_which_of_how_many(ring: int, rings: int) -> None:
    name = ring_job("train", ring, rings)
    assert parse_ring_job(name) == RingName("train", ring, rings)
    with pytest.raises(LocalMisuse, match="those of parallel rings"):
        check_arguments(name, 0, 2, "", None, JobWishes())


@pytest.mark.parametrize(
    "name", ["train", "a.b-c_d", "train~1", "train#2/2", "train#0/1", "train#01/2", "#0/2"]
)
def test_other_names_are_those_of_ordinary_jobs(name: str) -> None:
    assert parse_ring_job(name) == RingName(name, 0, 1)


def test_a_job_with_one_ring_keeps_its_name() -> None:
    assert ring_job("train", 0, 1) == "train"


# --- slices


@given(st.integers(0, 5000), st.sampled_from([2, 4, 8]), st.integers(1, 9))
def test_slices_cover_the_tensor_at_cache_lines_and_differ_by_one_at_most(
    elements: int, itemsize: int, rings: int
) -> None:
    found = slices(elements, itemsize, rings)
    assert len(found) == rings
    end = 0
    for first, length in found:
        assert first == end
        assert first * itemsize % 64 == 0
        end += length
    assert end == elements
    lengths = [length * itemsize for _, length in found]
    assert max(lengths) - min(lengths) <= 64


# --- arguments


def test_sockets_come_as_one_as_a_list_or_by_the_environment() -> None:
    both = (Path("/a"), Path("/b"))
    assert check_sockets("/a", WHO, {}) == (Path("/a"),)
    assert check_sockets(Path("/a"), WHO, {}) == (Path("/a"),)
    assert check_sockets(["/a", Path("/b")], WHO, {}) == both
    assert check_sockets(("/a",), WHO, {}) == (Path("/a"),)
    assert check_sockets(None, WHO, {"INAPROTO_HOST_SOCKET": "/a:/b"}) == both
    assert check_sockets("/c", WHO, {"INAPROTO_HOST_SOCKET": "/a:/b"}) == (Path("/c"),)
    for searched in ("", "/a"):  # by whoever dials, again and again
        assert check_sockets(None, WHO, {"INAPROTO_HOST_SOCKET": searched}) == ()


@pytest.mark.parametrize(
    ("sockets", "words"),
    [
        ([], "one for each NIC"),
        (["/a", 7], "one for each NIC"),
        (7, "one for each NIC"),
        (["/a", "/b", "/a"], "has /a twice"),
        (["/a", "/" + "b" * 200], "is longer than"),
    ],
)
def test_sockets_that_cannot_be_are_refused(sockets: object, words: str) -> None:
    with pytest.raises(LocalMisuse, match=words):
        check_sockets(sockets, WHO, {})


def test_what_parallel_rings_cannot_do_is_said_before_anything_is_opened() -> None:
    with pytest.raises(Unsupported, match="elastic is not available: a job of 2 parallel rings"):
        connect_blocking("j", 0, size=2, socket=["/a", "/b"], elastic=True)
    with pytest.raises(LocalMisuse, match="with 2 sockets it may have 124 bytes"):
        connect_blocking("j" * 125, 0, size=2, socket=["/a", "/b"])
    assert check_sockets(["/a", "/b"], JobRank("j" * 124, 0, 2), {})


# --- the conversation


class Daemon:
    """The far end of one ring's channel."""

    def __init__(self, far: socket.socket) -> None:
        far.setblocking(False)
        self.far = far
        self.descriptors: list[int] = []
        self._decoder = ControlDecoder()
        self.is_closed = False
        """By the client."""

    def take(self) -> list[Message]:
        found: list[Message] = []
        with suppress(BlockingIOError):
            while not self.is_closed:
                data, descriptors, _, _ = socket.recv_fds(self.far, 1 << 16, 4)
                self.descriptors += descriptors
                self.is_closed = not data
                found += map(decode_message, self._decoder.feed(data))
        return found

    def say(self, *messages: Message) -> None:
        for message in messages:
            self.far.send(encode_message(message))

    def close(self) -> None:
        self.far.close()
        for descriptor in self.descriptors:
            os.close(descriptor)


class Machine:
    """A rank with ``rings`` daemons, joined."""

    def __init__(self, rings: int = 2, operations_max: Sequence[int] = (99, 99, 99)) -> None:
        pairs = [socket.socketpair() for _ in range(rings)]
        channels = [
            Channel(mine, Path(f"/d{ring}"), JobRank(ring_job("j", ring, rings), 1, 4))
            for ring, (mine, _) in enumerate(pairs)
        ]
        self.daemons = [Daemon(far) for _, far in pairs]
        self.now = 0.0
        self.rings = ParallelRings(channels, WHO)
        self.comm = BlockingCommunicator(self.rings, lambda: self.now)
        for daemon, most in zip(self.daemons, operations_max, strict=False):
            daemon.say(Joined(id=1, ring_id=1, rank=1, size=4, operations_max=most))
        self.rings.pump()

    def close(self) -> None:
        self.rings.close()
        for daemon in self.daemons:
            daemon.close()


@pytest.fixture
def machine() -> Iterator[Machine]:
    made = Machine()
    yield made
    made.close()


def test_every_daemon_gets_the_same_memory_and_its_slice_of_every_operation() -> None:
    machine = Machine(3)
    buffer = machine.comm.buffer((8, 20), np.float16)
    for array in (buffer, np.ones(1, np.float64), buffer[2:4]):
        machine.comm.all_reduce(array, in_place=True)
    came = [daemon.take() for daemon in machine.daemons]
    operations = [[message for message in each if isinstance(message, AllReduce)] for each in came]
    assert [
        [(message.op_index, message.nbytes, message.whole) for message in each] for each in operations
    ] == [
        [(0, 128, (8, 20)), (1, 0, (1,)), (2, 64, (2, 20))],
        [(0, 128, (8, 20)), (1, 0, (1,)), (2, 0, (2, 20))],
        [(0, 64, (8, 20)), (1, 8, (1,)), (2, 16, (2, 20))],
    ]
    assert [each[0].offset for each in operations] == [0, 128, 256]
    assert {each[2].segment for each in operations} == {0}
    segments = [[message for message in each if isinstance(message, Buffer)] for each in came]
    assert [len(each) for each in segments] == [2, 2, 2]
    files = [[os.fstat(descriptor).st_ino for descriptor in daemon.descriptors] for daemon in machine.daemons]
    assert files[0] == files[1] == files[2]
    assert len(set(files[0])) == 2
    machine.close()


def test_the_memory_of_all_rings_is_closed_with_the_last_of_them(machine: Machine) -> None:
    """A ring that has not sent a segment yet never sends something else by a number that was free again."""
    gc.collect()  # descriptors of tests before this one
    before = len(os.listdir("/proc/self/fd"))
    descriptor = machine.rings.memory.register(10).segment.descriptor
    machine.rings.rings[0].close()
    os.fstat(descriptor)
    machine.rings.rings[1].close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    assert len(os.listdir("/proc/self/fd")) == before - 2 + 1  # without sockets, with a mapping


def test_an_operation_has_its_result_when_all_slices_have(machine: Machine) -> None:
    work = machine.comm.all_reduce(np.ones(64, np.float32))
    machine.daemons[1].say(Done(op_index=0, path="chain", ns=70))
    machine.rings.pump()
    assert not work.done
    assert machine.comm.operations_done == 0
    machine.daemons[0].say(Done(op_index=0, path="switch", ns=50))
    assert (work.wait() == 1).all()
    assert machine.comm.operations_done == 1
    (record,) = machine.comm.statistics().recent
    assert (record.path, record.daemon_ns, record.nbytes) == ("chain+switch", 70, 256)


def test_private_memory_comes_back_when_no_daemon_uses_it(machine: Machine) -> None:
    offsets = []
    for index in range(3):
        work = machine.comm.all_reduce(np.ones(64, np.float32))
        (asked,) = (m for m in machine.daemons[0].take() if isinstance(m, AllReduce))
        offsets.append(asked.offset)
        if index:
            for daemon in machine.daemons:
                daemon.say(
                    Done(op_index=index - 1, path="switch", ns=1), Done(op_index=index, path="switch", ns=1)
                )
            work.wait()
            del work
            gc.collect()
    assert offsets[0] != offsets[1]
    assert offsets[2] in offsets[:2]


def test_what_a_ring_fails_with_ends_all_and_is_told_to_the_other_rings(machine: Machine) -> None:
    first, second = (machine.comm.all_reduce(np.ones(64, np.float32)) for _ in range(2))
    for daemon in machine.daemons:
        daemon.say(Done(op_index=0, path="switch", ns=1))
        daemon.take()
    machine.daemons[0].say(Done(op_index=1, path="switch", ns=1))
    machine.daemons[1].say(error_message(RankLost("rank 3 is lost: it ended")))
    with pytest.raises(RankLost) as info:
        second.wait()
    assert str(info.value) == "ring 1 of 2 (host daemon at /d1): rank 3 is lost: it ended"
    assert info.value.operations_done == 1
    assert (first.wait() == 1).all()
    (left,) = machine.daemons[0].take()
    assert isinstance(left, Leave)
    assert left.reason == f"RankLost in {info.value}"
    assert [daemon.take() for daemon in machine.daemons] == [[], []]
    assert all(daemon.is_closed for daemon in machine.daemons)
    for refused in (lambda: machine.comm.all_reduce(np.ones(1, np.float32)), lambda: machine.comm.buffer(9)):
        with pytest.raises(RankLost, match="ring 1 of 2"):
            refused()


def test_a_daemon_that_ends_is_found_by_whoever_submits(machine: Machine) -> None:
    machine.daemons[1].close()
    work = machine.comm.all_reduce(np.ones(64, np.float32))
    with pytest.raises(JobError, match=r"ring 1 of 2 .*the host daemon is gone"):
        work.wait()


def test_where_one_ring_has_no_room_none_is_asked() -> None:
    machine = Machine(2, operations_max=(9, 1))
    machine.comm.all_reduce(np.ones(64, np.float32))
    for daemon in machine.daemons:
        daemon.take()
    with pytest.raises(LocalMisuse, match="1 all-reduces have not ended"):
        machine.comm.all_reduce(np.ones(64, np.float32))
    assert [daemon.take() for daemon in machine.daemons] == [[], []]
    machine.daemons[1].say(Done(op_index=0, path="switch", ns=1))
    machine.comm.all_reduce(np.ones(64, np.float32))
    machine.close()


def test_a_wait_in_vain_asks_the_daemon_whose_slice_is_late(machine: Machine) -> None:
    work = machine.comm.all_reduce(np.ones(64, np.float32))
    machine.daemons[0].say(Done(op_index=0, path="switch", ns=1))
    ring = {"job": "j#1/2", "ranks": [{"rank": 1}], "waiting_for": [2], "operation": {}}
    machine.daemons[1].say(StatusReply(id=9, body={"name": "h", "switch": {}, "rings": [ring]}))
    steps = work._waiting(0.0)
    for _ in steps:
        machine.daemons[1].say(StatusReply(id=9, body={"name": "h", "switch": {}, "rings": [ring]}))
        break
    with pytest.raises(OperationTimeout, match=r"ring 1 of 2 .*all-reduce 0 .*waits for rank 2"):
        for _ in steps:
            pass
    asked = [[type(message) for message in daemon.take()] for daemon in machine.daemons]
    assert Status in asked[1]
    assert Status not in asked[0]


def test_leaving_is_confirmed_by_all(machine: Machine) -> None:
    steps = machine.rings.leaving(lambda: 0.0)
    for daemon in machine.daemons:
        assert len(next(steps).channels) == 2
        daemon.say(Ok(id=1))  # to the first message, for no join was sent
    assert list(steps) == []
    assert [[type(m) for m in daemon.take()] for daemon in machine.daemons] == [[Leave], [Leave]]
    assert all(daemon.is_closed for daemon in machine.daemons)
    with pytest.raises(JobError, match="was closed; connect again"):
        machine.comm.all_reduce(np.ones(1, np.float32))


def test_a_child_process_neither_uses_nor_leaves_the_rings(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.daemons[0].say(error_message(RankLost("rank 3 is lost")))
    monkeypatch.setattr(os, "getpid", lambda: 1)
    with pytest.raises(LocalMisuse, match="fork"):
        machine.comm.all_reduce(np.ones(1, np.float32))
    monkeypatch.undo()
    assert machine.daemons[1].take() == []


async def test_a_channel_that_closes_while_output_waits_wakes_whoever_waits() -> None:
    """Both waits end at once; no group of exceptions gets out."""
    mine, far = socket.socketpair()
    channel = Channel(mine, Path("/d"), WHO)
    comm = Communicator(channel, TrioDriver(), dial_unix)
    work = comm.all_reduce(np.ones(4, np.float32))
    while not channel.has_output:
        channel.send(bytes(1 << 16))
    with trio.fail_after(600):
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                with pytest.raises(JobError, match="was closed"):
                    await work

            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            channel.close()
    far.close()
