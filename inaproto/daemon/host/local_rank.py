"""One rank of a job on its host: the training process, its shared memory, the all-reduces that it has called.

It belongs to the ring of its host (:mod:`inaproto.daemon.host.ring`), which carries its operations out.

Invariants: a rank ends once, and gives its memory back then. One that has left in good order keeps it until
its ring ends: the transport may still have to repeat what a neighbour lacks.
"""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from inaproto.core.host.meeting_place import MeetingPlace
from inaproto.core.host.operations import Operation
from inaproto.core.host.ranks import HostedRank
from inaproto.daemon.host.ring_orders import Tensor, next_to_tell
from inaproto.daemon.net.shared_buffers import SharedBuffer, check_request
from inaproto.errors import FabricError, JobError, LocalMisuse
from inaproto.ports import Nic, PortClosed
from inaproto.units import Instant
from inaproto.wire.control_messages import Gone, Regrouped
from inaproto.wire.messages.client import AllReduce, DonePath, Filled, Join


class Ring(Protocol):
    """Whoever carries its operations out."""

    @property
    def nic(self) -> Nic: ...
    @property
    def ring_id(self) -> int | None: ...
    @property
    def may_have_successor(self) -> bool:
        """If this daemon ends, its ranks go on by another one."""

    def submit(self, rank: LocalRank, request: AllReduce) -> None: ...
    def filled(self, rank: LocalRank, told: Filled) -> None: ...
    def leave(self, rank: LocalRank) -> None: ...
    def gone(self, rank: LocalRank, reason: str) -> None: ...
    def gone_after_end(self, rank: LocalRank, reason: str) -> Gone: ...


class Keeps(NamedTuple):
    """What a process is given to keep for a successor of this daemon; nothing, where that time is 0."""

    descriptor: int
    """Of the journal's memory; open as long as the rank's ring."""
    successor_ms: int
    """How long it waits for a successor."""


class Owner(Protocol):
    """Whoever speaks to the training process."""

    def joined(
        self,
        ring_id: int,
        operations_max: int,
        *,
        local: bool,
        fills: bool,
        keeps: Keeps,
        meets: MeetingPlace,
    ) -> None:
        """``local``: all ranks are here, and may meet as ``meets`` says."""

    def resumed(self) -> None:
        """The rank that came back is in its job again."""

    def waits(self, refused: str) -> None:
        """Ranks that it waits for while it joins were refused: which, and why."""

    def held(self) -> AbstractContextManager[None]:
        """What is said meanwhile is said together, at the end."""

    def results_taken(self, op_index: int, nbytes: int) -> None:
        """The first ``nbytes`` of an operation are its result."""

    def operation_done(self, op_index: int, path: DonePath, duration_ns: int) -> None: ...
    def rank_failed(self, error: JobError) -> None:
        """The rank has failed, and with it every operation that has not ended."""

    def rank_closed(self) -> None: ...
    def other_left(self, number: int) -> None:
        """Another rank of the job, whose ranks are all here, has left in good order."""

    def regrouped(self, message: Regrouped) -> None:
        """Who goes on after a rank was lost."""

    def regroup_refused(self, error: JobError) -> None: ...
    def announce_again(self) -> None: ...
    def process_is_gone(self) -> bool:
        """Whether the process has closed its connection, even if what it sent before is not read yet."""


