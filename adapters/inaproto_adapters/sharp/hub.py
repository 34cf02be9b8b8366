"""An exchange among the processes of a probe or a bench, by a socket at which rank 0 gathers and tells.

A job of inaproto has its own control connections for that. Here there may be no daemon: the processes know
an address, ``HOST:PORT`` or the path of a UNIX socket, and a key, without which nobody is let in. What is
said is not secret.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import sha256
from typing import Final

import trio

from inaproto.errors import ConfigError, FabricError

WORDS_BYTES_MAX: Final = 2 << 20
CONNECT_S: Final = 60.0
PORT_MAX: Final = 65_535
RETRY_S: Final = 0.05
_DIGEST_BYTES: Final = 32


class HubMember:
    """An ``OutOfBand``: own words to the hub, those of all back, with lengths before them.

    Who is cancelled in the middle of a round is out of step with the others, and takes part in none any more.
    """

    def __init__(self, stream: trio.SocketStream, position: int, size: int) -> None:
        self._stream = stream
        self.position, self.size = position, size
        self._is_whole = True

    async def all_gather(self, data: bytes) -> Sequence[bytes]:
        """See :class:`inaproto.ports.OutOfBand`."""
        if not self._is_whole:
            raise _lost("this process has left a round half-way")
        self._is_whole = False
        try:
            await self._stream.send_all(_framed(data))
            told = [await _receive(self._stream) for _ in range(self.size)]
        except (trio.BrokenResourceError, trio.ClosedResourceError, EOFError) as error:
            raise _lost(f"the hub is gone: {error}") from None
        self._is_whole = True
        return told


@asynccontextmanager
async def met(address: str, rank: int, size: int, key: str) -> AsyncIterator[HubMember]:
    """The place of a process among ``size``; rank 0 serves the others meanwhile.

    Raises ``ConfigError`` for an address that is none and ``FabricError`` where the others do not come.
    """
    async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
        if rank == 0:
            listener = await _listen(address)
            stack.push_async_callback(listener.aclose)  # the task may be cancelled before it begins
            nursery.start_soon(_serve, listener, size, key)
        stream = await _connect(address)
        async with stream:
            await stream.send_all(_proof(key, rank) + rank.to_bytes(4, "big"))
            yield HubMember(stream, rank, size)
        nursery.cancel_scope.cancel()


async def _listen(address: str) -> trio.SocketListener:
    path, host, port = _parsed(address)
    family = trio.socket.AF_UNIX if path else trio.socket.AF_INET
    listening = trio.socket.socket(family, trio.socket.SOCK_STREAM)
    try:
        if path:
            await listening.bind(path)
        else:
            listening.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_REUSEADDR, 1)
            await listening.bind((host, port))
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise ConfigError(f"hub: {address} cannot be listened at: {error}") from None
    return trio.SocketListener(listening)


async def _connect(address: str) -> trio.SocketStream:
    """Rank 0 may come later than others."""
    path, host, port = _parsed(address)
    why: OSError | None = None
    with trio.move_on_after(CONNECT_S):
        while True:
            try:
                if path:
                    return await _unix(path)
                return await trio.open_tcp_stream(host, port)
            except OSError as error:
                why = error
                await trio.sleep(RETRY_S)
    raise _lost(f"nobody is at {address} after {CONNECT_S:g} s: {why}")


async def _unix(path: str) -> trio.SocketStream:
    connecting = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
    try:
        await connecting.connect(path)
    except BaseException:
        connecting.close()
        raise
    return trio.SocketStream(connecting)


def _parsed(address: str) -> tuple[str, str, int]:
    if os.sep in address:
        return address, "", 0
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isdecimal()):
        raise ConfigError(f"hub: HOST:PORT or the path of a socket, not {address!r}")
    if not 1 <= int(port) <= PORT_MAX:
        raise ConfigError(f"hub: a port is 1 to {PORT_MAX}, not {port}")
    try:
        host.encode("idna")
    except UnicodeError as error:
        raise ConfigError(f"hub: {host!r} is no name of a host: {error}") from None
    return "", host, int(port)


async def _serve(listener: trio.SocketListener, size: int, key: str) -> None:
    """Round after round; when a member is gone, all of them are told by the end of their streams."""
    members: dict[int, trio.SocketStream] = {}
    try:
        async with listener:
            while len(members) < size:
                stream = await listener.accept()
                try:
                    rank = await _admitted(stream, size, key)
                except BaseException:
                    stream.socket.close()
                    raise
                if rank is None or rank in members:
                    await stream.aclose()
                else:
                    members[rank] = stream
        while True:
            words = [await _receive(members[rank]) for rank in range(size)]
            told = b"".join(_framed(each) for each in words)
            for stream in members.values():
                await stream.send_all(told)
    except (EOFError, trio.BrokenResourceError):
        pass
    finally:
        for stream in members.values():
            stream.socket.close()


async def _admitted(stream: trio.SocketStream, size: int, key: str) -> int | None:
    with trio.move_on_after(CONNECT_S):
        try:
            proof = await _exactly(stream, _DIGEST_BYTES)
            rank = int.from_bytes(await _exactly(stream, 4), "big")
        except (EOFError, trio.BrokenResourceError):
            return None
        if rank < size and hmac.compare_digest(proof, _proof(key, rank)):
            return rank
    return None


def _proof(key: str, rank: int) -> bytes:
    return hmac.new(key.encode(), b"inaproto sharp hub %d" % rank, sha256).digest()


def _framed(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


async def _receive(stream: trio.SocketStream) -> bytes:
    length = int.from_bytes(await _exactly(stream, 4), "big")
    if length > WORDS_BYTES_MAX:
        raise EOFError(f"a message of {length} bytes")
    return await _exactly(stream, length)


async def _exactly(stream: trio.SocketStream, nbytes: int) -> bytes:
    parts = bytearray()
    while len(parts) < nbytes:
        more = await stream.receive_some(nbytes - len(parts))
        if not more:
            raise EOFError("the far side has closed")
        parts += more
    return bytes(parts)


def _lost(cause: str) -> FabricError:
    return FabricError("SHARP", "the job's other hosts", "talking out of band", cause, retryable=True)
