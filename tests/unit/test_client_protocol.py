"""The client's conversation with its daemon, sans-IO; its shared memory; what it refuses to send."""

from __future__ import annotations

import copy
import fcntl
import gc
import os
import socket
from collections.abc import Generator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from inaproto.client.arrays import check_array, check_out, wire_dtype, wire_op
from inaproto.client.blocking_communicator import BlockingCommunicator, connect_blocking
from inaproto.client.channel import Channel, JobRank, Wait
from inaproto.client.joining import find_socket
from inaproto.client.memory import ALIGNMENT, SharedMemory
from inaproto.client.model import connect_model_blocking
from inaproto.client.protocol import ClientProtocol, PendingOperation
from inaproto.client.waits import explain_join
from inaproto.errors import (
    DaemonUnreachable,
    JobError,
    LocalMisuse,
    OperationTimeout,
    RankLost,
    TensorMismatch,
)
from inaproto.wire.control import ControlDecoder
from inaproto.wire.control_messages import Message, StatusReply, decode_message, encode_message, error_message
from inaproto.wire.ina_header import Dtype, Op
from inaproto.wire.messages.client import AllReduce, Done, Join, Joined, Leave, Ok

# --- conversation


def messages(data: bytes) -> list[Message]:
    return [decode_message(record) for record in ControlDecoder().feed(data)]


def start(protocol: ClientProtocol, memory: object = None) -> PendingOperation:
    operation, _ = protocol.all_reduce(
        segment=0, offset=0, nbytes=8, dtype=Dtype.F32, op=Op.SUM, shape=(2,), memory=memory
    )
    return operation


def test_joins_and_numbers_operations() -> None:
    protocol = ClientProtocol()
    (join,) = messages(protocol.join(job="j", rank=1, size=2, key="k", pid=7))
    assert isinstance(join, Join)
    assert (join.job, join.rank, join.size, join.key, join.pid) == ("j", 1, 2, "k", 7)
    protocol.receive(encode_message(Joined(id=join.id, ring_id=3, rank=1, size=2)))
    assert protocol.joined is not None
    for index in range(3):
        operation, data = protocol.all_reduce(
            segment=4, offset=64, nbytes=8, dtype=Dtype.F16, op=Op.MAX, shape=(2, 2), memory=None
        )
        (sent,) = messages(data)
        assert isinstance(sent, AllReduce)
        assert operation.op_index == sent.op_index == index
        assert (sent.segment, sent.offset, sent.nbytes, sent.shape) == (4, 64, 8, (2, 2))
        assert (sent.dtype, sent.op) == (Dtype.F16, Op.MAX)


def test_operations_end_in_any_order_and_let_their_memory_go() -> None:
    protocol = ClientProtocol()
    first, second = start(protocol, object()), start(protocol, object())
    protocol.receive(encode_message(Done(op_index=1, path="switch", ns=55)))
    assert (first.ended, second.ended, second.daemon_ns, second.path) == (False, True, 55, "switch")
    assert first.memory is not None
    assert second.memory is None
    assert protocol.pending == 1


def test_an_error_of_an_operation_ends_it_alone() -> None:
    protocol = ClientProtocol()
    first, second = start(protocol), start(protocol)
    protocol.receive(encode_message(error_message(TensorMismatch("differ"), op_index=0)))
    assert isinstance(first.error, TensorMismatch)
    assert not second.ended
    assert protocol.failure is None


def test_an_error_of_the_job_ends_all_and_what_comes_later() -> None:
    protocol = ClientProtocol()
    first = start(protocol)
    protocol.receive(encode_message(error_message(RankLost("rank 2 is gone"))))
    protocol.receive(encode_message(error_message(TensorMismatch("too late"))))
    for operation in (first, start(protocol)):
        assert operation.ended
        assert isinstance(operation.error, RankLost)
        assert str(operation.error) == "rank 2 is gone"


def test_a_daemon_that_ends_or_talks_nonsense_fails_the_communicator() -> None:
    for harm in ("end", "nonsense"):
        protocol = ClientProtocol()
        operation = start(protocol)
        if harm == "end":
            protocol.end_of_stream("it closed the connection")
        else:
            protocol.receive(b"\xff" * 8)
        assert isinstance(operation.error, DaemonUnreachable)


