"""The ranks of one contender, stepped through turns; :mod:`inaproto_hil.ranks.stepping` has their side."""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from inaproto_hil.rigs.cluster import Child, Cluster

LOOK_S: Final = 1.0
"""How often it is looked whether a process has ended."""
START_S: Final = 600.0
"""For all ranks to connect: they import, connect, and compute their data."""
CHECK_S: Final = 600.0
"""What a step may take beside its all-reduces."""
RECEIVE_BYTES: Final = 1 << 16


class _Rank:
    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.answers: deque[dict[str, Any]] = deque()
        self._partial = b""

    def send(self, line: bytes) -> None:
        """Of one that is gone :meth:`receive` tells."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self.connection.sendall(line)

    def receive(self) -> bool:
        """Whether it is still there."""
        data = b""
        with suppress(ConnectionResetError):
            data = self.connection.recv(RECEIVE_BYTES)
        *lines, self._partial = (self._partial + data).split(b"\n")
        self.answers.extend(json.loads(line) for line in lines)
        return bool(data)


class SteppedRanks:
    """Use :meth:`accept` when their processes are started, then :meth:`ask`."""

    def __init__(self, cluster: Cluster, path: Path, ranks: int) -> None:
        self._cluster = cluster
        self._count = ranks
        self._ranks: list[_Rank] = []
        self.version = ""
        """As they say it."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(ranks)
        self._listener.settimeout(LOOK_S)

    def accept(self, children: Sequence[Child]) -> None:
        """Wait for all ranks. Raises ``ClusterError`` with the logs if one of their processes ends before."""
        deadline = time.monotonic() + START_S
        by_rank: dict[int, _Rank] = {}
        while len(by_rank) < self._count:
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                self._look(children, deadline, f"{self._count - len(by_rank)} ranks did not start")
                continue
            rank = _Rank(connection)
            connection.settimeout(START_S)
            while not rank.answers:
                if not rank.receive():
                    raise self._cluster.failure("a rank ended when it had connected") from None
            hello = rank.answers.popleft()
            by_rank[hello["rank"]] = rank
            self.version = hello["version"]
        self._ranks = [by_rank[number] for number in range(self._count)]
        self._children = children
        for rank in self._ranks:
            rank.connection.settimeout(None)

    def ask(self, word: str, fields: dict[str, Any], answer: str, *, timeout_s: float) -> list[Any]:
        """Say it to all ranks; what each answers, in their order."""
        line = json.dumps([word, fields]).encode() + b"\n"
        for rank in self._ranks:
            rank.send(line)
        deadline = time.monotonic() + timeout_s + CHECK_S
        with selectors.DefaultSelector() as selector:
            for rank in self._ranks:
                selector.register(rank.connection, selectors.EVENT_READ, rank)
            while not all(rank.answers for rank in self._ranks):
                for key, _ in selector.select(LOOK_S):
                    if not key.data.receive():
                        raise self._cluster.failure(f"a rank ended before {answer}")
                self._look(self._children, deadline, f"not all ranks came to {answer}")
        return [rank.answers.popleft()[answer] for rank in self._ranks]

    def _look(self, children: Sequence[Child], deadline: float, what: str) -> None:
        self._cluster.check()
        ended = [child.name for child in children if child.exit_status is not None]
        if ended:
            raise self._cluster.failure(f"{what}: {', '.join(ended)} ended")
        if time.monotonic() > deadline:
            raise self._cluster.failure(f"{what} in time")

    def close(self) -> None:
        """They leave."""
        for rank in self._ranks:
            rank.connection.close()
        self._listener.close()
