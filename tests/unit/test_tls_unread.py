"""A TLS peer that asks for new keys, each time to be answered, and reads none of the answers."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

import pytest

from inaproto.daemon.net.tls_stream import TlsStream

ASKED_BYTES = 1 << 16


class Full:
    """Of it much comes, and nothing leaves: its peer does not read."""

    def __init__(self) -> None:
        self.taken = 0

    def receive_nowait(self) -> tuple[bytes, Sequence[int]]:
        self.taken += ASKED_BYTES
        return bytes(ASKED_BYTES), ()

    def send_nowait(self, data: memoryview, descriptors: Sequence[int] = ()) -> int:
        raise BlockingIOError


class Rekeying:
    """As OpenSSL for changes of keys: as much is answered as was asked, and there is nothing to read."""

    def __init__(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> None:
        self._incoming, self._outgoing = incoming, outgoing

    def read(self, nbytes: int) -> bytes:
        self._outgoing.write(bytes(len(self._incoming.read())))
        raise ssl.SSLWantReadError


def test_it_is_not_answered_for_ever() -> None:
    below, incoming, outgoing = Full(), ssl.MemoryBIO(), ssl.MemoryBIO()
    session = cast("Any", Rekeying(incoming, outgoing))
    stream = TlsStream(cast("Any", below), session, incoming, outgoing, cast("Any", None))

    def receive_often() -> None:
        for _ in range(100):
            with suppress(BlockingIOError):  # others have their turn
                stream.receive_nowait()
            stream._reads = 0

    with pytest.raises(OSError, match="asks for new keys"):
        receive_often()
    assert below.taken <= 4 * ASKED_BYTES
