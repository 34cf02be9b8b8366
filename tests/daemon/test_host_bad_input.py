"""What bad input gets: an error that names what, who and what to do, in bounded time; nobody else is hurt."""

from __future__ import annotations

import array
import fcntl
import os
import re
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

import inaproto
from inaproto.daemon.host import session as host_session
from inaproto.daemon.host.daemon import run_host
from inaproto.daemon.net.control_stream import ControlStream, EndOfChannel
from inaproto.daemon.net.unix_sockets import connect_unix
from inaproto.daemon.settings.config import HostSettings
from inaproto.errors import (
    ConfigError,
    JobError,
    JoinRefused,
    OperationTimeout,
    SwitchUnreachable,
    TensorMismatch,
)
from inaproto.ports import Nic
from inaproto.wire.control_messages import Error, Hello, Message, Status, StatusReply
from inaproto.wire.ina_header import Dtype, Op
from inaproto.wire.messages.client import AllReduce, Buffer, Done, Join, Joined, Leave, Ok
from tests.clusters.loopback import Cluster, RunningHost, open_cluster

SMALL: dict[str, Any] = {"mtu": 256, "message_packets": 3}


async def still_works(comms: list[inaproto.Communicator]) -> None:
    """The bystanders' job is undisturbed."""
    works = [comm.all_reduce(np.full(500, rank + 1, np.int32)) for rank, comm in enumerate(comms)]
    for work in works:
        assert (await work == sum(range(1, len(comms) + 1))).all()


@asynccontextmanager
async def cluster_with_bystanders(directory: Path, hosts: int = 2, **options: Any) -> AsyncIterator[Cluster]:
    """Two ranks of another job; they must be able to work before and after what the test does."""
    async with open_cluster(directory, hosts, **(SMALL | options)) as cluster:
        comms = await cluster.job("bystanders", 2)
        await still_works(comms)
        yield cluster
        await still_works(comms)


# --- joining


async def test_a_wrong_key(runtime_dir: Path) -> None:
    async with cluster_with_bystanders(runtime_dir) as cluster, trio.open_nursery() as nursery:
        nursery.start_soon(lambda: cluster.connect("j", 0, size=2, key="right"))
        await seated(cluster.hosts[0], "j")
        with pytest.raises(JoinRefused) as info:
            await cluster.connect("j", 1, size=2, key="wrong")
        for part in ("rank 1", "h1", "'j'", "wrong key", "give the key"):
            assert part in str(info.value)
        assert "right" not in str(info.value)
        await cluster.connect("j", 1, size=2, key="right")


