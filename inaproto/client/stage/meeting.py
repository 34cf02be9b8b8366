"""How the ranks of one host meet: rank 0 makes the mapping and hands it out over a UNIX socket.

Rank 0 listens at a path that all know. Each other rank says who it is and what it expects (:class:`Terms`);
when all have come, rank 0 makes one memfd, the eventfds and the pipes of
:mod:`inaproto.client.stage.barrier`, and sends each rank its own by SCM_RIGHTS. Then the sockets are closed
and the path is removed. Nothing has a name in ``/dev/shm``: when the last process ends, the kernel frees
everything.

Invariants: the memfd is sealed against shrinking and wholly allocated before anybody maps it, and every rank
checks that it is, because touching a page behind the end of a file, or one that cannot be had, is SIGBUS.
Only processes of the same user are let in. Descriptors that came with a refused or broken message are closed.
"""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import hashlib
import mmap
import os
import select
import socket
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from inaproto.client import huge_pages
from inaproto.client.stage.barrier import Descriptors
from inaproto.client.stage.layout import RANKS_MAX, Layout
from inaproto.client.stage.waits import Clock, Steps, Wait
from inaproto.core.plan.reduction_plan import ReductionPlan
from inaproto.errors import ConfigError, JobError, JoinRefused, OperationTimeout, RankLost
from inaproto.units import UNIX_PATH_BYTES_MAX

RETRY_S: Final = 0.01
_MAGIC: Final = 0x494E4153
_VERSION: Final = 4
_HELLO: Final = struct.Struct(">IBxHHxxI16s")
"""magic, version, rank, ranks, chunk_bytes, digest of the plan"""
_ANSWER: Final = struct.Struct(">IB?")
"""magic, version, welcome; the reason follows if not"""
_MESSAGE_BYTES_MAX: Final = 4096
_STRANGERS_MAX: Final = 2 * RANKS_MAX
_EVENTFD_FLAGS: Final = sum(getattr(os, name, 0) for name in ("EFD_SEMAPHORE", "EFD_NONBLOCK", "EFD_CLOEXEC"))
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@dataclass(frozen=True, slots=True)
class Terms:
    """What all ranks of a stage must agree on."""

    plan: ReductionPlan
    layout: Layout

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(str(self.plan).encode()).digest()[:16]

    def hello(self, rank: int) -> bytes:
        layout = self.layout
        return _HELLO.pack(_MAGIC, _VERSION, rank, layout.ranks, layout.chunk_bytes, self.digest)


@dataclass(slots=True)
class Share:
    """A rank's share of what the meeting made."""

    memory: mmap.mmap
    descriptors: Descriptors


@dataclass(slots=True)
class _Meeting:
    """Rank 0's side, until all have come."""

    terms: Terms
    listener: socket.socket
    epoll: select.epoll
    strangers: dict[int, socket.socket]
    """Who has not said yet who it is, by descriptor."""
    guests: dict[int, socket.socket]

    def close(self) -> None:
        for sock in (*self.strangers.values(), *self.guests.values(), self.listener):
            sock.close()
        self.epoll.close()


# --- rank 0


def hosting(path: Path, terms: Terms, timeout: float, clock: Clock) -> Steps[Share]:
    """Let all others in, and give each its share. Raises ``OperationTimeout`` naming who did not come."""
    until = clock() + timeout
    listener = _listen(path, terms.layout.ranks)
    made = os.lstat(path)
    meeting = _Meeting(terms, listener, select.epoll(), {}, {})
    try:
        meeting.epoll.register(listener, select.EPOLLIN)
        while len(meeting.guests) < terms.layout.ranks - 1:
            if clock() >= until:
                raise _nobody_came(meeting, timeout)
            yield Wait(meeting.epoll, until)
            for descriptor, _ in meeting.epoll.poll(0):
                _attend(meeting, descriptor)
        return _share_out(meeting)
    finally:
        meeting.close()
        _remove(path, made)


def _attend(meeting: _Meeting, descriptor: int) -> None:
    if descriptor == meeting.listener.fileno():
        with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
            sock = meeting.listener.accept()[0]
            sock.setblocking(False)
            if len(meeting.strangers) >= _STRANGERS_MAX or _user_of(sock) != os.geteuid():
                sock.close()
            else:
                meeting.strangers[sock.fileno()] = sock
                meeting.epoll.register(sock, select.EPOLLIN)
    elif descriptor in meeting.strangers:
        _hear(meeting, meeting.strangers.pop(descriptor))
    else:
        for rank, sock in list(meeting.guests.items()):
            if sock.fileno() == descriptor:  # it said all it had to: it ended, and may come again
                sock.close()
                del meeting.guests[rank]


