"""Connections of one process to its neighbours in the trees of all its shards.

A child dials its parent, and again as long as its core wants that; a parent takes what comes. On each
connection there is one shard of one model. Who dials says the connection's priority (one byte), then who it
is and for which shard; both sides compare the digests of their models files, because numbers of nodes and
workers come from these.

Invariants: a shard has one connection to a neighbour, the newest; words of an older one are not heard after
it; who says nothing, or no such thing, is gone within seconds and costs no memory for arrays.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import trio

from inaproto.ca.identity import Role
from inaproto.daemon.models.channels.message_channel import ARRAYS_MAX, StreamChannel
from inaproto.daemon.models.channels.pacing import Paces
from inaproto.daemon.models.channels.queue_pair_stream import QueuePairStream
from inaproto.daemon.models.channels.queue_pairs import NoQueuePair, QueuePairs
from inaproto.daemon.models.core_configs import pushes_max
from inaproto.daemon.models.listening import dial, listen_at
from inaproto.daemon.models.shard_records import heard
from inaproto.daemon.net.accepting import take_each
from inaproto.daemon.net.control_stream import EndOfChannel
from inaproto.daemon.net.tls import Credentials
from inaproto.daemon.net.tls_listener import TlsListener
from inaproto.daemon.net.tls_stream import TlsStream
from inaproto.daemon.settings.models_file import Address, Models, Shard
from inaproto.errors import DecodeError, FabricError, JobError
from inaproto.ports import ByteStream
from inaproto.wire.control_messages import Error, Message, error_message
from inaproto.wire.messages.model_connections import OverlayHello, OverlayState, OverlayWelcome
from inaproto.wire.messages.models import NodeId, Word

HELLO_S: Final = 5.0
RETRY_FIRST_S: Final = 0.05
RETRY_LAST_S: Final = 1.0
CONNECTIONS_MAX: Final = 8192
FLUSH_S: Final = 5.0
AVOID_S: Final = 60.0
"""The NIC, to a peer to whom it was found not to get."""
SLOW_S: Final = 1.0
STRANGERS_SHOWN_MAX: Final = 3
NO_NIC: Final = "the peer has no NIC"

log = logging.getLogger("inaproto.overlay")


class Seat(Protocol):
    """What a shard's shell hears of its connections; each call is at once followed by what it makes of it."""

    def connected(self, peer: NodeId) -> None: ...
    def disconnected(self, peer: NodeId, why: str) -> None: ...
    def heard(self, peer: NodeId, word: Word) -> None: ...
    def stirred(self, peer: NodeId) -> None: ...
    def state(self) -> OverlayState: ...


Admit = Callable[[int, StreamChannel], AbstractAsyncContextManager[None]]
"""Entered before anything but the first byte of a connection is read: the priority is its argument."""


@asynccontextmanager
async def admit_all(priority: int, channel: StreamChannel) -> AsyncIterator[None]:
    yield


@dataclass(eq=False)
class _Link:
    """One connection, or the attempts at one."""

    peer: NodeId
    is_dialled: bool
    channel: StreamChannel | None = None
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    error: str = "not tried yet"
    by: str = ""
    """nic, or tcp, tls, unix."""
    why: str = ""
    """It goes by another than the NIC."""
    is_last_call: bool = False
    """Whether it is to be closed when all is sent."""