async def test_who_waits_for_a_refused_rank_hears_of_it_at_once(
    runtime_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """docs/protocol.md 12.4: by its log, by its daemon's, and by its timeout. Its job goes on waiting."""
    async with open_cluster(runtime_dir, 3, **SMALL) as cluster, trio.open_nursery() as nursery:
        nursery.start_soon(lambda: cluster.connect("j", 0, size=3, key="right"))
        await seated(cluster.hosts[0], "j")
        with pytest.raises(JoinRefused):
            await cluster.connect("j", 1, size=3, key="wrong")
        with pytest.raises(JoinRefused):  # refused by the host
            await cluster.connect("j", 0, size=3, key="right")
        wrong = f"rank 1 (h1, pid {os.getpid()}) was refused: wrong key"
        twice = f"rank 0 (h0, pid {os.getpid()}) was refused: the rank is held by process {os.getpid()}"
        said = f"rank 0 of job 'j' waits for others: {wrong}; {twice} on this host"
        while said not in caplog.messages:
            await trio.lowlevel.checkpoint()
        records = [record for record in caplog.records if wrong in record.getMessage()]
        assert {record.name for record in records} == {"inaproto.client", "inaproto.host"}
        [ring] = cluster.hosts[0].daemon.status()["rings"]
        assert ring["refused"] == f"{wrong}; {twice} on this host"
        with pytest.raises(OperationTimeout) as late:
            await cluster.connect("j", 2, size=3, key="right", timeout=0.1)
        assert f"rank 1 of 3 did not within 0.1 s: {wrong}; {twice}" in str(late.value)
        assert "start them" not in str(late.value)
        assert "right" not in caplog.text + str(late.value)
        nursery.cancel_scope.cancel()


async def test_sizes_that_differ(runtime_dir: Path) -> None:
    async with cluster_with_bystanders(runtime_dir) as cluster, trio.open_nursery() as nursery:
        nursery.start_soon(lambda: cluster.connect("j", 0, size=2))
        await seated(cluster.hosts[0], "j")
        with pytest.raises(JoinRefused, match=r"3 ranks.*rank 0 \(h0, pid \d+\).* 2"):
            await cluster.connect("j", 1, size=3)
        await cluster.connect("j", 1, size=2)


@pytest.mark.parametrize("where", ["same host", "another host"])
async def test_two_processes_claim_one_rank(runtime_dir: Path, where: str) -> None:
    async with cluster_with_bystanders(runtime_dir, hosts=3) as cluster:
        comms = await cluster.job("j", 2)
        with pytest.raises(JoinRefused) as info:
            await cluster.connect("j", 1, size=2, host=1 if where == "same host" else 2)
        for part in ("rank 1", "'j'", str(os.getpid()), "end that process or take another rank"):
            assert part in str(info.value)
        await still_works(comms)


async def test_a_rank_beyond_the_size_from_a_client_that_does_not_check(runtime_dir: Path) -> None:
    async with cluster_with_bystanders(runtime_dir) as cluster, raw(cluster.hosts[0]) as stream:
        await stream.send(Join(id=4, job="j", rank=2, size=2, key="", pid=1))
        answer = await stream.receive()
        assert isinstance(answer, Error)
        assert (answer.code, answer.of) == ("join_refused", 4)
        assert "ranks are 0 to 1" in answer.message


async def test_host_daemons_with_different_parameters(runtime_dir: Path) -> None:
    async with open_cluster(runtime_dir, 1, **SMALL) as cluster, trio.open_nursery() as nursery:
        await cluster.start_host(message_packets=4)
        nursery.start_soon(swallow, cluster, 0)
        await seated(cluster.hosts[0], "j")
        with pytest.raises(JoinRefused, match=r"message_packets is 4.*3.*same value"):
            await cluster.connect("j", 1, size=2)
        nursery.cancel_scope.cancel()


async def test_ranks_that_do_not_come_are_named(runtime_dir: Path) -> None:
    async with cluster_with_bystanders(runtime_dir, hosts=3) as cluster, trio.open_nursery() as nursery:
        nursery.start_soon(swallow, cluster, 0, 4)
        await seated(cluster.hosts[0], "j")
        with pytest.raises(
            OperationTimeout, match=r"rank 2 of job 'j'.*ranks 1, 3 of 4 did not within 0\.2 s"
        ):
            await cluster.connect("j", 2, size=4, timeout=0.2)
        nursery.cancel_scope.cancel()


async def test_a_switch_that_is_not_there_and_then_is(runtime_dir: Path) -> None:
    async with open_cluster(runtime_dir, 2, switch=False, **SMALL) as cluster:
        with pytest.raises(SwitchUnreachable) as info:
            await cluster.connect("j", 0, size=2, timeout=0.2)
        for part in ("h0", str(runtime_dir / "control.sock"), "No such file", "inaproto switch"):
            assert part in str(info.value)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cluster.start_switch)
            comms = await cluster.job("j", 2)
        await still_works(comms)


