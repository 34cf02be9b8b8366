"""The worker of a model on its connection to the host daemon: requests, and the memory that both share.

Updates and weights lie in memory that the process shares with the daemon (memfd segments, as of all-reduces);
the connection carries only words about them. An update is copied before its ``ModelDone``, weights are there
before their ``ModelPulled``.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inaproto.daemon.models.seat import ModelSeat, PulledWeights
from inaproto.daemon.net.shared_buffers import map_memory
from inaproto.errors import JobError, JoinRefused
from inaproto.wire.control_messages import Message, error_message
from inaproto.wire.messages.client import Buffer, Ok
from inaproto.wire.messages.clocks import FOREVER
from inaproto.wire.messages.model_connections import (
    ModelClock,
    ModelDone,
    ModelJoin,
    ModelJoined,
    ModelLeave,
    ModelPull,
    ModelPulled,
    ModelSave,
)

SEGMENTS_MAX: Final = 256
ModelRequest = ModelClock | ModelPull | ModelSave | ModelLeave


class ModelSession:
    """:class:`inaproto.daemon.models.seat.Owner`; made from the first message of the process."""

    def __init__(
        self,
        join: ModelJoin,
        seats: Mapping[str, ModelSeat],
        send: Callable[[Message], None],
        is_gone: Callable[[], bool],
    ) -> None:
        """``is_gone``: whether its process is. Raises ``JoinRefused``."""
        seat = seats.get(join.model)
        if seat is None:
            known = f"its models are {', '.join(seats)}" if seats else "it has no models (--models)"
            raise JoinRefused(f"this host has no worker of a model {join.model!r}; {known}")
        self._seat = seat
        self._join = join
        self._send = send
        self.is_gone = is_gone
        self._segments: dict[int, mmap.mmap] = {}
        self._pulls: dict[int, ModelPull] = {}
        try:
            seat.take(self)
        except JobError as error:
            raise JoinRefused(str(error)) from None

    def close(self) -> None:
        """The process has ended, or left."""
        self._seat.give_up(self)
        for memory in self._segments.values():
            with contextlib.suppress(BufferError):
                memory.close()
        self._segments.clear()

    # --- requests

    def buffer(self, message: Buffer, descriptor: int) -> None:
        """Raises ``JobError``; takes the descriptor."""
        if message.segment in self._segments or len(self._segments) >= SEGMENTS_MAX:
            os.close(descriptor)
            raise JobError(f"segment {message.segment}: comes twice, or is one more than {SEGMENTS_MAX}")
        self._segments[message.segment] = map_memory(
            descriptor, segment=message.segment, nbytes=message.nbytes
        )
        self._send(Ok(id=message.id))

    def handle(self, message: ModelRequest) -> None:
        """Raises ``JobError`` for what no client library asks."""
        if not self._seat.is_owner(self):
            raise JobError(f"model {self._seat.model.name!r}: another process is the worker by now")
        match message:
            case ModelClock(id=id, clock=clock, segment=segment, offset=offset):
                update = None if segment is None else self._array(segment, offset)
                self._seat.clocked(id, clock, update)
            case ModelPull(id=id, staleness=staleness, segment=segment, offset=offset):
                self._array(segment, offset)
                if id in self._pulls:
                    raise JobError(f"two pulls with the number {id}")
                self._pulls[id] = message
                self._seat.pull(id, staleness)
            case ModelSave(id=id):
                self._seat.save(id)
            case ModelLeave(id=id):
                self._seat.leave(id)

    def _array(self, segment: int, offset: int) -> NDArray[Any]:
        """The whole model, there."""
        model = self._seat.model
        memory = self._segments.get(segment)
        nbytes = model.elements * model.worker_dtype.itemsize
        if memory is None or offset + nbytes > len(memory) or offset % model.worker_dtype.itemsize:
            raise JobError(
                f"model {model.name!r}: {nbytes} bytes at {offset} of segment {segment}, which is not there "
                "or shorter"
            )
        return np.ndarray((model.elements,), model.worker_dtype, buffer=memory, offset=offset)

    # --- Owner

    def model_ready(self, clock: int) -> None:
        model = self._seat.model
        if clock >= FOREVER:
            refusal = JoinRefused(
                f"worker {self._seat.worker} of model {model.name!r} has left, or was removed, for good"
            )
            self._send(error_message(refusal, of=self._join.id))
            return
        self._send(
            ModelJoined(
                id=self._join.id,
                worker=self._seat.worker,
                workers=len(model.workers),
                elements=model.elements,
                dtype=model.worker_dtype_name,
                staleness=model.settings.staleness,
                clock=clock,
                segments_max=SEGMENTS_MAX,
            )
        )

    def model_done(self, request: int, clock: int) -> None:
        self._send(ModelDone(id=request, clock=clock))

    def model_pulled(self, request: int, pulled: PulledWeights) -> None:
        asked = self._pulls.pop(request)
        whole = self._array(asked.segment, asked.offset)
        for shard, weights in pulled.parts:
            whole[shard.first : shard.end] = weights
        self._send(
            ModelPulled(
                id=request,
                clock=pulled.clock,
                model_clock=pulled.model_clock,
                oldest=pulled.oldest,
                newest=pulled.newest,
                staleness=pulled.staleness,
            )
        )

    def model_refused(self, request: int, reason: str) -> None:
        self._pulls.pop(request, None)
        self._send(error_message(JobError(reason), of=request))
