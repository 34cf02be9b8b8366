"""Vectors in the memory of a device, on their way through memory that the host daemon reads.

A vector goes in pieces, each through a slab: memory shared with the host daemon and pinned, which the device
reads and writes by itself. So a piece is summed while the next one is copied out and the one before it back,
and the processor copies nothing.

Streams order what a device does: a copy out begins when what the caller's stream was asked for before the
call has ended, and a stream that follows the result begins what it is asked for next after the copy back.

Invariant: a slab has one piece at a time, until the copy back into the device has ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch

from inaproto.torch.record import say

PIECE_BYTES: Final = 4 << 20
"""Some ms of a link of 10 Gbit/s: the copies of the first and the last piece, which nothing hides, are short
beside that."""


class Device(Protocol):
    """What is asked of a device. A mark is a moment of a stream, which others can wait for."""

    def mark(self) -> Any:
        """All that the current stream of the calling thread was asked for until now."""

    def follow(self, mark: Any) -> None:
        """The current stream goes on when ``mark`` is over; the caller does not wait."""

    def is_over(self, mark: Any) -> bool: ...

    def keep(self, tensor: torch.Tensor) -> None:
        """Its memory is given to nobody else before the copies back that have been asked for have ended."""

    def copy_out(self, piece: torch.Tensor, slab: torch.Tensor, after: tuple[Any, ...]) -> None:
        """Copy into the slab when all marks of ``after`` are over, and wait for the end."""

    def copy_back(self, slab: torch.Tensor, piece: torch.Tensor) -> Any:
        """Copy into the device, and return the mark of its end at once."""

    def in_the_back(self) -> AbstractContextManager[Any]:
        """Within it the current stream is that of copies back."""

    def pin(self, slab: torch.Tensor) -> None: ...

    def unpin(self, slab: torch.Tensor) -> None: ...


@dataclass(slots=True)
class Slab:
    """``memory``: ``PIECE_BYTES`` bytes, uint8."""

    memory: torch.Tensor
    free_after: Any = None
    """A mark: the copy back of the piece before."""

    def holding(self, piece: torch.Tensor) -> torch.Tensor:
        """The part that a piece takes, with elements of its type."""
        return self.memory[: piece.nbytes].view(piece.dtype)


def pieces(elements: torch.Tensor, nbytes: int = PIECE_BYTES) -> Iterator[torch.Tensor]:
    """Parts of a vector of at most ``nbytes`` bytes, in order; at least one."""
    step = nbytes // elements.element_size()
    for first in range(0, max(1, elements.numel()), step):  # of none, too: the ranks meet for it
        yield elements[first : first + step]


class CudaDevice:
    """One GPU, with a stream for copies out and one for copies back."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._out = torch.cuda.Stream(device)
        self._back = torch.cuda.Stream(device)
        self._is_told = False

    def mark(self) -> Any:
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event

    def follow(self, mark: Any) -> None:
        torch.cuda.current_stream(self._device).wait_event(mark)

    def is_over(self, mark: Any) -> bool:
        return bool(mark.query())

    def keep(self, tensor: torch.Tensor) -> None:
        tensor.record_stream(self._back)

    def copy_out(self, piece: torch.Tensor, slab: torch.Tensor, after: tuple[Any, ...]) -> None:
        there = torch.cuda.Event(blocking=True)  # else the thread that waits would take a core
        with torch.cuda.stream(self._out):
            for mark in after:
                self._out.wait_event(mark)
            slab.copy_(piece, non_blocking=True)
            there.record(self._out)
        there.synchronize()

    def copy_back(self, slab: torch.Tensor, piece: torch.Tensor) -> Any:
        with torch.cuda.stream(self._back):
            piece.copy_(slab, non_blocking=True)
            return self.mark()

    def in_the_back(self) -> AbstractContextManager[Any]:
        found: AbstractContextManager[Any] = torch.cuda.stream(self._back)
        return found

    def pin(self, slab: torch.Tensor) -> None:
        """Where CUDA refuses, copies go through memory of its own, at a fifth of the speed: said once."""
        code = int(torch.cuda.cudart().cudaHostRegister(slab.data_ptr(), slab.nbytes, 0))
        if code and not self._is_told:
            self._is_told = True
            say(
                f"{self._device}: CUDA does not pin memory shared with the host daemon: error {code}. "
                "Copies from and to the device are slower",
                warns=True,
            )

    def unpin(self, slab: torch.Tensor) -> None:
        torch.cuda.cudart().cudaHostUnregister(slab.data_ptr())
