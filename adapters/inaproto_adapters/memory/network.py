"""A network in memory: nodes that meet by path, over control connections and frame links.

It has what UNIX sockets have and tests need: a path is listened at once, a crashed node leaves a path
that refuses connections until somebody listens there again, and wires between two nodes can be cut.

Invariants: all order comes from the order of the calls; a connection's name, and with it its weather,
is made of its nodes' names and a serial number. A node that crashed has no open end left: what its code
still does fails as on closed sockets.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar

import trio

from inaproto.errors import ConfigError, FabricError
from inaproto.faults.streams import Seed
from inaproto.ports import PortClosed
from inaproto_adapters.memory.link import Link, MemoryFramePort, open_memory_pair
from inaproto_adapters.memory.stream import MemoryStream, Observer, StreamTiming, open_stream_pair

_BACKLOG: Final = 64


class _End(Protocol):
    """One end of a connection, of either kind."""

    @property
    def is_closed(self) -> bool: ...
    def cut(self, is_cut: bool) -> None: ...
    def close(self) -> None: ...


KINDS: Final[tuple[type[_End], ...]] = (MemoryStream, MemoryFramePort)
"""Kinds of connections: control connections, and frame links."""

T = TypeVar("T", MemoryStream, MemoryFramePort)


class MemoryListener(Generic[T]):
    """Where connections of one kind come in; both ``StreamListener`` and ``PortListener``."""

    def __init__(self, node: MemoryNode, path: Path, free: Callable[[], None]) -> None:
        self.node = node
        self.path = path
        self._free = free
        self._waiting: deque[T] = deque()
        self._arrivals = trio.lowlevel.ParkingLot()
        self.is_closed = False

    def offer(self, end: T) -> None:
        self._waiting.append(end)
        self._arrivals.unpark_all()

    @property
    def is_full(self) -> bool:
        return len(self._waiting) >= _BACKLOG

    async def accept(self) -> T:
        """The next connection. Raises ``PortClosed`` when the listener is closed."""
        await trio.lowlevel.checkpoint()
        while not self.is_closed:
            if self._waiting:
                return self._waiting.popleft()
            await self._arrivals.park()
        raise PortClosed(f"the listener at {self.path} was closed")

    def close(self, *, leave_path: bool = False) -> None:
        """Stop listening; connections that nobody accepted end. ``leave_path``: as if killed."""
        if self.is_closed:
            return
        self.is_closed = True
        while self._waiting:
            self._waiting.popleft().close()
        self._arrivals.unpark_all()
        if not leave_path:
            self._free()

    async def aclose(self) -> None:
        self.close()
        await trio.lowlevel.checkpoint()


class MemoryNetwork:
    """The world of the nodes; ``observe`` is told of all that control connections carry."""

    def __init__(
        self,
        *,
        seed: Seed,
        link: Link | None = None,
        timing: StreamTiming | None = None,
        observe: Observer | None = None,
    ) -> None:
        self.streams: dict[Path, MemoryListener[MemoryStream]] = {}
        self.ports: dict[Path, MemoryListener[MemoryFramePort]] = {}
        self._seed = seed
        self._link = link
        self._timing = timing
        self._observe = observe
        self._serial = 0
        self._pids = 0
        self._ends: list[tuple[MemoryNode, MemoryNode, _End]] = []
        """Both ends of all connections: whose, towards whom, which."""
        self._cut: list[tuple[frozenset[str], type[_End]]] = []
        """Pairs of nodes, and the kind of their connections that is cut."""

    def node(self, name: str) -> MemoryNode:
        """A new process called ``name``; the process number that peers see is its serial number."""
        self._pids += 1
        return MemoryNode(self, name, self._pids)

    @property
    def open_ends(self) -> list[str]:
        """What is still open: connections by the names of their nodes, listeners by path."""
        self._forget_closed()
        ends = [f"{mine.name}->{peer.name}: {type(end).__name__}" for mine, peer, end in self._ends]
        live = [listener for listener in self._listeners() if not listener.is_closed]
        return ends + [f"{listener.node.name} at {listener.path}" for listener in live]

    def _listeners(self) -> list[MemoryListener[MemoryStream] | MemoryListener[MemoryFramePort]]:
        return [*self.streams.values(), *self.ports.values()]

    def partition(
        self, first: str, second: str, *, is_cut: bool = True, kinds: tuple[type[_End], ...] = KINDS
    ) -> None:
        """Cut the connections of these ``kinds`` between all nodes of these two names, or heal them."""
        pair = frozenset((first, second))
        entries = [(pair, kind) for kind in kinds]
        self._cut = [entry for entry in self._cut if entry not in entries] + entries * is_cut
        for mine, peer, end in self._ends:
            if {mine.name, peer.name} == pair and isinstance(end, kinds):
                end.cut(is_cut)

    def is_cut(self, first: str, second: str, kind: type[_End]) -> bool:
        return (frozenset((first, second)), kind) in self._cut

    def close_ends(self, node: MemoryNode) -> None:
        for listener in self._listeners():
            if listener.node is node:
                listener.close(leave_path=True)
        for mine, _, end in self._ends:
            if mine is node:
                end.close()

    def join_streams(self, dialler: MemoryNode, listener: MemoryListener[MemoryStream]) -> MemoryStream:
        names = self._names(dialler, listener.node)
        pids = (dialler.pid, listener.node.pid)
        ours, theirs = open_stream_pair(
            self._timing, seed=self._seed, names=names, pids=pids, observe=self._observe
        )
        self._keep(dialler, listener.node, ours, theirs)
        listener.offer(theirs)
        return ours

    def join_ports(self, plugged: MemoryNode, listener: MemoryListener[MemoryFramePort]) -> MemoryFramePort:
        names = self._names(plugged, listener.node)
        ours, theirs = open_memory_pair(self._link, seed=self._seed, names=names)
        self._keep(plugged, listener.node, ours, theirs)
        listener.offer(theirs)
        return ours

    def _names(self, first: MemoryNode, second: MemoryNode) -> tuple[str, str]:
        self._serial += 1
        return f"{first.name}#{self._serial}", f"{second.name}#{self._serial}"

    def _keep(self, first: MemoryNode, second: MemoryNode, ours: _End, theirs: _End) -> None:
        self._forget_closed()
        self._ends += [(first, second, ours), (second, first, theirs)]

    def _forget_closed(self) -> None:
        self._ends = [entry for entry in self._ends if not entry[2].is_closed]


class MemoryNode:
    """One process of the network: its :class:`inaproto.ports.StreamNetwork`, and its frame ports."""

    def __init__(self, network: MemoryNetwork, name: str, pid: int) -> None:
        self.name = name
        self.pid = pid
        self._network = network

    async def prepare(self, directory: Path, what: str) -> None:
        """There are no directories here."""

    async def listen(self, path: Path, what: str) -> MemoryListener[MemoryStream]:
        return self._listen(self._network.streams, path, what)

    async def listen_ports(self, path: Path) -> MemoryListener[MemoryFramePort]:
        """For a switch: where frame ports plug in. Raises ``ConfigError``."""
        return self._listen(self._network.ports, path, "ports")

    def _listen(self, listeners: dict[Path, MemoryListener[T]], path: Path, what: str) -> MemoryListener[T]:
        found = listeners.get(path)
        if found is not None and not found.is_closed:
            raise ConfigError(f"{what}: another daemon is already listening at {path}")
        listener: MemoryListener[T] = MemoryListener(self, path, lambda: self._free(listeners, listener))
        listeners[path] = listener
        return listener

    @staticmethod
    def _free(listeners: dict[Path, MemoryListener[T]], listener: MemoryListener[T]) -> None:
        if listeners.get(listener.path) is listener:
            del listeners[listener.path]

    def dial(self, path: Path) -> MemoryStream:
        """A control connection. Raises ``OSError``, as UNIX sockets do; ``TimeoutError`` over a cut wire."""
        listener = self._network.streams.get(path)
        if listener is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        if self._network.is_cut(self.name, listener.node.name, MemoryStream):
            raise TimeoutError(errno.ETIMEDOUT, "Connection timed out")
        if listener.is_closed:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        if listener.is_full:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return self._network.join_streams(self, listener)

    def connect_port(self, path: Path) -> MemoryFramePort:
        """A link to the switch that listens at ``path``. Raises a retryable ``FabricError``."""
        listener = self._network.ports.get(path)
        cut = listener is not None and self._network.is_cut(self.name, listener.node.name, MemoryFramePort)
        if listener is None or listener.is_closed or cut:
            raise FabricError(
                "connect", f"the switch port at {path}", "dialling", "nobody listens there", retryable=True
            )
        return self._network.join_ports(self, listener)

    def crash(self) -> None:
        """As SIGKILL: all its connections end without a word, its paths stay and refuse connections."""
        self._network.close_ends(self)
