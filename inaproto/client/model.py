"""A worker of a model that is trained by push, pull and clock (MLNet section 3), Trio or blocking.

::

    with inaproto.connect_model_blocking("digits", socket="/tmp/ina/h0.sock") as model:
        while model.clock < 100:
            weights = model.pull(staleness=2)
            model.push(gradient(weights, model.clock))
            model.finish()                              # one update is finished: the clock goes on

The weights of a model are the sum of all that was pushed, of all workers, from zeros on; the first update of
a worker may be the initial weights. Whoever wants gradient descent pushes ``-rate * gradient``.

Where the host daemon dies, calls raise ``DaemonUnreachable``. Connect again: ``clock`` then says how many of
this worker's updates count; those after it were lost with the daemon, and are to be made again.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NoReturn, Self, TypeVar

import numpy as np
import trio
from numpy.typing import NDArray

from inaproto.client.arguments import (
    JOB_BYTES_MAX,
    KEY_BYTES_MAX,
    check_timeout,
    is_integer,
    require_trio,
)
from inaproto.client.channel import Channel, Clock, ModelWorker, Steps, Wait, again, wait_until
from inaproto.client.drivers import TrioDriver, drive_blocking
from inaproto.client.joining import reach_daemon
from inaproto.client.memory import Region
from inaproto.client.model_protocol import ModelProtocol, ModelRequest
from inaproto.client.unix_stream import dial_unix
from inaproto.client.waits import EXPLAIN_AGAIN_S, EXPLAIN_S, ask_status
from inaproto.errors import LocalMisuse, OperationTimeout
from inaproto.ports import Dial
from inaproto.units import UNIX_PATH_BYTES_MAX
from inaproto.wire.messages.model_connections import ModelDone, ModelJoined, ModelPulled

T = TypeVar("T")
log = logging.getLogger("inaproto.client")

CLOCKS_MAX: Final = 0xFFFF_FFFF
REPORT_AFTER_S: Final = 10.0
"""A wait of this length is worth a line in the log, and then one of twice that."""


@dataclass(frozen=True, slots=True)
class PullRecord:
    """What was in the weights of a pull, by the servers' word."""

    clock: int
    """Clock of this worker when it pulled."""
    staleness: int
    """Staleness that was asked for, or, where it is tuned and none was, chosen."""
    oldest: int
    """Updates of every worker up to this one, but of those that have left, are in the weights: at least
    ``clock - staleness``."""
    newest: int
    """No update after this one is."""
    seconds: float