# --- operations


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (np.zeros((4, 6), np.float32), np.zeros((6, 4), np.float32)),
        (np.zeros(300, np.float32), np.zeros(300, np.int32)),
        (np.zeros(300, np.float32), np.zeros(5000, np.float32)),
        (np.zeros(300, np.float32), np.zeros(150, np.float64)),
        (np.zeros(0, np.float32), np.zeros(5000, np.float32)),
        (np.zeros((0, 3), np.float32), np.zeros((3, 0), np.float32)),
    ],
    ids=["shape", "dtype", "length", "same bytes", "empty", "both empty"],
)
async def test_tensors_that_differ_between_ranks(
    runtime_dir: Path, mine: np.ndarray[Any, Any], theirs: np.ndarray[Any, Any]
) -> None:
    async with cluster_with_bystanders(runtime_dir, stall_ms=50) as cluster:
        comms = await cluster.job("j", 2)
        await still_works(comms)
        works = [comms[0].all_reduce(mine), comms[1].all_reduce(theirs)]
        for work in works:
            with pytest.raises(TensorMismatch, match=r"(?s)'j'.*same shape, dtype and op"):
                await work
        with pytest.raises(TensorMismatch):
            comms[0].all_reduce(mine)


@pytest.mark.parametrize("stall_ms", [50, 60_000], ids=["soon stalled", "never stalled"])
@pytest.mark.parametrize("path", ["auto", "chain", "ring", "overlay", "one host"])
async def test_a_mismatch_is_told_in_words_on_every_path(runtime_dir: Path, path: str, stall_ms: int) -> None:
    """docs/protocol.md 12.6: each rank reads what each of them has called, whoever finds that it differs."""
    async with open_cluster(runtime_dir, 3, **SMALL, stall_ms=stall_ms) as cluster:
        here = {"host": 0} if path == "one host" else {"path": path}
        comms = await cluster.job("j", 3, **here)
        await still_works(comms)
        arrays = [np.zeros(30, np.float32), np.zeros(31, np.float32), np.zeros(30, np.float32)]
        works = [comm.all_reduce(array) for comm, array in zip(comms, arrays, strict=True)]
        pid, hosts = os.getpid(), (0, 0, 0) if path == "one host" else (0, 1, 2)
        one = f"rank 1 (h{hosts[1]}, pid {pid}): sum of float32 (31,)"
        others = f"rank 0 (h0, pid {pid}), rank 2 (h2, pid {pid})"
        words = f"all-reduce 1 of job 'j' differs between ranks: {others}: sum of float32 (30,); {one}; "
        for work in works:
            with pytest.raises(TensorMismatch) as info:
                await work
            if path != "one host" and stall_ms > 50:  # else as soon as two that differ are known to wait
                assert str(info.value).startswith(words)
            assert one in str(info.value)
            assert ": sum of float32 (30,)" in str(info.value)
            assert "this rank is" not in str(info.value)


async def test_operations_that_differ_between_ranks(runtime_dir: Path) -> None:
    async with cluster_with_bystanders(runtime_dir, stall_ms=50) as cluster:
        comms = await cluster.job("j", 2)
        works = [
            comm.all_reduce(np.zeros(9, np.float32), op)
            for comm, op in zip(comms, ("sum", "max"), strict=True)
        ]
        for work in works:
            with pytest.raises(TensorMismatch):
                await work


async def test_an_operation_that_one_rank_never_calls(runtime_dir: Path) -> None:
    async with cluster_with_bystanders(runtime_dir, hosts=3, stall_ms=20) as cluster:
        comms = await cluster.job("j", 3)
        await still_works(comms)
        works = [comm.all_reduce(np.ones(10, np.float32)) for comm in comms[:2]]
        ring = cluster.hosts[0].daemon.status
        while next(ring for ring in ring()["rings"] if ring["job"] == "j")["waiting_for"] != [2]:
            await trio.lowlevel.checkpoint()
        with pytest.raises(OperationTimeout) as info:
            await works[0].wait(timeout=0)
        for part in ("all-reduce 1", "rank 0", "'j'", "0 of 1 result", "waits for rank 2"):
            assert part in str(info.value)
        works.append(comms[2].all_reduce(np.ones(10, np.float32)))  # late is not lost
        for work in works:
            assert (await work == 3).all()


# --- bytes of strangers


@asynccontextmanager
async def raw(host: RunningHost) -> AsyncIterator[ControlStream]:
    stream = ControlStream(await connect_unix(host.socket, "test"))
    try:
        yield stream
    finally:
        stream.close()


