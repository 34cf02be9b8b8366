"""Works: what torch holds of a collective under way.

A future's error that was set by ``set_exception`` is a mere value to C++, so each future is chained to
another, which raises. A work whose Python half is collected while C++ holds it would never end: what goes to
C++ goes through a process group of Python, whose works C++ keeps alive.

Nobody but who waits is needed for a work that nobody has asked for its future: a future is fulfilled by
another thread, and that costs a small collective several times its own time.

On a device a work has ended when the copy back has been asked for: who waits then has its stream wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from inaproto.client.completions import COMPLETIONS
from inaproto.client.works import BlockingWork
from inaproto.errors import InaprotoError, OperationTimeout
from inaproto.torch.staging import Device


def as_torch_error(error: BaseException) -> BaseException:
    """As torch's users expect errors of a backend; each call gives a new one."""
    if isinstance(error, InaprotoError):
        found: BaseException = dist.DistBackendError(f"{type(error).__name__}: {error}")
        found.__cause__ = error
        return found
    return error


def devices_of(tensors: Sequence[torch.Tensor]) -> list[torch.device]:
    """As a future wants them that will have these tensors."""
    return sorted({each.device for each in tensors if each.device.type != "cpu"}, key=str)


class CollectiveWork(dist.Work):  # type: ignore[misc]  # torch has no types here
    """Complete when the result is in the tensors, or with an error."""

    def __init__(self, tensors: Sequence[torch.Tensor], call: str) -> None:
        super().__init__()
        self._tensors = list(tensors)
        self._call = call
        self._placed = threading.Event()
        self._started: BlockingWork | None = None
        self._finish: Callable[[], None] | None = None
        self._settling = threading.Lock()
        self._has_ended = False
        self._error: BaseException | None = None
        self._asking = threading.Lock()
        """Guards the two below, and whether it has begun."""
        self._inner: Any = None
        self._future: Any = None
        self._recorded: Any = None
        """A future at whose end a profiler's event ends; None: there is no such event, or it has ended."""
        self._device: Device | None = None
        self._mark: Any = None
        """Of the copies back into that device."""

    def _outcome(self, _: Any) -> list[torch.Tensor]:
        if self._error is not None:
            raise as_torch_error(self._error)
        return self._tensors

    # --- for the engine

    def has_begun(self, started: BlockingWork, finish: Callable[[], None]) -> None:
        """It is what ``started`` is; ``finish`` puts its result where it belongs."""
        self._finish = finish
        with self._asking:
            self._started = started
            is_asked = self._inner is not None
        self._placed.set()
        if is_asked:
            started.add_done_callback(self._fulfil)

    def end(self, error: BaseException | None = None) -> None:
        """It ends without having begun: the result is there, or never will be. Once: who shuts a group down
        ends what another thread may be about to end.
        """
        with self._asking:
            if self._has_ended:
                return
            self._error = error
            self._end_event()
            self._has_ended = True
            is_asked = self._inner is not None
        self._placed.set()
        if is_asked:
            COMPLETIONS.submit(self._set_result)

    def land(self, device: Device, mark: Any) -> None:
        """It ends: the result will be in the tensors when ``mark`` is over."""
        self._device, self._mark = device, mark
        self.end()

    @property
    def is_over(self) -> bool:
        """Its result or its error is there; settled or not."""
        return self._has_ended or (self._started is not None and self._started.done)

    def settle(self, timeout: float | None = None) -> None:
        """Wait for what has begun, and take its result, once. Raises ``OperationTimeout``.

        Whoever waits does it, if nobody has: threads in which callbacks are called are bounded, and may all
        wait here.
        """
        if self._has_ended:
            return
        assert self._started is not None
        error: BaseException | None = self._started.exception(timeout)
        with self._settling:
            if not self._has_ended:
                if error is None and self._finish is not None:
                    try:
                        self._finish()
                    except RuntimeError as fault:
                        error = fault
                self._finish = None
                self._error = error
                self._end_event()
                self._has_ended = True

    def _end_event(self) -> None:
        """Before anybody hears of the end: whoever waited may end the profiler next, which would crash."""
        recorded, self._recorded = self._recorded, None
        if recorded is not None:
            recorded.set_result(None)

    def _fulfil(self, _: Any) -> None:
        """In a completion thread, which may block."""
        self.settle()
        self._set_result()

    def _set_result(self) -> None:
        if self._device is None:
            self._inner.set_result(None)
            return
        with self._device.in_the_back():  # whoever goes on has its stream wait for this one
            self._inner.set_result(self._tensors)

    def record(self, event: str) -> None:
        """Let a profiler see it, from now until it has ended, in whichever thread. Before it begins."""
        self.get_future()  # so that it ends by itself
        self._recorded = torch.futures.Future()
        with torch.autograd.profiler.record_function(event) as recorded:
            recorded._call_end_callbacks_on_future(self._recorded)

    # --- for torch

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Raises the error of the collective as ``torch.distributed.DistBackendError``."""
        seconds = None if timeout is None or timeout <= timedelta(0) else timeout.total_seconds()
        until = None if seconds is None else time.monotonic() + seconds
        if not self._placed.wait(seconds):
            raise as_torch_error(OperationTimeout(f"{self._call} did not begin within {seconds:g} s"))
        if not self._has_ended:
            try:
                self.settle(None if until is None else max(0.0, until - time.monotonic()))
            except InaprotoError as late:
                raise as_torch_error(late) from late
        if self._error is not None:
            raise as_torch_error(self._error)
        if self._device is not None:
            self._device.follow(self._mark)
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        if not self._has_ended and self.is_over:
            self.settle()
        return self._has_ended and (self._device is None or self._device.is_over(self._mark))

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        if not self.is_completed() or self._error is None:
            return None
        return as_torch_error(self._error)

    def result(self) -> list[torch.Tensor]:
        return self._tensors

    def get_future(self) -> Any:
        """Always the same one; whoever asks for it has the collective go on by itself."""
        with self._asking:
            if self._future is not None:
                return self._future
            self._inner = torch.futures.Future(devices=devices_of(self._tensors))
            self._future = self._inner.then(self._outcome)
            started, has_ended = self._started, self._has_ended
        if has_ended:
            self._set_result()
        elif started is not None:
            started.add_done_callback(self._fulfil)
        return self._future

    def source_rank(self) -> NoReturn:
        raise RuntimeError("a collective has no source rank")


class _Carrier(dist.ProcessGroup):  # type: ignore[misc]
    """A group whose all-reduce is a work that was started elsewhere: C++ keeps what comes from it alive."""

    def __init__(self) -> None:
        super().__init__(0, 1)
        self.next = threading.local()

    def allreduce(self, tensors: Any, options: Any) -> Any:
        work, self.next.work = self.next.work, None
        return work


_carrier: _Carrier | None = None


def boxed(work: CollectiveWork, allreduce: Any) -> Any:
    """The work as kernels return it. ``allreduce``: torch's own ``ProcessGroup.allreduce``."""
    global _carrier  # noqa: PLW0603  made when torch is whole
    if _carrier is None:
        _carrier = _Carrier()
    _carrier.next.work = work
    return allreduce(_carrier, work.result(), dist.AllreduceOptions()).boxed()