class _Model:
    """What both kinds share: everything that does not wait."""

    def __init__(self, channel: Channel, protocol: ModelProtocol, told: ModelJoined, clock: Clock) -> None:
        self._channel = channel
        self._protocol = protocol
        self._told = told
        self._seconds = clock
        self._open: NDArray[Any] | None = None
        self._open_region: Region | None = None
        self._clock = told.clock
        self._finish: ModelRequest | None = None
        """Request that has not ended."""
        self._late_pulls: dict[tuple[int, int | None], list[tuple[ModelRequest, Region]]] = {}
        """Those that ran out of time or were cancelled, by the worker's clock and the staleness asked for."""
        self._late_save: tuple[int, ModelRequest] | None = None
        self._leave: ModelRequest | None = None
        self._has_left = False
        self.last_pull: PullRecord | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}, worker {self.worker} of {self.workers}>"

    def __reduce__(self) -> NoReturn:
        raise LocalMisuse("a worker's connection cannot be pickled; connect in the other process")

    @property
    def name(self) -> str:
        """Name of the model."""
        return self._channel.who.job

    @property
    def worker(self) -> int:
        """Number of this worker, 0 to ``workers - 1``: that of its host in the models file."""
        return self._told.worker

    @property
    def workers(self) -> int:
        """How many workers train it."""
        return self._told.workers

    @property
    def elements(self) -> int:
        """How many weights it has."""
        return self._told.elements

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of its weights."""
        return np.dtype(self._told.dtype)

    @property
    def staleness(self) -> int:
        """Staleness of the model's trees: pulls at less may have to wait until others have come to a multiple
        of it."""
        return self._told.staleness

    @property
    def clock(self) -> int:
        """Updates of this worker that are finished: the next one has the number ``clock + 1``."""
        return self._clock

    def push(self, gradients: NDArray[Any]) -> None:
        """Add ``gradients`` to the update that is being made; they are copied, nothing waits.

        Shape (elements,) and the model's dtype. Raises ``LocalMisuse``, or what the connection failed with.
        """
        try:
            array = np.asarray(gradients)
        except ValueError as error:
            raise LocalMisuse(f"push: {error}") from None
        if array.shape != (self.elements,) or array.dtype != self.dtype:
            raise LocalMisuse(
                f"push: {array.dtype} of shape {array.shape}; model {self.name!r} has {self.dtype} of shape "
                f"({self.elements},)"
            )
        self._require_usable()
        if self._open is None:
            region = self._open_region = self._channel.memory.allocate(array.nbytes)
            self._open = region.array((self.elements,), self.dtype)
            np.copyto(self._open, array)
        else:
            self._open += array

    def _require_usable(self) -> None:
        self._channel.require_usable()
        if self._has_left:
            raise LocalMisuse(f"{self._channel.who} has left")
        if self._leave is not None:
            raise LocalMisuse(f"{self._channel.who} is leaving: call nothing but leave()")
        if self._finish is not None:
            raise LocalMisuse("an update is being finished: wait for finish() before anything else")

    def _finishing(self, timeout: float | None) -> Steps[int]:
        check_timeout("finish", timeout)
        if self._finish is None:
            self._begin_to_finish()
        request = self._finish
        assert request is not None
        try:
            yield from self._waiting(request, timeout)
        finally:
            if request.error is not None and self._finish is request:  # it was not taken: it is dropped
                self._finish, self._clock = None, self._clock - 1
        self._finish = None
        return self._clock

    def _begin_to_finish(self) -> None:
        self._require_usable()
        channel, region = self._channel, self._open_region
        channel.announce()
        self._finish, data = self._protocol.clock(
            self._clock + 1,
            None if region is None else region.segment.number,
            0 if region is None else region.offset,
            region,
        )
        self._open = self._open_region = None
        self._clock += 1
        channel.send(data)

    def _pulling(self, staleness: int | None, timeout: float | None) -> Steps[NDArray[Any]]:
        staleness = _checked_staleness(staleness)
        check_timeout("pull", timeout)
        self._require_usable()
        began, asked = self._seconds(), (self._clock, staleness)
        late = self._late_pulls.get(asked)
        request, region = late.pop() if late else self._ask_to_pull(staleness)
        try:
            yield from self._waiting(request, timeout)
        finally:
            if not request.ended:  # it goes on: who pulls again waits for the same weights
                self._late_pulls.setdefault(asked, []).append((request, region))
        answer = request.answer
        assert isinstance(answer, ModelPulled)
        self.last_pull = PullRecord(
            answer.clock, answer.staleness, answer.oldest, answer.newest, self._seconds() - began
        )
        weights = region.array((self.elements,), self.dtype).copy()
        if self._open is not None and answer.staleness:  # the worker's own, at once (MLNet 3.2)
            weights += self._open
        return weights

    def _ask_to_pull(self, staleness: int | None) -> tuple[ModelRequest, Region]:
        channel = self._channel
        self._late_pulls = {
            asked: late for asked, late in self._late_pulls.items() if asked[0] == self._clock
        }
        region = channel.memory.allocate(self.elements * self.dtype.itemsize)
        channel.announce()
        request, data = self._protocol.pull(staleness, region.segment.number, region.offset, region)
        channel.send(data)
        return request, region

    def _saving(self, timeout: float | None) -> Steps[int]:
        check_timeout("make_durable", timeout)
        self._require_usable()
        late, self._late_save = self._late_save, None
        if late is not None and late[0] == self._clock:
            request = late[1]
        else:
            request, data = self._protocol.save_model()
            self._channel.send(data)
        try:
            yield from self._waiting(request, timeout)
        finally:
            if not request.ended:
                self._late_save = self._clock, request
        answer = request.answer
        assert isinstance(answer, ModelDone)
        return answer.clock

    def _leaving(self, timeout: float | None) -> Steps[None]:
        check_timeout("leave", timeout)
        if self._leave is None or self._has_left:
            self._require_usable()
            if self._open is not None:
                raise LocalMisuse(
                    "leave: an update is not finished; finish() it first, or close the connection"
                )
            self._leave, data = self._protocol.leave_model()
            self._channel.send(data)
        request = self._leave
        yield from self._waiting(request, timeout)
        self._has_left = True

    def _waiting(self, request: ModelRequest, timeout: float | None) -> Steps[None]:
        """Raises the request's error, or ``OperationTimeout`` that names what it waits for. Who has no
        timeout, or a long one, reads that in the log."""
        began = self._seconds()
        until = math.inf if timeout is None else began + timeout
        channel, report_at = self._channel, began + REPORT_AFTER_S
        while not (
            yield from wait_until(channel, lambda: request.ended, min(until, report_at), self._seconds)
        ):
            why = yield from explained(channel, self.name, lambda: request.ended, self._seconds)
            if request.ended:
                break
            now = self._seconds()
            if now >= until:
                what = f"{request.call} of {channel.who} did not end within {timeout:g} s"
                raise OperationTimeout(f"{what}: {why}")
            log.warning(
                "%s of %s has not ended after %.0f s: %s", request.call, channel.who, now - began, why
            )
            report_at = now + (now - began)
        if request.error is not None:
            raise again(request.error)


def explained(channel: Channel, model: str, has_ended: Callable[[], bool], clock: Clock) -> Steps[str]:
    """What is waited for, for people; the host daemon may first have to ask."""
    began = clock()
    until = began + EXPLAIN_S
    status: dict[str, Any] | None = None
    while True:
        status = (yield from ask_status(channel, until, clock)) or status
        worker = {} if status is None else _mine(status, model).get("worker", {})
        is_new = worker.get("why") and worker["why_age_s"] < clock() - began
        if is_new or has_ended() or clock() >= until:
            return why_waiting(status, model)
        yield Wait((), clock() + EXPLAIN_AGAIN_S)


def _mine(status: dict[str, Any], model: str) -> dict[str, Any]:
    return next((one for one in status.get("models", []) if one.get("model") == model), {})


def why_waiting(status: dict[str, Any] | None, model: str) -> str:
    """From the host daemon's status, for people."""
    if status is None:
        return "the host daemon does not answer either"
    mine = _mine(status, model)
    if not mine:
        return "the host daemon does not know the model"
    if mine["worker"]["why"]:
        return str(mine["worker"]["why"])
    servers = mine["worker"]["waits_for"]
    return f"it waits for server {', '.join(servers)}" if servers else "it is about to end"


