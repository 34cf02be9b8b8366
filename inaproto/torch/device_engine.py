"""All-reduces of one process group whose tensors are on devices.

A thread of the engine copies pieces out, in the order of the calls, and starts the all-reduce of each; the
end of one has it copied back. A caller never waits but for the ranks to agree, once, at the group's first
all-reduce, as torch's own backends do: where inaproto cannot serve all ranks, all of them leave the group's
all-reduces to its backend, in the order of the calls.

Invariants: pieces are started in the same order on all ranks, also those of a call that has failed here; a
slab whose operation may still run is never used again.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
import torch

from inaproto.client.works import BlockingWork
from inaproto.torch.elements import Vector, as_numpy
from inaproto.torch.engine import Call, GroupEngine, fresh
from inaproto.torch.meeting import Agreed, Store
from inaproto.torch.record import GroupRecord, say
from inaproto.torch.staging import PIECE_BYTES, Device, Slab, pieces
from inaproto.torch.works import CollectiveWork

SLABS_MAX: Final = 8
"""32 MiB of each group that has as much under way."""


class _Staged:
    """A call whose pieces are under way."""

    def __init__(self, call: Call, device: Device, count: int) -> None:
        self.call = call
        self.device = device
        self.left = count
        self.error: BaseException | None = None


class DeviceEngine(GroupEngine):
    """As its base, by way of slabs."""

    def __init__(
        self,
        record: GroupRecord,
        store: Store,
        make_device: Callable[[torch.device], Device],
        *,
        goes_on: bool,
    ) -> None:
        """``goes_on``: the group's own backend carries what inaproto cannot; else that is an error."""
        super().__init__(record, store, None)
        self._make_device = make_device
        self._goes_on = goes_on
        self._devices: dict[torch.device, Device] = {}
        self._is_decided = False
        self._free: list[Slab] = []
        self._usable = 0
        """Slabs that are free or have a piece."""
        self._pinned: list[tuple[Device, Slab]] = []
        self._under_way = 0
        """Calls of which pieces are."""

    # --- any thread

    def carries(self, timeout: float) -> bool:
        if os.getpid() != self._pid:
            return True  # which refuses the call
        with self._changed:
            if self._error is None and not self._is_closing and not self._is_decided:
                self._begin(time.monotonic() + timeout, timeout)
                self._changed.wait_for(
                    lambda: self._is_decided or self._is_closing or self._error is not None
                )
            return not self._is_decided or self._comm is not None

    def submit(
        self, vector: Vector, op: str, work: CollectiveWork, timeout: float, *, is_async: bool = True
    ) -> None:
        if os.getpid() == self._pid:
            device = self._device_of(vector.elements)
            device.keep(vector.elements)
            vector.ready = device.mark()
        super().submit(vector, op, work, timeout, is_async=is_async)

    def close(self, *, leaves: bool = True) -> None:
        super().close(leaves=leaves)
        if os.getpid() != self._pid:
            return
        with self._changed:
            pinned, self._pinned = self._pinned, []
            self._free.clear()
        for device, slab in pinned:
            with contextlib.suppress(Exception):  # CUDA may have ended before, with the process
                device.unpin(slab.memory)

    def _is_idle(self) -> bool:
        return not self._queue and not self._under_way

    def _device_of(self, elements: torch.Tensor) -> Device:
        with self._changed:
            found = self._devices.get(elements.device)
            if found is None:
                found = self._devices[elements.device] = self._make_device(elements.device)
            return found

    # --- its thread

    def _go_on_without(self, agreed: Agreed) -> None:
        record = self.record
        if not self._goes_on:
            super()._go_on_without(agreed)
        record.carrier = record.backend
        if record.rank == 0:
            say(f"{record.why}; {record.backend} carries its all-reduces", warns=True)
        self._decide()

    def _decide(self) -> None:
        with self._changed:
            self._is_decided = True
            self._changed.notify_all()

    def _hand_over(self) -> None:
        self._decide()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._is_closing)
                if not self._queue:
                    return
                call = self._queue[0]
            self._stage(call)
            with self._changed:
                self._queue.popleft()
                self._changed.notify_all()

    def _stage(self, call: Call) -> None:
        assert self._comm is not None
        elements = call.vector.elements
        device = self._device_of(elements)
        parts = list(pieces(elements))
        staged = _Staged(call, device, len(parts))
        with self._changed:
            self._under_way += 1
        for part in parts:
            slab: Slab | None = None
            try:
                slab = self._take(device)
                memory = slab.holding(part)
                marks = (call.vector.ready, slab.free_after)
                device.copy_out(part, memory, tuple(mark for mark in marks if mark is not None))
                left = max(0.001, round(call.until - time.monotonic(), 3))
                started = call.begin(self._comm, as_numpy(memory), left)
            except Exception as error:  # noqa: BLE001  whoever waits is to hear of it
                self._landed(staged, slab, error)
                continue
            started.add_done_callback(partial(self._reduced, staged, part, slab))

    def _take(self, device: Device) -> Slab:
        """A slab that nobody uses. This thread alone makes new ones."""
        assert self._comm is not None
        with self._changed:
            self._changed.wait_for(lambda: self._free or self._usable < SLABS_MAX)
            if self._free:
                return self._free.pop()  # the one that was used last, so that a small group has few
        # Counted only when it is there: once a job has failed there is none, for any number of calls.
        memory = torch.from_numpy(self._comm.buffer(PIECE_BYTES // 4, np.int32)).view(torch.uint8)
        slab = Slab(memory)
        device.pin(memory)
        with self._changed:
            self._usable += 1
        self._pinned.append((device, slab))
        return slab

    # --- completion threads

    def _reduced(self, staged: _Staged, part: torch.Tensor, slab: Slab, work: BlockingWork) -> None:
        try:
            error: BaseException | None = work.exception(0)
            if error is None:
                slab.free_after = staged.device.copy_back(slab.holding(part), part)
        except Exception as fault:  # noqa: BLE001  whoever waits is to hear of it
            error = fault
        self._landed(staged, slab, error)

    def _landed(self, staged: _Staged, slab: Slab | None, error: BaseException | None) -> None:
        """One piece of a call is back, or never will be."""
        with self._changed:
            if slab is not None:
                if error is None:
                    self._free.append(slab)
                else:
                    self._usable -= 1
            staged.left -= 1
            staged.error = staged.error or error
            is_last = not staged.left
            self._changed.notify_all()
        if not is_last:
            return
        call, device = staged.call, staged.device
        mark: Any = None
        if staged.error is None:
            try:
                with device.in_the_back():
                    call.vector.finish(call.op, self.record.size)
                    mark = device.mark()
            except Exception as fault:  # noqa: BLE001  whoever waits is to hear of it
                staged.error = fault
        if staged.error is None:
            call.work.land(device, mark)
        else:
            call.work.end(fresh(staged.error))
        with self._changed:
            self._under_way -= 1
            self._changed.notify_all()
