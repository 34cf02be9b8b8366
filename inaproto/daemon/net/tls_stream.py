"""TLS over any byte stream, as a byte stream: encrypted messages that synchronous code can send.

``trio.SSLStream`` waits inside every send; control messages are sent from synchronous code, by the step of a
core. So the standard library's TLS engine works here between two buffers in memory, as h11 does for HTTP.

Invariants: at most one record is encrypted and not yet with the stream below, so a peer that does not read
costs this side 16 KiB, and one that sends without end gets no more than its turn; bytes come out only after
the handshake, and with it the peer's identity, is over; a stream that was cut off without TLS's goodbye ends
like one that was closed, whose messages say themselves whether they are whole.
"""

from __future__ import annotations

import errno
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import trio

from inaproto.ca.identity import Identity
from inaproto.daemon.net.tls import TlsRefused, explain, identity_of
from inaproto.ports import BoundsBuffers, ByteStream

HANDSHAKE_BYTES_MAX: Final = 32 << 10
"""Most handshake bytes of the other side: a hello and a short chain of certificates are some 2 KiB."""
_RECORD_BYTES: Final = 16 << 10
_READS_MAX: Final = 2
"""In a row: a peer that always has more to say, if only changes of keys, keeps no other task waiting."""


_UNREAD_MAX: Final = 4 * _RECORD_BYTES
"""Encrypted bytes that a peer may leave unread while it asks for new keys, each of which is answered."""


class TlsStream:
    """Made by :func:`handshake`; takes ownership of the stream below."""

    def __init__(
        self,
        below: ByteStream,
        session: ssl.SSLObject,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        identity: Identity,
    ) -> None:
        self.identity = identity
        self.on_close: Callable[[], None] = lambda: None
        """Called once."""
        self._below = below
        self._session = session
        self._incoming = incoming
        self._output = _Output(below, outgoing)
        self._taken = 0
        """Bytes of the caller's that are encrypted, and not yet reported as sent."""
        self._reads = 0
        """From the stream below, since the last wait."""
        self._is_closed = False

    def receive_nowait(self) -> tuple[bytes, Sequence[int]]:
        self._require_open()
        while True:
            try:
                data = self._session.read(_RECORD_BYTES)
            except ssl.SSLWantReadError:
                self._output.flush()  # an answer to a change of keys
                if self._output.nbytes > _UNREAD_MAX:
                    raise OSError(
                        errno.EPROTO, "TLS: its peer asks for new keys, and reads no answer"
                    ) from None
                if self._reads >= _READS_MAX:
                    raise BlockingIOError(errno.EAGAIN, "Others have their turn") from None
                self._reads += 1
                received, _ = self._below.receive_nowait()
                if received:
                    self._incoming.write(received)
                else:
                    self._incoming.write_eof()
                continue
            except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
                return b"", ()
            except ssl.SSLError as error:
                refused = explain(error)
                raise OSError(errno.EPROTO, f"TLS: {refused.reason}") from None
            return data, ()

    def send_nowait(self, data: memoryview, descriptors: Sequence[int] = ()) -> int:
        """After ``BlockingIOError`` it has to be called with the same bytes again."""
        self._require_open()
        if descriptors:
            raise OSError(errno.EOPNOTSUPP, "descriptors do not leave their machine")
        if not self._taken:
            self._output.flush()
            if self._output.is_empty:
                try:
                    self._taken = self._session.write(data[:_RECORD_BYTES])
                except ssl.SSLError as error:
                    raise OSError(errno.EPROTO, f"TLS: {explain(error).reason}") from None
        self._output.flush()
        if not self._output.is_empty or not self._taken:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        taken, self._taken = self._taken, 0
        return taken

    async def wait_receivable(self) -> None:
        self._reads = 0
        await self._below.wait_receivable()

    async def wait_sendable(self) -> None:
        await self._below.wait_sendable()

    def fileno(self) -> int:
        raise OSError(errno.EOPNOTSUPP, "TLS has bytes of its own to move: a descriptor alone does not tell")

    def peer_pid(self) -> int:
        return 0

    def peer_is_gone(self) -> bool:
        return self._below.peer_is_gone()

    def _require_open(self) -> None:
        if self._is_closed:
            raise OSError(errno.EBADF, "Bad file descriptor")

    def bound_buffers(self, nbytes: int) -> None:
        if isinstance(self._below, BoundsBuffers):
            self._below.bound_buffers(nbytes)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        with suppress(OSError, ValueError):
            self._session.unwrap()  # says its goodbye, and would wait for the other's, which nobody needs
        with suppress(OSError):
            self._output.flush()
        self._below.close()
        self.on_close()


class _Output:
    """Encrypted bytes on their way to the stream below."""

    def __init__(self, below: ByteStream, outgoing: ssl.MemoryBIO) -> None:
        self._below = below
        self._outgoing = outgoing
        self._left = memoryview(b"")

    @property
    def is_empty(self) -> bool:
        return not self._left and not self._outgoing.pending

    @property
    def nbytes(self) -> int:
        return len(self._left) + self._outgoing.pending

    def flush(self) -> None:
        """As much as the stream below takes now. Raises its ``OSError`` when it has failed."""
        while not self.is_empty:
            if not self._left:
                self._left = memoryview(self._outgoing.read())
            try:
                self._left = self._left[self._below.send_nowait(self._left) :]
            except BlockingIOError:
                return


async def handshake(
    below: ByteStream, context: ssl.SSLContext, *, is_server: bool, address: str, host: str | None = None
) -> TlsStream:
    """Both sides prove who they are. ``host``: the far side's address, where its certificate must have it.

    Raises ``TlsRefused`` and the connection's ``OSError``, with ``below`` closed; callers bound the time.
    """
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = context.wrap_bio(incoming, outgoing, server_side=is_server, server_hostname=host)
    output = _Output(below, outgoing)
    try:
        await _shake(below, session, incoming, output)
        return TlsStream(below, session, incoming, outgoing, identity_of(session, address))
    except ssl.SSLError as error:
        with suppress(OSError):
            output.flush()  # the alert, which says why
        below.close()
        raise explain(error) from None
    except BaseException:
        below.close()
        raise


async def _shake(below: ByteStream, session: ssl.SSLObject, incoming: ssl.MemoryBIO, output: _Output) -> None:
    received = 0
    while True:
        try:
            session.do_handshake()
        except ssl.SSLWantReadError:
            await _flush(below, output)
        else:
            await _flush(below, output)
            return
        data = await _receive(below)
        received += len(data)
        if received > HANDSHAKE_BYTES_MAX:
            raise TlsRefused(
                "handshake_bytes", f"more than {HANDSHAKE_BYTES_MAX} bytes before its handshake was over"
            )
        if data:
            incoming.write(data)
        elif not received:
            raise TlsRefused("silent", "it closed the connection without a word")
        else:
            raise TlsRefused("gone", "it closed the connection in the handshake")


async def _flush(below: ByteStream, output: _Output) -> None:
    output.flush()
    while not output.is_empty:
        await below.wait_sendable()
        output.flush()


async def _receive(below: ByteStream) -> bytes:
    await trio.lowlevel.checkpoint_if_cancelled()
    while True:
        try:
            return below.receive_nowait()[0]
        except BlockingIOError:
            await below.wait_receivable()