def _joining(
    path: Path | None, who: ModelWorker, timeout: float | None, clock: Clock, dial: Dial
) -> Steps[tuple[Channel, ModelProtocol, ModelJoined]]:
    until = None if timeout is None else clock() + timeout
    protocol = ModelProtocol()

    def has_begun() -> bool:
        return protocol.model is not None or protocol.failure is not None

    channel = yield from reach_daemon(path, who, until, timeout, clock, dial, protocol)
    try:
        channel.send(protocol.join_model(who.job, who.key, os.getpid()))
        there = yield from wait_until(channel, has_begun, until, clock)
        if not there:
            why = yield from explained(channel, who.job, has_begun, clock)
            if not has_begun():
                raise OperationTimeout(f"{who} could not begin within {timeout:g} s: {why}")
        if protocol.failure is not None:
            raise protocol.failure
    except BaseException:
        channel.close()
        raise
    assert protocol.model is not None
    channel.memory.segments_max = protocol.model.segments_max
    return channel, protocol, protocol.model


# --- Trio


class Model(_Model):
    """A worker's connection, for Trio programs; made by :func:`connect_model`."""

    def __init__(
        self, channel: Channel, protocol: ModelProtocol, told: ModelJoined, driver: TrioDriver
    ) -> None:
        super().__init__(channel, protocol, told, trio.current_time)
        self._driver = driver
        channel.on_news = driver.note_news

    async def finish(self, timeout: float | None = None) -> int:
        """The update is finished: the worker's clock goes on; returns it. An update may be empty.

        Waits while the worker is too far ahead of its servers, at most ``timeout`` seconds. Raises
        ``OperationTimeout``, which names who is waited for (the update goes on: call it again), or what the
        connection failed with.
        """
        return await self._driver.drive(self._finishing(timeout))

    async def pull(self, staleness: int | None = None, timeout: float | None = None) -> NDArray[Any]:
        """Weights with the updates 1 to ``clock - staleness`` of every worker, and perhaps newer ones.

        By default the staleness of the model. At 0 with no more than that: those of synchronous training.
        ``last_pull`` says what was in them. ``timeout`` and errors are as with :meth:`finish`. A pull that
        ran out of time goes on, and the next at the same clock waits for it; when as many of earlier clocks
        wait as the model's ``ahead_max``, further ones are refused.
        """
        return await self._driver.drive(self._pulling(staleness, timeout))

    async def make_durable(self, timeout: float | None = None) -> int:
        """Returns when the servers have all that this worker has finished on their disks: how many updates.

        What a node may withhold (staleness > 0) goes up at once. In a model of staleness 0 an update becomes
        durable together with those of the same clock of all other workers. Raises as :meth:`finish`.
        """
        return await self._driver.drive(self._saving(timeout))

    async def leave(self, timeout: float | None = None) -> None:
        """For good: nobody waits for this worker any more. Returns when its updates are durable.

        In a model of staleness 0 that is with the next update of the others, or when they leave, too. Raises
        as :meth:`finish`; after that nothing else can be called, but it again.
        """
        await self._driver.drive(self._leaving(timeout))

    async def aclose(self) -> None:
        """Close the connection. The worker stays one of the model, and may connect again."""
        self._channel.close()
        await trio.lowlevel.checkpoint()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()


