"""HTTP/1.1 for a few questions to one server: h11 over Trio, a connection for each question.

Invariants: a question ends by its deadline, whatever the server does; what it answers is bounded; what is in
headers, credentials above all, is in no message and no log.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import h11
import trio

from inaproto.errors import ConfigError, InaprotoError

ANSWER_BYTES_MAX: Final = 1 << 24
_RECEIVE_BYTES: Final = 1 << 16
_PORTS: Final = {"http": 80, "https": 443}


class NoAnswer(InaprotoError):
    """The server has not answered; what was asked for may have been done. The message says where to look."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, and the body as it came."""

    status: int
    body: bytes

    def json(self) -> Any:
        """Raises ``ValueError`` for what is no JSON."""
        try:
            return json.loads(self.body)
        except RecursionError:
            raise ValueError("brackets within brackets, too many") from None

    def words(self) -> str:
        """The body in one short line, for people."""
        text = " ".join(self.body[:2000].decode("utf-8", "replace").split())
        return "".join(letter if letter.isprintable() else "?" for letter in text)[:300] or "no reason given"


class HttpClient:
    """``tls`` for https; ``answer_s``: seconds that a question may take, all of it."""

    def __init__(
        self, url: str, *, headers: Mapping[str, str], tls: ssl.SSLContext | None, answer_s: float
    ) -> None:
        """Raises ``ConfigError`` for what is no address of a server."""
        wrong = ConfigError(f"{url!r}: https://NAME or https://NAME:PORT, without a user")
        try:
            parts = urlsplit(url)
            port = parts.port
            # As it is resolved: a name that IDNA refuses would raise in the middle of a question.
            host = (parts.hostname or "").encode("idna").decode("ascii")
        except ValueError:
            raise wrong from None
        if parts.scheme not in _PORTS or not host or parts.username is not None:
            raise wrong
        if parts.scheme == "https" and tls is None:
            raise ConfigError(f"{url}: needs TLS")
        self.url = url.rstrip("/")
        self._path = parts.path.rstrip("/")
        self._host: Final = host
        self._port: Final = port or _PORTS[parts.scheme]
        bare = f"[{host}]" if ":" in host else host
        self._netloc: Final = bare if port is None else f"{bare}:{port}"
        self._tls = tls if parts.scheme == "https" else None
        self._headers = dict(headers)
        self._answer_s = answer_s

    async def ask(self, method: str, path: str, body: object = None) -> Answer:
        """Raises ``NoAnswer``."""
        what = f"{method} {self.url}{path.partition('?')[0]}"
        try:
            with trio.fail_after(self._answer_s):
                return await self._ask(method, path, body)
        except trio.TooSlowError:
            raise NoAnswer(f"{what}: no answer within {self._answer_s:g} s; is it overloaded?") from None
        except (h11.ProtocolError, trio.BrokenResourceError, trio.ClosedResourceError, OSError) as error:
            raise NoAnswer(f"{what}: {_why(error)}") from None

    async def _ask(self, method: str, path: str, body: object) -> Answer:
        data = b"" if body is None else json.dumps(body).encode()
        headers = {"host": self._netloc, "accept": "application/json", "connection": "close", **self._headers}
        if body is not None:
            headers |= {"content-type": "application/json", "content-length": str(len(data))}
        stream = await self._connect()
        try:
            talk = h11.Connection(h11.CLIENT)
            request = h11.Request(method=method, target=self._path + path, headers=list(headers.items()))
            said = (
                talk.send(request),
                talk.send(h11.Data(data)) if data else b"",
                talk.send(h11.EndOfMessage()),
            )
            await stream.send_all(b"".join(part for part in said if part))
            return await _answer(talk, stream)
        finally:
            await trio.aclose_forcefully(stream)

    async def _connect(self) -> trio.abc.Stream:
        stream = await trio.open_tcp_stream(self._host, self._port)
        if self._tls is None:
            return stream
        return trio.SSLStream(stream, self._tls, server_hostname=self._host, https_compatible=True)


async def _answer(talk: h11.Connection, stream: trio.abc.Stream) -> Answer:
    status, body = 0, bytearray()
    while True:
        event = talk.next_event()
        if event is h11.NEED_DATA:
            talk.receive_data(bytes(await stream.receive_some(_RECEIVE_BYTES)))
        elif isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > ANSWER_BYTES_MAX:
                raise OSError(f"its answer is longer than {ANSWER_BYTES_MAX} bytes")
        elif isinstance(event, h11.EndOfMessage):
            return Answer(status, bytes(body))
        elif isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
            raise OSError("it closed the connection before its answer")


def _why(error: Exception) -> str:
    cause = error.__cause__
    if isinstance(error, OSError) and isinstance(cause, OSError | ExceptionGroup):  # of open_tcp_stream
        whys = cause.exceptions if isinstance(cause, ExceptionGroup) else (cause,)
        said = "; ".join(dict.fromkeys(str(getattr(one, "strerror", None) or one) for one in whys))
        return f"nobody is reached there ({said}); is it started, and is the address right?"
    for one in (error, cause):
        if isinstance(one, ssl.SSLCertVerificationError):
            return f"its certificate is not accepted: {one.verify_message}; is ufm_ca that of its authority?"
        if isinstance(one, ssl.SSLError):
            return f"no TLS with it: {one.reason or one}"
    if isinstance(error, h11.ProtocolError):
        return f"its answer is no HTTP, or was cut off: {error}"
    if isinstance(error, OSError):
        return str(error.strerror or error)
    return "the connection was lost"