async def swallow(cluster: Cluster, rank: int, size: int = 2) -> None:
    """A join that is cancelled, or refused when the test is over."""
    await cluster.connect("j", rank, size=size)


async def seated(host: RunningHost, job: str) -> None:
    """Until the switch knows of the host's rank of ``job``: it has said for whom the job waits."""
    while not any(ring["job"] == job and ring["waiting_for"] for ring in host.daemon.status()["rings"]):
        await trio.lowlevel.checkpoint()


async def cut_off(stream: ControlStream) -> str:
    """The error that came before the end of the connection."""
    said = ""
    try:
        while True:
            message = await stream.receive()
            if isinstance(message, Error):
                said = message.message
    except EndOfChannel:
        return said
    finally:
        stream.close()


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">I", 0xFFFFFFFF),
        struct.pack(">I", 0),
        struct.pack(">I", 3) + b"\x00\x01\x02",
        struct.pack(">I", 5) + b"\xc1\xc1\xc1\xc1\xc1",
        struct.pack(">I", 1) + b"\x80",
    ],
    ids=["http", "huge length", "no length", "no map", "no msgpack", "empty map"],
)
async def test_garbage_cuts_off_its_sender_only(runtime_dir: Path, garbage: bytes) -> None:
    async with cluster_with_bystanders(runtime_dir) as cluster:
        sock = await connect_unix(cluster.hosts[0].socket, "test")
        sock.send(garbage)
        assert "no valid message" in await cut_off(ControlStream(sock))


async def test_a_truncated_length_prefix(runtime_dir: Path) -> None:
    async with cluster_with_bystanders(runtime_dir) as cluster:
        sock = await connect_unix(cluster.hosts[0].socket, "test")
        sock.send(b"\x00\x00")
        sock.shutdown(socket.SHUT_WR)
        assert "length prefix" in await cut_off(ControlStream(sock))


@pytest.mark.parametrize(
    "message",
    [
        Hello(host="h", mac=bytes(6), ip=bytes(4)),
        Done(op_index=0, path="switch", ns=1),
        Buffer(segment=0, nbytes=4096),
        AllReduce(op_index=0, segment=0, offset=0, nbytes=4, dtype=0, op=0, shape=(1,)),
    ],
    ids=lambda message: message.TYPE,
)
async def test_messages_out_of_place(runtime_dir: Path, message: Message) -> None:
    async with cluster_with_bystanders(runtime_dir) as cluster, raw(cluster.hosts[0]) as stream:
        await stream.send(message)
        assert re.search("does not take|no descriptor|before joining", await cut_off(stream))


async def test_a_second_join(runtime_dir: Path) -> None:
    async with cluster_with_bystanders(runtime_dir) as cluster, raw(cluster.hosts[0]) as stream:
        for rank in (0, 1):
            await stream.send(Join(id=rank, job="j", rank=rank, size=3, key="", pid=1))
        assert "second join" in await cut_off(stream)


async def test_a_last_word_commands_nobody_s_terminal(runtime_dir: Path) -> None:
    async def victim() -> None:
        comm = await cluster.connect("victim", 1, size=2)
        with pytest.raises(JobError, match="given up") as caught:
            await comm.all_reduce(np.ones(10, np.float32))
        assert "mine" in str(caught.value)
        assert str(caught.value).isprintable()

    async with (
        cluster_with_bystanders(runtime_dir) as cluster,
        raw(cluster.hosts[0]) as stream,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(victim)
        await stream.send(Join(id=1, job="victim", rank=0, size=2, key="", pid=1))
        assert isinstance(await stream.receive(), Joined)
        await stream.send(Leave(id=2, reason="\x1b]0;mine\x07\nit is"))


def memfd(nbytes: int, seals: int = fcntl.F_SEAL_SHRINK) -> int:
    descriptor = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, nbytes)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


