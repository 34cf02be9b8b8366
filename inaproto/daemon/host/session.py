"""One connection of a training process to its host daemon: from bytes of a stranger to a rank.

Invariants: a process can harm only its own connection: what is no message, or asks for what no
client library asks, is answered by an ``Error`` that says why, and the connection is closed. A
connection that ends without ``Leave`` means that the process is gone, and its rank is lost to its job.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Protocol

import trio

from inaproto.core.grants.seats import GIVEN_UP, seated_as
from inaproto.core.host.meeting_place import MeetingPlace
from inaproto.daemon.host.attachment import Fabric
from inaproto.daemon.host.grants import HostGrants
from inaproto.daemon.host.job_hosts import JobHosts
from inaproto.daemon.host.local_rank import Keeps, LocalRank, Ring
from inaproto.daemon.host.rank_processes import RankProcess, RankProcesses
from inaproto.daemon.host.successions import Successions
from inaproto.daemon.models.seat import ModelSeat
from inaproto.daemon.models.session import ModelSession
from inaproto.daemon.net.control_stream import ControlStream, EndOfChannel
from inaproto.daemon.net.session_rules import for_people
from inaproto.daemon.net.shared_buffers import map_buffer
from inaproto.daemon.shell import current_instant
from inaproto.errors import DaemonUnreachable, DecodeError, JobError, JoinRefused, LocalMisuse, RankLost
from inaproto.wire.control_messages import (
    Message,
    Regroup,
    Regrouped,
    Status,
    StatusReply,
    encode_message,
    error_message,
)
from inaproto.wire.messages.client import (
    AllReduce,
    Buffer,
    Done,
    DonePath,
    Filled,
    HasLeft,
    Join,
    Joined,
    JoinWaits,
    Leave,
    Ok,
    Rejoin,
    Taken,
)
from inaproto.wire.messages.model_connections import ModelClock, ModelJoin, ModelLeave, ModelPull, ModelSave

SEGMENTS_MAX = 256
"""Segments of one process: each takes one of the NIC's memory regions."""
SEGMENTS_OF_HOST_MAX = 3072
"""Most segments of all processes; the rest of the NIC's regions (softnic: 4096) is for the rings of processes
that join."""

log = logging.getLogger("inaproto.host")


class Daemon(Protocol):
    """What a session needs of the daemon that it belongs to."""

    @property
    def fabric(self) -> Fabric | None: ...
    @property
    def grants(self) -> HostGrants: ...
    @property
    def job_hosts(self) -> JobHosts: ...
    @property
    def rank_processes(self) -> RankProcesses: ...
    @property
    def successions(self) -> Successions: ...
    @property
    def model_seats(self) -> Mapping[str, ModelSeat]: ...
    def status(self) -> dict[str, Any]: ...


