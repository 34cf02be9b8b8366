"""The job API from the side of who asks: blocking, over a UNIX socket or TCP."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from inaproto.daemon.net.names import JOBS_SOCKET, in_its_place
from inaproto.errors import ConfigError, InaprotoError

ANSWER_S: Final = 30.0
ANSWER_BYTES_MAX: Final = 1 << 26
FULL_AGAIN_S: Final = 0.01
"""How soon to try again where more ask at once than the controller's socket keeps waiting."""


class ControllerRefused(InaprotoError):
    """The controller says no; ``code`` as in the API."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class ControllerUnreachable(InaprotoError):
    """None of the controllers leads and answers; what was asked for may have been done. Ask again.

    ``may_be_done`` is false where nobody can have heard it.
    """

    def __init__(self, message: str, *, may_be_done: bool = True) -> None:
        super().__init__(message)
        self.may_be_done = may_be_done


class _OverUnix(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        ends = time.monotonic() + (self.timeout or 0.0)
        while True:
            try:
                self.sock.connect(self._path)
            except BlockingIOError:
                # As many wait there as may. The kernel lets others wait only if they have no limit of time.
                if time.monotonic() > ends:
                    raise TimeoutError from None
                time.sleep(FULL_AGAIN_S)
            else:
                return


class JobClient:
    """``controllers``: paths of their sockets, or http://ADDRESS:PORT; the first that leads answers."""

    def __init__(self, controllers: Sequence[str], *, answer_s: float = ANSWER_S) -> None:
        if not controllers:
            raise ConfigError("no controller is named")
        self._controllers = tuple(controllers)
        self._answer_s = answer_s

    def within(self, answer_s: float) -> JobClient:
        """Of the same controllers, one that waits for an answer no longer than that."""
        return JobClient(self._controllers, answer_s=min(answer_s, self._answer_s))

    def submit(
        self,
        name: str,
        hosts: int,
        *,
        ranks_per_host: int = 1,
        model: str | None = None,
        on: Sequence[str] = (),
        elastic: bool = False,
        submission: str,
    ) -> dict[str, Any]:
        asked: dict[str, Any] = {
            "name": name,
            "hosts": hosts,
            "ranks_per_host": ranks_per_host,
            "model": model,
            "submission": submission,
        }
        if on:  # an older controller knows no such field, nor the next one
            asked["on"] = list(on)
        if elastic:
            asked["elastic"] = True
        return self.ask("POST", "/v1/jobs", asked)

    def jobs(self, *, live: bool) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("GET", "/v1/jobs?" + urlencode({"live": str(live).lower()}))[
            "jobs"
        ]
        return found

    def job(self, name: str, *, after: int = -1, wait_s: float = 0.0) -> dict[str, Any]:
        """Newer than revision ``after``, or as it is after that time."""
        query = urlencode({"after": after, "wait_s": wait_s})
        found: dict[str, Any] = self.ask("GET", f"/v1/jobs/{quote(name, safe='')}?{query}", wait_s=wait_s)[
            "job"
        ]
        return found

    def sharing(self) -> list[dict[str, Any]]:
        """Pools of switch memory."""
        found: list[dict[str, Any]] = self.ask("GET", "/v1/sharing")["groups"]
        return found

    def trees(self) -> dict[str, Any]:
        """Where the rings of jobs on the path ``shared`` are, and how they moved."""
        return self.ask("GET", "/v1/trees")

    def move(self, name: str, root: str, *, wait_s: float = 0.0) -> dict[str, Any]:
        """The job's ring is to be summed at ``root``; empty: wherever the plan has it."""
        asked = {"root": root, "wait_s": wait_s}
        return self.ask("POST", f"/v1/trees/{quote(name, safe='')}/move", asked, wait_s=wait_s)

    def status(self) -> dict[str, Any]:
        """Status of the one that leads; where none does, of the first that answers: it says of when it is."""
        follower: dict[str, Any] | None = None
        problems: list[str] = []
        for controller in self._controllers:
            try:
                found = JobClient([controller], answer_s=self._answer_s).ask("GET", "/v1/status")
            except ControllerUnreachable as error:
                problems.append(str(error))
                continue
            if found["leads"]:
                return found
            follower = follower or found
        if follower is None:
            raise ControllerUnreachable("\n".join(problems))
        return follower

    def cancel(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.ask("POST", f"/v1/jobs/{quote(name, safe='')}/cancel", {})["job"]
        return found

    def ask(self, method: str, path: str, body: Any = None, *, wait_s: float = 0.0) -> dict[str, Any]:
        """Raises ``ControllerRefused`` and ``ControllerUnreachable``."""
        problems, may_be_done = [], False
        for controller in self._controllers:
            try:
                return self._ask_one(controller, method, path, body, wait_s)
            except ControllerRefused as error:
                if error.code != "not_leader":
                    raise
                problems.append(f"{controller}: {error}")
            except FileNotFoundError:
                problems.append(
                    f"{controller}: there is no such socket; is the controller started, and there?"
                )
            except ConnectionRefusedError:
                problems.append(f"{controller}: nobody listens there; start the controller again")
            except TimeoutError:
                may_be_done = True
                problems.append(f"{controller}: no answer within {self._answer_s + wait_s:g} s")
            except (OSError, http.client.HTTPException, ValueError) as error:
                may_be_done = True
                problems.append(f"{controller}: {str(error) or type(error).__name__}")
        raise ControllerUnreachable("\n".join(problems), may_be_done=may_be_done)

    def _ask_one(self, controller: str, method: str, path: str, body: Any, wait_s: float) -> dict[str, Any]:
        connection = self._connection(controller, self._answer_s + wait_s)
        try:
            data = None if body is None else json.dumps(body)
            headers = {} if body is None else {"content-type": "application/json"}
            connection.request(method, path, data, headers)
            response = connection.getresponse()
            answer = json.loads(response.read(ANSWER_BYTES_MAX))
        finally:
            connection.close()
        if response.status not in (HTTPStatus.OK, HTTPStatus.CREATED):
            error = answer.get("error", {}) if isinstance(answer, dict) else {}
            raise ControllerRefused(error.get("code", "?"), error.get("message", f"status {response.status}"))
        found: dict[str, Any] = answer
        return found

    def _connection(self, controller: str, timeout: float) -> http.client.HTTPConnection:
        if "://" not in controller:
            if (meant := in_its_place(Path(controller), JOBS_SOCKET)) is not None:
                raise ConfigError(f"controller {controller}: jobs are asked at {meant}")
            return _OverUnix(controller, timeout)
        parts = urlsplit(controller)
        if parts.scheme != "http" or not parts.hostname:
            raise ConfigError(f"controller {controller!r}: the path of a socket, or http://127.0.0.1:PORT")
        return http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=timeout)