class Links:
    """All connections of one process; :meth:`run` it."""

    def __init__(
        self,
        models: Models,
        process: str,
        life: int,
        *,
        credentials: Credentials | None = None,
        queue_pairs: QueuePairs | None = None,
        admit: Admit = admit_all,
    ) -> None:
        """``credentials``: where the models file has addresses with TLS. ``queue_pairs``: of this process's
        NIC, if it has one for this; words then go by RDMA to every neighbour that has one, too."""
        self._models = models
        self._process = process
        self._life = life
        self._credentials = credentials
        self._queue_pairs = queue_pairs
        self._admit = admit
        rate = models.rates.get(process)
        self.rate = rate
        priorities = [shard.model.settings.priority for shard in models.shards_of(process)]
        self.paces = None if rate is None else Paces.of(rate, priorities or [0])
        """Paces of its link, where the models file says how fast that is."""
        self._shards = {(shard.model.name, shard.number): shard for shard in models.shards_of(process)}
        self._seats: dict[Shard, Seat] = {}
        self._links: dict[tuple[Shard, NodeId], _Link] = {}
        self._wanted: set[tuple[Shard, NodeId]] = set()
        """Neighbours to be dialled whenever there is no connection."""
        self._connections = 0
        self._nursery: trio.Nursery | None = None
        self.refused: dict[str, int] = {}
        """Connections that were turned away, by reason."""
        self._avoided: dict[str, tuple[float, str]] = {}
        """Peers to whom the NIC does not get, until when that is not tried again, and why."""
        self._carried: dict[str, int] = {}
        """Bytes carried by connections that have ended, both ways."""

    def seat(self, shard: Shard, seat: Seat) -> None:
        """Before :meth:`run`."""
        self._seats[shard] = seat

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled. Started when others can connect. Raises ``ConfigError``."""
        listening = await listen_at(
            self._models.processes[self._process], self._credentials, self._models.connections_max
        )
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                if self._queue_pairs is not None:
                    await nursery.start(self._queue_pairs.run)
                if self.paces is not None:
                    nursery.start_soon(self.paces.incoming.run)
                    nursery.start_soon(self.paces.outgoing.run)
                if isinstance(listening, TlsListener):
                    nursery.start_soon(listening.run)
                task_status.started()
                await take_each(listening, partial(self._take, nursery), log, "connection of a neighbour")
        finally:
            self._nursery = None
            listening.close()

    # --- what a shard's shell asks for

    def connect(self, shard: Shard, peer: NodeId) -> None:
        """Dial, and again whenever it fails or ends, until :meth:`disconnect`."""
        self._wanted.add((shard, peer))
        self._begin_dialling(shard, peer)

    def _begin_dialling(self, shard: Shard, peer: NodeId, delay_s: float = 0) -> None:
        """Unless there is a connection; one that the peer made lasts until the peer has no use for it."""
        link = self._links.get((shard, peer))
        if self._nursery is None or (link is not None and not link.is_last_call):
            return
        link = self._links[shard, peer] = _Link(peer, is_dialled=True)
        self._nursery.start_soon(self._keep_dialling, shard, link, delay_s)

    def disconnect(self, shard: Shard, peer: NodeId) -> None:
        """After all that was told. One that the peer made is left to it."""
        self._wanted.discard((shard, peer))
        link = self._links.get((shard, peer))
        if link is not None and link.is_dialled and self._nursery is not None:
            link.is_last_call = True
            self._nursery.start_soon(self._close_when_sent, link)

    def break_off(self, shard: Shard, peer: NodeId, why: str) -> None:
        """Now: nothing more is heard on this connection, nor said. Who dialled it may do so again."""
        link = self._links.get((shard, peer))
        if link is not None and link.channel is not None:
            channel, link.channel, link.error = link.channel, None, why
            channel.close(why)

    @property
    def carried(self) -> int:
        """Bytes of words and arrays since the start, both ways."""
        channels = [link.channel for link in self._links.values() if link.channel is not None]
        return sum(self._carried.values()) + sum(one.bytes_in + one.bytes_out for one in channels)

    def tell(self, shard: Shard, peer: NodeId, word: Word) -> None:
        """Queued; lost where there is no connection."""
        link = self._links.get((shard, peer))
        if link is not None and link.channel is not None:
            with suppress(EndOfChannel):  # who receives finds that, too
                link.channel.send_nowait(word)

    def status(self, shard: Shard) -> list[dict[str, Any]]:
        return [
            {
                "peer": shard.model.process_of(peer),
                "dialled": link.is_dialled,
                "connected": link.channel is not None,
                "address": link.channel.address if link.channel is not None else "",
                "limit_in": None if link.channel is None else link.channel.limits[0],
                "limit_out": None if link.channel is None else link.channel.limits[1],
                "bytes_in": 0 if link.channel is None else link.channel.bytes_in,
                "bytes_out": 0 if link.channel is None else link.channel.bytes_out,
                "by": link.by if link.channel is not None else "",
                "why": link.why if link.channel is not None and self._queue_pairs is not None else "",
                "error": "" if link.channel is not None else link.error,
            }
            for (of, peer), link in self._links.items()
            if of is shard
        ]

    def nic_status(self) -> dict[str, Any] | None:
        """None: nobody has named one. ``carried``: bytes of words and arrays, both ways, by what went."""
        if self._queue_pairs is None:
            return None
        carried = dict(self._carried)
        for link in self._links.values():
            if link.channel is not None:
                carried[link.by] = carried.get(link.by, 0) + link.channel.bytes_in + link.channel.bytes_out
        return self._queue_pairs.status() | {"carried": carried}

    async def ask(self, shard: Shard, peer: str) -> OverlayState:
        """Ask another process for its state, on a connection for this alone. Raises ``OSError`` that says why
        not."""
        address = self._models.processes[peer]
        try:
            with trio.fail_after(HELLO_S):
                channel = StreamChannel(await dial(address, peer, self._credentials), f"{peer} at {address}")
                try:
                    channel.send_priority(shard.model.settings.priority)
                    channel.send_nowait(replace(self._hello(shard, peer), nic=False, asks=True))
                    await channel.flush()
                    answer = await channel.receive()
                finally:
                    channel.close()
        except trio.TooSlowError:
            raise OSError(errno.ETIMEDOUT, f"no answer within {HELLO_S:g} s") from None
        except EndOfChannel as end:
            raise OSError(errno.ECONNRESET, f"the connection was {end.reason}") from None
        except DecodeError as error:
            raise OSError(errno.EPROTO, str(error)) from None
        if not isinstance(answer, OverlayState):
            raise OSError(errno.EPROTO, answer.message if isinstance(answer, Error) else f"it says {answer}")
        workers = range(len(shard.model.workers))
        strangers = sorted({*answer.clocks, *(pair[0] for pair in answer.absent if pair)} - {*workers})
        if strangers:
            named = ", ".join(map(str, strangers[:STRANGERS_SHOWN_MAX]))
            raise OSError(errno.EPROTO, f"it names workers that the model has not: {named}")
        return answer

    # --- dialling

    async def _keep_dialling(self, shard: Shard, link: _Link, delay_s: float) -> None:
        retry_s = RETRY_FIRST_S
        with link.scope:
            await trio.sleep(delay_s)
            while not link.is_last_call:
                began = trio.current_time()
                why = await self._dial_once(shard, link)
                if trio.current_time() - began > RETRY_LAST_S:
                    retry_s = RETRY_FIRST_S
                link.error = why
                if not self._is_current(shard, link):
                    return
                await trio.sleep(retry_s)
                retry_s = min(2 * retry_s, RETRY_LAST_S)
        self._forget(shard, link)

    async def _dial_once(self, shard: Shard, link: _Link) -> str:
        """Returns why the connection has ended, or could not be made."""
        peer = shard.model.process_of(link.peer)
        try:
            with trio.fail_after(HELLO_S):
                address = self._models.processes[peer]
                channel = StreamChannel(await dial(address, peer, self._credentials), f"{peer} at {address}")
            try:
                with trio.fail_after(HELLO_S):
                    welcome = await self._introduce(channel, shard, peer)
                why_not = "" if welcome.nic else self._why_not_by_nic(peer, welcome)
                channel = await self._by_nic(channel, link, peer, address, why_not)
            except BaseException:
                channel.close()
                raise
        except trio.TooSlowError:
            why = f"no answer within {HELLO_S:g} s"
        except OSError as error:
            why = f"cannot connect: {error.strerror or error}"
        except EndOfChannel as end:
            why = f"the connection was {end.reason}"
        except (DecodeError, JobError) as error:
            why = str(error)
            if why != link.error:  # it is tried again every second
                log.warning("%s: %s at %s: %s", shard, self._process, peer, error)
        else:
            self._ready(channel, shard, shard.model.settings.priority, pushes_max(shard))
            return await self._use(shard, link, channel)
        if self._is_current(shard, link):
            self._seats[shard].disconnected(link.peer, why)
        return why

    async def _introduce(self, channel: StreamChannel, shard: Shard, peer: str) -> OverlayWelcome:
        channel.send_priority(shard.model.settings.priority)
        channel.send_nowait(self._hello(shard, peer))
        await channel.flush()
        answer = await channel.receive()
        if isinstance(answer, Error):
            raise JobError(f"{peer} refuses: {answer.message}")
        if not isinstance(answer, OverlayWelcome) or answer.process != peer:
            raise JobError(f"{channel.address} answers as {answer}")
        return answer

    async def _by_nic(
        self, channel: StreamChannel, link: _Link, peer: str, address: Address, why_not: str
    ) -> StreamChannel:
        """The channel to use: one by the NIC, or this one, and why. Both know who the other is by now, and
        that both try; ``why_not``: that they do not."""
        link.by = "unix" if isinstance(address, Path) else "tls" if address.is_tls else "tcp"
        link.why = why_not
        if why_not:
            return channel
        if self._queue_pairs is None:
            raise DecodeError("overlay", "a peer that takes a NIC for granted")
        began = trio.current_time()
        try:
            stream = await self._queue_pairs.open(channel)
        except NoQueuePair as none:
            link.why = str(none)
            self._avoided[peer] = trio.current_time() + AVOID_S, link.why
            log.warning("%s to %s: by %s, because %s", self._process, peer, link.by, none)
            return channel
        except FabricError as error:
            raise JobError(str(error)) from None
        except trio.Cancelled:
            if trio.current_time() - began > SLOW_S:  # who cannot wait for a verdict does not wait again
                self._avoided[peer] = trio.current_time() + AVOID_S, "its queue pair was not ready in time"
            raise
        link.by = "nic"
        return StreamChannel(stream, f"{channel.address} by its NIC")

    def _why_not_by_nic(self, peer: str, said: OverlayHello | OverlayWelcome) -> str:
        if self._queue_pairs is None:
            return "no NIC was named for this process"
        if said.nic:
            return self._nic_trouble(peer)
        return self._nic_trouble(peer) or (f"the peer's NIC: {said.no_nic}" if said.no_nic else NO_NIC)

    def _nic_trouble(self, peer: str) -> str:
        """Why this process's NIC cannot be used now; empty also where it has none."""
        if self._queue_pairs is None or self._queue_pairs.trouble:
            return "" if self._queue_pairs is None else self._queue_pairs.trouble
        until, why = self._avoided.get(peer, (0.0, ""))
        return why if trio.current_time() < until else ""

    def _ready(self, channel: StreamChannel, shard: Shard, priority: int, arrays_max: int) -> None:
        channel.allow_payload(shard.nbytes, arrays_max)
        if self.paces is not None:
            channel.pace(self.paces, priority)

    def _hello(self, shard: Shard, peer: str) -> OverlayHello:
        trouble = self._nic_trouble(peer)
        return OverlayHello(
            process=self._process,
            model=shard.model.name,
            shard=shard.number,
            digest=self._models.digest,
            life=self._life,
            nic=self._queue_pairs is not None and not trouble,
            no_nic=trouble,
        )

    # --- being dialled

    def _take(self, nursery: trio.Nursery, connection: ByteStream) -> None:
        if self._connections >= CONNECTIONS_MAX:
            connection.close()
            self._count("too many connections")
            return
        nursery.start_soon(self._serve, StreamChannel(connection, getattr(connection, "address", "a socket")))

    async def _serve(self, channel: StreamChannel) -> None:
        self._connections += 1
        try:
            await self._welcome_and_use(channel)
        except (EndOfChannel, DecodeError, JobError, trio.TooSlowError) as error:
            text = error.reason if isinstance(error, EndOfChannel) else str(error) or "said nothing"
            self._count("no neighbour")
            log.warning("%s: a connection from %s was closed: %s", self._process, channel.address, text)
            with suppress(EndOfChannel):
                channel.send_nowait(error_message(JobError(text)))
            channel.close()
        except BaseException:
            channel.close()
            raise
        finally:
            self._connections -= 1

    async def _welcome_and_use(self, channel: StreamChannel) -> None:
        with trio.fail_after(HELLO_S):
            priority = await channel.receive_priority()
        async with self._admit(priority, channel):
            with trio.fail_after(HELLO_S):
                message = await channel.receive()
            shard, hello = self._child_of(message, channel.stream)
            if hello.asks:
                channel.send_nowait(self._seats[shard].state())
                with trio.fail_after(HELLO_S):
                    await channel.flush()
                channel.close()
                return
            peer = shard.model.node_of(hello.process)
            link = _Link(peer, is_dialled=False)
            why_not = self._why_not_by_nic(hello.process, hello)
            trouble = self._nic_trouble(hello.process)
            channel.send_nowait(
                OverlayWelcome(process=self._process, life=self._life, nic=not why_not, no_nic=trouble)
            )
            address = self._models.processes[self._process]
            channel = await self._by_nic(channel, link, hello.process, address, why_not)
            self._ready(channel, shard, priority, ARRAYS_MAX)
            before = self._links.get((shard, peer))
            if before is not None and before.channel is not None:
                before.channel.close("a newer connection has taken its place")
            self._links[shard, peer] = link
            await self._use(shard, link, channel)
            if self._is_current(shard, link):
                self._forget(shard, link)
                if (shard, peer) in self._wanted:  # it was this process's child, and is its parent now
                    is_second = self._process > shard.model.process_of(peer)  # of two that dial each other
                    self._begin_dialling(shard, peer, RETRY_FIRST_S * (3 if is_second else 1))

    def _child_of(self, hello: Message, stream: ByteStream) -> tuple[Shard, OverlayHello]:
        """Raises ``JobError`` that says what is wrong."""
        if not isinstance(hello, OverlayHello):
            raise JobError(f"a connection begins with who it is, not with {hello.TYPE!r}")
        identity = stream.identity if isinstance(stream, TlsStream) else None
        if identity is not None and (identity.role, identity.name) != (Role.MODEL, hello.process):
            raise JobError(f"{identity} says that it is {hello.process}")
        shard = self._shards.get((hello.model, hello.shard))
        if shard is None:
            raise JobError(f"{self._process} has no part in shard {hello.shard} of model {hello.model!r}")
        if hello.digest != self._models.digest:
            raise JobError(
                f"{hello.process} has another models file than {self._process}: give all processes the same"
            )
        if hello.process not in shard.model.workers or hello.process == self._process:
            raise JobError(f"{hello.process!r} is not a host of model {hello.model!r} that dials others")
        return shard, hello

    # --- both

    async def _use(self, shard: Shard, link: _Link, channel: StreamChannel) -> str:
        """Hear words until the connection ends; returns why it did."""
        if not self._is_current(shard, link):
            channel.close()
            return "not wanted any more"
        link.channel = channel
        seat, why = self._seats[shard], "closed on this side"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(channel.run)
            if isinstance(channel.stream, QueuePairStream):
                nursery.start_soon(channel.stream.watch_beside)
            seat.connected(link.peer)
            period_s = shard.model.settings.heartbeat_ms / 1000
            channel.tell_of_pieces(period_s, partial(self._stirred, shard, link))
            try:
                while link.channel is channel:
                    message = await channel.receive()
                    if not self._is_current(shard, link):
                        break
                    seat.heard(link.peer, heard(message, shard))
                else:
                    why = link.error
            except EndOfChannel as end:
                why = end.reason
            except DecodeError as error:
                why = str(error)
                log.warning("%s: %s said what is no word: %s", shard, channel.address, error)
            finally:
                link.channel = None
                carried = channel.bytes_in + channel.bytes_out
                self._carried[link.by] = self._carried.get(link.by, 0) + carried
                channel.close()
                nursery.cancel_scope.cancel()
        if self._is_current(shard, link):
            seat.disconnected(link.peer, why)
        return why

    def _stirred(self, shard: Shard, link: _Link) -> None:
        if self._is_current(shard, link):
            self._seats[shard].stirred(link.peer)

    def _is_current(self, shard: Shard, link: _Link) -> bool:
        return self._links.get((shard, link.peer)) is link

    def _forget(self, shard: Shard, link: _Link) -> None:
        if self._is_current(shard, link):
            del self._links[shard, link.peer]

    async def _close_when_sent(self, link: _Link) -> None:
        if link.channel is not None:
            with suppress(EndOfChannel), trio.move_on_after(FLUSH_S):
                await link.channel.flush()
        if link.channel is not None:
            link.channel.close()
        link.scope.cancel()

    def _count(self, reason: str) -> None:
        self.refused[reason] = self.refused.get(reason, 0) + 1
