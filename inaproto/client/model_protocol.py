"""What the worker of a model and its host daemon say to each other, without I/O: push, pull and clock.

Invariants: updates are numbered one after the other, and one is told only after the one before was taken;
each request ends once, as done or with an error; what has failed stays failed, with the same error.
"""

from __future__ import annotations

from dataclasses import dataclass

from inaproto.client.protocol import ClientProtocol
from inaproto.errors import JobError
from inaproto.wire.control_messages import Error, Message, encode_message, job_error
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


@dataclass(slots=True)
class ModelRequest:
    """From when it was asked; ``answer`` or ``error`` is there when it has ended."""

    call: str
    memory: object
    """Kept alive until the request has ended: the daemon uses it until then."""
    answer: ModelDone | ModelPulled | None = None
    error: JobError | None = None

    @property
    def ended(self) -> bool:
        return self.answer is not None or self.error is not None


class ModelProtocol(ClientProtocol):
    """One worker's side of the conversation."""

    def __init__(self) -> None:
        super().__init__()
        self.model: ModelJoined | None = None
        self._join = 0
        self._requests: dict[int, ModelRequest] = {}

    def join_model(self, model: str, key: str, pid: int) -> bytes:
        self._join = next(self._ids)
        return encode_message(ModelJoin(id=self._join, model=model, key=key, pid=pid))

    def clock(
        self, clock: int, segment: int | None, offset: int, memory: object
    ) -> tuple[ModelRequest, bytes]:
        request, id = self._request(f"clock {clock}", memory)
        return request, encode_message(ModelClock(id=id, clock=clock, segment=segment, offset=offset))

    def pull(
        self, staleness: int | None, segment: int, offset: int, memory: object
    ) -> tuple[ModelRequest, bytes]:
        asked = "pull" if staleness is None else f"pull at staleness {staleness}"
        request, id = self._request(asked, memory)
        return request, encode_message(ModelPull(id=id, staleness=staleness, segment=segment, offset=offset))

    def save_model(self) -> tuple[ModelRequest, bytes]:
        request, id = self._request("make_durable", None)
        return request, encode_message(ModelSave(id=id))

    def leave_model(self) -> tuple[ModelRequest, bytes]:
        request, id = self._request("leave", None)
        return request, encode_message(ModelLeave(id=id))

    def _request(self, call: str, memory: object) -> tuple[ModelRequest, int]:
        id = next(self._ids)
        request = ModelRequest(call, memory)
        if self.failure is not None:
            request.error = self.failure
        else:
            self._requests[id] = request
        return request, id

    def fail(self, error: JobError) -> None:
        super().fail(error)
        for request in self._requests.values():
            request.error = self.failure
        self._requests.clear()

    def _handle(self, message: Message) -> None:
        match message:
            case ModelJoined(id=of) if of == self._join:
                self.model = message
            case ModelDone() | ModelPulled():
                request = self._requests.pop(message.id, None)
                if request is not None:
                    request.answer, request.memory = message, None
            case Error(of=of) if of in self._requests:
                request = self._requests.pop(of)
                request.error, request.memory = job_error(message), None
            case _:
                super()._handle(message)