async def connect_model(
    model: str,
    *,
    key: str = "",
    socket: str | os.PathLike[str] | None = None,
    timeout: float | None = 30.0,
    dial: Dial = dial_unix,
) -> Model:
    """Become the worker of this machine's host daemon for ``model``, as its models file has it.

    ::

        async with await inaproto.connect_model("digits") as model:
            model.push(gradients)
            clock = await model.finish()

    Whoever may use the socket may be the worker: ``key`` is sent along, and not checked by host daemons yet.
    ``socket`` is that of the host daemon; by default ``$INAPROTO_HOST_SOCKET``, else the only one in the run
    directory. Waits ``timeout`` seconds at most until all parameter servers have
    said how far the worker is. Raises ``LocalMisuse`` or a
    ``JobError``: ``DaemonUnreachable``, ``JoinRefused`` (another process is the worker, or it has left),
    ``OperationTimeout``, which names the servers that are missing. ``dial``: as of :func:`connect`.
    """
    require_trio("connect_model", "connect_model_blocking")
    driver, who = TrioDriver(), _who(model, key, socket, timeout)
    steps = _joining(None if socket is None else Path(socket), who, timeout, trio.current_time, dial)
    channel, protocol, told = await driver.drive(steps)
    return Model(channel, protocol, told, driver)


# --- blocking