class LocalRank:
    """A rank from its ``Join`` to its end."""

    def __init__(self, join: Join, owner: Owner) -> None:
        self.meets = join.meets
        """Where it could meet others of its host."""
        self.join = replace(join, meets=())  # of no use to a successor of this daemon
        self.owner = owner
        self.ring: Ring | None = None
        self.hosted: HostedRank | None = None
        """What the core of its ring has of it."""
        self.segments: dict[int, SharedBuffer] = {}
        self.tensors: dict[int, Tensor] = {}
        """Tensors of the all-reduces that it has called and that have not ended."""
        self.fills = False
        """It may call all-reduces whose tensors are not there as a whole."""
        self.has_ended = False
        self.returns = False
        """It comes back, and others of its job and host may not be here yet."""

    def __str__(self) -> str:
        return f"rank {self.number} of job {self.join.job!r} (pid {self.join.pid})"

    @property
    def number(self) -> int:
        """Its rank in the job."""
        return self.join.rank

    @property
    def has_left(self) -> bool:
        """In good order: it has all its results and calls no more."""
        return self.hosted is not None and self.hosted.has_left

    def why_not_beside(self) -> str:
        """Why no other process can have its number now."""
        pid = self.join.pid
        if self.has_left:
            return f"process {pid} has left it, but other ranks have not yet; try again when they have"
        return f"the rank is held by process {pid} on this host; end that process or take another rank"

    @property
    def called(self) -> int:
        """All-reduces."""
        return 0 if self.hosted is None else self.hosted.called

    def call(self, request: AllReduce, now: Instant, operations_max: int) -> Operation:
        """Take its next all-reduce. Raises ``JobError`` for what no client library asks."""
        buffer = self.segments.get(request.segment)
        operation = check_request(self.number, request, buffer)
        if request.op_index != self.called:
            raise JobError(f"{self}: all_reduce {request.op_index} where {self.called} is next")
        if len(self.tensors) >= operations_max:
            raise JobError(f"{self}: {len(self.tensors)} all-reduces wait already; wait for one of them")
        if buffer is not None:
            filled, tell_at = operation.nbytes, operation.nbytes
            if operation.filled is not None:
                if not self.fills:
                    raise JobError(f"{self}: all_reduce {request.op_index} of a tensor that is not whole")
                filled, tell_at = operation.filled, next_to_tell(0, operation.nbytes)
            self.tensors[request.op_index] = Tensor(operation, buffer, request.offset, now, filled, tell_at)
        return operation

    def has_done(self, request: AllReduce, now: Instant) -> None:
        """It has the result of that since the daemon before this one, and has not heard so.

        Raises ``JobError``.
        """
        buffer = self.segments.get(request.segment)
        operation = check_request(self.number, request, buffer)
        if buffer is not None:
            whole = operation.nbytes
            self.tensors[request.op_index] = Tensor(operation, buffer, request.offset, now, whole, whole)

    def tell_done(self, before: int, path: DonePath, now: Instant) -> None:
        """Of its all-reduces before that one."""
        for op_index in sorted(index for index in self.tensors if index < before):
            self.done(op_index, path, now)

    def filled(self, told: Filled) -> bool:
        """Whether more is there of an all-reduce that has not ended. Raises ``JobError``."""
        if told.op_index >= self.called:
            raise JobError(f"{self}: bytes of all_reduce {told.op_index}, which it has not called")
        tensor = self.tensors.get(told.op_index)
        if tensor is None:
            return False
        if not tensor.filled <= told.nbytes <= tensor.operation.nbytes:
            raise JobError(
                f"{self}: {told.nbytes} bytes of all_reduce {told.op_index} are there, after {tensor.filled} "
                f"of {tensor.operation.nbytes}"
            )
        tensor.filled = told.nbytes
        return True

    def took(self, op_index: int, nbytes: int) -> None:
        """The first ``nbytes`` of its tensor are the result: its process hears of it now and then."""
        tensor = self.tensors.get(op_index)
        if tensor is not None and tensor.tell_at <= nbytes < tensor.operation.nbytes:
            tensor.tell_at = next_to_tell(nbytes, tensor.operation.nbytes)
            self.owner.results_taken(op_index, nbytes)

    def done(self, op_index: int, path: DonePath, now: Instant) -> None:
        """Its tensor holds the result."""
        self.owner.operation_done(op_index, path, now - self.tensors.pop(op_index).since)

    # --- memory

    async def share(self, buffer: SharedBuffer) -> None:
        """A segment of its process, which is registered with its NIC. That may take long, and meanwhile the
        rank may end, or get another NIC.

        Raises ``JobError`` where it cannot be registered.
        """
        if self.returns:
            self.segments[buffer.segment] = buffer  # registered with the NIC by which its ring goes on
            return
        while True:
            ring = self.ring
            if self.has_ended or ring is None:
                buffer.close()  # the process will read that its job has failed
                return
            nic = ring.nic
            try:
                await buffer.register_slowly(nic)
            except (LocalMisuse, FabricError) as error:
                buffer.close()
                raise JobError(
                    f"segment {buffer.segment} cannot be registered: {error}; use fewer, larger buffers"
                ) from None
            except PortClosed:  # it is registered with the NIC of the next fabric, as all others are
                pass
            except BaseException:
                buffer.close()
                raise
            if self.ring is ring and ring.nic is nic and not self.has_ended:
                self.segments[buffer.segment] = buffer
                return
            with contextlib.suppress(LocalMisuse, FabricError):  # that NIC may be closed
                buffer.deregister()
            buffer.nic = None

    def register(self, nic: Nic) -> None:
        """Its memory, with the NIC of the host's next fabric. Raises ``LocalMisuse`` when that is full."""
        for buffer in self.segments.values():
            buffer.register(nic)

    def deregister(self) -> None:
        for buffer in self.segments.values():
            buffer.deregister()

    def end(self) -> None:
        """Give its memory back."""
        self.has_ended = True
        for buffer in self.segments.values():
            buffer.close()
        self.segments.clear()
        self.tensors.clear()

    def fail(self, error: JobError) -> None:
        """Its job has failed, or it is not taken into it."""
        self.end()
        if self.has_left:
            self.owner.rank_closed()
        else:
            self.owner.rank_failed(error)

    def status(self) -> dict[str, Any]:
        """For ``inaproto status``."""
        return {
            "rank": self.number,
            "pid": self.join.pid,
            "called": self.called,
            "waiting": len(self.tensors),
            "left": self.has_left,
            "segments": len(self.segments),
            "segment_bytes": sum(buffer.nbytes for buffer in self.segments.values()),
        }