class ClientSession:
    """Serves one connection; see the module."""

    def __init__(self, stream: ControlStream, daemon: Daemon) -> None:
        self._stream = stream
        self._daemon = daemon
        self._pid = stream.peer_pid()
        self._join: Join | None = None
        self._rank: LocalRank | None = None
        self._rejoin_id = 0
        self._leave_id: int | None = None
        self._seat: tuple[str, int] | None = None
        """Job and rank, once its ring has stood."""
        self._process: RankProcess | None = None
        """The same time; what is remembered of it."""
        self._job_failed: JobError | None = None
        """What its rank was told first: why its job cannot go on."""
        self._regroup: Regroup | None = None
        """Asked, and not answered yet."""
        self._model: ModelSession | None = None
        """Session of a process that is no rank but a worker of a model."""

    def __str__(self) -> str:
        return f"process {self._pid}" + (f" ({self._rank})" if self._rank else "")

    async def run(self) -> None:
        """Serve until the process leaves, ends or breaks the rules."""
        reason = ""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._stream.run)
                reason = await self._serve()
                nursery.cancel_scope.cancel()
        finally:
            rank, is_stopped = self._rank, not reason
            if is_stopped and rank is not None and rank.ring is not None and rank.ring.may_have_successor:
                self._stream.close()  # its process goes on by another daemon, and hears no more of this one
            else:
                self._ended(reason)

    def _ended(self, reason: str) -> None:
        """``reason``: empty if it is this daemon that ends."""
        failed = self._job_failed  # not by this end, which its ring is told below
        if self._process is not None and reason:
            self._process.has_gone = True
        if not reason:
            reason = "its host daemon was stopped"
            text = f"the host daemon of process {self._pid} was stopped; start it and join again"
            joins = self._join is not None and self._seat is None and self._join.life
            if not (joins and self._daemon.successions.are_waited_for):  # else it joins again
                self._send(error_message(DaemonUnreachable(text)))
        if self._rank is not None and self._rank.ring is not None:
            self._process_ended(self._rank, self._rank.ring, reason)
        if self._model is not None:
            self._model.close()
        self._stream.close()
        if self._seat is not None:
            why = reason if failed is None else f"its job had failed: {failed}"
            self._daemon.grants.left(*self._seat, failure=why if self._leave_id is None else "")

    def cut_off(self, job: str, ranks: range, why: str) -> None:
        """If it is of these."""
        if self._seat is not None and seated_as(self._seat[0]) == job and self._seat[1] in ranks:
            self._stream.close(self._refuse(JobError(f"job {job}: {why}")))

    def look_for_seat(self) -> None:
        """A process that waits for the others of a job that is over waits in vain."""
        join = self._join
        if join is None or self._seat is not None:
            return
        if self._daemon.grants.seats.has_given_up(join.job, join.rank, join.key):
            error = JoinRefused(f"rank {join.rank} of job {join.job!r} waited to begin: {GIVEN_UP}")
            self._stream.close(self._refuse(error, of=join.id))

    async def _serve(self) -> str:
        """Returns why the connection has ended."""
        while True:
            try:
                message = await self._stream.receive()
                if isinstance(message, Leave) and message.reason:
                    reason = for_people(message.reason)
                    if reason.startswith(RankLost.__name__) and self._process is not None:
                        self._process.tell(reason)  # as its neighbours had
                    return f"process {self._pid} has given up: {reason}"
                if isinstance(message, Buffer):
                    await self._buffer(message)
                elif isinstance(message, Join):
                    await self._asked_to_join(message)
                elif isinstance(message, Rejoin):
                    refusal = self._asked_to_rejoin(message)
                    if refusal:
                        return refusal
                else:
                    self._handle(message)
            except EndOfChannel as end:
                return f"process {self._pid} ended without leaving (its connection was {end.reason})"
            except DecodeError as error:
                return self._refuse(JobError(f"no valid message: {error}; use the inaproto client"))
            except JobError as error:
                return self._refuse(error)

    def _refuse(self, error: JobError, of: int = 0) -> str:
        log.warning("%s is cut off: %s", self, error)
        self._send(error_message(error, of=of))
        return f"process {self._pid} was cut off: {error}"

    def _send(self, message: Message, *descriptors: int) -> None:
        with contextlib.suppress(EndOfChannel):  # then receive() sees it too
            self._stream.send_nowait(message, descriptors=descriptors)

    # --- requests

    def _handle(self, message: Message) -> None:
        match message:
            case AllReduce():
                self._all_reduce(message)
            case Filled():
                self._filled(message)
            case Leave():
                self._leave(message)
            case Regroup():
                self._asked_to_regroup(message)
            case Status(id=id):
                self._report(id)
            case ModelJoin():
                self._asked_for_model(message)
            case ModelClock() | ModelPull() | ModelSave() | ModelLeave():
                if self._model is None:
                    raise JobError(f"{message.TYPE} before a model_join")
                self._model.handle(message)
            case _:
                raise JobError(f"a host daemon does not take messages of type {message.TYPE!r}")

    def _asked_for_model(self, join: ModelJoin) -> None:
        if self._join is not None or self._model is not None:
            raise JobError("a second join on one connection; connect again for another model")
        try:
            self._model = ModelSession(join, self._daemon.model_seats, self._send, self._stream.peer_is_gone)
        except JoinRefused as error:
            self._send(error_message(error, of=join.id))

    async def _asked_to_join(self, join: Join) -> None:
        if self._join is not None or self._leave_id is not None or self._model is not None:
            raise JobError("a second join on one connection; connect again for another rank")
        if join.rank >= join.size:
            text = f"there is no rank {join.rank} in a job of {join.size}; ranks are 0 to {join.size - 1}"
            self._send(error_message(JoinRefused(text), of=join.id))
            return
        # The kernel's word for the process, where it has one (0: it is in another PID namespace).
        join = join if not self._pid else replace(join, pid=self._pid)
        elsewhere = ""
        if not self._daemon.grants.seats.has_seat(join.job, join.rank):
            elsewhere = await self._daemon.job_hosts.why_not_here(join.job, join.rank)
        if elsewhere:
            self._send(error_message(self._refused(join, elsewhere), of=join.id))
            return
        self._join = join
        fabric = self._daemon.fabric
        if fabric is not None:
            self.fabric_is_up(fabric)

    def _asked_to_rejoin(self, rejoin: Rejoin) -> str:
        """A rank comes back that another daemon had. Returns why the connection ends, if it does."""
        if self._join is not None or self._leave_id is not None or self._model is not None:
            raise JobError("a rejoin on a connection that has a rank already")
        descriptor = self._stream.take_descriptor()
        if descriptor is None:
            raise JobError("a rejoin, and no journal came with it")
        rejoin = rejoin if not self._pid else replace(rejoin, pid=self._pid)
        try:
            refusal = self._daemon.grants.seats.refusal_of(rejoin.job, rejoin.rank, rejoin.key)
            if refusal:
                os.close(descriptor)
                raise self._refused(rejoin.join, refusal)
            rank = self._daemon.successions.take(rejoin, descriptor, self)
        except JobError as error:  # what follows on this connection is of no use
            return self._refuse(error, of=rejoin.id)
        self._join, self._rejoin_id = rejoin.join, rejoin.id
        self._rank = rank
        log.info("%s is back, with %d all-reduces under way", self, rejoin.called - rejoin.done)
        if not rank.returns:
            self.resumed()
        self._daemon.successions.look()
        return ""

    def fabric_is_up(self, fabric: Fabric) -> None:
        """Go on with what waited for the switch: a join, or the question who goes on without a lost rank."""
        if self._regroup is not None and self._rank is not None:
            fabric.regrouping.ask(self._rank, self, self._regroup.operations_done)
        if self._join is None or self._rank is not None:
            return
        try:
            self._require_seat(self._join)
            self._rank = fabric.join(self._join, self)
        except JoinRefused as error:
            self._join = None
            self._send(error_message(error, of=0))

    def _require_seat(self, join: Join) -> None:
        """Raises ``JoinRefused``."""
        refusal = self._daemon.grants.seats.refusal_of(join.job, join.rank, join.key)
        if refusal:
            raise self._refused(join, refusal)

    def _refused(self, join: Join, why: str) -> JoinRefused:
        """The error for its process; those who wait for that rank hear of it, too."""
        if self._daemon.fabric is not None:
            self._daemon.fabric.tell_refusal(join, why)
        return JoinRefused(f"rank {join.rank} (pid {join.pid}) cannot join job {join.job!r}: {why}")

    async def _buffer(self, message: Buffer) -> None:
        descriptor = self._stream.take_descriptor()
        if descriptor is None:
            raise JobError(f"segment {message.segment}: no descriptor came with the message")
        if self._model is not None:
            self._model.buffer(message, descriptor)
            return
        rank = self._rank
        if rank is None or message.segment in rank.segments or len(rank.segments) >= SEGMENTS_MAX:
            os.close(descriptor)
            raise JobError(
                f"segment {message.segment}: comes before joining, twice, or is one more than {SEGMENTS_MAX}"
            )
        fabric = self._daemon.fabric
        if fabric is not None and fabric.segments >= SEGMENTS_OF_HOST_MAX:
            os.close(descriptor)
            raise JobError(
                f"segment {message.segment}: the processes of this host have {fabric.segments} segments, its "
                "limit; use fewer, larger buffers"
            )
        if rank.has_ended or rank.ring is None:
            os.close(descriptor)  # the process will read that its job has failed
        else:
            await rank.share(map_buffer(descriptor, segment=message.segment, nbytes=message.nbytes))
        self._send(Ok(id=message.id))

    def _report(self, id: int) -> None:
        reply = StatusReply(id=id, body=self._daemon.status())
        try:
            encode_message(reply)
        except LocalMisuse as error:  # thousands of rings do not fit in one message
            self._send(error_message(JobError(f"the status does not fit in a message: {error}"), of=id))
        else:
            self._send(reply)

    def _leave(self, message: Leave) -> None:
        """Confirmed when the job is over, so that its name can be used again; the process need not wait."""
        self._leave_id = message.id
        self._join = None
        rank = self._rank
        if rank is not None and rank.ring is not None:
            rank.ring.leave(rank)
        if rank is None or rank.has_ended:
            self.rank_closed()

    def _all_reduce(self, message: AllReduce) -> None:
        rank, fabric = self._rank, self._daemon.fabric
        if rank is None:
            raise JobError(f"all_reduce {message.op_index} before joining a job")
        if rank.ring is not None and not rank.has_ended:  # else it will read that its job has failed
            rank.ring.submit(rank, message)
            if rank.returns:
                self._daemon.successions.look()
            if fabric is not None:
                fabric.submitted()

    def _filled(self, message: Filled) -> None:
        rank = self._rank
        if rank is None:
            raise JobError(f"bytes of all_reduce {message.op_index} before joining a job")
        if rank.ring is not None and not rank.has_ended:
            rank.ring.filled(rank, message)

    def _asked_to_regroup(self, message: Regroup) -> None:
        rank, fabric = self._rank, self._daemon.fabric
        if rank is None or not rank.has_ended or rank.has_left or self._regroup is not None:
            raise JobError("a regroup of a rank whose job has not failed, or a second one")
        self._regroup = message
        if fabric is not None:
            fabric.regrouping.ask(rank, self, message.operations_done)

    def _process_ended(self, rank: LocalRank, ring: Ring, reason: str) -> None:
        fabric, had_failed = self._daemon.fabric, rank.has_ended
        ring.gone(rank, reason)
        if had_failed and fabric is not None:
            fabric.regrouping.gone(rank, self, reason)

    def _seated(self, join: Join) -> None:
        """Said again for each ring."""
        self._seat = join.job, join.rank
        if self._process is None:
            job = seated_as(join.job)
            self._process = self._daemon.rank_processes.add(job, join.rank, self._pid, current_instant())

    # --- what the rank's ring tells (Owner)

    def resumed(self) -> None:
        if self._rank is not None:
            join = self._rank.join
            self._seated(join)
            self._daemon.grants.joined(join.job, join.rank, join.key)
            self._send(Ok(id=self._rejoin_id))

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
        if self._join is not None:
            join = self._join
            self._seated(join)
            self._daemon.grants.joined(join.job, join.rank, join.key)
            joined = Joined(
                id=join.id,
                ring_id=ring_id,
                rank=join.rank,
                size=join.size,
                operations_max=operations_max,
                segments_max=SEGMENTS_MAX,
                local=local,
                fills=fills,
                named=True,
                meets=meets.place,
                meeting=meets.name,
                apart=meets.why_not,
                successor_ms=keeps.successor_ms,
            )
            self._send(joined, *((keeps.descriptor,) if keeps.successor_ms else ()))

    def waits(self, refused: str) -> None:
        if self._join is not None:
            self._send(JoinWaits(id=self._join.id, refused=refused))

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        with contextlib.suppress(EndOfChannel), self._stream.held():  # then receive() sees it too
            yield

    def results_taken(self, op_index: int, nbytes: int) -> None:
        self._send(Taken(op_index=op_index, nbytes=nbytes))

    def operation_done(self, op_index: int, path: DonePath, duration_ns: int) -> None:
        self._send(Done(op_index=op_index, path=path, ns=duration_ns))

    def rank_failed(self, error: JobError) -> None:
        self._job_failed = self._job_failed or error
        has_gone = self._leave_id is not None or self.process_is_gone()
        if self._process is not None and not has_gone:
            self._process.tell(f"{type(error).__name__}: {error}")
        self._send(error_message(error))

    def rank_closed(self) -> None:
        if self._leave_id is not None:
            self._send(Ok(id=self._leave_id))

    def other_left(self, number: int) -> None:
        self._send(HasLeft(rank=number))

    def regrouped(self, message: Regrouped) -> None:
        if self._regroup is not None:
            self._follows(message)
            self._send(replace(message, id=self._regroup.id))
            self._regroup = None

    def _follows(self, message: Regrouped) -> None:
        rank = self._rank
        if rank is not None and rank.number in message.ranks:
            self._seat = rank.join.job, rank.number
            place = message.job, message.ranks.index(rank.number)
            self._daemon.grants.follows(*self._seat, rank.join.key, place)

    def regroup_refused(self, error: JobError) -> None:
        if self._regroup is not None:
            self._send(error_message(error, of=self._regroup.id))
            self._regroup = None

    def process_is_gone(self) -> bool:
        return self._stream.peer_is_gone()

    def announce_again(self) -> None:
        self._rank = None