class BlockingModel(_Model):
    """A worker's connection, for plain scripts; made by :func:`connect_model_blocking`.

    For one thread at a time: unlike a communicator it has no lock.
    """

    def finish(self, timeout: float | None = None) -> int:
        """The update is finished: the worker's clock goes on; returns it. An update may be empty.

        Waits while the worker is too far ahead of its servers, at most ``timeout`` seconds. Raises
        ``OperationTimeout``, which names who is waited for (the update goes on: call it again), or what the
        connection failed with.
        """
        return drive_blocking(self._finishing(timeout))

    def pull(self, staleness: int | None = None, timeout: float | None = None) -> NDArray[Any]:
        """Weights with the updates 1 to ``clock - staleness`` of every worker, and perhaps newer ones.

        By default the staleness of the model. At 0 with no more than that: those of synchronous training.
        ``last_pull`` says what was in them. ``timeout`` and errors are as with :meth:`finish`. A pull that
        ran out of time goes on, and the next at the same clock waits for it; when as many of earlier clocks
        wait as the model's ``ahead_max``, further ones are refused.
        """
        return drive_blocking(self._pulling(staleness, timeout))

    def make_durable(self, timeout: float | None = None) -> int:
        """Returns when the servers have all that this worker has finished on their disks: how many updates.

        What a node may withhold (staleness > 0) goes up at once. In a model of staleness 0 an update becomes
        durable together with those of the same clock of all other workers. Raises as :meth:`finish`.
        """
        return drive_blocking(self._saving(timeout))

    def leave(self, timeout: float | None = None) -> None:
        """For good: nobody waits for this worker any more. Returns when its updates are durable.

        In a model of staleness 0 that is with the next update of the others, or when they leave, too. Raises
        as :meth:`finish`; after that nothing else can be called, but it again.
        """
        drive_blocking(self._leaving(timeout))

    def close(self) -> None:
        """Close the connection. The worker stays one of the model, and may connect again."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()


def connect_model_blocking(
    model: str,
    *,
    key: str = "",
    socket: str | os.PathLike[str] | None = None,
    timeout: float | None = 30.0,
) -> BlockingModel:
    """Become the worker of this machine's host daemon for ``model``, as its models file has it.

    ::

        with inaproto.connect_model_blocking("digits") as model:
            model.push(gradients)
            clock = model.finish()

    Whoever may use the socket may be the worker: ``key`` is sent along, and not checked by host daemons yet.
    ``socket`` is that of the host daemon; by default ``$INAPROTO_HOST_SOCKET``, else the only one in the run
    directory. Waits ``timeout`` seconds at most until all parameter servers have
    said how far the worker is. Raises ``LocalMisuse`` or a
    ``JobError``: ``DaemonUnreachable``, ``JoinRefused`` (another process is the worker, or it has left),
    ``OperationTimeout``, which names the servers that are missing.
    """
    who = _who(model, key, socket, timeout)
    steps = _joining(None if socket is None else Path(socket), who, timeout, time.monotonic, dial_unix)
    channel, protocol, told = drive_blocking(steps)
    return BlockingModel(channel, protocol, told, time.monotonic)


def _who(model: object, key: object, socket: object, timeout: object) -> ModelWorker:
    """What is asked for, checked before anything is opened."""
    if not isinstance(model, str) or not 0 < len(model.encode()) <= JOB_BYTES_MAX:
        raise LocalMisuse(
            f"connect_model: model {model!r:.60} is not a text of 1 to {JOB_BYTES_MAX} bytes, the name of a "
            "model of the models file"
        )
    if not isinstance(key, str) or len(key.encode()) > KEY_BYTES_MAX:
        raise LocalMisuse(f"connect_model: key must be text of at most {KEY_BYTES_MAX} bytes")
    if socket is not None and not isinstance(socket, str | os.PathLike):
        raise LocalMisuse(
            f"connect_model: socket is {socket!r:.200}; it must be the path of the host daemon's socket"
        )
    if socket is not None and len(os.fsencode(socket)) > UNIX_PATH_BYTES_MAX:
        raise LocalMisuse(
            f"connect_model: the socket path {socket} is longer than {UNIX_PATH_BYTES_MAX} bytes"
        )
    check_timeout("connect_model", timeout)
    return ModelWorker(model, 0, 1, key)


def _checked_staleness(staleness: Any) -> int | None:
    if staleness is None:
        return None
    if not is_integer(staleness) or not 0 <= staleness <= CLOCKS_MAX:
        raise LocalMisuse(f"pull: staleness {staleness!r:.60}; it is a number of clocks, 0 or more")
    return int(staleness)