def _hear(meeting: _Meeting, sock: socket.socket) -> None:
    try:
        hello = sock.recv(_MESSAGE_BYTES_MAX)
    except BlockingIOError:  # this was meant for one that had its descriptor before
        meeting.strangers[sock.fileno()] = sock
        return
    except OSError:
        hello = b""
    refusal = _refusal(meeting, hello)
    if refusal is None:
        meeting.guests[_HELLO.unpack(hello)[2]] = sock
        return
    with contextlib.suppress(OSError):
        sock.send(_ANSWER.pack(_MAGIC, _VERSION, False) + refusal.encode()[: _MESSAGE_BYTES_MAX // 2])
    sock.close()


def _refusal(meeting: _Meeting, hello: bytes) -> str | None:
    if len(hello) != _HELLO.size:
        return "that is no greeting of a shared-memory stage"
    magic, version, rank, ranks, chunk_bytes, digest = _HELLO.unpack(hello)
    mine = meeting.terms.layout
    if (magic, version) != (_MAGIC, _VERSION):
        return "that is no greeting of a shared-memory stage of this version"
    if ranks != mine.ranks or not 0 < rank < ranks:
        return f"it calls itself rank {rank} of {ranks}; rank 0 expects ranks 1 to {mine.ranks - 1}"
    if chunk_bytes != mine.chunk_bytes:
        return f"rank {rank} has chunks of {chunk_bytes} bytes, rank 0 of {mine.chunk_bytes}"
    if digest != meeting.terms.digest:
        return f"rank {rank} has another reduction plan than rank 0, whose plan is {meeting.terms.plan}"
    if rank in meeting.guests:
        return f"rank {rank} has come already"
    return None


def _nobody_came(meeting: _Meeting, timeout: float) -> OperationTimeout:
    missing = [str(rank) for rank in range(1, meeting.terms.layout.ranks) if rank not in meeting.guests]
    names = f"rank{'s' * (len(missing) > 1)} {', '.join(missing)}"
    text = f"{names} of {meeting.terms.layout.ranks} did not come within {timeout:g} s"
    for sock in meeting.guests.values():
        with contextlib.suppress(OSError):
            sock.send(_ANSWER.pack(_MAGIC, _VERSION, False) + text.encode())
    return OperationTimeout(f"shared-memory stage: {text}; start them, or give a longer timeout")


def _share_out(meeting: _Meeting) -> Share:
    """Make everything, and send each rank its part.

    A rank that has ended meanwhile does not matter here: its pipe has no writing end any more, and the first
    barrier says so.
    """
    ranks = meeting.terms.layout.ranks
    nbytes = meeting.terms.layout.nbytes
    with contextlib.ExitStack() as opened:

        def keep(descriptor: int) -> int:
            opened.callback(os.close, descriptor)
            return descriptor

        try:
            memfd = keep(_make_memfd(nbytes))
            counters = [keep(os.eventfd(0, _EVENTFD_FLAGS)) for _ in range(ranks)]
            pipes = [(keep(reading), keep(writing)) for reading, writing in (os.pipe() for _ in range(ranks))]
        except OSError as error:
            raise _no_room(nbytes, error) from None
        memory = _map(memfd, nbytes)
        for rank, sock in meeting.guests.items():
            others = [pipes[other][0] for other in range(ranks) if other != rank]
            rights = array.array("i", [memfd, counters[0], counters[rank], pipes[rank][1], *others])
            with contextlib.suppress(OSError):
                answer = _ANSWER.pack(_MAGIC, _VERSION, True)
                sock.sendmsg([answer], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        opened.pop_all()
    for descriptor in (memfd, pipes[0][0], *(writing for _, writing in pipes[1:])):
        os.close(descriptor)
    others_ends = {rank: reading for rank, (reading, _) in enumerate(pipes) if rank}
    return Share(memory, Descriptors(counters[0], counters[1:], pipes[0][1], others_ends))


def _make_memfd(nbytes: int) -> int:
    descriptor = os.memfd_create("inaproto-shm", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, nbytes)
        with huge_pages.map_shared(descriptor, nbytes) as memory:
            huge_pages.allocate(descriptor, memory, nbytes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _no_room(nbytes: int, error: OSError) -> JobError:
    return JobError(f"shared-memory stage: cannot make {nbytes} bytes of shared memory: {error.strerror}")


# --- all others


def joining(path: Path, rank: int, terms: Terms, timeout: float, clock: Clock) -> Steps[Share]:
    """Find rank 0, and get this rank's share of what it makes.

    Raises ``JoinRefused`` with rank 0's reason, ``RankLost`` when it ended, ``OperationTimeout``.
    """
    until = clock() + timeout
    sock = yield from _reach(path, rank, timeout, until, clock)
    try:
        if _user_of(sock) not in (0, os.geteuid()):
            raise JoinRefused(f"rank {rank}: {path} belongs to another user's process")
        with contextlib.suppress(OSError):  # what rank 0 said before it went is the better reason
            sock.send(terms.hello(rank))
        while True:
            try:
                return _receive(sock, rank, terms)
            except BlockingIOError:
                if clock() >= until:
                    raise OperationTimeout(
                        f"rank {rank}: not all of the {terms.layout.ranks} ranks came to {path} within "
                        f"{timeout:g} s; rank 0 knows who is missing"
                    ) from None
                yield Wait(sock, until)
    finally:
        sock.close()


def _reach(path: Path, rank: int, timeout: float, until: float, clock: Clock) -> Steps[socket.socket]:
    require_path_fits(path)
    while True:
        sock = _new_socket()
        try:
            sock.connect(os.fspath(path))
            return sock
        except OSError as error:
            sock.close()
            if error.errno not in (errno.ENOENT, errno.ECONNREFUSED, errno.EAGAIN):
                raise JobError(f"rank {rank}: cannot reach rank 0 at {path}: {error.strerror}") from None
        if clock() >= until:
            raise OperationTimeout(
                f"rank {rank}: rank 0 did not open {path} within {timeout:g} s; start it, or see that all "
                "ranks name the same path"
            )
        yield Wait(None, min(until, clock() + RETRY_S))


def _receive(sock: socket.socket, rank: int, terms: Terms) -> Share:
    """Raises ``BlockingIOError`` when rank 0 has not answered yet."""
    ranks = terms.layout.ranks
    expected = ranks + 3
    try:
        answer, ancillary, _, _ = sock.recvmsg(
            _MESSAGE_BYTES_MAX, socket.CMSG_SPACE(expected * 4), socket.MSG_CMSG_CLOEXEC
        )
    except ConnectionResetError:
        answer, ancillary = b"", []
    found = array.array("i")
    for _, _, packed in ancillary:
        found.frombytes(packed[: len(packed) - len(packed) % found.itemsize])
    with contextlib.ExitStack() as received:
        for descriptor in found:
            received.callback(os.close, descriptor)
        if not answer:
            raise RankLost(f"rank {rank}: rank 0 ended before all ranks had come")
        if len(answer) < _ANSWER.size or _ANSWER.unpack_from(answer)[:2] != (_MAGIC, _VERSION):
            raise JoinRefused(f"rank {rank}: what answers is no rank 0 of a shared-memory stage")
        if not _ANSWER.unpack_from(answer)[2]:
            raise JoinRefused(f"rank {rank}: {answer[_ANSWER.size :].decode(errors='replace')}")
        if len(found) != expected:
            raise JobError(
                f"rank {rank}: {len(found)} of {expected} descriptors came; raise the limit of open files "
                "(ulimit -n)"
            )
        memory = _map(found[0], terms.layout.nbytes)
        received.pop_all()
    os.close(found[0])
    others = [other for other in range(ranks) if other != rank]
    return Share(
        memory, Descriptors(found[1], [found[2]], found[3], dict(zip(others, found[4:], strict=True)))
    )


# --- both


def _map(descriptor: int, nbytes: int) -> mmap.mmap:
    """Map and pre-fault. Raises ``JobError`` for memory that could be taken away."""
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        size = os.fstat(descriptor).st_size
        page = os.fstatvfs(descriptor).f_bsize
    except OSError as error:
        raise JobError(f"shared-memory stage: what was handed over is no memfd: {error.strerror}") from None
    if not seals & fcntl.F_SEAL_SHRINK or size < nbytes or page != mmap.PAGESIZE:
        raise JobError(
            f"shared-memory stage: a memfd of {size} bytes in pages of {page} with the seals {seals:#x}; it "
            f"must have {nbytes}, in pages of {mmap.PAGESIZE}, and be sealed against shrinking"
        )
    try:
        return huge_pages.map_shared(descriptor, nbytes, mmap.MAP_SHARED | mmap.MAP_POPULATE)
    except OSError as error:
        raise _no_room(nbytes, error) from None


def require_path_fits(path: Path) -> None:
    size = len(os.fsencode(path))
    if size > UNIX_PATH_BYTES_MAX:
        raise ConfigError(
            f"shared-memory stage: the path {path} is {size} bytes long, UNIX sockets allow "
            f"{UNIX_PATH_BYTES_MAX}; choose a shorter one"
        )


def _new_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)


def _listen(path: Path, ranks: int) -> socket.socket:
    """Replaces the socket of a rank 0 that was killed."""
    require_path_fits(path)
    _remove_stale(path)
    sock = _new_socket()
    try:
        sock.bind(os.fspath(path))
        sock.listen(ranks)
    except OSError as error:
        sock.close()
        raise ConfigError(f"shared-memory stage: cannot make {path}: {error.strerror}") from None
    return sock


def _remove_stale(path: Path) -> None:
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise ConfigError(f"shared-memory stage: {path} exists and is not a socket; choose another path")
        with _new_socket() as probe:
            probe.connect(os.fspath(path))
    except FileNotFoundError:
        return
    except ConnectionRefusedError:
        path.unlink(missing_ok=True)
        return
    except OSError as error:
        if error.errno != errno.EAGAIN:
            raise ConfigError(f"shared-memory stage: cannot use {path}: {error.strerror}") from None
    raise ConfigError(f"shared-memory stage: another rank 0 already listens at {path}; choose another path")


def _remove(path: Path, made: os.stat_result) -> None:
    with contextlib.suppress(OSError):
        found = os.lstat(path)
        if (found.st_dev, found.st_ino) == (made.st_dev, made.st_ino):
            path.unlink()


def _user_of(sock: socket.socket) -> int:
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", raw)
    return int(user)