def test_leaving_is_confirmed_by_ok_and_not_by_the_ok_of_a_buffer() -> None:
    protocol = ClientProtocol()
    protocol.buffer(0, 4096)
    protocol.receive(encode_message(Ok(id=1)))
    assert not protocol.has_left
    (leave,) = messages(protocol.leave())
    assert isinstance(leave, Leave)
    protocol.receive(encode_message(Ok(id=1)))
    assert not protocol.has_left
    protocol.receive(encode_message(Ok(id=leave.id)))
    assert protocol.has_left


def test_status_is_the_answer_to_the_last_question() -> None:
    protocol = ClientProtocol()
    protocol.ask_status()
    assert protocol.status is None
    protocol.receive(encode_message(StatusReply(id=1, body={"name": "h0"})))
    assert protocol.status == {"name": "h0"}


# --- memory


def test_regions_in_use_never_overlap_and_come_back() -> None:
    memory = SharedMemory()
    sizes = [0, 1, 63, 64, 65, 5000, 5000, 1 << 20, (1 << 20) + 1, 3 << 20, 3 << 20]
    regions = [memory.allocate(size) for size in sizes]
    arrays = [region.array((region.nbytes,), np.dtype(np.uint8)) for region in regions]
    for number, array in enumerate(arrays):
        array[:] = number
        assert regions[number].offset % ALIGNMENT == 0
    for number, array in enumerate(arrays):
        assert (array == number).all()
    places = {(region.segment.number, region.offset) for region in regions}
    assert len(places) == len(sizes)
    used = memory.nbytes
    del arrays, regions
    gc.collect()
    again = [memory.allocate(size) for size in sizes]
    assert {(region.segment.number, region.offset) for region in again} == places
    assert memory.nbytes == used
    memory.close()


def test_segments_are_sealed_against_shrinking_and_announced_once() -> None:
    memory = SharedMemory()
    memory.register(10_000)
    (segment,) = memory.take_unannounced()
    assert memory.take_unannounced() == []
    assert fcntl.fcntl(segment.descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
    with pytest.raises(PermissionError):
        os.ftruncate(segment.descriptor, 0)
    assert segment.nbytes >= 10_000
    memory.close()


def test_registered_buffers_and_parts_of_them_are_found() -> None:
    memory = SharedMemory()
    region = memory.register(4000)
    array = region.array((10, 100), np.dtype(np.float32))
    other = memory.register(64).array((16,), np.dtype(np.float32))
    found = memory.find(array[3:5])
    assert found is not None
    assert (found.segment, found.offset, found.nbytes) == (region.segment, 3 * 400, 800)
    beside = memory.find(other)
    assert beside is not None
    assert (beside.segment, beside.nbytes) == (region.segment, 64)
    assert beside.offset >= 4000
    assert memory.find(np.zeros(4)) is None
    assert memory.find(memory.allocate(64).array((16,), np.dtype(np.float32))) is None, (
        "pooled, not registered"
    )
    memory.close()


def test_buffers_share_segments_and_do_not_overlap() -> None:
    memory = SharedMemory()
    sizes = [1, 0, 64, 65, 4096, 5000, 1 << 20, (1 << 20) + 8, 3 << 20] * 40
    arrays = [memory.register(size).array((size,), np.dtype(np.uint8)) for size in sizes]
    for number, array in enumerate(arrays):
        assert not array.any()
        array[:] = number % 251 + 1
    for number, array in enumerate(arrays):
        assert (array == number % 251 + 1).all()
        found = memory.find(array)
        assert found is not None
        assert found.offset % ALIGNMENT == 0
        assert found.nbytes == array.nbytes
    assert len(memory.take_unannounced()) < 128
    assert memory.nbytes < 1.3 * sum(sizes)


def test_ten_thousand_small_buffers_take_a_handful_of_segments() -> None:
    memory = SharedMemory()
    for _ in range(10_000):
        memory.register(256)
    assert len(memory.take_unannounced()) <= 3


def test_at_the_limit_of_segments_larger_regions_are_used_again_and_then_the_caller_is_told() -> None:
    memory = SharedMemory(segments_max=2)
    held = [memory.allocate(2 << 20), memory.allocate(3 << 20)]
    with pytest.raises(LocalMisuse, match=r"2 segments.*fewer, larger buffers, or wait"):
        memory.allocate(1 << 20)
    with pytest.raises(LocalMisuse, match="2 segments"):
        memory.register(8)
    place = (held[1].segment.number, held[1].offset)
    del held[1]
    gc.collect()
    for _ in range(3):
        again = memory.allocate(1 << 20)
        assert (again.segment.number, again.offset) == place
        del again
        gc.collect()
    memory.close()


# --- what callers get wrong


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("float32", Dtype.F32),
        ("int32", Dtype.I32),
        ("float16", Dtype.F16),
        ("float64", Dtype.F64),
        ("int64", Dtype.I64),
    ],
)
def test_dtypes(name: str, code: Dtype) -> None:
    assert wire_dtype(np.dtype(name)) is code