@asynccontextmanager
async def joined(cluster: Cluster) -> AsyncIterator[ControlStream]:
    """A stranger that is rank 0 of a running job of two."""
    async with raw(cluster.hosts[0]) as stream, trio.open_nursery() as nursery:
        nursery.start_soon(lambda: cluster.connect("victim", 1, size=2))
        await stream.send(Join(id=1, job="victim", rank=0, size=2, key="", pid=1))
        assert isinstance(await stream.receive(), Joined)
        yield stream


def plain_file(directory: Path) -> int:
    path = directory / "file"
    path.write_bytes(bytes(4096))
    return os.open(path, os.O_RDWR | os.O_CLOEXEC)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("unsealed", "sealed against shrinking"),
        ("read-only", "be writable"),
        ("short", "has 4096 bytes, the message says 8192"),
        ("file", "not a memfd"),
        ("pipe", "not a memfd"),
        ("huge pages", "pages of"),
    ],
)
async def test_descriptors_that_could_kill_the_daemon(runtime_dir: Path, kind: str, words: str) -> None:
    async with cluster_with_bystanders(runtime_dir) as cluster, joined(cluster) as stream:
        nbytes = 4096
        ends: list[int] = []
        if kind == "unsealed":
            descriptor = memfd(nbytes, seals=0)
        elif kind == "read-only":
            descriptor = memfd(nbytes, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_WRITE)
        elif kind == "short":
            descriptor = memfd(nbytes)
            nbytes = 8192
        elif kind == "file":
            descriptor = plain_file(runtime_dir)
        elif kind == "pipe":
            descriptor, other = os.pipe()
            ends.append(other)
        else:
            descriptor = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | os.MFD_HUGETLB)
            os.ftruncate(descriptor, nbytes := 2 << 20)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        await stream.send(Buffer(id=2, segment=0, nbytes=nbytes), descriptors=[descriptor])
        assert words in await cut_off(stream)
        for end in (descriptor, *ends):
            os.close(end)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"segment": 1}, "no segment 1"),
        ({"offset": 4096}, "which has 4096"),
        ({"offset": (1 << 64) - 1}, "which has 4096"),
        ({"nbytes": 8}, "it says 8"),
        ({"shape": (3,)}, "has 12 bytes"),
        ({"shape": (1 << 63, 1 << 63)}, "it says 4"),
        ({"op_index": 1}, "where 0 is next"),
    ],
)
async def test_requests_that_no_client_makes(runtime_dir: Path, change: dict[str, Any], words: str) -> None:
    async with cluster_with_bystanders(runtime_dir) as cluster, joined(cluster) as stream:
        descriptor = memfd(4096)
        await stream.send(Buffer(id=2, segment=0, nbytes=4096), descriptors=[descriptor])
        assert isinstance(await stream.receive(), Ok)
        os.close(descriptor)
        good: dict[str, Any] = {
            "op_index": 0,
            "segment": 0,
            "offset": 0,
            "nbytes": 4,
            "dtype": Dtype.F32,
            "op": Op.SUM,
            "shape": (1,),
        }
        await stream.send(AllReduce(id=3, **(good | change)))
        assert words in await cut_off(stream)


async def send_segments(stream: ControlStream, count: int) -> None:
    descriptor = memfd(4096)
    for number in range(count):
        await stream.send(Buffer(id=2, segment=number, nbytes=4096), descriptors=[descriptor])
        assert isinstance(await stream.receive(), Ok)
    os.close(descriptor)


async def test_one_process_cannot_take_all_memory_regions_of_a_host(runtime_dir: Path) -> None:
    async with cluster_with_bystanders(runtime_dir) as cluster, joined(cluster) as stream:
        await send_segments(stream, 256)
        await still_works(await cluster.job("others", 2))
        descriptor = memfd(4096)
        await stream.send(Buffer(id=2, segment=256, nbytes=4096), descriptors=[descriptor])
        os.close(descriptor)
        assert "one more than 256" in await cut_off(stream)


