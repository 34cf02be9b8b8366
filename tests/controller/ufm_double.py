"""A stand-in for UFM: its two ways to reserve SHARP resources, over real HTTP on loopback, with faults.

It judges, too: a GUID in two reservations of the controller, and a reservation made anew that is there, are
noted as ``faults``.
"""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import h11
import trio

USER = "operator:s3cret-word"
STRANGER = "00000000000000ff"
"""GUID of somebody else."""


class Loss(Enum):
    """What becomes of a question, if it is not answered."""

    BEFORE = "before"
    """It is not done."""
    AFTER = "after"
    """It is done."""
    SILENT = "silent"
    """It is not done, and the connection stays open."""
    SILENT_AFTER = "silent after"


Fault = int | bytes | Loss | None
"""A status that is answered in place of the deed, or the bytes of an answer."""


@dataclass
class UfmDouble:
    """GUIDs are without ``0x`` here, as UFM has them."""

    credentials: str = USER
    by_pkeys: bool = True
    """Reservations follow PKeys, and cannot be made otherwise."""
    sharp: bool = True
    """enable_sharp_allocation"""
    apps_max: int = 1 << 16
    pkeys: dict[str, set[str]] = field(default_factory=dict)
    apps: dict[str, tuple[str, set[str]]] = field(default_factory=dict)
    fault: Callable[[str, str], Fault] = lambda method, path: None
    """What becomes of a question, by method and path."""
    asked: list[tuple[str, str, Any]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    news: trio.Event = field(default_factory=trio.Event)
    port: int = 0

    @property
    def url(self) -> str:
        """Where it listens, without TLS."""
        return f"http://127.0.0.1:{self.port}"

    def reserved(self) -> dict[str, tuple[str, frozenset[str]]]:
        """What is reserved now, by the name of its application."""
        if self.by_pkeys:
            return {f"pkey_{pkey}": (pkey, frozenset(guids)) for pkey, guids in self.pkeys.items() if guids}
        return {name: (pkey, frozenset(guids)) for name, (pkey, guids) in self.apps.items()}

    def members(self) -> dict[str, set[str]]:
        """GUIDs by PKey, of PKeys that have some."""
        found: dict[str, set[str]] = {}
        for pkey, guids in self.reserved().values():
            found.setdefault(pkey, set()).update(guids)
        return found

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for what comes by questions; the test's own deadline bounds it."""
        while not condition():
            await self.news.wait()

    # -- deeds

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        """Status and answer of a question that came through."""
        path, _, query = path.partition("?")
        base, rest = path.removeprefix("/ufmRest"), path.rpartition("/")[2]
        if (method, base) == ("GET", "/resources/pkeys"):
            return 200, {pkey: self._pkey(guids, query) for pkey, guids in self.pkeys.items()}
        if (method, base) == ("POST", "/actions/set_guids_for_pkey"):
            return self._set(body["pkey"], set(body["guids"]))
        if not base.startswith("/app/sharp/allocate_resources") or not self.sharp:
            return 404, "Not found"
        if method == "GET":
            found = self.reserved().items()
            return 200, {name: {"pkey": pkey, "guids": sorted(guids)} for name, (pkey, guids) in found}
        if self.by_pkeys:
            return 400, "reservations follow PKeys"
        if method == "DELETE":
            return (200, "") if self.apps.pop(rest, None) else (404, "no such application")
        name, guids = body["app_id"], set(body["guids"])
        if (method == "POST") == (name in self.apps):
            self.faults.append(f"{method} of {name}, which is {'' if name in self.apps else 'not '}there")
            return 400, "is it there?"
        if len(self.apps) >= self.apps_max and name not in self.apps:
            return 400, "app_resources limit reached"
        others = set().union(*(have for one, (_, have) in self.apps.items() if one != name))
        if others & guids:
            return 400, "HCA has too many jobs"
        self.apps[name] = body["pkey"], guids
        return 200, ""

    def _pkey(self, guids: set[str], query: str) -> dict[str, Any]:
        fields: dict[str, Any] = {"partition": "api_pkey", "ip_over_ib": True}
        if "guids_data=true" in query:
            fields["guids"] = [
                {"guid": guid, "membership": "full", "index0": False} for guid in sorted(guids)
            ]
        return fields

    def _set(self, pkey: str, guids: set[str]) -> tuple[int, Any]:
        others = set().union(*(have for one, have in self.pkeys.items() if one != pkey))
        if others & guids:
            self.faults.append(f"{sorted(others & guids)} in {pkey} and another PKey")
        if guids and not self.pkeys.get(pkey) and len(self.members()) >= self.apps_max:
            return 400, "app_resources limit reached"
        self.pkeys[pkey] = guids
        return 200, ""

    # -- HTTP

    async def serve(self, stream: trio.abc.Stream) -> None:
        """One question of one connection."""
        talk, body, request = h11.Connection(h11.SERVER), bytearray(), None
        try:
            while not isinstance(event := talk.next_event(), h11.EndOfMessage):
                if event is h11.NEED_DATA:
                    talk.receive_data(bytes(await stream.receive_some(65536)))
                elif isinstance(event, h11.Request):
                    request = event
                elif isinstance(event, h11.Data):
                    body += event.data
                else:
                    return
            assert request is not None
            await self._reply(talk, stream, request, bytes(body))
        except (trio.BrokenResourceError, h11.RemoteProtocolError):
            return
        finally:
            await trio.aclose_forcefully(stream)

    async def _reply(
        self, talk: h11.Connection, stream: trio.abc.Stream, request: h11.Request, body: bytes
    ) -> None:
        method, path = request.method.decode(), request.target.decode()
        given = json.loads(body) if body else None
        fault = self.fault(method, path)
        headers = {bytes(name).decode(): bytes(value).decode() for name, value in request.headers}
        expected = f"Basic {base64.b64encode(self.credentials.encode()).decode()}"
        status, answer = 401, "who are you?"
        if headers.get("authorization") == expected:
            status, answer = fault if isinstance(fault, int) else 200, "injected"
            if not isinstance(fault, int) and fault not in (Loss.BEFORE, Loss.SILENT):
                status, answer = self.answer(method, path, given)
        self.asked.append((method, path, given))
        self.news.set()
        self.news = trio.Event()
        if fault in (Loss.SILENT, Loss.SILENT_AFTER):
            await stream.receive_some(1)  # until whoever asked goes away
        if isinstance(fault, bytes):
            await stream.send_all(fault)
        if isinstance(fault, Loss | bytes):
            return
        data = json.dumps(answer).encode()
        lines = [("content-type", "application/json"), ("content-length", str(len(data)))]
        response = h11.Response(status_code=status, headers=[*lines, ("connection", "close")])
        said = (talk.send(response), talk.send(h11.Data(data)), talk.send(h11.EndOfMessage()))
        await stream.send_all(b"".join(part for part in said if part))


@asynccontextmanager
async def running_ufm(double: UfmDouble, tls: ssl.SSLContext | None = None) -> AsyncIterator[UfmDouble]:
    """Serve it at a free port of loopback."""
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        double.port = listener.socket.getsockname()[1]
        listeners: list[Any] = [listener]
        if tls is not None:
            listeners = [trio.SSLListener(listener, tls, https_compatible=True)]
        nursery.start_soon(trio.serve_listeners, double.serve, listeners)
        yield double
        nursery.cancel_scope.cancel()