def test_bfloat16_is_that_of_ml_dtypes() -> None:
    assert wire_dtype(np.dtype(ml_dtypes.bfloat16)) is Dtype.BF16


@pytest.mark.parametrize("dtype", [">u4", "u4", "i2", "c8", "O", "U4", "?", "f4,f4"])
def test_other_dtypes_are_refused_with_what_to_do(dtype: str) -> None:
    with pytest.raises(LocalMisuse, match="convert to one of float32"):
        wire_dtype(np.dtype(dtype))


def test_numbers_of_the_other_byte_order_are_refused_with_what_to_do() -> None:
    with pytest.raises(LocalMisuse, match=r"convert with array\.astype\('float32'\)"):
        wire_dtype(np.dtype(">f4"))


def test_arrays_that_cannot_go_are_refused_with_what_to_do() -> None:
    with pytest.raises(LocalMisuse, match="ascontiguousarray"):
        check_array(np.zeros((4, 4))[:, 1], "array")
    with pytest.raises(LocalMisuse, match="is a list, not a numpy array"):
        check_array([1.0], "array")
    with pytest.raises(LocalMisuse, match="not one of sum, max, min"):
        wire_op("avg")
    good = np.zeros((2, 3), np.float32)
    for out in (np.zeros((3, 2), np.float32), np.zeros((2, 3)), np.zeros((2, 6), np.float32)[:, ::2]):
        with pytest.raises(LocalMisuse, match="out"):
            check_out(out, good)
    frozen = good.copy()
    frozen.flags.writeable = False
    with pytest.raises(LocalMisuse, match="read-only"):
        check_out(frozen, good)