async def test_all_processes_together_cannot_take_all_memory_regions_of_a_host(
    runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_session, "SEGMENTS_OF_HOST_MAX", 10)
    async with cluster_with_bystanders(runtime_dir) as cluster, joined(cluster) as stream:
        descriptor = memfd(4096)
        for number in range(10):
            await stream.send(Buffer(id=2, segment=number, nbytes=4096), descriptors=[descriptor])
        os.close(descriptor)
        assert "processes of this host have 10 segments, its limit" in await cut_off(stream)


async def test_a_program_with_thousands_of_buffers(runtime_dir: Path) -> None:
    async with cluster_with_bystanders(runtime_dir) as cluster:
        comms = await cluster.job("j", 2)
        buffers = [[comm.buffer(100, np.int32) for _ in range(3000)] for comm in comms]
        for ours in buffers:
            for number, buffer in enumerate(ours):
                buffer[:] = number
        for number in range(0, 3000, 500):
            works = [comm.all_reduce(buffers[rank][number], in_place=True) for rank, comm in enumerate(comms)]
            for work in works:
                assert (await work == 2 * number).all()
        for ours in buffers:
            assert (ours[1] == 1).all()
            assert (ours[499] == 499).all()
        rings = cluster.hosts[0].daemon.status()["rings"]
        assert next(ring["ranks"][0]["segments"] for ring in rings if ring["job"] == "j") <= 4


async def test_more_descriptors_than_messages(runtime_dir: Path) -> None:
    async with cluster_with_bystanders(runtime_dir) as cluster:
        sock = await connect_unix(cluster.hosts[0].socket, "test")
        descriptors = [memfd(4096) for _ in range(8)]
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        sock.sendmsg([b"\x00"], rights)
        assert "descriptors" in await cut_off(ControlStream(sock))
        for descriptor in descriptors:
            os.close(descriptor)


async def test_a_process_that_does_not_read_is_cut_off(runtime_dir: Path) -> None:
    """Its answers fill its socket and then the daemon's bounded queue; the daemon does not wait for it."""
    async with cluster_with_bystanders(runtime_dir) as cluster:
        sock = await connect_unix(cluster.hosts[0].socket, "test")
        stream = ControlStream(sock, output_bytes_max=1 << 30)
        with suppress(EndOfChannel):
            while True:
                await stream.send(Status(id=1))
        stream.close()


async def test_status_needs_no_job(runtime_dir: Path) -> None:
    async with cluster_with_bystanders(runtime_dir) as cluster, raw(cluster.hosts[1]) as stream:
        await stream.send(Status(id=9))
        reply = await stream.receive()
        assert isinstance(reply, StatusReply)
        assert reply.id == 9
        assert reply.body["role"] == "host"
        assert reply.body["name"] == "h1"
        assert reply.body["switch"]["connected"]
        (ring,) = reply.body["rings"]
        ranks = [rank["rank"] for rank in ring["ranks"]]
        assert (ring["job"], ranks, ring["phase"], ring["peers"]) == (
            "bystanders",
            [1],
            "running",
            ["h0", "h1"],
        )
        assert ring["operations_done"] == 1
        assert reply.body["nic"]["packets_sent"] > 0


# --- configuration


async def never(port_path: str) -> Nic:
    raise AssertionError("no NIC is needed here")


async def test_a_second_daemon_at_the_same_socket(runtime_dir: Path) -> None:
    async with cluster_with_bystanders(runtime_dir) as cluster:
        with pytest.raises(ConfigError, match=r"h0\.sock"):
            await run_host(cluster.hosts[0].settings, open_nic=never)


async def test_a_host_name_that_is_taken(runtime_dir: Path) -> None:
    """Refused at once for good reason, and again: not the echo of an earlier life of the same host."""
    async with cluster_with_bystanders(runtime_dir) as cluster:
        settings = HostSettings.model_validate(
            {"name": "h0", "ip": "10.0.0.9", "dir": runtime_dir, "listen": runtime_dir / "other.sock"}
        )
        with pytest.RaisesGroup(pytest.RaisesExc(ConfigError, match="h0"), flatten_subgroups=True):
            await run_host(settings, open_nic=never)
        assert not (runtime_dir / "other.sock").exists()
        assert cluster.hosts[0].socket.exists()
