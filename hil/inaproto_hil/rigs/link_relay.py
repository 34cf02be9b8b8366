"""A link of a cluster that can be cut: what passes between a switch and the one above it goes through here.

The switch below dials ``listen``, and its bytes go to ``target``, where the switch above listens. A cut
link is one whose carrier is gone: both ends see their stream end, whatever was on its way is lost, and
nobody answers at ``listen`` until the link is mended.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

CHUNK_BYTES = 1 << 16
JOIN_S = 5.0


class LinkRelay:
    """Mended from the start; ``mend`` and ``cut`` are called by one thread."""

    def __init__(self, listen: Path, target: Path) -> None:
        self.cuts = 0
        """How often it was cut while something was connected through it."""
        self._listen = listen
        self._target = target
        self._listener: socket.socket | None = None
        self._lock = threading.Lock()
        self._ends: set[socket.socket] = set()
        """Ends of the connections through it."""
        self._threads: list[threading.Thread] = []
        self.mend()

    @property
    def is_up(self) -> bool:
        """Whether the link is mended; not whether somebody uses it."""
        return self._listener is not None

    @property
    def connections(self) -> int:
        """Connections that go through it now."""
        with self._lock:
            return len(self._ends) // 2

    def mend(self) -> None:
        """Raises ``OSError`` when ``listen`` cannot be bound."""
        if self._listener is not None:
            return
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(str(self._listen))
            listener.listen()
        except OSError:
            listener.close()
            raise
        self._listener = listener
        self._run(lambda: self._accept(listener))

    def cut(self) -> None:
        listener = self._listener
        if listener is None:
            return
        with self._lock:
            self._listener = None
            ends = list(self._ends)
            # Shut down, not closed: that wakes the threads that wait for them, which close them.
            for sock in (listener, *ends):
                _shut_down(sock)
        self.cuts += bool(ends)
        self._listen.unlink(missing_ok=True)
        threads, self._threads = self._threads, []
        for thread in threads:
            thread.join(JOIN_S)

    def _run(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name=f"link {self._listen.name}", daemon=True)
        self._threads = [each for each in self._threads if each.is_alive()]
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        with listener:
            while True:
                try:
                    below, _ = listener.accept()
                except OSError:
                    return
                above = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                try:
                    above.connect(str(self._target))
                except OSError:  # nobody above: the switch below dials again
                    above.close()
                    below.close()
                    continue
                with self._lock:
                    if self._listener is not listener:
                        above.close()
                        below.close()
                        return
                    self._ends |= {below, above}
                self._run(partial(self._carry, below, above))

    def _carry(self, below: socket.socket, above: socket.socket) -> None:
        """Both ways, until an end closes its stream or the link is cut."""
        upward = threading.Thread(target=_pump, args=(below, above), daemon=True)
        upward.start()
        _pump(above, below)
        upward.join()
        with self._lock:
            self._ends -= {below, above}
            below.close()
            above.close()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(CHUNK_BYTES):
            sink.sendall(data)
    _shut_down(source)
    _shut_down(sink)


def _shut_down(sock: socket.socket) -> None:
    with suppress(OSError):  # it is not connected any more
        sock.shutdown(socket.SHUT_RDWR)