@pytest.mark.parametrize(
    "arguments",
    [
        {"job": ""},
        {"job": "x" * 200},
        {"job": 3},
        {"rank": -1},
        {"rank": 2},
        {"rank": "0"},
        {"rank": True},
        {"size": 0},
        {"size": 1 << 16},
        {"size": 2.0},
        {"key": b"x"},
        {"key": "x" * 300},
        {"timeout": -1},
        {"timeout": "soon"},
        {"socket": 3},
        {"socket": "/tmp/" + "x" * 200},
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_done(arguments: dict[str, object]) -> None:
    given: dict[str, object] = {"job": "j", "rank": 0, "size": 2, "socket": "/nonexistent"} | arguments
    with pytest.raises(LocalMisuse, match=f"connect: .*{next(iter(arguments))}"):
        connect_blocking(**given)  # type: ignore[arg-type]


def test_numpy_integers_are_ranks_too() -> None:
    with pytest.raises(DaemonUnreachable):
        connect_blocking("j", np.int64(0), size=np.int32(2), socket="/nonexistent", timeout=0)  # type: ignore[arg-type]


def test_a_missing_daemon_is_named_with_how_to_start_it(
    runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = runtime_dir / "h0.sock"
    with pytest.raises(DaemonUnreachable) as info:
        connect_blocking("digits", 1, size=2, socket=path, timeout=0)
    for part in (str(path), "rank 1", "digits", "No such file", "inaproto host", "INAPROTO_HOST_SOCKET"):
        assert part in str(info.value)
    monkeypatch.delenv("INAPROTO_HOST_SOCKET", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime_dir))
    with pytest.raises(DaemonUnreachable, match="no host daemon's socket in"):
        connect_blocking("digits", 1, size=2, timeout=0)


def test_the_only_socket_of_the_run_directory_is_taken_and_two_are_not_guessed(
    runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("INAPROTO_HOST_SOCKET", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime_dir))
    directory = runtime_dir / "inaproto"
    directory.mkdir()
    for name in ("control.sock", "ports.sock", "h0.sock"):
        (directory / name).touch()
    with pytest.raises(DaemonUnreachable, match=r"h0\.sock: Connection refused"):
        connect_blocking("j", 0, size=2, timeout=0)
    (directory / "h1.sock").touch()
    with pytest.raises(DaemonUnreachable, match=r"several .*h0\.sock, h1\.sock.*choose one"):
        connect_blocking("j", 0, size=2, timeout=0)
    monkeypatch.setenv("INAPROTO_HOST_SOCKET", str(directory / "h9.sock"))
    with pytest.raises(DaemonUnreachable, match=r"h9\.sock: No such file"):
        connect_blocking("j", 0, size=2, timeout=0)


def test_a_run_directory_of_another_user_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under /tmp anybody can make the directory in which the only socket would be taken."""
    directory = tmp_path / "inaproto"
    directory.mkdir()
    (directory / "h0.sock").touch()
    environment = {"XDG_RUNTIME_DIR": str(tmp_path)}
    assert find_socket(environment) == (directory / "h0.sock", "")
    owner = os.stat(directory).st_uid
    for user in (owner, owner + 1):  # whose process it is
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        found, why = find_socket(environment)
        assert (found is None) == (owner not in (user, 0))
    if os.getuid() == 0:
        os.chown(directory, 4711, 4711)
        monkeypatch.setattr(os, "geteuid", lambda: 4712)
        found, why = find_socket(environment)
        assert found is None
        assert "belongs to user 4711, not to 4712" in why
        os.chown(directory, 0, 0)
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "inaproto").symlink_to(directory)
        os.chown(tmp_path / "mine" / "inaproto", 4711, 4711, follow_symlinks=False)
        assert find_socket({"XDG_RUNTIME_DIR": str(tmp_path / "mine")})[0] is None, "a link of a stranger"
    named = {"INAPROTO_HOST_SOCKET": str(directory / "h9.sock")}
    assert find_socket(environment | named)[0] == directory / "h9.sock", "named by the user: not guessed"


def test_a_socket_may_be_named_by_its_directory(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As daemons and commands take it by ``--dir``."""
    with pytest.raises(DaemonUnreachable, match=rf"no host daemon's socket in {runtime_dir};"):
        connect_blocking("j", 0, size=2, timeout=0, socket=runtime_dir)
    for name in ("control.sock", "ports.sock", "h0.sock"):
        (runtime_dir / name).touch()
    with pytest.raises(DaemonUnreachable, match=r"h0\.sock: Connection refused"):
        connect_blocking("j", 0, size=2, timeout=0, socket=runtime_dir)
    monkeypatch.setenv("INAPROTO_HOST_SOCKET", str(runtime_dir))
    with pytest.raises(DaemonUnreachable, match=r"h0\.sock: Connection refused"):
        connect_blocking("j", 0, size=2, timeout=0)
    with pytest.raises(DaemonUnreachable, match=r"h0\.sock: Connection refused"):
        connect_model_blocking("m", timeout=0, socket=runtime_dir)


def test_what_is_no_host_daemons_socket_is_called_what_it_is(runtime_dir: Path) -> None:
    (runtime_dir / "h0.sock").touch()
    with pytest.raises(DaemonUnreachable, match="Connection refused, as it is no socket"):
        connect_blocking("j", 0, size=2, timeout=0, socket=runtime_dir / "h0.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as frames:
        frames.bind(str(runtime_dir / "ports.sock"))
        frames.listen()
        with pytest.raises(DaemonUnreachable, match="takes the frames of hosts, and is a switch's"):
            connect_blocking("j", 0, size=2, socket=runtime_dir / "ports.sock")


def test_a_missing_runtime_directory_is_not_where_the_daemon_listens(tmp_path: Path) -> None:
    _, why = find_socket({"XDG_RUNTIME_DIR": str(tmp_path / "missing")})
    assert f"/tmp/inaproto-{os.getuid()}" in why


def test_a_closed_channel_has_no_descriptors_of_its_segments_and_sends_none() -> None:
    comm, daemon = communicator()
    segment = comm.channel.memory.register(10).segment
    comm.channel.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(segment.descriptor)
    the_channel(comm).announce_segment(segment)
    assert daemon.recv(1) == b""
    daemon.close()


def test_a_daemon_that_has_answered_once_is_not_said_to_be_silent() -> None:
    """It answers the first question of a join that waits in vain, and no later one."""
    comm, daemon = communicator()
    now = 0.0
    ring = {"job": "j", "ranks": [{"rank": 0}], "waiting_for": []}
    body = {"name": "h7", "switch": {"connected": True}, "rings": [ring]}
    error: JobError | None = None

    def explain() -> Generator[Wait, None, None]:
        nonlocal error
        error = yield from explain_join(the_channel(comm), 5.0, lambda: now)

    for number, wait in enumerate(explain()):
        assert wait.until is not None
        if number == 0:
            daemon.send(encode_message(StatusReply(id=1, body=body)))
        else:
            now = wait.until
    assert isinstance(error, OperationTimeout)
    assert "joined on host h7, but other ranks of 2 did not within 5 s" in str(error)
    daemon.close()
    comm.channel.close()


def the_channel(comm: BlockingCommunicator) -> Channel:
    assert isinstance(comm.channel, Channel)
    return comm.channel


def communicator() -> tuple[BlockingCommunicator, socket.socket]:
    """A communicator and the daemon's end of its socket."""
    mine, theirs = socket.socketpair()
    return BlockingCommunicator(Channel(mine, Path("test"), JobRank("j", 0, 2)), lambda: 0.0), theirs


def test_a_closed_communicator_ends_what_is_pending_and_refuses_more() -> None:
    comm, daemon = communicator()
    work = comm.all_reduce(np.zeros(4, np.float32))
    daemon.close()
    comm.close()
    with pytest.raises(JobError):
        work.wait()
    with pytest.raises(JobError):
        comm.all_reduce(np.zeros(4, np.float32))
    comm.close()


def test_a_communicator_is_neither_pickled_nor_copied() -> None:
    comm, daemon = communicator()
    with pytest.raises(LocalMisuse, match="pickled"):
        copy.copy(comm)  # goes the way of pickle
    daemon.close()
    comm.channel.close()


def test_a_registered_buffer_that_is_read_only_is_refused() -> None:
    comm, daemon = communicator()
    buffer = comm.buffer((4, 4), np.float32)
    view = buffer[1:2]
    view.flags.writeable = False
    with pytest.raises(LocalMisuse, match="in_place: array is read-only"):
        comm.all_reduce(view, in_place=True)
    with pytest.raises(LocalMisuse, match="dtype"):
        comm.buffer(4, np.complex64)
    with pytest.raises(LocalMisuse, match="shape"):
        comm.buffer((4, -1))
    daemon.close()
    comm.channel.close()


def test_a_mismatch_says_what_this_rank_called() -> None:
    """Digests only tell that calls differ: each rank adds its own, and a person sees the difference."""
    protocol = ClientProtocol()
    operation, _ = protocol.all_reduce(
        segment=0, offset=0, nbytes=24, dtype=Dtype.F32, op=Op.SUM, shape=(2, 3), memory=None
    )
    protocol.fail(TensorMismatch("ranks differ"))
    assert str(operation.error) == "ranks differ; all-reduce 0 of this rank is sum of float32 (2, 3)"
    protocol = ClientProtocol()
    operation, _ = protocol.all_reduce(
        segment=0, offset=0, nbytes=24, dtype=Dtype.F32, op=Op.SUM, shape=(2, 3), memory=None
    )
    protocol.fail(TensorMismatch("rank 0: sum of float32 (2, 3); rank 1: sum of float32 (3,)"))
    assert str(operation.error).endswith("rank 1: sum of float32 (3,)"), "it is told already"
